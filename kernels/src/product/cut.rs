//! Numbers of `f32` cut in three parts of `bf16`, packed as tiles ([`super::tiles`]): the number rounded to 8 bits, what is missing then,
//! rounded to 8 bits, and what is still missing. Three parts of 8 bits hold all 24 bits of the number. Where the words of a `bf16` would be one tile,
//! those of the parts are three, the greatest parts first.
//!
//! A pair are places along the inner extent that lie 16 apart: then a word is made of two numbers without moving either across lanes.

use std::arch::x86_64::*;

use super::tiles::{DEPTH, FactorStrip, LANES, Order, TILE, transposed_numbers};
use super::{Data, Layout};
use crate::panels::load_rows;

/// Parts of a number.
pub(super) const THIRDS: usize = 3;
/// Tiles that are asked for ahead of the one that is packed.
const AHEAD: usize = 2;

impl FactorStrip<'_> {
    /// Packs three tiles after three tiles along the inner extent, then the next lanes. They are taken in the order in which the factor
    /// lies in memory, so that each of its lines is read once. Returns whether all numbers are finite when they are rounded.
    #[target_feature(enable = "avx512f")]
    pub(super) fn pack_thirds(&self, order: Order, to: &mut [f32]) -> bool {
        let [across, steps] = [self.extents[0].div_ceil(LANES), self.extents[1].div_ceil(DEPTH)];
        let tiles = to.as_chunks_mut::<{ THIRDS * TILE }>().0;
        let mut zeros = [_mm512_setzero_ps(); 2];
        let along_lanes = self.layout.row == 1 && self.layout.column != 1;
        let [outer, inner] = if along_lanes { [steps, across] } else { [across, steps] };
        for slow in 0..outer {
            for fast in 0..inner {
                let place = |fast| if along_lanes { [fast, slow] } else { [slow, fast] };
                if fast + AHEAD < inner {
                    self.prefetch_tile(place(fast + AHEAD));
                }
                let [lane, step] = place(fast);
                let to = &mut tiles[lane * steps + step];
                self.cut_tile(order, [lane * LANES, step * DEPTH], &mut zeros, to);
            }
        }
        let sum = _mm512_add_ps(zeros[0], zeros[1]);
        _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(sum, _mm512_setzero_ps()) == u16::MAX
    }

    /// Asks for the lines of a tile.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn prefetch_tile(&self, [lane, step]: [usize; 2]) {
        let Data::Single(all) = self.data else { unreachable!("thirds are of f32") };
        let Layout { row, column } = self.layout;
        let start = (self.start[0] + lane * LANES) * row + (self.start[1] + step * DEPTH) * column;
        let first = all.as_ptr().wrapping_add(start);
        if column == 1 {
            for lane in 0..LANES {
                _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(lane * row).cast());
                _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(lane * row + LANES).cast());
            }
        } else {
            for place in 0..DEPTH {
                _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(place * column).cast());
            }
        }
    }

    /// Packs three tiles. Adds 0 times what the first parts lack to `zeros`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn cut_tile(
        &self,
        order: Order,
        [lane, place]: [usize; 2],
        zeros: &mut [__m512; 2],
        to: &mut [f32; THIRDS * TILE],
    ) {
        let Data::Single(all) = self.data else { unreachable!("thirds are of f32") };
        let Layout { row, column } = self.layout;
        let lanes = LANES.min(self.extents[0] - lane);
        let depth = DEPTH.min(self.extents[1] - place);
        let start = (self.start[0] + lane) * row + (self.start[1] + place) * column;
        let (stride, found) =
            if column == 1 { (row, Order::Lanes) } else { (column, Order::Pairs) };
        let halves = [0, LANES].map(|place| start + place * column);
        if found == order && [lanes, depth] == [LANES, DEPTH] {
            let [low, high] = halves.map(|start| &all[start..=start + (LANES - 1) * (stride + 1)]);
            for line in 0..LANES {
                // SAFETY: the last of 16 lines ends where these numbers do.
                let numbers = unsafe {
                    [low, high].map(|half| _mm512_loadu_ps(half.as_ptr().add(line * stride)))
                };
                cut_line(numbers, zeros, line, to);
            }
            return;
        }
        let [low, high] = [0, 1].map(|half| {
            let depth = LANES.min(depth.saturating_sub(half * LANES));
            let extents = if found == Order::Lanes { [lanes, depth] } else { [depth, lanes] };
            let read = match depth {
                0 => [_mm512_setzero_ps(); LANES],
                _ => load_rows(all, halves[half], stride, extents),
            };
            if found == order { read } else { transposed_numbers(read) }
        });
        for line in 0..LANES {
            cut_line([low[line], high[line]], zeros, line, to);
        }
    }
}

/// Writes a line of each of three tiles: 16 numbers of the first 16 places along the inner extent, and as many of the others. Adds 0 times
/// what the first part lacks to `zeros`, which are 0 as long as all numbers are finite when they are rounded.
#[inline]
#[target_feature(enable = "avx512f")]
fn cut_line(
    [low, high]: [__m512; 2],
    zeros: &mut [__m512; 2],
    line: usize,
    to: &mut [f32; THIRDS * TILE],
) {
    let mut rest = [low, high];
    let upper = _mm512_set1_epi32(0xFFFF_0000u32 as i32);
    for part in 0..THIRDS {
        let mut bits = rest.map(|numbers| _mm512_castps_si512(numbers));
        if part + 1 < THIRDS {
            // Halves are rounded away from 0; of the last part there is nothing to round.
            bits = bits.map(|bits| _mm512_add_epi32(bits, _mm512_set1_epi32(0x8000)));
        }
        let [low, high] = bits;
        // The upper half of either number's bits.
        let word = _mm512_ternarylogic_epi32::<0xF8>(_mm512_srli_epi32::<16>(low), high, upper);
        // SAFETY: there is memory for 16 words.
        unsafe {
            let to = to[part * TILE + line * LANES..][..LANES].as_mut_ptr();
            _mm512_storeu_ps(to, _mm512_castsi512_ps(word));
        }
        for (rest, bits) in rest.iter_mut().zip(bits) {
            let part = _mm512_castsi512_ps(_mm512_and_si512(bits, upper));
            *rest = _mm512_sub_ps(*rest, part);
        }
        if part == 0 {
            for (zeros, rest) in zeros.iter_mut().zip(rest) {
                *zeros = _mm512_fmadd_ps(rest, _mm512_setzero_ps(), *zeros);
            }
        }
    }
}
