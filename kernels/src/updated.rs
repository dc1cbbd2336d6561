//! A matrix product that is the gradient of a variable, and the update of that variable, in one call.
//!
//! The product is made part by part, and the update takes each part from the caches. It asks for the variable and its states
//! while the part is multiplied. So the gradient is never in memory as a whole. All numbers are those of the product and the
//! update one after the other.
//!
//! The product is of `f32`, large, and computed by `product::dense`; the update is that of SGD or Adam. Lowering puts the update
//! right behind the product (`early_updates` in the compiler), and the runtime joins both. The time of such an update is counted
//! with the product's actor.

use graphc_ir::op::Op;
use graphc_ir::ops::MatMul;
use graphc_ir::types::{DType, TensorType};

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::matmul;
use crate::product::Then;
use crate::update::{PartedGradient, Update, UpdateTensors, in_parts};
use crate::view::{OutputParts, View, ViewMut};

/// A product and an update behind it.
#[derive(Debug)]
pub(crate) struct Updated {
    product: MatMul,
    update: Op,
    kernel: Update,
}

impl Updated {
    /// `None` where the product does not come part by part, or the update does not take it so. Operands are those of the update,
    /// whose second is the product.
    pub(crate) fn from_product(
        product: &MatMul,
        factors: [&TensorType; 2],
        update: &Op,
        operands: &[TensorType],
    ) -> Option<Self> {
        let kernel = in_parts(update)?;
        let single = operands.iter().all(|operand| operand.dtype == DType::F32);
        let comes = matmul::comes_in_turn(product, factors, operands.get(1)?);
        (single && comes).then(|| Self { product: *product, update: update.clone(), kernel })
    }

    /// Operands are both factors, then those of the update without the gradient; results are the gradient, whose memory is worked in,
    /// and those of the update.
    ///
    /// # Errors
    /// Returns an error if operands or results are not those that it was made for.
    pub(crate) fn evaluate(
        &self,
        operands: &[View<'_>],
        results: &mut [ViewMut<'_>],
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        let ([a, b, variable, states @ ..], [gradient, results @ ..]) = (operands, results) else {
            return Err(KernelError::bad_call(self.update.name(), "operands of other number"));
        };
        // SAFETY: the update reads the gradient from parts, not from its operand.
        let (there, area) = unsafe { gradient.shared_parts() };
        let made = PartedProduct { op: self.product, factors: [a, b], area, shape: there.shape };
        let operands: Vec<View<'_>> =
            [*variable, there].into_iter().chain(states.iter().copied()).collect();
        (self.kernel)(&self.update, &operands, results, cx, UpdateTensors::in_parts(&made))
    }
}

/// The product.
struct PartedProduct<'a> {
    op: MatMul,
    factors: [&'a View<'a>; 2],
    area: OutputParts<'a>,
    shape: &'a [usize],
}

impl PartedGradient for PartedProduct<'_> {
    fn for_each_part(
        &self,
        cx: &mut KernelContext<'_>,
        beside: &[OutputParts<'_>],
        take: Then<'_>,
    ) -> Result<(), KernelError> {
        // SAFETY: nobody else reaches the gradient's memory.
        let area = unsafe { self.area.part(0..self.area.len()) }.into_slice::<f32>()?;
        matmul::in_turn(&self.op, self.factors, (area, self.shape), cx, (beside, take))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use graphc_ir::mesh::DeviceKind;
    use graphc_ir::ops::{AdamUpdate, SgdUpdate};
    use graphc_ir::random::RandomStream;

    use super::*;
    use crate::prepare::prepare_op;
    use crate::threads::ThreadPool;
    use crate::view::Scratch;

    /// Tensors by shape, of numbers about 0.
    struct Tensors(Vec<(Vec<usize>, Vec<f32>)>);

    impl Tensors {
        fn of(shapes: &[&[usize]]) -> Self {
            let numbers = |(index, shape): (usize, &&[usize])| {
                let stream = RandomStream { seed: 5, key: index as u64, step: 0 };
                let count = shape.iter().product::<usize>() as u64;
                // Second moments are not negative.
                (shape.to_vec(), (0..count).map(|i| stream.normal(i).abs()).collect())
            };
            Self(shapes.iter().enumerate().map(numbers).collect())
        }

        fn views(&self) -> Vec<View<'_>> {
            let all = self.0.iter();
            all.map(|(shape, data)| {
                View::from_slice(DType::F32, shape, shape, &[0; 4][..shape.len()], data)
            })
            .collect()
        }

        fn views_mut(&mut self) -> Vec<ViewMut<'_>> {
            let all = self.0.iter_mut();
            all.map(|(shape, data)| {
                ViewMut::from_slice(DType::F32, shape, shape, &[0; 4][..shape.len()], data)
            })
            .collect()
        }

        fn types(&self) -> Vec<TensorType> {
            self.0.iter().map(|(shape, _)| TensorType::new(DType::F32, shape.clone())).collect()
        }
    }

    /// The bits of what an update of `states` states gives by a product `[rows, inner] x [inner, columns]`: of both one after the other,
    /// and of both together on so many threads.
    fn both_ways(
        [rows, inner, columns]: [usize; 3],
        (update, states, scaled): (&Op, usize, bool),
        threads: usize,
    ) -> [Vec<u32>; 2] {
        let product = MatMul { transpose_a: true, transpose_b: false };
        let of = &[rows, columns][..];
        let factors = Tensors::of(&[&[inner, rows], &[inner, columns]]);
        let mut shapes = vec![of; 2 + states];
        shapes.extend(scaled.then_some(&[][..]));
        let mut operands = Tensors::of(&shapes);
        let mut gradient = Tensors::of(&[of]);
        let mut results = Tensors::of(&vec![of; 1 + states]);
        let pool = (threads > 1)
            .then(|| ThreadPool::new(threads, Duration::ZERO, |i| i.to_string()).expect("threads"));
        let mut scratch = Scratch::new();
        let pool = pool.as_ref();
        let mut cx =
            KernelContext { seed: 0, step: 3, rate: None, threads, pool, scratch: &mut scratch };
        let bits = |results: &Tensors| {
            results.0.iter().flat_map(|(_, data)| data.iter().map(|x| x.to_bits())).collect()
        };

        let kernel = Updated {
            product,
            update: update.clone(),
            kernel: in_parts(update).expect("an update in parts"),
        };
        let mut given = factors.views();
        given.extend(operands.views().iter().enumerate().filter(|(i, _)| *i != 1).map(|x| *x.1));
        let mut into = gradient.views_mut();
        into.extend(results.views_mut());
        kernel.evaluate(&given, &mut into, &mut cx).expect("computes");
        drop((given, into));
        let together = bits(&results);

        let op = Op::MatMul(product);
        let call = prepare_op(&op, &factors.types(), &gradient.types(), DeviceKind::Cpu);
        let call = call.expect("a kernel");
        call.launch(&factors.views(), &mut gradient.views_mut(), &mut cx).expect("computes");
        operands.0[1].1.clone_from(&gradient.0[0].1);
        let call = prepare_op(update, &operands.types(), &results.types(), DeviceKind::Cpu);
        let call = call.expect("a kernel");
        call.launch(&operands.views(), &mut results.views_mut(), &mut cx).expect("computes");
        [bits(&results), together]
    }

    #[test]
    fn together_both_give_what_they_give_one_after_the_other() {
        let sgd = |momentum: f64| {
            Op::SgdUpdate(SgdUpdate {
                lr: 0.1.into(),
                momentum: momentum.into(),
                ..SgdUpdate::default()
            })
        };
        let adam = Op::AdamUpdate(AdamUpdate::default());
        let updates = [(&sgd(0.0), 0, false), (&sgd(0.9), 1, true), (&adam, 2, false)];
        // Sums in one part and in two, rows and columns in several parts, the last of them narrow; more rows, and more columns.
        for extents in [[300, 40, 1100], [1030, 600, 70], [200, 520, 600]] {
            for update in updates {
                for threads in [1, 2, 3] {
                    let [apart, together] = both_ways(extents, update, threads);
                    assert!(apart == together, "{extents:?} {update:?} on {threads} threads");
                }
            }
        }
    }

    #[test]
    fn small_products_and_other_numbers_are_left_alone() {
        let product = MatMul { transpose_a: true, transpose_b: false };
        let update = Op::SgdUpdate(SgdUpdate::default());
        let of = |dtype, inner, rows, columns| {
            let ty = |a, b| TensorType::new(dtype, vec![a, b]);
            let operands = [ty(rows, columns), ty(rows, columns)];
            Updated::from_product(
                &product,
                [&ty(inner, rows), &ty(inner, columns)],
                &update,
                &operands,
            )
        };
        assert!(of(DType::F32, 128, 64, 64).is_none());
        assert!(of(DType::BF16, 128, 512, 512).is_none());
        let fast = crate::simd::simd_level() == crate::simd::SimdLevel::Avx512;
        assert_eq!(of(DType::F32, 128, 512, 512).is_some(), fast);
    }
}
