//! Communication beside kernels: the seconds that it hides, its costs in memory, and that the cluster decides.

use crate::trained;
use graphc_compiler::check::{verify_invariants, verify_plan};
use graphc_compiler::cluster::{find_framework, parse_cluster, preset};
use graphc_compiler::compile::{Compiled, Header, assemble_plan, compile, predict_step_seconds};
use graphc_compiler::error::CompileError;
use graphc_compiler::null_device::{simulate, trace};
use graphc_ir::builder::GraphBuilder;
use graphc_ir::graph::Graph;
use graphc_ir::types::DType;
use graphc_nn::{Gpt, GptConfig, Module};
use graphc_plan::{Action, BoxingKind, Cluster, CompileOptions, Pin, Plan, Strategy};

fn gpt(batch: usize) -> Graph {
    let g = GraphBuilder::new("gpt");
    let config = GptConfig { layers: 6, width: 1024, heads: 16, sequence: 512, vocabulary: 2048 };
    let tokens = g.input("tokens", DType::I64, [batch, config.sequence]);
    g.output("logits", &Gpt::new(&g, &config).forward(&tokens));
    g.finish().expect("fits")
}

fn options(strategy: Strategy, mesh: &[usize], microbatches: usize) -> CompileOptions {
    CompileOptions { strategy, ..trained::options(mesh, 1, microbatches) }
}

/// Makes the machines, with overlap and without.
fn both(name: &str) -> [Cluster; 2] {
    let cluster = preset(name).expect("a preset");
    let mut apart = cluster.clone();
    apart.device.overlap = false;
    [cluster, apart]
}

fn compiled(options: &CompileOptions, cluster: &Cluster) -> Compiled {
    compile(gpt(64), options, cluster, None).expect("compiles")
}

#[test]
fn gradients_travel_under_the_backward_pass() {
    for (machines, mesh, microbatches, share) in
        [("dgx-a100", &[8][..], 1, 0.6), ("dgx-a100", &[8], 2, 0.6), ("dgx-h100", &[2, 8], 2, 0.3)]
    {
        let options = options(Strategy::Data, mesh, microbatches);
        let [beside, apart] = both(machines).map(|cluster| compiled(&options, &cluster));
        let case = format!("{machines} {mesh:?}: {:?}", beside.simulation.shares);
        assert!(beside.simulation.shares.overlap > share, "{case}");
        assert_eq!(apart.simulation.shares.overlap, 0.0, "{case}");
        let [with, without] = [&beside, &apart].map(|c| c.plan.predicted.step_seconds);
        assert!(with < without * 0.99, "{case}: {with} and {without}");
        assert!(apart.plan.programs.iter().all(|program| program.streams.len() == 1));
    }
}

#[test]
fn gradients_in_half_precision_travel_under_the_backward_pass_too() {
    for (strategy, mesh, microbatches) in
        [("zero3", &[8][..], 1), ("zero3", &[8], 2), ("hsdp", &[2, 8], 1)]
    {
        let strategy = strategy.parse().expect("a strategy");
        let options = CompileOptions {
            precision: Some(DType::BF16),
            ..options(strategy, mesh, microbatches)
        };
        let plan = compiled(&options, &preset("dgx-h100").expect("a preset")).plan;
        let program = &plan.programs[0];
        // Scattered in bf16 and cast to f32 for the updates: both beside the kernels.
        let scatters = program.streams.iter().map(|stream| {
            let actors = stream.blocks.iter().flatten().map(|id| &program.actors[id.index()]);
            let scatters = actors.filter(|actor| {
                let kind = BoxingKind::ReduceScatter;
                matches!(actor.action, Action::Collective { kind: of, .. } if of == kind)
            });
            scatters.count()
        });
        let scatters: Vec<usize> = scatters.collect();
        assert!(scatters[0] == 0 && scatters[1] > 10, "{scatters:?} on {mesh:?}");
    }
}

#[test]
fn what_interferes_with_kernels_is_paid_for() {
    let options = options(Strategy::Data, &[8], 1);
    let [beside, _] = both("dgx-a100").map(|cluster| compiled(&options, &cluster));
    let mut plan = beside.plan.into_plan();
    let seconds = |plan: &_| simulate(plan).expect("it runs");
    let hidden = seconds(&plan);
    plan.cluster.framework.interference = 1.0;
    let paid = seconds(&plan);
    assert!(paid.step_seconds > hidden.step_seconds);
    assert!(paid.shares.overlap.abs() < 1e-9, "{:?}", paid.shares);
    plan.cluster.framework.interference = 0.5;
    let middle = 0.5 * (paid.step_seconds + hidden.step_seconds);
    assert!((seconds(&plan).step_seconds / middle - 1.0).abs() < 1e-9);
}

#[test]
fn sharded_weights_are_gathered_ahead_but_not_all_at_once() {
    let options =
        CompileOptions { loss: None, optimizer: None, ..options(Strategy::Zero3, &[8], 1) };
    let [beside, apart] = both("dgx-a100").map(|cluster| compiled(&options, &cluster));
    let shares = beside.simulation.shares;
    assert!(shares.overlap > 0.5, "{shares:?}");
    let [with, without] = [&beside, &apart].map(|c| c.plan.predicted.step_seconds);
    assert!(with < without, "{with} and {without}");
    let program = &beside.plan.programs[0];
    let gathered: u64 = (program.actors.iter())
        .filter(|actor| matches!(actor.action, Action::Collective { .. }))
        .flat_map(|actor| &actor.outputs)
        .map(|output| program.registers[output.index()].slot_bytes)
        .sum();
    let more = program.arena_bytes - apart.plan.programs[0].arena_bytes;
    assert!(more < gathered / 3, "{more} bytes more, of {gathered} gathered");
}

#[test]
fn what_is_sketched_takes_as_long_as_what_is_compiled() {
    for strategy in [Strategy::Data, Strategy::Zero1, Strategy::Zero2, Strategy::Zero3] {
        for microbatches in [1, 4] {
            let options = options(strategy, &[8], microbatches);
            let cluster = preset("dgx-a100").expect("a preset");
            let step = compiled(&options, &cluster).plan.predicted.step_seconds;
            let sketched = predict_step_seconds(gpt(64), &options, &cluster).expect("compiles");
            assert!((step - sketched).abs() < 1e-9 * step, "{strategy:?}: {sketched} and {step}");
        }
    }
}

#[test]
fn streams_of_a_rank_begin_steps_together() {
    let options = options(Strategy::Zero1, &[4], 2);
    let plan = compiled(&options, &preset("dgx-a100").expect("a preset")).plan;
    verify_plan(&plan).expect("it compiles to itself again");
    let events = trace(&plan, 2).expect("runs").trace;
    let first = events.iter().filter(|event| event.step == 0).map(|event| event.end);
    let end = first.fold(0.0, f64::max);
    let second = events.iter().filter(|event| event.step == 1).map(|event| event.start);
    let begin = second.fold(f64::INFINITY, f64::min);
    assert!(begin >= end, "a step begins at {begin}, the one before ends at {end}");
    assert!(events.iter().any(|event| event.stream == 1 && event.step == 1));
}

/// Makes the plan of the same layouts in this much memory.
fn assembled_in(
    memory: u64,
    of: &Compiled,
    options: &CompileOptions,
    cluster: &Cluster,
) -> Result<Plan, CompileError> {
    let options = CompileOptions { memory: Some(memory), ..options.clone() };
    let (graph, planner) = (gpt(64), of.plan.planner.clone());
    let header = Header { graph: &graph, options: &options, cluster, weights: None, planner };
    assemble_plan(header, &of.decisions, &of.sharding).map(|(plan, _)| plan)
}

#[test]
fn streams_that_do_not_fit_wait_for_each_other() {
    let options =
        CompileOptions { loss: None, optimizer: None, ..options(Strategy::Zero3, &[8], 1) };
    let [cluster, apart] = both("dgx-a100");
    let single = compiled(&options, &apart).plan;
    let free = compiled(&options, &cluster);
    let plan = &free.plan;
    assert_eq!(plan.programs[0].streams.len(), 2);
    let waits =
        |plan: &Plan| plan.programs[0].actors.iter().filter(|actor| actor.after.is_some()).count();
    let (mut memory, mut tight) = (plan.programs[0].arena_bytes - 1, None);
    let error = loop {
        match assembled_in(memory, &free, &options, &cluster) {
            Ok(less) => {
                assert!(less.programs[0].arena_bytes <= memory);
                // Among other things: nothing is overwritten that the other stream may still read.
                assert_eq!(verify_invariants(&less), Ok(()));
                if less.programs[0].streams.len() == 2 {
                    tight = Some(less);
                }
            }
            Err(error) => break error,
        }
        memory -= memory / 64;
    };
    assert!(error.is_memory(), "{error}");
    let tight = tight.expect("two streams fit below what they take where there is room");
    let steps = [&**plan, &tight, &single].map(|plan| plan.predicted.step_seconds);
    let bytes = [&**plan, &tight].map(|plan| plan.programs[0].arena_bytes);
    assert!(waits(&tight) > waits(plan), "they wait because of memory");
    assert!(bytes[1] < bytes[0], "{bytes:?}");
    assert!(steps[1] < steps[2], "two streams that wait are faster than one: {steps:?}");
}

#[test]
fn two_streams_fit_where_communication_takes_longer_than_kernels() {
    // Links are a twentieth as fast as such machines have: weights are gathered for longer than they are multiplied.
    let options = options(Strategy::Zero3, &[8, 8], 1);
    let slow = |mut cluster: Cluster| {
        cluster.levels.iter_mut().for_each(|level| level.bandwidth /= 20.0);
        cluster
    };
    let [cluster, apart] = both("dgx-a100").map(slow);
    let single = compiled(&options, &apart).plan;
    let free = compiled(&options, &cluster);
    let bytes = |plan: &Plan| plan.programs[0].arena_bytes;
    let memory = bytes(&single) * 6 / 5;
    let lean = assembled_in(memory, &free, &options, &cluster).expect("one stream fits");
    assert!(memory < bytes(&free.plan) * 3 / 4, "far more would be in flight");
    assert_eq!(lean.programs[0].streams.len(), 2);
    assert_eq!(verify_invariants(&lean), Ok(()));
    let steps = [&*free.plan, &lean, &single].map(|plan| plan.predicted.step_seconds);
    assert!(steps[1] < 0.95 * steps[2], "they are faster than one: {steps:?}");
}

#[test]
fn the_cluster_file_decides() {
    let file = |kind: &str, key: &str, links: &str| {
        let text = format!(
            "name = \"c\"\n[device]\nkind = \"{kind}\"\nmemory = \"1GiB\"\nflops = {{ f32 = 1e12 }}\n\
             bandwidth = 1e12\nlaunch = 1e-6\n{key}\n{links}"
        );
        parse_cluster(&text).expect("a cluster").device.overlap
    };
    let level = "[[level]]\nlatency = 1e-6\nbandwidth = 1e9\n";
    let axis = "[[axis]]\nlatency = 1.0\nseconds_per_byte = 0.1\n";
    assert!(file("cuda", "", level));
    assert!(!file("cuda", "overlap = false", level));
    assert!(!file("cpu", "", level));
    assert!(file("cpu", "overlap = true", level));
    assert!(!file("cuda", "", axis), "costs by axis are taken as they are");
    assert!(file("cuda", "overlap = true", axis));
}

/// States that the ranks of a node share, with copies in the other nodes: gradients are scattered within a node and then added up between nodes.
#[test]
fn gradients_of_two_levels_do_not_wait_for_the_last_of_the_small_ones() {
    let pin = Pin { pattern: "state.*".into(), sbp: "B, S(0)".parse().expect("an SBP") };
    for microbatches in [1, 2] {
        let options = CompileOptions {
            pins: vec![pin.clone()],
            ..options(Strategy::Zero1, &[16, 8], microbatches)
        };
        let cluster = preset("dgx-a100").expect("a preset");
        let plan = compile(gpt(256), &options, &cluster, None).expect("compiles").plan;
        let program = &plan.programs[0];
        let beside = program.streams[1].blocks.iter().flatten();
        let kinds: Vec<(BoxingKind, usize)> = beside
            .filter_map(|id| match &program.actors[id.index()].action {
                Action::Collective { kind, axis, .. } => Some((*kind, *axis)),
                _ => None,
            })
            .collect();
        let adds = |wanted: usize| {
            move |of: &&(BoxingKind, usize)| **of == (BoxingKind::AllReduce, wanted)
        };
        // Norms and biases are too small to be scattered: they are added up within nodes, in one message.
        let small = kinds.iter().rposition(|of| adds(1)(&of)).expect("some are small");
        let all = kinds.iter().filter(adds(0)).count();
        let soon = kinds[..small].iter().filter(adds(0)).count();
        assert!(2 * soon > all && all > 4, "{soon} of {all} between nodes: {kinds:?}");
    }
}

#[test]
fn a_framework_without_buckets_sends_a_message_for_each_gradient() {
    let messages = |framework: &str| {
        let options = options(Strategy::Data, &[16], 1);
        let framework = find_framework(framework).expect("a profile");
        let cluster = Cluster { framework, ..preset("dgx-a100").expect("a preset") };
        let plan = compile(gpt(256), &options, &cluster, None).expect("compiles").plan;
        let actors = plan.programs[0].actors.iter();
        actors.filter(|actor| matches!(actor.action, Action::Collective { .. })).count()
    };
    let (joined, apart) = (messages("torch-eager"), messages("internevo"));
    assert!(apart > 3 * joined, "{apart} messages, and {joined} with buckets");
}
