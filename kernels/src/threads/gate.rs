//! The gate of a task, which counts the helpers that entered while it was open.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::explore::point;

/// One word: the task's number, whether it is open, and how many are inside.
#[derive(Debug, Default)]
pub(super) struct TaskGate {
    word: AtomicU64,
}

/// Tasks are counted above these bits, which count who is inside.
const NUMBER: u32 = 17;
const OPEN: u64 = 1 << 16;
const INSIDE: u64 = OPEN - 1;

impl TaskGate {
    /// The number in place of a task's when there will be no further.
    pub(super) const ENDED: u64 = u64::MAX >> NUMBER;

    /// The number of the last task.
    pub(super) fn last_task(&self) -> u64 {
        point();
        self.word.load(Ordering::Relaxed) >> NUMBER
    }

    /// Opens for the next task; what was written before is seen by who enters.
    pub(super) fn open(&self) {
        let next = (self.word.load(Ordering::Relaxed) >> NUMBER) + 1;
        self.word.store((next << NUMBER) | OPEN, Ordering::Release);
    }

    /// Enters, if this task is open still.
    pub(super) fn enter(&self, task: u64) -> bool {
        point();
        let one_more = |word: u64| (word >> NUMBER == task && word & OPEN != 0).then_some(word + 1);
        self.word.fetch_update(Ordering::Acquire, Ordering::Relaxed, one_more).is_ok()
    }

    /// Leaves; what was written inside is seen by who finds it empty.
    pub(super) fn leave(&self) {
        point();
        self.word.fetch_sub(1, Ordering::Release);
    }

    /// Closes the gate: nobody enters any more.
    pub(super) fn shut(&self) {
        self.word.fetch_and(!OPEN, Ordering::Relaxed);
    }

    /// Whether all who entered have left.
    pub(super) fn is_empty(&self) -> bool {
        point();
        self.word.load(Ordering::Acquire) & INSIDE == 0
    }

    /// Ends the gate: there is no further task.
    pub(super) fn end(&self) {
        point();
        self.word.store(Self::ENDED << NUMBER, Ordering::Relaxed);
    }
}
