//! Checks registers whose slots rotate: their number of slots does not divide that of microbatches.
//!
//! A content of such a register lies in another slot at each step, so two steps do not show all. The memory that it
//! shares with others is therefore looked at as a whole. Between the write of a content and its last read, nobody of
//! another memory may write into any of its slots. Then it does not matter in which slot the content lies.

use super::clock::Clock;

/// The last writer of a segment.
#[derive(Clone, Copy, Default)]
struct SegmentOwner {
    /// The memory that the writer is of.
    memory: u32,
    /// The number of the write with which it became that memory's.
    since: u64,
}

/// The last actions of a stream at a segment, each one past its number; 0: none in this step.
#[derive(Clone, Copy, Default)]
struct Last {
    memory: u32,
    /// The last access of this memory.
    own: u32,
    /// The last access of any other memory.
    other: u32,
}

impl Last {
    /// The last action of any memory but this.
    fn of_others(&self, memory: u32) -> u32 {
        if self.memory == memory { self.other } else { self.own }
    }

    fn note_touch(&mut self, memory: u32, action: u32) {
        if self.memory != memory {
            *self = Self { memory, own: 0, other: self.own };
        }
        self.own = action + 1;
    }
}

/// The last accesses of a segment, by stream.
#[derive(Clone, Copy, Default)]
struct Visits {
    written: [Last; 2],
    read: [Last; 2],
}

/// Segments of an arena in which slots rotate, by the memory that they are of.
pub(super) struct Fences {
    owners: Vec<SegmentOwner>,
    /// The last accesses of each segment by two streams; empty if there is one.
    visits: Vec<Visits>,
}

impl Fences {
    /// Fences of so many segments.
    pub(super) fn new(segments: usize, two_streams: bool) -> Self {
        let visits = if two_streams { segments } else { 0 };
        Self {
            owners: vec![SegmentOwner::default(); segments],
            visits: vec![Visits::default(); visits],
        }
    }

    /// Begins a step: all streams have ended the step before.
    pub(super) fn begin_step(&mut self) {
        self.visits.fill(Visits::default());
    }

    /// A memory is written, the write having this number.
    pub(super) fn note_write(&mut self, (begin, end): (usize, usize), memory: u32, number: u64) {
        for owner in &mut self.owners[begin..end] {
            if owner.memory != memory {
                *owner = SegmentOwner { memory, since: number };
            }
        }
    }

    /// Whether nobody of another memory has written since the write of this number.
    pub(super) fn keeps_write(
        &self,
        (begin, end): (usize, usize),
        memory: u32,
        number: u64,
    ) -> bool {
        let kept = |owner: &SegmentOwner| owner.memory == memory && owner.since <= number;
        self.owners[begin..end].iter().all(kept)
    }

    /// Notes that a memory is touched; whether all that the other stream does there with other memories has ended.
    pub(super) fn note_touch(
        &mut self,
        (begin, end): (usize, usize),
        memory: u32,
        Clock { stream, action, ended }: Clock,
        writes: bool,
    ) -> bool {
        let other = 1 - stream;
        let mut safe = true;
        for visits in self.visits.get_mut(begin..end).into_iter().flatten() {
            safe &= visits.written[other].of_others(memory) <= ended;
            safe &= !writes || visits.read[other].of_others(memory) <= ended;
            let list = if writes { &mut visits.written } else { &mut visits.read };
            list[stream].note_touch(memory, action);
        }
        safe
    }
}
