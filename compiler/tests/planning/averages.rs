//! The planner counts the memory of moving averages: their own, and that of results of an update until the averages have read them.

use graphc_compiler::cluster::preset;
use graphc_compiler::compile::{Compiled, compile};
use graphc_compiler::planner::reprice_sharding;
use graphc_ir::builder::GraphBuilder;
use graphc_ir::graph::Graph;
use graphc_ir::ops::Init;
use graphc_ir::types::DType;
use graphc_plan::{CompileOptions, Loss, Optimizer, Strategy};

const WIDTH: usize = 256;
const LAYERS: usize = 4;

/// The bytes of a weight, compared with which all activations are negligible.
const WEIGHT: u64 = (WIDTH * WIDTH * 4) as u64;

fn network() -> Graph {
    let g = GraphBuilder::new("network");
    let mut x = g.input("x", DType::F32, [2, WIDTH]);
    for layer in 0..LAYERS {
        let init = Init::Normal { mean: 0.0.into(), std: 0.05.into() };
        x = x.matmul(&g.variable(&format!("w{layer}"), DType::F32, [WIDTH, WIDTH], init)).relu();
    }
    g.output("y", &x);
    g.finish().expect("a graph")
}

fn options(ema: Option<f64>, mesh: usize, strategy: Strategy) -> CompileOptions {
    let sgd = Optimizer::Sgd { lr: 0.1, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    CompileOptions {
        mesh: vec![mesh],
        strategy,
        loss: Some(Loss::Mse),
        optimizer: Some(sgd),
        ema,
        ..CompileOptions::default()
    }
}

/// Returns the bytes that the independent check counts, and those that are in use in the plan. The plan is for cards, where all gradients are in
/// memory when updates begin, as the check counts them. Processors free gradients sooner.
fn memory(options: &CompileOptions) -> (u64, u64) {
    let cluster = preset("dgx-a100").expect("a preset");
    let compiled = compile(network(), options, &cluster, None).expect("it fits");
    let Compiled { plan, decisions, sharding, .. } = compiled;
    let counted = reprice_sharding(&decisions, &sharding, &cluster, options).memory[0];
    (counted, plan.programs[0].live_bytes)
}

#[test]
fn the_planner_counts_averages_and_what_they_read() {
    for (mesh, strategy, part) in
        [(1, Strategy::Auto, 1), (2, Strategy::Data, 1), (2, Strategy::Zero3, 2)]
    {
        let (counted, alive) = memory(&options(Some(0.9), mesh, strategy));
        let (plain, alive_plain) = memory(&options(None, mesh, strategy));
        // The averages, and one updated weight beside the variable that it becomes.
        let expected = (LAYERS as u64 + 1) * WEIGHT / part;
        let near = |found: u64| found.abs_diff(expected) < WEIGHT / part / 4;
        assert!(near(counted - plain), "{strategy:?}: {} instead of {expected}", counted - plain);
        // Sharded weights are whole for a product, and then more is alive than at any update.
        let alive_more = alive - alive_plain;
        assert!(part > 1 || near(alive_more), "{strategy:?}: {alive_more} more are alive");
        assert!(counted >= alive, "{strategy:?}: {counted} are counted, {alive} are alive");
    }
}
