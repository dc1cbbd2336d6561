//! Losses over classes in the last dim; labels of -100 are ignored.
//!
//! Scores may lie padded in memory (`classes` of an op): behind the classes stand entries of any content, which no loss reads, to which
//! no label leads and whose gradient is 0.

use serde::{Deserialize, Serialize};

use super::shards::{
    check_index_dtype, check_indices, elementwise_rule, fill_shard, one_float, read_element,
};
use super::softmax::greatest_and_sum_exp;
use crate::array::Array;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, dtype_error, shape_error,
};
use crate::rule::{DimRule, FactorKind, Rule};
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

/// The label that is ignored.
pub const IGNORED_LABEL: i64 = -100;

/// (x [.., C], labels [..] of i64) -> [..]: x at the label, 0 where the label is ignored. C is indexed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pick {
    /// The number of entries of the last dim that are classes, where what is behind them is padding; `None`: all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<usize>,
}

/// (labels [..], g [..]) -> [.., C]: g at the label, 0 elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PickGrad {
    /// The number C of classes.
    pub classes: usize,
}

/// (x [.., C], labels [..]) -> (loss [..], l [..]): l = log(sum(exp(x))), loss = l - (1 - smoothing) x at the label - smoothing
/// mean(x), 0 where the label is ignored. C is whole; where it is to be split, the op is decomposed before planning. Loss and
/// l are f32 for scores of any precision, as torch.autocast has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CrossEntropy {
    /// The share of the target that all classes have alike (Szegedy et al., arXiv 1512.00567, section 7).
    #[serde(default, skip_serializing_if = "Scalar::is_zero")]
    pub smoothing: Scalar,
    /// The number of entries of the last dim that are classes, where what is behind them is padding; `None`: all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<usize>,
}

/// (x [.., C], l [..] of f32, labels [..], g [..] of f32) -> (exp(x - l) - (1 - smoothing) [class is label] - smoothing / C) g, 0
/// where ignored, of x's precision. C may be split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CrossEntropyGrad {
    /// The share of the target that all classes have alike, as in [`CrossEntropy`].
    #[serde(default, skip_serializing_if = "Scalar::is_zero")]
    pub smoothing: Scalar,
    /// The number of entries of the last dim that are classes, as in [`CrossEntropy`]; the gradient of padding is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<usize>,
}

impl Operation for Pick {
    fn name(&self) -> &'static str {
        "pick"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 2, "2")?;
        check_index_dtype(self.name(), operands, 1)?;
        Ok(vec![one_float(self.name(), operands, &[0])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let (mut rule, scores, outer) =
            build_class_rule(self.name(), operands, [0, 1], self.classes)?;
        set_kind(&mut rule, FactorKind::Indexed);
        rule.linear = vec![vec![0]];
        (rule.operands, rule.results) = (vec![scores, outer.clone()], vec![outer]);
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
        let [x, labels] = [&operands[0], &operands[1]];
        let last = x.region.global.len() - 1;
        check_labels(self.name(), labels, self.classes.unwrap_or(x.region.global[last]))?;
        let first = x.region.rect.origin[last];
        let held = first..first + x.region.rect.extent[last];
        let element = |index: &[usize]| {
            let label = read_element(labels, index) as usize;
            let here = held.contains(&label) && !is_ignored(read_element(labels, index));
            if here { read_element(x, &[index, &[label]].concat()) } else { 0.0 }
        };
        Ok(vec![fill_shard(&results[0], element)])
    }
}

impl Operation for PickGrad {
    fn name(&self) -> &'static str {
        "pick_grad"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 2, "2")?;
        check_index_dtype(self.name(), operands, 0)?;
        Ok(vec![one_float(self.name(), operands, &[1])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        if operands[0].shape != operands[1].shape {
            return Err(shape_error(
                self.name(),
                operands,
                "there must be one gradient for each label",
            ));
        }
        let mut rule = Rule { linear: vec![vec![1]], ..Rule::default() };
        let outer = rule.add_parallel_dims(&operands[0].shape);
        let class = DimRule::Factors(vec![rule.add_factor(self.classes, FactorKind::Parallel)]);
        rule.results = vec![[outer.as_slice(), &[class]].concat()];
        rule.operands = vec![outer; 2];
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
        let [labels, g] = [&operands[0], &operands[1]];
        check_labels(self.name(), labels, self.classes)?;
        let element = |index: &[usize]| {
            let (class, outer) = index.split_last().expect("the result has a last dim");
            if read_element(labels, outer) == *class as f64 { read_element(g, outer) } else { 0.0 }
        };
        Ok(vec![fill_shard(&results[0], element)])
    }
}

impl Operation for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 2, "2")?;
        check_index_dtype(self.name(), operands, 1)?;
        one_float(self.name(), operands, &[0])?;
        Ok(vec![DType::F32; 2])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let (mut rule, scores, outer) =
            build_class_rule(self.name(), operands, [0, 1], self.classes)?;
        set_kind(&mut rule, FactorKind::Whole);
        (rule.operands, rule.results) = (vec![scores, outer.clone()], vec![outer.clone(), outer]);
        Ok(rule)
    }

    fn flops_per_point(&self) -> f64 {
        4.0
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let [x, labels] = [&operands[0], &operands[1]];
        let count = self.classes.unwrap_or(x.region.global[x.region.global.len() - 1]);
        check_labels(self.name(), labels, count)?;
        let scores = |index: &[usize]| -> Vec<f64> {
            (0..count).map(|class| read_element(x, &[index, &[class]].concat())).collect()
        };
        let loss = fill_shard(&results[0], |index| {
            let (scores, label) = (scores(index), read_element(labels, index));
            if is_ignored(label) {
                return 0.0;
            }
            let (greatest, sum) = greatest_and_sum_exp(&scores);
            let mean = scores.iter().sum::<f64>() / count as f64;
            let share = self.smoothing.0;
            let spread = if share == 0.0 { 0.0 } else { share * (mean - greatest) };
            sum.ln() - (1.0 - share) * (scores[label as usize] - greatest) - spread
        });
        let l = fill_shard(&results[1], |index| {
            let (greatest, sum) = greatest_and_sum_exp(&scores(index));
            greatest + sum.ln()
        });
        Ok(vec![loss, l])
    }
}

impl Operation for CrossEntropyGrad {
    fn name(&self) -> &'static str {
        "cross_entropy_grad"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 4, "4")?;
        check_index_dtype(self.name(), operands, 2)?;
        if [1, 3].iter().any(|&i| operands[i].dtype != DType::F32) {
            return Err(dtype_error(self.name(), operands, "operands 1 and 3 are f32"));
        }
        Ok(vec![one_float(self.name(), operands, &[0])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let (mut rule, scores, outer) =
            build_class_rule(self.name(), operands, [0, 2], self.classes)?;
        if [1, 3].iter().any(|&i| operands[i].shape != operands[2].shape) {
            return Err(shape_error(
                self.name(),
                operands,
                "operands 1 and 3 must be shaped as labels",
            ));
        }
        rule.linear = vec![vec![3]];
        rule.operands = vec![scores.clone(), outer.clone(), outer.clone(), outer];
        rule.results = vec![scores];
        Ok(rule)
    }

    fn flops_per_point(&self) -> f64 {
        4.0
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let [x, l, labels, g] = [&operands[0], &operands[1], &operands[2], &operands[3]];
        let classes = self.classes.unwrap_or(x.region.global[x.region.global.len() - 1]);
        check_labels(self.name(), labels, classes)?;
        let share = self.smoothing.0;
        let element = |index: &[usize]| {
            let (class, outer) = index.split_last().expect("x has a last dim");
            let label = read_element(labels, outer);
            if is_ignored(label) || *class >= classes {
                return 0.0;
            }
            let hit = if label == *class as f64 { 1.0 - share } else { 0.0 };
            ((read_element(x, index) - read_element(l, outer)).exp() - hit - share / classes as f64)
                * read_element(g, outer)
        };
        Ok(vec![fill_shard(&results[0], element)])
    }
}

pub(super) fn is_ignored(label: f64) -> bool {
    label as i64 == IGNORED_LABEL
}

pub(super) fn check_labels(
    op: &'static str,
    labels: &Operand<'_>,
    classes: usize,
) -> Result<(), OpError> {
    check_indices(op, "label", labels, classes, Some(IGNORED_LABEL))
}

/// Builds the dims of operand `scores` ([.., C]) and of operand `labels` ([..]); C is the last factor, parallel. Of C the first `classes` are
/// classes.
pub(super) fn build_class_rule(
    op: &'static str,
    operands: &[&TensorType],
    [scores, labels]: [usize; 2],
    classes: Option<usize>,
) -> Result<(Rule, Vec<DimRule>, Vec<DimRule>), OpError> {
    let split = operands[scores].shape.split_last();
    let Some((&extent, _)) = split.filter(|&(_, outer)| outer == operands[labels].shape) else {
        let reason = "the labels must have all dims of the scores but the last, the classes";
        return Err(shape_error(op, operands, reason));
    };
    if let Some(classes) = classes.filter(|&classes| classes == 0 || classes > extent) {
        let reason = format!("of {extent} scores of a label {classes} cannot be those of classes");
        return Err(shape_error(op, operands, reason));
    }
    let mut rule = elementwise_rule(&operands[scores].shape, 1, 0);
    let dims = rule.operands.remove(0);
    let outer = dims[..dims.len() - 1].to_vec();
    Ok((rule, dims, outer))
}

pub(super) fn set_kind(rule: &mut Rule, kind: FactorKind) {
    rule.factors.last_mut().expect("the classes are the last factor").kind = kind;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;
    use crate::shard::Rect;

    fn scores() -> (DType, Array) {
        (DType::F32, Array::new([2, 2], vec![0.0, 3f64.ln(), 5.0, 7.0]))
    }

    fn labels(labels: [f64; 2]) -> (DType, Array) {
        (DType::I64, Array::new([2], labels.to_vec()))
    }

    #[test]
    fn cross_entropy_by_hand() {
        let op = Op::CrossEntropy(CrossEntropy::default());
        let y = evaluate(op, &[scores(), labels([0., -100.])]).expect("fits");
        assert!((y[0].data[0] - 4f64.ln()).abs() < 1e-12 && y[0].data[1] == 0.0, "{y:?}");
        assert!((y[1].data[0] - 4f64.ln()).abs() < 1e-12);
        let l = (DType::F32, y[1].clone());
        let g = (DType::F32, Array::new([2], vec![2.0, 1.0]));
        let op = Op::CrossEntropyGrad(CrossEntropyGrad::default());
        let dx = evaluate(op, &[scores(), l, labels([0., -100.]), g]).expect("fits");
        let expected = [-1.5, 1.5, 0.0, 0.0];
        assert!(dx[0].data.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{dx:?}");
    }

    #[test]
    fn smoothed_cross_entropy_by_hand() {
        let smoothing = Scalar(0.5);
        let op = Op::CrossEntropy(CrossEntropy { smoothing, ..CrossEntropy::default() });
        let y = evaluate(op, &[scores(), labels([0., -100.])]).expect("fits");
        // log 4 - 0.5 * 0 - 0.5 * log(3) / 2.
        let expected = 4f64.ln() - 3f64.ln() / 4.0;
        assert!((y[0].data[0] - expected).abs() < 1e-12 && y[0].data[1] == 0.0, "{y:?}");
        let g = (DType::F32, Array::new([2], vec![2.0, 1.0]));
        let operands = [scores(), (DType::F32, y[1].clone()), labels([0., -100.]), g];
        let op = Op::CrossEntropyGrad(CrossEntropyGrad { smoothing, classes: None });
        let dx = evaluate(op, &operands).expect("fits");
        // (1/4 - 1/2 - 1/4) 2, (3/4 - 1/4) 2.
        let expected = [-1.0, 1.0, 0.0, 0.0];
        assert!(dx[0].data.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{dx:?}");
    }

    /// Scores behind two classes are ignored as padding, and a label that leads there is an error.
    #[test]
    fn padding_has_no_part_in_a_loss() {
        let padded = |ty: DType| (ty, Array::new([1, 4], vec![0.0, 3f64.ln(), f64::NAN, 9.0]));
        let label = |label: f64| (DType::I64, Array::new([1], vec![label]));
        let classes = Some(2);
        for smoothing in [0.0, 0.5].map(Scalar) {
            let of = |classes, x| {
                let op = Op::CrossEntropy(CrossEntropy { smoothing, classes });
                let y = evaluate(op, &[(DType::F32, x), label(0.0)]).expect("fits");
                let g = (DType::F32, Array::new([1], vec![2.0]));
                let l = (DType::F32, y[1].clone());
                (y, g, l)
            };
            let (found, g, l) = of(classes, padded(DType::F32).1);
            let bare = Array::new([1, 2], vec![0.0, 3f64.ln()]);
            assert_eq!(found, of(None, bare.clone()).0);
            let gradient = |classes, x| {
                let op = Op::CrossEntropyGrad(CrossEntropyGrad { smoothing, classes });
                let operands = [(DType::F32, x), l.clone(), label(0.0), g.clone()];
                evaluate(op, &operands).expect("fits")[0].data.clone()
            };
            let expected = gradient(None, bare);
            assert_eq!(
                gradient(classes, padded(DType::F32).1),
                [&expected[..], &[0.0; 2]].concat()
            );
        }
        let error = |op| {
            let operands = [padded(DType::F32), label(2.0)];
            evaluate(op, &operands).expect_err("2 of 0..2").to_string()
        };
        let of = |op: &str| format!("label 2 at position [0] is out of range: {op} takes 0 to 1");
        let smoothing = Scalar(0.0);
        assert_eq!(
            error(Op::CrossEntropy(CrossEntropy { smoothing, classes })),
            of("cross_entropy")
        );
        assert_eq!(error(Op::Pick(Pick { classes })), of("pick"));
        let five = Op::Pick(Pick { classes: Some(5) });
        let error = five.infer_types(&[
            &TensorType::new(DType::F32, [1, 4]),
            &TensorType::new(DType::I64, [1]),
        ]);
        let error = error.expect_err("4 are there").to_string();
        assert!(error.contains("of 4 scores of a label 5 cannot be those of classes"), "{error}");
    }

    #[test]
    fn pick_and_its_gradient() {
        let y =
            evaluate(Op::Pick(Pick::default()), &[scores(), labels([-100., 1.])]).expect("fits");
        assert_eq!(y[0].data, [0.0, 7.0]);
        let g = (DType::F32, Array::new([2], vec![2.0, 3.0]));
        let op = Op::PickGrad(PickGrad { classes: 2 });
        let dx = evaluate(op, &[labels([-100., 1.]), g]).expect("fits");
        assert_eq!(dx[0].data, [0.0, 0.0, 0.0, 3.0]);
    }

    #[test]
    fn a_label_outside_the_classes_is_an_error_with_its_place() {
        let op = Op::CrossEntropy(CrossEntropy::default());
        let error = evaluate(op, &[scores(), labels([0., 2.])]).expect_err("2 of 0..2").to_string();
        assert_eq!(error, "label 2 at position [1] is out of range: cross_entropy takes 0 to 1");
        let op = Op::Pick(Pick::default());
        assert!(evaluate(op, &[scores(), labels([0., -1.])]).is_err());
    }

    #[test]
    fn shards_of_the_classes_sum_to_the_whole() {
        let x = scores().1;
        let label = Array::new([2], vec![1., 0.]);
        let mut sum = [0.0; 2];
        for class in 0..2 {
            let rect = Rect { origin: vec![0, class], extent: vec![2, 1] };
            let shard = x.slice_rect(&rect);
            let region = Region { dtype: DType::F32, global: vec![2, 2], rect };
            let labels = Region::whole(&TensorType::new(DType::I64, [2]));
            let operands = [
                Operand { array: &shard, region: &region },
                Operand { array: &label, region: &labels },
            ];
            let result = Region::whole(&TensorType::new(DType::F32, [2]));
            let y = Pick::default().evaluate(&operands, &[result], &EvalContext::default());
            for (sum, value) in sum.iter_mut().zip(&y.expect("in range")[0].data) {
                *sum += value;
            }
        }
        assert_eq!(sum, [3f64.ln(), 5.0]);
    }
}
