//! Elements taken by computed places, and the sum of elements over such places, its gradient.
//!
//! A place is a computed index into one dim: [`Gather`] takes `[b.., n, w..]` at `[b.., m]`. [`ScatterSum`] is the gradient of
//! [`Gather`]. Added to a tensor, it is also the sum of ONNX's scatters. Its places may be split, which gives partial sums.

use serde::{Deserialize, Serialize};

use super::shards::{check_index_dtype, check_indices, fill_shard, read_element};
use crate::array::Array;
use crate::mesh::unravel_position;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, dtype_error, shape_error,
};
use crate::rule::{DimRule, FactorKind, Rule};
use crate::sbp::ReduceKind;
use crate::types::{DType, TensorType};

/// (x [b.., n, w..], places [b.., m] of i64) -> [b.., m, w..]: of each batch the elements at its places in n, of any
/// element type. Floating-point n is indexed: split, each rank takes what it holds and the results are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Gather {}

/// (places [b.., m] of i64, g [b.., m, w..]) -> [b.., n, w..]: each g added at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ScatterSum {
    /// The number n of places.
    pub places: usize,
}

/// The dims of batches and of what lies at a place, shared by operands and results.
pub(super) struct Around {
    pub batch: Vec<DimRule>,
    pub inner: Vec<DimRule>,
}

impl Around {
    /// Adds the dims of batches and of what lies at a place, and checks places [b.., m] against values [b.., _, w..], which are operand `values`.
    pub(super) fn new(
        op: &'static str,
        rule: &mut Rule,
        operands: &[&TensorType],
        [places, values]: [usize; 2],
    ) -> Result<Self, OpError> {
        let (places, values) = (&operands[places].shape, &operands[values].shape);
        let Some((_, batch)) = places.split_last() else {
            return Err(shape_error(op, operands, "the places must have a dim"));
        };
        if values.len() < places.len() || values[..batch.len()] != *batch {
            return Err(shape_error(op, operands, "places and values differ in the dims before"));
        }
        let inner = rule.add_parallel_dims(&values[places.len()..]);
        Ok(Self { batch: rule.add_parallel_dims(batch), inner })
    }

    /// Returns the dims of a tensor, with this factor as the dim in the middle.
    pub(super) fn tensor_dims(&self, middle: usize) -> Vec<DimRule> {
        [&self.batch[..], &[DimRule::Factors(vec![middle])], &self.inner].concat()
    }

    /// Returns the dims of the places, with this factor as the last.
    pub(super) fn place_dims(&self, middle: usize) -> Vec<DimRule> {
        [&self.batch[..], &[DimRule::Factors(vec![middle])]].concat()
    }
}

/// Returns the place in n that an index of a tensor [b.., m, w..] stands for.
pub(super) fn read_place(places: &Operand<'_>, index: &[usize]) -> usize {
    read_element(places, &index[..places.array.shape.len()]) as usize
}

/// Returns an index with another element of one dim.
pub(super) fn replace_index(index: &[usize], dim: usize, to: usize) -> Vec<usize> {
    let mut index = index.to_vec();
    index[dim] = to;
    index
}

impl Operation for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 2, "2 operands")?;
        check_index_dtype(self.name(), operands, 1)?;
        Ok(vec![operands[0].dtype])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let mut rule = Rule { linear: vec![vec![0]], ..Rule::default() };
        let around = Around::new(self.name(), &mut rule, operands, [1, 0])?;
        let batch = around.batch.len();
        // A truth value is no sum.
        let float = operands[0].dtype.is_float();
        let kind = if float { FactorKind::Indexed } else { FactorKind::Whole };
        let from = rule.add_factor(operands[0].shape[batch], kind);
        let to = rule.add_factor(operands[1].shape[batch], FactorKind::Parallel);
        rule.operands = vec![around.tensor_dims(from), around.place_dims(to)];
        rule.results = vec![around.tensor_dims(to)];
        Ok(rule)
    }

    fn flops_per_point(&self) -> f64 {
        0.0
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let [x, places] = [&operands[0], &operands[1]];
        let dim = places.array.shape.len() - 1;
        check_indices(self.name(), "index", places, x.region.global[dim], None)?;
        let first = x.region.rect.origin[dim];
        let held = first..first + x.region.rect.extent[dim];
        let element = |index: &[usize]| {
            let from = read_place(places, index);
            if held.contains(&from) {
                read_element(x, &replace_index(index, dim, from))
            } else {
                0.0
            }
        };
        Ok(vec![fill_shard(&results[0], element)])
    }
}

impl Operation for ScatterSum {
    fn name(&self) -> &'static str {
        "scatter_sum"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 2, "2 operands")?;
        check_index_dtype(self.name(), operands, 0)?;
        match operands[1].dtype {
            DType::U8 | DType::Bool => {
                let reason = "its elements are cast to a wider type first";
                Err(dtype_error(self.name(), operands, reason))
            }
            dtype => Ok(vec![dtype]),
        }
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let mut rule = Rule { linear: vec![vec![1]], ..Rule::default() };
        let around = Around::new(self.name(), &mut rule, operands, [0, 1])?;
        let batch = around.batch.len();
        let (given, count) = (operands[1].shape[batch], operands[0].shape[batch]);
        if given != count {
            let reason = format!("there are {count} places, and {given} values for them");
            return Err(shape_error(self.name(), operands, reason));
        }
        let from = rule.add_factor(count, FactorKind::Reduction(ReduceKind::Sum));
        let to = rule.add_factor(self.places, FactorKind::Parallel);
        rule.operands = vec![around.place_dims(from), around.tensor_dims(from)];
        rule.results = vec![around.tensor_dims(to)];
        Ok(rule)
    }

    /// Counts one addition for each value, whereas the points count every place for each.
    fn flops_per_point(&self) -> f64 {
        1.0 / self.places.max(1) as f64
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let [places, g] = [&operands[0], &operands[1]];
        let dim = places.array.shape.len() - 1;
        check_indices(self.name(), "index", places, self.places, None)?;
        let rect = &results[0].rect;
        let held = rect.origin[dim]..rect.origin[dim] + rect.extent[dim];
        let mut sums = Array::full(rect.extent.clone(), 0.0);
        for (position, value) in g.array.data.iter().enumerate() {
            let index = unravel_position(position, &g.array.shape);
            let to = places.array.element_at(&index[..=dim]) as usize;
            if held.contains(&to) {
                let offset = sums.offset_of_index(&replace_index(&index, dim, to - held.start));
                sums.data[offset] += value;
            }
        }
        Ok(vec![sums])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    fn places() -> (DType, Array) {
        (DType::I64, Array::new([2, 2], vec![2., 0., 1., 1.]))
    }

    #[test]
    fn takes_of_each_batch_and_adds_back() {
        let x = Array::new([2, 3], vec![1., 2., 3., 4., 5., 6.]);
        let taken = evaluate(Op::Gather(Gather {}), &[(DType::F32, x), places()]).expect("fits");
        assert_eq!(taken, [Array::new([2, 2], vec![3., 1., 5., 5.])]);
        let g = Array::new([2, 2], vec![1., 2., 3., 4.]);
        let op = Op::ScatterSum(ScatterSum { places: 3 });
        let sums = evaluate(op, &[places(), (DType::F32, g)]).expect("fits");
        assert_eq!(sums, [Array::new([2, 3], vec![2., 0., 1., 0., 7., 0.])]);
    }

    #[test]
    fn a_place_out_of_range_is_an_error() {
        let x = (DType::I64, Array::new([2, 2, 1], vec![1., 2., 3., 4.]));
        let error = evaluate(Op::Gather(Gather {}), &[x, places()]).expect_err("2 of 2");
        let expected = "index 2 at position [0, 0] is out of range: gather takes 0 to 1";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn batches_that_differ_are_an_error() {
        let (x, places) =
            (TensorType::new(DType::F32, [3, 4]), TensorType::new(DType::I64, [2, 4]));
        let error = Op::Gather(Gather {}).infer_types(&[&x, &places]).expect_err("3 and 2 batches");
        assert!(error.to_string().ends_with("differ in the dims before"), "{error}");
    }
}
