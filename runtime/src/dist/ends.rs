//! The queues of one rank of a group, made when they are first used, and messages with their headers.
//!
//! A group has three queues for each pair of ranks: one for messages, two for collectives. Tags tell them apart, and the
//! parent's ranks agree on the tags.
//!
//! A message goes in segments, by shared memory where there is one. Data that only moves is lent from 16 KiB to 4 MiB
//! ([`LENT`]): the receiver copies it out of the sender's memory, and the operation ends when it has. Beyond, two copies
//! through shared memory are faster than one. Each rank makes one of them, and the system's copy is slow on memory that
//! no cache holds: 2.4 to 3.4 GB/s on 4 KiB pages, against 6 to 9.
//!
//! From 8 MiB on the last copy, and what a rank keeps of its own, is written past the caches (`crate::copy`). What goes
//! to all ranks of a host is copied once, to a place in the outbox that all of them read ([`Transport::allocate_staging`]).

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use graphc_comm::JobEnd;
use graphc_comm::memory::{ArenaRange, HostArena};
use graphc_comm::transport::{Body, Receiver, Sender, Transport, TransportError};

use super::error::DistError;
use super::header::{GroupCall, HEADER};

/// Bytes of a segment: large messages go in parts of this size, which stay in a core's second-level cache between the one
/// that writes and the one that reads.
pub(super) const SEGMENT: usize = 128 << 10;
/// The sizes of messages that are lent: the receiver copies them out of the sender's own memory, once. Shorter ones are
/// sooner copied twice than waited for; of longer ones both copies go on at once, on two cores, which is faster than one.
pub(super) const LENT: Range<usize> = 16 << 10..4 << 20;
/// The sizes of parts that are copied once for all of several peers.
const STAGED: RangeInclusive<usize> = 4 << 10..=SEGMENT;
/// Messages that a queue holds. Collectives rely on at least two: a rank sends the next segment before it reads this one.
pub(super) const SLOTS: usize = 4;

/// The members of a group, and its place among the job's tags.
#[derive(Clone)]
pub(crate) struct GroupMembers {
    pub(crate) transport: Arc<dyn Transport>,
    /// Ranks in the world, by rank in the group.
    pub(crate) ranks: Vec<u32>,
    /// This rank's index.
    pub(crate) me: usize,
    /// The first of the group's tags.
    pub(crate) tag: u32,
}

/// The number of tags of a group: point to point, and two lanes for collectives.
pub(super) const TAGS: u32 = 3;

/// A group's queues between a pair of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupLane {
    /// The lane of messages point to point.
    Pair,
    /// The lane of collectives.
    First,
    /// The second half of collectives that have two: so it can overtake the first.
    Second,
}

impl GroupMembers {
    pub(crate) fn rank(&self) -> u32 {
        self.ranks[self.me]
    }

    pub(crate) fn len(&self) -> usize {
        self.ranks.len()
    }

    pub(crate) fn open_sender(
        &self,
        lane: GroupLane,
        peer: usize,
    ) -> Result<Box<dyn Sender>, TransportError> {
        self.transport.open_sender(self.tag + lane as u32, self.ranks[peer], SLOTS)
    }

    pub(crate) fn open_receiver(
        &self,
        lane: GroupLane,
        peer: usize,
    ) -> Result<Box<dyn Receiver>, TransportError> {
        self.transport.open_receiver(self.tag + lane as u32, self.ranks[peer], SLOTS)
    }

    /// Returns the error of an operation, from that of a queue.
    pub(super) fn operation_error(
        &self,
        op: &str,
        peer: usize,
        source: TransportError,
    ) -> DistError {
        let (op, peer) = (op.to_owned(), self.ranks[peer]);
        if source == TransportError::Ended
            && let Some(reason) = self.transport.end_reason()
        {
            return DistError::Ended { op, reason };
        }
        DistError::Transport { op, peer, source }
    }

    /// Ends the job, as two ranks do not do the same, and returns the error. So nobody waits for what does not come.
    pub(super) fn end_on_mismatch(
        &self,
        peer: usize,
        (mine, theirs): (String, String),
    ) -> DistError {
        let (rank, peer) = (self.rank(), self.ranks[peer]);
        let error = DistError::Mismatch { rank, mine, peer, theirs };
        self.transport.end_job(JobEnd::Program { reason: error.to_string() });
        error
    }
}

/// A part of a message, with the header of `call` where it is the first of an operation that sends so many bytes. What is
/// lent stays as it is until the sender has settled.
#[derive(Clone, Copy)]
pub(super) struct MessagePart<'a> {
    pub(super) header: Option<usize>,
    pub(super) bytes: &'a [u8],
    pub(super) lent: bool,
}

/// Sends a part.
pub(super) fn send_part(
    sender: &mut dyn Sender,
    call: &GroupCall,
    part: MessagePart<'_>,
) -> Result<(), TransportError> {
    let header = part.header.map(|bytes| call.encode_header(bytes));
    let head = header.as_ref().map_or(&[][..], |header| header);
    let sent = match part.lent {
        true => sender.lend(head, part.bytes),
        false => sender.send_headed(head, part.bytes),
    };
    sent.map(|_| ())
}

/// Returns the part of a message of so many bytes that goes out as number `index`, if there is one. Messages that are lent
/// go whole.
pub(super) fn outgoing_range(bytes: usize, lent: bool, index: usize) -> Option<Range<usize>> {
    match lent {
        true => (index == 0).then_some(0..bytes),
        false => (index < count_segments(bytes)).then(|| segment_range(bytes, index)),
    }
}

/// Returns the range of segment `index` of `bytes` bytes.
pub(super) fn segment_range(bytes: usize, index: usize) -> Range<usize> {
    let start = (index * SEGMENT).min(bytes);
    start..(start + SEGMENT).min(bytes)
}

/// Returns the number of segments of so many bytes: one at least, for the header.
pub(super) fn count_segments(bytes: usize) -> usize {
    bytes.div_ceil(SEGMENT).max(1)
}

/// The queues of collectives.
pub(super) struct CollectiveEnds {
    pub(super) members: GroupMembers,
    /// Whether all ranks share this host's memory.
    pub(super) of_one_host: bool,
    senders: [Vec<Option<Box<dyn Sender>>>; 2],
    receivers: [Vec<Option<Box<dyn Receiver>>>; 2],
    stages: [LaneStaging; 2],
}

/// The memory of a lane's parts that go to all peers: as many places for a segment as a queue has slots, used in turn. Every
/// such part goes to all peers, so a queue with room for the next has been read up to the one that lay in the same place.
#[derive(Default)]
struct LaneStaging {
    memory: Option<HostArena>,
    used: usize,
}

impl Drop for CollectiveEnds {
    fn drop(&mut self) {
        for (stage, senders) in self.stages.iter_mut().zip(&self.senders) {
            if !senders.iter().flatten().all(|sender| sender.is_settled()) {
                // What a peer may still read is not used again.
                std::mem::forget(stage.memory.take());
            }
        }
    }
}

impl CollectiveEnds {
    pub(super) fn new(members: GroupMembers) -> Self {
        let n = members.len();
        let senders = [0, 1].map(|_| (0..n).map(|_| None).collect());
        let receivers = [0, 1].map(|_| (0..n).map(|_| None).collect());
        let of_one_host = members.transport.is_direct(&members.ranks);
        Self { members, of_one_host, senders, receivers, stages: Default::default() }
    }

    /// Returns the sender to a peer.
    fn sender_to(
        &mut self,
        call: &GroupCall,
        (lane, peer): (GroupLane, usize),
    ) -> Result<&mut dyn Sender, DistError> {
        let slot = &mut self.senders[usize::from(lane == GroupLane::Second)][peer];
        if slot.is_none() {
            let made = self.members.open_sender(lane, peer);
            *slot = Some(
                made.map_err(|error| self.members.operation_error(call.op.name(), peer, error))?,
            );
        }
        Ok(slot.as_mut().expect("just made").as_mut())
    }

    /// Sends a part of at most a segment to all peers, `peers` in this order.
    pub(super) fn send_to_all(
        &mut self,
        call: &GroupCall,
        (lane, peers): (GroupLane, &[usize]),
        part: MessagePart<'_>,
    ) -> Result<(), DistError> {
        let index = usize::from(lane == GroupLane::Second);
        let staged = self.of_one_host && peers.len() > 1 && STAGED.contains(&part.bytes.len());
        let stage = &mut self.stages[index];
        if staged && stage.memory.is_none() {
            stage.memory = self.members.transport.allocate_staging((SLOTS * SEGMENT) as u64);
        }
        let Some(memory) = staged.then(|| stage.memory.take()).flatten() else {
            return peers.iter().try_for_each(|&peer| self.send(call, (lane, peer), part));
        };
        let place = ArenaRange { offset: stage.used % SLOTS * SEGMENT, bytes: part.bytes.len() };
        stage.used += 1;
        let sent = self.send_staged(call, (lane, peers), part, (&memory, place));
        self.stages[index].memory = Some(memory);
        sent
    }

    fn send_staged(
        &mut self,
        call: &GroupCall,
        (lane, peers): (GroupLane, &[usize]),
        part: MessagePart<'_>,
        (memory, place): (&HostArena, ArenaRange),
    ) -> Result<(), DistError> {
        for &peer in peers {
            let room = self.sender_to(call, (lane, peer))?.wait_for_slot();
            room.map_err(|error| self.members.operation_error(call.op.name(), peer, error))?;
        }
        memory.write(place).copy_from_slice(part.bytes);
        let part = MessagePart { bytes: memory.read(place), lent: true, ..part };
        peers.iter().try_for_each(|&peer| self.send(call, (lane, peer), part))
    }

    /// Sends a part.
    pub(super) fn send(
        &mut self,
        call: &GroupCall,
        (lane, peer): (GroupLane, usize),
        part: MessagePart<'_>,
    ) -> Result<(), DistError> {
        let sent = send_part(self.sender_to(call, (lane, peer))?, call, part);
        sent.map_err(|error| self.members.operation_error(call.op.name(), peer, error))
    }

    /// Returns whether a peer can read what is lent to it, so that it need not be copied before.
    pub(super) fn can_lend(&mut self, call: &GroupCall, peer: usize) -> Result<bool, DistError> {
        Ok(self.sender_to(call, (GroupLane::First, peer))?.can_lend())
    }

    /// Waits until the peer has read what was lent to it.
    pub(super) fn settle_loans(&mut self, call: &GroupCall, peer: usize) -> Result<(), DistError> {
        let members = &self.members;
        let Some(sender) = &mut self.senders[0][peer] else { return Ok(()) };
        let settled = sender.settle_loans().map(|_| ());
        settled.map_err(|error| members.operation_error(call.op.name(), peer, error))
    }

    /// Withdraws what a failed operation has lent: it may change.
    pub(super) fn withdraw_loans(&mut self) {
        self.senders.iter_mut().flatten().flatten().for_each(|sender| sender.withdraw_loans());
    }

    /// Lets `read` read the next message, which has no header.
    pub(super) fn receive(
        &mut self,
        call: &GroupCall,
        from: (GroupLane, usize),
        read: &mut dyn FnMut(Body<'_>),
    ) -> Result<(), DistError> {
        self.receive_headed(call, from, 0, &mut |_, body| read(body))
    }

    fn receive_headed(
        &mut self,
        call: &GroupCall,
        (lane, peer): (GroupLane, usize),
        head: usize,
        read: &mut dyn FnMut(&[u8], Body<'_>),
    ) -> Result<(), DistError> {
        let members = &self.members;
        let fail = |error| members.operation_error(call.op.name(), peer, error);
        let slot = &mut self.receivers[usize::from(lane == GroupLane::Second)][peer];
        let receiver = match slot {
            Some(receiver) => receiver,
            None => slot.insert(members.open_receiver(lane, peer).map_err(fail)?),
        };
        receiver.receive_headed(head, read).map(|_| ()).map_err(fail)
    }

    /// Lets `read` read the first message of an operation; returns how many bytes the peer sends in all.
    pub(super) fn receive_first(
        &mut self,
        call: &GroupCall,
        peer: usize,
        expected: Option<usize>,
        read: &mut dyn FnMut(usize, Body<'_>),
    ) -> Result<usize, DistError> {
        let mut accepted = Ok(0);
        self.receive_headed(call, (GroupLane::First, peer), HEADER, &mut |head, body| {
            accepted = call.check_header(head, expected);
            if let Ok(bytes) = accepted {
                read(bytes, body);
            }
        })?;
        accepted.map_err(|difference| self.members.end_on_mismatch(peer, difference))
    }
}
