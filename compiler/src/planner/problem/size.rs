//! Counts the variables and constraints of a problem's integer programme, and lists the layouts in which tensors are
//! made and taken.

use graphc_ir::ids::NodeId;

use super::layouts::SbpId;
use super::{Demand, Problem, WriteBack};

/// Counts the variables and constraints of the integer programme.
pub fn programme_size(problem: &Problem<'_>) -> (usize, usize) {
    let nodes = problem.candidates.len();
    let mut variables: usize = problem.candidates.iter().map(|all| all.len()).sum();
    let mut constraints = nodes + problem.lifetimes.domains.len() * problem.lifetimes.len();
    for demand in problem.demands.iter() {
        let [sources, targets, takers] = count_layouts(problem, demand);
        variables += targets * (1 + sources);
        constraints += takers + targets * (1 + sources);
    }
    for made in problem.made.iter().filter(|made| made.beside.is_some()) {
        variables += problem.candidates_of(made.producer).len();
        constraints += problem.candidates_of(made.producer).len();
    }
    for back in problem.write_backs.iter() {
        let (rows, columns) = write_back_layouts(problem, back);
        variables += rows.len() * columns.len();
        constraints += rows.len() + columns.len();
    }
    (variables, constraints)
}

/// Counts the layouts in which a demanded tensor is made, those in which it is taken, and the sum over takers of the layouts that each takes.
fn count_layouts(problem: &Problem<'_>, demand: &Demand) -> [usize; 3] {
    let labels = 0..problem.candidates_of(demand.producer).len();
    let sources = sort_distinct(labels.map(|label| problem.source_layout(demand, label)).collect());
    let fetch = sources.iter().filter_map(|&source| problem.fetch_target(demand, source));
    let mut takers = vec![sort_distinct(fetch.collect())];
    for reader in &demand.readers {
        takers.push(sort_distinct(problem.layouts_taken(reader).lists.concat()));
    }
    let taken: usize = takers.iter().map(Vec::len).sum();
    [sources.len(), sort_distinct(takers.concat()).len(), taken]
}

fn sort_distinct(mut all: Vec<SbpId>) -> Vec<SbpId> {
    all.sort_unstable();
    all.dedup();
    all
}

/// The layouts in which a demanded tensor is made and taken.
pub(in crate::planner) struct DemandLayouts {
    /// The layouts in which it may be made.
    pub sources: Vec<SbpId>,
    /// The layouts in which it may be taken.
    pub targets: Vec<SbpId>,
    /// For each target and each reader the labels that take it, as (node, labels).
    pub takers: Vec<Vec<(NodeId, Vec<usize>)>>,
}

impl DemandLayouts {
    /// Lists the layouts of all candidates of the producer and the readers.
    pub(crate) fn new(problem: &Problem<'_>, demand: &Demand) -> Self {
        let labels = problem.candidates_of(demand.producer).len();
        let made: Vec<SbpId> =
            (0..labels).map(|label| problem.source_layout(demand, label)).collect();
        let fetch: Vec<Option<SbpId>> =
            made.iter().map(|&source| problem.fetch_target(demand, source)).collect();
        let mut taken: Vec<(SbpId, NodeId, usize)> = Vec::new();
        for reader in &demand.readers {
            for label in 0..problem.candidates_of(reader.0).len() {
                let targets = problem.target_layouts(reader, label);
                taken.extend(targets.into_iter().map(|target| (target, reader.0, label)));
            }
        }
        for (label, target) in fetch.iter().enumerate() {
            taken.extend(target.map(|target| (target, demand.producer, label)));
        }
        let mut targets: Vec<SbpId> = taken.iter().map(|&(target, ..)| target).collect();
        let mut sources = made;
        for list in [&mut targets, &mut sources] {
            list.sort_unstable();
            list.dedup();
        }
        let takers = targets.iter().map(|&target| find_takers(&taken, target)).collect();
        Self { sources, targets, takers }
    }
}

fn find_takers(taken: &[(SbpId, NodeId, usize)], target: SbpId) -> Vec<(NodeId, Vec<usize>)> {
    let mut takers: Vec<(NodeId, Vec<usize>)> = Vec::new();
    for &(of, node, label) in taken {
        if of == target {
            match takers.iter_mut().find(|taker| taker.0 == node) {
                Some((_, labels)) => labels.push(label),
                None => takers.push((node, vec![label])),
            }
        }
    }
    takers
}

/// Lists the layouts in which an update makes its result, and those in which the variable is kept.
pub(in crate::planner) fn write_back_layouts(
    problem: &Problem<'_>,
    back: &WriteBack,
) -> (Vec<SbpId>, Vec<SbpId>) {
    let of = |node: NodeId, result: usize| {
        let candidates = problem.candidates_of(node).iter();
        sort_distinct(candidates.map(|candidate| candidate.results[result]).collect())
    };
    (of(back.update, back.result), of(back.variable, 0))
}
