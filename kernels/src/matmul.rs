//! Matrix product: `gemm` with strides for what is large, plain loops for what is small or integer.

use gemm::Parallelism;
use graphc_ir::op::Op;
use graphc_ir::ops::MatMul;
use graphc_ir::types::DType;

use crate::context::KernelContext;
use crate::elementwise::Integer;
use crate::error::KernelError;
use crate::parallel;
use crate::product::{Layout, Write, multiply};
use crate::strided;
use crate::view::{View, ViewMut};

/// Multiplications below which a plain loop is faster than packing.
const SMALL: usize = 1 << 10;

/// The kernel of [`MatMul`].
pub(crate) fn matmul(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::MatMul(op), [a, b], [out]) = (op, operands, results) else {
        return Err(KernelError::call("matmul", "takes two operands and gives one result"));
    };
    let plan = Product::new(op, a.shape, b.shape, out.shape)?;
    match out.dtype {
        DType::F32 => plan.floats(a.as_slice()?, b.as_slice()?, out.as_mut_slice()?, cx),
        DType::I64 => plan.integers::<i64>(a, b, out),
        DType::I32 => plan.integers::<i32>(a, b, out),
        DType::U8 => plan.integers::<u8>(a, b, out),
        dtype => Err(KernelError::wrong_dtype::<f32>(dtype)),
    }
}

/// Extents and strides of a batch of products `[rows, inner] x [inner, columns]`.
struct Product {
    rows: usize,
    inner: usize,
    columns: usize,
    a: Layout,
    b: Layout,
    /// Where the matrices of each operand begin, for each matrix of the result.
    starts: Vec<(usize, usize)>,
}

impl Product {
    fn new(op: &MatMul, a: &[usize], b: &[usize], out: &[usize]) -> Result<Self, KernelError> {
        let misfit = || KernelError::call("matmul", format!("{a:?} and {b:?} do not give {out:?}"));
        if a.len() < 2 || b.len() < 2 || out.len() != a.len().max(b.len()) {
            return Err(misfit());
        }
        let ((a_batch, a_last), (b_batch, b_last)) = (split(a), split(b));
        let (out_batch, out_last) = split(out);
        let (rows, inner, a_layout) = layout(a_last, op.transpose_a);
        let (inner_b, columns, b_layout) = layout(b_last, op.transpose_b);
        if inner != inner_b || out_last != [rows, columns] {
            return Err(misfit());
        }
        let mut product =
            Self { rows, inner, columns, a: a_layout, b: b_layout, starts: Vec::new() };
        if b_batch.iter().all(|&extent| extent == 1) && a_batch == out_batch && !op.transpose_a {
            // One matrix on the right: all rows on the left make one product.
            product.rows *= a_batch.iter().product::<usize>();
            product.starts.push((0, 0));
            return Ok(product);
        }
        let a_strides = batch_strides(a_batch, out_batch, rows * inner).ok_or_else(misfit)?;
        let b_strides = batch_strides(b_batch, out_batch, inner * columns).ok_or_else(misfit)?;
        product.starts = (0..out_batch.iter().product())
            .map(|index| (start(index, out_batch, &a_strides), start(index, out_batch, &b_strides)))
            .collect();
        Ok(product)
    }

    fn floats(
        &self,
        a: &[f32],
        b: &[f32],
        out: &mut [f32],
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        let size = self.rows * self.columns;
        if size == 0 || self.inner == 0 {
            out.fill(0.0);
            return Ok(());
        }
        let count = self.starts.len();
        let worthwhile = cx.threads > 1 && size * self.inner * count >= 1 << 18;
        let pool = cx.pool.filter(|_| worthwhile);
        let parallelism = pool.map_or(Parallelism::None, |_| Parallelism::Rayon(cx.threads));
        if self.is_faster_by_columns() && count == 1 {
            let columns = cx.scratch.take::<f32>(size);
            let to = Layout { row: 1, column: self.rows };
            install(pool, || self.gemm(a, b, columns, to, parallelism));
            strided::transpose_matrix(columns, out, self.columns, self.rows);
            return Ok(());
        }
        if pool.is_none() || count < cx.threads {
            install(pool, || self.matrices(&self.starts, a, b, out, parallelism));
            return Ok(());
        }
        let each = count.div_ceil(cx.threads);
        let pieces = self.starts.chunks(each).zip(out.chunks_mut(each * size)).collect();
        parallel::run(pool, pieces, |(starts, out)| {
            self.matrices(starts, a, b, out, Parallelism::None);
            Ok(())
        })
    }

    /// Whether the product is faster written column by column and transposed: of a large transposed matrix on the right
    /// and few rows on the left, `gemm` otherwise spends its time in packing the former. (Measured: 128 x 2048 x 2048
    /// three times as fast.)
    fn is_faster_by_columns(&self) -> bool {
        self.b.row == 1
            && (8..=256).contains(&self.rows)
            && self.columns >= 2 * self.rows
            && self.inner >= 64
    }

    /// Computes the matrices that begin at `starts`.
    fn matrices(
        &self,
        starts: &[(usize, usize)],
        a: &[f32],
        b: &[f32],
        out: &mut [f32],
        parallelism: Parallelism,
    ) {
        for (&(at_a, at_b), out) in
            starts.iter().zip(out.chunks_exact_mut(self.rows * self.columns))
        {
            let (a, b) = (&a[at_a..], &b[at_b..]);
            if self.rows * self.columns * self.inner <= SMALL {
                self.plain(a, b, out, |sum, a, b| sum + a * b);
            } else {
                self.gemm(a, b, out, self.row_major(), parallelism);
            }
        }
    }

    fn row_major(&self) -> Layout {
        Layout::rows(self.columns)
    }

    /// Writes a product into `out`, which is dense and laid out by rows or by columns.
    fn gemm(&self, a: &[f32], b: &[f32], out: &mut [f32], to: Layout, parallelism: Parallelism) {
        let extents = [self.rows, self.inner, self.columns];
        multiply(extents, 1.0, (a, self.a), (b, self.b), (out, to), Write::Replace, parallelism);
    }

    fn integers<T: Integer>(
        &self,
        a: &View<'_>,
        b: &View<'_>,
        out: &mut ViewMut<'_>,
    ) -> Result<(), KernelError> {
        let (a, b, out) = (a.as_slice::<T>()?, b.as_slice::<T>()?, out.as_mut_slice::<T>()?);
        if out.is_empty() {
            return Ok(());
        }
        let multiply_add = |sum: T, a: T, b: T| {
            let (sum, a, b): (i64, i64, i64) = (sum.into(), a.into(), b.into());
            T::wrap(sum.wrapping_add(a.wrapping_mul(b)))
        };
        for (&(at_a, at_b), out) in
            self.starts.iter().zip(out.chunks_exact_mut(self.rows * self.columns))
        {
            self.plain(&a[at_a..], &b[at_b..], out, multiply_add);
        }
        Ok(())
    }

    fn plain<T: Copy + Default>(&self, a: &[T], b: &[T], out: &mut [T], f: impl Fn(T, T, T) -> T) {
        for (row, out) in out.chunks_exact_mut(self.columns).enumerate() {
            for (column, out) in out.iter_mut().enumerate() {
                let mut sum = T::default();
                for k in 0..self.inner {
                    let left = a[row * self.a.row + k * self.a.column];
                    sum = f(sum, left, b[k * self.b.row + column * self.b.column]);
                }
                *out = sum;
            }
        }
    }
}

/// Runs on the threads of the pool, if there is one.
fn install(pool: Option<&rayon::ThreadPool>, work: impl FnOnce() + Send) {
    match pool {
        Some(pool) => pool.install(work),
        None => work(),
    }
}

fn split(shape: &[usize]) -> (&[usize], [usize; 2]) {
    let (batch, last) = shape.split_at(shape.len() - 2);
    (batch, [last[0], last[1]])
}

/// Rows, columns and strides of a matrix that is stored as it is, or transposed.
fn layout([rows, columns]: [usize; 2], transposed: bool) -> (usize, usize, Layout) {
    if transposed {
        (columns, rows, Layout { row: 1, column: columns })
    } else {
        (rows, columns, Layout { row: columns, column: 1 })
    }
}

/// The stride of an operand's matrices for each batch dim of the result; `None` where it does not broadcast.
fn batch_strides(batch: &[usize], to: &[usize], size: usize) -> Option<Vec<usize>> {
    let skip = to.len().checked_sub(batch.len())?;
    let mut strides = vec![0; to.len()];
    let mut stride = size;
    for dim in (0..batch.len()).rev() {
        match batch[dim] {
            1 => {}
            extent if extent == to[skip + dim] => strides[skip + dim] = stride,
            _ => return None,
        }
        stride *= batch[dim];
    }
    Some(strides)
}

fn start(mut index: usize, extents: &[usize], strides: &[usize]) -> usize {
    let mut start = 0;
    for (&extent, &stride) in extents.iter().zip(strides).rev() {
        start += index % extent * stride;
        index /= extent;
    }
    start
}
