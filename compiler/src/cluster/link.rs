//! Finds the levels of links through which the ranks of a group reach each other.
//!
//! A collective goes through these levels. The ranks of a node share the tensor first, and each exchanges its part
//! with the ranks of other nodes that hold the same part. So a group with `k` ranks in a node has `k` of the node's
//! shares of its network cards. A level's bandwidth is that of a rank while all ranks of its node send at once, as
//! symmetric ranks do. So contention is part of the constant. Constants that a cluster file gives by axis
//! (`[[axis]]`) are taken as they are, as one ring.

use std::collections::BTreeMap;

use graphc_plan::Cluster;

use super::{AlphaBeta, alpha_beta, of_level};

/// The levels of links that join the ranks of a group, innermost first.
///
/// A level's bandwidth is that of each rank while all ranks below it use it: eight ranks of a node with four network cards of 25 GB/s have 12.5 GB/s
/// each. In a collective over several levels each rank of a node carries its own part of the tensor to the other nodes. So a group that has k ranks
/// in each node has k shares of the node's cards, and the other groups of the node, which communicate at the same time, have theirs. If groups that
/// share nodes reach less with a framework (`Framework::shared_nodes`), that is counted here.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// The levels, innermost first. A group of one rank has none.
    pub(crate) hops: Vec<Hop>,
    /// Whether messages may also go along a tree, if that is faster. They may not if alpha and beta are given by axis.
    pub(crate) trees: bool,
}

/// One level of a [`Link`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Hop {
    /// The number of ranks, or of groups joined by the level below.
    pub ranks: usize,
    /// The steps that a ring takes over links of this level.
    pub steps: usize,
    /// The constants.
    pub link: AlphaBeta,
}

impl Hop {
    /// Returns a level over which a ring takes a step for each rank but one.
    pub(crate) fn new(ranks: usize, link: AlphaBeta) -> Self {
        Self { ranks, steps: ranks - 1, link }
    }
}

impl Link {
    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.hops.iter().map(|hop| hop.ranks).product()
    }

    /// Returns numbers that are equal for equal links.
    pub fn key(&self) -> Vec<u64> {
        let hop = |hop: &Hop| {
            let Hop { ranks, steps, link } = hop;
            [*ranks as u64, *steps as u64, link.alpha.to_bits(), link.beta.to_bits()]
        };
        self.hops.iter().flat_map(hop).collect()
    }

    fn single_hop(ranks: usize, link: AlphaBeta, trees: bool) -> Self {
        Self { hops: vec![Hop::new(ranks, link)], trees }
    }
}

/// Finds the link of a group of ranks, along mesh axis `axis` if the cluster gives constants by axis. A group that has unequal numbers of ranks in
/// the nodes communicates along one ring, at the pace of its slowest link.
pub fn find_link(cluster: &Cluster, ranks: &[u32], axis: Option<usize>) -> Link {
    if ranks.len() < 2 {
        return Link { hops: Vec::new(), trees: false };
    }
    let slowest = alpha_beta(cluster, ranks, axis);
    if !cluster.axes.is_empty() || cluster.levels.is_empty() {
        return Link::single_hop(ranks.len(), slowest, cluster.axes.is_empty());
    }
    by_level(cluster, ranks).unwrap_or_else(|| Link::single_hop(ranks.len(), slowest, true))
}

/// Finds the levels that join the ranks, or `None` if a level joins unequal numbers of them.
fn by_level(cluster: &Cluster, ranks: &[u32]) -> Option<Link> {
    let (mut hops, mut block, mut below) = (Vec::new(), 1usize, 1);
    let last = cluster.levels.len() - 1;
    for (index, level) in cluster.levels.iter().enumerate() {
        // How many ranks the level below joins: those of a node, where this one joins nodes.
        let node = block;
        // What no level joins goes over the last.
        block = if level.size == 0 || index == last {
            usize::MAX
        } else {
            block.saturating_mul(level.size)
        };
        let mut members: BTreeMap<usize, usize> = BTreeMap::new();
        for &rank in ranks {
            *members.entry(rank as usize / block).or_default() += 1;
        }
        let here = *members.values().next()?;
        if members.values().any(|&count| count != here) {
            return None;
        }
        if here > below {
            let mut link = of_level(cluster, index);
            if (2..node).contains(&below) {
                link.beta /= cluster.framework.shared_nodes;
            }
            hops.push(Hop::new(here / below, link));
        }
        below = here;
        if members.len() == 1 {
            break;
        }
    }
    if cluster.framework.flat_rings {
        flatten_rings(&mut hops);
    }
    Some(Link { hops, trees: true })
}

/// Counts the steps of a ring through all ranks: it takes those of an inner level once in each group that the outer levels join.
fn flatten_rings(hops: &mut [Hop]) {
    let mut groups = 1;
    for hop in hops.iter_mut().rev() {
        hop.steps = (hop.ranks - 1) * groups;
        groups *= hop.ranks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::preset;

    #[test]
    fn a_group_is_cut_into_levels() {
        let cluster = preset("dgx-a100").expect("a preset");
        let ranks = |ranks: &[u32]| -> Vec<usize> {
            find_link(&cluster, ranks, None).hops.iter().map(|hop| hop.ranks).collect()
        };
        assert_eq!(ranks(&[0, 1, 2, 3]), [4]);
        assert_eq!(ranks(&[0, 8, 16]), [3], "one rank in each node");
        assert_eq!(ranks(&[0, 4, 8, 12, 16, 20]), [2, 3]);
        assert_eq!(ranks(&[0, 1, 2, 8]), [4], "3 in one node and 1 in the other: one ring");
        assert_eq!(ranks(&[7]), Vec::<usize>::new());
        assert_eq!(find_link(&cluster, &[0, 1, 2, 8], None).hops[0].link, of_level(&cluster, 1));
    }

    #[test]
    fn flat_rings_take_a_step_for_each_rank() {
        let mut cluster = preset("dgx-a100").expect("a preset");
        let ranks: Vec<u32> = (0..32).collect();
        let link = |cluster: &Cluster| find_link(cluster, &ranks, None);
        let steps = |link: &Link| -> Vec<usize> { link.hops.iter().map(|hop| hop.steps).collect() };
        let shared = link(&cluster);
        cluster.framework.flat_rings = true;
        let flat = link(&cluster);
        assert_eq!((steps(&shared), steps(&flat)), (vec![7, 3], vec![7 * 4, 3]));
        assert_ne!(shared.key(), flat.key(), "they are priced apart");
        let near: Vec<u32> = (0..8).collect();
        assert_eq!(steps(&find_link(&cluster, &near, None)), [7], "within a node");
    }

    #[test]
    fn groups_that_share_nodes_reach_a_share_between_them() {
        let mut cluster = preset("dgx-a100").expect("a preset");
        let beta = |cluster: &Cluster, ranks: &[u32]| {
            find_link(cluster, ranks, None).hops.last().expect("several ranks").link.beta
        };
        let (near, whole) = (beta(&cluster, &[0, 1]), beta(&cluster, &[0, 8]));
        let all: Vec<u32> = (0..16).collect();
        cluster.framework.shared_nodes = 0.5;
        assert_eq!(beta(&cluster, &[0, 8]), whole, "one rank in each node");
        assert_eq!(beta(&cluster, &all), whole, "all ranks of each node");
        assert_eq!(beta(&cluster, &[0, 4, 8, 12]), 2.0 * whole, "two ranks in each node");
        assert_eq!(beta(&cluster, &[0, 1]), near, "within a node");
    }
}
