//! The table and the source that kernels of several tensors share.

use super::super::Shard;
use super::super::call::{CallRegister, Entry, build_table};
use super::super::source::KernelSource;
use super::{THREADS, WIDTH};

/// The number of times that a block goes on: blocks of 8192 elements keep the table short and still fill a card.
const STEPS: usize = 8;

/// Tensors of one launch, the first operands of as many ops.
pub(super) struct Several {
    /// Elements of each.
    extents: Vec<usize>,
    /// Blocks of each.
    blocks: Vec<usize>,
}

impl Several {
    /// Takes the extents from the operands of each op.
    pub(super) fn from_members(members: &[Vec<Shard>]) -> Self {
        let extents: Vec<usize> = members.iter().map(|member| member[0].elements()).collect();
        let blocks = extents.iter().map(|extent| extent.div_ceil(STEPS * THREADS * WIDTH));
        Self { blocks: blocks.collect(), extents }
    }

    /// Blocks of the launch; 0 where there is nothing to do.
    pub(super) fn count_blocks(&self) -> usize {
        self.blocks.iter().sum()
    }

    /// The source with the macros that kernels of several tensors have.
    pub(super) fn define_macros(&self, source: KernelSource) -> KernelSource {
        let largest = self.extents.iter().max().copied().unwrap_or(0);
        let room = largest + STEPS * THREADS * WIDTH;
        source.define("PARTS", self.extents.len()).define("STEPS", STEPS).define_index(room)
    }

    /// The table, which has of each member these places, its elements and its first block.
    pub(super) fn table<I: IntoIterator<Item = CallRegister>>(
        &self,
        places: impl Fn(usize) -> I,
    ) -> Vec<Entry> {
        let mut before = 0;
        let line = |(member, (&extent, &blocks)): (usize, (&usize, &usize))| {
            let numbers = [extent, before].map(|number| Entry::Number(number as u64));
            before += blocks;
            places(member).into_iter().map(Entry::Place).chain(numbers).collect()
        };
        build_table(
            self.extents.iter().zip(&self.blocks).enumerate().map(line).collect(),
            &self.blocks,
        )
    }
}
