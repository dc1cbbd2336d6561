//! The queues of one rank of a group, made when they are first used, and messages with their headers.

use std::sync::Arc;

use super::error::DistError;
use super::header::{Call, HEADER};
use crate::error::RuntimeError;
use crate::transport::{Receiver, Sender, Transport, TransportError};

/// Bytes of a segment: large messages go in parts of this size, which stay in a core's second-level cache between the one
/// that writes and the one that reads.
pub(super) const SEGMENT: usize = 256 << 10;
/// Messages that a queue holds. Collectives rely on at least two: a rank sends the next segment before it reads this one.
pub(super) const SLOTS: usize = 4;

/// Who is in a group, and its place among the job's tags.
#[derive(Clone)]
pub(super) struct Members {
    pub(super) transport: Arc<dyn Transport>,
    /// Ranks in the world, by rank in the group.
    pub(super) ranks: Vec<u32>,
    /// This rank's index.
    pub(super) me: usize,
    /// The first of the group's tags.
    pub(super) tag: u32,
}

/// How many tags a group has: point to point, and two lanes for collectives.
pub(super) const TAGS: u32 = 3;

/// A group's queues between a pair of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Point to point.
    Pair,
    /// Collectives.
    First,
    /// The second half of collectives that have two: so it can overtake the first.
    Second,
}

impl Members {
    pub(super) fn rank(&self) -> u32 {
        self.ranks[self.me]
    }

    pub(super) fn len(&self) -> usize {
        self.ranks.len()
    }

    pub(super) fn sender(
        &self,
        lane: Lane,
        peer: usize,
    ) -> Result<Box<dyn Sender>, TransportError> {
        self.transport.sender(self.tag + lane as u32, self.ranks[peer], SLOTS)
    }

    pub(super) fn receiver(
        &self,
        lane: Lane,
        peer: usize,
    ) -> Result<Box<dyn Receiver>, TransportError> {
        self.transport.receiver(self.tag + lane as u32, self.ranks[peer], SLOTS)
    }

    /// The error of an operation, from that of a queue.
    pub(super) fn fail(&self, op: &str, peer: usize, source: TransportError) -> DistError {
        let (op, peer) = (op.to_owned(), self.ranks[peer]);
        if source == TransportError::Ended
            && let Some(reason) = self.transport.ended()
        {
            return DistError::Ended { op, reason };
        }
        DistError::Transport { op, peer, source }
    }

    /// The error of two ranks that do not do the same. The job ends, so that nobody waits for what does not come.
    pub(super) fn mismatch(&self, peer: usize, (mine, theirs): (String, String)) -> DistError {
        let (rank, peer) = (self.rank(), self.ranks[peer]);
        let error = DistError::Mismatch { rank, mine, peer, theirs };
        self.transport.end(RuntimeError::Program { reason: error.to_string() });
        error
    }
}

/// Sends a part of a message; with its header, where it is the first of an operation.
pub(super) fn send(
    sender: &mut dyn Sender,
    header: Option<&[u8; HEADER]>,
    part: &[u8],
) -> Result<(), TransportError> {
    let head = header.map_or(&[][..], |header| header);
    let fill = &mut |message: &mut [u8]| {
        let (first, rest) = message.split_at_mut(head.len());
        first.copy_from_slice(head);
        rest.copy_from_slice(part);
    };
    sender.send(head.len() + part.len(), fill).map(|_| ())
}

/// The range of segment `index` of `bytes` bytes.
pub(super) fn segment(bytes: usize, index: usize) -> std::ops::Range<usize> {
    let start = (index * SEGMENT).min(bytes);
    start..(start + SEGMENT).min(bytes)
}

/// How many segments they are: one at least, for the header.
pub(super) fn segments(bytes: usize) -> usize {
    bytes.div_ceil(SEGMENT).max(1)
}

/// The queues of collectives.
pub(super) struct Ends {
    pub(super) members: Members,
    senders: [Vec<Option<Box<dyn Sender>>>; 2],
    receivers: [Vec<Option<Box<dyn Receiver>>>; 2],
}

impl Ends {
    pub(super) fn new(members: Members) -> Self {
        let n = members.len();
        let senders = [0, 1].map(|_| (0..n).map(|_| None).collect());
        let receivers = [0, 1].map(|_| (0..n).map(|_| None).collect());
        Self { members, senders, receivers }
    }

    /// Sends a part; with a header where it is the first.
    pub(super) fn send(
        &mut self,
        call: &Call,
        (lane, peer): (Lane, usize),
        header: Option<usize>,
        part: &[u8],
    ) -> Result<(), DistError> {
        let members = &self.members;
        let fail = |error| members.fail(call.op.name(), peer, error);
        let slot = &mut self.senders[usize::from(lane == Lane::Second)][peer];
        let sender = match slot {
            Some(sender) => sender,
            None => slot.insert(members.sender(lane, peer).map_err(fail)?),
        };
        let header = header.map(|bytes| call.header(bytes));
        send(sender.as_mut(), header.as_ref(), part).map_err(fail)
    }

    /// Lets `read` read the next message.
    pub(super) fn receive(
        &mut self,
        call: &Call,
        (lane, peer): (Lane, usize),
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DistError> {
        let members = &self.members;
        let fail = |error| members.fail(call.op.name(), peer, error);
        let slot = &mut self.receivers[usize::from(lane == Lane::Second)][peer];
        let receiver = match slot {
            Some(receiver) => receiver,
            None => slot.insert(members.receiver(lane, peer).map_err(fail)?),
        };
        receiver.receive(read).map(|_| ()).map_err(fail)
    }

    /// Lets `read` read the first message of an operation; returns how many bytes the peer sends in all.
    pub(super) fn receive_first(
        &mut self,
        call: &Call,
        peer: usize,
        expected: Option<usize>,
        read: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<usize, DistError> {
        let mut accepted = Ok(0);
        self.receive(call, (Lane::First, peer), &mut |message| {
            accepted = call.accept(message, expected);
            if let Ok(bytes) = accepted {
                read(bytes, &message[HEADER..]);
            }
        })?;
        accepted.map_err(|difference| self.members.mismatch(peer, difference))
    }
}
