//! Prices computing and communication in seconds, by one set of formulas for the planner and the null device.
//!
//! Computing follows a roofline of the device. Collectives follow the alpha-beta model of rings and trees, level by
//! level. Start reading with [`compute_work`] and [`collective_seconds`].

mod compute;
mod machine;
mod sums;

use graphc_plan::{BoxingKind, Cluster};

use crate::cluster::{AlphaBeta, Link};

pub use compute::{LeastSeconds, NodeWork, compute_work, gathered_efficiency, matmul_efficiency};
pub(crate) use compute::{
    ROW_BYTES, chain_seconds, has_odd_rows, is_odd_row, least_seconds, node_work, peak_flops,
    roofline_seconds,
};
pub use machine::{ActorWork, model_flops_utilization, on_cluster};
pub(crate) use sums::add_sums_in_products;

/// Returns the seconds of a collective among the ranks of a link. `bytes` are those of the full tensor for all-reduce, of the busiest rank's input
/// for reduce-scatter and all-to-all, and of its output for all-gather. Local steps, and collectives of less than two ranks, take 0.
///
/// All-reduce is a reduce-scatter and an all-gather. On a ring of `n` ranks each of these takes `n - 1` steps, in which a rank sends `1/n` of the
/// bytes (Thakur et al., 2005, section 4). Over several levels the ranks of the inner level share the bytes first, and each exchanges its part with
/// those of other nodes that have the same part (hierarchical); segments follow each other through the levels, so latencies add up and the slowest
/// level sets the pace. Rings of a framework that go through all ranks (`flat_rings`) add up the latencies of all their steps, as NCCL's model of
/// its rings does (NVIDIA/nccl, src/graph/tuning.cc). If it is faster, small messages are reduced along a tree instead, which sends all bytes in `log2 n` steps, and large ones
/// along two trees at once, which keeps both directions of every link busy (Sanders, Speck and Traeff, 2009). An all-to-all sends each rank its own
/// part. Each collective is one kernel, and is launched once.
pub fn collective_seconds(cluster: &Cluster, link: &Link, kind: BoxingKind, bytes: f64) -> f64 {
    if link.ranks() < 2 {
        return 0.0;
    }
    let launch = cluster.device.launch;
    match kind {
        BoxingKind::AllReduce => {
            let tree = if link.trees { tree_seconds(link, bytes) } else { f64::INFINITY };
            launch + 2.0 * ring_seconds(link, bytes).min(tree)
        }
        BoxingKind::ReduceScatter | BoxingKind::AllGather => launch + ring_seconds(link, bytes),
        BoxingKind::AllToAll => launch + pairwise_seconds(link, bytes),
        BoxingKind::Slice | BoxingKind::Mask | BoxingKind::SendRecv => 0.0,
    }
}

/// Returns the seconds of one pass of a ring through all levels.
fn ring_seconds(link: &Link, bytes: f64) -> f64 {
    let (mut latency, mut pace, mut part) = (0.0, 0.0f64, bytes);
    for hop in &link.hops {
        latency += hop.steps as f64 * hop.link.alpha;
        pace = pace.max(bytes_sent(hop.ranks, part) * hop.link.beta);
        part /= hop.ranks as f64;
    }
    latency + pace
}

/// Returns the seconds of one pass of a tree through all levels.
fn tree_seconds(link: &Link, bytes: f64) -> f64 {
    let (mut latency, mut pace, mut part) = (0.0, 0.0f64, bytes);
    for hop in &link.hops {
        latency += f64::from(hop.ranks.next_power_of_two().ilog2()) * hop.link.alpha;
        pace = pace.max(part * hop.link.beta);
        part /= hop.ranks as f64;
    }
    latency + pace
}

/// Returns the seconds of sending a part of the bytes to every other rank, over the level that joins both.
fn pairwise_seconds(link: &Link, bytes: f64) -> f64 {
    let ranks = link.ranks() as f64;
    let (mut latency, mut pace, mut within) = (0.0, 0.0f64, 1);
    for hop in &link.hops {
        let others = (within * (hop.ranks - 1)) as f64;
        latency += others * hop.link.alpha;
        pace = pace.max(others / ranks * bytes * hop.link.beta);
        within *= hop.ranks;
    }
    latency + pace
}

/// Returns the bytes that the busiest rank sends in a collective of [`collective_seconds`].
pub fn collective_bytes(kind: BoxingKind, ranks: usize, bytes: f64) -> f64 {
    match kind {
        BoxingKind::AllReduce => 2.0 * bytes_sent(ranks, bytes),
        BoxingKind::ReduceScatter | BoxingKind::AllGather | BoxingKind::AllToAll => {
            bytes_sent(ranks, bytes)
        }
        BoxingKind::Slice | BoxingKind::Mask | BoxingKind::SendRecv => 0.0,
    }
}

fn bytes_sent(ranks: usize, bytes: f64) -> f64 {
    (ranks - 1) as f64 / ranks as f64 * bytes
}

/// Returns the seconds of a point-to-point exchange whose busiest rank sends or receives `bytes` in `messages` messages. Messages are packed, sent
/// and unpacked.
pub(crate) fn exchange_seconds(
    cluster: &Cluster,
    link: AlphaBeta,
    messages: usize,
    bytes: f64,
) -> f64 {
    messages_seconds(link, messages, bytes) + 2.0 * local_seconds(cluster, bytes)
}

/// Returns the seconds for which a rank has a link that brings it `bytes` in `messages` messages.
pub(crate) fn messages_seconds(link: AlphaBeta, messages: usize, bytes: f64) -> f64 {
    messages as f64 * link.alpha + bytes * link.beta
}

/// Returns the seconds of a local kernel that reads and writes `bytes` bytes: a slice, a mask, a feed.
pub(crate) fn local_seconds(cluster: &Cluster, bytes: f64) -> f64 {
    cluster.device.launch + 2.0 * bytes / cluster.device.reached_bandwidth()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Hop;

    fn hop(ranks: usize, alpha: f64, beta: f64) -> Hop {
        Hop::new(ranks, AlphaBeta { alpha, beta })
    }

    fn seconds(hops: &[Hop], trees: bool, kind: BoxingKind, bytes: f64) -> f64 {
        let mut cluster = crate::cluster::preset("cpu").expect("a preset");
        cluster.device.launch = 0.25;
        collective_seconds(&cluster, &Link { hops: hops.to_vec(), trees }, kind, bytes)
    }

    #[test]
    fn rings_by_hand() {
        let seconds = |kind| seconds(&[hop(4, 1.0, 0.5)], false, kind, 16.0);
        assert_eq!(seconds(BoxingKind::AllReduce), 0.25 + 2.0 * (3.0 + 6.0));
        assert_eq!(seconds(BoxingKind::AllGather), 0.25 + 3.0 + 6.0);
        assert_eq!(seconds(BoxingKind::AllToAll), 0.25 + 3.0 + 6.0);
        assert_eq!(seconds(BoxingKind::Slice), 0.0);
        assert_eq!(collective_bytes(BoxingKind::AllReduce, 4, 16.0), 24.0);
    }

    #[test]
    fn a_group_of_one_pays_nothing() {
        assert_eq!(seconds(&[], true, BoxingKind::AllReduce, 16.0), 0.0);
    }

    /// The levels of a link share the bytes. Of two nodes with four ranks each, 3/4 of 16 bytes are sent inside a node at 0.5, and half of a quarter
    /// between nodes at 4.
    #[test]
    fn levels_share_the_bytes() {
        let hops = [hop(4, 1.0, 0.5), hop(2, 10.0, 4.0)];
        assert_eq!(seconds(&hops, false, BoxingKind::AllGather, 16.0), 0.25 + 3.0 + 10.0 + 8.0);
        let slow_inside = [hop(4, 1.0, 5.0), hop(2, 10.0, 4.0)];
        assert_eq!(
            seconds(&slow_inside, false, BoxingKind::AllGather, 16.0),
            0.25 + 3.0 + 10.0 + 60.0
        );
        // 4 of 8 parts go to the other node, 3 of 8 stay inside.
        assert_eq!(seconds(&hops, false, BoxingKind::AllToAll, 16.0), 0.25 + 3.0 + 40.0 + 32.0);
    }

    /// A ring through all 8 ranks of two nodes takes 7 steps, of which one goes between nodes.
    #[test]
    fn flat_rings_add_up_all_steps() {
        let hops = [Hop { steps: 6, ..hop(4, 1.0, 0.5) }, hop(2, 10.0, 4.0)];
        let gather = seconds(&hops, false, BoxingKind::AllGather, 16.0);
        assert_eq!(gather, 0.25 + 6.0 + 10.0 + 8.0);
    }

    #[test]
    fn small_messages_go_along_a_tree() {
        let hops = [hop(64, 1.0, 0.5)];
        assert_eq!(seconds(&hops, true, BoxingKind::AllReduce, 2.0), 0.25 + 2.0 * (6.0 + 1.0));
        let large: f64 = 2.0 * (63.0 + 63.0 / 64.0 * 0.5 * 1e6);
        assert_eq!(
            seconds(&hops, true, BoxingKind::AllReduce, 1e6),
            0.25 + large.min(2.0 * (6.0 + 0.5e6))
        );
    }
}
