//! Loops over one row, for bodies that are vectorized. Sums run in a fixed number of lanes, so that their order is that of the shape alone.

use crate::math;

/// Lanes of one vector.
const LANES: usize = 16;
/// Lanes of a long row: several vectors, which keeps the arithmetic units busy and rounding errors small.
const MANY: usize = 64;
/// What is a long row.
const LONG: usize = 256;

/// Folds a row in lanes: `each` into every lane, `both` to join lanes.
#[inline(always)]
pub(crate) fn fold<const N: usize>(
    rows: [&[f32]; N],
    identity: f32,
    each: impl Fn(f32, [f32; N]) -> f32,
    both: impl Fn(f32, f32) -> f32,
) -> f32 {
    let len = rows.iter().map(|row| row.len()).min().unwrap_or(0);
    let mut lanes = [identity; LANES];
    let mut start = 0;
    if len >= LONG {
        let mut many = [identity; MANY];
        start = fold_chunks(rows, 0, &mut many, len, &each);
        for chunk in many.as_chunks::<LANES>().0 {
            for lane in 0..LANES {
                lanes[lane] = both(lanes[lane], chunk[lane]);
            }
        }
    }
    start = fold_chunks(rows, start, &mut lanes, len, &each);
    for i in start..len {
        lanes[i - start] = each(lanes[i - start], rows.map(|row| row[i]));
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] = both(lanes[lane], lanes[lane + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// Folds whole chunks of `L` elements from `start` on, one into each lane; returns where the rest begins.
#[inline(always)]
fn fold_chunks<const N: usize, const L: usize>(
    rows: [&[f32]; N],
    start: usize,
    lanes: &mut [f32; L],
    len: usize,
    each: &impl Fn(f32, [f32; N]) -> f32,
) -> usize {
    let mut own = *lanes;
    let mut start = start;
    while start + L <= len {
        let chunks = rows.map(|row| &row[start..start + L]);
        for lane in 0..L {
            own[lane] = each(own[lane], chunks.map(|chunk| chunk[lane]));
        }
        start += L;
    }
    *lanes = own;
    start
}

/// How many elements of a row go through whole vectors, where it has so many and memory goes on to `most`. What is over would be
/// computed one by one.
#[inline(always)]
pub(crate) fn whole_vectors(count: usize, most: usize) -> usize {
    count.next_multiple_of(LANES).min(most)
}

/// The sum of a row.
#[inline(always)]
pub(crate) fn sum(x: &[f32]) -> f32 {
    fold([x], 0.0, |sum, [x]| sum + x, |a, b| a + b)
}

/// The sum of products.
#[inline(always)]
pub(crate) fn dot(x: &[f32], y: &[f32]) -> f32 {
    fold([x, y], 0.0, |sum, [x, y]| sum + x * y, |a, b| a + b)
}

/// The greatest of a row, -inf where it is empty; NaNs are passed over.
#[inline(always)]
pub(crate) fn greatest(x: &[f32]) -> f32 {
    let greater = |a: f32, b: f32| if b > a { b } else { a };
    fold([x], f32::NEG_INFINITY, |a, [x]| greater(a, x), greater)
}

/// Writes exp(x - shift) and returns the sum.
#[inline(always)]
pub(crate) fn exp_and_sum(x: &[f32], shift: f32, out: &mut [f32]) -> f32 {
    for (out, &x) in out.iter_mut().zip(x) {
        *out = math::exp(x - shift);
    }
    sum(out)
}

/// The sum of exp(x - shift).
#[inline(always)]
pub(crate) fn sum_exp(x: &[f32], shift: f32) -> f32 {
    fold([x], 0.0, |sum, [x]| sum + math::exp(x - shift), |a, b| a + b)
}
