//! The actors of a block, and the times at which its first stream would come to each.

use crate::lower::RunAhead;
use crate::lower::tasks::task_graph::{Task, TaskGraph};

/// The actors of one block of a program, in order, from which the waits between its two streams follow.
pub(in crate::lower) struct BlockActors<'a> {
    /// The actors' tasks.
    pub tasks: Vec<&'a Task>,
    /// The graph that the tasks are of.
    pub graph: &'a TaskGraph,
    /// How far the streams may run ahead of each other.
    pub ahead: RunAhead,
}

/// The times at which computing would come to each place of a block if it waited for nothing.
pub(in crate::lower) struct BlockClock {
    /// The time at which each place begins.
    pub begins: Vec<f64>,
    /// The places of the first stream.
    computing: Vec<usize>,
}

impl BlockClock {
    /// Makes the clock of a block.
    pub(in crate::lower) fn new(block: &BlockActors<'_>) -> Self {
        let mut now = 0.0;
        let (mut begins, mut computing) = (Vec::new(), Vec::new());
        for (place, task) in block.tasks.iter().enumerate() {
            begins.push(now);
            if task.background.is_none() {
                computing.push(place);
                now += task.seconds + task.expected;
            }
        }
        Self { begins, computing }
    }

    /// Returns the last place of the first stream before `place` that begins no later than a time.
    pub(in crate::lower) fn last_by(&self, time: f64, place: usize) -> Option<usize> {
        let until = self.computing.partition_point(|&at| at < place && self.begins[at] <= time);
        self.computing[..until].last().copied()
    }

    /// Returns the last place of the first stream before `place` that has ended by a time.
    pub(in crate::lower) fn ended_by(&self, time: f64, place: usize) -> Option<usize> {
        let begun = self.computing.partition_point(|&at| at < place && self.begins[at] <= time);
        self.computing[..begun.saturating_sub(1)].last().copied()
    }

    /// Returns the first place of the first stream behind `place` that begins no sooner than a time.
    pub(in crate::lower) fn first_from(&self, time: f64, place: usize) -> Option<usize> {
        let from = self.computing.partition_point(|&at| at <= place || self.begins[at] < time);
        self.computing.get(from).copied()
    }
}
