//! A strategy for each axis of the mesh shards over the axes that it says, and over no others.

use crate::trained;
use graphc_compiler::check::verify_invariants;
use graphc_compiler::cluster::preset;
use graphc_compiler::compile::{Compiled, compile};
use graphc_compiler::lower::collective_counts;
use graphc_ir::builder::GraphBuilder;
use graphc_ir::graph::Graph;
use graphc_ir::types::DType;
use graphc_nn::{Gpt, GptConfig, Module};
use graphc_plan::{BoxingKind, CompileOptions, TensorKind};

fn gpt() -> Graph {
    let g = GraphBuilder::new("gpt");
    let config = GptConfig { layers: 2, width: 32, heads: 4, sequence: 16, vocabulary: 64 };
    let tokens = g.input("tokens", DType::I64, [16, 16]);
    g.output("logits", &Gpt::new(&g, &config).forward(&tokens));
    g.finish().expect("fits")
}

fn compiled(strategy: &str, mesh: &[usize], microbatches: usize, half: bool) -> Compiled {
    let options = CompileOptions {
        strategy: strategy.parse().expect("a strategy"),
        precision: half.then_some(DType::BF16),
        ..trained::options(mesh, 1, microbatches)
    };
    let compiled = compile(gpt(), &options, &preset("cpu").expect("a preset"), None);
    let compiled = compiled.unwrap_or_else(|error| panic!("{strategy}: {error}"));
    assert_eq!(verify_invariants(&compiled.plan), Ok(()), "{strategy}");
    compiled
}

/// Returns the layouts of the parameters and states that some tensor of the plan has, but for vectors.
fn layouts(compiled: &Compiled, kind: TensorKind) -> Vec<String> {
    let tensors = compiled.plan.tensors.iter();
    let wide = tensors.filter(|tensor| tensor.kind == kind && tensor.shape.len() > 1);
    let mut all: Vec<String> = wide.map(|tensor| tensor.sbp.to_string()).collect();
    all.sort();
    all.dedup();
    all
}

fn count(compiled: &Compiled, kind: BoxingKind) -> usize {
    collective_counts(&compiled.plan).get(&kind).copied().unwrap_or(0)
}

#[test]
fn hybrid_shards_keep_copies_over_the_outer_axis() {
    for (microbatches, half) in [(1, false), (2, false), (2, true)] {
        let hybrid = compiled("hsdp", &[2, 4], microbatches, half);
        assert_eq!(layouts(&hybrid, TensorKind::Parameter), ["B, S(0)"], "{half}");
        assert_eq!(layouts(&hybrid, TensorKind::State), ["B, S(0)"], "{half}");
        // As `zero3` on one node: gradients are scattered within it, and what copies have is added up, never scattered to all.
        let alone = compiled("zero3", &[4], microbatches, half);
        for kind in [BoxingKind::ReduceScatter, BoxingKind::AllGather] {
            assert_eq!(count(&hybrid, kind), count(&alone, kind), "{kind:?}, {half}");
        }
        assert!(count(&hybrid, BoxingKind::AllReduce) > count(&alone, BoxingKind::AllReduce));
    }
}

#[test]
fn one_name_for_each_axis_is_that_name_for_all() {
    for name in ["data", "zero1", "zero2", "zero3"] {
        let (all, each) = (
            compiled(name, &[2, 2], 2, true),
            compiled(&format!("{name},{name}"), &[2, 2], 2, true),
        );
        assert_eq!(all.plan.programs, each.plan.programs, "{name}");
    }
    let (all, each) =
        (compiled("megatron", &[2, 2], 2, false), compiled("data,megatron", &[2, 2], 2, false));
    assert_eq!(all.plan.programs, each.plan.programs);
}

#[test]
fn shards_lie_beside_a_split_of_the_model() {
    let states =
        |strategy: &str| layouts(&compiled(strategy, &[2, 2], 1, false), TensorKind::State);
    let split = compiled("zero3,megatron", &[2, 2], 1, false);
    for layout in layouts(&split, TensorKind::Parameter) {
        assert!(layout.starts_with("S("), "{layout}");
    }
    assert!(states("zero3,megatron").iter().all(|layout| layout.starts_with("S(")));
    assert!(states("zero1,megatron").iter().all(|layout| layout.starts_with("S(")));
    let kept = compiled("zero1,megatron", &[2, 2], 1, false);
    assert!(layouts(&kept, TensorKind::Parameter).iter().all(|layout| layout.starts_with("B,")));
}

#[test]
fn more_names_than_axes_are_refused() {
    for (name, mesh) in [("data,zero3", 4), ("zero1,zero1:cp", 4)] {
        let strategy = name.parse().expect("a strategy");
        let options = CompileOptions { strategy, ..trained::options(&[mesh], 1, 1) };
        let refused = compile(gpt(), &options, &preset("cpu").expect("a preset"), None);
        let said = refused.expect_err("one axis").to_string();
        let expected = format!(
            "the strategy {name} names 2 axes, and the ranks of a stage lie on a mesh of 1, {mesh}: give a mesh that leaves each stage 2 axes, or one name for all"
        );
        assert!(said.ends_with(&expected), "{said}");
    }
}
