//! The gradient of values put at computed places.

use super::{Differentiable, GradientNode, first_gradient};
use crate::builder::Tensor;
use crate::op::Op;
use crate::ops::{Gather, Scatter, ScatterFunction, ScatterSum};
use crate::types::DType;

impl Differentiable for Scatter {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let [x, places, values] = node.operands else { return Vec::new() };
        let float = x.ty().dtype.is_float();
        let Some(g) = first_gradient(node).filter(|_| float) else { return vec![None; 3] };
        let operands = [x, places, values];
        let [of_x, of_values] = match self.function {
            ScatterFunction::Set => self.gradient_of_set(operands, g),
            ScatterFunction::Mul => self.gradient_of_product(operands, g),
            ScatterFunction::Max | ScatterFunction::Min => {
                self.gradient_of_extreme(operands, [&node.results[0], g])
            }
        };
        vec![Some(of_x), None, Some(of_values)]
    }
}

impl Scatter {
    fn apply_to(&self, x: &Tensor, places: &Tensor, values: &Tensor) -> Tensor {
        x.builder().apply(Op::Scatter(*self), &[x, places, values])
    }

    /// Computes the gradients of x and of the values, where the last value at a place is what counts.
    fn gradient_of_set(&self, [x, places, values]: [&Tensor; 3], g: &Tensor) -> [Tensor; 2] {
        let of_x = self.apply_to(g, places, &values.full_like(0.0));
        let dim = places.shape().len() - 1;
        let order = g.builder().iota(DType::I64, places.shape(), dim);
        let shape = [&places.shape()[..dim], &[x.shape()[dim]]].concat();
        let last = order.builder().full(DType::I64, shape, 0.0);
        let last = gather_places(&self.apply_to(&last, places, &order), places);
        let counts = match_rank(&last.equal(&order), values).cast(g.ty().dtype);
        [of_x, gather_places(g, places) * counts]
    }

    /// Computes the gradients of an extreme: the gradient goes in equal parts to all that attain it.
    fn gradient_of_extreme(
        &self,
        [x, places, values]: [&Tensor; 3],
        [y, g]: [&Tensor; 2],
    ) -> [Tensor; 2] {
        let dtype = g.ty().dtype;
        let own = x.equal(y).cast(dtype);
        let given = values.equal(&gather_places(y, places)).cast(dtype);
        let share = g / (&own + sum_at_places(&given, places, y));
        [own * &share, given * gather_places(&share, places)]
    }

    /// Computes the gradients of a product, also where some factors are 0: each is `g` times the product of all other factors.
    fn gradient_of_product(&self, [x, places, values]: [&Tensor; 3], g: &Tensor) -> [Tensor; 2] {
        let dtype = g.ty().dtype;
        let zero = |t: &Tensor| t.equal(&t.scalar_like(0.0)).cast(dtype);
        let zeros = zero(x) + sum_at_places(&zero(values), places, x);
        let without = |t: &Tensor| t + zero(t);
        let product = self.apply_to(&without(x), places, &without(values));
        let others = |t: &Tensor, product: &Tensor, zeros: &Tensor| {
            let none = (zeros - zero(t)).equal(&zeros.scalar_like(0.0)).cast(dtype);
            none * (product / without(t))
        };
        let of_values =
            others(values, &gather_places(&product, places), &gather_places(&zeros, places));
        [g * others(x, &product, &zeros), gather_places(g, places) * of_values]
    }
}

/// Returns the elements at the places.
fn gather_places(x: &Tensor, places: &Tensor) -> Tensor {
    x.builder().apply(Op::Gather(Gather {}), &[x, places])
}

/// Returns the sums of values at the places of a tensor of the shape of `to`.
fn sum_at_places(values: &Tensor, places: &Tensor, to: &Tensor) -> Tensor {
    let count = to.shape()[places.shape().len() - 1];
    values.builder().apply(Op::ScatterSum(ScatterSum { places: count }), &[places, values])
}

/// Reshapes a tensor [b.., m] to the rank of one [b.., m, w..].
fn match_rank(x: &Tensor, values: &Tensor) -> Tensor {
    let mut shape = x.shape();
    shape.resize(values.shape().len(), 1);
    x.reshape(&shape)
}
