//! The null device, which executes a plan on all ranks in modelled time, with the state machine that the runtime uses too.
//!
//! It finds the seconds of a step, the time for which pipeline stages wait, and plans that would hang. Kernels take the seconds of their actors. A
//! collective begins when the last rank of its group has come, and takes the seconds of the cost model. A message arrives after the seconds of the
//! cost model, and does not hold up its sender. Messages to one rank over the same link arrive one after the other (`inbound`).
//!
//! Ranks that behave alike are executed once (`classes`). On a rank with one stream, only the order decides which actor may act. So the state machine
//! runs once for each program (`order`), and the clock goes from one meeting with another class to the next (`legs`). If a rank has two streams, it
//! is known beforehand for what each waits on the other. So blocks are cut at these points too, and no state machine runs with the clock (`pace`).
//! The time to simulate grows with classes and meetings, not with ranks. [`simulate_every_rank`] executes each rank and each action, and tests check
//! that both give the same figures.
//!
//! If collectives of both streams run at once, each is given the whole bandwidth. Those of tensor parallelism go inside nodes, and gradients mostly
//! between nodes. If both use one level, the prediction is too optimistic.
//!
//! Start reading with [`simulate`], then `engine`.

use graphc_ir::enter_span;
use graphc_plan::{Plan, Rate};

mod channels;
mod classes;
mod engine;
mod exchanges;
mod inbound;
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
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NullDeviceError {
    /// No stream can go on.
    #[error("the plan hangs:\n  {}", .waits.join("\n  "))]
    Hang {
        /// The waits, one line for each stream that cannot go on.
        waits: Vec<String>,
    },
}

graphc_ir::readable_debug!(NullDeviceError);

/// Executes one step. Indices of the plan must be in range: [`crate::check::verify_plan`] checks that for plans from files.
///
/// # Errors
/// Returns an error if the plan hangs.
pub fn simulate(plan: &Plan) -> Result<Simulation, NullDeviceError> {
    let _span = enter_span!("simulate");
    measure(plan, Run::of(1))
}

/// Returns the seconds of one step of a plan that is known to run. They are those of [`simulate`], found in time that does not grow with the actions
/// of ranks between meetings.
///
/// # Errors
/// Returns an error if the plan hangs.
pub fn step_seconds(plan: &Plan) -> Result<f64, NullDeviceError> {
    run(plan, Run::of(1)).map(|(_, outcome)| outcome.step_seconds)
}

/// Simulates every rank and every action by itself. The figures are those of [`simulate`] up to rounding, in time that grows with the number of
/// ranks.
///
/// # Errors
/// Returns an error if the plan hangs.
pub fn simulate_every_rank(plan: &Plan) -> Result<Simulation, NullDeviceError> {
    measure(plan, Run { every_rank: true, detail: Detail::Actions, ..Run::of(1) })
}

/// Executes `steps` steps, only to find out whether the plan hangs.
///
/// # Errors
/// Returns an error if the plan hangs.
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

/// The most ranks of a plan that hangs whose waits are reported one by one. With more, one rank of each class is reported.
const MOST_NAMED: usize = 64;

/// Executes `steps` steps (at least one) and keeps the trace, of one rank of each class. The measurements are those of the first step.
///
/// # Errors
/// Returns an error if the plan hangs.
pub fn trace(plan: &Plan, steps: u64) -> Result<Simulation, NullDeviceError> {
    measure(plan, Run { trace: true, detail: Detail::Actions, ..Run::of(steps.max(1)) })
}

/// The settings of an execution.
#[derive(Clone, Copy, Debug)]
struct Run {
    steps: u64,
    /// Whether any number of contents may be under way, instead of the number of the channels' slots.
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
    /// Leg by leg: everything between two meetings at once.
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

/// Gives every channel the slots that the plan can use: as many as there are contents under way at once if nothing holds senders back. It gives no
/// more than one beyond the number of stages (of their chunks), unless the plan would hang with that.
///
/// # Errors
/// Returns an error if the plan hangs even with unlimited channels.
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
