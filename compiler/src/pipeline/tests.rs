use graphc_ir::builder::GraphBuilder;
use graphc_ir::ops::Init;
use graphc_ir::types::DType;
use graphc_plan::{Loss, Optimizer};

use super::*;
use crate::cluster::preset;
use crate::passes::layers::find_layers;

/// Gradients and updates belong to the layer of their weight, in a graph of three products that is cut into layers. No layer is a stage.
#[test]
fn what_passes_make_of_a_layer_is_of_that_layer() {
    let g = GraphBuilder::new("layers");
    let x = g.input("x", DType::F32, [4, 8]);
    let layer = |x: graphc_ir::builder::Tensor, i: usize| {
        x.matmul(&g.variable(&format!("w{i}"), DType::F32, [8, 8], Init::Weights)).relu()
    };
    g.output("y", &(0..3).fold(x, layer));
    let optimizer = Optimizer::Sgd { lr: 0.1, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let options = CompileOptions {
        mesh: vec![2],
        loss: Some(Loss::Sum),
        optimizer: Some(optimizer),
        ..CompileOptions::default()
    };
    let graph = attach_loss(g.finish().expect("fits"), &options).expect("fits");
    let of = find_layers(&graph, |_| true).of;
    let cluster = preset("cpu").expect("a preset");
    let (decisions, layers) =
        prepare_layers(graph, &of, (&options, &cluster), false).expect("fits");
    let made_in = |value| layers[decisions.graph().value(value).producer.index()];
    let of_variables: Vec<LayerId> =
        decisions.training.gradients.iter().map(|&(variable, _)| made_in(variable)).collect();
    assert_eq!(of_variables, [0, 1, 2].map(LayerId));
    for &(variable, gradient) in &decisions.training.gradients {
        assert_eq!(made_in(gradient), made_in(variable));
    }
    assert!(decisions.graph().stages.is_empty());
    assert!(decisions.graph().nodes.iter().all(|node| node.stage().is_none()));
    assert!(decisions.staging.stage.iter().all(|&stage| stage == 0));
}
