//! Dropout.

use serde::{Deserialize, Serialize};

use super::shards::{copy_operand, elementwise_rule, fill_shard, one_float, read_element};
use crate::array::Array;
use crate::operation::{
    EvalContext, InPlace, OpError, Operand, Operation, Region, check_arity, dtype_error,
};
use crate::rule::Rule;
use crate::scalar::Scalar;
use crate::types::{DType, TensorType, row_major_position};

/// The operand with random zeros: each element is 0 with `probability`, else x / (1 - probability); the mask is a function of (seed, key, step,
/// global element index), so the gradient is the same op on the gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DropoutOp {
    /// The probability of a zero, in [0, 1).
    pub probability: Scalar,
    /// The key that tells this op's numbers from those of others.
    pub key: u64,
    /// Whether it drops anything at all: false in inference.
    pub training: bool,
}

impl DropoutOp {
    /// Returns whether elements may be dropped at all.
    pub fn can_drop(&self) -> bool {
        self.training && self.probability.0 > 0.0
    }

    /// Checks that the probability is one of some elements that remain.
    pub(super) fn check_probability(
        &self,
        op: &'static str,
        operands: &[&TensorType],
    ) -> Result<(), OpError> {
        if (0.0..1.0).contains(&self.probability.0) {
            return Ok(());
        }
        let reason = format!("the probability {} is not in [0, 1)", self.probability);
        Err(dtype_error(op, operands, reason))
    }

    /// Returns whether the element at a row-major position of the whole tensor is dropped.
    pub fn drops_element(&self, cx: &EvalContext, position: u64) -> bool {
        f64::from(cx.random_stream(self.key).uniform(position)) < self.probability.0
    }
}

impl Operation for DropoutOp {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1")?;
        self.check_probability(self.name(), operands)?;
        Ok(vec![one_float(self.name(), operands, &[0])?])
    }

    fn in_place(&self) -> Vec<InPlace> {
        vec![InPlace::new(0, 0)]
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        Ok(Rule { linear: vec![vec![0]], ..elementwise_rule(&operands[0].shape, 1, 1) })
    }

    /// Returns the FLOPs of one element: mostly the integer arithmetic of one random number.
    fn flops_per_point(&self) -> f64 {
        if self.can_drop() { 40.0 } else { 0.0 }
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        if !self.can_drop() {
            return Ok(copy_operand(operands));
        }
        let element = |index: &[usize]| {
            let dropped = self.drops_element(
                cx,
                row_major_position(index.iter().copied(), &results[0].global) as u64,
            );
            if dropped {
                0.0
            } else {
                read_element(&operands[0], index) / (1.0 - self.probability.0)
            }
        };
        Ok(vec![fill_shard(&results[0], element)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;
    use crate::shard::Rect;

    fn dropout(training: bool) -> DropoutOp {
        DropoutOp { probability: Scalar(0.25), key: 3, training }
    }

    #[test]
    fn a_quarter_is_dropped_and_the_rest_scaled() {
        let x = Array::full([10_000], 3.0);
        let y = evaluate(Op::Dropout(dropout(true)), &[(DType::F32, x.clone())]).expect("fits");
        let zeros = y[0].data.iter().filter(|&&y| y == 0.0).count();
        assert!((2300..2700).contains(&zeros), "{zeros}");
        assert!(y[0].data.iter().all(|&y| y == 0.0 || y == 4.0));
        let y = evaluate(Op::Dropout(dropout(false)), &[(DType::F32, x.clone())]).expect("fits");
        assert_eq!(y, [x]);
    }

    #[test]
    fn a_shard_drops_what_the_whole_drops() {
        let x = Array::full([4, 6], 1.0);
        let whole = evaluate(Op::Dropout(dropout(true)), &[(DType::F32, x.clone())]).expect("fits");
        let rect = Rect { origin: vec![1, 2], extent: vec![3, 3] };
        let region = Region { dtype: DType::F32, global: vec![4, 6], rect: rect.clone() };
        let shard = x.slice_rect(&rect);
        let operand = Operand { array: &shard, region: &region };
        let part = dropout(true).evaluate(
            &[operand],
            std::slice::from_ref(&region),
            &EvalContext::default(),
        );
        assert_eq!(part.expect("fits"), [whole[0].slice_rect(&rect)]);
    }

    #[test]
    fn a_probability_outside_is_refused() {
        let op = Op::Dropout(DropoutOp { probability: Scalar(1.0), key: 0, training: true });
        assert!(op.infer_types(&[&TensorType::new(DType::F32, [1])]).is_err());
    }
}
