//! Blocks of `bf16` packed as tiles, multiplied in pairs by AMX or AVX-512 BF16.

use super::matrices::TileRegisters;
use super::pairs::{self, SIDE as TILES, Sums};
use super::task::{Method, ProductBlock, ProductTask};
use super::tiles::{DEPTH, FactorStrip, LANES, Order, TILE};

/// Rows and columns of a block, at most.
pub(super) const SIDE: usize = 512;
/// Places along the inner extent that are packed at a time: 16 columns of a factor are then 16 KiB.
const INNER: usize = 512;

/// Words of both factors' tiles, and sums where the inner extent is cut.
pub(super) fn scratch_len([rows, columns]: [usize; 2], inner: usize) -> usize {
    let steps = inner.min(INNER).div_ceil(DEPTH);
    let sums = rows.div_ceil(TILES) * columns.div_ceil(TILES) * TILES * TILES;
    let sums = if inner > INNER { sums } else { 0 };
    (rows.div_ceil(LANES) + columns.div_ceil(LANES)) * steps * TILE + sums
}

/// Computes a block of a product.
pub(super) fn compute_block(task: &ProductTask<'_>, block: ProductBlock, room: &mut [f32]) {
    assert!(pairs::are_multiplied(), "a processor that multiplies pairs");
    // SAFETY: the processor has the instructions, as just seen; blocks of a task do not meet.
    unsafe { of_tiles(task, block, room) }
}

/// # Safety
/// Nothing else reaches the block of the product.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn of_tiles(task: &ProductTask<'_>, block: ProductBlock, room: &mut [f32]) {
    let inner = task.extents[1];
    let [a_tiles, b_tiles] = block.extents.map(|extent| extent.div_ceil(LANES));
    let most = inner.min(INNER).div_ceil(DEPTH) * TILE;
    let (a_room, rest) = room.split_at_mut(a_tiles * most);
    let (b_room, sums) = rest.split_at_mut(b_tiles * most);
    let sums = sums.as_chunks_mut::<{ TILES * TILES }>().0;
    let mut own: Sums = [0.0; TILES * TILES];
    let registers = (task.method == Method::Matrices).then(TileRegisters::new);
    for start in (0..inner).step_by(INNER) {
        let depth = INNER.min(inner - start);
        let steps = depth.div_ceil(DEPTH);
        let [a, b] = cut_strips(task, block, [start, depth]);
        a.pack(Order::Lanes, a_room);
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
