//! Graphs with decisions made by hand, lowered and checked.

mod regather;

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::{ActorId, LayoutId, ProgramId, ValueId};
use graphc_ir::mesh::Placement;
use graphc_ir::op::Op;
use graphc_ir::ops::{Accumulate, Init, SgdUpdate};
use graphc_ir::rule::{Choice, Signature};
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_ir::types::DType;
use graphc_plan::{
    Action, BoxingKind, CompileOptions, Layout, OperandSource, Plan, PlannerReport, PlannerStatus,
    Program, Rate, RegisterKind, Schedule, TensorKind,
};

use super::collective_counts;
use crate::check::{verify_invariants, write_plan};
use crate::cluster::preset;
use crate::compile::{Header, assemble_plan};
use crate::decisions::{
    Decisions, NodeSharding, Phase, Rates, Sharding, Staging, TrainingGraph, ValueRate,
};
use crate::null_device::{NullDeviceError, Simulation, simulate};

/// A graph under construction with the decisions about its nodes.
struct Case {
    g: GraphBuilder,
    microbatches: usize,
    mesh: Vec<usize>,
    stages: usize,
    schedule: Schedule,
    /// One past the last value of each part, with its phase and stage.
    parts: Vec<(usize, Phase, usize)>,
    overlap: bool,
}

/// A function that returns the layout wished for a value, if any. It is given the value's node and name.
type Wish = fn(&Node, &str) -> Option<NdSbp>;

impl Case {
    fn new(mesh: &[usize], stages: usize, microbatches: usize) -> Self {
        Self {
            g: GraphBuilder::new("case"),
            microbatches,
            mesh: mesh.to_vec(),
            stages,
            schedule: Schedule::OneForwardOneBackward,
            parts: Vec::new(),
            overlap: false,
        }
    }

    /// Says that all nodes made since the last call, up to that of `last`, are of this phase and stage.
    fn mark(&mut self, last: &Tensor, phase: Phase, stage: usize) {
        let end = last.id().expect("fits").index() + 1;
        self.parts.push((end, phase, stage));
    }

    fn compile(self, wish: Wish) -> (Plan, Simulation) {
        let graph = self.g.clone().finish().expect("fits");
        let of = |node: &Node| {
            let value = node.results[0].index();
            self.parts
                .iter()
                .find(|part| value < part.0)
                .map(|part| (part.1, part.2))
                .expect("marked")
        };
        let stage: Vec<usize> = graph.nodes.iter().map(|node| of(node).1).collect();
        let whole = Placement::mesh(&self.mesh).expect("a mesh");
        let placement: Vec<Placement> =
            stage.iter().map(|&s| whole.slice_stage(s, self.stages).expect("divides")).collect();
        let rates = rates(&graph, self.microbatches);
        let sharding = Sharding {
            nodes: graph
                .nodes
                .iter()
                .zip(&placement)
                .map(|(node, placement)| node_sharding(&graph, node, placement, wish))
                .collect(),
        };
        let kinds = graph.values.iter().map(|value| kind(&graph.node(value.producer).op)).collect();
        let variable = graph.values.iter().position(|_| true);
        let gradients = variable.map(|v| (ValueId::new(v), ValueId::new(v)));
        let training = TrainingGraph {
            phases: graph.nodes.iter().map(|node| of(node).0).collect(),
            kinds,
            loss: None,
            gradients: gradients.into_iter().collect(),
            graph: graph.clone(),
        };
        let decisions = Decisions {
            training,
            staging: Staging { stages: self.stages, chunk: vec![0; stage.len()], stage, placement },
            rates,
            recomputed: vec![None; graph.nodes.len()],
        };
        let options = CompileOptions {
            mesh: self.mesh.clone(),
            stages: self.stages,
            microbatches: self.microbatches,
            schedule: self.schedule,
            ..CompileOptions::default()
        };
        let mut cluster = preset("cpu").expect("a preset");
        cluster.device.overlap = self.overlap;
        let header = Header {
            graph: &graph,
            options: &options,
            cluster: &cluster,
            weights: None,
            planner: PlannerReport {
                status: PlannerStatus::Gap,
                gap: 0.0,
                objective_seconds: 0.0,
                bound_seconds: 0.0,
                variables: 0,
                constraints: 0,
                tied_axes: Vec::new(),
            },
        };
        assemble_plan(header, &decisions, &sharding).expect("compiles")
    }
}

fn kind(op: &Op) -> TensorKind {
    match op {
        Op::Variable(_) => TensorKind::Parameter,
        Op::Input(_) => TensorKind::Input,
        _ => TensorKind::Activation,
    }
}

/// Inputs are cut along dim 0; what that means for the others follows from their rules. What is gathered again is a
/// variable, for each microbatch anew.
fn rates(graph: &Graph, microbatches: usize) -> Rates {
    let mut values: Vec<ValueRate> = Vec::new();
    let mut nodes = Vec::new();
    for node in &graph.nodes {
        let cut = node.operands.iter().any(|v| values[v.index()] != ValueRate::Step);
        if matches!(node.op, Op::Input(_)) {
            nodes.push(Some(Choice::Factor(0)));
            values.push(ValueRate::Microbatch { dim: 0 });
        } else if matches!(node.op, Op::Regather(_)) {
            let operand = graph.value(node.operands[0]);
            let (node, rate) = match values[node.operands[0].index()] {
                ValueRate::Step => (None, ValueRate::Anew),
                rate => (nodes[operand.producer.index()], rate),
            };
            nodes.push(node);
            values.push(rate);
        } else if matches!(node.op, Op::Accumulate(_)) || !cut {
            nodes.push(cut.then_some(Choice::Linear(0)));
            values.extend(node.results.iter().map(|_| ValueRate::Step));
        } else {
            let wanted: Vec<Sbp> = node.operands.iter().map(|v| time(values[v.index()])).collect();
            let signature = signatures(graph, node, &[microbatches])
                .into_iter()
                .find(|s| s.operands.iter().zip(&wanted).all(|(s, w)| s.0[0] == *w))
                .expect("a signature for the time axis");
            nodes.push(Some(signature.choices[0]));
            values.extend(signature.results.iter().map(|result| match result.0[0] {
                Sbp::Split(dim) => ValueRate::Microbatch { dim },
                Sbp::Partial(_) => ValueRate::Summand,
                Sbp::Broadcast => ValueRate::Step,
            }));
        }
    }
    Rates { microbatches, values, nodes }
}

fn time(rate: ValueRate) -> Sbp {
    match rate {
        ValueRate::Step | ValueRate::Anew | ValueRate::Each => Sbp::Broadcast,
        ValueRate::Microbatch { dim } => Sbp::Split(dim),
        ValueRate::Summand => Sbp::PARTIAL,
    }
}

fn signatures(graph: &Graph, node: &Node, hierarchy: &[usize]) -> Vec<Signature> {
    let rule = node.op.operation().rule(&graph.operand_types(node)).expect("fits");
    rule.signatures(hierarchy)
}

/// Returns the signature that gives the wished layout of the result and takes most of the wished layouts of the operands, the first of these.
fn node_sharding(graph: &Graph, node: &Node, placement: &Placement, wish: Wish) -> NodeSharding {
    let name = |v: ValueId| graph.display_name(v);
    let wanted = |v: ValueId| wish(graph.producer(v), &name(v));
    let fits = |s: &Signature| {
        let mut values = node.results.iter().zip(&s.results);
        values.all(|(&v, sbp)| wanted(v).is_none_or(|w| w == *sbp))
    };
    let score = |s: &Signature| {
        let values = node.operands.iter().zip(&s.operands);
        values.filter(|&(&v, sbp)| wanted(v).as_ref() == Some(sbp)).count()
    };
    let all = signatures(graph, node, &placement.hierarchy);
    let mut best: Option<Signature> = None;
    for signature in all.into_iter().filter(fits) {
        if best.as_ref().is_none_or(|best| score(&signature) > score(best)) {
            best = Some(signature);
        }
    }
    let Signature { choices, operands, results } = best.expect("a signature as wished");
    NodeSharding { choices, operands, results }
}

fn sgd() -> Op {
    Op::SgdUpdate(SgdUpdate { lr: 0.1.into(), ..SgdUpdate::default() })
}

/// A chain of layers over stages, with gradients and updates by hand: h' = relu(h w), g' = (g h') w^T.
fn chain(stages: usize, ranks: usize, microbatches: usize, layers: usize, size: usize) -> Case {
    let mut case = Case::new(&[stages * ranks], stages, microbatches);
    let g = case.g.clone();
    let mut h = g.input("x", DType::F32, [8 * microbatches, size]);
    let (mut kept, mut weights) = (vec![h.clone()], Vec::new());
    for stage in 0..stages {
        for layer in 0..layers {
            let w =
                g.variable(&format!("w{stage}.{layer}"), DType::F32, [size, size], Init::Weights);
            h = h.matmul(&w).named(&format!("y{stage}.{layer}")).relu();
            kept.push(h.clone());
            weights.push(w);
        }
        case.mark(&h, Phase::Forward, stage);
    }
    let mut gradient = h.scale(2.0);
    case.mark(&gradient, Phase::Backward, stages - 1);
    let mut accumulated = Vec::new();
    for index in (0..stages * layers).rev() {
        let stage = index / layers;
        let local = gradient.mul(&kept[index + 1]);
        let dw = kept[index].matmul_transposed(&local, true, false).named(&format!("dw{index}"));
        let sum = g.apply(Op::Accumulate(Accumulate {}), &[&dw]).named(&format!("sum{index}"));
        gradient = local.matmul_transposed(&weights[index], false, true);
        case.mark(&gradient, Phase::Backward, stage);
        accumulated.push((index, sum));
    }
    for (index, sum) in &accumulated {
        let updated = g.apply(sgd(), &[&weights[*index], sum]);
        case.mark(&updated, Phase::Update, index / layers);
    }
    case
}

fn whole(_: &Node, _: &str) -> Option<NdSbp> {
    Some(NdSbp(vec![Sbp::Broadcast]))
}

/// Data parallel: samples split, weights whole, gradients partial until the update.
fn data_parallel(node: &Node, name: &str) -> Option<NdSbp> {
    let sbp = match &node.op {
        Op::Variable(_) | Op::SgdUpdate(_) => Sbp::Broadcast,
        _ if name.starts_with("dw") || name.starts_with("sum") => Sbp::PARTIAL,
        _ => Sbp::Split(0),
    };
    Some(NdSbp(vec![sbp]))
}

/// Data parallelism with updates computed on shards.
fn zero1(node: &Node, name: &str) -> Option<NdSbp> {
    match &node.op {
        Op::SgdUpdate(_) => Some(NdSbp(vec![Sbp::Split(0)])),
        _ => data_parallel(node, name),
    }
}

fn program(plan: &Plan, rank: usize) -> &Program {
    &plan.programs[plan.ranks[rank].program.index()]
}

fn names(program: &Program) -> Vec<&str> {
    program.actors.iter().map(|actor| actor.name.as_str()).collect()
}

#[test]
fn one_forward_one_backward_keeps_as_many_contents_as_stages_follow() {
    for (stages, microbatches) in [(2, 2), (3, 6), (4, 8)] {
        let (plan, simulation) = chain(stages, 1, microbatches, 1, 16).compile(whole);
        assert_eq!(verify_invariants(&plan), Ok(()));
        for stage in 0..stages {
            let slots = program(&plan, stage).registers.iter().map(|register| register.slots).max();
            assert_eq!(slots, Some((stages - stage) as u32), "stage {stage} of {stages}");
            assert_eq!(simulation.stages[stage].high_water, (stages - stage) as u64);
        }
    }
}

#[test]
fn gpipe_keeps_all_microbatches() {
    let mut case = chain(2, 1, 4, 1, 16);
    case.schedule = Schedule::Gpipe;
    let (plan, _) = case.compile(whole);
    assert_eq!(verify_invariants(&plan), Ok(()));
    assert_eq!(program(&plan, 0).registers.iter().map(|register| register.slots).max(), Some(4));
}

#[test]
fn the_bubble_of_equal_stages_is_that_of_the_formula() {
    for (stages, microbatches) in [(2, 4), (4, 8), (4, 4)] {
        let (mut plan, _) = chain(stages, 1, microbatches, 1, 64).compile(whole);
        for actor in plan.programs.iter_mut().flat_map(|program| &mut program.actors) {
            let kernel = matches!(actor.action, Action::Compute { .. } | Action::Fused(_));
            let update = matches!(&actor.action, Action::Compute { op: Op::SgdUpdate(_), .. });
            actor.seconds = if kernel && !update { 0.1 } else { 0.0 };
        }
        equal_stages(&mut plan);
        let bubble = simulate(&plan).expect("no hang").bubble_fraction;
        let formula = (stages - 1) as f64 / (microbatches + stages - 1) as f64;
        assert!((bubble - formula).abs() < 0.02, "{bubble} of {stages} stages, formula {formula}");
    }
}

/// Lets all blocks take a second, as the last stage has one op more than the others.
fn equal_stages(plan: &mut Plan) {
    for program in &mut plan.programs {
        for block in program.streams[0].blocks.clone() {
            let total: f64 = block.iter().map(|a| program.actors[a.index()].seconds).sum();
            for actor in block.iter().filter(|_| total > 0.0) {
                program.actors[actor.index()].seconds /= total;
            }
        }
    }
}

#[test]
fn gradients_travel_in_one_message() {
    let (plan, _) = chain(1, 2, 2, 3, 16).compile(data_parallel);
    assert_eq!(verify_invariants(&plan), Ok(()));
    assert_eq!(collective_counts(&plan), [(BoxingKind::AllReduce, 1)].into());
    assert_eq!(plan.boxing.len(), 3, "one entry for each tensor");
    assert_eq!(plan.programs.len(), 1, "both ranks do the same");
}

#[test]
fn reduced_gradients_take_the_place_of_their_summands() {
    let (mut plan, _) = chain(1, 2, 1, 3, 8).compile(data_parallel);
    let gradients = |action: &Action| match action {
        Action::Collective { kind, .. } => *kind == BoxingKind::AllReduce,
        _ => false,
    };
    let actor = program(&plan, 0).actors.iter().find(|actor| gradients(&actor.action));
    let actor = actor.expect("gradients are reduced").clone();
    for (input, output) in actor.inputs.iter().zip(&actor.outputs) {
        let registers = &mut plan.programs[0].registers;
        assert_eq!(registers[output.index()].shares, Some(*input));
        assert_eq!(registers[output.index()].offset, registers[input.index()].offset);
    }
    // In the place of another's summand a result would be added up from itself.
    let (first, other) = (actor.outputs[0].index(), actor.inputs[1]);
    let offset = plan.programs[0].registers[other.index()].offset;
    let register = &mut plan.programs[0].registers[first];
    (register.offset, register.shares) = (offset, Some(other));
    let errors = verify_invariants(&plan).expect_err("refused");
    assert!(format!("{errors:?}").contains("over its input"), "{errors:?}");
}

#[test]
fn a_thousand_ranks_share_two_programs() {
    let (plan, simulation) = chain(1, 1024, 2, 2, 2048).compile(zero1);
    assert_eq!(plan.programs.len(), 2, "of ranks with a sample and of ranks without");
    assert!(simulation.step_seconds > 0.0);
    assert!(write_plan(&plan).len() < 2 << 20);
}

#[test]
fn updates_in_another_layout_come_home() {
    let (plan, _) = chain(1, 2, 1, 2, 16).compile(zero1);
    assert_eq!(verify_invariants(&plan), Ok(()));
    let counts = collective_counts(&plan);
    assert_eq!(counts[&BoxingKind::ReduceScatter], 1);
    assert_eq!(counts[&BoxingKind::AllGather], 1);
    assert_eq!(counts[&BoxingKind::Slice], 2);
    let names = names(&plan.programs[0]);
    assert!(names.contains(&"assign w0.1"), "{names:?}");
    let update = plan.programs[0].actors.iter().find(|actor| actor.name.starts_with("sgd_update"));
    assert_eq!(update.map(|actor| (actor.updates.len(), actor.outputs.len())), Some((0, 1)));
}

#[test]
fn updates_at_rest_work_in_place() {
    let (plan, _) = chain(1, 1, 1, 1, 16).compile(whole);
    let update = plan.programs[0].actors.iter().find(|actor| actor.name.starts_with("sgd_update"));
    assert_eq!(update.map(|actor| (actor.updates.len(), actor.outputs.len())), Some((1, 0)));
    let Some(Action::Compute { operands, .. }) = update.map(|actor| &actor.action) else {
        panic!("an update is a kernel");
    };
    assert_eq!(*operands, [OperandSource::Update(0), OperandSource::Input(0)]);
}

#[test]
fn uneven_shards_give_programs_of_their_own() {
    let mut case = Case::new(&[3], 1, 1);
    let x = case.g.input("x", DType::F32, [7, 5]);
    let y = x.relu().named("y");
    case.g.output("y", &y);
    case.mark(&y, Phase::Forward, 0);
    let (plan, _) = case.compile(|_, _| Some(NdSbp(vec![Sbp::Split(0)])));
    assert_eq!(verify_invariants(&plan), Ok(()));
    let shapes: Vec<_> = (0..3).map(|rank| program(&plan, rank).registers[0].shape[0]).collect();
    assert_eq!(shapes, [3, 2, 2]);
    assert_eq!(plan.programs.len(), 2);
}

#[test]
fn elementwise_chains_become_one_actor() {
    let mut case = Case::new(&[1], 1, 1);
    let x = case.g.input("x", DType::F32, [4, 4]);
    let w = case.g.variable("w", DType::F32, [4, 4], Init::Weights);
    let a = x.exp();
    let b = a.add(&x).mul(&a);
    let c = b.matmul(&w).add(&b).relu();
    case.g.output("c", &c);
    case.g.output("b", &b);
    case.mark(&c, Phase::Forward, 0);
    let (plan, _) = case.compile(whole);
    assert_eq!(verify_invariants(&plan), Ok(()));
    let fused: Vec<usize> = plan.programs[0]
        .actors
        .iter()
        .filter_map(|actor| match &actor.action {
            Action::Fused(fused) => Some(fused.steps.len()),
            _ => None,
        })
        .collect();
    assert_eq!(
        fused,
        [3, 2],
        "no way may lead out over the matmul and back: {:?}",
        names(&plan.programs[0])
    );
}

#[test]
fn memory_is_shared_and_close_to_what_lives_at_once() {
    let (plan, _) = chain(1, 1, 2, 6, 32).compile(whole);
    assert_eq!(verify_invariants(&plan), Ok(()));
    let program = &plan.programs[0];
    let sum: u64 = program.registers.iter().map(|r| r.slot_bytes * u64::from(r.slots)).sum();
    assert!(program.arena_bytes >= program.live_bytes);
    assert!(program.arena_bytes * 10 <= program.live_bytes * 11, "{program:?}");
    assert!(program.arena_bytes < sum, "registers share bytes");
    assert!(program.registers.iter().any(|register| register.shares.is_some()));
}

#[test]
fn a_count_over_all_microbatches_comes_before_the_pipeline() {
    let mut case = Case::new(&[1], 1, 4);
    let g = case.g.clone();
    let x = g.input("x", DType::F32, [16, 4]);
    let labels = g.input("labels", DType::F32, [16]);
    let h = x.exp().sum(&[1], false).mul(&labels).named("h");
    let count = labels.sign().sum(&[0], false).named("count");
    let total = g.apply(Op::Accumulate(Accumulate {}), &[&count]).named("total");
    let scaled = total.reciprocal();
    case.mark(&scaled, Phase::Forward, 0);
    let back = h.mul(&labels).mul(&scaled).named("back");
    g.output("back", &back);
    case.mark(&back, Phase::Backward, 0);
    let (plan, simulation) = case.compile(whole);
    assert_eq!(verify_invariants(&plan), Ok(()));
    assert_eq!(simulation.stages[0].high_water, 1, "labels are fed twice, nothing is kept");
    let feeds = names(&plan.programs[0]).into_iter().filter(|name| *name == "feed labels").count();
    assert_eq!(feeds, 2);
}

#[test]
fn gradients_travel_on_a_stream_of_their_own() {
    for stages in [1, 2] {
        let mut case = chain(stages, 2, 4, 2, 16);
        case.overlap = true;
        let (plan, _) = case.compile(data_parallel);
        assert_eq!(verify_invariants(&plan), Ok(()));
        assert_eq!(plan.programs[0].streams.len(), 2);
    }
}

#[test]
fn the_same_input_gives_the_same_text() {
    let text = || write_plan(&chain(2, 2, 2, 2, 16).compile(zero1).0);
    let first = text();
    assert_eq!(first, text());
    let read = crate::check::read_plan(&first).expect("a plan");
    assert_eq!(write_plan(&read), first);
}

/// A plan with two collectives in a row, of which rank 1 runs the second first.
fn hanging() -> Plan {
    let mut case = Case::new(&[2], 1, 1);
    let x = case.g.input("x", DType::F32, [4, 4]);
    let a = x.sum(&[0], false).named("a");
    let b = x.exp().sum(&[0], false).named("b");
    case.g.output("a", &a);
    case.g.output("b", &b);
    case.mark(&b, Phase::Forward, 0);
    let wish = |_: &Node, name: &str| {
        let partial = matches!(name, "a" | "b");
        Some(NdSbp(vec![if partial { Sbp::PARTIAL } else { Sbp::Split(0) }]))
    };
    let (mut plan, _) = case.compile(wish);
    assert_eq!(verify_invariants(&plan), Ok(()));
    let mut other = plan.programs[0].clone();
    let block = &mut other.streams[0].blocks;
    let of = |actors: &[ActorId], name: &str| {
        actors.iter().position(|actor| plan.programs[0].actors[actor.index()].name == name)
    };
    let block = block
        .iter_mut()
        .find(|block| of(block, "all_reduce a").is_some())
        .expect("a block with both");
    let (a, b) = (of(block, "all_reduce a").expect("a"), of(block, "all_reduce b").expect("b"));
    let first = block.remove(a.min(b));
    block.push(first);
    let fetch: Vec<_> = block
        .iter()
        .copied()
        .filter(|actor| plan.programs[0].actors[actor.index()].name.starts_with("fetch"))
        .collect();
    block.retain(|actor| !fetch.contains(actor));
    block.extend(fetch);
    plan.predicted.peak_memory_bytes.push(other.arena_bytes);
    plan.programs.push(other);
    plan.ranks[1].program = ProgramId(1);
    plan
}

#[test]
fn a_plan_made_to_hang_is_refused_with_the_actors_named() {
    let plan = hanging();
    let Err(NullDeviceError::Hang { waits }) = simulate(&plan) else { panic!("it hangs") };
    assert_eq!(waits.len(), 2);
    assert!(waits[0].contains("rank 0: `all_reduce a`") && waits[0].contains("`all_reduce b`"));
    assert!(waits[1].contains("rank 1: `all_reduce b`") && waits[1].contains("`all_reduce a`"));
    let errors = verify_invariants(&plan).expect_err("refused").to_string();
    assert!(errors.contains("hangs") && errors.contains("out of order"), "{errors}");
}

#[test]
fn edited_plans_are_refused_without_panic() {
    let (plan, _) = chain(2, 2, 2, 1, 16).compile(data_parallel);
    let refused = |edit: &dyn Fn(&mut Plan), expected: &str| {
        let mut edited = plan.clone();
        edit(&mut edited);
        let errors = verify_invariants(&edited).expect_err(expected).to_string();
        assert!(errors.contains(expected), "`{expected}` is not in: {errors}");
    };
    refused(&|p| p.version = 9, "version: is 9");
    refused(&|p| p.ranks[0].program = ProgramId(77), "there is no program77");
    refused(&|p| p.programs[0].registers[0].layout = LayoutId(999), "there is no layout 999");
    refused(&|p| p.programs[0].actors[0].outputs[0].0 = 999, "there is no register r999");
    refused(&|p| p.programs[0].streams[0].order[0].block = 999, "there is no block 999");
    refused(&|p| p.programs[0].streams[0].blocks[0][0].0 = 999, "there is no actor a999");
    refused(&|p| p.layouts[0].hierarchy[0] = 0, "no mesh [0]");
    refused(&|p| p.programs[0].registers[1].offset += 1, "slots of");
    refused(&|p| p.programs[0].registers[1].offset += 1 << 40, "behind the arena");
    refused(&|p| p.programs[0].registers[1].shape[0] += 1, "rank 0 holds");
    refused(&|p| p.microbatches = 0, "microbatches: is 0");
    refused(&|p| p.channels[0].slots = 0, "has 0 slots");
    refused(&|p| p.channels[0].from = LayoutId(9999), "does not exist");
    refused(&|p| p.programs[0].actors.truncate(2), "there is no actor");
}

#[test]
fn registers_that_live_together_may_not_overlap() {
    let (plan, _) = chain(1, 1, 2, 2, 16).compile(whole);
    let program = &plan.programs[0];
    let activations: Vec<usize> = (0..program.registers.len())
        .filter(|&r| program.registers[r].kind == RegisterKind::Activation)
        .collect();
    let mut refused = 0;
    for &register in &activations {
        let mut edited = plan.clone();
        edited.programs[0].registers[register].offset = 0;
        edited.programs[0].registers[register].shares = None;
        refused += usize::from(verify_invariants(&edited).is_err());
    }
    assert_eq!(refused, activations.len(), "a variable lies at 0 and lives always");
}

/// Layouts of a plan are listed once.
#[test]
fn layouts_are_listed_once() {
    let (plan, _) = chain(2, 2, 2, 2, 16).compile(data_parallel);
    let mut layouts: Vec<&Layout> = plan.layouts.iter().collect();
    layouts.sort();
    layouts.dedup();
    assert_eq!(layouts.len(), plan.layouts.len());
}
