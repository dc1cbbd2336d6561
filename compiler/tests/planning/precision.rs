//! Automatic mixed precision in plans: what is gathered and reduced in half precision, what memory it takes, and that every
//! such plan holds.

use crate::trained::{gpt, options as options_of};
use graphc_compiler::check::{verify_invariants, verify_plan};
use graphc_compiler::cluster::preset;
use graphc_compiler::compile::{Compiled, compile};
use graphc_ir::builder::GraphBuilder;
use graphc_ir::graph::Graph;
use graphc_ir::op::Op;
use graphc_ir::ops::Init;
use graphc_ir::types::DType;
use graphc_nn::{Linear, Module};
use graphc_plan::check::VerifiedPlan;
use graphc_plan::{
    Action, BoxingKind, CompileOptions, Layout, Loss, Pin, Plan, Program, Rate, RegisterKind,
    Strategy, TensorEntry,
};

const WIDTH: usize = 64;
const LAYERS: usize = 4;
/// The number of elements of the weights of all layers.
const PARAMETERS: u64 = (LAYERS * WIDTH * WIDTH) as u64;

/// Products with square weights, one after the other, of few samples.
fn chain(weights: DType, batch: usize) -> Graph {
    let g = GraphBuilder::new("chain");
    let init = Init::Normal { mean: 0.0.into(), std: 0.1.into() };
    let mut x = g.input("x", weights, [batch, WIDTH]);
    for layer in 0..LAYERS {
        let w = g.variable(&format!("w{layer}"), weights, [WIDTH, WIDTH], init.clone());
        x = x.matmul(&w).relu();
    }
    g.output("y", &x);
    g.finish().expect("fits")
}

fn options(mesh: &[usize], strategy: Strategy, precision: Option<DType>) -> CompileOptions {
    CompileOptions { strategy, precision, ..options_of(mesh, 1, 1) }
}

fn compiled(graph: Graph, options: &CompileOptions, machines: &str) -> Compiled {
    let cluster = preset(machines).expect("a preset");
    let compiled = compile(graph, options, &cluster, None);
    let compiled = compiled.unwrap_or_else(|error| panic!("{options:?}: {error}"));
    verify_invariants(&compiled.plan).unwrap_or_else(|errors| panic!("{options:?}: {errors}"));
    compiled
}

/// Returns the bytes that collectives of a kind move in a step, by element type of the tensors. They are the bytes of their inputs on one rank.
fn moved(plan: &Plan, wanted: BoxingKind) -> Vec<(DType, u64)> {
    let program = &plan.programs[0];
    let mut moved: Vec<(DType, u64)> = Vec::new();
    for actor in &program.actors {
        if !matches!(actor.action, Action::Collective { kind, .. } if kind == wanted) {
            continue;
        }
        for input in &actor.inputs {
            let register = &program.registers[input.index()];
            let dtype = layout(plan, program, input.index()).dtype;
            let bytes = (register.shape.iter().product::<usize>() * dtype.size()) as u64;
            match moved.iter_mut().find(|(known, _)| *known == dtype) {
                Some((_, sum)) => *sum += bytes,
                None => moved.push((dtype, bytes)),
            }
        }
    }
    moved
}

fn layout<'a>(plan: &'a Plan, program: &Program, register: usize) -> &'a Layout {
    &plan.layouts[program.registers[register].layout.index()]
}

/// Returns the bytes of a program's variables.
fn variables(plan: &Plan) -> u64 {
    let program = &plan.programs[0];
    let bytes = |(index, register): (usize, &graphc_plan::Register)| {
        let elements = register.shape.iter().product::<usize>();
        (elements * layout(plan, program, index).dtype.size()) as u64
    };
    let all = program.registers.iter().enumerate();
    all.filter(|(_, r)| matches!(r.kind, RegisterKind::Variable { .. })).map(bytes).sum()
}

#[test]
fn sharded_weights_are_gathered_and_gradients_scattered_in_half_precision() {
    let plan = |precision| {
        compiled(chain(DType::F32, 8), &options(&[2], Strategy::Zero3, precision), "cpu").plan
    };
    let (wide, half) = (plan(None), plan(Some(DType::BF16)));
    // A rank holds half of each weight, and contributes to the whole of each gradient. All weights are gathered again for the
    // backward pass but the first, whose input has no gradient.
    let gathered = (2 * PARAMETERS - (WIDTH * WIDTH) as u64) / 2;
    assert_eq!(moved(&wide, BoxingKind::AllGather), [(DType::F32, gathered * 4)]);
    assert_eq!(moved(&half, BoxingKind::AllGather), [(DType::BF16, gathered * 2)]);
    assert_eq!(moved(&wide, BoxingKind::ReduceScatter), [(DType::F32, PARAMETERS * 4)]);
    assert_eq!(moved(&half, BoxingKind::ReduceScatter), [(DType::BF16, PARAMETERS * 2)]);
}

#[test]
fn data_parallelism_sums_gradients_in_f32() {
    for strategy in [Strategy::Data, Strategy::Zero1] {
        let options = options(&[2], strategy, Some(DType::BF16));
        let plan = compiled(chain(DType::F32, 8), &options, "cpu").plan;
        let kinds = [BoxingKind::AllReduce, BoxingKind::ReduceScatter];
        let summed: Vec<_> = kinds.iter().flat_map(|&kind| moved(&plan, kind)).collect();
        let gradients =
            |(dtype, bytes): &(DType, u64)| *dtype == DType::F32 && *bytes >= PARAMETERS * 4;
        assert!(summed.iter().all(|(dtype, _)| *dtype == DType::F32), "{strategy:?}: {summed:?}");
        assert!(summed.iter().any(gradients), "{strategy:?}: {summed:?}");
    }
}

/// A weight that is to lie in shards, with readers of its half copy, and (`wide`) one of itself, which needs it whole.
fn pinned(wide: bool) -> VerifiedPlan {
    let g = GraphBuilder::new("pinned");
    let x = g.input("x", DType::F32, [8, 512]);
    let init = Init::Normal { mean: 0.0.into(), std: 0.1.into() };
    let w = g.variable("w", DType::F32, [512, 512], init);
    let y = x.matmul(&w);
    g.output("y", &y);
    if wide {
        g.output("copy", &w.softmax(0).softmax(1).named("copy"));
    }
    let graph = g.finish().expect("fits");
    let pin = |pattern: &str, sbp: &str| Pin {
        pattern: pattern.into(),
        sbp: sbp.parse().expect("an SBP"),
    };
    let pins = vec![pin("w", "S(0)"), pin("x", "B"), pin("copy", "B")];
    let all = options(&[2], Strategy::Auto, Some(DType::BF16));
    let pins = pins.into_iter().filter(|pin| wide || pin.pattern != "copy").collect();
    let options = CompileOptions { pins, loss: None, optimizer: None, ..all };
    compiled(graph, &options, "dgx-a100").plan
}

#[test]
fn the_planner_casts_before_or_after_the_gather_as_it_costs_less() {
    let gathered = |plan: &Plan| moved(plan, BoxingKind::AllGather);
    let only_half = gathered(&pinned(false));
    assert!(only_half.iter().all(|(dtype, _)| *dtype == DType::BF16), "{only_half:?}");
    // Where it is whole for another reader its cast needs no gather of its own.
    let both = gathered(&pinned(true));
    assert!(!both.is_empty() && both.iter().all(|(dtype, _)| *dtype == DType::F32), "{both:?}");
}

#[test]
fn memory_counts_weights_states_gradients_and_half_copies() {
    let peak = |weights, precision| {
        let options =
            CompileOptions { loss: Some(Loss::Sum), ..options(&[1], Strategy::Auto, precision) };
        // Of cards, where all gradients are there when updates begin: on processors each update follows its gradient.
        let plan = compiled(chain(weights, 1), &options, "dgx-a100").plan;
        (variables(&plan), plan.predicted.peak_memory_bytes[0])
    };
    // A layer's samples take a few hundred bytes, a weight 16 KiB.
    let slack = 8 << 10;
    let per_parameter = |bytes: u64| PARAMETERS * bytes;
    let within = |found: u64, least: u64, case: &str| {
        assert!((least..least + slack).contains(&found), "{case}: {found}, not {least}");
    };
    // f32: weight 4, states 8, and all gradients, 4, at the end of the backward pass.
    let (held, all) = peak(DType::F32, None);
    assert_eq!(held, per_parameter(12));
    within(all, per_parameter(16), "f32");
    // The same, and 2 of each layer whose backward pass is not done; besides the half gradient of the layer at hand. The peak
    // is at the end, where one layer is left.
    let one_layer = PARAMETERS / LAYERS as u64;
    let (held, all) = peak(DType::F32, Some(DType::BF16));
    assert_eq!(held, per_parameter(12));
    within(all, per_parameter(16) + one_layer * 2, "mixed");
    // Weights of the model that are bf16 are updated as they are: weight 2, states 8, gradients 2.
    let (held, all) = peak(DType::BF16, None);
    assert_eq!(held, per_parameter(10));
    within(all, per_parameter(12), "bf16");
}

#[test]
fn scores_have_no_copy_in_f32() {
    let plan = compiled(gpt(), &options(&[1], Strategy::Auto, Some(DType::BF16)), "cpu").plan;
    let program = &plan.programs[0];
    let registers = program.registers.iter().enumerate();
    let scores = registers.filter(|(_, register)| register.shape.ends_with(&[16, 65]));
    let types: Vec<DType> = scores.map(|(index, _)| layout(&plan, program, index).dtype).collect();
    // The scores, and their gradient.
    assert_eq!(types, [DType::BF16; 2]);
}

#[test]
fn weights_are_cast_once_a_step_and_microbatches_summed_in_f32() {
    let options =
        CompileOptions { microbatches: 4, ..options(&[2], Strategy::Zero2, Some(DType::BF16)) };
    let plan = compiled(chain(DType::F32, 8), &options, "cpu").plan;
    let program = &plan.programs[0];
    let of_variable =
        |register: usize| matches!(program.registers[register].kind, RegisterKind::Variable { .. });
    let casts = program.actors.iter().filter(|actor| {
        let cast = matches!(actor.action, Action::Compute { op: Op::Cast(_), .. });
        cast && actor.inputs.iter().any(|input| of_variable(input.index()))
    });
    let rates: Vec<Rate> = casts.map(|actor| actor.rate).collect();
    assert_eq!(rates, vec![Rate::Step; LAYERS]);
    let types = sums(&plan);
    assert!(types.len() >= LAYERS && types.iter().all(|&dtype| dtype == DType::F32), "{types:?}");
}

/// Returns the element types of sums over microbatches.
fn sums(plan: &Plan) -> Vec<DType> {
    let program = &plan.programs[0];
    let sums = program.actors.iter().filter(|actor| matches!(actor.action, Action::Accumulate));
    sums.map(|actor| layout(plan, program, actor.outputs[0].index()).dtype).collect()
}

#[test]
fn gradients_of_half_weights_are_summed_over_microbatches_in_f32_and_updates_take_them() {
    for half in [DType::BF16, DType::F16] {
        for strategy in [Strategy::Auto, Strategy::Data, Strategy::Zero1, Strategy::Zero3] {
            let options = CompileOptions {
                microbatches: 4,
                clip_norm: Some(1.0),
                ..options(&[2], strategy, None)
            };
            let plan = compiled(chain(half, 8), &options, "cpu").plan;
            let types = sums(&plan);
            assert!(types.len() >= LAYERS && types.iter().all(|&dtype| dtype == DType::F32));
            let gradient = |tensor: &&TensorEntry| tensor.name == "grad.w0";
            let gradient = plan.tensors.iter().find(gradient).expect("in the table");
            assert_eq!(gradient.dtype, DType::F32, "nothing is cast back");
        }
        // Where a gradient is what the plan is for it has its weight's type.
        let alone = CompileOptions {
            microbatches: 4,
            optimizer: None,
            gradients: true,
            ..options(&[2], Strategy::Zero2, None)
        };
        let plan = compiled(chain(half, 8), &alone, "cpu").plan;
        assert!(sums(&plan).iter().all(|&dtype| dtype == DType::F32));
        let gradients = plan.tensors.iter().filter(|tensor| tensor.name.starts_with("grad.w"));
        assert!(gradients.map(|gradient| gradient.dtype).eq([half; LAYERS]));
    }
}

#[test]
fn memory_counts_gradients_of_half_weights_that_are_summed_in_f32() {
    let options = CompileOptions {
        microbatches: 2,
        loss: Some(Loss::Sum),
        ..options(&[1], Strategy::Auto, None)
    };
    let plan = compiled(chain(DType::BF16, 2), &options, "dgx-a100").plan;
    // Weights 2, states 8, gradients 4; of one layer what a microbatch contributes, 2, and that in f32.
    let least = PARAMETERS * 14;
    let most = least + PARAMETERS / LAYERS as u64 * 6 + (8 << 10);
    let peak = plan.predicted.peak_memory_bytes[0];
    assert!((least..most).contains(&peak), "{peak}, not {least} to {most}");
}

#[test]
fn gathers_of_cast_weights_go_beside_kernels() {
    let g = GraphBuilder::new("wide");
    let mut x = g.input("x", DType::F32, [65536, 2048]);
    for layer in 0..4 {
        x = Linear::new(&g, &format!("layer{layer}"), 2048, 2048).forward(&x).relu();
    }
    g.output("y", &x);
    let graph = g.finish().expect("fits");
    let options = options(&[8], Strategy::Zero3, Some(DType::BF16));
    let compiled = compiled(graph, &options, "dgx-a100");
    let program = &compiled.plan.programs[0];
    assert_eq!(program.streams.len(), 2);
    let gathers = |stream: usize| {
        let mut actors = program.streams[stream].blocks.iter().flatten();
        actors.any(|actor| {
            let actor = &program.actors[actor.index()];
            let gather =
                matches!(actor.action, Action::Collective { kind: BoxingKind::AllGather, .. });
            gather && program.registers[actor.inputs[0].index()].shape.len() == 2
        })
    };
    assert!(gathers(1) && !gathers(0));
    assert!(compiled.simulation.shares.overlap > 0.3, "{:?}", compiled.simulation.shares);
}

#[test]
fn plans_of_mixed_precision_hold() {
    use Strategy::{Auto, Data, Megatron, Zero1, Zero3};
    for precision in [DType::BF16, DType::F16] {
        for (mesh, stages, microbatches, strategy) in [
            (&[1][..], 1, 1, Auto),
            (&[2], 1, 2, Auto),
            (&[2, 2], 2, 2, Auto),
            (&[2], 2, 2, Auto),
            (&[4], 1, 1, Data),
            (&[4], 1, 2, Zero1),
            (&[2, 2], 2, 2, Zero3),
            (&[2, 2], 1, 1, Megatron),
        ] {
            let options =
                CompileOptions { stages, microbatches, ..options(mesh, strategy, Some(precision)) };
            let compiled = compiled(gpt(), &options, "cpu");
            verify_plan(&compiled.plan).unwrap_or_else(|errors| panic!("{options:?}: {errors}"));
        }
    }
}
