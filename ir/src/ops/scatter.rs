//! Values put at computed places of a tensor, in the order of the values.
//!
//! Sums have an op of their own, [`ScatterSum`](super::ScatterSum); this op is the rest. Ranks may split the tensor: each takes the values for its
//! part.

use serde::{Deserialize, Serialize};

use super::gather::{Around, replace_index};
use super::shards::{check_index_dtype, check_indices};
use crate::array::Array;
use crate::mesh::unravel_position;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, dtype_error, shape_error,
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

/// The function that joins a value to the element at its place. A sum is that of x and a [`super::ScatterSum`].
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

impl Scatter {}

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
    use crate::op::Op;
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
