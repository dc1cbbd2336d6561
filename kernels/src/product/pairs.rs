//! Blocks multiplied by AVX-512 BF16, and their way to memory: all `unsafe` instructions on packed tiles.

use std::arch::x86_64::*;

use super::task::{Pointer, ProductPlace};
use super::tiles::{LANES, TILE, as_bits, mask_first};

/// Rows, and columns, of the block of the product that is summed at a time: two tiles by two.
pub(super) const SIDE: usize = 2 * LANES;
/// Rows whose sums are in registers at a time.
const ROWS: usize = 8;

/// Whether the processor has the instructions of this file.
pub(super) fn are_multiplied() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512bf16")
}

/// A block of sums.
pub(super) type Sums = [f32; SIDE * SIDE];

/// Adds the product of one or two rows of tiles of each factor to the sums, or replaces them by it.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) fn multiply_tiles(a: &[f32], b: &[f32], steps: usize, (sums, add): (&mut Sums, bool)) {
    let panel = steps * TILE;
    let sums = sums.as_chunks_mut::<{ ROWS * SIDE }>().0;
    for (index, sums) in sums.iter_mut().enumerate().take(a.len() / panel * (LANES / ROWS)) {
        let a = &a[index * ROWS / LANES * panel..][..panel];
        let start = index * ROWS % LANES;
        match b.split_at(panel) {
            (b, []) => multiply_rows([b], a, start, (sums, add)),
            (b, other) => multiply_rows([b, other], a, start, (sums, add)),
        }
    }
}

/// Adds the product for [`ROWS`] rows of a row of tiles, from its row `start` on, to their sums, or replaces the sums by it.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn multiply_rows<const N: usize>(
    b: [&[f32]; N],
    a: &[f32],
    start: usize,
    (sums, add): (&mut [f32; ROWS * SIDE], bool),
) {
    let b = b.map(|b| b.as_chunks::<LANES>().0);
    let mut own = [[_mm512_setzero_ps(); N]; ROWS];
    if add {
        for (row, own) in own.iter_mut().enumerate() {
            for (column, own) in own.iter_mut().enumerate() {
                *own = load_words(&sums.as_chunks::<LANES>().0[row * 2 + column]);
            }
        }
    }
    for (step, tile) in a.as_chunks::<TILE>().0.iter().enumerate() {
        let b = b.map(|b| &b[step * LANES..][..LANES]);
        for pair in 0..LANES {
            let b = b.map(|b| as_pairs(load_words(&b[pair])));
            for (row, own) in own.iter_mut().enumerate() {
                let a = as_pairs(_mm512_set1_ps(tile[(start + row) * LANES + pair]));
                for (own, &b) in own.iter_mut().zip(&b) {
                    *own = _mm512_dpbf16_ps(*own, a, b);
                }
            }
        }
    }
    let sums = sums.as_chunks_mut::<LANES>().0;
    for (row, own) in own.iter().enumerate() {
        for (column, &own) in own.iter().enumerate() {
            // SAFETY: there is memory for 16 words.
            unsafe { _mm512_storeu_ps(sums[row * 2 + column].as_mut_ptr(), own) };
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_words(words: &[f32; LANES]) -> __m512 {
    // SAFETY: there are 16 words.
    unsafe { _mm512_loadu_ps(words.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn as_pairs(words: __m512) -> __m512bh {
    // SAFETY: both are 512 bits, of which all are valid.
    unsafe { std::mem::transmute(words) }
}

/// Writes sums to their place, scaled and rounded once.
///
/// # Safety
/// The place is of `f32` or `bf16`, inside its memory, and no other thread reaches it.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn store_sums(sums: &Sums, scale: f32, add: bool, place: ProductPlace) {
    let scale = _mm512_set1_ps(scale);
    for row in 0..place.rows {
        for column in (0..place.columns).step_by(LANES) {
            let mask = mask_first(LANES.min(place.columns - column));
            let sum = load_words(&sums.as_chunks::<LANES>().0[(row * SIDE + column) / LANES]);
            let at = row * place.stride + column;
            match place.pointer {
                Pointer::Single(to) => {
                    // SAFETY: the mask keeps to the place, which the caller vouches for.
                    unsafe {
                        let to = to.add(at);
                        let before = if add { mask } else { 0 };
                        let before = _mm512_maskz_loadu_ps(before, to);
                        _mm512_mask_storeu_ps(to, mask, _mm512_fmadd_ps(sum, scale, before));
                    }
                }
                Pointer::Brain(to) => {
                    let rounded = as_bits(_mm512_cvtneps_pbh(_mm512_mul_ps(sum, scale)));
                    // SAFETY: as above.
                    unsafe { _mm256_mask_storeu_epi16(to.add(at).cast(), mask, rounded) };
                }
                Pointer::Half(_) => unreachable!("f16 is not multiplied as bf16"),
            }
        }
    }
}
