//! A product cut in blocks of rows and columns, which threads share, and each of these along the inner extent, so that what
//! is worked on stays in the caches (Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008;
//! Van Zee and van de Geijn, "BLIS", 2015). An element's sum runs in the same order wherever cuts between rows and
//! columns fall: each cut along the inner extent follows from that alone.

use std::ops::Range;

use graphc_ir::shard::split_range;

#[cfg(target_arch = "x86_64")]
use super::packed;
use super::task::{BlockTarget, Method, Pointer, ProductBlock, ProductPlace, ProductTask};
use super::widened;
use super::{Data, DataMut, Hands, Layout, Write};
#[cfg(target_arch = "x86_64")]
use super::{ProductPart, Then};
#[cfg(target_arch = "x86_64")]
use crate::error::KernelError;
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

/// Gives away a product of `f32`, written by rows, block by block, each while the caches still have it. `area` is memory of as many
/// numbers that is worked in.
#[cfg(target_arch = "x86_64")]
pub(super) fn multiply_in_turn(
    method: Method,
    extents: [usize; 3],
    factors: [(Data<'_>, Layout); 2],
    mut area: &mut [f32],
    hands: Hands<'_>,
    then: Then<'_>,
) -> Result<(), KernelError> {
    let [rows, inner, columns] = extents;
    let [(a, a_layout), (b, b_layout)] = factors;
    assert!(a_layout.last(rows, inner) < a.len(), "first matrix");
    assert!(b_layout.last(inner, columns) < b.len(), "second matrix");
    assert!(area.len() >= rows * columns, "an area for the product");
    let pointer = Pointer::Single(area.as_mut_ptr());
    let target = BlockTarget { place: ProductPlace { pointer, rows, columns, stride: columns } };
    let task = ProductTask { method, extents, scale: 1.0, factors, add: false, target };
    let (pool, block) = (hands.pool, task.extents_of_block(hands.threads));
    let mut parts = Vec::new();
    for (own, room) in task.share(block, hands) {
        let sizes = own.clone().map(|index| task.block(block, index).extents);
        let size = sizes.map(|[rows, columns]| rows * columns).sum();
        parts.push((own, room, area.split_off_mut(..size).unwrap_or_default()));
    }
    parallel::run_parts(pool, parts, &|(own, room, area)| {
        let mut writer = PartWriter { area, whole: columns, then };
        packed::compute_blocks(&task, own.map(|index| task.block(block, index)), room, &mut writer)
    })
}

/// Returns the number of `f32` of scratch memory that a product on so many threads needs.
pub(super) fn scratch_len(extents: [usize; 3], method: Method, threads: usize) -> usize {
    let block = extents_of_block(method, extents, threads);
    let parts = threads.min(count_blocks(extents, block));
    parts * room_of_block(method, block, extents[1])
}

/// Rows and columns of the blocks of a product: more of them where there are threads to share them.
fn extents_of_block(method: Method, [rows, _, columns]: [usize; 3], threads: usize) -> [usize; 2] {
    let (limits, is_cut) = match method {
        Method::Widened => ([widened::SIDE; 2], false),
        #[cfg(target_arch = "x86_64")]
        Method::Pairs | Method::Matrices => (packed::SIDES, true),
        #[cfg(target_arch = "x86_64")]
        Method::Thirds => (packed::SIDES_OF_THIRDS, true),
    };
    let mut block = [cut_evenly(rows, limits[0]), cut_evenly(columns, limits[1])];
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
        _ => packed::scratch_len(method, block, inner),
    }
}

impl ProductTask<'_> {
    /// Computes all blocks.
    fn share_blocks(&self, hands: Hands<'_>) {
        let (pool, extents) = (hands.pool, self.extents_of_block(hands.threads));
        let shared = parallel::run_parts(pool, self.share(extents, hands), &|(own, room)| {
            self.compute_blocks(own.map(|index| self.block(extents, index)), room);
            Ok(())
        });
        debug_assert!(shared.is_ok(), "blocks give no errors");
    }

    fn extents_of_block(&self, threads: usize) -> [usize; 2] {
        extents_of_block(self.method, self.extents, threads)
    }

    /// Shares the numbers of blocks of these extents among threads, and the memory to work in: each thread gets some in a row, which have rows in
    /// common.
    fn share<'r>(
        &self,
        extents: [usize; 2],
        hands: Hands<'r>,
    ) -> Vec<(Range<usize>, &'r mut [f32])> {
        let count = count_blocks(self.extents, extents);
        let own = room_of_block(self.method, extents, self.extents[1]);
        let parts = if hands.pool.is_some() { hands.threads.clamp(1, count) } else { 1 };
        assert!(hands.room.len() >= parts * own, "room to multiply");
        let rooms = hands.room.chunks_exact_mut(own).take(parts);
        rooms.enumerate().map(|(part, room)| (split_range(count, parts, part), room)).collect()
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
            _ => {
                let computed = packed::compute_blocks(self, blocks, room, &mut WholeWriter(self));
                debug_assert!(computed.is_ok(), "blocks of the whole give no errors");
            }
        }
    }
}

/// Writes blocks to their places in the product.
#[cfg(target_arch = "x86_64")]
struct WholeWriter<'a>(&'a ProductTask<'a>);

#[cfg(target_arch = "x86_64")]
impl packed::BlockWriter for WholeWriter<'_> {
    fn place(&mut self, block: ProductBlock) -> ProductPlace {
        self.0.place(block)
    }

    fn finish(&mut self, _: ProductBlock) -> Result<(), KernelError> {
        Ok(())
    }
}

/// Writes each block to the same memory, and gives it away.
#[cfg(target_arch = "x86_64")]
struct PartWriter<'a> {
    area: &'a mut [f32],
    /// Columns of the whole product.
    whole: usize,
    then: Then<'a>,
}

#[cfg(target_arch = "x86_64")]
impl packed::BlockWriter for PartWriter<'_> {
    fn place(
        &mut self,
        ProductBlock { extents: [rows, columns], .. }: ProductBlock,
    ) -> ProductPlace {
        let area = &mut self.area[..rows * columns];
        ProductPlace { pointer: Pointer::Single(area.as_mut_ptr()), rows, columns, stride: columns }
    }

    fn finish(&mut self, ProductBlock { start, extents }: ProductBlock) -> Result<(), KernelError> {
        (self.then)(ProductPart {
            start: start[0] * self.whole + start[1],
            columns: extents[1],
            stride: self.whole,
            elements: &self.area[..extents[0] * extents[1]],
        })
    }
}
