//! Steps after the first, replayed: where a device records launches, a run of actions that are launches alone is recorded once and
//! from then on begun by one call.
//!
//! A recording holds addresses, and registers with several slots change theirs from step to step: there is one recording for each
//! place of a step in the period after which all slots come again. The first step is never recorded, as things are made in it
//! that stay, communicators among them. A recording is of all streams of a worker: the first has begun it, the others wait for an event
//! of the first where it begins, and the first waits for all where it ends. A recording copies to the host what the step that was recorded
//! fetched: when steps are asked for other outputs, the next one is a first step again.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::actor::Work;
use crate::device::{Recording, lcm};

/// Actions that are worth a recording at least.
const WORTHWHILE: usize = 4;
/// Recordings of one run of actions at most: where the period is longer nothing is recorded.
const MOST: u64 = 8;

/// What of a step is replayed.
#[derive(Default)]
pub(crate) struct Replay {
    /// Runs of actions that are launches alone, by their places in the step's order.
    runs: Vec<Range<usize>>,
    /// Steps after which all registers' slots come again.
    period: u64,
    /// Which outputs the recordings fetch.
    fetched: Arc<[bool]>,
    /// The first step that fetched these.
    first: u64,
    /// By the run and the step's place in the period.
    recordings: HashMap<(usize, u64), Recording>,
}

impl Replay {
    /// For a worker's actions, on streams that record.
    pub(crate) fn new(actors: &[Option<Work>], order: &[(u32, u32)], microbatches: u64) -> Self {
        let works = || order.iter().map(|&(actor, _)| actors[actor as usize].as_ref());
        let periods = works().flatten().map(|work| work.period(microbatches));
        let period = periods.fold(1, lcm);
        if period > MOST {
            return Self::default();
        }
        let launches = works().map(|work| work.is_some_and(Work::is_launched));
        let runs = runs(launches).filter(|run| run.len() >= WORTHWHILE).collect();
        Self { runs, period, ..Self::default() }
    }

    /// Forgets what was recorded where a step fetches other outputs; all steps before it have ended.
    pub(crate) fn begin_step(&mut self, step: u64, fetched: &Arc<[bool]>) {
        if step == 0 || self.fetched != *fetched {
            (self.first, self.fetched) = (step, Arc::clone(fetched));
            self.recordings.clear();
        }
    }

    /// The run that begins with this action of a step's order, where the step may be replayed.
    #[inline]
    pub(crate) fn run_from(&self, index: usize, step: u64) -> Option<(usize, Range<usize>)> {
        if step == self.first {
            return None;
        }
        let run = self.runs.binary_search_by_key(&index, |run| run.start).ok()?;
        Some((run, self.runs[run].clone()))
    }

    /// What was recorded of a run for this step.
    pub(crate) fn recording(&self, run: usize, step: u64) -> Option<&Recording> {
        self.recordings.get(&(run, step % self.period))
    }

    /// Keeps a recording.
    pub(crate) fn keep(&mut self, run: usize, step: u64, recording: Recording) {
        self.recordings.insert((run, step % self.period), recording);
    }
}

/// The runs of true values.
fn runs(values: impl Iterator<Item = bool>) -> impl Iterator<Item = Range<usize>> {
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

    #[test]
    fn runs_are_what_stands_side_by_side() {
        let values = [false, true, true, false, true];
        assert_eq!(runs(values.into_iter()).collect::<Vec<_>>(), [1..3, 4..5]);
        assert_eq!([lcm(1, 1), lcm(4, 6), lcm(3, 5), lcm(u64::MAX, 2)], [1, 12, 15, u64::MAX]);
    }
}
