//! Encodes the problem as a cost-function network at given prices of memory, and finds its cheapest assignments.
//!
//! Memory enters only as a cost ([`multipliers`]); whether a plan fits is not decided here. Start reading with
//! [`network::build_network`].

pub(super) mod multipliers;
pub(super) mod network;
pub(super) mod warm_start;

use graphc_solver::bound::prove_bound;
use graphc_solver::cutting_planes::MemoryPrices;
use graphc_solver::dual::Messages;
use graphc_solver::minimise::{Course, Effort, Minimum, minimise_network, minimise_on};
use graphc_solver::network::Network;

use self::multipliers::Multipliers;
use self::network::build_network;
use super::problem::Problem;

/// Returns the seconds of an assignment, whatever its memory.
pub(super) fn assignment_seconds(problem: &Problem<'_>, assignment: &[usize]) -> f64 {
    let free = Multipliers::new(problem, 1.0, &MemoryPrices::new());
    let network = build_network(problem, &free);
    network.cost(&extend_labels(&network, assignment))
}

/// Returns a lower bound of the problem without its memory limit.
pub(super) fn relaxed_bound(problem: &Problem<'_>) -> f64 {
    let free = Multipliers::new(problem, 1.0, &MemoryPrices::new());
    prove_bound(&build_network(problem, &free))
}

/// Finds the minimum at given prices of memory, among `allowed` candidates.
pub(super) fn minimise_at_prices(
    problem: &Problem<'_>,
    seconds: f64,
    prices: &MemoryPrices,
    allowed: Option<&[Vec<usize>]>,
    start: Option<&[usize]>,
    effort: Effort,
) -> Minimum {
    let multipliers = Multipliers::new(problem, seconds, prices);
    let Some(allowed) = allowed else {
        return minimise_from_messages(problem, &multipliers, start, effort, None);
    };
    let whole = build_network(problem, &multipliers);
    let start = start.map(|assignment| extend_labels(&whole, assignment));
    let others = (allowed.len()..whole.unary.len()).map(|v| (0..whole.count_labels(v)).collect());
    let kept: Vec<Vec<usize>> = allowed.iter().cloned().chain(others).collect();
    let within = |start: Vec<usize>| -> Option<Vec<usize>> {
        let labels = start.iter().zip(&kept);
        labels.map(|(label, kept)| kept.iter().position(|known| known == label)).collect()
    };
    let start = start.and_then(within);
    let mut found = minimise_network(&whole.with_labels(&kept), start.as_deref(), effort);
    for (label, kept) in found.labels.iter_mut().zip(&kept) {
        *label = kept[*label];
    }
    found
}

/// Finds the minimum at given prices of memory, with costs shifted on from `messages`.
pub(super) fn minimise_from_messages(
    problem: &Problem<'_>,
    multipliers: &Multipliers,
    start: Option<&[usize]>,
    effort: Effort,
    messages: Option<&mut Messages>,
) -> Minimum {
    let whole = build_network(problem, multipliers);
    let start = start.map(|assignment| extend_labels(&whole, assignment));
    minimise_on(&whole, start.as_deref(), effort, messages.map(Course::On))
}

/// Extends the labels of the nodes to all variables, which follow from these: a tensor is boxed if a reader asks for it.
pub(super) fn extend_labels(network: &Network, assignment: &[usize]) -> Vec<usize> {
    let nodes = assignment.len();
    let mut kept: Vec<Vec<usize>> = assignment.iter().map(|&label| vec![label]).collect();
    kept.extend((nodes..network.unary.len()).map(|v| (0..network.count_labels(v)).collect()));
    let folded = network.with_labels(&kept);
    let best = |costs: &Vec<f64>| {
        let better = |best, label| if costs[label] < costs[best] { label } else { best };
        (0..costs.len()).fold(0, better)
    };
    assignment.iter().copied().chain(folded.unary[nodes..].iter().map(best)).collect()
}
