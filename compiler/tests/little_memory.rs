//! Small models with little memory: the best plans that are known, and how much of them is proven.

use graphc_compiler::cluster::preset;
use graphc_compiler::compile::compile;
use graphc_ir::builder::GraphBuilder;
use graphc_ir::graph::Graph;
use graphc_ir::ops::Init;
use graphc_ir::plan::{AdamOptions, CompileOptions, Loss, Optimizer};
use graphc_ir::types::DType;

/// Three products with ReLU between them.
fn products() -> Graph {
    let g = GraphBuilder::new("products");
    let weight = |name: &str| g.variable(name, DType::F32, [32, 32], Init::Fill(0.0.into()));
    let x = g.input("x", DType::F32, [32, 32]);
    let hidden = x.matmul(&weight("a")).relu().matmul(&weight("b")).relu();
    g.output("y", &hidden.matmul(&weight("c")));
    g.finish().expect("fits")
}

/// Microseconds, and the share of them that is not proven.
fn planned(kib: u64) -> (f64, f64) {
    let adam = AdamOptions { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };
    let options = CompileOptions {
        mesh: vec![4],
        loss: Some(Loss::Mse),
        optimizer: Some(Optimizer::Adam(adam)),
        memory: Some(kib * 1024),
        ..CompileOptions::default()
    };
    let cluster = preset("cpu").expect("a preset");
    let plan = compile(products(), &options, &cluster, None).expect("it fits").plan;
    (1e6 * plan.planner.objective_seconds, plan.planner.gap)
}

#[test]
fn division_proves_what_prices_leave_open() {
    for (kib, most) in [(27, 71.6), (24, 78.8), (22, 80.0), (20, 95.2)] {
        let (microseconds, gap) = planned(kib);
        assert!(microseconds < most && gap <= 1e-6, "{kib} KiB: {microseconds} us, gap {gap}");
    }
}

#[test]
fn a_plan_for_less_memory_is_found_with_more() {
    // What is best by the planner's count needs more as it is lowered, so a plan for less is taken, and proven to be so close.
    let (microseconds, gap) = planned(25);
    assert!(microseconds < 78.8 && gap < 0.07, "{microseconds} us, gap {gap}");
}
