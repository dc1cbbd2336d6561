//! Ties axes if a mesh has so many that the problem is too large: some axes are planned as one, as if 2x2x2x2 were 4x2x2.
//!
//! A node has one choice for both, unless it is pinned. The plan is still one of the mesh as it is. Only the proof is
//! lost: the bound is then that of computing alone.

use graphc_ir::ids::NodeId;
use graphc_ir::mesh::Placement;
use graphc_plan::{Cluster, CompileOptions};

use super::size::programme_size;
use super::{Problem, compute_bound};
use crate::cluster::alpha_beta;
use crate::decisions::Decisions;
use crate::planner::error::PlannerError;

/// The most variables of the integer programme with which all axes are planned by themselves. Planning takes about a microsecond and 20 bytes for
/// each.
const MOST_VARIABLES: usize = 40_000_000;

/// Axes that are planned as one with the axis before.
#[derive(Clone)]
pub struct Tied {
    /// The axes, in the order in which they were tied.
    pub axes: Vec<usize>,
    /// A bound of the problem that the user posed.
    pub bound: f64,
}

/// Builds the problem of these decisions, with as few tied axes as it needs.
///
/// # Errors
/// Returns an error if a pin cannot be fulfilled, if a node has no signature, or if it has too many whichever axes are tied.
pub(super) fn build_problem<'a>(
    decisions: &'a Decisions,
    options: &'a CompileOptions,
    cluster: &'a Cluster,
) -> Result<Problem<'a>, PlannerError> {
    let mut tied = Vec::new();
    let mut problem = Problem::with_tied_axes(decisions, options, cluster, &tied)?;
    // What the nodes compute at least, whatever the layouts.
    let bound = compute_bound(&problem);
    while options.strategy.is_planned() && is_large(&problem) {
        let Some(axis) = next_axis(decisions, cluster, &tied) else { break };
        tied.push(axis);
        problem = Problem::with_tied_axes(decisions, options, cluster, &tied)?;
    }
    let tied = (!tied.is_empty()).then_some(Tied { axes: tied, bound });
    Ok(Problem { tied, ..problem })
}

/// Whether there are too many variables. Most problems have fewer pairs of candidates than the limit, which are counted at once; only for the others
/// variables are counted.
fn is_large(problem: &Problem<'_>) -> bool {
    count_pairs(problem) > MOST_VARIABLES && programme_size(problem).0 > MOST_VARIABLES
}

/// Counts the pairs of candidates. They are no fewer than the variables, because for each pair of layouts there is a pair of candidates.
fn count_pairs(problem: &Problem<'_>) -> usize {
    let count = |node: NodeId| problem.candidates_of(node).len();
    let nodes: usize = problem.candidates.iter().map(|all| all.len()).sum();
    let demands = problem.demands.iter().map(|demand| {
        let made = count(demand.producer);
        let taken = demand.readers.iter().map(|(reader, operands)| count(*reader) * operands.len());
        (1 + made).saturating_mul(made + taken.sum::<usize>())
    });
    let backs = problem.write_backs.iter().map(|back| count(back.update) * count(back.variable));
    demands.chain(backs).fold(nodes, usize::saturating_add)
}

/// Chooses the axis to tie next to the one before it: the pair whose links are most alike; of equals the pair that makes the smallest group,
/// outermost first.
fn next_axis(decisions: &Decisions, cluster: &Cluster, tied: &[usize]) -> Option<usize> {
    let axes = |place: &&Placement| place.hierarchy.len();
    let place = decisions.staging.placement.iter().max_by_key(axes)?;
    let pairs = (1..place.hierarchy.len()).filter(|axis| {
        !tied.contains(axis)
            && place.hierarchy[*axis] > 1
            && partner_axis(&place.hierarchy, *axis).is_some()
    });
    let score = |axis: usize| {
        let other = partner_axis(&place.hierarchy, axis).unwrap_or(axis);
        let [slow, fast] = [other, axis].map(|axis| axis_seconds(cluster, place, axis));
        ((slow / fast).ln().abs(), ranks_together(place, tied, axis))
    };
    pairs.min_by(|&a, &b| {
        let (a, b) = (score(a), score(b));
        a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
    })
}

/// Returns the axis before this one that has more than one rank.
pub(super) fn partner_axis(hierarchy: &[usize], axis: usize) -> Option<usize> {
    (0..axis).rev().find(|&before| hierarchy[before] > 1)
}

/// Returns the seconds of a megabyte along an axis.
fn axis_seconds(cluster: &Cluster, place: &Placement, axis: usize) -> f64 {
    let stride: usize = place.hierarchy[axis + 1..].iter().product();
    let group: Vec<u32> = (0..place.hierarchy[axis]).map(|at| place.ranks[at * stride]).collect();
    let link = alpha_beta(cluster, &group, Some(axis));
    (link.alpha + link.beta * 1e6).max(f64::MIN_POSITIVE)
}

/// Returns the number of ranks of the axes that are one if `axis` is tied too.
fn ranks_together(place: &Placement, tied: &[usize], axis: usize) -> usize {
    let is_tied = |at: usize| at == axis || tied.contains(&at) || place.hierarchy[at] == 1;
    let first = (0..axis).rev().find(|&at| !is_tied(at)).unwrap_or(0);
    let beyond = (axis + 1..place.hierarchy.len()).find(|&at| !is_tied(at));
    place.hierarchy[first..beyond.unwrap_or(place.hierarchy.len())].iter().product()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_of_axes_in_a_row() {
        let place = Placement::mesh(&[2, 2, 2, 2]).expect("a placement");
        assert_eq!(ranks_together(&place, &[], 1), 4);
        assert_eq!(ranks_together(&place, &[1], 2), 8);
        assert_eq!(ranks_together(&place, &[1], 3), 4);
        assert_eq!(ranks_together(&place, &[1, 3], 2), 16);
    }
}
