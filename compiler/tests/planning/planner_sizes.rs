//! The planner on transformers of several sizes, meshes and schedules: every plan has a finite cost that holds.

use crate::trained::options;
use graphc_compiler::cluster::preset;
use graphc_compiler::decisions::Decisions;
use graphc_compiler::pipeline::prepare_graph;
use graphc_compiler::planner::{plan_signatures, reprice_sharding};
use graphc_ir::builder::GraphBuilder;
use graphc_ir::ops::Init;
use graphc_ir::scalar::Scalar;
use graphc_ir::types::DType;
use graphc_nn::{Gpt, GptConfig, Module};
use graphc_plan::{CompileOptions, Loss, Strategy};

fn gpt(layers: usize, batch: usize, options: &CompileOptions) -> Decisions {
    let g = GraphBuilder::new("gpt");
    let config = GptConfig { layers, width: 64, heads: 4, sequence: 32, vocabulary: 256 };
    let tokens = g.input("tokens", DType::I64, [batch, 32]);
    g.output("logits", &Gpt::new(&g, &config).forward(&tokens));
    prepare_graph(g.finish().expect("the graph is right"), options).expect("it can be trained")
}

/// Plans on a preset's machines, and compares the plan with the independent check. Returns the share of the objective that is not proven.
fn holds(machine: &str, decisions: &Decisions, options: &CompileOptions) -> f64 {
    let cluster = preset(machine).expect("a preset");
    let planned = plan_signatures(decisions, options, &cluster).expect("memory is plenty");
    let report = planned.report;
    let found = reprice_sharding(decisions, &planned.sharding, &cluster, options).objective_seconds;
    let (objective, bound) = (report.objective_seconds, report.bound_seconds);
    let name =
        format!("{machine} {:?} of {} stages: {report:?} {found}", options.mesh, options.stages);
    assert!(objective.is_finite() && objective > 0.0, "{name}");
    assert!(bound > 0.0 && bound <= objective, "{name}");
    assert!((found - objective).abs() <= 1e-9 * objective, "{name}");
    report.gap
}

#[test]
fn plans_of_stages_are_optimal() {
    for (layers, mesh, stages, microbatches) in [
        (6, &[2, 2][..], 2, 4),
        (4, &[4], 2, 4),
        (2, &[4], 4, 4),
        (3, &[2], 2, 8),
        (4, &[4, 2], 4, 4),
    ] {
        let options = options(mesh, stages, microbatches);
        for machine in ["cpu", "dgx-a100"] {
            let gap = holds(machine, &gpt(layers, 16, &options), &options);
            assert_eq!(gap, 0.0, "{machine} {mesh:?}");
        }
    }
}

#[test]
fn plans_of_two_axes_are_optimal() {
    for machine in ["cpu", "dgx-a100"] {
        let options = options(&[2, 2], 1, 1);
        assert_eq!(holds(machine, &gpt(4, 16, &options), &options), 0.0, "{machine}");
    }
}

#[test]
fn fixed_strategies_on_a_large_mesh_hold() {
    let mut options = options(&[32, 8], 1, 1);
    let decisions = gpt(1, 256, &options);
    for strategy in [Strategy::Data, Strategy::Zero3] {
        options.strategy = strategy;
        holds("dgx-a100", &decisions, &options);
    }
}

/// One weight in a row of products, as of a recurrent network: all its readers are tied to each other by what it is boxed
/// to, and dividing the problem by that first leaves a chain.
#[test]
fn a_weight_with_many_readers_takes_little_work() {
    let options = CompileOptions { loss: Some(Loss::Mse), ..options(&[4], 1, 1) };
    let g = GraphBuilder::new("tied");
    let mut x = g.input("x", DType::F32, [64, 256]);
    let w = g.variable("w", DType::F32, [256, 256], Init::Fill(Scalar(0.02)));
    for _ in 0..200 {
        x = x.matmul(&w).relu();
    }
    g.output("y", &x);
    let graph = g.finish().expect("the graph is right");
    let decisions = prepare_graph(graph, &options).expect("it can be trained");
    let cluster = preset("cpu").expect("a preset");
    let planned = plan_signatures(&decisions, &options, &cluster).expect("memory is plenty");
    assert_eq!(planned.report.gap, 0.0);
    assert!(planned.work < 200_000_000, "{} entries", planned.work);
}
