//! The general step of boxing, an exchange: every rank receives the rectangles that it needs from ranks that hold them.

use std::collections::BTreeMap;

use graphc_ir::mesh::unravel_position;
use graphc_ir::sbp::Sbp;
use graphc_ir::shard::{overlapping_parts, split_range};
use graphc_plan::Layout;

use super::Prices;
use crate::cluster::AlphaBeta;
use crate::cost::exchange_seconds;

/// The traffic of the busiest rank in an exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The number of messages that it sends, or receives if that is more.
    pub messages: usize,
    /// The bytes that it sends, or receives if that is more.
    pub bytes: u64,
}

/// Whether a receiver holds the value itself in a partial layout, and not the identity.
pub(super) fn holds_value(to: &Layout, position: usize) -> bool {
    let coordinates = unravel_position(position, &to.hierarchy);
    to.sbp.0.iter().zip(coordinates).all(|(sbp, coordinate)| !sbp.is_partial() || coordinate == 0)
}

/// The most pairs of ranks that are counted one by one.
const MOST_PAIRS: usize = 1 << 22;

/// Returns the messages and bytes that the busiest rank sends or receives. What a rank keeps for itself is no message. If there are very many ranks,
/// it is assumed that each receives what the first does, and that they share evenly in sending.
pub(crate) fn exchange_traffic(from: &Layout, to: &Layout, microbatches: usize) -> Traffic {
    if are_very_many(from, to) {
        return traffic_if_even(from, to, microbatches);
    }
    let mut senders = Senders::new(from, microbatches);
    let mut sent = vec![Traffic::default(); from.ranks.len()];
    let mut busiest = Traffic::default();
    for position in 0..to.ranks.len() {
        let received = senders
            .count_traffic(to, position, &mut |sender, bytes| sent[sender].add_message(bytes));
        busiest = busiest.elementwise_max(received);
    }
    sent.into_iter().fold(busiest, Traffic::elementwise_max)
}

/// Whether there are so many ranks that all are assumed to do what the first does.
pub(super) fn are_very_many(from: &Layout, to: &Layout) -> bool {
    from.ranks.len().saturating_mul(to.ranks.len()) > MOST_PAIRS
}

/// Returns the traffic of [`exchange_traffic`] on the assumption that all receivers get as much as the first, and all senders have as much to send.
/// This holds if splits are even and no rank holds a copy.
fn traffic_if_even(from: &Layout, to: &Layout, microbatches: usize) -> Traffic {
    let first = received_first(from, to, microbatches);
    let along = |layout: &Layout, is: fn(&Sbp) -> bool| -> usize {
        let axes = layout.hierarchy.iter().zip(&layout.sbp.0);
        axes.filter(|(_, sbp)| is(sbp)).map(|(&extent, _)| extent).product()
    };
    let receivers = to.ranks.len() / along(to, |sbp| sbp.is_partial()).max(1);
    let copies = along(from, |sbp| *sbp == Sbp::Broadcast).max(1);
    let senders = (from.ranks.len() / copies * copies.min(receivers)).max(1);
    let each = |all: u64| (all * receivers as u64).div_ceil(senders as u64);
    first.elementwise_max(Traffic {
        messages: each(first.messages as u64) as usize,
        bytes: each(first.bytes),
    })
}

/// Returns the traffic that the first rank receives. The busiest rank has no less.
pub(super) fn received_first(from: &Layout, to: &Layout, microbatches: usize) -> Traffic {
    Senders::new(from, microbatches).count_traffic(to, 0, &mut |_, _| ())
}

/// The senders of an exchange: finds the ranks from which each of many receivers takes what it needs, without those that have nothing to send. The
/// work grows with the number of sends, not with the pairs of ranks.
pub struct Senders<'a> {
    from: &'a Layout,
    microbatches: usize,
    position_of: BTreeMap<u32, usize>,
    /// The extents of the axes along which there are copies; 1 for others.
    copies: Vec<usize>,
    /// The range of each dim that the ranks visited so far hold: its first element, and one past its last.
    held: Vec<(usize, usize)>,
}

impl<'a> Senders<'a> {
    /// Takes all ranks of a layout as senders.
    pub fn new(from: &'a Layout, microbatches: usize) -> Self {
        let position_of = from.ranks.iter().enumerate().map(|(at, &rank)| (rank, at)).collect();
        let extent =
            |(&extent, &sbp): (&usize, &Sbp)| if sbp == Sbp::Broadcast { extent } else { 1 };
        let copies = from.hierarchy.iter().zip(&from.sbp.0).map(extent).collect();
        let mut held: Vec<(usize, usize)> = from.shape.iter().map(|&extent| (0, extent)).collect();
        if let Some(dim) = from.microbatch_dim {
            held[dim].1 = split_range(held[dim].1, microbatches, 0).end;
        }
        Self { from, microbatches, position_of, copies, held }
    }

    /// Counts the traffic that the receiver at a position needs from other ranks, and calls `sends` with each sender's position and bytes.
    fn count_traffic(
        &mut self,
        to: &Layout,
        position: usize,
        sends: &mut dyn FnMut(usize, u64),
    ) -> Traffic {
        let mut received = Traffic::default();
        if !holds_value(to, position) {
            return received;
        }
        let own = self.position_of.get(&to.ranks[position]).copied();
        self.visit_senders(to, position, &mut |sender, bytes| {
            if Some(sender) != own {
                received.add_message(bytes);
                sends(sender, bytes);
            }
        });
        received
    }

    /// Calls `found` with the position of each rank that holds something of what the receiver at a position needs, and the number of its bytes. The
    /// receiver itself may be among them.
    pub fn visit_senders(
        &mut self,
        to: &Layout,
        position: usize,
        found: &mut dyn FnMut(usize, u64),
    ) {
        let mine = match self.position_of.get(&to.ranks[position]) {
            Some(&own) => unravel_position(own, &self.from.hierarchy),
            None => {
                unravel_position(position % self.copies.iter().product::<usize>(), &self.copies)
            }
        };
        let need = to.rect_at(position, 0, self.microbatches);
        let need: Vec<(usize, usize)> =
            need.origin.iter().zip(&need.extent).map(|(&o, &extent)| (o, o + extent)).collect();
        let size = self.from.dtype.size();
        self.visit_from_axis(&need, &mine, (0, 0), &mut |sender, elements| {
            if elements > 0 {
                found(sender, (elements * size) as u64);
            }
        });
    }

    /// Visits the senders whose coordinates before `axis` are those of `position`, and that hold something of what is needed.
    fn visit_from_axis(
        &mut self,
        need: &[(usize, usize)],
        mine: &[usize],
        (axis, position): (usize, usize),
        found: &mut dyn FnMut(usize, usize),
    ) {
        let overlap =
            |a: (usize, usize), b: (usize, usize)| a.1.min(b.1).saturating_sub(a.0.max(b.0));
        let Some(&extent) = self.from.hierarchy.get(axis) else {
            let both = self.held.iter().zip(need).map(|(&held, &need)| overlap(held, need));
            found(position, both.product());
            return;
        };
        match self.from.sbp.0[axis] {
            Sbp::Broadcast => {
                self.visit_from_axis(need, mine, (axis + 1, position * extent + mine[axis]), found);
            }
            Sbp::Partial(_) => {
                for at in 0..extent {
                    self.visit_from_axis(need, mine, (axis + 1, position * extent + at), found);
                }
            }
            Sbp::Split(dim) => {
                let (start, end) = self.held[dim];
                let needed = need[dim].0.saturating_sub(start)..need[dim].1.saturating_sub(start);
                for at in overlapping_parts(end - start, extent, needed) {
                    let range = split_range(end - start, extent, at);
                    self.held[dim] = (start + range.start, start + range.end);
                    self.visit_from_axis(need, mine, (axis + 1, position * extent + at), found);
                }
                self.held[dim] = (start, end);
            }
        }
    }
}

impl Traffic {
    pub(super) fn add_message(&mut self, bytes: u64) {
        self.messages += 1;
        self.bytes += bytes;
    }

    pub(super) fn times(self, other: Self) -> Self {
        Self { messages: self.messages * other.messages, bytes: self.bytes * other.bytes }
    }

    pub(super) fn elementwise_max(self, other: Self) -> Self {
        Self { messages: self.messages.max(other.messages), bytes: self.bytes.max(other.bytes) }
    }
}

/// Returns the seconds of an exchange, and the bytes of its busiest rank.
pub(super) fn price_traffic(prices: Prices<'_>, link: AlphaBeta, traffic: Traffic) -> (f64, u64) {
    let bytes = traffic.bytes as f64;
    (exchange_seconds(prices.cluster, link, traffic.messages, bytes), traffic.bytes)
}

#[cfg(test)]
mod tests {
    use graphc_ir::sbp::NdSbp;
    use graphc_ir::types::DType;

    use super::*;
    use crate::boxing::tests::source_ranks;

    /// Counts the traffic rank by rank, with the sends of a plan.
    fn counted(from: &Layout, to: &Layout) -> Traffic {
        let mut sent: BTreeMap<u32, Traffic> = BTreeMap::new();
        let mut busiest = Traffic::default();
        for (position, &receiver) in to.ranks.iter().enumerate() {
            let need = to.rect_at(position, 0, 2);
            let mut received = Traffic::default();
            for sender in source_ranks(from, receiver, position) {
                let held = from.rect(sender, 0, 2).and_then(|held| held.intersect(&need));
                if let Some(held) = held.filter(|_| sender != receiver && holds_value(to, position))
                {
                    received.add_message(held.elements() as u64 * 4);
                    sent.entry(sender).or_default().add_message(held.elements() as u64 * 4);
                }
            }
            busiest = busiest.elementwise_max(received);
        }
        sent.into_values().fold(busiest, Traffic::elementwise_max)
    }

    #[test]
    fn the_first_ranks_traffic_is_that_of_all_where_splits_are_even() {
        let digits = [Sbp::Broadcast, Sbp::Split(0), Sbp::Split(1), Sbp::PARTIAL];
        let layouts = |first: u32, mesh: [usize; 2]| -> Vec<Layout> {
            let pairs = digits.iter().flat_map(|&a| digits.iter().map(move |&b| [a, b]));
            let layout = |sbp: [Sbp; 2]| Layout {
                microbatch_dim: None,
                shape: vec![48, 48],
                dtype: DType::F32,
                ranks: (first..first + (mesh[0] * mesh[1]) as u32).collect(),
                hierarchy: mesh.to_vec(),
                sbp: NdSbp(sbp.to_vec()),
            };
            pairs.map(layout).collect()
        };
        let (from, to) = (layouts(0, [2, 4]), layouts(8, [4, 2]));
        for (from, to) in from.iter().flat_map(|from| to.iter().map(move |to| (from, to))) {
            let (all, first) = (exchange_traffic(from, to, 1), traffic_if_even(from, to, 1));
            // Ranks that hold copies may not share the load as evenly.
            let copies = from.sbp.0.contains(&Sbp::Broadcast);
            assert!(if copies { all.bytes >= first.bytes } else { all == first }, "{}", to.sbp);
        }
    }

    #[test]
    fn traffic_is_what_source_ranks_send() {
        let meshes = [(vec![0, 1, 2, 3, 4, 5], vec![2, 3]), (vec![4, 5, 6, 7], vec![4])];
        let all = ["B", "S(0)", "S(1)", "P(sum)"];
        let of = |mesh: &(Vec<u32>, Vec<usize>)| -> Vec<Layout> {
            let names = all.iter().flat_map(|a| all.iter().map(move |b| format!("{a}, {b}")));
            let names = names.map(|name| {
                if mesh.1.len() == 1 { name[..name.find(',').unwrap_or(0)].into() } else { name }
            });
            let layout = |name: String| Layout {
                shape: vec![10, 7],
                dtype: DType::F32,
                microbatch_dim: Some(0),
                ranks: mesh.0.clone(),
                hierarchy: mesh.1.clone(),
                sbp: name.parse().expect("an SBP"),
            };
            names.map(layout).collect()
        };
        for (a, b) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            for from in of(&meshes[a]) {
                for to in of(&meshes[b]) {
                    assert_eq!(
                        exchange_traffic(&from, &to, 2),
                        counted(&from, &to),
                        "{from:?} {to:?}"
                    );
                }
            }
        }
    }
}
