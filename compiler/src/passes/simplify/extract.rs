//! Extracts the cheapest terms of the classes that are read from outside a region.
//!
//! The first choice goes by the cost of terms as trees, which is never cyclic. Then alternatives are tried one by one
//! until none is better. Their cost is exact: a term that several others share counts once.

use std::collections::HashMap;

use egg::Id;
use graphc_ir::op::Op;
use graphc_ir::types::TensorType;

use super::egraph::{ClassTerm, EgraphRegion};

/// Rounds of tries.
const ROUNDS: usize = 4;

/// FLOPs that take as long as one byte of memory, roughly, on a device that is balanced.
const FLOPS_PER_BYTE: f64 = 8.0;

/// FLOPs that take as long as one op more.
const OVERHEAD: f64 = 10_000.0;

/// The term that is chosen of each class.
pub(super) fn extract_terms(region: &EgraphRegion, roots: &[Id]) -> HashMap<Id, ClassTerm> {
    let classes = region.classes();
    let position: HashMap<Id, usize> = classes.iter().enumerate().map(|(i, &c)| (c, i)).collect();
    let alternatives: Vec<Vec<TermAlternative<'_>>> = classes
        .iter()
        .map(|&class| {
            region
                .terms(class)
                .iter()
                .map(|t| TermAlternative::new(region, class, t, &position))
                .collect()
        })
        .collect();
    let mut choice = cheapest_trees(&alternatives);
    let roots: Vec<usize> = roots.iter().map(|root| position[root]).collect();
    improve_choice(&alternatives, &mut choice, &roots);
    let term = |class: usize| alternatives[class][choice[class]].term.clone();
    classes.iter().enumerate().map(|(index, &class)| (class, term(index))).collect()
}

/// A term that a class may be computed by.
struct TermAlternative<'a> {
    term: &'a ClassTerm,
    children: Vec<usize>,
    cost: u64,
}

impl<'a> TermAlternative<'a> {
    fn new(
        region: &EgraphRegion,
        class: Id,
        term: &'a ClassTerm,
        position: &HashMap<Id, usize>,
    ) -> Self {
        let children =
            term.children.iter().map(|&child| position[&region.find_class(child)]).collect();
        Self { term, children, cost: term_cost(region, class, term) }
    }
}

/// The cost of one op: FLOPs, bytes read and written, and something for being there at all. Leaves cost nothing. A
/// transpose that moves the last dim reads or writes single elements, not rows, which takes twice as long.
fn term_cost(region: &EgraphRegion, class: Id, term: &ClassTerm) -> u64 {
    let Some(op) = region.op(term) else { return 0 };
    let types: Vec<&TensorType> = term.children.iter().map(|&child| region.ty(child)).collect();
    let operation = op.operation();
    let flops = operation.rule(&types).map_or(0.0, |rule| operation.flops(&rule));
    let bytes: usize = types.iter().map(|ty| ty.bytes()).sum::<usize>() + region.ty(class).bytes();
    let moves = |last: &usize| last + 1 != types[0].shape.len();
    let rows = !matches!(op, Op::Transpose(op) if op.permutation.last().is_some_and(moves));
    let bytes = if rows { bytes } else { 2 * bytes };
    (flops + bytes as f64 * FLOPS_PER_BYTE + OVERHEAD) as u64
}

/// The alternative of each class whose tree costs least, shared parts counted as often as they are read.
fn cheapest_trees(alternatives: &[Vec<TermAlternative<'_>>]) -> Vec<usize> {
    let mut best = vec![f64::INFINITY; alternatives.len()];
    let mut choice = vec![0; alternatives.len()];
    loop {
        let mut changed = false;
        for (class, terms) in alternatives.iter().enumerate() {
            for (index, term) in terms.iter().enumerate() {
                let children: f64 = term.children.iter().map(|&child| best[child]).sum();
                let cost = children + term.cost as f64;
                if cost < best[class] {
                    (best[class], choice[class], changed) = (cost, index, true);
                }
            }
        }
        if !changed {
            return choice;
        }
    }
}

fn improve_choice(
    alternatives: &[Vec<TermAlternative<'_>>],
    choice: &mut [usize],
    roots: &[usize],
) {
    let mut total = total_cost(alternatives, choice, roots).unwrap_or(u64::MAX);
    for _ in 0..ROUNDS {
        let before = total;
        for class in 0..alternatives.len() {
            for index in 0..alternatives[class].len() {
                let old = std::mem::replace(&mut choice[class], index);
                if index == old {
                    continue;
                }
                match total_cost(alternatives, choice, roots) {
                    Some(cost) if cost < total => total = cost,
                    _ => choice[class] = old,
                }
            }
        }
        if total == before {
            return;
        }
    }
}

/// The cost of all that the roots need, each class once; `None` where a class needs itself.
fn total_cost(
    alternatives: &[Vec<TermAlternative<'_>>],
    choice: &[usize],
    roots: &[usize],
) -> Option<u64> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        Open,
        Done,
    }
    let mut marks = vec![Mark::New; alternatives.len()];
    let mut stack: Vec<(usize, usize)> = Vec::new();
    let mut total = 0u64;
    for &root in roots {
        stack.push((root, 0));
        while let Some((class, next)) = stack.pop() {
            let term = &alternatives[class][choice[class]];
            if next == 0 {
                match marks[class] {
                    Mark::Done => continue,
                    Mark::Open => return None,
                    Mark::New => marks[class] = Mark::Open,
                }
                total = total.saturating_add(term.cost);
            }
            match term.children.get(next) {
                Some(&child) => stack.extend([(class, next + 1), (child, 0)]),
                None => marks[class] = Mark::Done,
            }
        }
    }
    Some(total)
}
