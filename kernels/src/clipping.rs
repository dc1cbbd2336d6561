//! Clipping by the norm: sums of squares, and the factor that follows.

use graphc_ir::op::Op;

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel;
use crate::precision::Float;
use crate::rows;
use crate::simd::vectorized;
use crate::view::{View, ViewMut};

/// Elements whose squares are added up in `f32` lanes; the chunks are joined in `f64`, in their order, so that the sum does not
/// depend on the number of threads.
const CHUNK: usize = 1 << 12;

/// The kernel of [`Op::SquareSum`], of elements of type `T`.
pub(crate) fn square_sum<T: Float>(
    _op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let ([x], [result]) = (operands, results) else {
        return Err(KernelError::bad_call("square_sum", "takes 1 operand and gives 1 result"));
    };
    let x = x.as_slice::<T>()?;
    let chunks = x.len().div_ceil(CHUNK);
    let parts = parallel::count_parts(cx, x.len()).min(chunks).max(1);
    let (pool, room) = (cx.pool, T::scratch_len(CHUNK));
    let (sums, rooms) = cx.scratch.take_both::<f32, f32>([chunks, parts * room]);
    let each = chunks.div_ceil(parts).max(1);
    let pieces = sums.chunks_mut(each).zip(x.chunks(each * CHUNK));
    let pieces = parallel::with_rooms(pieces, rooms, room);
    parallel::run_parts(pool, pieces, &|((sums, x), room)| {
        for (sum, x) in sums.iter_mut().zip(x.chunks(CHUNK)) {
            *sum = sum_squares(T::read_values(x, room));
        }
        Ok(())
    })?;
    let sum: f64 = sums.iter().map(|&sum| f64::from(sum)).sum();
    result.as_mut_slice::<f32>()?[0] = sum as f32;
    Ok(())
}

vectorized! {
    fn sum_squares(x: &[f32]) -> f32 {
        rows::dot_product(x, x)
    }
}

/// The kernel of [`Op::ClipFactor`].
pub(crate) fn clip_factor(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    _cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::ClipFactor(clip), [sum, factor @ ..], [_, _]) = (op, operands, &*results) else {
        return Err(KernelError::bad_call("clip_factor", "takes 1 or 2 numbers and gives 2"));
    };
    let number = |view: &View<'_>| -> Result<f64, KernelError> {
        Ok(f64::from(view.block::<f32>(0..1)?[0]))
    };
    let found = clip.compute_factor(number(sum)?, factor.first().map(number).transpose()?);
    for (result, number) in results.iter_mut().zip(found) {
        result.as_mut_slice::<f32>()?[0] = number as f32;
    }
    Ok(())
}
