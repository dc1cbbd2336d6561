//! Products in 8 bits under fixed strategies: weights lie as they do in bf16, and are gathered in 8 bits.

use std::collections::BTreeMap;

use crate::trained;
use graphc_compiler::check::verify_invariants;
use graphc_compiler::cluster::preset;
use graphc_compiler::compile::{compile, sketch_plan};
use graphc_compiler::null_device::simulate;
use graphc_ir::graph::Graph;
use graphc_ir::op::Op;
use graphc_ir::types::DType;
use graphc_nn::LlamaConfig;
use graphc_plan::check::VerifiedPlan;
use graphc_plan::{
    Action, Actor, BoxingEntry, BoxingKind, CompileOptions, Float8Recipe, Plan, Rate, TensorKind,
};

fn llama() -> Graph {
    let config = LlamaConfig {
        layers: 2,
        width: 64,
        heads: 8,
        shared: 4,
        hidden: 96,
        vocabulary: 64,
        base: 1e4,
    };
    trained::llama(&config, [16, 16])
}

fn planned(strategy: &str, mesh: &[usize], precision: DType) -> VerifiedPlan {
    let options = CompileOptions {
        strategy: strategy.parse().expect("a strategy"),
        precision: Some(precision),
        ..trained::options(mesh, 1, 2)
    };
    let compiled = compile(llama(), &options, &preset("cpu").expect("a preset"), None);
    let plan = compiled.unwrap_or_else(|error| panic!("{strategy}: {error}")).plan;
    assert_eq!(verify_invariants(&plan), Ok(()), "{strategy}");
    plan
}

fn parameters(plan: &VerifiedPlan) -> BTreeMap<&str, String> {
    let tensors = plan.tensors.iter().filter(|tensor| tensor.kind == TensorKind::Parameter);
    tensors.map(|tensor| (tensor.name.as_str(), tensor.sbp.to_string())).collect()
}

#[test]
fn weights_lie_as_in_bf16_under_every_strategy() {
    for (strategy, mesh) in [
        ("data", &[4][..]),
        ("zero1", &[4]),
        ("zero3", &[4]),
        ("hsdp", &[2, 2]),
        ("megatron", &[2, 2]),
        ("megatron:sp", &[2, 2]),
        ("zero3,megatron", &[2, 2]),
    ] {
        let [eight, sixteen] =
            [DType::F8E4M3, DType::BF16].map(|precision| planned(strategy, mesh, precision));
        assert_eq!(parameters(&eight), parameters(&sixteen), "{strategy}");
        assert!(eight.layouts.iter().any(|layout| layout.dtype == DType::F8E4M3), "{strategy}");
    }
}

/// Returns the elements that all-gathers of a step give, by the bytes of an element.
fn gathered(plan: &VerifiedPlan) -> BTreeMap<usize, usize> {
    let mut all = BTreeMap::new();
    let program = &plan.programs[0];
    for actor in &program.actors {
        let Action::Collective { kind: BoxingKind::AllGather, .. } = &actor.action else {
            continue;
        };
        for &register in &actor.outputs {
            let layout = &plan.layouts[program.registers[register.index()].layout.index()];
            *all.entry(layout.dtype.size()).or_default() += layout.shape.iter().product::<usize>();
        }
    }
    all
}

#[test]
fn shards_are_gathered_in_8_bits() {
    let [eight, sixteen] =
        [DType::F8E4M3, DType::BF16].map(|precision| gathered(&planned("zero3", &[4], precision)));
    // All weights of blocks, once for each pass; the table of tokens and the head stay as they are.
    let weights = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96);
    assert_eq!(eight.get(&1), Some(&(2 * weights)), "{eight:?}, in bf16 {sixteen:?}");
    // And the greatest size of each output feature, for the forward pass.
    let sizes = 2 * (3 * 64 + 2 * 96 + 2 * 32);
    let wide = eight.get(&2).copied().unwrap_or(0) - sizes;
    assert_eq!(wide + 2 * weights, sixteen[&2], "{eight:?}");
}

/// Options under which each tensor has one scale, which ranks of data parallelism find together.
fn tensorwise(ranks: usize) -> CompileOptions {
    CompileOptions {
        strategy: "data".parse().expect("a strategy"),
        precision: Some(DType::F8E4M3),
        float8_recipe: Float8Recipe::Tensorwise,
        ..trained::options(&[ranks], 1, 2)
    }
}

/// Returns the number of scales that are reduced in each microbatch.
fn count_scales(plan: &Plan) -> usize {
    let is_scale = |boxing: &&BoxingEntry| {
        boxing.kind == BoxingKind::AllReduce
            && boxing.from.to_string() == "P(max)"
            && boxing.rate == Rate::Microbatch
    };
    plan.boxing.iter().filter(is_scale).count()
}

#[test]
fn a_scale_that_several_products_take_is_reduced_once() {
    let compiled = compile(llama(), &tensorwise(4), &preset("cpu").expect("a preset"), None);
    let plan = compiled.expect("a plan").plan;
    let rounds = |actor: &&Actor| {
        let op = match &actor.action {
            Action::Compute { op, .. } => Some(op),
            Action::Fused(fused) => fused.steps.last().map(|step| &step.op),
            _ => None,
        };
        actor.rate == Rate::Microbatch
            && matches!(op, Some(Op::Binary(op)) if op.function.rounds_float8())
    };
    let rounded = plan.programs[0].actors.iter().filter(rounds).count();
    let scales = count_scales(&plan);
    assert!(rounded > 10, "{rounded} tensors are rounded");
    assert!(scales <= rounded, "{scales} scales of {rounded} tensors are reduced");
}

#[test]
fn frameworks_whose_ranks_scale_for_themselves_wait_for_no_scales() {
    let step = |local_scales: bool| {
        let mut cluster = preset("dgx-h100").expect("a preset");
        cluster.framework.local_scales = local_scales;
        let plan = sketch_plan(llama(), &tensorwise(8), &cluster).expect("a plan");
        (count_scales(&plan), simulate(&plan).expect("a step").step_seconds)
    };
    let [(scales, own), (_, common)] = [true, false].map(step);
    // An all-reduce of one number takes some 20 us among eight H100, twice in a step of two microbatches.
    let waited = (common - own) / (2.0 * scales as f64);
    assert!(scales > 10 && (15e-6..30e-6).contains(&waited), "{waited} s for each of {scales}");
}
