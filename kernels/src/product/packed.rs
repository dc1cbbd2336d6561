//! Blocks of `bf16` packed as tiles, multiplied in pairs by AMX or AVX-512 BF16.

use super::matrices::TileRegisters;
use super::pairs::{self, SIDE as TILES, Sums};
use super::task::{Method, ProductBlock, ProductTask};
use super::tiles::{DEPTH, FactorStrip, LANES, Order, TILE};

/// Rows and columns of a block, at most.
pub(super) const SIDE: usize = 512;
/// Places along the inner extent that are packed at a time: 16 columns of a factor are then 16 KiB.
const INNER: usize = 512;
/// The inner extent up to which rows of the first factor are packed whole, once for all blocks that have them in common: 1 MiB.
const KEPT: usize = 1024;

/// Words of both factors' tiles, and sums where the inner extent is cut.
pub(super) fn scratch_len([rows, columns]: [usize; 2], inner: usize) -> usize {
    let sums = rows.div_ceil(TILES) * columns.div_ceil(TILES) * TILES * TILES;
    let sums = if inner > INNER { sums } else { 0 };
    let columns = columns.div_ceil(LANES) * words_of_lanes(inner.min(INNER));
    rows.div_ceil(LANES) * words_of_lanes(kept_places(inner)) + columns + sums
}

/// Words of the tiles of 16 rows or columns.
fn words_of_lanes(places: usize) -> usize {
    places.div_ceil(DEPTH) * TILE
}

/// Returns the places along the inner extent at which the first factor is kept.
fn kept_places(inner: usize) -> usize {
    if inner <= KEPT { inner } else { INNER }
}

/// Computes blocks of a product. Those that follow each other in the same rows share the first factor's tiles.
pub(super) fn compute_blocks(
    task: &ProductTask<'_>,
    blocks: impl Iterator<Item = ProductBlock>,
    room: &mut [f32],
) {
    assert!(pairs::are_multiplied(), "a processor that multiplies pairs");
    let mut packed = None;
    for block in blocks {
        let rows = [block.start[0], block.extents[0]];
        let is_packed = packed == Some(rows) && task.extents[1] <= KEPT;
        // SAFETY: the processor has the instructions, as just seen; blocks of a task do not meet.
        unsafe { compute_block(task, block, is_packed, room) }
        packed = Some(rows);
    }
}

/// Computes a block of a product. The tiles of the first factor are there already where `is_packed` says so.
///
/// # Safety
/// Nothing else reaches the block of the product.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn compute_block(
    task: &ProductTask<'_>,
    block: ProductBlock,
    is_packed: bool,
    room: &mut [f32],
) {
    let inner = task.extents[1];
    let [a_tiles, b_tiles] = block.extents.map(|extent| extent.div_ceil(LANES));
    let (a_room, rest) = room.split_at_mut(a_tiles * words_of_lanes(kept_places(inner)));
    let (b_room, sums) = rest.split_at_mut(b_tiles * words_of_lanes(inner.min(INNER)));
    let sums = sums.as_chunks_mut::<{ TILES * TILES }>().0;
    let mut own: Sums = [0.0; TILES * TILES];
    let registers = (task.method == Method::Matrices).then(TileRegisters::new);
    for start in (0..inner).step_by(INNER) {
        let depth = INNER.min(inner - start);
        let steps = depth.div_ceil(DEPTH);
        let [a, b] = cut_strips(task, block, [start, depth]);
        let kept = if inner <= KEPT { a_tiles * words_of_lanes(start) } else { 0 };
        let a_room = &mut a_room[kept..];
        if !is_packed {
            a.pack(Order::Lanes, a_room);
        }
        b.pack(Order::Pairs, b_room);
        let panel = steps * TILE;
        let (a, b) = (&a_room[..a_tiles * panel], &b_room[..b_tiles * panel]);
        let (begins, ends) = (start == 0, start + depth == inner);
        let mut index = 0;
        for (column, b) in b.chunks(2 * panel).enumerate() {
            for (row, a) in a.chunks(2 * panel).enumerate() {
                let sums = if begins && ends { &mut own } else { &mut sums[index] };
                match &registers {
                    Some(registers) => registers.multiply(a, b, steps, (&mut *sums, !begins)),
                    None => pairs::multiply_tiles(a, b, steps, (&mut *sums, !begins)),
                }
                if ends {
                    let place = task.place(block.tile([row, column]));
                    // SAFETY: of the types that the method is chosen for; as the caller says.
                    unsafe { pairs::store_sums(sums, task.scale, task.add, place) };
                }
                index += 1;
            }
        }
    }
}

impl ProductBlock {
    /// The block that is summed at a time.
    fn tile(self, at: [usize; 2]) -> ProductBlock {
        let start = at.map(|at| at * TILES);
        let extents = [0, 1].map(|side| TILES.min(self.extents[side] - start[side]));
        ProductBlock { start: [0, 1].map(|side| self.start[side] + start[side]), extents }
    }
}

/// Parts of the factors: the second has columns for lanes.
fn cut_strips<'a>(
    task: &ProductTask<'a>,
    block: ProductBlock,
    [start, depth]: [usize; 2],
) -> [FactorStrip<'a>; 2] {
    let [(a, by_row), (b, layout)] = task.factors;
    [(a, by_row, 0), (b, layout.t(), 1)].map(|(data, layout, side)| FactorStrip {
        data,
        layout,
        start: [block.start[side], start],
        extents: [block.extents[side], depth],
    })
}
