//! Matrix products of all kernels that multiply matrices, bounds checked. They are summed in `f32` and rounded once.
//!
//! - `f32` of at least 64 rows and columns with AMX: `thirds`, which multiplies `bf16` and loses no bits of `f32`.
//! - Other `f32` with AVX-512: `dense`, or `turned` for few rows.
//! - `f32` without AVX-512, of fewer than 16 rows, or with strides in both directions: the crate `gemm-f32` (`single`).
//! - A factor or product of half precision: `blocks` brings blocks of a cache's size to what the processor multiplies fastest
//!   (`method`). That is `f32` by `gemm` (`widened`), or pairs of `bf16` by AMX (`matrices`) or AVX-512 BF16 (`pairs`).
//!
//! Each element is summed in an order that follows from the extents alone, however threads cut the product. Start reading with
//! [`multiply`], then `dense`.

mod blocks;
#[cfg(target_arch = "x86_64")]
mod cut;
#[cfg(target_arch = "x86_64")]
mod dense;
#[cfg(target_arch = "x86_64")]
mod matrices;
mod method;
#[cfg(target_arch = "x86_64")]
mod packed;
#[cfg(target_arch = "x86_64")]
mod pairs;
mod single;
#[cfg(target_arch = "x86_64")]
mod special;
mod task;
#[cfg(target_arch = "x86_64")]
mod thirds;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod turned;
mod widened;

#[cfg(test)]
mod tests;

use std::ops::Range;

use graphc_ir::types::DType;
use half::{bf16, f16};

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::precision::Float;
use crate::threads::ThreadPool;
use crate::view::OutputParts;
use task::Method;
#[cfg(target_arch = "x86_64")]
pub(crate) use tiles::transposed_numbers as transposed;

/// A matrix in memory: the strides between its rows and between its columns, in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// The distance from one row to the next.
    pub row: usize,
    /// The distance from one column to the next.
    pub column: usize,
}

impl Layout {
    /// Rows one after the other, `row` elements apart.
    pub(crate) fn rows(row: usize) -> Self {
        Self { row, column: 1 }
    }

    /// The transpose.
    pub(crate) fn t(self) -> Self {
        Self { row: self.column, column: self.row }
    }

    /// The place of the last element of a matrix of these extents, which are at least 1.
    fn last(self, rows: usize, columns: usize) -> usize {
        (rows - 1) * self.row + (columns - 1) * self.column
    }
}

/// The use of what the product's memory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// It is overwritten.
    Replace,
    /// The product is added to it; products of half precision would be rounded each time, so they cannot.
    Add,
}

/// The threads that multiply, and the memory that they work in.
pub(crate) struct Hands<'a> {
    /// The threads, or the caller's alone.
    pub pool: Option<&'a ThreadPool>,
    /// The number of threads.
    pub threads: usize,
    /// Memory to work in: at least what [`room`] says, of any content.
    pub room: &'a mut [f32],
}

impl<'a> Hands<'a> {
    /// The caller's thread alone.
    pub(crate) fn own(room: &'a mut [f32]) -> Self {
        Self { pool: None, threads: 1, room }
    }
}

/// The threads that a product of so many multiplications is worth.
pub(crate) fn threads_for(cx: &KernelContext<'_>, multiplications: usize) -> usize {
    let worthwhile = cx.pool.is_some() && multiplications >= 1 << 18;
    if worthwhile { cx.threads.max(1) } else { 1 }
}

/// An element type of matrices.
pub(crate) trait Number: Float {
    /// The type's name.
    const DTYPE: DType;

    /// Elements of a type that is known when the program runs.
    fn data(elements: &[Self]) -> Data<'_>;

    /// Returns elements of a type that is known when the program runs, to be written.
    fn data_mut(elements: &mut [Self]) -> DataMut<'_>;
}

/// Elements of one of the types that matrices have.
#[derive(Clone, Copy)]
pub(crate) enum Data<'a> {
    /// `f32`.
    Single(&'a [f32]),
    /// `bf16`.
    Brain(&'a [bf16]),
    /// `f16`.
    Half(&'a [f16]),
}

impl Data<'_> {
    fn len(self) -> usize {
        match self {
            Self::Single(all) => all.len(),
            Self::Brain(all) => all.len(),
            Self::Half(all) => all.len(),
        }
    }
}

/// Elements of one of the types that matrices have, to write.
pub(crate) enum DataMut<'a> {
    /// `f32`.
    Single(&'a mut [f32]),
    /// `bf16`.
    Brain(&'a mut [bf16]),
    /// `f16`.
    Half(&'a mut [f16]),
}

impl Number for f32 {
    const DTYPE: DType = DType::F32;

    fn data(elements: &[Self]) -> Data<'_> {
        Data::Single(elements)
    }

    fn data_mut(elements: &mut [Self]) -> DataMut<'_> {
        DataMut::Single(elements)
    }
}

impl Number for bf16 {
    const DTYPE: DType = DType::BF16;

    fn data(elements: &[Self]) -> Data<'_> {
        Data::Brain(elements)
    }

    fn data_mut(elements: &mut [Self]) -> DataMut<'_> {
        DataMut::Brain(elements)
    }
}

impl Number for f16 {
    const DTYPE: DType = DType::F16;

    fn data(elements: &[Self]) -> Data<'_> {
        Data::Half(elements)
    }

    fn data_mut(elements: &mut [Self]) -> DataMut<'_> {
        DataMut::Half(elements)
    }
}

/// Returns the number of `f32` of scratch memory that a product on so many threads needs.
pub(crate) fn room<A: Number, B: Number, R: Number>(extents: [usize; 3], threads: usize) -> usize {
    let types = (A::data(&[]), B::data(&[]), R::data(&[]));
    match types {
        #[cfg(target_arch = "x86_64")]
        (Data::Single(_), Data::Single(_), Data::Single(_)) => {
            let turned = turned::scratch_len(extents, threads);
            dense::scratch_len(extents, threads)
                .max(turned)
                .max(thirds::scratch_len(extents, threads))
        }
        #[cfg(not(target_arch = "x86_64"))]
        (Data::Single(_), Data::Single(_), Data::Single(_)) => 0,
        (a, b, out) => blocks::scratch_len(extents, Method::fastest_for([a, b, out]), threads),
    }
}

/// Writes `scale` times the product of `[rows, inner]` and `[inner, columns]` to `out`; extents are at least 1. Of half
/// precision the rows of the product are contiguous.
///
/// The processor's own products of `bf16`, where they are used, take subnormal numbers for 0, and round `f32` factors to `bf16`. Every
/// element is summed in an order that follows from the extents alone.
pub(crate) fn multiply<A: Number, B: Number, R: Number>(
    extents: [usize; 3],
    scale: f32,
    (a, a_layout): (&[A], Layout),
    (b, b_layout): (&[B], Layout),
    (out, to): (&mut [R], Layout),
    write: Write,
    hands: Hands<'_>,
) {
    match (A::data(a), B::data(b), R::data_mut(out)) {
        (Data::Single(a), Data::Single(b), DataMut::Single(out)) => {
            let factors = [(a, a_layout), (b, b_layout)];
            #[cfg(target_arch = "x86_64")]
            if thirds::is_fast(extents, [a_layout, b_layout, to]) {
                return thirds::multiply_thirds(extents, scale, factors, (out, to), write, hands);
            }
            #[cfg(target_arch = "x86_64")]
            if dense::is_fast(extents, [a_layout, b_layout, to]) {
                if turned::is_faster(extents, [a_layout, b_layout], to, write, &hands) {
                    return turned::multiply_turned(extents, scale, factors, (out, to), hands);
                }
                return dense::multiply_dense(extents, scale, factors, (out, to), write, hands);
            }
            single::multiply_single(extents, scale, factors, (out, to), write, &hands);
        }
        (a, b, out) => {
            let method = Method::fastest_for([a, b, out.kind()]);
            let factors = [(a, a_layout), (b, b_layout)];
            blocks::multiply_blocks(method, (extents, scale), factors, (out, to), write, hands);
        }
    }
}

/// A product of `f32`: its extents, its factors, and where it is written.
#[cfg(target_arch = "x86_64")]
type SingleProduct<'a> = ([usize; 3], [(&'a [f32], Layout); 2], Layout);

/// Returns a product that is written by rows or by columns as one that is written by rows: itself, or its transpose.
#[cfg(target_arch = "x86_64")]
fn by_rows<'a>(
    [rows, inner, columns]: [usize; 3],
    [(a, of_a), (b, of_b)]: [(&'a [f32], Layout); 2],
    to: Layout,
) -> SingleProduct<'a> {
    match to.column {
        1 => ([rows, inner, columns], [(a, of_a), (b, of_b)], to),
        _ => ([columns, inner, rows], [(b, of_b.t()), (a, of_a.t())], to.t()),
    }
}

/// A part of a product: some columns of some rows.
pub(crate) struct ProductPart<'a> {
    /// The place of its first element in the product.
    pub start: usize,
    /// Its columns.
    pub columns: usize,
    /// The distance from one row of the product to the next.
    pub stride: usize,
    /// Its elements, row by row.
    pub elements: &'a [f32],
}

impl ProductPart<'_> {
    /// Pieces of rows of at most so many elements, each with the places that it has in the product.
    pub(crate) fn pieces(&self, most: usize) -> impl Iterator<Item = (Range<usize>, &[f32])> {
        self.elements.chunks_exact(self.columns).enumerate().flat_map(move |(row, elements)| {
            elements.chunks(most).enumerate().map(move |(index, piece)| {
                let start = self.start + row * self.stride + index * most;
                (start..start + piece.len(), piece)
            })
        })
    }
}

/// A reader of parts of a product, called on several threads.
pub(crate) type Then<'a> = &'a (dyn Fn(ProductPart<'_>) -> Result<(), KernelError> + Sync);

/// Whether [`in_turn`] gives products of these extents and layouts, by rows, part by part.
#[cfg(target_arch = "x86_64")]
pub(crate) fn comes_in_turn([rows, inner, columns]: [usize; 3], factors: [Layout; 2]) -> bool {
    dense::is_fast([rows, inner, columns], [factors[0], factors[1], Layout::rows(columns)])
}

/// Elsewhere a product comes as a whole.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn comes_in_turn(_: [usize; 3], _: [Layout; 2]) -> bool {
    false
}

/// Gives away a product, written by rows, part by part, each while the caches still have it: what [`multiply`] would write. `area` is
/// memory of as many numbers that is worked in; what it holds afterwards means nothing. `beside` are matrices of its extents of which
/// `then` reads the same parts.
pub(crate) fn in_turn(
    [rows, inner, columns]: [usize; 3],
    factors: [(&[f32], Layout); 2],
    area: &mut [f32],
    hands: Hands<'_>,
    (beside, then): (&[OutputParts<'_>], Then<'_>),
) -> Result<(), KernelError> {
    let extents = [rows, inner, columns];
    #[cfg(target_arch = "x86_64")]
    if thirds::is_fast(extents, [factors[0].1, factors[1].1, Layout::rows(columns)]) {
        return thirds::in_turn(extents, factors, area, hands, then);
    }
    #[cfg(target_arch = "x86_64")]
    if comes_in_turn(extents, factors.map(|factor| factor.1)) {
        return dense::in_turn(extents, factors, area, hands, beside, then);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = beside;
    let [a, b] = factors;
    multiply(extents, 1.0, a, b, (&mut *area, Layout::rows(columns)), Write::Replace, hands);
    then(ProductPart { start: 0, columns, stride: columns, elements: area })
}

impl DataMut<'_> {
    /// Returns no elements, of the same type.
    fn kind(&self) -> Data<'static> {
        match self {
            Self::Single(_) => Data::Single(&[]),
            Self::Brain(_) => Data::Brain(&[]),
            Self::Half(_) => Data::Half(&[]),
        }
    }
}
