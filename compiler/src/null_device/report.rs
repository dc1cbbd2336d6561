//! Reports the measurements of the null device: seconds of a step, shares of rank time, stages, classes, and the trace.
//!
//! *Overlap* is the time in which both a collective of the second stream and a kernel of the first run, over all time of communication.

use graphc_ir::ids::ActorId;
use graphc_plan::{Action, Actor, Plan};

use super::classes::Classes;
use super::engine::{Outcome, Spent};

/// The measurements of one step on the null device.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulation {
    /// Seconds from the step's start until every rank has finished it.
    pub step_seconds: f64,
    /// The share of rank time in which ranks wait for others, over ranks that have work; 0 with one stage.
    pub bubble_fraction: f64,
    /// Shares of rank time, over ranks that have work.
    pub shares: Shares,
    /// The measurements by stage.
    pub stages: Vec<StageReport>,
    /// The classes of ranks that behave alike, each named by its first rank.
    pub classes: Vec<ClassReport>,
    /// The class of each rank, as a number of `classes`.
    pub class_of_rank: Vec<usize>,
    /// The trace, ordered by start, rank and stream, if it was asked for.
    pub trace: Vec<TraceEvent>,
}

/// Shares of rank time. The first three add up to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// The share of kernels.
    pub compute: f64,
    /// The share of communication while the rank does not compute.
    pub communication: f64,
    /// The share of the rest, in which ranks wait for each other.
    pub waiting: f64,
    /// The share of communication on ranks' streams during which the rank computes.
    pub overlap: f64,
}

/// The measurements of one stage.
#[derive(Clone, Debug, PartialEq)]
pub struct StageReport {
    /// The stage.
    pub stage: usize,
    /// The number of its ranks.
    pub ranks: usize,
    /// The greatest number of contents of one microbatch-rate register that existed at once.
    pub high_water: u64,
    /// The largest arena of its ranks, in bytes.
    pub peak_memory_bytes: u64,
    /// Seconds that its busiest rank works in one step.
    pub busy_seconds: f64,
}

/// A class of ranks that behave alike. The first of them was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassReport {
    /// The first rank.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: usize,
    /// The stage of the ranks.
    pub stage: usize,
}

/// One action of the trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceEvent {
    /// The rank.
    pub rank: u32,
    /// The stream.
    pub stream: usize,
    /// The actor, by its number in the rank's program.
    pub actor: ActorId,
    /// The step.
    pub step: u64,
    /// The microbatch.
    pub microbatch: u32,
    /// The start, in seconds from the beginning.
    pub start: f64,
    /// The end, in seconds from the beginning.
    pub end: f64,
}

impl TraceEvent {
    /// Returns the actor that acted, in the plan that was executed.
    pub fn actor<'a>(&self, plan: &'a Plan) -> &'a Actor {
        let program = plan.ranks[self.rank as usize].program;
        &plan.programs[program.index()].actors[self.actor.index()]
    }

    /// Returns the kind of the action: `compute`, `collective`, `send` or `receive`.
    pub fn kind(&self, plan: &Plan) -> &'static str {
        match self.actor(plan).action {
            Action::Collective { .. } => "collective",
            Action::Send { .. } => "send",
            Action::Receive { .. } => "receive",
            _ => "compute",
        }
    }
}

/// Makes the report of an execution. `high_water` has a number for each program.
pub(super) fn report_outcome(
    plan: &Plan,
    classes: &Classes,
    outcome: Outcome,
    high_water: &[u64],
) -> Simulation {
    let mut sum = Spent::default();
    let mut working = 0.0;
    for (class, spent) in outcome.spent.iter().enumerate() {
        if !plan.programs[program_index(plan, classes, class)].actors.is_empty() {
            let ranks = classes.size[class] as f64;
            working += ranks;
            sum.busy += ranks * spent.busy;
            sum.compute += ranks * spent.compute;
            sum.communication += ranks * spent.communication;
            sum.overlapped += ranks * spent.overlapped;
            sum.doubled += ranks * spent.doubled;
        }
    }
    let total = outcome.step_seconds * working;
    let waits = plan.stages > 1 && total > 0.0;
    let stages = (0..plan.stages)
        .map(|stage| stage_report(plan, classes, &outcome, high_water, stage))
        .collect();
    Simulation {
        step_seconds: outcome.step_seconds,
        bubble_fraction: if waits { 1.0 - sum.busy / total } else { 0.0 },
        shares: time_shares(sum, total),
        stages,
        classes: (0..classes.first.len()).map(|class| class_report(plan, classes, class)).collect(),
        class_of_rank: classes.of.clone(),
        trace: outcome.trace,
    }
}

fn class_report(plan: &Plan, classes: &Classes, class: usize) -> ClassReport {
    ClassReport {
        rank: classes.first[class],
        ranks: classes.size[class],
        stage: plan.programs[program_index(plan, classes, class)].stage,
    }
}

fn time_shares(sum: Spent, total: f64) -> Shares {
    let of = |part: f64, whole: f64| if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 0.0 };
    let compute = of(sum.compute, total);
    let communication = of(sum.communication - sum.overlapped - sum.doubled, total);
    Shares {
        compute,
        communication,
        waiting: (1.0 - compute - communication).max(0.0),
        overlap: of(sum.overlapped, sum.communication),
    }
}

fn program_index(plan: &Plan, classes: &Classes, class: usize) -> usize {
    plan.ranks[classes.first[class] as usize].program.index()
}

fn stage_report(
    plan: &Plan,
    classes: &Classes,
    outcome: &Outcome,
    high_water: &[u64],
    stage: usize,
) -> StageReport {
    let mut report =
        StageReport { stage, ranks: 0, high_water: 0, peak_memory_bytes: 0, busy_seconds: 0.0 };
    for (class, spent) in outcome.spent.iter().enumerate() {
        let index = program_index(plan, classes, class);
        let program = &plan.programs[index];
        if program.stage == stage && !program.actors.is_empty() {
            let contents = high_water[index].max(outcome.high_water[class]);
            report.ranks += classes.size[class];
            report.high_water = report.high_water.max(contents);
            report.peak_memory_bytes = report.peak_memory_bytes.max(program.arena_bytes);
            report.busy_seconds = report.busy_seconds.max(spent.busy);
        }
    }
    report
}
