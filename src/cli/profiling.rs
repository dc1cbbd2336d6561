//! `--profile`: how long each actor takes, measured while a command runs.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use graphc::profile::{MeasureSchedule, MeasuredPart, Profile, Times};
use graphc_ir::mesh::DeviceKind;
use graphc_plan::Plan;
use graphc_runtime::Session;

use super::args::{RuntimeArgs, TrainArgs};
use super::ranks::Ranks;

/// The measurements of a training.
pub(super) struct Profiling<'a> {
    path: &'a Path,
    plan: &'a Plan,
    /// The kind of device that the plan's ranks compute on.
    kind: DeviceKind,
    schedule: MeasureSchedule,
    /// The number of the run's first step.
    first: u64,
    /// The times of whole steps.
    whole: Vec<Duration>,
}

impl<'a> Profiling<'a> {
    /// Prepares the measurements of a run of these steps, if the command line asks for them.
    pub(super) fn from_args(
        args: &'a TrainArgs,
        plan: &'a Plan,
        steps: &Range<u64>,
    ) -> Result<Option<Self>> {
        let Some(path) = args.profile.as_deref() else { return Ok(None) };
        let schedule = MeasureSchedule::for_steps(steps.end.saturating_sub(steps.start))?;
        let (kind, first) = (device_kind(&args.runtime, plan), steps.start);
        Ok(Some(Self { path, plan, kind, schedule, first, whole: Vec::new() }))
    }

    /// Returns what is measured of a step.
    pub(super) fn part_of_step(&self, step: u64) -> MeasuredPart {
        self.schedule.part_of_step(step - self.first)
    }

    /// Takes what a step took into the account. Whether it was the last that is measured.
    pub(super) fn add_step(&mut self, step: u64, took: Duration) -> bool {
        if self.part_of_step(step) == MeasuredPart::Whole {
            self.whole.push(took);
        }
        step - self.first + 1 == self.schedule.steps()
    }

    /// Writes what all ranks have measured.
    pub(super) fn write(&mut self, session: &mut Session, ranks: &Ranks) -> Result<()> {
        let times = Times::from_session(session, std::mem::take(&mut self.whole))?;
        write_times(self.path, times, ranks, (self.plan, self.kind))
    }

    /// Whether all that is measured was measured before this step.
    pub(super) fn is_over(&self, step: u64) -> bool {
        self.part_of_step(step) == MeasuredPart::Over
    }
}

/// Writes what the ranks have measured of a plan, on devices of a kind.
pub(super) fn write_times(
    path: &Path,
    times: Times,
    ranks: &Ranks,
    (plan, kind): (&Plan, DeviceKind),
) -> Result<()> {
    let all = ranks.bring_together(times)?;
    if ranks.leads() {
        Profile::from_times(plan, (kind, ranks.on_this_machine(plan)), &all).write(path)?;
    }
    Ok(())
}

/// Returns the kind of device that a command's ranks compute on.
pub(super) fn device_kind(args: &RuntimeArgs, plan: &Plan) -> DeviceKind {
    args.device.map_or(plan.cluster.device.kind, Into::into)
}
