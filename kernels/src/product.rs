//! A matrix product by `gemm`, bounds checked: what kernels that multiply matrices share.

use gemm::Parallelism;

/// A matrix in memory: the strides between its rows and between its columns, in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// From one row to the next.
    pub row: usize,
    /// From one column to the next.
    pub column: usize,
}

impl Layout {
    /// Rows one after the other, `row` elements apart.
    pub fn rows(row: usize) -> Self {
        Self { row, column: 1 }
    }

    /// The transpose.
    pub fn t(self) -> Self {
        Self { row: self.column, column: self.row }
    }

    /// The place of the last element of a matrix of these extents, which are at least 1.
    fn last(self, rows: usize, columns: usize) -> usize {
        (rows - 1) * self.row + (columns - 1) * self.column
    }
}

/// What becomes of what the product's memory holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Write {
    /// It is overwritten.
    Replace,
    /// The product is added to it.
    Add,
}

/// Writes `scale` times the product of `[rows, inner]` and `[inner, columns]` to `out`; extents are at least 1.
pub(crate) fn multiply(
    [rows, inner, columns]: [usize; 3],
    scale: f32,
    (a, a_layout): (&[f32], Layout),
    (b, b_layout): (&[f32], Layout),
    (out, to): (&mut [f32], Layout),
    write: Write,
    parallelism: Parallelism,
) {
    assert!(a_layout.last(rows, inner) < a.len(), "first matrix");
    assert!(b_layout.last(inner, columns) < b.len(), "second matrix");
    assert!(to.last(rows, columns) < out.len(), "product");
    let add = write == Write::Add;
    // SAFETY: extents are at least 1, or the sums above would have overflowed; the greatest index into each slice has
    // just been checked; `out` is exclusive.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            out.as_mut_ptr(),
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
            parallelism,
        );
    }
}
