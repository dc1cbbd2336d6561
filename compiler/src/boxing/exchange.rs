//! The general step: every rank receives the rectangles that it needs from ranks that hold them.

use std::collections::BTreeMap;

use graphc_ir::mesh::unravel;
use graphc_ir::plan::Layout;
use graphc_ir::sbp::Sbp;

use super::Prices;
use crate::cluster::alpha_beta;
use crate::cost::exchange_seconds;

/// What the busiest rank does in an exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages that it sends, or receives where that is more.
    pub messages: usize,
    /// Bytes that it sends, or receives where that is more.
    pub bytes: u64,
}

/// The ranks from which a receiver takes what it needs: one rank for each coordinate of the axes that split or are
/// partial. Of equals (along broadcast axes) it takes itself, or else the one at its own position modulo their
/// number, so that receivers share the load.
pub fn source_ranks(from: &Layout, receiver: u32, position: usize) -> Vec<u32> {
    let own = from.coordinates(receiver);
    let copies: Vec<bool> = from.sbp.0.iter().map(|&sbp| sbp == Sbp::Broadcast).collect();
    let extents = |copy: bool| -> Vec<usize> {
        let axes = from.hierarchy.iter().zip(&copies);
        axes.map(|(&extent, &is_copy)| if is_copy == copy { extent } else { 1 }).collect()
    };
    let count: usize = extents(true).iter().product();
    let mine = own.unwrap_or_else(|| unravel(position % count, &extents(true)));
    let parts = extents(false);
    (0..parts.iter().product())
        .map(|part| {
            let part = unravel(part, &parts);
            let at = |axis: usize| if copies[axis] { mine[axis] } else { part[axis] };
            let position = (0..parts.len()).fold(0, |p, axis| p * from.hierarchy[axis] + at(axis));
            from.ranks[position]
        })
        .collect()
}

/// Whether a receiver holds the value itself in a partial layout, not the identity.
pub(super) fn holds_value(to: &Layout, position: usize) -> bool {
    let coordinates = unravel(position, &to.hierarchy);
    to.sbp.0.iter().zip(coordinates).all(|(sbp, coordinate)| !sbp.is_partial() || coordinate == 0)
}

/// What the busiest rank sends or receives. What a rank keeps for itself is no message.
pub fn exchange_traffic(from: &Layout, to: &Layout, microbatches: usize) -> Traffic {
    let mut sent: BTreeMap<u32, Traffic> = BTreeMap::new();
    let mut busiest = Traffic::default();
    for (position, &receiver) in to.ranks.iter().enumerate() {
        if !holds_value(to, position) {
            continue;
        }
        let Some(need) = to.rect(receiver, 0, microbatches) else { continue };
        let mut received = Traffic::default();
        for sender in source_ranks(from, receiver, position) {
            let rect = from.rect(sender, 0, microbatches).and_then(|held| held.intersect(&need));
            let Some(rect) = rect.filter(|_| sender != receiver) else { continue };
            let bytes = (rect.elements() * from.dtype.size()) as u64;
            for traffic in [&mut received, sent.entry(sender).or_default()] {
                traffic.messages += 1;
                traffic.bytes += bytes;
            }
        }
        busiest = busiest.most(received);
    }
    sent.into_values().fold(busiest, Traffic::most)
}

impl Traffic {
    fn most(self, other: Self) -> Self {
        Self { messages: self.messages.max(other.messages), bytes: self.bytes.max(other.bytes) }
    }
}

/// Seconds of an exchange and bytes of its busiest rank.
pub(super) fn price(prices: Prices<'_>, from: &Layout, to: &Layout) -> (f64, u64) {
    let traffic = exchange_traffic(from, to, prices.microbatches);
    let mut ranks: Vec<u32> = from.ranks.iter().chain(&to.ranks).copied().collect();
    ranks.sort_unstable();
    ranks.dedup();
    let link = alpha_beta(prices.cluster, &ranks, None);
    let bytes = traffic.bytes as f64;
    (exchange_seconds(prices.cluster, link, traffic.messages, bytes), traffic.bytes)
}
