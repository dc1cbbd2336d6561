//! Single-axis steps: which are legal, what they lead to, what they cost.

use graphc_ir::plan::Layout;
use graphc_ir::sbp::{NdSbp, ReduceKind, Sbp};

use super::{BoxingStep, Prices, shard_bytes};
use crate::cluster::link;
use crate::cost::{collective_bytes, collective_seconds, local_seconds};

/// All steps that are legal from `sbp`, with what they lead to. Partial values of `kinds` may be made.
///
/// Splits of one dim over several axes nest in the order of the axes, so only the innermost of them can be taken
/// away or added by the ranks of one axis alone. Axes of extent 1 split nothing and have no steps.
pub fn legal_steps(
    sbp: &NdSbp,
    hierarchy: &[usize],
    rank: usize,
    kinds: &[ReduceKind],
) -> Vec<(BoxingStep, NdSbp)> {
    let mut steps = Vec::new();
    for axis in (0..hierarchy.len()).filter(|&axis| hierarchy[axis] > 1) {
        for target in targets(rank, kinds) {
            let Some(step) = step(sbp.0[axis], target, axis) else { continue };
            if innermost(sbp, hierarchy, axis, sbp.0[axis])
                && innermost(sbp, hierarchy, axis, target)
            {
                let mut after = sbp.clone();
                after.0[axis] = target;
                steps.push((step, after));
            }
        }
    }
    steps
}

fn targets(rank: usize, kinds: &[ReduceKind]) -> impl Iterator<Item = Sbp> {
    let splits = (0..rank).map(Sbp::Split);
    let partials = kinds.iter().map(|&kind| Sbp::Partial(kind));
    std::iter::once(Sbp::Broadcast).chain(splits).chain(partials)
}

/// Whether no later axis splits the dim that `of` splits.
fn innermost(sbp: &NdSbp, hierarchy: &[usize], axis: usize, of: Sbp) -> bool {
    let splits = |later: usize| hierarchy[later] > 1 && sbp.0[later] == of;
    !matches!(of, Sbp::Split(_)) || !(axis + 1..hierarchy.len()).any(splits)
}

fn step(from: Sbp, to: Sbp, axis: usize) -> Option<BoxingStep> {
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

/// Seconds of a step and bytes that the busiest rank sends or copies.
pub fn price(prices: Prices<'_>, step: BoxingStep, before: &Layout, after: &Layout) -> (f64, u64) {
    let kind = step.boxing_kind();
    let size = |layout| shard_bytes(layout, prices.microbatches);
    let (Some(axis), extent) = (step.axis(), size(before).max(size(after))) else {
        return (0.0, 0);
    };
    match step {
        BoxingStep::Slice { .. } | BoxingStep::Mask { .. } => {
            let bytes = size(after);
            (local_seconds(prices.cluster, bytes as f64), bytes)
        }
        _ => {
            let (ranks, bytes) = (before.hierarchy[axis], extent as f64);
            let seconds = |group: &[u32]| {
                let link = link(prices.cluster, group, Some(axis));
                collective_seconds(prices.cluster, &link, kind, bytes)
            };
            let slowest = groups(before, axis).map(|group| seconds(&group)).fold(0.0, f64::max);
            (slowest, collective_bytes(kind, ranks, bytes) as u64)
        }
    }
}

/// The groups of ranks that differ in one axis alone.
fn groups(layout: &Layout, axis: usize) -> impl Iterator<Item = Vec<u32>> {
    let stride: usize = layout.hierarchy[axis + 1..].iter().product();
    let extent = layout.hierarchy[axis];
    let firsts =
        (0..layout.ranks.len()).filter(move |position| (position / stride).is_multiple_of(extent));
    firsts.map(move |first| (0..extent).map(|i| layout.ranks[first + i * stride]).collect())
}
