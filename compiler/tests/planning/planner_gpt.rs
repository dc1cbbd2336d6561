//! The planner on a transformer with its gradients and Adam, on every mesh and under every strategy.

use crate::trained::options;
use graphc_compiler::cluster::preset;
use graphc_compiler::decisions::Decisions;
use graphc_compiler::pipeline::prepare_graph;
use graphc_compiler::planner::{Planned, plan_signatures, reprice_sharding};
use graphc_ir::builder::GraphBuilder;
use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_ir::types::DType;
use graphc_nn::{Gpt, GptConfig, Module};
use graphc_plan::{Cluster, CompileOptions, PlannerStatus, Strategy, TensorKind};

fn gpt(layers: usize, options: &CompileOptions) -> Decisions {
    let g = GraphBuilder::new("gpt");
    let config = GptConfig { layers, width: 64, heads: 4, sequence: 32, vocabulary: 250 };
    let tokens = g.input("tokens", DType::I64, [16, 32]);
    g.output("logits", &Gpt::new(&g, &config).forward(&tokens));
    prepare_graph(g.finish().expect("the graph is right"), options).expect("it can be trained")
}

fn cpu() -> Cluster {
    preset("cpu").expect("a preset")
}

/// Plans, and compares the plan with the independent check.
fn checked(decisions: &Decisions, options: &CompileOptions) -> Planned {
    let planned = plan_signatures(decisions, options, &cpu()).expect("memory is plenty");
    let found = reprice_sharding(decisions, &planned.sharding, &cpu(), options);
    let (objective, bound) = (planned.report.objective_seconds, planned.report.bound_seconds);
    let close = (found.objective_seconds - objective).abs() <= 1e-9 * objective;
    assert!(close, "{found:?} {:?}", planned.report);
    assert_eq!(found.memory, planned.memory);
    assert!(bound > 0.0 && bound <= objective);
    planned
}

#[test]
fn plans_are_as_priced_and_optimal() {
    for (mesh, stages, microbatches) in [
        (&[1][..], 1, 1),
        (&[2], 1, 1),
        (&[3], 1, 2),
        (&[4], 1, 1),
        (&[2], 2, 4),
        (&[2, 2], 2, 4),
        (&[2, 2], 1, 1),
        (&[4, 2], 1, 2),
    ] {
        let options = options(mesh, stages, microbatches);
        let planned = checked(&gpt(2, &options), &options);
        assert_eq!(planned.report.status, PlannerStatus::Optimal, "{mesh:?}: {:?}", planned.report);
        let share = planned.report.bound_seconds / planned.report.objective_seconds;
        assert!(share >= 1.0 - 1e-6, "{mesh:?}: {:?}", planned.report);
    }
}

#[test]
fn the_same_input_gives_the_same_plan() {
    let options = options(&[2], 1, 2);
    let [a, b] = [(), ()].map(|()| checked(&gpt(2, &options), &options));
    assert_eq!(a.report, b.report);
    assert_eq!(a.sharding.nodes, b.sharding.nodes);
}

/// All layouts of variables of one kind.
fn variables(decisions: &Decisions, planned: &Planned, kind: TensorKind) -> Vec<NdSbp> {
    let graph = decisions.graph();
    let is = |value: usize| {
        let producer = graph.producer(ValueId::new(value));
        matches!(producer.op, Op::Variable(_)) && decisions.training.kinds[value] == kind
    };
    let layout = |value: usize| {
        planned.sharding.nodes[graph.values[value].producer.index()].results[0].clone()
    };
    (0..graph.values.len()).filter(|&value| is(value)).map(layout).collect()
}

#[test]
fn strategies_keep_variables_as_they_say_and_auto_is_no_worse() {
    for (mesh, stages, microbatches) in [(&[2][..], 1, 1), (&[3], 1, 2), (&[2, 2], 2, 2)] {
        let mut options = options(mesh, stages, microbatches);
        let decisions = gpt(1, &options);
        let auto = checked(&decisions, &options);
        let mut memory = Vec::new();
        for strategy in [Strategy::Data, Strategy::Zero1, Strategy::Zero2, Strategy::Zero3] {
            options.strategy = strategy;
            let planned = checked(&decisions, &options);
            let all = |kind, sbp: Sbp| {
                let layouts = variables(&decisions, &planned, kind);
                assert!(!layouts.is_empty());
                layouts.iter().all(|layout| layout.0.iter().all(|&axis| axis == sbp))
            };
            let [parameters, states] = match strategy {
                Strategy::Zero3 => [Sbp::Split(0); 2],
                Strategy::Data => [Sbp::Broadcast; 2],
                _ => [Sbp::Broadcast, Sbp::Split(0)],
            };
            assert!(all(TensorKind::Parameter, parameters), "{strategy:?} {mesh:?}");
            assert!(all(TensorKind::State, states), "{strategy:?} {mesh:?}");
            assert_eq!(planned.report.status, PlannerStatus::Gap);
            let worse = planned.report.objective_seconds;
            assert!(worse >= auto.report.objective_seconds * (1.0 - 1e-9), "{strategy:?} {mesh:?}");
            memory.push(planned.memory[0]);
        }
        assert!(memory[1] < memory[0], "states in shards take less: {memory:?}");
    }
}

#[test]
fn data_parallelism_reduces_gradients_and_nothing_else_but_the_loss() {
    let mut options = options(&[4], 1, 1);
    options.strategy = Strategy::Data;
    let decisions = gpt(1, &options);
    let planned = checked(&decisions, &options);
    for (id, node) in decisions.graph().iter() {
        let sharding = &planned.sharding.nodes[id.index()];
        for (operand, taken) in node.operands.iter().zip(&sharding.operands) {
            let value = decisions.graph().value(*operand);
            let made = &planned.sharding.nodes[value.producer.index()].results[value.index];
            let moves = made != taken && *made != NdSbp::broadcast(1);
            let gradient = decisions.training.gradients.iter().any(|(_, g)| g == operand);
            let scalar = value.ty.elements() == 1;
            assert!(!moves || gradient || scalar, "{} takes {made} as {taken}", node.op.name());
        }
    }
}

#[test]
fn a_memory_limit_is_kept_or_explained() {
    let mut options = options(&[2], 1, 1);
    let decisions = gpt(1, &options);
    let free = checked(&decisions, &options);
    options.memory = Some(free.memory[0] * 95 / 100);
    let tight = checked(&decisions, &options);
    assert!(tight.memory[0] <= free.memory[0] * 95 / 100);
    assert!(tight.report.objective_seconds >= free.report.objective_seconds);
    options.memory = Some(10_000);
    let error = plan_signatures(&decisions, &options, &cpu()).expect_err("10 kB").to_string();
    assert!(error.starts_with("rank 0 (stage 0) needs "), "{error}");
    assert!(error.contains("but has 9.77 KiB"), "{error}");
    assert!(error.contains("found (no plan needs less than "), "{error}");
    assert_eq!(error.split("tensors are").nth(1).map(|list| list.matches('`').count()), Some(10));
}

#[test]
fn little_memory_leaves_a_small_gap() {
    let mut options = options(&[2], 1, 1);
    let decisions = gpt(3, &options);
    let free = checked(&decisions, &options);
    options.memory = Some(free.memory[0] * 93 / 100);
    let tight = checked(&decisions, &options);
    assert!(tight.memory[0] <= free.memory[0] * 93 / 100);
    assert!(tight.report.gap <= 0.02, "{:?}", tight.report);
}
