//! Finds the sets of a block's ops that are best recomputed, each at some price of memory.
//!
//! At a price of so many seconds a byte, an op that is computed again costs its seconds. A tensor is needed if the
//! backward pass reads it, or an op that is computed again. A needed tensor costs its bytes, unless the op that makes
//! it is computed again.
//!
//! Both costs are submodular, so the cheapest set is a minimum cut. The ops that are computed again are on the side
//! of the source, and each tensor has a node that says whether it is needed. The partitioner of PyTorch's AOTAutograd
//! works in the same way (cf. Chen et al., arXiv 1604.06174).
//!
//! As the price rises, the least such set only grows (Gallo, Grigoriadis and Tarjan, "A fast parametric maximum flow
//! algorithm", 1989). So the sets lie in each other. Seconds and bytes of each set are a line over the price. The
//! sets that are best somewhere are the corners of the lower hull of all lines. Take two known corners, and the price
//! at which both cost the same. The cut at that price finds a corner below both, or shows that there is none. This
//! search is that of Eisner and Severance, "Mathematical techniques for efficient record segmentation in large shared
//! databases", JACM 1976.

use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};

use graphc_solver::cut::smallest_side;

/// The ops of a block that may be computed again, with their tensors.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FrontierBlock {
    /// The cost of recomputing each op, in [`UNITS`] of a second.
    pub ops: Vec<u64>,
    /// The tensors that the ops read and make.
    pub tensors: Vec<FrontierTensor>,
}

/// The parts of a second in which costs are counted.
pub(super) const UNITS: f64 = 1e12;

/// A tensor that is kept or recomputed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FrontierTensor {
    /// Bytes that it takes while it is kept.
    pub bytes: u64,
    /// The op that makes it, or `None` if that is never recomputed.
    pub maker: Option<usize>,
    /// The ops that read it.
    pub readers: Vec<usize>,
    /// Whether the backward pass reads it.
    pub is_read: bool,
}

/// A set of ops that is best recomputed at some price.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Corner {
    /// Whether each op is recomputed.
    pub again: Vec<bool>,
    /// The cost of computing them, in [`UNITS`].
    pub units: u64,
    /// The bytes that are kept.
    pub bytes: u64,
}

/// Finds all corners, from the one without recomputation on. Each recomputes more ops than the one before, takes more seconds and keeps fewer bytes.
pub(super) fn find_frontier(block: &FrontierBlock) -> Vec<Corner> {
    let nothing = block.corner(vec![false; block.ops.len()]);
    let units = block.ops.iter().sum::<u64>();
    // At this price a byte is dearer than all ops.
    let last = block.find_least_cut(1, u128::from(units) + 1);
    let mut corners = vec![nothing];
    if last.bytes < corners[0].bytes {
        block.append_between(&last, &mut corners);
        corners.push(last);
    }
    corners
}

/// A capacity that is more than any cut.
const UNCUT: u128 = 1 << 120;

impl FrontierBlock {
    /// Returns the set of all ops.
    pub(super) fn full_corner(&self) -> Corner {
        self.corner(vec![true; self.ops.len()])
    }

    fn corner(&self, again: Vec<bool>) -> Corner {
        let units = self.ops.iter().zip(&again).filter(|op| *op.1).map(|op| op.0).sum();
        let is_kept = |tensor: &&FrontierTensor| {
            let is_needed = tensor.is_read || tensor.readers.iter().any(|&op| again[op]);
            is_needed && !tensor.maker.is_some_and(|op| again[op])
        };
        let bytes = self.tensors.iter().filter(is_kept).map(|tensor| tensor.bytes).sum();
        Corner { again, units, bytes }
    }

    /// Appends the corners between the last one that is known and another.
    fn append_between(&self, other: &Corner, known: &mut Vec<Corner>) {
        let before = known.last().expect("there is nothing computed again at least");
        let units = u128::from(other.units - before.units);
        let bytes = u128::from(before.bytes - other.bytes);
        let cost =
            |corner: &Corner| bytes * u128::from(corner.units) + units * u128::from(corner.bytes);
        let middle = self.find_least_cut(bytes, units);
        if cost(&middle) < cost(other) {
            self.append_between(&middle, known);
            known.push(middle);
            self.append_between(other, known);
        }
    }

    /// Finds the smallest set of least cost, with these prices of a unit and of a byte.
    fn find_least_cut(&self, unit: u128, byte: u128) -> Corner {
        let mut graph: DiGraph<(), u128> = DiGraph::new();
        let (source, sink) = (graph.add_node(()), graph.add_node(()));
        let ops: Vec<NodeIndex> = self.ops.iter().map(|_| graph.add_node(())).collect();
        for (&op, &units) in ops.iter().zip(&self.ops) {
            graph.add_edge(op, sink, unit * u128::from(units));
        }
        for tensor in &self.tensors {
            let needed = graph.add_node(());
            let made = tensor.maker.map_or(sink, |op| ops[op]);
            graph.add_edge(needed, made, byte * u128::from(tensor.bytes));
            if tensor.is_read {
                graph.add_edge(source, needed, UNCUT);
            }
            for &reader in &tensor.readers {
                graph.add_edge(ops[reader], needed, UNCUT);
            }
        }
        let reached = smallest_side(&graph, (source, sink), Direction::Outgoing);
        self.corner(ops.iter().map(|op| reached[op.index()]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::Draw;

    /// Makes a block of up to nine ops. Each reads some results of those before it, or tensors of other blocks, and makes one or two tensors.
    fn block(draw: &mut Draw) -> FrontierBlock {
        let mut tensors: Vec<FrontierTensor> = Vec::new();
        let tensor = |draw: &mut Draw, maker| FrontierTensor {
            bytes: draw.below(20) as u64,
            maker,
            readers: Vec::new(),
            is_read: draw.below(3) == 0,
        };
        tensors.push(tensor(draw, None));
        let ops = 1 + draw.below(9);
        for op in 0..ops {
            for _ in 0..=draw.below(2) {
                let read = draw.below(tensors.len());
                if !tensors[read].readers.contains(&op) {
                    tensors[read].readers.push(op);
                }
            }
            for _ in 0..=draw.below(2) {
                tensors.push(tensor(draw, Some(op)));
            }
        }
        FrontierBlock { ops: (0..ops).map(|_| draw.below(30) as u64).collect(), tensors }
    }

    fn all(block: &FrontierBlock) -> Vec<Corner> {
        let sets = 0..1usize << block.ops.len();
        let again = |set: usize| (0..block.ops.len()).map(|op| set >> op & 1 == 1).collect();
        sets.map(|set| block.corner(again(set))).collect()
    }

    #[test]
    fn no_set_costs_less_than_the_cut_at_any_price() {
        let mut draw = Draw(3);
        for _ in 0..300 {
            let block = block(&mut draw);
            let all = all(&block);
            for (unit, byte) in [(1, 0), (7, 1), (3, 2), (1, 1), (2, 5), (1, 9), (1, 1000)] {
                let cost = |of: &Corner| unit * u128::from(of.units) + byte * u128::from(of.bytes);
                let least = all.iter().map(cost).min();
                assert_eq!(Some(cost(&block.find_least_cut(unit, byte))), least, "{block:?}");
            }
        }
    }

    #[test]
    fn corners_are_those_of_the_hull_of_all_sets_and_lie_in_each_other() {
        let mut draw = Draw(5);
        let mut several = 0;
        for _ in 0..300 {
            let block = block(&mut draw);
            let corners = find_frontier(&block);
            several += usize::from(corners.len() > 3);
            for pair in corners.windows(2) {
                let inside =
                    pair[0].again.iter().zip(&pair[1].again).all(|(one, next)| one <= next);
                assert!(inside && pair[0].bytes > pair[1].bytes, "{block:?} {corners:?}");
                assert!(pair[0].units <= pair[1].units, "{block:?} {corners:?}");
            }
            // The price of each step is higher than that of the one before, and at none is another set better than
            // both of its ends.
            let all = all(&block);
            let mut before = (0, 1);
            for pair in corners.windows(2) {
                let units = u128::from(pair[1].units - pair[0].units);
                let bytes = u128::from(pair[0].bytes - pair[1].bytes);
                assert!(before.0 * bytes < units * before.1 || before == (0, 1), "{corners:?}");
                before = (units, bytes);
                let cost =
                    |of: &Corner| bytes * u128::from(of.units) + units * u128::from(of.bytes);
                assert_eq!(cost(&pair[0]), cost(&pair[1]));
                assert_eq!(Some(cost(&pair[0])), all.iter().map(cost).min(), "{block:?}");
            }
            assert_eq!(corners[0], block.corner(vec![false; block.ops.len()]));
            let fewest = all.iter().map(|of| of.bytes).min();
            assert_eq!(corners.last().map(|of| of.bytes), fewest, "{block:?}");
        }
        assert!(several > 50, "{several}");
    }

    #[test]
    fn a_block_of_many_ops_is_not_too_large_for_the_numbers() {
        let chain = |op: usize| FrontierTensor {
            bytes: 1 << 40,
            maker: op.checked_sub(1),
            readers: vec![op],
            is_read: op % 2 == 1,
        };
        let mut block =
            FrontierBlock { ops: (0..64).map(|op| (1 << 40) + op).collect(), tensors: Vec::new() };
        block.tensors = (0..64).map(chain).collect();
        let corners = find_frontier(&block);
        assert!(corners.len() > 2, "{corners:?}");
        assert_eq!(corners.last().expect("some").bytes, 1 << 40);
    }
}
