//! The algorithms of collectives, on bytes.
//!
//! Ranks reach each other directly, so most collectives are one exchange. In round `s` every rank first sends segment
//! `s + 1` to all whom it concerns, and then reads segment `s` of each, in the order of the ranks. A queue holds more
//! messages than a rank is ahead, so nobody waits in a circle and nothing needs a scheduler. Reductions are of that form
//! too: a rank combines what the others send, where it lies, in the order of the ranks.
//!
//! All-reduce sends the whole to everybody while it is small. Beyond, it goes in blocks: each rank reduces its part of a
//! block and sends it to all, on a second lane, while the next block comes in. Either way an element is combined in the
//! order of the ranks, so the choice does not show in the result. A ring or recursive doubling would not keep that order.
//! The barrier is by dissemination (Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization", 1988).
//!
//! How the bytes of a message get across, `ends` decides.

use std::ops::Range;

use graphc_comm::transport::Body;

use super::element::write_elements;
use super::ends::{
    CollectiveEnds, GroupLane, LENT, MessagePart, SEGMENT, outgoing_range, segment_range,
};
use super::error::DistError;
use super::header::GroupCall;
use super::reduce::RankReduction;
use crate::copy::copy_part;

/// The bytes up to which all-reduce and reduce are one exchange of the whole: those that all ranks together receive.
const WHOLE: usize = 64 << 10;
/// Two ranks exchange the whole up to here: it costs one more pass over memory and saves a round.
const WHOLE_OF_TWO: usize = 64 << 10;

/// The bytes that a rank expects of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expect {
    Nothing,
    Bytes(usize),
    /// All bytes that it sends.
    Any,
}

/// One exchange: what goes to whom, and what becomes of what comes.
pub(super) trait ExchangeFlow {
    /// Returns the bytes for `peer`, if any.
    fn outgoing(&self, peer: usize) -> Option<&[u8]>;

    /// Returns the bytes for all peers, where these are alike.
    fn for_all(&self) -> Option<&[u8]> {
        None
    }

    /// Returns the bytes that `peer` is to send.
    fn expect_from(&self, peer: usize) -> Expect;

    /// Takes a part from `peer`, which sends `bytes` in all, from `offset` on.
    fn take_part(&mut self, peer: usize, bytes: usize, offset: usize, part: Body<'_>);

    /// Takes this rank's turn between its peers', in round `round`.
    fn own_turn(&mut self, _round: usize) {}

    /// Ends a round: all peers' segments of it were taken.
    fn end_round(&mut self, _round: usize) {}

    /// Finishes the exchange: all that comes was taken.
    fn finish(&mut self) {}

    /// Whether what goes out stays as it is until the exchange is over, so that peers may read it where it lies.
    fn may_lend(&self) -> bool {
        false
    }
}

/// Returns the peers of `me`, those after it first, so that not all send to the same one.
fn iter_peers(me: usize, n: usize) -> impl Iterator<Item = usize> {
    (1..n).map(move |step| (me + step) % n)
}

/// The bytes that have come from a peer.
#[derive(Clone, Copy)]
struct IncomingBytes {
    /// The bytes that the peer sends.
    bytes: usize,
    taken: usize,
}

/// Runs one exchange.
pub(super) fn run_exchange(
    ends: &mut CollectiveEnds,
    call: &GroupCall,
    flow: &mut dyn ExchangeFlow,
) -> Result<(), DistError> {
    let (me, n) = (ends.members.me, ends.members.len());
    let mut incoming: Vec<Option<IncomingBytes>> = vec![None; n];
    let lent = find_lent_peers(ends, call, flow)?;
    send_round(ends, call, flow, (&lent, 0))?;
    let mut round = 0;
    loop {
        let sent = send_round(ends, call, flow, (&lent, round + 1))?;
        let mut more = sent;
        for (peer, incoming) in incoming.iter_mut().enumerate() {
            if peer == me {
                flow.own_turn(round);
                continue;
            }
            receive_part(ends, call, flow, peer, incoming)?;
            more |= incoming.is_some_and(|incoming| incoming.taken < incoming.bytes);
        }
        flow.end_round(round);
        round += 1;
        if !more {
            break;
        }
    }
    flow.finish();
    iter_peers(me, n).filter(|&peer| lent[peer]).try_for_each(|peer| ends.settle_loans(call, peer))
}

/// Finds the peers to which outgoing bytes are lent. That is settled before the first part goes: a peer may say meanwhile
/// that it can read it.
fn find_lent_peers(
    ends: &mut CollectiveEnds,
    call: &GroupCall,
    flow: &dyn ExchangeFlow,
) -> Result<Vec<bool>, DistError> {
    let (me, n) = (ends.members.me, ends.members.len());
    let mut lent = vec![false; n];
    for peer in iter_peers(me, n).filter(|_| flow.may_lend()) {
        let fits = flow.outgoing(peer).is_some_and(|bytes| LENT.contains(&bytes.len()));
        lent[peer] = fits && ends.can_lend(call, peer)?;
    }
    Ok(lent)
}

/// Sends part `round` to all for whom there is one, and returns whether there was any.
fn send_round(
    ends: &mut CollectiveEnds,
    call: &GroupCall,
    flow: &dyn ExchangeFlow,
    (lent, round): (&[bool], usize),
) -> Result<bool, DistError> {
    let mut any = false;
    let (me, n) = (ends.members.me, ends.members.len());
    if let Some(bytes) = flow.for_all().filter(|_| !lent.contains(&true)) {
        let Some(range) = outgoing_range(bytes.len(), false, round) else { return Ok(false) };
        let header = (round == 0).then_some(bytes.len());
        let part = MessagePart { header, bytes: &bytes[range], lent: false };
        let peers: Vec<usize> = iter_peers(me, n).collect();
        ends.send_to_all(call, (GroupLane::First, &peers), part)?;
        return Ok(n > 1);
    }
    for peer in iter_peers(me, n) {
        let Some(bytes) = flow.outgoing(peer) else { continue };
        let lent = lent[peer];
        if let Some(range) = outgoing_range(bytes.len(), lent, round) {
            let header = (round == 0).then_some(bytes.len());
            let part = MessagePart { header, bytes: &bytes[range], lent };
            ends.send(call, (GroupLane::First, peer), part)?;
            any = true;
        }
    }
    Ok(any)
}

/// Takes the next part from a peer, if more comes.
fn receive_part(
    ends: &mut CollectiveEnds,
    call: &GroupCall,
    flow: &mut dyn ExchangeFlow,
    peer: usize,
    incoming: &mut Option<IncomingBytes>,
) -> Result<(), DistError> {
    let expected = match flow.expect_from(peer) {
        Expect::Nothing => return Ok(()),
        Expect::Bytes(bytes) => Some(bytes),
        Expect::Any => None,
    };
    match incoming {
        None => {
            let mut taken = 0;
            let bytes =
                ends.receive_first(call, peer, expected, &mut |bytes, part: Body<'_>| {
                    taken = part.len();
                    flow.take_part(peer, bytes, 0, part);
                })?;
            *incoming = Some(IncomingBytes { bytes, taken });
        }
        Some(IncomingBytes { bytes, taken }) if *taken < *bytes => {
            let (all, offset) = (*bytes, *taken);
            let mut read = |part: Body<'_>| {
                *taken += part.len();
                flow.take_part(peer, all, offset, part);
            };
            ends.receive(call, (GroupLane::First, peer), &mut read)?;
        }
        Some(_) => {}
    }
    Ok(())
}

/// An exchange that reduces each rank's contribution to this rank's part, in the order of the ranks. In `whole` the parts
/// of all ranks; this rank's is reduced in place.
pub(super) struct ReduceFlow<'a> {
    pub(super) whole: &'a mut [u8],
    /// The part of each rank; of this one the part that is reduced here, if any.
    pub(super) parts: Vec<Option<Range<usize>>>,
    pub(super) reduction: RankReduction,
}

impl ReduceFlow<'_> {
    fn own_part(&mut self, range: Range<usize>) -> (&mut RankReduction, &mut [u8]) {
        let start = self.parts[self.reduction.me].clone().map_or(0, |part| part.start);
        (&mut self.reduction, &mut self.whole[start + range.start..start + range.end])
    }

    fn own_bytes(&self) -> usize {
        self.parts[self.reduction.me].clone().map_or(0, |part| part.len())
    }
}

impl ExchangeFlow for ReduceFlow<'_> {
    fn outgoing(&self, peer: usize) -> Option<&[u8]> {
        self.parts[peer].clone().map(|part| &self.whole[part])
    }

    fn for_all(&self) -> Option<&[u8]> {
        let whole = Some(0..self.whole.len());
        self.parts.iter().all(|part| *part == whole).then_some(&*self.whole)
    }

    fn expect_from(&self, _: usize) -> Expect {
        match &self.parts[self.reduction.me] {
            Some(part) => Expect::Bytes(part.len()),
            None => Expect::Nothing,
        }
    }

    fn take_part(&mut self, peer: usize, _: usize, offset: usize, part: Body<'_>) {
        let (reduction, own) = self.own_part(offset..offset + part.len());
        part.read(|part| reduction.take_contribution(peer, own, part));
    }

    fn own_turn(&mut self, round: usize) {
        let range = segment_range(self.own_bytes(), round);
        let (reduction, own) = self.own_part(range);
        reduction.own_turn(own);
    }

    fn end_round(&mut self, round: usize) {
        let range = segment_range(self.own_bytes(), round);
        let (reduction, own) = self.own_part(range);
        reduction.finish(own);
    }
}

/// Returns the bytes that go to every rank, if they are the same memory.
fn common_bytes<'a>(outgoing: &[Option<&'a [u8]>]) -> Option<&'a [u8]> {
    let first = (*outgoing.first()?)?;
    let alike = |bytes: &Option<&[u8]>| bytes.is_some_and(|bytes| std::ptr::eq(bytes, first));
    outgoing.iter().all(alike).then_some(first)
}

/// Pieces that go from rank to rank as they are.
pub(super) struct CopyFlow<'a> {
    pub(super) call: GroupCall,
    /// The bytes that go to each rank.
    pub(super) outgoing: Vec<Option<&'a [u8]>>,
    /// The memory for what comes from each rank.
    pub(super) into: Vec<Option<&'a mut [u8]>>,
    /// The bytes that this rank keeps, and where.
    pub(super) own: Option<(&'a [u8], &'a mut [u8])>,
    /// Rounds in which a segment of it was copied.
    pub(super) kept: usize,
}

impl CopyFlow<'_> {
    /// Copies a part of the piece that this rank keeps.
    fn keep_part(&mut self, range: impl FnOnce(usize) -> Range<usize>) {
        if let Some((from, into)) = &mut self.own {
            let (range, whole) = (range(from.len()), from.len());
            copy_part(&mut into[range.clone()], &from[range], whole);
        }
    }
}

impl ExchangeFlow for CopyFlow<'_> {
    fn outgoing(&self, peer: usize) -> Option<&[u8]> {
        self.outgoing[peer]
    }

    fn for_all(&self) -> Option<&[u8]> {
        common_bytes(&self.outgoing)
    }

    fn expect_from(&self, peer: usize) -> Expect {
        self.into[peer].as_ref().map_or(Expect::Nothing, |into| Expect::Bytes(into.len()))
    }

    fn take_part(&mut self, peer: usize, bytes: usize, offset: usize, part: Body<'_>) {
        if let Some(into) = &mut self.into[peer] {
            write_elements(self.call.dtype, &mut into[offset..offset + part.len()], part, bytes);
        }
    }

    fn own_turn(&mut self, round: usize) {
        self.kept = round + 1;
        self.keep_part(|bytes| segment_range(bytes, round));
    }

    fn finish(&mut self) {
        let kept = self.kept;
        self.keep_part(|bytes| segment_range(bytes, kept).start..bytes);
    }

    fn may_lend(&self) -> bool {
        true
    }
}

/// Lets the last argument write the memory for so many bytes from a peer.
pub(super) type Grow<'a> = dyn FnMut(usize, usize, &mut dyn FnMut(&mut [u8])) + 'a;

/// An exchange as [`CopyFlow`], of sizes that the peers tell. `grow` makes the memory for the bytes of a peer.
pub(super) struct Collect<'a> {
    pub(super) call: GroupCall,
    pub(super) outgoing: Vec<Option<&'a [u8]>>,
    pub(super) wanted: Vec<bool>,
    pub(super) grow: &'a mut Grow<'a>,
}

impl ExchangeFlow for Collect<'_> {
    fn outgoing(&self, peer: usize) -> Option<&[u8]> {
        self.outgoing[peer]
    }

    fn for_all(&self) -> Option<&[u8]> {
        common_bytes(&self.outgoing)
    }

    fn expect_from(&self, peer: usize) -> Expect {
        if self.wanted[peer] { Expect::Any } else { Expect::Nothing }
    }

    fn take_part(&mut self, peer: usize, bytes: usize, offset: usize, part: Body<'_>) {
        let (dtype, mut part) = (self.call.dtype, Some(part));
        (self.grow)(peer, bytes, &mut |into| {
            if let Some(part) = part.take() {
                write_elements(dtype, &mut into[offset..offset + part.len()], part, bytes);
            }
        });
    }

    fn may_lend(&self) -> bool {
        true
    }
}

/// Reduces all ranks' buffers, for all ranks or for `call.root` alone; elsewhere the content is arbitrary afterwards.
pub(super) fn all_reduce(
    ends: &mut CollectiveEnds,
    call: &GroupCall,
    buffer: &mut [u8],
    mut reduction: RankReduction,
) -> Result<(), DistError> {
    let (me, n) = (ends.members.me, ends.members.len());
    let limit = if n == 2 { WHOLE_OF_TWO } else { WHOLE };
    if n > 1 && buffer.len().saturating_mul(n - 1) > limit {
        return in_blocks(ends, call, buffer, &mut reduction);
    }
    let to = |peer: usize| call.root.is_none_or(|root| root == peer);
    let parts = (0..n).map(|peer| to(peer).then_some(0..buffer.len())).collect();
    let mut flow = ReduceFlow { whole: buffer, parts, reduction };
    debug_assert!(me < n);
    run_exchange(ends, call, &mut flow)
}

/// Returns the part of rank `index` of `n` in block `block`: parts are of equal size but for the last block's.
fn part_range(bytes: usize, size: usize, n: usize, (block, index): (usize, usize)) -> Range<usize> {
    let start = (block * n * SEGMENT).min(bytes);
    let end = (start + n * SEGMENT).min(bytes);
    let each = (end - start).div_ceil(n * size) * size;
    let at = (start + index * each).min(end);
    at..(at + each).min(end)
}

/// Runs an all-reduce by reduce-scatter and all-gather of one block after the other, one block ahead.
fn in_blocks(
    ends: &mut CollectiveEnds,
    call: &GroupCall,
    buffer: &mut [u8],
    reduction: &mut RankReduction,
) -> Result<(), DistError> {
    let (me, n) = (ends.members.me, ends.members.len());
    let bytes = buffer.len();
    let blocks = bytes.div_ceil(n * SEGMENT);
    let peers: Vec<usize> = iter_peers(me, n).collect();
    scatter_block(ends, call, buffer, 0)?;
    for block in 0..blocks {
        if block + 1 < blocks {
            scatter_block(ends, call, buffer, block + 1)?;
        }
        reduce_block(ends, call, buffer, reduction, block)?;
        let range = |index| part_range(bytes, call.dtype.size(), n, (block, index));
        let wanted = |peer: usize| call.root.is_none_or(|root| root == peer);
        let part = MessagePart { header: None, bytes: &buffer[range(me)], lent: false };
        match call.root {
            None => ends.send_to_all(call, (GroupLane::Second, &peers), part)?,
            Some(root) if root != me => ends.send(call, (GroupLane::Second, root), part)?,
            Some(_) => {}
        }
        for peer in (0..n).filter(|&peer| wanted(me) && peer != me) {
            let theirs = range(peer);
            let into = &mut buffer[theirs];
            // It was read a block ago, so it is in the cache, and written there soonest.
            let mut read = |part: Body<'_>| write_elements(call.dtype, into, part, SEGMENT);
            ends.receive(call, (GroupLane::Second, peer), &mut read)?;
        }
    }
    Ok(())
}

/// Sends every other rank its part of a block.
fn scatter_block(
    ends: &mut CollectiveEnds,
    call: &GroupCall,
    buffer: &[u8],
    block: usize,
) -> Result<(), DistError> {
    let (me, n) = (ends.members.me, ends.members.len());
    for peer in iter_peers(me, n) {
        let header = (block == 0).then_some(buffer.len());
        let range = part_range(buffer.len(), call.dtype.size(), n, (block, peer));
        let part = MessagePart { header, bytes: &buffer[range], lent: false };
        ends.send(call, (GroupLane::First, peer), part)?;
    }
    Ok(())
}

/// Reduces this rank's part of a block.
fn reduce_block(
    ends: &mut CollectiveEnds,
    call: &GroupCall,
    buffer: &mut [u8],
    reduction: &mut RankReduction,
    block: usize,
) -> Result<(), DistError> {
    let (me, n, bytes) = (ends.members.me, ends.members.len(), buffer.len());
    let own = &mut buffer[part_range(bytes, call.dtype.size(), n, (block, me))];
    for peer in 0..n {
        if peer == me {
            reduction.own_turn(own);
        } else if block == 0 {
            let read = &mut |_, part: Body<'_>| {
                part.read(|part| reduction.take_contribution(peer, own, part))
            };
            ends.receive_first(call, peer, Some(bytes), read)?;
        } else {
            let mut read =
                |part: Body<'_>| part.read(|part| reduction.take_contribution(peer, own, part));
            ends.receive(call, (GroupLane::First, peer), &mut read)?;
        }
    }
    reduction.finish(own);
    Ok(())
}

/// Returns when all ranks have come.
pub(super) fn run_barrier(ends: &mut CollectiveEnds, call: &GroupCall) -> Result<(), DistError> {
    let (me, n) = (ends.members.me, ends.members.len());
    let mut step = 1;
    while step < n {
        let part = MessagePart { header: Some(0), bytes: &[], lent: false };
        ends.send(call, (GroupLane::First, (me + step) % n), part)?;
        ends.receive_first(call, (me + n - step) % n, Some(0), &mut |_, _| {})?;
        step *= 2;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_every_block_in_whole_elements() {
        for (bytes, n, size) in
            [(0, 3, 4), (8, 3, 4), (3 * SEGMENT, 3, 8), (5 * SEGMENT + 24, 2, 8)]
        {
            let blocks = bytes.div_ceil(n * SEGMENT).max(1);
            let all = (0..blocks).flat_map(|block| (0..n).map(move |index| (block, index)));
            let parts: Vec<_> = all.map(|at| part_range(bytes, size, n, at)).collect();
            assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), bytes);
            parts.windows(2).for_each(|pair| assert_eq!(pair[0].end, pair[1].start));
            parts.iter().for_each(|part| assert!(part.len().is_multiple_of(size)));
        }
    }
}
