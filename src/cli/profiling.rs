//! `--profile`: how long each actor takes, measured while a command runs.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use graphc::profile::{Part, Profile, Schedule, Times};
use graphc_ir::mesh::DeviceKind;
use graphc_ir::plan::Plan;
use graphc_runtime::Session;

use super::args::RuntimeArgs;
use super::ranks::Ranks;

/// What of a training is measured.
pub struct Profiling {
    path: PathBuf,
    schedule: Schedule,
    /// The number of the run's first step.
    first: u64,
    /// What whole steps took.
    whole: Vec<Duration>,
}

impl Profiling {
    /// For a run of these steps.
    pub fn of(path: Option<&Path>, steps: &Range<u64>) -> Result<Option<Self>> {
        let Some(path) = path.map(Path::to_path_buf) else { return Ok(None) };
        let schedule = Schedule::of(steps.end.saturating_sub(steps.start))?;
        Ok(Some(Self { path, schedule, first: steps.start, whole: Vec::new() }))
    }

    /// What is measured of a step.
    pub fn part(&self, step: u64) -> Part {
        self.schedule.part(step - self.first)
    }

    /// Takes what a step took into the account. Whether it was the last that is measured.
    pub fn measured(&mut self, step: u64, took: Duration) -> bool {
        if self.part(step) == Part::Whole {
            self.whole.push(took);
        }
        step - self.first + 1 == self.schedule.steps()
    }

    /// Writes what all ranks have measured.
    pub fn write(
        &mut self,
        session: &mut Session,
        ranks: &Ranks,
        (plan, kind): (&Plan, DeviceKind),
    ) -> Result<()> {
        let times = Times::of(session, std::mem::take(&mut self.whole))?;
        write(&self.path, times, ranks, (plan, kind))
    }
}

/// Writes what the ranks have measured of a plan, on devices of a kind.
pub fn write(
    path: &Path,
    times: Times,
    ranks: &Ranks,
    (plan, kind): (&Plan, DeviceKind),
) -> Result<()> {
    let all = ranks.bring_together(times)?;
    if ranks.leads() {
        Profile::of(plan, (kind, ranks.on_this_machine(plan)), &all).write(path)?;
    }
    Ok(())
}

/// What a command's ranks compute on.
pub fn device_kind(args: &RuntimeArgs, plan: &Plan) -> DeviceKind {
    args.device.map_or(plan.cluster.device.kind, Into::into)
}
