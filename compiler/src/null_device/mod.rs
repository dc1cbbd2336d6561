//! The null device: executes a plan on all ranks with modelled time, through the state machine that the runtime
//! drives too. It finds what a step takes, how much of it pipeline stages wait, and plans that would hang.
//!
//! Kernels take the seconds of their actors; collectives begin when the last of their group has come and take what the
//! cost model says; what is sent arrives after what the cost model says, without holding up the sender. Start reading
//! with [`simulate`], then `engine`.

use graphc_ir::plan::{Plan, Rate};

mod channels;
mod engine;
mod rendezvous;
mod waits;

use engine::{Engine, Outcome};

/// What the null device measured over one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulation {
    /// Seconds from the step's start until every rank has finished it.
    pub step_seconds: f64,
    /// Share of rank time that ranks wait for others, over ranks that have work; 0 with one stage.
    pub bubble_fraction: f64,
    /// By stage.
    pub stages: Vec<StageReport>,
    /// What ran when, by start, rank and stream, where it was asked for.
    pub trace: Vec<TraceEvent>,
}

/// What the null device measured of one stage.
#[derive(Clone, Debug, PartialEq)]
pub struct StageReport {
    /// The stage.
    pub stage: usize,
    /// The greatest number of contents of one microbatch-rate register that existed at once.
    pub high_water: u64,
    /// The largest arena of its ranks, in bytes.
    pub peak_memory_bytes: u64,
    /// Seconds that its busiest rank works in one step.
    pub busy_seconds: f64,
}

/// One action of the trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceEvent {
    /// The rank.
    pub rank: u32,
    /// The stream.
    pub stream: usize,
    /// The actor's name.
    pub actor: String,
    /// The step.
    pub step: u64,
    /// The microbatch.
    pub microbatch: u32,
    /// Seconds from the beginning.
    pub start: f64,
    /// Seconds from the beginning.
    pub end: f64,
}

/// Why a plan cannot be executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NullDeviceError {
    /// No stream can go on.
    #[error("the plan hangs:\n  {}", .waits.join("\n  "))]
    Hang {
        /// Who waits for whom, rank by rank.
        waits: Vec<String>,
    },
}

/// Executes one step. Indices of the plan must be in range: [`crate::check::verify`] sees to that for plans from files.
///
/// # Errors
/// Where the plan hangs.
pub fn simulate(plan: &Plan) -> Result<Simulation, NullDeviceError> {
    Ok(report(plan, &run(plan, 1, Credits::Planned, false)?))
}

/// Executes `steps` steps, for the question alone whether the plan hangs.
///
/// # Errors
/// Where the plan hangs.
pub fn execute(plan: &Plan, steps: u64) -> Result<(), NullDeviceError> {
    run(plan, steps, Credits::Planned, false).map(|_| ())
}

/// Executes `steps` steps (at least one) and keeps the trace. What is measured is the first step.
///
/// # Errors
/// Where the plan hangs.
pub fn trace(plan: &Plan, steps: u64) -> Result<Simulation, NullDeviceError> {
    Ok(report(plan, &run(plan, steps.max(1), Credits::Planned, true)?))
}

/// How many contents may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Credits {
    /// As the channels say.
    Planned,
    /// Any number.
    Unlimited,
}

fn run(plan: &Plan, steps: u64, credits: Credits, trace: bool) -> Result<Outcome, NullDeviceError> {
    Engine::new(plan, steps, credits == Credits::Unlimited, trace).run()
}

/// Gives every channel the slots that the plan can use: as many contents as are under way at once where nothing holds
/// senders back, though no more than one beyond the number of stages (of their chunks), unless less would hang.
///
/// # Errors
/// Where the plan hangs even with endless channels.
pub fn assign_channel_slots(plan: &mut Plan) -> Result<(), NullDeviceError> {
    let most = run(plan, 2, Credits::Unlimited, false)?.under_way;
    let cap = (plan.stages * plan.options.schedule.chunks()) as u32 + 1;
    for (channel, &under_way) in plan.channels.iter_mut().zip(&most) {
        let least = if channel.rate == Rate::Step { 1 } else { 2 };
        channel.slots = under_way.min(cap).max(least);
    }
    if run(plan, 2, Credits::Planned, false).is_err() {
        for (channel, &under_way) in plan.channels.iter_mut().zip(&most) {
            channel.slots = channel.slots.max(under_way);
        }
    }
    Ok(())
}

fn report(plan: &Plan, outcome: &Outcome) -> Simulation {
    let working: Vec<usize> = (0..plan.ranks.len())
        .filter(|&rank| !plan.programs[plan.ranks[rank].program.index()].actors.is_empty())
        .collect();
    let busy: f64 = working.iter().map(|&rank| outcome.busy[rank]).sum();
    let total = outcome.step_seconds * working.len() as f64;
    let waits = plan.stages > 1 && total > 0.0;
    Simulation {
        step_seconds: outcome.step_seconds,
        bubble_fraction: if waits { 1.0 - busy / total } else { 0.0 },
        stages: (0..plan.stages).map(|stage| stage_report(plan, outcome, stage)).collect(),
        trace: outcome.trace.clone(),
    }
}

fn stage_report(plan: &Plan, outcome: &Outcome, stage: usize) -> StageReport {
    let mut report = StageReport { stage, high_water: 0, peak_memory_bytes: 0, busy_seconds: 0.0 };
    for (rank, entry) in plan.ranks.iter().enumerate() {
        let program = &plan.programs[entry.program.index()];
        if program.stage == stage && !program.actors.is_empty() {
            report.high_water = report.high_water.max(outcome.high_water[rank]);
            report.peak_memory_bytes = report.peak_memory_bytes.max(program.arena_bytes);
            report.busy_seconds = report.busy_seconds.max(outcome.busy[rank]);
        }
    }
    report
}
