//! Slice and pad, each the gradient of the other.

use serde::{Deserialize, Serialize};

use super::shards::{fill_shard, read_element};
use crate::array::Array;
use crate::operation::{
    EvalContext, Movement, OpError, Operand, Operation, Region, check_arity, shape_error,
};
use crate::rule::{DimRule, FactorKind, Rule};
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

/// The elements `start, start + step, ..` before `end` of each dim. A dim taken whole (0..extent, step 1) may be split.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Slice {
    /// The first index of each dim.
    pub starts: Vec<usize>,
    /// One past the last index of each dim.
    pub ends: Vec<usize>,
    /// The step of each dim, at least 1.
    pub steps: Vec<usize>,
}

/// A border of one value: `low` elements before and `high` after each dim, `interior` between two elements
/// (so that it is the gradient of [`Slice`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pad {
    /// The number of elements before each dim.
    pub low: Vec<usize>,
    /// The number of elements after each dim.
    pub high: Vec<usize>,
    /// The number of elements between two neighbours of each dim.
    pub interior: Vec<usize>,
    /// The value of the border.
    pub value: Scalar,
}

impl Slice {
    /// Makes the slice with the first of every `step` elements of the last dim of a tensor of this shape, which has one.
    pub fn stride_last_dim(shape: &[usize], step: usize) -> Self {
        let mut steps = vec![1; shape.len()];
        steps.last_mut().into_iter().for_each(|last| *last = step);
        Self { starts: vec![0; shape.len()], ends: shape.into(), steps }
    }

    /// Returns the number of elements that are taken of a dim.
    pub(crate) fn count_taken(&self, dim: usize) -> usize {
        (self.ends[dim] - self.starts[dim]).div_ceil(self.steps[dim])
    }

    fn check_dims(&self, operands: &[&TensorType]) -> Result<(), OpError> {
        let shape = &operands[0].shape;
        if [&self.starts, &self.ends, &self.steps].iter().any(|field| field.len() != shape.len()) {
            return Err(shape_error(
                "slice",
                operands,
                "it needs a start, an end and a step of each dim",
            ));
        }
        let wrong = |&dim: &usize| {
            let (start, end) = (self.starts[dim], self.ends[dim]);
            start > end || end > shape[dim] || self.steps[dim] == 0
        };
        if let Some(dim) = (0..shape.len()).find(wrong) {
            let (start, end, step) = (self.starts[dim], self.ends[dim], self.steps[dim]);
            let reason = format!("{start}..{end} by {step} does not lie in dim {dim}");
            return Err(shape_error("slice", operands, reason));
        }
        Ok(())
    }
}

impl Operation for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1")?;
        Ok(vec![operands[0].dtype])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        self.check_dims(operands)?;
        let rule = Rule { linear: vec![vec![0]], moves_data: true, ..Rule::default() };
        let whole = |dim: usize, extent: usize| {
            (self.starts[dim], self.ends[dim], self.steps[dim]) == (0, extent, 1)
        };
        Ok(dim_by_dim(rule, &operands[0].shape, whole, |dim| self.count_taken(dim)))
    }

    fn flops_per_point(&self) -> f64 {
        0.0
    }

    fn movement(&self) -> Option<Movement> {
        Some(Movement::Part)
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let element = |index: &[usize]| {
            let source = |(dim, i): (usize, &usize)| self.starts[dim] + i * self.steps[dim];
            read_element(&operands[0], &index.iter().enumerate().map(source).collect::<Vec<_>>())
        };
        Ok(vec![fill_shard(&results[0], element)])
    }
}

impl Pad {
    /// Makes the pad that puts zeros behind one dim of a tensor of this shape, up to an extent that is no less than its own.
    pub fn to_extent(shape: &[usize], dim: usize, extent: usize) -> Self {
        let nothing = vec![0; shape.len()];
        let mut high = nothing.clone();
        high[dim] = extent - shape[dim];
        Self { low: nothing.clone(), high, interior: nothing, value: Scalar(0.0) }
    }

    fn pads_dim(&self, dim: usize, extent: usize) -> bool {
        self.low[dim] > 0 || self.high[dim] > 0 || self.interior[dim] > 0 && extent > 1
    }

    /// Returns the operand's index along a dim that lies at a result's index; `None` in the border.
    fn source_index(&self, dim: usize, index: usize, extent: usize) -> Option<usize> {
        let (inside, step) = (index.checked_sub(self.low[dim])?, self.interior[dim] + 1);
        (inside % step == 0 && inside / step < extent).then_some(inside / step)
    }
}

impl Operation for Pad {
    fn name(&self) -> &'static str {
        "pad"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1")?;
        Ok(vec![operands[0].dtype])
    }

    /// Returns the rule. Partial sums pass where the border is zero or there is none; partial maxima only where there is none: a border is no moved
    /// element.
    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let shape = &operands[0].shape;
        if [&self.low, &self.high, &self.interior].iter().any(|field| field.len() != shape.len()) {
            let reason = "low and high (and interior) each need a number for every dim";
            return Err(shape_error(self.name(), operands, reason));
        }
        let unpadded = (0..shape.len()).all(|dim| !self.pads_dim(dim, shape[dim]));
        let linear = if unpadded || self.value.0 == 0.0 { vec![vec![0]] } else { vec![] };
        let rule = Rule { linear, moves_data: unpadded, ..Rule::default() };
        // A length beyond all numbers is that of no tensor.
        let length = |dim: usize| {
            let between = self.interior[dim].saturating_mul(shape[dim].saturating_sub(1));
            let border = self.low[dim].saturating_add(self.high[dim]);
            shape[dim].saturating_add(between).saturating_add(border)
        };
        Ok(dim_by_dim(rule, shape, |dim, extent| !self.pads_dim(dim, extent), length))
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
        let shape = &operands[0].region.global;
        let element = |index: &[usize]| {
            let source: Option<Vec<usize>> = (0..index.len())
                .map(|dim| self.source_index(dim, index[dim], shape[dim]))
                .collect();
            source.map_or(self.value.0, |source| read_element(&operands[0], &source))
        };
        Ok(vec![fill_shard(&results[0], element)])
    }
}

/// Completes a rule of one operand and one result: dims that stay as they are are parallel, the others whole.
pub(super) fn dim_by_dim(
    mut rule: Rule,
    shape: &[usize],
    stays: impl Fn(usize, usize) -> bool,
    length: impl Fn(usize) -> usize,
) -> Rule {
    let (mut operand, mut result) = (Vec::new(), Vec::new());
    for (dim, &extent) in shape.iter().enumerate() {
        if stays(dim, extent) {
            let factor = rule.add_factor(extent, FactorKind::Parallel);
            operand.push(DimRule::Factors(vec![factor]));
            result.push(DimRule::Factors(vec![factor]));
        } else {
            operand.push(DimRule::Whole(extent));
            result.push(DimRule::Whole(length(dim)));
        }
    }
    (rule.operands, rule.results) = (vec![operand], vec![result]);
    rule
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    #[test]
    fn slice_takes_every_step() {
        let slice = Slice { starts: vec![0, 1], ends: vec![2, 6], steps: vec![1, 2] };
        let x = Array::from_fn([2, 6], |i| (i[0] * 10 + i[1]) as f64);
        let y = evaluate(Op::Slice(slice), &[(DType::F32, x)]).expect("fits");
        assert_eq!(y, [Array::new([2, 3], vec![1., 3., 5., 11., 13., 15.])]);
    }

    #[test]
    fn pad_surrounds_and_separates() {
        let pad = Pad { low: vec![1], high: vec![2], interior: vec![1], value: Scalar(9.0) };
        let x = Array::new([3], vec![1., 2., 3.]);
        let y = evaluate(Op::Pad(pad), &[(DType::F32, x)]).expect("fits");
        assert_eq!(y, [Array::new([8], vec![9., 1., 9., 2., 9., 3., 9., 9.])]);
    }

    #[test]
    fn only_dims_taken_whole_split() {
        let slice = Slice { starts: vec![0, 1], ends: vec![2, 6], steps: vec![1, 1] };
        let ty = TensorType::new(DType::F32, [2, 6]);
        let rule = slice.rule(&[&ty]).expect("fits");
        let layouts: Vec<_> =
            rule.signatures(&[2]).iter().map(|s| s.operands[0].to_string()).collect();
        assert_eq!(layouts, ["B", "S(0)", "P(sum)", "P(max)", "P(min)"]);
    }

    #[test]
    fn a_slice_outside_is_refused() {
        let slice = Slice { starts: vec![1], ends: vec![4], steps: vec![1] };
        let ty = TensorType::new(DType::F32, [3]);
        let error = Op::Slice(slice).infer_types(&[&ty]).expect_err("4 > 3").to_string();
        assert_eq!(error, "slice cannot take f32[3]: 1..4 by 1 does not lie in dim 0");
    }
}
