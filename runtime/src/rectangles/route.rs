//! Routes: from whom a rank gets the elements of its shard when a tensor changes its layout.
//!
//! A shard is covered by the rectangles in which it overlaps the shards of the old layout. Of ranks that hold the same
//! (broadcast axes) one is chosen: the rank itself where it is among them, else by position, so that the load is
//! balanced. Partial values are combined in the order of the ranks' coordinates. That order is the same on every rank and
//! in every run, so results are the same bits.
//!
//! Towards a partial layout the rank at coordinate 0 of the partial axes gets the value, and the others hold the
//! identity.

use graphc_ir::mesh::unravel_position;
use graphc_ir::sbp::{NdSbp, ReduceKind, Sbp};
use graphc_ir::shard::Rect;
use graphc_plan::Layout;

/// A rectangle that a rank gets from another, or from itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contribution {
    /// The rank that holds it.
    pub(crate) source: u32,
    /// The rectangle, in the whole tensor's coordinates.
    pub(crate) part: Rect,
    /// The reduction that combines it with earlier contributions; without one it is copied.
    pub(crate) combine: Option<ReduceKind>,
}

/// Returns how the partial axes of a layout combine; `None` where there are none.
///
/// # Errors
/// Where axes differ: a maximum of sums is no sum of maxima.
pub(crate) fn partial_kind(sbp: &NdSbp) -> Result<Option<ReduceKind>, String> {
    let mut kinds = sbp.0.iter().filter_map(|sbp| match sbp {
        Sbp::Partial(kind) => Some(*kind),
        _ => None,
    });
    let first = kinds.next();
    if kinds.any(|kind| Some(kind) != first) {
        return Err(format!("partial values of several kinds in one layout ({sbp})"));
    }
    Ok(first)
}

/// Returns the kind of the identity that `rank` holds in a partial layout; `None` where it holds a value.
pub(crate) fn masked_kind(layout: &Layout, rank: u32) -> Option<ReduceKind> {
    let coordinates = layout.coordinates(rank)?;
    layout.sbp.0.iter().zip(coordinates).find_map(|(sbp, coordinate)| match sbp {
        Sbp::Partial(kind) if coordinate > 0 => Some(*kind),
        _ => None,
    })
}

/// Lists the contributions that `rank` of `to` gets from the ranks of `from`, in the order in which they are combined.
///
/// # Errors
/// Where the layouts are not of one tensor or `rank` is not of `to`.
pub(crate) fn list_contributions(
    from: &Layout,
    to: &Layout,
    rank: u32,
    microbatch: usize,
    microbatches: usize,
) -> Result<Vec<Contribution>, String> {
    if (from.dtype, &from.shape) != (to.dtype, &to.shape) {
        return Err(format!("{} cannot become {}", from.ty(), to.ty()));
    }
    let kind = partial_kind(&from.sbp)?;
    partial_kind(&to.sbp)?;
    let place = to.ranks.iter().position(|&r| r == rank);
    let target = to.rect(rank, microbatch, microbatches);
    let (Some(place), Some(target)) = (place, target) else {
        return Err(format!("rank {rank} is not of {:?}", to.ranks));
    };
    if masked_kind(to, rank).is_some() {
        return Ok(Vec::new());
    }
    let mut result = Vec::new();
    for position in 0..from.ranks.len() {
        let coordinates = unravel_position(position, &from.hierarchy);
        let replicas = list_replicas(from, &coordinates);
        if replicas.first() != Some(&from.ranks[position]) {
            continue;
        }
        let held = from.rect(from.ranks[position], microbatch, microbatches);
        let Some(part) = held.and_then(|held| held.intersect(&target)) else { continue };
        let itself = replicas.contains(&rank).then_some(rank);
        let source = itself.unwrap_or(replicas[place % replicas.len()]);
        let later = coordinates.iter().zip(&from.sbp.0).any(|(&c, sbp)| c > 0 && sbp.is_partial());
        result.push(Contribution { source, part, combine: kind.filter(|_| later) });
    }
    check_covered(&target, &result)?;
    Ok(result)
}

/// Lists the ranks that hold the same as the one at `coordinates`: those that differ from it along broadcast axes
/// alone.
fn list_replicas(layout: &Layout, coordinates: &[usize]) -> Vec<u32> {
    let same = |position: &usize| {
        let other = unravel_position(*position, &layout.hierarchy);
        let differs = |axis: usize| other[axis] != coordinates[axis];
        (0..other.len()).all(|axis| layout.sbp.0[axis] == Sbp::Broadcast || !differs(axis))
    };
    (0..layout.ranks.len()).filter(same).map(|position| layout.ranks[position]).collect()
}

/// Returns the contributions to `rank` where only `axis` changes, from the ranks along that axis: in a slice or a mask from
/// itself alone.
///
/// # Errors
/// Where the layouts do not differ as a step along one axis does.
pub(crate) fn along_axis(
    from: &Layout,
    to: &Layout,
    axis: usize,
    rank: u32,
    microbatch: usize,
    microbatches: usize,
) -> Result<Vec<Contribution>, String> {
    let same_mesh = from.ranks == to.ranks && from.hierarchy == to.hierarchy;
    if !same_mesh || (from.dtype, &from.shape) != (to.dtype, &to.shape) {
        return Err("a step along one axis between two meshes or two tensors".into());
    }
    let target = to.rect(rank, microbatch, microbatches);
    let (Some(group), Some(target)) = (from.axis_group(rank, axis), target) else {
        return Err(format!("rank {rank} is not of {:?}", from.ranks));
    };
    let coordinate = group.iter().position(|&r| r == rank).unwrap_or(0);
    let (kind, alone) = match from.sbp.0[axis] {
        Sbp::Partial(kind) => (Some(kind), false),
        Sbp::Split(_) => (None, false),
        Sbp::Broadcast => (None, true),
    };
    if to.sbp.0[axis].is_partial() && coordinate > 0 {
        return Ok(Vec::new());
    }
    let mut result = Vec::new();
    for (index, &source) in group.iter().enumerate().filter(|&(i, _)| !alone || i == coordinate) {
        let held = from.rect(source, microbatch, microbatches);
        let Some(part) = held.and_then(|held| held.intersect(&target)) else { continue };
        result.push(Contribution { source, part, combine: kind.filter(|_| index > 0) });
    }
    check_covered(&target, &result)?;
    Ok(result)
}

/// Checks that every element of the target is copied once; what is combined comes on top.
fn check_covered(target: &Rect, contributions: &[Contribution]) -> Result<(), String> {
    let copied = contributions.iter().filter(|c| c.combine.is_none());
    let elements: usize = copied.map(|c| c.part.elements()).sum();
    if elements == target.elements() {
        return Ok(());
    }
    Err(format!("of {} elements {elements} have a source", target.elements()))
}

#[cfg(test)]
mod tests {
    use graphc_ir::types::DType;

    use super::*;

    fn layout(ranks: &[u32], hierarchy: &[usize], sbp: &str) -> Layout {
        Layout {
            shape: vec![4, 6],
            dtype: DType::F32,
            microbatch_dim: None,
            ranks: ranks.to_vec(),
            hierarchy: hierarchy.to_vec(),
            sbp: sbp.parse().expect("an SBP"),
        }
    }

    fn sources(from: &Layout, to: &Layout, rank: u32) -> Vec<u32> {
        let all = list_contributions(from, to, rank, 0, 1).expect("one tensor");
        all.iter().map(|c| c.source).collect()
    }

    #[test]
    fn replicas_share_the_load_and_a_rank_prefers_itself() {
        let from = layout(&[0, 1], &[2], "B");
        let to = layout(&[1, 2, 3], &[3], "B");
        assert_eq!([1, 2, 3].map(|rank| sources(&from, &to, rank)), [[1], [1], [0]]);
    }

    #[test]
    fn partial_values_come_in_coordinate_order_and_go_to_the_first() {
        let from = layout(&[2, 0, 1, 3], &[2, 2], "P,S(1)");
        let to = layout(&[0, 1], &[2], "P");
        assert_eq!(sources(&from, &to, 0), [2, 0, 1, 3]);
        assert!(sources(&from, &to, 1).is_empty());
        assert_eq!(masked_kind(&to, 1), Some(ReduceKind::Sum));
    }

    #[test]
    fn a_step_that_leaves_elements_without_source_is_an_error() {
        // S(0) nests inside the axis before it, so this is no step along one axis.
        let from = layout(&[0, 1, 2, 3], &[2, 2], "P,S(0)");
        let to = layout(&[0, 1, 2, 3], &[2, 2], "S(0),S(0)");
        assert!(along_axis(&from, &to, 0, 1, 0, 1).is_err());
    }

    #[test]
    fn kinds_do_not_mix() {
        let from = layout(&[0, 1, 2, 3], &[2, 2], "P(sum),P(max)");
        let error = list_contributions(&from, &from, 0, 0, 1).expect_err("two kinds");
        assert!(error.contains("several kinds"), "{error}");
    }
}
