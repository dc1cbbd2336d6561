//! Broadcast: a tree while small, otherwise, where ranks share memory, a star whose middle all others read, or a chain through
//! which segments flow.

use graphc_comm::transport::Body;

use super::element::write_elements;
use super::ends::{CollectiveEnds, GroupLane, LENT, MessagePart, outgoing_range};
use super::error::DistError;
use super::header::GroupCall;

/// The bytes up to which a broadcast is a tree.
const TREE: usize = 32 << 10;

/// Sends the root's buffer to all ranks.
pub(super) fn broadcast_buffer(
    ends: &mut CollectiveEnds,
    call: &GroupCall,
    root: usize,
    buffer: &mut [u8],
) -> Result<(), DistError> {
    let (me, n, bytes) = (ends.members.me, ends.members.len(), buffer.len());
    // Places count from the root.
    let place = (me + n - root) % n;
    let (parent, children) = match ends.of_one_host && bytes >= LENT.start {
        true => star_links(place, n),
        false if bytes <= TREE => tree_links(place, n),
        false => chain_links(place, n),
    };
    let rank_at = |place: usize| (place + root) % n;
    let children: Vec<usize> = children.into_iter().map(rank_at).collect();
    match parent.map(rank_at) {
        None => send_from_root(ends, call, &children, buffer),
        Some(parent) => relay_parts(ends, call, (parent, &children), buffer),
    }
}

/// Sends the root's buffer to its children.
fn send_from_root(
    ends: &mut CollectiveEnds,
    call: &GroupCall,
    children: &[usize],
    buffer: &[u8],
) -> Result<(), DistError> {
    let mut lent = ends.of_one_host && LENT.contains(&buffer.len());
    for &child in children {
        lent = lent && ends.can_lend(call, child)?;
    }
    let parts = (0..).map_while(|round| outgoing_range(buffer.len(), lent, round));
    for (round, range) in parts.enumerate() {
        let header = (round == 0).then_some(buffer.len());
        let part = MessagePart { header, bytes: &buffer[range], lent };
        send_on(ends, call, children, part)?;
    }
    children.iter().filter(|_| lent).try_for_each(|&child| ends.settle_loans(call, child))
}

/// Receives on the other ranks: each part is passed on as it comes.
fn relay_parts(
    ends: &mut CollectiveEnds,
    call: &GroupCall,
    (parent, children): (usize, &[usize]),
    buffer: &mut [u8],
) -> Result<(), DistError> {
    let (bytes, mut taken) = (buffer.len(), 0);
    let mut header = Some(bytes);
    while header.is_some() || taken < bytes {
        let start = taken;
        let mut read = |part: Body<'_>| {
            taken += part.len();
            write_elements(call.dtype, &mut buffer[start..taken], part, bytes);
        };
        match header {
            Some(bytes) => {
                ends.receive_first(call, parent, Some(bytes), &mut |_, part| read(part))?;
            }
            None => ends.receive(call, (GroupLane::First, parent), &mut read)?,
        }
        let part = MessagePart { header, bytes: &buffer[start..taken], lent: false };
        send_on(ends, call, children, part)?;
        header = None;
    }
    Ok(())
}

fn send_on(
    ends: &mut CollectiveEnds,
    call: &GroupCall,
    children: &[usize],
    part: MessagePart<'_>,
) -> Result<(), DistError> {
    if children.len() + 1 == ends.members.len() && !part.lent {
        return ends.send_to_all(call, (GroupLane::First, children), part);
    }
    children.iter().try_for_each(|&child| ends.send(call, (GroupLane::First, child), part))
}

/// Returns parent and children of a place in a binomial tree, the farthest child first.
fn tree_links(place: usize, n: usize) -> (Option<usize>, Vec<usize>) {
    let lowest = if place == 0 { n.next_power_of_two() } else { place & place.wrapping_neg() };
    let parent = (place > 0).then(|| place - lowest);
    let steps = std::iter::successors(Some(lowest / 2), |step| Some(step / 2));
    let children = steps.take_while(|&step| step > 0).map(|step| place + step);
    (parent, children.filter(|&child| child < n).collect())
}

fn star_links(place: usize, n: usize) -> (Option<usize>, Vec<usize>) {
    if place == 0 { (None, (1..n).collect()) } else { (Some(0), Vec::new()) }
}

fn chain_links(place: usize, n: usize) -> (Option<usize>, Vec<usize>) {
    let next = (place + 1 < n).then_some(place + 1);
    (place.checked_sub(1), next.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_reaches_everybody_once() {
        for n in 1..40 {
            let mut reached: Vec<usize> = (0..n).flat_map(|place| tree_links(place, n).1).collect();
            reached.sort_unstable();
            assert_eq!(reached, (1..n).collect::<Vec<_>>());
            for place in 0..n {
                let parents = tree_links(place, n)
                    .1
                    .iter()
                    .all(|&child| tree_links(child, n).0 == Some(place));
                assert!(parents, "{place} of {n}");
            }
        }
    }
}
