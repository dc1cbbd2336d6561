//! Values put at computed places of a tensor, in the order of the values.
//!
//! Sums have an op of their own, [`ScatterSum`]; this op is the rest. Ranks may split the tensor: each takes the values for its
//! part.

use serde::{Deserialize, Serialize};

use super::gather::{Around, Gather, ScatterSum, replace_index};
use super::shards::{check_index_dtype, check_indices, first_gradient};
use crate::array::Array;
use crate::builder::Tensor;
use crate::mesh::unravel_position;
use crate::op::{
    EvalContext, GradientNode, Op, OpError, Operand, Operation, Region, check_arity, dtype_error,
    shape_error,
};
use crate::ops::broadcast::fit_to_dtype;
use crate::rule::{FactorKind, Rule};
use crate::types::{DType, TensorType};

/// (x [b.., n, w..], places [b.., m] of i64, values [b.., m, w..]) -> x with the values joined to what is at their
/// places in n, in the order of m.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Scatter {
    /// The function that joins a value to the element at its place.
    pub function: ScatterFunction,
}

/// The function that joins a value to the element at its place. A sum is that of x and a [`ScatterSum`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScatterFunction {
    /// The value itself; of several for one place the last.
    Set,
    /// The product of the element and its values.
    Mul,
    /// The greatest of the element and its values.
    Max,
    /// The least of the element and its values.
    Min,
}

impl ScatterFunction {
    /// Returns the value of an element after a value has been joined to it.
    pub fn join_values(self, there: f64, value: f64) -> f64 {
        match self {
            Self::Set => value,
            Self::Mul => there * value,
            Self::Max if there > value || there.is_nan() => there,
            Self::Min if there < value || there.is_nan() => there,
            Self::Max | Self::Min => value,
        }
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

impl Operation for Scatter {
    fn name(&self) -> &'static str {
        "scatter"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 3, "3 operands")?;
        check_index_dtype(self.name(), operands, 1)?;
        let dtype = operands[0].dtype;
        if operands[2].dtype != dtype {
            return Err(dtype_error(
                self.name(),
                operands,
                "x and the values differ in element type",
            ));
        }
        if dtype == DType::Bool && self.function != ScatterFunction::Set {
            return Err(dtype_error(self.name(), operands, "truth values can only be set"));
        }
        Ok(vec![dtype])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let linear = match self.function {
            ScatterFunction::Set => vec![vec![0, 2]],
            ScatterFunction::Mul => vec![vec![0]],
            ScatterFunction::Max | ScatterFunction::Min => Vec::new(),
        };
        let mut rule = Rule { linear, ..Rule::default() };
        let around = Around::new(self.name(), &mut rule, operands, [1, 0])?;
        let batch = around.batch.len();
        let count = operands[1].shape[batch];
        let expected = [&operands[0].shape[..batch], &[count], &operands[0].shape[batch + 1..]];
        if operands[2].shape != expected.concat() {
            return Err(shape_error(self.name(), operands, "there must be a value for each place"));
        }
        let to = rule.add_factor(operands[0].shape[batch], FactorKind::Parallel);
        let from = rule.add_factor(count, FactorKind::Whole);
        rule.operands =
            vec![around.tensor_dims(to), around.place_dims(from), around.tensor_dims(from)];
        rule.results = vec![around.tensor_dims(to)];
        Ok(rule)
    }

    /// Counts one step for each value, whereas the points count every place for each.
    fn flops(&self, rule: &Rule) -> f64 {
        let extents = rule.operands[2].iter().map(|dim| rule.extent(dim) as f64);
        extents.product()
    }

    fn gradient(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
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

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let [x, places, values] = [&operands[0], &operands[1], &operands[2]];
        let dim = places.array.shape.len() - 1;
        check_indices(self.name(), "index", places, x.region.global[dim], None)?;
        let rect = &results[0].rect;
        let held = rect.origin[dim]..rect.origin[dim] + rect.extent[dim];
        let mut y = x.array.clone();
        for (position, &value) in values.array.data.iter().enumerate() {
            let index = unravel_position(position, &values.array.shape);
            let to = places.array.element_at(&index[..=dim]) as usize;
            if held.contains(&to) {
                let offset = y.offset_of_index(&replace_index(&index, dim, to - held.start));
                let joined = self.function.join_values(y.data[offset], value);
                y.data[offset] = fit_to_dtype(results[0].dtype, joined);
            }
        }
        Ok(vec![y])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::shards::tests::evaluate;

    fn joined(function: ScatterFunction) -> Vec<f64> {
        let x = Array::new([4], vec![1., 2., 3., 4.]);
        let places = Array::new([3], vec![3., 1., 3.]);
        let values = Array::new([3], vec![5., -1., 2.]);
        let operands = [(DType::F32, x), (DType::I64, places), (DType::F32, values)];
        evaluate(Op::Scatter(Scatter { function }), &operands).expect("fits")[0].data.clone()
    }

    #[test]
    fn values_are_joined_in_their_order() {
        assert_eq!(joined(ScatterFunction::Set), [1., -1., 3., 2.]);
        assert_eq!(joined(ScatterFunction::Mul), [1., -2., 3., 40.]);
        assert_eq!(joined(ScatterFunction::Max), [1., 2., 3., 5.]);
        assert_eq!(joined(ScatterFunction::Min), [1., -1., 3., 2.]);
    }
}
