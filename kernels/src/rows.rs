//! Loops over one row, for bodies that are vectorized. Sums run in a fixed number of lanes, so that their order is that of the shape alone.

use crate::math;

/// Lanes of one vector.
const LANES: usize = 16;
/// Lanes of a long row: several vectors, which keeps the arithmetic units busy and rounding errors small.
const MANY: usize = 64;
/// The number of elements from which a row is long.
const LONG: usize = 256;

/// Folds a row in lanes: `each` into every lane, `both` to join lanes.
#[inline(always)]
pub(crate) fn fold_row<const N: usize>(
    rows: [&[f32]; N],
    identity: f32,
    each: impl Fn(f32, [f32; N]) -> f32,
    both: impl Fn(f32, f32) -> f32,
) -> f32 {
    let len = rows.iter().map(|row| row.len()).min().unwrap_or(0);
    let mut rest = rows.map(|row| &row[..len]);
    let mut lanes = [identity; LANES];
    if len >= LONG {
        let mut many = [identity; MANY];
        rest = fold_chunks(rest, &mut many, &each);
        for chunk in many.as_chunks::<LANES>().0 {
            join_lanes(&mut lanes, chunk, &both);
        }
    }
    let rest = fold_chunks(rest, &mut lanes, &each);
    for (index, lane) in lanes.iter_mut().enumerate().take(len % LANES) {
        *lane = each(*lane, rest.map(|row| row[index]));
    }
    let mut width = LANES / 2;
    while width > 0 {
        let (lanes, others) = lanes.split_at_mut(width);
        join_lanes(lanes, others, &both);
        width /= 2;
    }
    lanes[0]
}

/// Folds whole chunks of `L` elements, one into each lane; returns the rest. (With slices by numbers, not as chunks, the compiler takes
/// vectors of two lanes.)
#[inline(always)]
fn fold_chunks<'a, const N: usize, const L: usize>(
    rows: [&'a [f32]; N],
    lanes: &mut [f32; L],
    each: &impl Fn(f32, [f32; N]) -> f32,
) -> [&'a [f32]; N] {
    let rows = rows.map(|row| row.as_chunks::<L>());
    for index in 0..rows.first().map_or(0, |(chunks, _)| chunks.len()) {
        let chunks = rows.map(|(chunks, _)| &chunks[index]);
        for (lane, folded) in lanes.iter_mut().enumerate() {
            *folded = each(*folded, chunks.map(|chunk| chunk[lane]));
        }
    }
    rows.map(|(_, rest)| rest)
}

/// Joins lanes with as many others.
#[inline(always)]
fn join_lanes(lanes: &mut [f32], others: &[f32], both: &impl Fn(f32, f32) -> f32) {
    for (lane, &other) in lanes.iter_mut().zip(others) {
        *lane = both(*lane, other);
    }
}

/// The sum of a row.
#[inline(always)]
pub(crate) fn sum_row(x: &[f32]) -> f32 {
    fold_row([x], 0.0, |sum, [x]| sum + x, |a, b| a + b)
}

/// The sum of products.
#[inline(always)]
pub(crate) fn dot_product(x: &[f32], y: &[f32]) -> f32 {
    fold_row([x, y], 0.0, |sum, [x, y]| sum + x * y, |a, b| a + b)
}

/// The greatest of a row, -inf where it is empty; NaNs are passed over.
#[inline(always)]
pub(crate) fn greatest_of_row(x: &[f32]) -> f32 {
    let greater = |a: f32, b: f32| if b > a { b } else { a };
    fold_row([x], f32::NEG_INFINITY, |a, [x]| greater(a, x), greater)
}

/// Writes exp(x - shift) and returns the sum; the shift is the greatest.
#[inline(always)]
pub(crate) fn exp_and_sum(x: &[f32], shift: f32, out: &mut [f32]) -> f32 {
    for (out, &x) in out.iter_mut().zip(x) {
        *out = math::exp_below(x - shift);
    }
    sum_row(out)
}

/// The sum of exp(x - shift); the shift is the greatest.
#[inline(always)]
pub(crate) fn sum_exp(x: &[f32], shift: f32) -> f32 {
    fold_row([x], 0.0, |sum, [x]| sum + math::exp_below(x - shift), |a, b| a + b)
}
