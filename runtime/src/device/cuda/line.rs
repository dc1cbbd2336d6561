//! One direction from one card to another: a stream of its own, a communicator of the two, and a ring of staging memory. So a rank
//! that sends goes on with what comes next, and waits, on the card, only where the whole ring is under way.

use graphc_ir::types::DType;

use super::driver::{Buffer, Mark, Queue, Trouble};
use super::ended::Ended;
use super::nccl::{Comm, Id, Operation};
use super::stream::Stream;
use crate::error::Cause;

/// One end of a line.
pub(crate) struct Line {
    queue: Queue,
    comm: Comm,
    /// Which of the two ranks this is.
    own: usize,
    staging: Buffer,
    bytes: usize,
    /// Of each slot: when the rank's stream, and when the line's, has last been done with it.
    slots: Vec<[Mark; 2]>,
    /// Contents that went through.
    count: u64,
    ended: Ended,
}

impl Line {
    /// Joins the peer, which does the same; `own` is 0 for the one that sends. A content has so many bytes at most.
    pub(crate) fn join(
        stream: &Stream,
        own: usize,
        id: Id,
        (bytes, slots): (usize, usize),
    ) -> Result<Self, Cause> {
        let context = stream.queue.context();
        let queue = Queue::new(context)?;
        let comm = Comm::join(&queue, id, (2, own), stream.ended())?;
        let bytes = bytes.next_multiple_of(256);
        let staging = Buffer::new(context, bytes * slots)?;
        let marks = (0..slots).map(|_| Ok([Mark::new(context)?, Mark::new(context)?]));
        let slots = marks.collect::<Result<_, Trouble>>()?;
        Ok(Self { queue, comm, own, staging, bytes, slots, count: 0, ended: stream.ended() })
    }

    /// Sends what `pack` has the stream write to the address that it is given.
    pub(crate) fn send(
        &mut self,
        stream: &mut Stream,
        (count, dtype): (usize, DType),
        pack: impl FnOnce(&mut Stream, u64) -> Result<(), Cause>,
    ) -> Result<(), Cause> {
        let from = self.begin(stream, 0)?;
        pack(stream, from)?;
        let [ready, sent] = self.marks();
        stream.queue.record(ready)?;
        self.queue.wait(ready.raw())?;
        let operation = Operation::Send { from, count, peer: 1 - self.own };
        self.comm.run(&self.queue, &[(operation, dtype)])?;
        self.queue.record(sent)?;
        self.count += 1;
        Ok(())
    }

    /// Receives; `unpack` has the stream read it at the address that it is given.
    pub(crate) fn receive(
        &mut self,
        stream: &mut Stream,
        (count, dtype): (usize, DType),
        unpack: impl FnOnce(&mut Stream, u64) -> Result<(), Cause>,
    ) -> Result<(), Cause> {
        let to = self.begin(stream, 1)?;
        let [read, come] = self.marks();
        let operation = Operation::Receive { to, count, peer: 1 - self.own };
        self.comm.run(&self.queue, &[(operation, dtype)])?;
        self.queue.record(come)?;
        stream.queue.wait(come.raw())?;
        unpack(stream, to)?;
        stream.queue.record(read)?;
        self.count += 1;
        Ok(())
    }

    /// The address of the next slot. Whoever writes it, the rank's stream (0) or the line's (1), waits until the other is done with what
    /// it held before.
    fn begin(&self, stream: &Stream, writer: usize) -> Result<u64, Trouble> {
        let slot = self.slot();
        if self.count >= self.slots.len() as u64 {
            let other = &self.slots[slot][1 - writer];
            match writer {
                0 => stream.queue.wait(other.raw())?,
                _ => self.queue.wait(other.raw())?,
            }
        }
        Ok(self.staging.address(slot * self.bytes, self.bytes))
    }

    fn slot(&self) -> usize {
        (self.count % self.slots.len() as u64) as usize
    }

    /// The events of the slot: the rank's stream's and the line's.
    fn marks(&self) -> [&Mark; 2] {
        self.slots[self.slot()].each_ref()
    }
}

impl Drop for Line {
    /// Waits for what is under way, which reads and writes the staging memory.
    fn drop(&mut self) {
        self.queue.come_to_rest(&self.ended, || self.comm.abort());
    }
}
