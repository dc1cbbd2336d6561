//! The plans that are edited.

use graphc::plan::check::VerifiedPlan;
use graphc::prelude::nn::{
    BatchNorm2d, Conv2d, ConvConfig, Gpt, GptConfig, Linear, Module, SwitchConfig,
    SwitchFeedForward,
};
use graphc::prelude::*;

const SGD: Optimizer =
    Optimizer::Sgd { lr: 0.1, momentum: 0.9, nesterov: false, weight_decay: 0.0 };

fn plan(graph: Graph, overlap: bool, options: CompileOptions) -> VerifiedPlan {
    let mut cluster = preset("cpu").expect("a preset");
    cluster.device.overlap = overlap;
    compile(graph, &options, &cluster, None).expect("a plan").plan
}

fn mlp() -> Graph {
    let g = GraphBuilder::new("mlp");
    let x = g.input("x", DType::F32, [8, 12]);
    let labels = g.input("labels", DType::I64, [8]);
    let h = Linear::new(&g, "fc1", 12, 16).forward(&x).relu();
    let y = Linear::new(&g, "fc2", 16, 8).forward(&h).relu();
    g.output("loss", &Linear::new(&g, "fc3", 8, 4).forward(&y).cross_entropy(&labels));
    g.finish().expect("a graph")
}

fn gpt() -> Graph {
    let g = GraphBuilder::new("gpt");
    let config = GptConfig { vocabulary: 12, sequence: 4, layers: 2, heads: 2, width: 8 };
    let tokens = g.input("tokens", DType::I64, [6, 4]);
    let labels = g.input("labels", DType::I64, [6, 4]);
    let logits = Gpt::new(&g, &config).forward(&tokens);
    g.output("loss", &logits.cross_entropy(&labels));
    g.finish().expect("a graph")
}

fn experts() -> Graph {
    let g = GraphBuilder::new("experts");
    let x = g.input("x", DType::F32, [4, 6, 8]);
    let sizes = SwitchConfig { width: 8, hidden: 8, experts: 4, capacity: 1.0 };
    let (y, balance) = SwitchFeedForward::new(&g, "experts", &sizes).forward_and_balance(&x);
    let loss = (&y * &y).mean(&[0, 1, 2], false).add(&balance.scale(0.01));
    g.output("loss", &loss);
    g.finish().expect("a graph")
}

/// Inference by convolutions that have their normalization, a residual connection and an activation behind them.
fn images() -> Graph {
    let g = GraphBuilder::new("images");
    let x = g.input("x", DType::F32, [4, 3, 6, 6]);
    let config = ConvConfig { padding: [1, 1], bias: false, ..ConvConfig::square(3) };
    let block = |name: &str, inputs: usize, x: &Tensor| {
        let y = Conv2d::new(&g, name, [inputs, 8], config).forward(x);
        BatchNorm2d::new(&g, &format!("{name}_norm"), 8).forward(&y)
    };
    let x = block("first", 3, &x).relu();
    let y = block("second", 8, &x).add(&x).clip(0.0, 6.0);
    g.output("y", &y.mean(&[2, 3], false));
    g.finish().expect("a graph")
}

/// Small plans of all kinds, by name.
pub fn all() -> Vec<(&'static str, VerifiedPlan)> {
    let inference =
        |mesh: &[usize]| CompileOptions { mesh: mesh.to_vec(), ..CompileOptions::default() };
    let on = |mesh: &[usize]| CompileOptions { optimizer: Some(SGD), ..inference(mesh) };
    let stages = CompileOptions { stages: 2, microbatches: 3, ..on(&[2]) };
    let zero3 = CompileOptions { strategy: Strategy::Zero3, microbatches: 2, ..on(&[3]) };
    let split = Pin { pattern: "experts.*.weight".into(), sbp: "S(0)".parse().expect("an SBP") };
    vec![
        ("mlp on 4", plan(mlp(), false, on(&[2, 2]))),
        ("gpt in 2 stages", plan(gpt(), false, stages)),
        ("zero3 with two streams", plan(mlp(), true, zero3.clone())),
        ("zero3 with one", plan(gpt(), false, zero3)),
        ("experts", plan(experts(), false, CompileOptions { pins: vec![split], ..on(&[2]) })),
        ("inference of images", plan(images(), false, inference(&[2]))),
    ]
}
