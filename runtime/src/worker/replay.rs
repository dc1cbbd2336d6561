//! Recordings of steps: where a device records launches, a run of actions that are launches alone is recorded once and from then
//! on begun by one call.
//!
//! If a rank shares its card with none, its whole step is such a run. Otherwise communication goes through the host and cuts the
//! step into several runs.
//!
//! A rank records in the second step that fetches a set of outputs. The first such step is never recorded, because it makes
//! things that stay: communicators, and memory of the host for what it fetches. A recording copies to the host what its step
//! fetched, so each set of outputs has recordings of its own; 4 sets are remembered.
//!
//! A recording holds addresses, and registers with several slots change theirs from step to step. So there is one recording for
//! each place of a step in the period after which all slots come again. What is fed goes through memory of the host that is
//! another one in every other step, if the period is then not too long; so the next content comes there while a step goes on. A
//! recording is of all streams of a worker. The first stream begins it, the others wait for an event of the first where it begins,
//! and the first waits for all where it ends.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use graphc_ir::ids::ActorId;

use super::actor::PreparedWork;
use crate::device::{DeviceRecording, least_common_multiple};

/// Actions that are worth a recording at least.
const WORTHWHILE: usize = 4;
/// Recordings of one run of actions for a set of outputs at most: where the period is longer nothing is recorded.
const MOST: u64 = 8;
/// Sets of outputs that have recordings at most: the one goes that was not asked for longest.
const MOST_SETS: usize = 4;

/// The parts of a step that are replayed.
#[derive(Default)]
pub(crate) struct Replay {
    /// Runs of actions that are launches alone, by their places in the step's order.
    runs: Vec<Range<usize>>,
    /// Steps after which all registers' slots come again.
    period: u64,
    /// The record of each set of outputs; the last is that of the step.
    sets: Vec<RecordingSet>,
}

/// The recordings of steps that fetched the same outputs.
struct RecordingSet {
    outputs: Arc<[bool]>,
    /// The first such step.
    first: u64,
    /// The recordings, by the run and the step's place in the period.
    recordings: HashMap<(usize, u64), DeviceRecording>,
}

impl Replay {
    /// Finds the runs among a worker's actions, on streams that record.
    pub(crate) fn new(
        actors: &[Option<PreparedWork>],
        order: &[(ActorId, u32)],
        microbatches: u64,
    ) -> Self {
        let works = || order.iter().map(|&(actor, _)| actors[actor.index()].as_ref());
        let periods = works().flatten().map(|work| work.slot_period(microbatches));
        let feeds = works().flatten().any(|work| matches!(work, PreparedWork::Feed(_)));
        let Some(period) = recording_period(periods.fold(1, least_common_multiple), feeds) else {
            return Self::default();
        };
        let launches = works().map(|work| work.is_some_and(PreparedWork::is_launched));
        let runs = true_runs(launches).filter(|run| run.len() >= WORTHWHILE).collect();
        Self { runs, period, sets: Vec::new() }
    }

    /// Whether a step and the next may find what they are fed in different memory of the host: where recordings of both are.
    pub(crate) fn may_alternate(&self) -> bool {
        self.runs.is_empty() || self.period.is_multiple_of(2)
    }

    /// Begins a step that fetches these outputs; all steps before it have ended.
    pub(crate) fn begin_step(&mut self, step: u64, outputs: &Arc<[bool]>) {
        let set = match self.sets.iter().position(|set| set.outputs == *outputs) {
            Some(known) => self.sets.remove(known),
            None => {
                let outputs = Arc::clone(outputs);
                RecordingSet { outputs, first: step, recordings: HashMap::new() }
            }
        };
        if self.sets.len() == MOST_SETS {
            self.sets.remove(0);
        }
        self.sets.push(set);
    }

    /// Returns the run that begins with this action of a step's order, where the step may be replayed.
    #[inline]
    pub(crate) fn run_from(&self, index: usize, step: u64) -> Option<(usize, Range<usize>)> {
        self.sets.last().filter(|set| set.first != step)?;
        let run = self.runs.binary_search_by_key(&index, |run| run.start).ok()?;
        Some((run, self.runs[run].clone()))
    }

    /// Finds the recording of a run for this step.
    pub(crate) fn find_recording(&self, run: usize, step: u64) -> Option<&DeviceRecording> {
        self.sets.last()?.recordings.get(&(run, step % self.period))
    }

    /// Keeps a recording.
    pub(crate) fn keep_recording(&mut self, run: usize, step: u64, recording: DeviceRecording) {
        if let Some(set) = self.sets.last_mut() {
            set.recordings.insert((run, step % self.period), recording);
        }
    }
}

/// Returns the period of recordings where slots come again after so many steps, an even one for what feeds, if that is not too
/// long; none where any is.
fn recording_period(slots: u64, feeds: bool) -> Option<u64> {
    let turns = if feeds { 2 } else { 1 };
    [least_common_multiple(slots, turns), slots].into_iter().find(|&period| period <= MOST)
}

/// Returns the runs of true values.
fn true_runs(values: impl Iterator<Item = bool>) -> impl Iterator<Item = Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (index, _) in values.enumerate().filter(|&(_, value)| value) {
        match runs.last_mut() {
            Some(run) if run.end == index => run.end += 1,
            _ => runs.push(index..index + 1),
        }
    }
    runs.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether steps that fetch these sets of outputs one after the other are launched one by one or not.
    fn replayed<const STEPS: usize>(steps: [usize; STEPS]) -> [bool; STEPS] {
        let whole = 0..WORTHWHILE;
        let mut replay = Replay { runs: vec![whole.clone()], period: 1, sets: Vec::new() };
        let mut next = 0;
        steps.map(|set| {
            let step = next;
            next += 1;
            replay.begin_step(step, &(0..=MOST_SETS).map(|output| output == set).collect());
            let run = replay.run_from(0, step);
            assert!(run.iter().all(|run| *run == (0, whole.clone())));
            run.is_some()
        })
    }

    #[test]
    fn only_the_first_step_of_a_set_of_outputs_is_not_replayed() {
        assert_eq!(replayed([0, 0, 1, 0, 1, 1]), [false, true, false, true, true, true]);
        assert_eq!(replayed([0, 1, 2, 3, 0, 4]), [false, false, false, false, true, false]);
        // The set goes that was not asked for longest, which is not the first.
        assert_eq!(
            replayed([0, 1, 2, 3, 0, 4, 0, 1]),
            [false, false, false, false, true, false, true, false]
        );
    }

    #[test]
    fn every_other_step_is_fed_by_other_memory_unless_recordings_are_too_many() {
        let found = [1, 2, 3, 4, 5, 6, 7, 8, 9].map(|slots| recording_period(slots, true));
        let right = [2, 2, 6, 4, 5, 6, 7, 8].map(Some);
        assert_eq!((&found[..8], found[8]), (&right[..], None));
        assert_eq!(
            [1, 3, 8, 9].map(|slots| recording_period(slots, false)),
            [Some(1), Some(3), Some(8), None]
        );
        let alternates = |period| {
            let whole = 0..WORTHWHILE;
            Replay { runs: vec![whole], period, sets: Vec::new() }.may_alternate()
        };
        assert!(alternates(6) && !alternates(7) && Replay::default().may_alternate());
    }

    #[test]
    fn runs_are_what_stands_side_by_side() {
        let values = [false, true, true, false, true];
        assert_eq!(true_runs(values.into_iter()).collect::<Vec<_>>(), [1..3, 4..5]);
        assert_eq!(
            [
                least_common_multiple(1, 1),
                least_common_multiple(4, 6),
                least_common_multiple(3, 5),
                least_common_multiple(u64::MAX, 2)
            ],
            [1, 12, 15, u64::MAX]
        );
    }
}
