//! Products of `f32` as products of three times three `bf16`, where AMX multiplies these ten and more times as fast as `f32`
//! (Henry, Tang, Heinecke: "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations", 2019).
//!
//! Parts hold all 24 bits of a number ([`super::cut`]). Of the nine products of parts the three smallest are left out: together they are below
//! 2^-24 of the product of both numbers, of either sign, and about 2^-27 in the mean. Sums are at least as exact as those of `f32`, which
//! rounds with each number that is added: the tests hold both against doubles. Exceptions are numbers below 2^-110, about 1e-33, of which
//! the smaller parts are subnormal, and taken for 0.
//!
//! Each element is summed along the inner extent in steps of 512, however threads cut the product.

use super::blocks::{multiply_blocks, multiply_in_turn};
use super::packed::{self, KEPT, SIDES_OF_THIRDS};
use super::task::Method;
use super::tiles::DEPTH;
use super::{Data, DataMut, Hands, Layout, Then, Write, by_rows, matrices};
use crate::error::KernelError;

/// Rows, and columns, of a product at least: fewer are multiplied in less time than the factors are cut in parts. (Of weights 768 x 768,
/// 64 rows are 1.2 to 1.5 times as fast as by `dense` or `turned`, 48 are 0.97 to 1.2. Of 1024 rows, 64 columns are 1 to 1.3 times as
/// fast, of 128 rows 1.2 to 1.3.)
const FEWEST: usize = 64;

/// Whether products of these extents and layouts, of both factors and the result, are computed here.
pub(super) fn is_fast(extents: [usize; 3], layouts: [Layout; 3]) -> bool {
    let by_rows_or_columns = layouts.iter().all(|layout| layout.column == 1 || layout.row == 1);
    by_rows_or_columns && is_large(extents) && matrices::is_available()
}

fn is_large([rows, inner, columns]: [usize; 3]) -> bool {
    rows.min(columns) >= FEWEST && inner >= DEPTH
}

/// Returns the numbers that so many threads work in, whether the product is written by rows or by columns. A product of smaller extents
/// needs no more: who multiplies parts of various extents has enough for all with what the largest needs.
pub(super) fn scratch_len([rows, inner, columns]: [usize; 3], threads: usize) -> usize {
    if !is_large([rows, inner, columns]) || !matrices::is_available() {
        return 0;
    }
    let room = |sides: [usize; 2]| {
        let sides = [0, 1].map(|side| sides[side].min(SIDES_OF_THIRDS[side]));
        packed::scratch_len(Method::Thirds, sides, inner.min(KEPT))
    };
    threads.max(1) * room([rows, columns]).max(room([columns, rows]))
}

/// Writes a product for which [`is_fast`].
pub(super) fn multiply_thirds(
    extents: [usize; 3],
    scale: f32,
    factors: [(&[f32], Layout); 2],
    (out, to): (&mut [f32], Layout),
    write: Write,
    hands: Hands<'_>,
) {
    let (extents, factors, to) = by_rows(extents, factors, to);
    let factors = factors.map(|(factor, layout)| (Data::Single(factor), layout));
    let out = (DataMut::Single(out), to);
    multiply_blocks(Method::Thirds, (extents, scale), factors, out, write, hands);
}

/// Gives away a product for which [`is_fast`], written by rows, part by part.
pub(super) fn in_turn(
    extents: [usize; 3],
    factors: [(&[f32], Layout); 2],
    area: &mut [f32],
    hands: Hands<'_>,
    then: Then<'_>,
) -> Result<(), KernelError> {
    let factors = factors.map(|(factor, layout)| (Data::Single(factor), layout));
    multiply_in_turn(Method::Thirds, extents, factors, area, hands, then)
}
