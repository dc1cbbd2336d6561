//! Matrix products: [`product`] for what is large, plain loops for what is small or integer.
//!
//! A product of `f32` with 8 to 256 rows and one large transposed matrix on the right is computed column by column and then
//! transposed, because packing that matrix would take most of the time.

use graphc_ir::op::Op;
use graphc_ir::ops::MatMul;
use graphc_ir::types::{DType, TensorType};
use half::{bf16, f16};

use crate::context::KernelContext;
use crate::elementwise::Integer;
use crate::error::KernelError;
use crate::parallel;
use crate::product::{self, Hands, Layout, Number, Then, Write, multiply, room, threads_for};
use crate::strided;
use crate::threads::ThreadPool;
use crate::view::{OutputParts, Scratch, View, ViewMut};

mod float8;

/// Multiplications below which a plain loop is faster than packing.
const SMALL: usize = 1 << 10;

/// Columns of a product that are computed apart from it and copied there at most: with 256 rows they take 4 MiB.
const COLUMNS_AT_ONCE: usize = 1 << 12;

/// The kernel of [`MatMul`].
pub(crate) fn matmul(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::MatMul(op), [a, b, ..], [out]) = (op, operands, results) else {
        return Err(KernelError::bad_call("matmul", "takes two operands and gives one result"));
    };
    let plan = BatchProduct::new(op, a.shape, b.shape, out.shape)?;
    match out.dtype {
        DType::BF16 if a.dtype.is_float8() => plan.multiply_float8(operands, out, cx),
        DType::F32 => plan.multiply_floats::<f32, f32>([a, b], out, Write::Replace, cx),
        DType::BF16 => plan.multiply_floats::<bf16, bf16>([a, b], out, Write::Replace, cx),
        DType::F16 => plan.multiply_floats::<f16, f16>([a, b], out, Write::Replace, cx),
        DType::I64 => plan.multiply_integers::<i64>(a, b, out),
        DType::I32 => plan.multiply_integers::<i32>(a, b, out),
        DType::U8 => plan.multiply_integers::<u8>(a, b, out),
        dtype => Err(KernelError::wrong_dtype::<f32>(dtype)),
    }
}

/// Elements from which on a product may go to its reader part by part: fewer stay in the cache anyway.
const MANY: usize = 1 << 16;

/// Whether [`in_turn`] gives the product of such factors part by part.
pub(crate) fn comes_in_turn(op: &MatMul, [a, b]: [&TensorType; 2], out: &TensorType) -> bool {
    let Ok(plan) = BatchProduct::new(op, &a.shape, &b.shape, &out.shape) else { return false };
    let single = [a, b, out].iter().all(|ty| ty.dtype == DType::F32);
    single
        && plan.starts.len() == 1
        && plan.inner > 0
        && plan.rows * plan.columns >= MANY
        && !plan.is_faster_by_columns()
        && product::comes_in_turn(plan.extents(), [plan.a, plan.b])
}

/// Gives away the product of two matrices of `f32` part by part. `area` has its type and is worked in.
pub(crate) fn in_turn(
    op: &MatMul,
    [a, b]: [&View<'_>; 2],
    (area, shape): (&mut [f32], &[usize]),
    cx: &mut KernelContext<'_>,
    then: (&[OutputParts<'_>], Then<'_>),
) -> Result<(), KernelError> {
    let plan = BatchProduct::new(op, a.shape, b.shape, shape)?;
    let extents = plan.extents();
    let threads = threads_for(cx, extents.iter().product());
    let pool = cx.pool.filter(|_| threads > 1);
    let room = cx.scratch.take::<f32>(room::<f32, f32, f32>(extents, threads));
    let factors = [(a.as_slice()?, plan.a), (b.as_slice()?, plan.b)];
    product::in_turn(extents, factors, area, Hands { pool, threads, room }, then)
}

/// Whether [`add_product`] computes the product of such factors.
pub(crate) fn is_added_in_place(op: &MatMul, [a, b]: [&TensorType; 2], sum: &TensorType) -> bool {
    let Ok(plan) = BatchProduct::new(op, &a.shape, &b.shape, &sum.shape) else { return false };
    let fits = match a.dtype {
        DType::F32 => !plan.is_written_by_columns(a.dtype),
        // What is small is rounded as it is without microbatches, and as by other engines: so f16 overflows in as many steps, and the
        // weights of a small model that are rounded to 8 bits are the same.
        DType::BF16 => plan.rows * plan.columns >= MANY,
        DType::F16 => plan.starts.len() == 1 && plan.rows * plan.columns >= MANY,
        _ => false,
    };
    fits && a.dtype == b.dtype
}

/// Adds products of matrices to sums of `f32`, or replaces the sums by them.
pub(crate) fn add_product(
    op: &MatMul,
    factors: [&View<'_>; 2],
    sum: &mut ViewMut<'_>,
    write: Write,
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let plan = BatchProduct::new(op, factors[0].shape, factors[1].shape, sum.shape)?;
    match factors[0].dtype {
        DType::F32 => plan.multiply_floats::<f32, f32>(factors, sum, write, cx),
        DType::BF16 => plan.multiply_floats::<bf16, f32>(factors, sum, write, cx),
        DType::F16 => plan.multiply_floats::<f16, f32>(factors, sum, write, cx),
        dtype => Err(KernelError::wrong_dtype::<f32>(dtype)),
    }
}

/// Extents and strides of a batch of products `[rows, inner] x [inner, columns]`.
struct BatchProduct {
    rows: usize,
    inner: usize,
    columns: usize,
    a: Layout,
    b: Layout,
    /// The positions at which the matrices of both operands begin, for each matrix of the result.
    starts: Vec<(usize, usize)>,
}

impl BatchProduct {
    fn new(op: &MatMul, a: &[usize], b: &[usize], out: &[usize]) -> Result<Self, KernelError> {
        let misfit =
            || KernelError::bad_call("matmul", format!("{a:?} and {b:?} do not give {out:?}"));
        if a.len() < 2 || b.len() < 2 || out.len() != a.len().max(b.len()) {
            return Err(misfit());
        }
        let ((a_batch, a_last), (b_batch, b_last)) = (split_batch(a), split_batch(b));
        let (out_batch, out_last) = split_batch(out);
        let (rows, inner, a_layout) = matrix_layout(a_last, op.transpose_a);
        let (inner_b, columns, b_layout) = matrix_layout(b_last, op.transpose_b);
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
            .map(|index| {
                (
                    batch_start(index, out_batch, &a_strides),
                    batch_start(index, out_batch, &b_strides),
                )
            })
            .collect();
        Ok(product)
    }

    fn extents(&self) -> [usize; 3] {
        [self.rows, self.inner, self.columns]
    }

    fn multiply_floats<T: Number, R: Number>(
        &self,
        [a, b]: [&View<'_>; 2],
        out: &mut ViewMut<'_>,
        write: Write,
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        self.multiply_slices::<T, R>([a.as_slice()?, b.as_slice()?], out, write, cx)
    }

    fn multiply_slices<T: Number, R: Number>(
        &self,
        [a, b]: [&[T]; 2],
        out: &mut ViewMut<'_>,
        write: Write,
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        let out = out.as_mut_slice::<R>()?;
        let size = self.rows * self.columns;
        if size == 0 || self.inner == 0 {
            if write == Write::Replace {
                out.fill(R::default());
            }
            return Ok(());
        }
        let count = self.starts.len();
        let threads = threads_for(cx, size * self.inner * count);
        let pool = cx.pool.filter(|_| threads > 1);
        let extents = self.extents();
        if self.is_written_by_columns(T::DTYPE) && write == Write::Replace {
            return self.by_columns((a, b), out, (pool, threads), cx.scratch);
        }
        if pool.is_none() || count < threads {
            let room = cx.scratch.take::<f32>(room::<T, T, R>(extents, threads));
            let hands = Hands { pool, threads, room };
            self.multiply_matrices(&self.starts, [a, b], (out, write), hands);
            return Ok(());
        }
        let each = count.div_ceil(threads);
        let own = room::<T, T, R>(extents, 1);
        let mut rest = cx.scratch.take::<f32>(own * threads);
        let pieces = self.starts.chunks(each).zip(out.chunks_mut(each * size));
        let pieces = pieces
            .map(|(starts, out)| (starts, out, rest.split_off_mut(..own).unwrap_or_default()))
            .collect();
        parallel::run_parts(pool, pieces, &|(starts, out, room)| {
            self.multiply_matrices(starts, [a, b], (out, write), Hands::own(room));
            Ok(())
        })
    }

    /// Computes the product column by column, some columns at a time, and copies each part to where its rows lie.
    fn by_columns<T: Number, R: Number>(
        &self,
        (a, b): (&[T], &[T]),
        out: &mut [R],
        (pool, threads): (Option<&ThreadPool>, usize),
        scratch: &mut Scratch,
    ) -> Result<(), KernelError> {
        // Parts of one width: a narrow one at the end would be multiplied in another way.
        let width = self.columns.div_ceil(self.columns.div_ceil(COLUMNS_AT_ONCE));
        let extents = [self.rows, self.inner, width];
        let room = room::<T, T, R>(extents, threads);
        let (columns, room) = scratch.take_both::<R, f32>([self.rows * width, room]);
        for first in (0..self.columns).step_by(width) {
            let part = width.min(self.columns - first);
            let columns = &mut columns[..self.rows * part];
            let extents = [self.rows, self.inner, part];
            let from = (&b[first * self.b.column..], self.b);
            let to = (&mut *columns, Layout { row: 1, column: self.rows });
            let hands = Hands { pool, threads, room: &mut *room };
            multiply(extents, 1.0, (a, self.a), from, to, Write::Replace, hands);
            let each = self.rows.div_ceil(threads);
            let pieces = out.chunks_mut(each * self.columns).enumerate().collect();
            parallel::run_parts(pool, pieces, &|(piece, out)| {
                let into = (&mut out[first..], self.columns);
                strided::transpose_part(columns, into, [part, self.rows], piece * each);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Whether a product of factors of this type is one that is written by columns.
    fn is_written_by_columns(&self, factors: DType) -> bool {
        self.starts.len() == 1 && factors == DType::F32 && self.is_faster_by_columns()
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

    /// Computes the matrices that begin at `starts`, one after the other.
    fn multiply_matrices<T: Number, R: Number>(
        &self,
        starts: &[(usize, usize)],
        [a, b]: [&[T]; 2],
        (out, write): (&mut [R], Write),
        hands: Hands<'_>,
    ) {
        let Hands { pool, threads, room } = hands;
        for (&(at_a, at_b), out) in
            starts.iter().zip(out.chunks_exact_mut(self.rows * self.columns))
        {
            let (a, b) = (&a[at_a..], &b[at_b..]);
            if self.rows * self.columns * self.inner <= SMALL {
                self.multiply_plain_floats([a, b], out, write);
            } else {
                let (a, b) = ((a, self.a), (b, self.b));
                let to = (out, Layout::rows(self.columns));
                let hands = Hands { pool, threads, room: &mut *room };
                multiply(self.extents(), 1.0, a, b, to, write, hands);
            }
        }
    }

    fn multiply_plain_floats<T: Number, R: Number>(
        &self,
        [a, b]: [&[T]; 2],
        out: &mut [R],
        write: Write,
    ) {
        let multiply_add = |sum: f32, a: T, b: T| sum + a.value() * b.value();
        match write {
            Write::Replace => self.multiply_plainly(a, b, out, 0.0, multiply_add, |out, sum| {
                *out = R::round_from(sum);
            }),
            Write::Add => self.multiply_plainly(a, b, out, 0.0, multiply_add, |out, sum| {
                *out = R::round_from(out.value() + sum);
            }),
        }
    }

    fn multiply_integers<T: Integer>(
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
            let (a, b) = (&a[at_a..], &b[at_b..]);
            self.multiply_plainly(a, b, out, T::default(), multiply_add, |out, sum| *out = sum);
        }
        Ok(())
    }

    fn multiply_plainly<T: Copy, R, S: Copy>(
        &self,
        a: &[T],
        b: &[T],
        out: &mut [R],
        zero: S,
        add: impl Fn(S, T, T) -> S,
        write: impl Fn(&mut R, S),
    ) {
        for (row, out) in out.chunks_exact_mut(self.columns).enumerate() {
            for (column, out) in out.iter_mut().enumerate() {
                let mut sum = zero;
                for k in 0..self.inner {
                    let left = a[row * self.a.row + k * self.a.column];
                    sum = add(sum, left, b[k * self.b.row + column * self.b.column]);
                }
                write(out, sum);
            }
        }
    }
}

fn split_batch(shape: &[usize]) -> (&[usize], [usize; 2]) {
    let (batch, last) = shape.split_at(shape.len() - 2);
    (batch, [last[0], last[1]])
}

/// Rows, columns and strides of a matrix that is stored as it is, or transposed.
fn matrix_layout([rows, columns]: [usize; 2], transposed: bool) -> (usize, usize, Layout) {
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

fn batch_start(mut index: usize, extents: &[usize], strides: &[usize]) -> usize {
    let mut start = 0;
    for (&extent, &stride) in extents.iter().zip(strides).rev() {
        start += index % extent * stride;
        index /= extent;
    }
    start
}
