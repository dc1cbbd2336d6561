//! Single-axis steps of boxing: lists the legal ones, their results and their prices.

use graphc_ir::sbp::{NdSbp, ReduceKind, Sbp};
use graphc_plan::{Cluster, Layout};

use super::BoxingStep;
use crate::cluster::{AlphaBeta, Link, alpha_beta, find_link};
use crate::cost::{collective_bytes, collective_seconds, local_seconds};

/// Lists all steps that are legal from `sbp`, with the SBPs that they lead to. Partial values of `kinds` may be made.
///
/// Splits of one dim over several axes nest in the order of the axes, so only the innermost of them can be removed or added by the ranks of one axis
/// alone. Axes of extent 1 split nothing and have no steps.
pub(super) fn legal_steps(
    sbp: &NdSbp,
    hierarchy: &[usize],
    rank: usize,
    kinds: &[ReduceKind],
) -> Vec<(BoxingStep, NdSbp)> {
    let mut steps = Vec::new();
    for axis in (0..hierarchy.len()).filter(|&axis| hierarchy[axis] > 1) {
        for target in list_targets(rank, kinds) {
            let Some(step) = find_step(sbp.0[axis], target, axis) else { continue };
            if is_innermost(sbp, hierarchy, axis, sbp.0[axis])
                && is_innermost(sbp, hierarchy, axis, target)
            {
                let mut after = sbp.clone();
                after.0[axis] = target;
                steps.push((step, after));
            }
        }
    }
    steps
}

fn list_targets(rank: usize, kinds: &[ReduceKind]) -> impl Iterator<Item = Sbp> {
    let splits = (0..rank).map(Sbp::Split);
    let partials = kinds.iter().map(|&kind| Sbp::Partial(kind));
    std::iter::once(Sbp::Broadcast).chain(splits).chain(partials)
}

/// Whether no later axis splits the dim that `of` splits.
fn is_innermost(sbp: &NdSbp, hierarchy: &[usize], axis: usize, of: Sbp) -> bool {
    let splits = |later: usize| hierarchy[later] > 1 && sbp.0[later] == of;
    !matches!(of, Sbp::Split(_)) || !(axis + 1..hierarchy.len()).any(splits)
}

fn find_step(from: Sbp, to: Sbp, axis: usize) -> Option<BoxingStep> {
    match (from, to) {
        (Sbp::Partial(kind), Sbp::Broadcast) => Some(BoxingStep::AllReduce { axis, kind }),
        (Sbp::Partial(kind), Sbp::Split(dim)) => {
            Some(BoxingStep::ReduceScatter { axis, kind, dim })
        }
        (Sbp::Split(dim), Sbp::Broadcast) => Some(BoxingStep::AllGather { axis, dim }),
        (Sbp::Split(from), Sbp::Split(to)) if from != to => {
            Some(BoxingStep::AllToAll { axis, from, to })
        }
        (Sbp::Broadcast, Sbp::Split(dim)) => Some(BoxingStep::Slice { axis, dim }),
        (Sbp::Broadcast, Sbp::Partial(kind)) => Some(BoxingStep::Mask { axis, kind }),
        _ => None,
    }
}

/// The links of a mesh.
pub(super) struct Links {
    extents: Vec<usize>,
    /// The different links of the groups of ranks that differ in one axis alone, by axis.
    of_axis: Vec<Vec<Link>>,
    /// The link of all ranks.
    pub all: AlphaBeta,
}

impl Links {
    /// Finds the links of a layout's mesh.
    pub(super) fn new(cluster: &Cluster, place: &Layout) -> Self {
        let of_axis = |axis: usize| {
            let mut links: Vec<Link> = Vec::new();
            for group in axis_groups(place, axis) {
                let link = find_link(cluster, &group, Some(axis));
                if !links.contains(&link) {
                    links.push(link);
                }
            }
            links
        };
        let of_axis = (0..place.hierarchy.len()).map(of_axis).collect();
        let mut ranks = place.ranks.clone();
        ranks.sort_unstable();
        let all = alpha_beta(cluster, &ranks, None);
        Self { extents: place.hierarchy.clone(), of_axis, all }
    }

    /// Returns the seconds of a step, the part of them that is latency of a collective, and the bytes that the busiest rank sends or copies. It takes
    /// the bytes of a shard before and after the step.
    pub(super) fn price(
        &self,
        cluster: &Cluster,
        step: BoxingStep,
        before: u64,
        after: u64,
    ) -> (f64, f64, u64) {
        let Some(axis) = step.axis() else { return (0.0, 0.0, 0) };
        if let BoxingStep::Slice { .. } | BoxingStep::Mask { .. } = step {
            return (local_seconds(cluster, after as f64), 0.0, after);
        }
        let (kind, ranks) = (step.boxing_kind(), self.extents[axis]);
        let bytes = before.max(after) as f64;
        let seconds = |bytes| move |link| collective_seconds(cluster, link, kind, bytes);
        let slowest = |bytes| self.of_axis[axis].iter().map(seconds(bytes)).fold(0.0, f64::max);
        (slowest(bytes), slowest(0.0), collective_bytes(kind, ranks, bytes) as u64)
    }
}

/// Lists the groups of ranks that differ in one axis alone.
fn axis_groups(layout: &Layout, axis: usize) -> impl Iterator<Item = Vec<u32>> {
    let stride: usize = layout.hierarchy[axis + 1..].iter().product();
    let extent = layout.hierarchy[axis];
    let firsts =
        (0..layout.ranks.len()).filter(move |position| (position / stride).is_multiple_of(extent));
    firsts.map(move |first| (0..extent).map(|i| layout.ranks[first + i * stride]).collect())
}
