//! A matrix product that is added to what the microbatches before have summed, in one call: gradient accumulation without a gradient
//! that is written, read and added.
//!
//! Sums are `f32`. Factors of `bf16` and `f16` are multiplied as always, but their product is added as it is and not rounded before.

use graphc_ir::ops::MatMul;
use graphc_ir::types::{DType, TensorType};

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::matmul;
use crate::product::Write;
use crate::view::{View, ViewMut};

/// A product, and whether it is added to the sum or replaces it.
#[derive(Debug)]
pub(crate) struct SummedProduct {
    op: MatMul,
    write: Write,
}

impl SummedProduct {
    /// `None` where the factors are not of one floating-point type of 16 or 32 bits, the product is written by columns, or small and of
    /// half precision, or a batch of `f16`, or the sum is not `f32`. The first microbatch replaces the sum, the others are added to it.
    pub(crate) fn from_product(
        op: &MatMul,
        factors: [&TensorType; 2],
        sum: &TensorType,
        is_first: bool,
    ) -> Option<Self> {
        let write = if is_first { Write::Replace } else { Write::Add };
        let fits = sum.dtype == DType::F32 && matmul::is_added_in_place(op, factors, sum);
        fits.then_some(Self { op: *op, write })
    }

    /// Operands are both factors, the result is the sum.
    ///
    /// # Errors
    /// Returns an error if operands or results are not those that it was made for.
    pub(crate) fn evaluate(
        &self,
        operands: &[View<'_>],
        results: &mut [ViewMut<'_>],
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        let ([a, b], [sum]) = (operands, results) else {
            return Err(KernelError::bad_call("matmul", "takes two operands and gives one sum"));
        };
        matmul::add_product(&self.op, [a, b], sum, self.write, cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use graphc_ir::random::RandomStream;
    use half::{bf16, f16};

    use super::*;
    use crate::product::Number;
    use crate::threads::ThreadPool;
    use crate::view::Scratch;

    fn numbers(count: usize, key: u64) -> Vec<f32> {
        let stream = RandomStream { seed: 7, key, step: 0 };
        (0..count as u64).map(|i| stream.normal(i)).collect()
    }

    /// The sum of the gradients `a' b` of two microbatches, as many as a batch has matrices, on so many threads.
    fn sum_of_two<T: Number>(
        [batch, rows, inner, columns]: [usize; 4],
        microbatches: [[&[T]; 2]; 2],
        threads: usize,
    ) -> Vec<f32> {
        let op = MatMul { transpose_a: true, transpose_b: false };
        let ty = |dtype, a, b| TensorType::new(dtype, [batch, a, b]);
        let of_factors = [ty(T::DTYPE, inner, rows), ty(T::DTYPE, inner, columns)];
        let of_sum = ty(DType::F32, rows, columns);
        let pool = (threads > 1)
            .then(|| ThreadPool::new(threads, Duration::ZERO, |i| i.to_string()).expect("threads"));
        let (pool, mut scratch) = (pool.as_ref(), Scratch::new());
        let mut cx =
            KernelContext { seed: 0, step: 0, rate: None, threads, pool, scratch: &mut scratch };
        // What was there before the first is no part of the sum.
        let mut sum = vec![f32::NAN; batch * rows * columns];
        for (index, factors) in microbatches.into_iter().enumerate() {
            let [a, b] = &of_factors;
            let call = SummedProduct::from_product(&op, [a, b], &of_sum, index == 0);
            let operands = [0, 1].map(|i| View::whole(T::DTYPE, &of_factors[i].shape, factors[i]));
            let mut results = [ViewMut::whole(DType::F32, &of_sum.shape, &mut sum)];
            let call = call.expect("is added in place");
            call.evaluate(&operands, &mut results, &mut cx).expect("computes");
        }
        sum
    }

    fn exact_sum<T: Number>(
        [batch, rows, inner, columns]: [usize; 4],
        microbatches: [[&[T]; 2]; 2],
    ) -> Vec<f64> {
        let mut sum = vec![0.0; batch * rows * columns];
        for [a, b] in microbatches {
            let lines = a.chunks_exact(rows).zip(b.chunks_exact(columns));
            for (line, (a, b)) in lines.enumerate() {
                let matrix = line / inner * rows * columns;
                let of = sum[matrix..][..rows * columns].chunks_exact_mut(columns);
                for (a, of) in a.iter().zip(of) {
                    for (sum, b) in of.iter_mut().zip(b) {
                        *sum += f64::from(a.value()) * f64::from(b.value());
                    }
                }
            }
        }
        sum
    }

    /// Compares with the exact sum, by the error that `f32` sums of so many terms have at most.
    fn check<T: Number>(extents: [usize; 4], factors: &[Vec<T>; 4]) {
        let [a, b, c, d] = factors;
        let microbatches = [[&a[..], b], [&c[..], d]];
        let exact = exact_sum(extents, microbatches);
        let found = sum_of_two(extents, microbatches, 1);
        let limit = 1e-6 * extents[2] as f64;
        for (found, exact) in found.iter().zip(&exact) {
            assert!((f64::from(*found) - exact).abs() < limit, "{found} beside {exact}");
        }
        for threads in [2, 3] {
            assert!(sum_of_two(extents, microbatches, threads) == found, "{threads} threads");
        }
    }

    /// Large products, small ones, some so small that they are not packed, and batches of all of these.
    const EXTENTS: [[usize; 4]; 9] = [
        [1, 300, 40, 260],
        [1, 130, 1100, 520],
        [1, 700, 3, 100],
        [1, 64, 128, 48],
        [1, 7, 5, 9],
        [3, 300, 40, 260],
        [5, 64, 200, 48],
        [2, 20, 600, 70],
        [6, 7, 5, 9],
    ];

    #[test]
    fn products_of_microbatches_add_up_on_any_number_of_threads() {
        for extents in EXTENTS {
            let [batch, rows, inner, columns] = extents;
            let [a, b] = [rows, columns].map(|extent| batch * inner * extent);
            let counts = [a, b, a, b];
            let factors = [0, 1, 2, 3].map(|i| numbers(counts[i], i as u64));
            check::<f32>(extents, &factors);
            if rows * columns < 1 << 16 {
                continue;
            }
            let rounded = |all: &Vec<f32>| all.iter().map(|&x| bf16::from_f32(x)).collect();
            check::<bf16>(extents, &factors.each_ref().map(rounded));
            if batch == 1 {
                let rounded = |all: &Vec<f32>| all.iter().map(|&x| f16::from_f32(x)).collect();
                check::<f16>(extents, &factors.each_ref().map(rounded));
            }
        }
    }

    #[test]
    fn rounded_sums_small_halves_and_what_is_written_by_columns_are_left_alone() {
        let fits = |dtype, transpose_b, a: &[usize], b: &[usize], sum, out: &[usize]| {
            let op = MatMul { transpose_a: true, transpose_b };
            let ty = |dtype, shape: &[usize]| TensorType::new(dtype, shape.to_vec());
            let (a, b) = (ty(dtype, a), ty(dtype, b));
            SummedProduct::from_product(&op, [&a, &b], &ty(sum, out), true).is_some()
        };
        let (a, b, out) = (&[64, 512][..], &[64, 300][..], &[512, 300][..]);
        assert!(fits(DType::F32, false, a, b, DType::F32, out));
        assert!(fits(DType::BF16, false, a, b, DType::F32, out));
        assert!(fits(DType::F16, false, a, b, DType::F32, out));
        assert!(!fits(DType::BF16, false, a, b, DType::BF16, out));
        assert!(!fits(DType::I64, false, a, b, DType::F32, out));
        let small = [&[64, 16][..], &[64, 16], &[16, 16]];
        assert!(fits(DType::F32, false, small[0], small[1], DType::F32, small[2]));
        assert!(!fits(DType::BF16, false, small[0], small[1], DType::F32, small[2]));
        assert!(!fits(DType::F16, false, small[0], small[1], DType::F32, small[2]));
        let batch = [&[3, 64, 512][..], &[3, 64, 300], &[3, 512, 300]];
        assert!(fits(DType::F32, false, batch[0], batch[1], DType::F32, batch[2]));
        assert!(fits(DType::BF16, false, batch[0], batch[1], DType::F32, batch[2]));
        assert!(!fits(DType::F16, false, batch[0], batch[1], DType::F32, batch[2]));
        let (a, b, out) = (&[64, 128][..], &[600, 64][..], &[128, 600][..]);
        assert!(!fits(DType::F32, true, a, b, DType::F32, out));
        assert!(fits(DType::BF16, true, a, b, DType::F32, out));
    }
}
