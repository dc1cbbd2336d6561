//! Passes on a plan and messages from the search for one form of a model to the search for another.
//!
//! Both forms are mostly alike, so plan and messages of the one are near those of the other. This is for forms with enough memory. The second search
//! proves no more than the bound of the first. It ends as soon as it is proven that the second form has no plan below that bound. If the first sweeps
//! prove this, it ends before its dive: the first bound took many sweeps, so there is little to be found.

use graphc_solver::cutting_planes::MemoryPrices;
use graphc_solver::dual::Messages;
use graphc_solver::minimise::{Course, Effort, Minimum, Reduced};
use graphc_solver::network::Network;

use super::extend_labels;
use super::multipliers::Multipliers;
use super::network::build_network;
use crate::planner::problem::Problem;

/// A form that was planned without a memory limit.
#[derive(Clone, Debug)]
pub(crate) struct WarmStart {
    /// The op of each node, and the number of its candidates.
    nodes: Vec<(String, usize)>,
    /// The candidate that was chosen for each node.
    chosen: Vec<usize>,
    /// The node of each variable of the network.
    origin: Vec<usize>,
    messages: Messages,
    /// A lower bound of all plans of the form.
    bound: f64,
}

/// The knowledge with which the search for a form begins.
#[derive(Clone, Copy)]
pub struct PriorKnowledge<'a> {
    /// The cost below which plans are of interest.
    pub ceiling: f64,
    /// The warm start from the search for another form.
    pub(crate) warm_start: Option<&'a WarmStart>,
}

impl PriorKnowledge<'_> {
    /// The knowledge before the search for the first form: none.
    pub const NOTHING: Self = Self { ceiling: f64::INFINITY, warm_start: None };
}

/// Finds the minimum when memory costs nothing, starting from a plan that is known to be sensible, with the warm start for other forms.
pub(crate) fn minimise_cold(
    problem: &Problem<'_>,
    reduced: Reduced<'_>,
    (sensible, ceiling): (&[usize], f64),
    effort: Effort,
) -> (Minimum, Option<WarmStart>) {
    let network = reduced.network;
    let (start, effort) = (extend_labels(network, sensible), Effort { ceiling, ..effort });
    let mut messages = Messages::default();
    let course = Some(Course::To(&mut messages));
    let found = reduced.minimise(Some(&start), effort, course);
    let nodes = list_nodes(problem);
    let chosen = found.labels[..nodes.len()].to_vec();
    let (origin, bound) = (network.origin.clone(), found.bound);
    let warm_start =
        problem.tied.is_none().then_some(WarmStart { nodes, chosen, origin, messages, bound });
    (found, warm_start)
}

/// Finds the minimum for another form, using a warm start. No more is proven than for the first form, because the bound of both is no higher than that. If
/// a few sweeps prove as much, no plan is searched for but the first form's: the bound that many sweeps have proven of the first is so near to its
/// best plan that the other form is at most a little better.
pub(crate) fn minimise_warm(
    problem: &Problem<'_>,
    reduced: Reduced<'_>,
    (sensible, ceiling): (&[usize], f64),
    warm_start: &WarmStart,
    effort: Effort,
) -> Minimum {
    let network = reduced.network;
    let nodes = list_nodes(problem);
    let same = Same::new(&warm_start.nodes, &nodes);
    let chosen = |node: usize| {
        same.other_node(node).map_or(sensible[node], |other| warm_start.chosen[other])
    };
    let chosen: Vec<usize> = (0..nodes.len()).map(chosen).collect();
    let starts = [sensible, &chosen].map(|plan| extend_labels(network, plan));
    let start = if network.cost(&starts[1]) < network.cost(&starts[0]) { 1 } else { 0 };
    let names = same.other_variables(&network.origin, &warm_start.origin);
    // Messages that others have left are good from the start.
    let effort = Effort { ceiling, enough: warm_start.bound, dive: 0, ..effort };
    let course = Some(Course::From(&warm_start.messages, &names));
    reduced.minimise(Some(&starts[start]), effort, course)
}

/// Builds the network of the problem when memory costs nothing.
pub(crate) fn free_network(problem: &Problem<'_>) -> Network {
    let multipliers = Multipliers::new(problem, 1.0, &MemoryPrices::new());
    build_network(problem, &multipliers)
}

fn list_nodes(problem: &Problem<'_>) -> Vec<(String, usize)> {
    let nodes = problem.decisions.graph().nodes.iter().zip(problem.candidates.iter());
    nodes.map(|(node, candidates)| (node.op.name().to_owned(), candidates.len())).collect()
}

/// The nodes that two orders have in common: all before the first that differs, and all after the last.
struct Same {
    before: usize,
    behind: usize,
    others: usize,
    own: usize,
}

impl Same {
    fn new(others: &[(String, usize)], own: &[(String, usize)]) -> Self {
        let before = others.iter().zip(own).take_while(|(a, b)| a == b).count();
        let shorter = others.len().min(own.len()) - before;
        let behind = others.iter().rev().zip(own.iter().rev()).take(shorter);
        let behind = behind.take_while(|(a, b)| a == b).count();
        Self { before, behind, others: others.len(), own: own.len() }
    }

    /// Returns the other form's node that is the same as a node of this one.
    fn other_node(&self, node: usize) -> Option<usize> {
        match self.own - node {
            _ if node < self.before => Some(node),
            from_end if from_end <= self.behind => Some(self.others - from_end),
            _ => None,
        }
    }

    /// Returns the other form's variables that are the same as these, by their nodes. Those that it lacks get numbers that it does not have.
    fn other_variables(&self, own: &[usize], others: &[usize]) -> Vec<usize> {
        let mut of_node: Vec<Vec<usize>> = vec![Vec::new(); self.others];
        for (variable, &node) in others.iter().enumerate() {
            of_node[node].push(variable);
        }
        let mut seen = vec![0; self.own];
        let mut name = |(variable, &node): (usize, &usize)| {
            let at = seen[node];
            seen[node] += 1;
            let same = self.other_node(node).and_then(|other| of_node[other].get(at).copied());
            same.unwrap_or(others.len() + variable)
        };
        own.iter().enumerate().map(&mut name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_before_and_behind_the_difference_is_the_same() {
        let nodes = |ops: &[&str]| -> Vec<(String, usize)> {
            ops.iter().map(|op| (op.to_string(), 2)).collect()
        };
        let others = nodes(&["matmul", "relu", "cross_entropy", "matmul", "update"]);
        let own = nodes(&["matmul", "relu", "max", "exp", "matmul", "update"]);
        let same = Same::new(&others, &own);
        let found: Vec<Option<usize>> = (0..own.len()).map(|node| same.other_node(node)).collect();
        assert_eq!(found, [Some(0), Some(1), None, None, Some(3), Some(4)]);
        // A variable for each node, then a second of the first and one of the last.
        let of_others = [0, 1, 2, 3, 4, 0, 4];
        let of_own = [0, 1, 2, 3, 4, 5, 0, 3, 5];
        let names = same.other_variables(&of_own, &of_others);
        assert_eq!(names, [0, 1, 7 + 2, 7 + 3, 3, 4, 5, 7 + 7, 6]);
    }
}
