//! Products of `f32` by the crate `gemm-f32`, cut into blocks that threads share. `gemm` itself has no threads here.
//!
//! Bits do not depend on cuts. `gemm` sums an element along the inner extent in steps. Their size follows from all extents, the
//! instructions and the caches of the processor. An inner extent of up to [`STEP`] places is one step, so it is given that many
//! at a time. A product that is so small, or so thin, that it goes another way is not cut ([`ProductCut::from_extents`]).

use gemm_common::Parallelism;
use gemm_f32::gemm::f32::get_gemm_fn;

use super::{Hands, Layout, Write};
use crate::parallel;
use graphc_ir::shard::split_range;

/// Elements of a block that `gemm` computes as dot products instead, where both factors lie that way: at most so many.
const DOTS: usize = 16 * 16;
/// Places along the inner extent that are summed at a time, at most.
const STEP: usize = 512;
/// Rows or columns of a block, at least, where the product is cut.
const LEAST: usize = 32;

/// Multiplications of a block, where there is more than one for each thread: beside them what is packed again does not count,
/// and a thread that is held up has the others take the block that it has not begun.
const BLOCK: usize = 1 << 23;

/// The division of a product into parts.
#[derive(Clone, Copy)]
struct ProductCut {
    /// 0 between rows, 1 between columns.
    side: usize,
    parts: usize,
    /// Rows or columns that stay together.
    unit: usize,
}

/// The product in memory, which threads write at places that do not meet.
#[derive(Clone, Copy)]
struct SingleTarget(*mut f32);

// SAFETY: exclusive access to plain elements, as `multiply_single` was given it; threads take blocks that do not meet.
unsafe impl Send for SingleTarget {}
// SAFETY: as for `Send`.
unsafe impl Sync for SingleTarget {}

impl SingleTarget {
    /// # Safety
    /// So many elements further is in the product's memory.
    unsafe fn pointer_at(self, element: usize) -> *mut f32 {
        // SAFETY: as the caller says.
        unsafe { self.0.add(element) }
    }
}

impl ProductCut {
    /// The longer side is cut: each block then packs all of the smaller factor again.
    fn from_extents([rows, inner, columns]: [usize; 3], threads: usize) -> Self {
        let side = usize::from(columns >= rows);
        let (cut, whole) = if side == 1 { (columns, rows) } else { (rows, columns) };
        // Tiles of `gemm` are at most 48 x 8, of which the former lie along contiguous elements of the product.
        let unit = if cut >= 48 * 16 * threads { 48 } else { 16 };
        let thin = whole < 2 || inner <= 2;
        let most =
            if thin { 1 } else { cut / LEAST.max((DOTS / whole + 1).next_multiple_of(unit)) };
        let wanted =
            if rows * inner * columns / BLOCK >= 2 * threads { 2 * threads } else { threads };
        Self { side, parts: if threads > 1 { wanted.min(most).max(1) } else { 1 }, unit }
    }

    /// Returns the start and the extents of a part.
    fn cut_part(self, [rows, inner, columns]: [usize; 3], part: usize) -> ([usize; 2], [usize; 3]) {
        let whole = [rows, columns][self.side];
        let units = split_range(whole.div_ceil(self.unit), self.parts, part);
        let (start, end) = (units.start * self.unit, (units.end * self.unit).min(whole));
        match self.side {
            0 => ([start, 0], [end - start, inner, columns]),
            _ => ([0, start], [rows, inner, end - start]),
        }
    }
}

/// Multiplies matrices of `f32`: a part of [`super::multiply`].
pub(super) fn multiply_single(
    extents: [usize; 3],
    scale: f32,
    factors: [(&[f32], Layout); 2],
    (out, to): (&mut [f32], Layout),
    write: Write,
    hands: &Hands<'_>,
) {
    let [rows, _, columns] = extents;
    check_bounds(extents, factors.map(|(factor, layout)| (factor.len(), layout)), (out.len(), to));
    let apart = to.column == 1 && to.row >= columns || to.row == 1 && to.column >= rows;
    let threads = if hands.pool.is_some() && apart { hands.threads } else { 1 };
    let cut = ProductCut::from_extents(extents, threads);
    let target = SingleTarget(out.as_mut_ptr());
    let shared = parallel::for_each_index(hands.pool, cut.parts, &|part| {
        let ([row, column], extents) = cut.cut_part(extents, part);
        let [(a, a_layout), (b, b_layout)] = factors;
        let factors =
            [(&a[row * a_layout.row..], a_layout), (&b[column * b_layout.column..], b_layout)];
        // SAFETY: the block lies in the product, of which `check_bounds` has seen that it lies in `out`, which is exclusive; rows
        // and columns of the product are apart, and so are blocks of them.
        unsafe {
            let to = (target.pointer_at(row * to.row + column * to.column), to);
            multiply_block(extents, scale, factors, to, write);
        }
        Ok(())
    });
    debug_assert!(shared.is_ok(), "blocks give no errors");
}

fn check_bounds(
    [rows, inner, columns]: [usize; 3],
    [(a, a_layout), (b, b_layout)]: [(usize, Layout); 2],
    (out, to): (usize, Layout),
) {
    assert!(a_layout.last(rows, inner) < a, "first matrix");
    assert!(b_layout.last(inner, columns) < b, "second matrix");
    assert!(to.last(rows, columns) < out, "product");
}

/// Computes a product on this thread, step by step along the inner extent; what is thin as a whole.
///
/// # Safety
/// The product lies in memory that nothing else reaches meanwhile.
unsafe fn multiply_block(
    [rows, inner, columns]: [usize; 3],
    scale: f32,
    [(a, a_layout), (b, b_layout)]: [(&[f32], Layout); 2],
    out: (*mut f32, Layout),
    mut write: Write,
) {
    let steps = if rows.min(columns) < 2 { 1 } else { inner.div_ceil(STEP) };
    let step = inner.div_ceil(steps);
    for start in (0..inner).step_by(step) {
        let extents = [rows, step.min(inner - start), columns];
        let factors =
            [(&a[start * a_layout.column..], a_layout), (&b[start * b_layout.row..], b_layout)];
        // SAFETY: as the caller says.
        unsafe { sum_step(extents, scale, factors, out, write) };
        write = Write::Add;
    }
}

/// Writes or adds the product of a step along the inner extent.
///
/// # Safety
/// The product lies in memory that nothing else reaches meanwhile.
unsafe fn sum_step(
    [rows, inner, columns]: [usize; 3],
    scale: f32,
    [(a, a_layout), (b, b_layout)]: [(&[f32], Layout); 2],
    (out, to): (*mut f32, Layout),
    write: Write,
) {
    assert!(a_layout.last(rows, inner) < a.len(), "first matrix");
    assert!(b_layout.last(inner, columns) < b.len(), "second matrix");
    let add = write == Write::Add;
    // Tiles of `gemm` are long along contiguous elements of what it takes for columns of the product: where those are rows,
    // the product is computed turned.
    let turned = to.column < to.row;
    let (rows, columns, to) = if turned { (columns, rows, to.t()) } else { (rows, columns, to) };
    let factors = [(a, a_layout), (b, b_layout)];
    let [(a, a_layout), (b, b_layout)] = match turned {
        true => [(b, b_layout.t()), (a, a_layout.t())],
        false => factors,
    };
    // SAFETY: extents are at least 1, or the sums above would have overflowed; the greatest index into each factor has
    // just been checked; the caller says the same of the product.
    unsafe {
        get_gemm_fn()(
            rows,
            columns,
            inner,
            out,
            to.column as isize,
            to.row as isize,
            add,
            a.as_ptr(),
            a_layout.column as isize,
            a_layout.row as isize,
            b.as_ptr(),
            b_layout.column as isize,
            b_layout.row as isize,
            if add { 1.0 } else { 0.0 },
            scale,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}
