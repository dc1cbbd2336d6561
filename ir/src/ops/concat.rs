//! Concat and split, each the gradient of the other.

use serde::{Deserialize, Serialize};

use super::shards::{fill_shard, has_dim, read_element};
use crate::array::Array;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, dtype_error, shape_error,
};
use crate::rule::{DimRule, Rule};
use crate::types::{DType, TensorType};

/// The operands one after the other along a dim, which stays whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Concat {
    /// The dim of the concatenation.
    pub axis: usize,
}

/// The operand's parts of these extents along a dim, which stays whole. Each part is a result.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Split {
    /// The dim that is cut into parts.
    pub axis: usize,
    /// The extents of the parts; their sum is the dim's.
    pub sizes: Vec<usize>,
}

impl Operation for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        let Some(first) = operands.first() else {
            return Err(OpError::Arity {
                op: self.name(),
                expected: "1 operand or more",
                found: 0,
            });
        };
        if operands.iter().any(|operand| operand.dtype != first.dtype) {
            return Err(dtype_error(self.name(), operands, "their element types differ"));
        }
        Ok(vec![first.dtype])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        has_dim(self.name(), operands, self.axis)?;
        let first = &operands[0].shape;
        let fits = |operand: &&TensorType| {
            operand.shape.len() == first.len()
                && (0..first.len()).all(|d| d == self.axis || operand.shape[d] == first[d])
        };
        if !operands.iter().all(fits) {
            let reason = format!("dims other than {} differ", self.axis);
            return Err(shape_error(self.name(), operands, reason));
        }
        let extents: Vec<usize> = operands.iter().map(|o| o.shape[self.axis]).collect();
        let (mut rule, whole, parts) = whole_and_parts(first, self.axis, &extents);
        (rule.operands, rule.results) = (parts, vec![whole]);
        rule.linear = vec![(0..operands.len()).collect()];
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
        let element = |index: &[usize]| {
            let mut source = index.to_vec();
            for operand in operands {
                let extent = operand.region.global[self.axis];
                if source[self.axis] < extent {
                    return read_element(operand, &source);
                }
                source[self.axis] -= extent;
            }
            unreachable!("the operands' extents sum to the result's")
        };
        Ok(vec![fill_shard(&results[0], element)])
    }
}

impl Operation for Split {
    fn name(&self) -> &'static str {
        "split"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1")?;
        Ok(vec![operands[0].dtype; self.sizes.len()])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        has_dim(self.name(), operands, self.axis)?;
        let shape = &operands[0].shape;
        let sum = self.sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
        if self.sizes.is_empty() || sum != Some(shape[self.axis]) {
            let reason = format!("{:?} are no parts of dim {}", self.sizes, self.axis);
            return Err(shape_error(self.name(), operands, reason));
        }
        let (mut rule, whole, parts) = whole_and_parts(shape, self.axis, &self.sizes);
        (rule.operands, rule.results) = (vec![whole], parts);
        rule.linear = vec![vec![0]];
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
        let mut start = 0;
        let part = |(region, size): (&Region, &usize)| {
            let part = fill_shard(region, |index| {
                let mut source = index.to_vec();
                source[self.axis] += start;
                read_element(&operands[0], &source)
            });
            start += size;
            part
        };
        Ok(results.iter().zip(&self.sizes).map(part).collect())
    }
}

/// Builds a rule with the dims of a whole and of its parts along `axis`, whose extent is kept whole.
fn whole_and_parts(
    shape: &[usize],
    axis: usize,
    sizes: &[usize],
) -> (Rule, Vec<DimRule>, Vec<Vec<DimRule>>) {
    let mut rule = Rule { moves_data: true, ..Rule::default() };
    let mut outer = shape.to_vec();
    outer.remove(axis);
    let dims = rule.add_parallel_dims(&outer);
    let with = |extent: usize| {
        let mut dims = dims.clone();
        dims.insert(axis, DimRule::Whole(extent));
        dims
    };
    let parts = sizes.iter().map(|&size| with(size)).collect();
    (rule, with(sizes.iter().sum()), parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    #[test]
    fn concat_and_split_are_inverse() {
        let a = Array::new([2, 1], vec![1., 4.]);
        let b = Array::new([2, 2], vec![2., 3., 5., 6.]);
        let whole = Array::new([2, 3], vec![1., 2., 3., 4., 5., 6.]);
        let parts = [(DType::F32, a.clone()), (DType::F32, b.clone())];
        let joined = evaluate(Op::Concat(Concat { axis: 1 }), &parts).expect("fits");
        assert_eq!(joined[0], whole);
        let split = Op::Split(Split { axis: 1, sizes: vec![1, 2] });
        assert_eq!(evaluate(split, &[(DType::F32, whole)]).expect("fits"), [a, b]);
    }

    #[test]
    fn parts_that_do_not_sum_are_refused() {
        let ty = TensorType::new(DType::F32, [4]);
        let split = Op::Split(Split { axis: 0, sizes: vec![1, 2] });
        assert!(split.infer_types(&[&ty]).is_err());
    }
}
