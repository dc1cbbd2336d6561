//! What attention takes of a step.

use graphc_compiler::cluster::preset;
use graphc_compiler::compile::sketch;
use graphc_compiler::cost::on_cluster;
use graphc_ir::builder::GraphBuilder;
use graphc_ir::nn::{Gpt, GptConfig, Module};
use graphc_ir::op::Op;
use graphc_ir::plan::{
    Action, Actor, AdamOptions, Cluster, CompileOptions, Loss, Optimizer, Plan, Strategy,
};
use graphc_ir::types::DType;

/// The plan of a step of these many sequences of a length, on `ranks` ranks.
fn plan(cluster: &Cluster, batch: usize, length: usize, ranks: usize) -> Plan {
    let g = GraphBuilder::new("gpt");
    let config = GptConfig { layers: 2, width: 1024, heads: 8, sequence: length, vocabulary: 1024 };
    g.with_dtype(DType::BF16, || {
        let tokens = g.input("tokens", DType::I64, [batch, length]);
        g.output("logits", &Gpt::new(&g, &config).forward(&tokens));
    });
    let adam = AdamOptions { lr: 1e-4, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
    let options = CompileOptions {
        loss: Some(Loss::CrossEntropy),
        optimizer: Some(Optimizer::AdamW(adam)),
        mesh: vec![ranks],
        strategy: Strategy::Data,
        ..CompileOptions::default()
    };
    sketch(g.finish().expect("fits"), &options, cluster).expect("a plan")
}

fn is_attention(actor: &Actor) -> bool {
    matches!(actor.action, Action::Compute { op: Op::Attention(_) | Op::AttentionGrad(_), .. })
}

/// The share of kernels' seconds that attention has, in a step of these many sequences of a length.
fn share(cluster: &Cluster, batch: usize, length: usize) -> f64 {
    let plan = plan(cluster, batch, length, 1);
    let (mut attention, mut all) = (0.0, 0.0);
    for actor in &plan.programs[0].actors {
        all += actor.seconds;
        if is_attention(actor) {
            attention += actor.seconds;
        }
    }
    attention / all
}

#[test]
fn attention_dominates_long_sequences_and_not_short_ones() {
    let cluster = preset("dgx-h100").expect("a preset");
    let (short, long) = (share(&cluster, 64, 1024), share(&cluster, 1, 65536));
    assert!(short < 0.25, "{short} of a step of short sequences");
    assert!(long > 0.8, "{long} of a step of long ones");
    let mut products = cluster.clone();
    products.device.attention = None;
    assert!(share(&products, 1, 65536) < long, "it is no matrix product of its FLOPs");
}

#[test]
fn a_plan_on_other_machines_has_the_attention_of_one_that_is_made_for_them() {
    let [a100, h100] = ["dgx-a100", "dgx-h100"].map(|name| preset(name).expect("a preset"));
    let attention = |plan: &Plan| -> Vec<f64> {
        let actors = plan.programs[0].actors.iter();
        actors.filter(|actor| is_attention(actor)).map(|actor| actor.seconds).collect()
    };
    let made = attention(&plan(&h100, 8, 4096, 2));
    let moved = attention(&on_cluster(&plan(&a100, 8, 4096, 2), &h100));
    assert_eq!(made.len(), 4);
    assert!(made.iter().zip(&moved).all(|(a, b)| (a / b - 1.0).abs() < 1e-9), "{made:?} {moved:?}");
}
