//! The actions of a worker in a step that is taken apart (`apart`).

use std::time::Duration;

use super::apart::ActionStopwatches;
use super::run::Worker;
use super::step::StepState;
use crate::error::Cause;

impl Worker {
    /// Acts as in any step, with a stopwatch around the action.
    pub(super) fn act_timed(&mut self, index: usize, step: &StepState) -> Result<Duration, Cause> {
        if self.apart.watches.is_empty() {
            let lanes = (&self.lanes, &self.streams[..]);
            self.apart = ActionStopwatches::new(&self.actors, &self.order, lanes)?;
        }
        let lane = self.lanes.stream_of(index);
        if let Some(before) = index.checked_sub(1).map(|before| self.lanes.stream_of(before))
            && self.apart.in_turn
            && before != lane
        {
            let event = self.streams[before].record_event();
            self.streams[lane].wait_event(event);
        }
        self.wait_for_streams(index);
        if let Some(watch) = &mut self.apart.watches[index] {
            self.streams[lane].begin_stopwatch(watch)?;
        }
        let waited = self.launch_action(index, step)?;
        if let Some(watch) = &mut self.apart.watches[index] {
            self.streams[lane].end_stopwatch(watch)?;
        }
        Ok(waited)
    }

    /// Takes what the stopwatches of a step say into the account.
    pub(super) fn read_times(&mut self) -> Result<(), Cause> {
        for (watch, &(actor, _)) in self.apart.watches.iter().zip(&self.order) {
            if let Some(watch) = watch {
                self.report.apart[actor.index()].push(watch.elapsed()?);
            }
        }
        Ok(())
    }
}
