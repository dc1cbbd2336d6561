//! Blocks of `bf16` packed for instructions that multiply pairs: 16 rows of the first factor, or columns of the second, by
//! 32 places along the inner extent are a tile. Two neighbours along the inner extent make a pair, one 32-bit word; what
//! is beyond the matrix is 0. A word is kept as an `f32`, of which nothing but the bits is ever used.

use std::arch::x86_64::*;

use super::{Data, Layout};

/// Rows of the first factor or columns of the second in a tile.
pub(super) const LANES: usize = 16;
/// Places along the inner extent in a tile.
pub(super) const DEPTH: usize = 32;
/// Words of a tile.
pub(super) const TILE: usize = LANES * DEPTH / 2;

/// The order in which a tile has its words.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// All pairs of a lane, then the next lane: the first factor.
    Lanes,
    /// A pair of all lanes, then the next pair: the second factor.
    Pairs,
}

/// A block of a factor: so many lanes from one on, so many places along the inner extent.
#[derive(Clone, Copy)]
pub(super) struct FactorStrip<'a> {
    pub data: Data<'a>,
    /// Strides from lane to lane (as rows) and along the inner extent (as columns).
    pub layout: Layout,
    /// The first lane, the first place.
    pub start: [usize; 2],
    /// Lanes, places.
    pub extents: [usize; 2],
}

impl FactorStrip<'_> {
    /// Packs tile after tile along the inner extent, then the next lanes. Tiles are taken in the order in which the factor lies in memory, so that
    /// each of its lines is read once.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    pub(super) fn pack(&self, order: Order, to: &mut [f32]) {
        let [across, steps] = [self.extents[0].div_ceil(LANES), self.extents[1].div_ceil(DEPTH)];
        let tiles = to.as_chunks_mut::<TILE>().0;
        let mut pack = |lane: usize, step: usize| {
            self.pack_tile(order, [lane * LANES, step * DEPTH], &mut tiles[lane * steps + step]);
        };
        if self.layout.row == 1 && self.layout.column != 1 {
            (0..steps).for_each(|step| (0..across).for_each(|lane| pack(lane, step)));
        } else {
            (0..across).for_each(|lane| (0..steps).for_each(|step| pack(lane, step)));
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    fn pack_tile(&self, order: Order, [lane, place]: [usize; 2], to: &mut [f32; TILE]) {
        let Layout { row, column } = self.layout;
        let lanes = LANES.min(self.extents[0] - lane);
        let depth = DEPTH.min(self.extents[1] - place);
        let start = (self.start[0] + lane) * row + (self.start[1] + place) * column;
        let (words, found) = if column == 1 {
            (along_depth(self.data, start, row, [lanes, depth]), Order::Lanes)
        } else if row == 1 {
            (along_lanes(self.data, start, column, [lanes, depth]), Order::Pairs)
        } else {
            let words = load_scattered(self.data, start, self.layout, [lanes, depth]);
            (along_depth(Data::Single(&words), 0, DEPTH, [LANES, DEPTH]), Order::Lanes)
        };
        let words = if found == order { words } else { transpose_words(words) };
        for (to, words) in to.as_chunks_mut::<LANES>().0.iter_mut().zip(words) {
            // SAFETY: 16 words, of which there is memory for as many.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), _mm512_castsi512_ps(words)) };
        }
    }
}

/// A tile whose places along the inner extent are neighbours in memory: all pairs of a lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn along_depth(
    data: Data<'_>,
    start: usize,
    stride: usize,
    [lanes, depth]: [usize; 2],
) -> [__m512i; LANES] {
    let mut words = [_mm512_setzero_si512(); LANES];
    for (lane, words) in words.iter_mut().enumerate().take(lanes) {
        let start = start + lane * stride;
        let low = load_sixteen(data, start, depth.min(16));
        let low = _mm512_castsi256_si512(low);
        *words = match depth.checked_sub(16) {
            Some(rest @ 1..) => _mm512_inserti64x4::<1>(low, load_sixteen(data, start + 16, rest)),
            _ => _mm512_inserti64x4::<1>(low, _mm256_setzero_si256()),
        };
    }
    words
}

/// A tile whose lanes are neighbours in memory: a pair of all lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn along_lanes(
    data: Data<'_>,
    start: usize,
    stride: usize,
    [lanes, depth]: [usize; 2],
) -> [__m512i; LANES] {
    let mut words = [_mm512_setzero_si512(); LANES];
    for (pair, words) in words.iter_mut().enumerate().take(depth.div_ceil(2)) {
        let start = start + 2 * pair * stride;
        let even = _mm512_cvtepu16_epi32(load_sixteen(data, start, lanes));
        *words = if 2 * pair + 1 < depth {
            let odd = _mm512_cvtepu16_epi32(load_sixteen(data, start + stride, lanes));
            _mm512_or_si512(even, _mm512_slli_epi32::<16>(odd))
        } else {
            even
        };
    }
    words
}

/// A tile none of whose neighbours are neighbours in memory.
fn load_scattered(
    data: Data<'_>,
    start: usize,
    layout: Layout,
    [lanes, depth]: [usize; 2],
) -> [f32; LANES * DEPTH] {
    let mut values = [0.0; LANES * DEPTH];
    for lane in 0..lanes {
        for place in 0..depth {
            let from = start + lane * layout.row + place * layout.column;
            values[lane * DEPTH + place] = match data {
                Data::Single(all) => all[from],
                Data::Brain(all) => all[from].to_f32(),
                Data::Half(all) => all[from].to_f32(),
            };
        }
    }
    values
}

/// Loads up to 16 elements as `bf16`, and 0 behind them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn load_sixteen(data: Data<'_>, start: usize, count: usize) -> __m256i {
    let mask = mask_first(count);
    match data {
        Data::Brain(all) => {
            let part = &all[start..start + count];
            // SAFETY: the mask has as many ones as the part has elements; no others are read.
            unsafe { _mm256_maskz_loadu_epi16(mask, part.as_ptr().cast()) }
        }
        Data::Single(all) => {
            let part = &all[start..start + count];
            // SAFETY: as above.
            let values = unsafe { _mm512_maskz_loadu_ps(mask, part.as_ptr()) };
            as_bits(_mm512_cvtneps_pbh(values))
        }
        Data::Half(_) => unreachable!("f16 is not multiplied as bf16"),
    }
}

/// Returns a mask of `count` ones.
#[inline(always)]
pub(super) fn mask_first(count: usize) -> __mmask16 {
    ((1u32 << count) - 1) as __mmask16
}

/// The bits of 16 numbers.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn as_bits(values: __m256bh) -> __m256i {
    // SAFETY: both are 256 bits, of which all are valid.
    unsafe { std::mem::transmute(values) }
}

/// The transpose of 16 x 16 numbers.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn transposed_numbers(rows: [__m512; LANES]) -> [__m512; LANES] {
    let mut words = [_mm512_setzero_si512(); LANES];
    for (word, &row) in words.iter_mut().zip(&rows) {
        *word = _mm512_castps_si512(row);
    }
    let mut columns = rows;
    for (column, &word) in columns.iter_mut().zip(&transpose_words(words)) {
        *column = _mm512_castsi512_ps(word);
    }
    columns
}

/// The transpose of 16 x 16 words: words of 4 x 4 blocks first, then the blocks.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose_words(rows: [__m512i; LANES]) -> [__m512i; LANES] {
    let mut pairs = rows;
    for i in (0..LANES).step_by(2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    // fours[4 g + c] has, in its four quarters q, column 4 q + c of rows 4 g to 4 g + 3.
    let mut fours = rows;
    for i in (0..LANES).step_by(4) {
        fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    let mut columns = rows;
    for c in 0..4 {
        // Quarters 0 and 1, 2 and 3 of the first two groups, and of the last two.
        let low = _mm512_shuffle_i32x4::<0x44>(fours[c], fours[4 + c]);
        let high = _mm512_shuffle_i32x4::<0xEE>(fours[c], fours[4 + c]);
        let low_last = _mm512_shuffle_i32x4::<0x44>(fours[8 + c], fours[12 + c]);
        let high_last = _mm512_shuffle_i32x4::<0xEE>(fours[8 + c], fours[12 + c]);
        columns[c] = _mm512_shuffle_i32x4::<0x88>(low, low_last);
        columns[4 + c] = _mm512_shuffle_i32x4::<0xDD>(low, low_last);
        columns[8 + c] = _mm512_shuffle_i32x4::<0x88>(high, high_last);
        columns[12 + c] = _mm512_shuffle_i32x4::<0xDD>(high, high_last);
    }
    columns
}
