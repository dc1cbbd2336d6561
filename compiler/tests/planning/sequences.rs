//! Fixed strategies where pins split sequences: what ranks sum of keys and values they add up before the next product, in parts of the sequence.

use crate::trained;
use graphc_compiler::check::verify_invariants;
use graphc_compiler::cluster::preset;
use graphc_compiler::compile::compile;
use graphc_ir::graph::Graph;
use graphc_ir::op::Op;
use graphc_nn::LlamaConfig;
use graphc_plan::check::VerifiedPlan;
use graphc_plan::{Action, CompileOptions, Pin};

/// A decoder whose heads, of so many elements, have keys and values of their own.
fn decoder(heads: usize, width: usize, sequence: usize) -> Graph {
    let config = LlamaConfig {
        layers: 2,
        width: heads * width,
        heads,
        shared: heads,
        hidden: 48,
        vocabulary: 64,
        base: 1e4,
    };
    trained::llama(&config, [4, sequence])
}

fn planned(strategy: &str, mesh: &[usize], split: &str) -> VerifiedPlan {
    planned_on("cpu", decoder(4, 8, 64), strategy, mesh, split)
}

fn planned_on(
    cluster: &str,
    graph: Graph,
    strategy: &str,
    mesh: &[usize],
    split: &str,
) -> VerifiedPlan {
    let pin = |name: &str| Pin { pattern: name.into(), sbp: split.parse().expect("an SBP") };
    let pinned: &[&str] = if split.is_empty() { &[] } else { &["tokens", "labels"] };
    let options = CompileOptions {
        strategy: strategy.parse().expect("a strategy"),
        pins: pinned.iter().map(|name| pin(name)).collect(),
        ..trained::options(mesh, 1, 2)
    };
    let compiled = compile(graph, &options, &preset(cluster).expect("a preset"), None);
    let plan = compiled.unwrap_or_else(|error| panic!("{strategy}: {error}")).plan;
    assert_eq!(verify_invariants(&plan), Ok(()), "{strategy}");
    plan
}

/// The layouts of all activations that products take.
fn multiplied(plan: &VerifiedPlan) -> Vec<String> {
    let program = &plan.programs[0];
    let products = program
        .actors
        .iter()
        .filter(|actor| matches!(&actor.action, Action::Compute { op: Op::MatMul(_), .. }));
    let registers = products.flat_map(|actor| &actor.inputs);
    let layouts =
        registers.map(|register| &plan.layouts[program.registers[register.index()].layout.index()]);
    layouts.filter(|layout| layout.shape.len() > 2).map(|layout| layout.sbp.to_string()).collect()
}

/// Ranks of both axes share the states of the optimizer: those of weights, which tensor parallelism splits too, and of norms.
#[test]
fn states_are_shared_over_samples_and_sequences() {
    let plan = planned("zero1,zero1:cp,megatron:sp", &[2, 2, 2], "");
    let state = |name: &str| {
        let name = format!("state.exp_avg.{name}.weight");
        let found = plan.tensors.iter().find(|tensor| tensor.name == name);
        found.unwrap_or_else(|| panic!("no {name}")).sbp.to_string()
    };
    assert_eq!(state("layers.0.attention.wq"), "S(1), S(1), S(0)");
    assert_eq!(state("layers.0.attention.wo"), "S(0), S(0), S(1)");
    assert_eq!(state("layers.0.attention_norm"), "S(0), S(0), B");
}

/// Eight ranks cannot share four heads, so they share queries, and each has a summand of the gradients of all keys and values.
#[test]
fn gradients_of_keys_are_added_up_before_they_are_multiplied() {
    for (strategy, mesh, split) in [
        ("data", &[8][..], "S(1)"),
        ("zero3", &[2, 8], "S(0),S(1)"),
        ("megatron:sp", &[8, 2], "S(1),B"),
        ("zero1,megatron", &[8, 2], "S(1),B"),
        ("zero1,zero1:cp,megatron:sp", &[2, 8, 2], ""),
    ] {
        let plan = planned(strategy, mesh, split);
        let taken = multiplied(&plan);
        assert!(taken.len() > 10, "{strategy}: {taken:?}");
        let sums: Vec<&String> = taken.iter().filter(|sbp| sbp.contains('P')).collect();
        assert!(sums.is_empty(), "{strategy}: {sums:?}");
        let tokens = plan.tensors.iter().find(|tensor| tensor.name == "tokens").expect("an input");
        assert!(tokens.sbp.to_string().contains("S(1)"), "{strategy}: {}", tokens.sbp);
    }
}

/// Sixteen ranks could share sixteen heads for less communication than it takes to gather keys, but tensor parallelism has them apart already: ranks that
/// hold the same sequences would compute the same.
#[test]
fn heads_that_are_apart_stay_apart_in_the_gradient_of_attention() {
    for (strategy, split) in [("megatron:sp", "S(1),B"), ("data:cp,megatron:sp", "")] {
        let graph = decoder(16, 64, 1 << 14);
        let plan = planned_on("dgx-h100", graph, strategy, &[16, 8], split);
        let program = &plan.programs[0];
        let gradients = program.actors.iter().filter(|actor| {
            matches!(&actor.action, Action::Compute { op: Op::AttentionGrad(_), .. })
        });
        let layouts: Vec<String> = gradients
            .map(|actor| program.registers[actor.inputs[0].index()].layout.index())
            .map(|layout| plan.layouts[layout].sbp.to_string())
            .collect();
        assert_eq!(layouts.len(), 2, "{strategy}");
        assert!(layouts.iter().all(|sbp| sbp.ends_with("S(1), S(2)")), "{strategy}: {layouts:?}");
    }
}
