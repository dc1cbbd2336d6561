//! Blocks packed as tiles of `bf16`, multiplied in pairs by AMX or AVX-512 BF16. Factors of `f32` are cut in three parts each for that
//! ([`Method::Thirds`]): 24 bits in three times 8.

use super::cut::THIRDS;
use super::matrices::TileRegisters;
use super::pairs::{self, SIDE as TILES, Sums};
use super::special::SpecialLanes;
use super::task::{Method, ProductBlock, ProductPlace, ProductTask};
use super::tiles::{DEPTH, FactorStrip, LANES, Order, TILE};
use crate::error::KernelError;

/// Rows and columns of a block, at most.
pub(super) const SIDES: [usize; 2] = [512, 512];
/// Rows and columns of a block of thirds, at most. (Of 128 to 512 each the fastest for the products of GPT-2 124M on two threads: 1.02 to
/// 1.09 times as fast as 256 columns, 1.1 to 1.2 times as 512 rows.)
pub(super) const SIDES_OF_THIRDS: [usize; 2] = [256, 512];
/// Places along the inner extent that are packed at a time: 16 columns of a factor are then 16 KiB, or 48 KiB in thirds.
const INNER: usize = 512;
/// The inner extent up to which rows of the first factor are packed whole, once for all blocks that have them in common: 1 MiB, or
/// 1.5 MiB in thirds.
pub(super) const KEPT: usize = 1024;

/// Words of both factors' tiles, and sums where the inner extent is cut and they are not added up in the product.
pub(super) fn scratch_len(method: Method, [rows, columns]: [usize; 2], inner: usize) -> usize {
    let parts = if method == Method::Thirds { THIRDS } else { 1 };
    let sums = rows.div_ceil(TILES) * columns.div_ceil(TILES) * TILES * TILES;
    let sums = if inner > INNER && parts == 1 { sums } else { 0 };
    let columns = columns.div_ceil(LANES) * words_of_lanes(parts, inner.min(INNER));
    rows.div_ceil(LANES) * words_of_lanes(parts, kept_places(inner)) + columns + sums
}

/// Words of the tiles of 16 rows or columns.
fn words_of_lanes(parts: usize, places: usize) -> usize {
    places.div_ceil(DEPTH) * TILE * parts
}

/// Returns the places along the inner extent at which the first factor is kept.
fn kept_places(inner: usize) -> usize {
    if inner <= KEPT { inner } else { INNER }
}

/// The places of the product to which blocks are written, and what is done with each block then.
pub(super) trait BlockWriter {
    /// The memory of a block.
    fn place(&mut self, block: ProductBlock) -> ProductPlace;

    /// Is called when a block is computed.
    fn finish(&mut self, block: ProductBlock) -> Result<(), KernelError>;
}

/// Computes blocks of a product. Those that follow each other in the same rows share the first factor's tiles.
pub(super) fn compute_blocks(
    task: &ProductTask<'_>,
    blocks: impl Iterator<Item = ProductBlock>,
    room: &mut [f32],
    writer: &mut impl BlockWriter,
) -> Result<(), KernelError> {
    assert!(pairs::are_multiplied(), "a processor that multiplies pairs");
    let registers = (task.method != Method::Pairs).then(TileRegisters::new);
    let mut packed = None;
    for block in blocks {
        let rows = [block.start[0], block.extents[0]];
        let kept = packed.filter(|&(kept, _)| kept == rows && task.extents[1] <= KEPT);
        let kept = kept.map(|(_, is_finite)| is_finite);
        let work = PackedBlock { task, block, registers: registers.as_ref(), kept };
        let place = writer.place(block);
        // SAFETY: the processor has the instructions, as just seen; blocks of a task do not meet.
        let is_finite = unsafe {
            match task.method {
                Method::Thirds => work.compute::<THIRDS>(place, room),
                _ => work.compute::<1>(place, room),
            }
        };
        packed = Some((rows, is_finite));
        writer.finish(block)?;
    }
    Ok(())
}

/// A block of a product, to be computed.
struct PackedBlock<'a> {
    task: &'a ProductTask<'a>,
    block: ProductBlock,
    /// AMX's registers, where it multiplies.
    registers: Option<&'a TileRegisters>,
    /// Whether the first factor's rows are finite, where their tiles are there already.
    kept: Option<bool>,
}

impl PackedBlock<'_> {
    /// Computes the block. Returns whether the first factor's rows are finite.
    ///
    /// # Safety
    /// Nothing else reaches the place.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn compute<const PARTS: usize>(&self, place: ProductPlace, room: &mut [f32]) -> bool {
        let inner = self.task.extents[1];
        let [a_tiles, b_tiles] = self.block.extents.map(|extent| extent.div_ceil(LANES));
        let a_words = a_tiles * words_of_lanes(PARTS, kept_places(inner));
        let (a_room, rest) = room.split_at_mut(a_words);
        let (b_room, sums) = rest.split_at_mut(b_tiles * words_of_lanes(PARTS, inner.min(INNER)));
        let sums = sums.as_chunks_mut::<{ TILES * TILES }>().0;
        let mut rows_are_finite = self.kept.unwrap_or(true);
        for start in (0..inner).step_by(INNER) {
            let depth = INNER.min(inner - start);
            let panel = words_of_lanes(PARTS, depth);
            let strips = self.cut_strips([start, depth]);
            let kept = if inner <= KEPT { a_tiles * words_of_lanes(PARTS, start) } else { 0 };
            let (a, b) = (&mut a_room[kept..][..a_tiles * panel], &mut b_room[..b_tiles * panel]);
            if self.kept.is_none() {
                rows_are_finite &= pack_parts::<PARTS>(strips[0], Order::Lanes, a);
            }
            let are_finite = pack_parts::<PARTS>(strips[1], Order::Pairs, b) && rows_are_finite;
            let special = (!are_finite).then(|| SpecialLanes::find(strips));
            // SAFETY: as the caller says.
            unsafe { self.sum::<PARTS>([start, depth], [a, b], special.as_ref(), sums, place) };
        }
        rows_are_finite
    }

    /// Adds up the product of what is packed of both factors, at places along the inner extent, and writes what is complete.
    ///
    /// # Safety
    /// Nothing else reaches the place.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn sum<const PARTS: usize>(
        &self,
        [start, depth]: [usize; 2],
        [a, b]: [&[f32]; 2],
        special: Option<&SpecialLanes<'_>>,
        sums: &mut [Sums],
        place: ProductPlace,
    ) {
        let (steps, panel) = (depth.div_ceil(DEPTH), words_of_lanes(PARTS, depth));
        let (begins, ends) = (start == 0, start + depth == self.task.extents[1]);
        // Thirds of each step are added to the product; sums of others stay until they are complete, and are rounded once.
        let (is_kept, add) = match PARTS {
            1 => (!(begins && ends), self.task.add),
            _ => (false, self.task.add || !begins),
        };
        let mut own: Sums = [0.0; TILES * TILES];
        let mut index = 0;
        for (column, b) in b.chunks(2 * panel).enumerate() {
            for (row, a) in a.chunks(2 * panel).enumerate() {
                // SAFETY: the block has these rows and columns.
                let place = unsafe { place.part([row * TILES, column * TILES], [TILES; 2]) };
                if PARTS == THIRDS {
                    place.prefetch();
                }
                let sums = if is_kept { &mut sums[index] } else { &mut own };
                match self.registers {
                    Some(registers) if PARTS == THIRDS => {
                        registers.multiply_thirds(a, b, steps, sums);
                    }
                    Some(registers) => registers.multiply(a, b, steps, (&mut *sums, !begins)),
                    None => pairs::multiply_tiles(a, b, steps, (&mut *sums, !begins)),
                }
                if let Some(special) = special {
                    special.sum_again(sums, [row * TILES, column * TILES]);
                }
                if ends || !is_kept {
                    // SAFETY: of the types that the method is chosen for; as the caller says.
                    unsafe { pairs::store_sums(sums, self.task.scale, add, place) };
                }
                index += 1;
            }
        }
    }

    /// Parts of the factors: the second has columns for lanes.
    fn cut_strips(&self, [start, depth]: [usize; 2]) -> [FactorStrip<'_>; 2] {
        let [(a, by_row), (b, layout)] = self.task.factors;
        [(a, by_row, 0), (b, layout.t(), 1)].map(|(data, layout, side)| FactorStrip {
            data,
            layout,
            start: [self.block.start[side], start],
            extents: [self.block.extents[side], depth],
        })
    }
}

/// Packs a strip. Returns whether its parts hold its numbers. (One part does, as `bf16` has infinite ones too.)
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn pack_parts<const PARTS: usize>(strip: FactorStrip<'_>, order: Order, to: &mut [f32]) -> bool {
    if PARTS == THIRDS {
        return strip.pack_thirds(order, to);
    }
    strip.pack(order, to);
    true
}
