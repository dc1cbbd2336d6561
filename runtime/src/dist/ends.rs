//! The queues of one rank of a group, made when they are first used, and messages with their headers.

use std::ops::Range;
use std::sync::Arc;

use super::error::DistError;
use super::header::{Call, HEADER};
use crate::error::RuntimeError;
use crate::transport::{Body, Receiver, Sender, Transport, TransportError};

/// Bytes of a segment: large messages go in parts of this size, which stay in a core's second-level cache between the one
/// that writes and the one that reads.
pub(super) const SEGMENT: usize = 128 << 10;
/// Messages of such sizes are lent: the receiver copies them out of the sender's own memory, once. Shorter ones are sooner
/// copied twice than waited for; of longer ones both copies go on at once, on two cores, which is faster than one.
pub(super) const LENT: Range<usize> = 16 << 10..4 << 20;
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

/// A part of a message, with the header of `call` where it is the first of an operation that sends so many bytes. What is
/// lent stays as it is until the sender has settled.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) header: Option<usize>,
    pub(super) bytes: &'a [u8],
    pub(super) lent: bool,
}

/// Sends a part.
pub(super) fn send(
    sender: &mut dyn Sender,
    call: &Call,
    part: Part<'_>,
) -> Result<(), TransportError> {
    let header = part.header.map(|bytes| call.header(bytes));
    let head = header.as_ref().map_or(&[][..], |header| header);
    let sent = match part.lent {
        true => sender.lend(head, part.bytes),
        false => sender.send_headed(head, part.bytes),
    };
    sent.map(|_| ())
}

/// The part of a message of so many bytes that goes out as number `index`, if there is one. Messages that are lent go whole.
pub(super) fn outgoing(bytes: usize, lent: bool, index: usize) -> Option<Range<usize>> {
    match lent {
        true => (index == 0).then_some(0..bytes),
        false => (index < segments(bytes)).then(|| segment(bytes, index)),
    }
}

/// The range of segment `index` of `bytes` bytes.
pub(super) fn segment(bytes: usize, index: usize) -> Range<usize> {
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
    /// Whether all ranks share this host's memory.
    pub(super) of_one_host: bool,
    senders: [Vec<Option<Box<dyn Sender>>>; 2],
    receivers: [Vec<Option<Box<dyn Receiver>>>; 2],
}

impl Ends {
    pub(super) fn new(members: Members) -> Self {
        let n = members.len();
        let senders = [0, 1].map(|_| (0..n).map(|_| None).collect());
        let receivers = [0, 1].map(|_| (0..n).map(|_| None).collect());
        let of_one_host = members.transport.direct(&members.ranks);
        Self { members, of_one_host, senders, receivers }
    }

    /// Sends a part.
    pub(super) fn send(
        &mut self,
        call: &Call,
        (lane, peer): (Lane, usize),
        part: Part<'_>,
    ) -> Result<(), DistError> {
        let members = &self.members;
        let fail = |error| members.fail(call.op.name(), peer, error);
        let slot = &mut self.senders[usize::from(lane == Lane::Second)][peer];
        let sender = match slot {
            Some(sender) => sender,
            None => slot.insert(members.sender(lane, peer).map_err(fail)?),
        };
        send(sender.as_mut(), call, part).map_err(fail)
    }

    /// Waits until the peer has read what was lent to it.
    pub(super) fn settle(&mut self, call: &Call, peer: usize) -> Result<(), DistError> {
        let members = &self.members;
        let Some(sender) = &mut self.senders[0][peer] else { return Ok(()) };
        let settled = sender.settle().map(|_| ());
        settled.map_err(|error| members.fail(call.op.name(), peer, error))
    }

    /// Lets `read` read the next message, which has no header.
    pub(super) fn receive(
        &mut self,
        call: &Call,
        from: (Lane, usize),
        read: &mut dyn FnMut(Body<'_>),
    ) -> Result<(), DistError> {
        self.receive_headed(call, from, 0, &mut |_, body| read(body))
    }

    fn receive_headed(
        &mut self,
        call: &Call,
        (lane, peer): (Lane, usize),
        head: usize,
        read: &mut dyn FnMut(&[u8], Body<'_>),
    ) -> Result<(), DistError> {
        let members = &self.members;
        let fail = |error| members.fail(call.op.name(), peer, error);
        let slot = &mut self.receivers[usize::from(lane == Lane::Second)][peer];
        let receiver = match slot {
            Some(receiver) => receiver,
            None => slot.insert(members.receiver(lane, peer).map_err(fail)?),
        };
        receiver.receive_headed(head, read).map(|_| ()).map_err(fail)
    }

    /// Lets `read` read the first message of an operation; returns how many bytes the peer sends in all.
    pub(super) fn receive_first(
        &mut self,
        call: &Call,
        peer: usize,
        expected: Option<usize>,
        read: &mut dyn FnMut(usize, Body<'_>),
    ) -> Result<usize, DistError> {
        let mut accepted = Ok(0);
        self.receive_headed(call, (Lane::First, peer), HEADER, &mut |head, body| {
            accepted = call.accept(head, expected);
            if let Ok(bytes) = accepted {
                read(bytes, body);
            }
        })?;
        accepted.map_err(|difference| self.members.mismatch(peer, difference))
    }
}
