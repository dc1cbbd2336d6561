//! A product cut in blocks of rows and columns, which threads share, and each of these along the inner extent, so that what
//! is worked on stays in the caches (Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008;
//! Van Zee and van de Geijn, "BLIS", 2015). An element's sum runs in the same order wherever cuts between rows and
//! columns fall: each cut along the inner extent follows from that alone.

use graphc_ir::shard::split_range;

#[cfg(target_arch = "x86_64")]
use super::packed;
use super::task::{BlockTarget, Method, Pointer, ProductBlock, ProductPlace, ProductTask};
use super::widened;
use super::{Data, DataMut, Hands, Layout, Write};
use crate::parallel;

/// Rows, and columns, that a method multiplies at a time, or a multiple of them.
const GROUP: usize = 32;

/// Multiplies matrices of half precision: a part of [`super::multiply`].
pub(super) fn multiply_blocks(
    method: Method,
    (extents, scale): ([usize; 3], f32),
    factors: [(Data<'_>, Layout); 2],
    (out, to): (DataMut<'_>, Layout),
    write: Write,
    hands: Hands<'_>,
) {
    let [rows, inner, columns] = extents;
    let [(a, a_layout), (b, b_layout)] = factors;
    assert!(a_layout.last(rows, inner) < a.len(), "first matrix");
    assert!(b_layout.last(inner, columns) < b.len(), "second matrix");
    assert!(to.column == 1 && (rows == 1 || to.row >= columns), "rows of the product");
    assert!(write == Write::Replace || matches!(out, DataMut::Single(_)), "a rounded sum");
    let (len, pointer) = match out {
        DataMut::Single(out) => (out.len(), Pointer::Single(out.as_mut_ptr())),
        DataMut::Brain(out) => (out.len(), Pointer::Brain(out.as_mut_ptr())),
        DataMut::Half(out) => (out.len(), Pointer::Half(out.as_mut_ptr())),
    };
    assert!(to.last(rows, columns) < len, "product");
    let target = BlockTarget { place: ProductPlace { pointer, rows, columns, stride: to.row } };
    let add = write == Write::Add;
    let task = ProductTask { method, extents, scale, factors, add, target };
    task.share_blocks(hands);
}

/// Returns the number of `f32` of scratch memory that a product on so many threads needs.
pub(super) fn scratch_len(extents: [usize; 3], method: Method, threads: usize) -> usize {
    let block = extents_of_block(method, extents, threads);
    let parts = threads.min(count_blocks(extents, block));
    parts * room_of_block(method, block, extents[1])
}

/// Rows and columns of the blocks of a product: more of them where there are threads to share them.
fn extents_of_block(method: Method, [rows, _, columns]: [usize; 3], threads: usize) -> [usize; 2] {
    let (limit, is_cut) = match method {
        Method::Widened => (widened::SIDE, false),
        #[cfg(target_arch = "x86_64")]
        Method::Pairs | Method::Matrices => (packed::SIDE, true),
    };
    let mut block = [rows, columns].map(|extent| cut_evenly(extent, limit));
    while is_cut && threads > 1 && count_blocks([rows, 0, columns], block) < 2 * threads {
        let larger = usize::from(block[1] >= block[0]);
        if block[larger] <= 64 {
            break;
        }
        block[larger] = block[larger].div_ceil(64) * 32;
    }
    block
}

/// Returns an extent of blocks, at most a limit, so that all are about equally large: threads then end at the same time.
fn cut_evenly(extent: usize, limit: usize) -> usize {
    let each = extent.div_ceil(extent.div_ceil(limit).max(1));
    each.next_multiple_of(GROUP).min(limit).min(extent)
}

/// Returns the number of blocks of a product.
fn count_blocks([rows, _, columns]: [usize; 3], block: [usize; 2]) -> usize {
    rows.div_ceil(block[0]) * columns.div_ceil(block[1])
}

fn room_of_block(method: Method, block: [usize; 2], inner: usize) -> usize {
    match method {
        Method::Widened => widened::scratch_len(block, inner),
        #[cfg(target_arch = "x86_64")]
        Method::Pairs | Method::Matrices => packed::scratch_len(block, inner),
    }
}

impl ProductTask<'_> {
    /// Computes all blocks: each thread some in a row, which have rows in common.
    fn share_blocks(&self, hands: Hands<'_>) {
        let block = extents_of_block(self.method, self.extents, hands.threads);
        let count = count_blocks(self.extents, block);
        let own = room_of_block(self.method, block, self.extents[1]);
        let parts = if hands.pool.is_some() { hands.threads.clamp(1, count) } else { 1 };
        assert!(hands.room.len() >= parts * own, "room to multiply");
        if parts == 1 {
            return self
                .compute_blocks((0..count).map(|index| self.block(block, index)), hands.room);
        }
        let pieces = hands.room.chunks_exact_mut(own).take(parts).enumerate().collect();
        let shared = parallel::run_parts(hands.pool, pieces, &|(part, room)| {
            let own = split_range(count, parts, part);
            self.compute_blocks(own.map(|index| self.block(block, index)), room);
            Ok(())
        });
        debug_assert!(shared.is_ok(), "blocks give no errors");
    }

    /// Returns a block by its number: row by row.
    fn block(&self, extents: [usize; 2], index: usize) -> ProductBlock {
        let across = self.extents[2].div_ceil(extents[1]);
        let start = [index / across * extents[0], index % across * extents[1]];
        let all = [self.extents[0], self.extents[2]];
        let extents = [0, 1].map(|side| extents[side].min(all[side] - start[side]));
        ProductBlock { start, extents }
    }

    fn compute_blocks(&self, blocks: impl Iterator<Item = ProductBlock>, room: &mut [f32]) {
        match self.method {
            Method::Widened => blocks.for_each(|block| widened::compute_block(self, block, room)),
            #[cfg(target_arch = "x86_64")]
            Method::Pairs | Method::Matrices => packed::compute_blocks(self, blocks, room),
        }
    }
}
