//! What things cost, in seconds: one set of formulas for the planner and the null device.
//!
//! Compute by a roofline of the device, collectives by the alpha-beta model of ring algorithms. Start reading with
//! [`compute_seconds`] and [`collective_seconds`].

mod compute;

use graphc_ir::plan::{BoxingKind, Cluster};

use crate::cluster::AlphaBeta;

pub use compute::{NodeWork, compute_seconds, matmul_efficiency, node_work, peak_flops, roofline};

/// Seconds of a collective on a ring of `ranks` ranks, of which the busiest has `bytes`: those of the full tensor
/// of all-reduce, of the input of reduce-scatter and all-to-all, of the output of all-gather. 0 for a ring of one
/// and for local steps.
///
/// All-reduce is a reduce-scatter and an all-gather; each of these, and an all-to-all, takes `n - 1` steps in which
/// a rank sends `1/n` of the bytes (Thakur et al., 2005, section 4). Each is one kernel, and is launched once.
pub fn collective_seconds(
    cluster: &Cluster,
    link: AlphaBeta,
    kind: BoxingKind,
    ranks: usize,
    bytes: f64,
) -> f64 {
    if ranks < 2 {
        return 0.0;
    }
    let pass = (ranks - 1) as f64 * link.alpha + sent(ranks, bytes) * link.beta;
    let launch = cluster.device.launch;
    match kind {
        BoxingKind::AllReduce => launch + 2.0 * pass,
        BoxingKind::ReduceScatter | BoxingKind::AllGather | BoxingKind::AllToAll => launch + pass,
        BoxingKind::Slice | BoxingKind::Mask | BoxingKind::SendRecv => 0.0,
    }
}

/// Bytes that the busiest rank sends in a collective of [`collective_seconds`].
pub fn collective_bytes(kind: BoxingKind, ranks: usize, bytes: f64) -> f64 {
    match kind {
        BoxingKind::AllReduce => 2.0 * sent(ranks, bytes),
        BoxingKind::ReduceScatter | BoxingKind::AllGather | BoxingKind::AllToAll => {
            sent(ranks, bytes)
        }
        BoxingKind::Slice | BoxingKind::Mask | BoxingKind::SendRecv => 0.0,
    }
}

fn sent(ranks: usize, bytes: f64) -> f64 {
    (ranks - 1) as f64 / ranks as f64 * bytes
}

/// Seconds of a point-to-point exchange whose busiest rank sends or receives `bytes` in `messages` messages: they
/// are packed, sent and unpacked.
pub fn exchange_seconds(cluster: &Cluster, link: AlphaBeta, messages: usize, bytes: f64) -> f64 {
    messages as f64 * link.alpha + bytes * link.beta + 2.0 * local_seconds(cluster, bytes)
}

/// Seconds of a local kernel that reads and writes `bytes` bytes: a slice, a mask, a feed.
pub fn local_seconds(cluster: &Cluster, bytes: f64) -> f64 {
    cluster.device.launch + 2.0 * bytes / cluster.device.bandwidth
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_by_hand() {
        let link = AlphaBeta { alpha: 1.0, beta: 0.5 };
        let mut cluster = crate::cluster::preset("cpu").expect("a preset");
        cluster.device.launch = 0.25;
        let seconds = |kind, ranks| collective_seconds(&cluster, link, kind, ranks, 16.0);
        assert_eq!(seconds(BoxingKind::AllReduce, 4), 0.25 + 2.0 * (3.0 + 6.0));
        assert_eq!(seconds(BoxingKind::AllGather, 4), 0.25 + 3.0 + 6.0);
        assert_eq!(seconds(BoxingKind::Slice, 4), 0.0);
        assert_eq!(seconds(BoxingKind::AllReduce, 1), 0.0);
        assert_eq!(collective_bytes(BoxingKind::AllReduce, 4, 16.0), 24.0);
    }
}
