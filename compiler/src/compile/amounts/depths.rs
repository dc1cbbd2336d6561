//! Amounts in a pipeline: what is cheap of the first blocks of every stage, block by block, then everything of the first blocks (the *block*
//! method of Narayanan et al.'s Megatron-LM).
//!
//! Stages differ in the microbatches that they have under way, so at the same depth the later ones have room left. That is what their
//! streams live on: where each stage was filled to its limit op by op, as the [`Row`](super::Row) does it, llama3_405b in 16 stages on
//! 64x8 cost 11 % less by the planner's count, but had no memory for a second stream, and took 77 s a step instead of 50.

use std::collections::{BTreeMap, BTreeSet};

use super::search::{Amounts, LITTLE};
use crate::decisions::Decisions;
use crate::passes::recompute::{Blocks, OpPlace};

/// The ops of each block, by depth.
pub struct Depths {
    /// By block what is cheap of it, and all of it.
    blocks: Vec<[Vec<OpPlace>; 2]>,
    /// By block its place among those of its stage.
    depth: Vec<usize>,
}

impl Depths {
    /// Those of a graph in which nothing is computed again yet.
    pub fn new(decisions: &Decisions) -> Self {
        let blocks = Blocks::new(&decisions.training, &decisions.rates);
        let cheap = blocks.cheap(&decisions.training).into_iter();
        let mut seen: BTreeMap<_, usize> = BTreeMap::new();
        let depth = blocks.ops.iter().map(|ops| {
            let next = seen.entry(decisions.graph().node(ops[0]).part).or_default();
            *next += 1;
            *next - 1
        });
        let depth = depth.collect();
        let all = blocks.ops.iter().enumerate().map(|(block, ops)| {
            (0..ops.len()).map(|place| OpPlace { block, place }).collect::<Vec<_>>()
        });
        Self { blocks: cheap.zip(all).map(|(cheap, all)| [cheap, all]).collect(), depth }
    }

    /// The amount that is everything.
    pub fn most(&self) -> usize {
        2 * self.deepest()
    }

    /// The ops of an amount.
    pub fn ops(&self, amount: usize) -> BTreeSet<OpPlace> {
        let deepest = self.deepest();
        let (cheap, full) = (amount.min(deepest), amount.saturating_sub(deepest));
        let mut ops = BTreeSet::new();
        for ([some, all], &depth) in self.blocks.iter().zip(&self.depth) {
            if depth < full {
                ops.extend(all);
            } else if depth < cheap {
                ops.extend(some);
            }
        }
        ops
    }

    /// The amounts where a step takes so many seconds. What they take is not known before they are planned: each counts as a little more than
    /// the one before, and the middle one as likely.
    pub fn amounts(&self, step: f64) -> Amounts {
        let seconds = (0..=self.most()).map(|amount| amount as f64 * LITTLE * step);
        Amounts { seconds: seconds.collect(), likely: self.deepest() }
    }

    /// Blocks of the stage that has most.
    pub fn deepest(&self) -> usize {
        self.depth.iter().max().map_or(0, |deepest| deepest + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_what_is_cheap_by_blocks_then_everything() {
        let op = |block, place| OpPlace { block, place };
        let block = |block| [vec![op(block, 1)], vec![op(block, 0), op(block, 1)]];
        // Two stages, of two blocks and of one.
        let depths = Depths { blocks: (0..3).map(block).collect(), depth: vec![0, 1, 0] };
        let ops =
            |amount| depths.ops(amount).iter().map(|op| (op.block, op.place)).collect::<Vec<_>>();
        assert_eq!(ops(0), []);
        assert_eq!(ops(1), [(0, 1), (2, 1)]);
        assert_eq!(ops(2), [(0, 1), (1, 1), (2, 1)]);
        assert_eq!(ops(3), [(0, 0), (0, 1), (1, 1), (2, 0), (2, 1)]);
        assert_eq!((depths.most(), ops(4).len()), (4, 6));
        let amounts = depths.amounts(10.0);
        assert_eq!((amounts.likely, amounts.seconds.len()), (2, 5));
    }
}
