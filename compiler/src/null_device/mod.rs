//! The null device: it executes a plan on all ranks in modelled time, through the state machine that the runtime
//! drives too.
//!
//! It finds the seconds of a step, the time for which pipeline stages wait, and plans that would hang. Kernels take
//! the seconds of their actors. A collective begins when the last of its group has come, and takes what the cost
//! model says. What is sent arrives after what the cost model says, without holding up the sender.
//!
//! Ranks that behave alike are executed once (`classes`). On a rank with one stream, order alone decides which actor
//! may act. So the state machine runs once for each program (`order`), and the clock goes from one meeting with
//! another class to the next (`legs`). Where a rank has two streams, it is known beforehand what each waits for on
//! the other. So blocks are cut there too, and no state machine runs with the clock (`pace`). The time to simulate
//! grows with classes and meetings, not with ranks. [`simulate_every_rank`] executes each rank and each action, and
//! tests hold both to the same figures.
//!
//! Collectives of both streams that run at once are given the whole bandwidth each. Those of tensor parallelism go
//! inside nodes, and gradients mostly between nodes. Where both use one level, the prediction is too good.
//!
//! Start reading with [`simulate`], then `engine`.

use graphc_ir::enter_span;
use graphc_ir::plan::{Plan, Rate};

mod channels;
mod classes;
mod engine;
mod exchanges;
mod legs;
mod order;
mod pace;
mod rendezvous;
mod report;
#[cfg(test)]
mod tests;

use classes::Classes;
use engine::{Engine, Outcome};
use exchanges::Exchanges;

pub use report::{ClassReport, Shares, Simulation, StageReport, TraceEvent};

/// An error of a plan that cannot be executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NullDeviceError {
    /// No stream can go on.
    #[error("the plan hangs:\n  {}", .waits.join("\n  "))]
    Hang {
        /// The waits, rank by rank: who waits for whom.
        waits: Vec<String>,
    },
}

/// Executes one step. Indices of the plan must be in range: [`crate::check::verify_plan`] sees to that for plans from files.
///
/// # Errors
/// Where the plan hangs.
pub fn simulate(plan: &Plan) -> Result<Simulation, NullDeviceError> {
    let _span = enter_span!("simulate");
    measure(plan, Run::of(1))
}

/// Seconds of one step of a plan that is known to run: what [`simulate`] finds, in time that does not grow with what
/// happens inside ranks between meetings.
///
/// # Errors
/// Where the plan hangs.
pub fn step_seconds(plan: &Plan) -> Result<f64, NullDeviceError> {
    run(plan, Run::of(1)).map(|(_, outcome)| outcome.step_seconds)
}

/// [`simulate`] with every rank and every action executed by itself: the same figures up to rounding, in time that grows
/// with the number of ranks.
///
/// # Errors
/// Where the plan hangs.
pub fn simulate_every_rank(plan: &Plan) -> Result<Simulation, NullDeviceError> {
    measure(plan, Run { every_rank: true, detail: Detail::Actions, ..Run::of(1) })
}

/// Executes `steps` steps, for the question alone whether the plan hangs.
///
/// # Errors
/// Where the plan hangs.
pub fn execute(plan: &Plan, steps: u64) -> Result<(), NullDeviceError> {
    let ran = order::follow_programs(plan, steps).is_some();
    let hangs = || run(plan, Run::of(steps)).is_err();
    if ran && !hangs() {
        return Ok(());
    }
    // In full, to tell who waits for whom.
    let every_rank = plan.world_size <= MOST_NAMED;
    run(plan, Run { every_rank, detail: Detail::Actions, ..Run::of(steps) }).map(|_| ())
}

/// Ranks that are told one by one where a plan hangs; of more, one of each class.
const MOST_NAMED: usize = 64;

/// Executes `steps` steps (at least one) and keeps the trace, of one rank of each class. What is measured is the first
/// step.
///
/// # Errors
/// Where the plan hangs.
pub fn trace(plan: &Plan, steps: u64) -> Result<Simulation, NullDeviceError> {
    measure(plan, Run { trace: true, detail: Detail::Actions, ..Run::of(steps.max(1)) })
}

/// The settings of an execution.
#[derive(Clone, Copy, Debug)]
struct Run {
    steps: u64,
    /// Whether any number of contents may be under way, whatever the channels say.
    unlimited: bool,
    every_rank: bool,
    detail: Detail,
    trace: bool,
}

impl Run {
    fn of(steps: u64) -> Self {
        let detail = Detail::Legs;
        Self { steps, unlimited: false, every_rank: false, detail, trace: false }
    }
}

/// The detail in which streams that are alone on their rank are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detail {
    /// Everything between two meetings at once.
    Legs,
    /// Action by action, through the state machine.
    Actions,
}

fn run(plan: &Plan, run: Run) -> Result<(Classes, Outcome), NullDeviceError> {
    let exchanges = Exchanges::new(plan);
    let classes = match run.every_rank {
        true => Classes::one_per_rank(plan.ranks.len()),
        false => Classes::coarsest_partition(plan, &exchanges),
    };
    let outcome = Engine::new(plan, &classes, &exchanges, run).run()?;
    Ok((classes, outcome))
}

fn measure(plan: &Plan, how: Run) -> Result<Simulation, NullDeviceError> {
    let Some(high_water) = order::follow_programs(plan, how.steps) else {
        execute(plan, how.steps)?;
        let waits = vec!["an actor may not act in its turn".into()];
        return Err(NullDeviceError::Hang { waits });
    };
    match run(plan, how) {
        Ok((classes, outcome)) => Ok(report::report_outcome(plan, &classes, outcome, &high_water)),
        Err(hang) => {
            execute(plan, how.steps)?;
            Err(hang)
        }
    }
}

/// Gives every channel the slots that the plan can use: as many contents as are under way at once where nothing holds
/// senders back, though no more than one beyond the number of stages (of their chunks), unless less would hang.
///
/// # Errors
/// Where the plan hangs even with endless channels.
pub fn assign_channel_slots(plan: &mut Plan) -> Result<(), NullDeviceError> {
    if plan.channels.is_empty() {
        return Ok(());
    }
    let most = run(plan, Run { unlimited: true, ..Run::of(2) })?.1.under_way;
    let cap = (plan.stages * plan.options.schedule.chunks_per_stage()) as u32 + 1;
    for (channel, &under_way) in plan.channels.iter_mut().zip(&most) {
        let least = if channel.rate == Rate::Step { 1 } else { 2 };
        channel.slots = under_way.min(cap).max(least);
    }
    if run(plan, Run::of(2)).is_err() {
        for (channel, &under_way) in plan.channels.iter_mut().zip(&most) {
            channel.slots = channel.slots.max(under_way);
        }
    }
    Ok(())
}
