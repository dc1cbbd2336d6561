//! Images, which have their channels last where they are computed: all that they pass through trains as PyTorch does, on every mesh,
//! under every strategy, in stages and in microbatches.

use graphc::ir::op::Op;
use graphc::nn::{BatchNorm2d, Conv2d, ConvConfig, Linear, MaxPool2d, Module, PoolConfig};
use graphc::prelude::*;

use super::running::feeds;
use super::{begin, evaluated, list, near, number, recorded, sgd, step};

const STEPS: usize = 12;

fn network() -> Graph {
    let g = GraphBuilder::new("images");
    let square = ConvConfig { padding: [1; 2], ..ConvConfig::square(3) };
    let pool = PoolConfig { stride: [2; 2], padding: [1; 2], ..PoolConfig::square(3) };
    let x = g.input("x", DType::F32, [8, 3, 8, 8]);
    let x = Conv2d::new(&g, "conv1", [3, 8], square).forward(&x);
    let x = BatchNorm2d::new(&g, "bn1", 8).forward(&x).relu().named("stem");
    let x = MaxPool2d(pool).forward(&x);
    let inner = Conv2d::new(&g, "conv2", [8, 8], ConvConfig { bias: false, ..square }).forward(&x);
    let x = x.add(&BatchNorm2d::new(&g, "bn2", 8).forward(&inner)).relu();
    let each = ConvConfig { groups: 8, stride: [2; 2], ..square };
    let x = Conv2d::new(&g, "depthwise", [8, 8], each).forward(&x);
    let x = Conv2d::new(&g, "conv3", [8, 12], ConvConfig::square(1)).forward(&x).relu();
    g.output("logits", &Linear::new(&g, "fc", 48, 4).forward(&x.reshape(&[8, 48])));
    g.finish().expect("fits")
}

fn training() -> CompileOptions {
    let loss = Some(Loss::CrossEntropy);
    CompileOptions { loss, optimizer: sgd(0.02), ..CompileOptions::default() }
}

/// Trains with PyTorch's weights and batches, and evaluates the first of them.
fn check(options: &CompileOptions) {
    let CompileOptions { mesh, stages, microbatches, strategy, .. } = options;
    let what = format!("{mesh:?} stages {stages} microbatches {microbatches} {strategy:?}");
    let recorded = recorded("images")[microbatches.to_string()].clone();
    let mut session = begin(&network(), options);
    let losses: Vec<f64> =
        (0..STEPS).map(|at| number(&step(&mut session, &feeds(at)), "loss")).collect();
    near(&losses, &list(&recorded["losses"]), 1e-3, &what);
    let inference = CompileOptions { mesh: mesh.clone(), ..CompileOptions::default() };
    let mut inference = evaluated(&network(), &inference, &mut session);
    let mut feeds = feeds(0);
    feeds.remove("labels");
    let logits = step(&mut inference, &feeds)["logits"].to_f64();
    near(&logits, &list(&recorded["logits"]), 1e-2, &format!("{what}: in evaluation"));
}

#[test]
fn networks_of_images_train_as_pytorch_does_on_every_mesh() {
    use Strategy::{Auto, Data, Zero3};
    for mesh in [vec![1], vec![2], vec![2, 2]] {
        for strategy in [Auto, Data, Zero3] {
            check(&CompileOptions { mesh: mesh.clone(), strategy, ..training() });
        }
    }
    for recompute in [Recompute::None, Recompute::Full] {
        check(&CompileOptions { mesh: vec![2], stages: 2, recompute, ..training() });
    }
}

#[test]
fn so_do_they_in_microbatches() {
    for (mesh, stages) in [(vec![1], 1), (vec![2], 1), (vec![2], 2), (vec![2, 2], 2)] {
        check(&CompileOptions { mesh, stages, microbatches: 2, ..training() });
    }
}

/// No kernel of the plan sees channels first, and what is left of transposes is that of the images fed and what is flattened.
#[test]
fn their_plan_has_channels_last() {
    let cpu = preset("cpu").expect("a preset");
    let mut options = training();
    options.mesh = vec![1];
    let decisions = graphc::compiler::pipeline::prepare_graph(network(), &options).expect("fits");
    let graph = decisions.graph();
    let first = |op: &Op| match op {
        Op::Convolution(op) => Some(op.channels_last),
        Op::ConvolutionInputGrad(op) => Some(op.channels_last),
        Op::ConvolutionKernelGrad(op) => Some(op.channels_last),
        Op::MaxPool(op) => Some(op.channels_last),
        Op::MaxPoolGrad(op) => Some(op.channels_last),
        _ => None,
    };
    let last: Vec<bool> = graph.nodes.iter().filter_map(|node| first(&node.op)).collect();
    assert_eq!(
        last,
        vec![true; 13],
        "four convolutions, of three also that of their input, and a pooling"
    );
    let transposes = graph.nodes.iter().filter(|node| matches!(node.op, Op::Transpose(_)));
    assert_eq!(transposes.count(), 3, "of what is fed, flattened, and of the gradient of that");
    assert!(graph.find("stem.channels_last").is_some());
    assert!(compile(network(), &options, &cpu, None).is_ok());
}
