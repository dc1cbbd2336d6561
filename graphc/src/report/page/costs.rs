//! Sums what a step costs: by class of ranks its communication by axis and kind, its kernels by op, and the time of
//! neither.

use std::collections::BTreeMap;

use graphc_compiler::cost::collective_bytes;
use graphc_ir::ids::RegisterId;
use graphc_plan::{Action, Actor, Plan, Program};
use serde::Serialize;

use super::events::{Event, Ran};
use super::places::RankRun;

/// The costs of a step.
#[derive(Clone, Debug, Serialize)]
pub struct StepCosts {
    /// Axes of the mesh: extent, and whether their groups reach from node to node.
    pub axes: Vec<(usize, bool)>,
    /// Peak FLOPs per second by element type.
    pub peaks: BTreeMap<String, f64>,
    /// Bytes per second of device memory.
    pub bandwidth: f64,
    /// The costs by class of ranks.
    pub classes: Vec<Class>,
}

/// The time of ranks that behave alike in a step. Seconds are those of one rank.
#[derive(Clone, Debug, Serialize)]
pub struct Class {
    /// The first rank.
    pub rank: u32,
    /// The number of the ranks.
    pub ranks: usize,
    /// The ranks.
    pub of: Vec<RankRun>,
    /// The stage of the ranks.
    pub stage: usize,
    /// Seconds with a kernel.
    pub compute: f64,
    /// Seconds with communication and no kernel.
    pub exposed: f64,
    /// Seconds with communication under kernels.
    pub hidden: f64,
    /// Seconds with neither.
    pub waiting: f64,
    /// Communication.
    pub communication: Vec<Communication>,
    /// Kernels.
    pub kernels: Vec<Kernels>,
}

/// Communication of one kind over one axis: axis (none: point to point), kind, messages, bytes that a rank
/// sends, of receives those that it gets, seconds, the actor that takes longest.
pub(super) type Communication = (Option<usize>, &'static str, usize, f64, f64, usize);

/// Kernels of one op: op, how many, FLOPs, bytes of device memory, seconds, the actor that takes longest.
pub(super) type Kernels = (String, usize, f64, f64, f64, usize);

/// Adds up what was simulated.
pub(super) fn sum_costs(plan: &Plan, ran: &[&Ran<'_>], step_seconds: f64) -> StepCosts {
    let device = &plan.cluster.device;
    StepCosts {
        axes: axis_extents(plan),
        peaks: device.flops.clone(),
        bandwidth: device.bandwidth,
        classes: ran.iter().map(|ran| class_costs(plan, ran, step_seconds)).collect(),
    }
}

/// Returns for each axis its extent in a stage, and whether the group of the first rank lies in several nodes.
fn axis_extents(plan: &Plan) -> Vec<(usize, bool)> {
    let mut hierarchy = plan.mesh.clone();
    if let Some(first) = hierarchy.first_mut() {
        *first /= plan.stages.max(1);
    }
    let node = plan.cluster.levels.first().map_or(0, |level| level.size);
    let of = |axis: usize| {
        let stride: usize = hierarchy[axis + 1..].iter().product();
        let last = (hierarchy[axis] - 1) * stride;
        (hierarchy[axis], node > 0 && last >= node)
    };
    (0..hierarchy.len()).map(of).collect()
}

fn class_costs(plan: &Plan, ran: &Ran<'_>, step_seconds: f64) -> Class {
    let (communication, kernels) = sum_events(plan, ran);
    let [compute, exposed, hidden] = split_seconds(ran);
    Class {
        rank: ran.class.rank,
        ranks: ran.class.ranks,
        of: ran.ranks.clone(),
        stage: ran.class.stage,
        compute,
        exposed,
        hidden,
        waiting: (step_seconds - compute - exposed).max(0.0),
        communication,
        kernels,
    }
}

/// A sum of events, with the actor of the longest.
#[derive(Default)]
struct EventSum {
    count: usize,
    flops: f64,
    bytes: f64,
    seconds: f64,
    longest: Option<(f64, usize)>,
}

impl EventSum {
    fn add(&mut self, (flops, bytes): (f64, f64), event: &Event) {
        let seconds = event.end - event.start;
        self.count += 1;
        self.flops += flops;
        self.bytes += bytes;
        self.seconds += seconds;
        if self.longest.is_none_or(|(most, _)| seconds > most) {
            self.longest = Some((seconds, event.actor));
        }
    }

    fn longest_actor(&self) -> usize {
        self.longest.map_or(0, |(_, actor)| actor)
    }
}

/// Events by axis and kind, and by op; kernels that take longest first.
fn sum_events(plan: &Plan, ran: &Ran<'_>) -> (Vec<Communication>, Vec<Kernels>) {
    let mut communication: BTreeMap<(Option<usize>, &'static str), EventSum> = BTreeMap::new();
    let mut kernels: BTreeMap<String, EventSum> = BTreeMap::new();
    for event in ran.streams.iter().flatten() {
        let actor = &ran.program.actors[event.actor];
        if let Some((axis, kind, bytes)) = describe_message(plan, ran.program, actor) {
            communication.entry((axis, kind)).or_default().add((0.0, bytes), event);
        } else {
            kernels.entry(op_word(actor)).or_default().add((actor.flops, actor.bytes), event);
        }
    }
    let row = |((axis, kind), sum): ((_, _), EventSum)| {
        (axis, kind, sum.count, sum.bytes, sum.seconds, sum.longest_actor())
    };
    let communication = communication.into_iter().map(row).collect();
    let row = |(op, sum): (String, EventSum)| {
        (op, sum.count, sum.flops, sum.bytes, sum.seconds, sum.longest_actor())
    };
    let mut kernels: Vec<Kernels> = kernels.into_iter().map(row).collect();
    kernels.sort_by(|a, b| b.4.total_cmp(&a.4));
    (communication, kernels)
}

/// Axis, kind and bytes of an actor that communicates.
fn describe_message(
    plan: &Plan,
    program: &Program,
    actor: &Actor,
) -> Option<(Option<usize>, &'static str, f64)> {
    let size = |id: &RegisterId| {
        let register = &program.registers[id.index()];
        let elements: usize = register.shape.iter().product();
        (elements * plan.layouts[register.layout.index()].dtype.size()) as f64
    };
    match &actor.action {
        Action::Collective { kind, axis, .. } => {
            let layout = actor.inputs.first().map(|i| program.registers[i.index()].layout);
            let layout = layout.map(|layout| &plan.layouts[layout.index()]);
            let ranks = layout.and_then(|layout| layout.hierarchy.get(*axis)).copied().unwrap_or(1);
            let both = actor.inputs.iter().zip(&actor.outputs);
            let bytes = both.map(|(i, o)| size(i).max(size(o))).sum();
            Some((Some(*axis), kind.name(), collective_bytes(*kind, ranks, bytes)))
        }
        Action::Send { .. } => Some((None, "send", actor.inputs.iter().map(size).sum())),
        Action::Receive { .. } => Some((None, "receive", actor.outputs.iter().map(size).sum())),
        _ => None,
    }
}

/// The op of an actor that computes, in one word.
fn op_word(actor: &Actor) -> String {
    match &actor.action {
        Action::Compute { op, .. } => op.name().into(),
        Action::Fused(fused) => match fused.chain_head() {
            Some(head) => format!("{} + elementwise", head.op.name()),
            None => "elementwise".into(),
        },
        Action::Local { kind } | Action::Collective { kind, .. } => kind.name().into(),
        Action::Accumulate => "accumulate".into(),
        Action::Assign => "assign".into(),
        Action::Feed { .. } => "feed".into(),
        Action::Fetch { .. } => "fetch".into(),
        Action::Send { .. } => "send".into(),
        Action::Receive { .. } => "receive".into(),
    }
}

/// Seconds with a kernel, with communication alone, and with communication under kernels.
fn split_seconds(ran: &Ran<'_>) -> [f64; 3] {
    let communicates = |event: &&Event| {
        let action = &ran.program.actors[event.actor].action;
        matches!(action, Action::Collective { .. } | Action::Send { .. } | Action::Receive { .. })
    };
    let events = || ran.streams.iter().flatten();
    let compute = merge_spans(events().filter(|event| !communicates(event)));
    let communication = merge_spans(events().filter(communicates));
    let both = merge_spans(events());
    let length = |spans: &[(f64, f64)]| spans.iter().map(|(from, to)| to - from).sum::<f64>();
    let (compute, communication, both) = (length(&compute), length(&communication), length(&both));
    [compute, both - compute, compute + communication - both]
}

/// Spans of time that events cover, in order, none touching another.
fn merge_spans<'a>(events: impl Iterator<Item = &'a Event>) -> Vec<(f64, f64)> {
    let mut spans: Vec<(f64, f64)> = events.map(|event| (event.start, event.end)).collect();
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut union: Vec<(f64, f64)> = Vec::new();
    for (from, to) in spans {
        match union.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => union.push((from, to)),
        }
    }
    union
}
