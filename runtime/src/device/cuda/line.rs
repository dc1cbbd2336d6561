//! One direction from one card to another: a communicator of the two, and staging memory.
//!
//! The sender has a stream for it and a ring of slots. So it goes on with what comes next, and waits, on the card, only where the
//! whole ring is under way. The receiver receives on the stream of what reads the content, at its place in the plan's order. A
//! receive that stood ready from the beginning of a recording could take a place in the card's queues. Its sender might wait for
//! something that needs this place.
//!
//! Streams and lines are joined again, on the card, before launches are recorded, where a recording ends, and where a step ends:
//! what a recording waits for lies inside of it.

use graphc_ir::types::DType;

use super::driver::{CardBuffer, Queue, Trouble};
use super::ended::Ended;
use super::mark::Mark;
use super::nccl::{Comm, Id, NcclOperation};
use super::stream::{CardStream, wait_until_idle};
use crate::error::Cause;

/// The end that sends.
pub(crate) struct OutgoingLine {
    comm: Comm,
    queue: Queue,
    staging: CardBuffer,
    bytes: usize,
    /// The marks of each slot: when the rank's stream last filled it, and when it was last sent.
    slots: Vec<[Mark; 2]>,
    /// Contents that went through.
    count: u64,
    /// The value of `count` when the rank's stream last waited for all of them.
    since: u64,
    ended: Ended,
}

/// The end that receives.
pub(crate) struct IncomingLine {
    comm: Comm,
    staging: CardBuffer,
}

impl OutgoingLine {
    /// Joins the peer, which does the same as [`IncomingLine`]. A content has so many bytes at most.
    pub(crate) fn join(
        stream: &CardStream,
        id: Id,
        (bytes, slots): (usize, usize),
    ) -> Result<Self, Cause> {
        let context = stream.queue.context();
        let queue = Queue::new(context)?;
        let comm = Comm::join(&queue, id, (2, 0), stream.ended())?;
        let bytes = bytes.next_multiple_of(256);
        let staging = CardBuffer::new(context, bytes * slots)?;
        let marks = (0..slots).map(|_| Ok([Mark::new(context)?, Mark::new(context)?]));
        let slots = marks.collect::<Result<_, Trouble>>()?;
        let ended = stream.ended();
        let line = Self { comm, queue, staging, bytes, slots, count: 0, since: 0, ended };
        let from = line.staging.address(0, 1);
        line.queue.make_current()?;
        line.queue.clear(from, 1)?;
        line.comm.run_operations(
            &line.queue,
            &[(NcclOperation::Send { from, count: 1, peer: 1 }, DType::U8)],
        )?;
        wait_until_idle(&line.queue, &line.ended)?;
        Ok(line)
    }

    /// Sends what `pack` has the stream write to the address that it is given.
    pub(crate) fn send(
        &mut self,
        stream: &mut CardStream,
        (count, dtype): (usize, DType),
        pack: impl FnOnce(&mut CardStream, u64) -> Result<(), Cause>,
    ) -> Result<(), Cause> {
        let slot = (self.count % self.slots.len() as u64) as usize;
        let [filled, sent] = &self.slots[slot];
        if self.count - self.since >= self.slots.len() as u64 {
            stream.queue.wait_event(sent.raw())?;
        }
        let from = self.staging.address(slot * self.bytes, self.bytes);
        pack(stream, from)?;
        stream.queue.record_event(filled.raw())?;
        self.queue.wait_event(filled.raw())?;
        let operation = NcclOperation::Send { from, count, peer: 1 };
        self.comm.run_operations(&self.queue, &[(operation, dtype)])?;
        self.queue.record_event(sent.raw())?;
        self.count += 1;
        Ok(())
    }

    /// Has the stream wait for all that is under way.
    pub(crate) fn fence_stream(&mut self, stream: &CardStream) -> Result<(), Trouble> {
        if self.count > self.since {
            let last = ((self.count - 1) % self.slots.len() as u64) as usize;
            stream.queue.wait_event(self.slots[last][1].raw())?;
            self.since = self.count;
        }
        Ok(())
    }

    /// Ends what is under way, with an error of the job.
    pub(crate) fn abort(&mut self) {
        self.comm.abort();
    }
}

impl IncomingLine {
    /// Joins the peer, which does the same as [`OutgoingLine`]. A content has so many bytes at most.
    pub(crate) fn join(stream: &CardStream, id: Id, bytes: usize) -> Result<Self, Cause> {
        let comm = Comm::join(&stream.queue, id, (2, 1), stream.ended())?;
        let staging = CardBuffer::new(stream.queue.context(), bytes)?;
        let line = Self { comm, staging };
        let to = line.staging.address(0, 1);
        let operation = NcclOperation::Receive { to, count: 1, peer: 0 };
        line.comm.run_operations(&stream.queue, &[(operation, DType::U8)])?;
        wait_until_idle(&stream.queue, &stream.ended())?;
        Ok(line)
    }

    /// Receives a content; `unpack` has the stream read it at the address that it is given.
    pub(crate) fn receive(
        &mut self,
        stream: &mut CardStream,
        (count, dtype): (usize, DType),
        unpack: impl FnOnce(&mut CardStream, u64) -> Result<(), Cause>,
    ) -> Result<(), Cause> {
        let to = self.staging.address(0, count * dtype.size());
        let operation = NcclOperation::Receive { to, count, peer: 0 };
        self.comm.run_operations(&stream.queue, &[(operation, dtype)])?;
        unpack(stream, to)
    }

    /// Ends what is under way, with an error of the job.
    pub(crate) fn abort(&mut self) {
        self.comm.abort();
    }
}

impl Drop for OutgoingLine {
    /// Waits for what is under way, which reads the staging memory.
    fn drop(&mut self) {
        self.queue.come_to_rest(&self.ended, || self.comm.abort());
    }
}
