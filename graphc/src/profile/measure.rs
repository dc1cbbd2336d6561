//! Measuring a plan that graphc itself executes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use graphc_ir::mesh::DeviceKind;
use graphc_ir::types::DType;
use graphc_plan::{Action, Actor, Plan, Program};
use graphc_runtime::{ActorStatistics, HostTensor, JobEnd, RuntimeError, Session};
use serde::{Deserialize, Serialize};

use super::{ActorProfile, Profile, ProfileError, ProgramProfile, VERSION};
use crate::calibrate::{machine_memory, memory_of_cards};
use crate::median::median;

/// Steps that warm up: in the first kernels are loaded and memory is touched, in the others launches are recorded.
const WARM_UP: u64 = 3;
/// Steps that are timed as a whole at most.
const WHOLE: u64 = 20;
/// Steps that are taken apart.
const APART: u64 = 5;

/// The choice of the steps of a run that are measured: after a warm-up some are timed as a whole, then some action by action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasureSchedule {
    whole: u64,
}

/// The part of a step that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasuredPart {
    /// Nothing: the run is warming up.
    WarmUp,
    /// The time of the whole step.
    Whole,
    /// The time of each of its actions.
    Apart,
    /// Nothing: all has been measured.
    Over,
}

impl MeasureSchedule {
    /// Plans the measurements of a run of so many steps.
    ///
    /// # Errors
    /// Returns an error if there are too few steps to measure.
    pub fn for_steps(steps: u64) -> Result<Self, ProfileError> {
        let least = WARM_UP + 1 + APART;
        match steps.checked_sub(least) {
            Some(more) => Ok(Self { whole: (1 + more).min(WHOLE) }),
            None => Err(ProfileError::Steps { steps, least }),
        }
    }

    /// Returns what is measured of a step, counted from the run's first.
    pub fn part_of_step(self, step: u64) -> MeasuredPart {
        match step {
            step if step < WARM_UP => MeasuredPart::WarmUp,
            step if step < WARM_UP + self.whole => MeasuredPart::Whole,
            step if step < self.steps() => MeasuredPart::Apart,
            _ => MeasuredPart::Over,
        }
    }

    /// Steps after which all is measured.
    pub fn steps(self) -> u64 {
        WARM_UP + self.whole + APART
    }
}

/// The times that one process has measured of its ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Times {
    /// Median seconds of a step.
    step: f64,
    ranks: Vec<RankTimes>,
}

/// A rank's launches.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RankTimes {
    rank: usize,
    launches: Vec<MeasuredLaunch>,
}

/// A launch, which does one actor or several, and its time.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct MeasuredLaunch {
    /// The actor at whose place it stands first, then those that it does besides.
    actors: Vec<usize>,
    /// Median seconds of an action.
    seconds: f64,
}

/// Measures a session whose step may be taken again and again with the same feeds. `meet` waits for the other processes, where there are
/// some.
///
/// # Errors
/// Returns an error if a rank has failed.
pub fn measure_session(
    session: &mut Session,
    feeds: &BTreeMap<String, HostTensor>,
    meet: impl Fn() -> Result<(), JobEnd>,
) -> Result<Times, RuntimeError> {
    let schedule = MeasureSchedule { whole: WHOLE };
    let mut whole = Vec::new();
    for step in 0..schedule.steps() {
        let part = schedule.part_of_step(step);
        meet()?;
        let begun = Instant::now();
        match part {
            MeasuredPart::Apart => session.step_apart(feeds.clone())?.wait()?,
            _ => session.step(feeds.clone())?.wait()?,
        };
        if part == MeasuredPart::Whole {
            whole.push(begun.elapsed());
        }
    }
    Times::from_session(session, whole)
}

impl Times {
    /// Takes the times of actions from a session whose steps were taken apart, and adds the times of whole steps.
    ///
    /// # Errors
    /// Returns an error if a rank has failed.
    pub fn from_session(session: &mut Session, whole: Vec<Duration>) -> Result<Self, RuntimeError> {
        let statistics = session.statistics()?;
        let ranks = session.ranks().map(|rank| rank as usize);
        let ranks =
            ranks.map(|rank| RankTimes::from_statistics(rank, &statistics.ranks[rank].actors));
        Ok(Self { step: median(whole.iter().map(Duration::as_secs_f64)), ranks: ranks.collect() })
    }
}

impl RankTimes {
    fn from_statistics(rank: usize, actors: &[ActorStatistics]) -> Self {
        let mut launches = Vec::new();
        for (index, actor) in actors.iter().enumerate().filter(|(_, a)| !a.apart.is_empty()) {
            let joined = |(_, other): &(usize, &ActorStatistics)| {
                other.joined.is_some_and(|launched| launched.index() == index)
            };
            let others = actors.iter().enumerate().filter(joined).map(|(other, _)| other);
            let actors = [index].into_iter().chain(others).collect();
            let seconds = median(actor.apart.iter().map(Duration::as_secs_f64));
            launches.push(MeasuredLaunch { actors, seconds });
        }
        Self { rank, launches }
    }
}

impl Profile {
    /// Joins the times that all processes have measured of a plan on devices of a kind, of whose ranks `here` share a machine. The time of
    /// an actor is the median of its program's ranks; that of communication is the least, which is that of the rank that came last.
    pub fn from_times(plan: &Plan, (kind, here): (DeviceKind, usize), times: &[Times]) -> Self {
        let programs = plan.programs.iter().enumerate();
        let programs = programs.map(|(index, program)| {
            let ranks = times.iter().flat_map(|times| &times.ranks);
            let own = ranks.filter(|times| plan.ranks[times.rank].program.index() == index);
            program_profile(plan, (index, program), own)
        });
        let (device, memory) = match kind {
            DeviceKind::Cpu => ("cpu".to_owned(), machine_memory() / here.max(1) as u64),
            DeviceKind::Cuda => (name_of_card(), memory_of_cards(here)),
        };
        Self {
            format: "graphc measured".to_owned(),
            version: VERSION,
            plan: plan.name.clone(),
            device,
            memory,
            engine: format!("graphc {}", env!("CARGO_PKG_VERSION")),
            ranks: plan.world_size,
            step_seconds: times.iter().map(|times| times.step).fold(0.0, f64::max),
            programs: programs.collect(),
        }
    }
}

fn name_of_card() -> String {
    let cards = graphc_runtime::cards::list_cards().unwrap_or_default();
    cards.first().map_or_else(|| "cuda".to_owned(), |card| card.name.clone())
}

/// The launches of one program, by what its ranks have measured.
fn program_profile<'a>(
    plan: &Plan,
    (index, program): (usize, &Program),
    ranks: impl Iterator<Item = &'a RankTimes>,
) -> ProgramProfile {
    let mut launches: BTreeMap<&[usize], Vec<f64>> = BTreeMap::new();
    for launch in ranks.flat_map(|rank| &rank.launches) {
        launches.entry(&launch.actors).or_default().push(launch.seconds);
    }
    let profile =
        |(actors, seconds): (&[usize], Vec<f64>)| actor_profile((plan, program), actors, &seconds);
    let mut actors: Vec<ActorProfile> = launches.into_iter().map(profile).collect();
    actors.sort_by_key(|profile| profile.actor);
    ProgramProfile { program: index, actors }
}

fn actor_profile(
    (plan, program): (&Plan, &Program),
    actors: &[usize],
    seconds: &[f64],
) -> ActorProfile {
    let actor = |index: usize| &program.actors[index];
    let flops = |index: usize| actor(index).flops;
    // Of equal ones the first.
    let first = actors.iter().copied().rev().max_by(|&a, &b| flops(a).total_cmp(&flops(b)));
    let first = first.expect("a launch does at least one actor");
    let (own, work) = (actor(first), ActorDetails::from_actor(plan, program, actor(first)));
    let least = || seconds.iter().copied().fold(f64::INFINITY, f64::min);
    let sum = |of: fn(&Actor) -> f64| actors.iter().map(|&index| of(actor(index))).sum();
    ActorProfile {
        actor: first,
        with: actors.iter().copied().filter(|&other| other != first).collect(),
        name: own.name.clone(),
        kind: kind_of(own).to_owned(),
        seconds: if is_communication(own) { least() } else { median(seconds.iter().copied()) },
        flops: sum(|actor| actor.flops),
        bytes: work.message.unwrap_or_else(|| sum(|actor| actor.bytes)),
        dtype: work.dtype,
        ranks: work.ranks,
    }
}

fn is_communication(actor: &Actor) -> bool {
    matches!(actor.action, Action::Collective { .. } | Action::Send { .. } | Action::Receive { .. })
}

/// The details of an actor's work that a profile records beside its time.
struct ActorDetails {
    dtype: Option<DType>,
    /// The bytes of a collective's message.
    message: Option<f64>,
    ranks: usize,
}

impl ActorDetails {
    fn from_actor(plan: &Plan, program: &Program, actor: &Actor) -> Self {
        let lists = [&actor.outputs, &actor.updates, &actor.inputs];
        let registers = lists.into_iter().find(|list| !list.is_empty());
        let registers = registers.into_iter().flatten();
        let registers: Vec<_> = registers.map(|id| &program.registers[id.index()]).collect();
        let layout = registers.first().map(|register| &plan.layouts[register.layout.index()]);
        let dtype = layout.map(|layout| layout.dtype);
        let Action::Collective { axis, .. } = actor.action else {
            return Self { dtype, message: None, ranks: 1 };
        };
        let bytes = registers.iter().map(|register| {
            let elements: usize = register.shape.iter().product();
            (elements * plan.layouts[register.layout.index()].dtype.size()) as f64
        });
        let ranks = layout.and_then(|layout| layout.hierarchy.get(axis)).copied().unwrap_or(1);
        Self { dtype, message: Some(bytes.sum()), ranks }
    }
}

/// The op of an actor, or what else it does, in the words of plans.
fn kind_of(actor: &Actor) -> &'static str {
    match &actor.action {
        Action::Compute { op, .. } => op.name(),
        Action::Fused(_) => "fused",
        Action::Collective { kind, .. } | Action::Local { kind } => kind.name(),
        Action::Send { .. } => "send",
        Action::Receive { .. } => "receive",
        Action::Accumulate => "accumulate",
        Action::Assign => "assign",
        Action::Feed { .. } => "feed",
        Action::Fetch { .. } => "fetch",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_runs_are_measured_as_far_as_they_go() {
        let parts = |steps: u64| -> Option<Vec<MeasuredPart>> {
            let schedule = MeasureSchedule::for_steps(steps).ok()?;
            Some((0..steps).map(|step| schedule.part_of_step(step)).collect())
        };
        let count = |parts: &[MeasuredPart], of: MeasuredPart| {
            parts.iter().filter(|part| **part == of).count()
        };
        let all =
            [MeasuredPart::WarmUp, MeasuredPart::Whole, MeasuredPart::Apart, MeasuredPart::Over];
        assert_eq!(parts(8), None);
        for (steps, counts) in [(9, [3, 1, 5, 0]), (12, [3, 4, 5, 0]), (100, [3, 20, 5, 72])] {
            let parts = parts(steps).expect("long enough");
            assert_eq!(all.map(|of| count(&parts, of)), counts, "{steps} steps");
            assert!(parts.is_sorted_by_key(|part| all.iter().position(|other| other == part)));
        }
    }
}
