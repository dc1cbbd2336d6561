//! The place of a label among the classes, from which accuracies are counted.

use serde::{Deserialize, Serialize};

use super::loss::{build_class_rule, check_labels, is_ignored, set_kind};
use super::shards::{check_index_dtype, fill_shard, one_float, read_element};
use crate::array::Array;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, shape_error,
};
use crate::rule::{FactorKind, Rule};
use crate::sbp::ReduceKind;
use crate::types::{DType, TensorType};

/// (x [.., C], labels [..] of i64, s [..]) -> f32[..]: the number of classes that come before the label, whose score is s: those that score more, and
/// of those that score the same the ones of a lower number; 0 where the label is ignored. A label whose score is no number comes last. Ranks that
/// hold parts of C add up what they count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LabelRank {
    /// The number of entries of the last dim that are classes, where what is behind them is padding; `None`: all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<usize>,
}

impl Operation for LabelRank {
    fn name(&self) -> &'static str {
        "label_rank"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 3, "3")?;
        check_index_dtype(self.name(), operands, 1)?;
        one_float(self.name(), operands, &[0, 2])?;
        Ok(vec![DType::F32])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let (mut rule, scores, outer) =
            build_class_rule(self.name(), operands, [0, 1], self.classes)?;
        if operands[2].shape != operands[1].shape {
            return Err(shape_error(
                self.name(),
                operands,
                "there must be one score for each label",
            ));
        }
        set_kind(&mut rule, FactorKind::Reduction(ReduceKind::Sum));
        rule.operands = vec![scores, outer.clone(), outer.clone()];
        rule.results = vec![outer];
        Ok(rule)
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let [x, labels, scores] = [&operands[0], &operands[1], &operands[2]];
        let last = x.region.global.len() - 1;
        let count = self.classes.unwrap_or(x.region.global[last]);
        check_labels(self.name(), labels, count)?;
        let first = x.region.rect.origin[last];
        let held = first..count.min(first + x.region.rect.extent[last]);
        let rank = |index: &[usize]| {
            let (label, score) = (read_element(labels, index), read_element(scores, index));
            if is_ignored(label) {
                return 0.0;
            }
            let behind = |class: &usize| {
                let other = read_element(x, &[index, &[*class]].concat());
                other < score || other == score && *class >= label as usize
            };
            held.clone().filter(|class| !behind(class)).count() as f64
        };
        Ok(vec![fill_shard(&results[0], rank)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    #[test]
    fn ties_go_to_the_lower_class_and_what_is_no_number_comes_last() {
        let x = Array::new([4, 3], vec![1., 3., 2., 2., 2., 2., 1., 2., 3., 1., f64::NAN, 0.]);
        let labels = Array::new([4], vec![2., 1., -100., 1.]);
        let scores = Array::new([4], vec![2., 2., 0., f64::NAN]);
        let operands = [(DType::F32, x), (DType::I64, labels), (DType::F32, scores)];
        let rank = |classes| {
            let op = Op::LabelRank(LabelRank { classes });
            evaluate(op, &operands).expect("fits")[0].data.clone()
        };
        assert_eq!(rank(None), [1.0, 1.0, 0.0, 3.0]);
    }

    #[test]
    fn padding_has_no_rank() {
        let x = Array::new([1, 4], vec![1., 3., 9., f64::NAN]);
        let operands = [
            (DType::F32, x),
            (DType::I64, Array::new([1], vec![0.])),
            (DType::F32, Array::new([1], vec![1.])),
        ];
        let rank = |classes| {
            let op = Op::LabelRank(LabelRank { classes });
            evaluate(op, &operands).expect("fits")[0].data.clone()
        };
        assert_eq!((rank(None), rank(Some(2))), (vec![3.0], vec![1.0]));
    }
}
