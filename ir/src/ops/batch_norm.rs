//! Batch normalization (Ioffe and Szegedy, arXiv 1502.03167) of `[n, channels, ..]`.

use serde::{Deserialize, Serialize};

use super::shards::{at, fill, first_gradient, no_gradient, one_float};
use crate::array::Array;
use crate::builder::Tensor;
use crate::op::{EvalContext, GradientNode, OpError, Operand, Operation, Region, arity, shapes};
use crate::rule::{DimRule, FactorKind, Rule};
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

/// `(x [n, c, ..], scale [c], bias [c], mean [c], variance [c]) -> (x - mean) / sqrt(variance + epsilon) scale + bias`.
///
/// In training the statistics are those of the batch, of each of `batches` consecutive parts of it by itself, and the
/// operands `mean` and `variance`, if they are variables, are running statistics: each part's take their share of them. No kernel
/// computes it: it is taken apart before gradients are made, so that the batch may be split, and the statistics are partial sums.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNorm {
    /// Added to the variance.
    pub epsilon: Scalar,
    /// How many parts of the batch have statistics of their own: the microbatches. 0: those that are given.
    pub batches: usize,
    /// The share of the running statistics that stays when a part's are taken in, as ONNX has it: 1 less torch's momentum.
    #[serde(default = "BatchNorm::default_momentum")]
    pub momentum: Scalar,
}

impl BatchNorm {
    /// By statistics that are given, with the momentum of ONNX and torch.
    pub fn new(epsilon: f64) -> Self {
        Self { epsilon: Scalar(epsilon), batches: 0, momentum: Self::default_momentum() }
    }

    fn default_momentum() -> Scalar {
        Scalar(0.9)
    }

    fn mean_and_variance(&self, operands: &[Operand<'_>], index: &[usize]) -> (f64, f64) {
        let channel = index[1];
        if self.batches == 0 {
            return (at(&operands[3], &[channel]), at(&operands[4], &[channel]));
        }
        let x = &operands[0];
        let part = x.region.global[0] / self.batches;
        let first = index[0] / part * part;
        let rest = &x.region.global[2..];
        let values: Vec<f64> = (0..part * rest.iter().product::<usize>())
            .map(|place| {
                let rest_size = rest.iter().product::<usize>();
                let within = crate::mesh::unravel(place % rest_size, rest);
                at(x, &[&[first + place / rest_size, channel], within.as_slice()].concat())
            })
            .collect();
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        (mean, values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count)
    }
}

impl Operation for BatchNorm {
    fn name(&self) -> &'static str {
        "batch_norm"
    }

    fn dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        arity(self.name(), operands, 5, "5")?;
        Ok(vec![one_float(self.name(), operands, &[0, 1, 2, 3, 4])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let [batch, channels, rest @ ..] = &operands[0].shape[..] else {
            return Err(shapes(self.name(), operands, "it needs a batch and channels"));
        };
        if operands[1..].iter().any(|operand| operand.shape != [*channels]) {
            return Err(shapes(
                self.name(),
                operands,
                format!("operands 1 to 4 must be [{channels}]"),
            ));
        }
        let mut rule = Rule { linear: vec![vec![1, 2]], ..Rule::default() };
        let mut dims = match self.batches {
            0 => {
                rule.linear.insert(0, vec![0, 2, 3]);
                rule.parallel(&[*batch])
            }
            parts if batch.is_multiple_of(parts) => {
                let outer = rule.factor(parts, FactorKind::Parallel);
                let inner = rule.factor(batch / parts, FactorKind::Whole);
                vec![DimRule::Factors(vec![outer, inner])]
            }
            parts => {
                let reason = format!("{parts} microbatches do not divide a batch of {batch}");
                return Err(shapes(self.name(), operands, reason));
            }
        };
        let channel = rule.parallel(&[*channels]);
        dims.extend(channel.clone());
        let kind = if self.batches == 0 { FactorKind::Parallel } else { FactorKind::Whole };
        dims.extend(rest.iter().map(|&size| DimRule::Factors(vec![rule.factor(size, kind)])));
        rule.operands = [vec![dims.clone()], vec![channel; 4]].concat();
        rule.results = vec![dims];
        Ok(rule)
    }

    fn flops_per_point(&self) -> f64 {
        6.0
    }

    /// Of given statistics: in training it is taken apart before.
    fn gradient(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let [x, scale, _, mean, variance] = node.operands else { return Vec::new() };
        let Some(g) = first_gradient(node).filter(|_| self.batches == 0) else {
            return no_gradient(self.name(), node);
        };
        let rank = x.shape().len();
        let wide = |of_channel: &Tensor| {
            let ones = vec![1; rank.saturating_sub(2)];
            of_channel.reshape(&[of_channel.shape(), ones].concat())
        };
        let others: Vec<usize> = (0..rank).filter(|&dim| dim != 1).collect();
        let root = variance.offset(self.epsilon.0).rsqrt();
        let dx = g.mul(&wide(&scale.mul(&root)));
        let of_centered = g.mul(&x.sub(&wide(mean))).sum(&others, false);
        let bias = g.sum(&others, false);
        let of_variance = of_centered.mul(scale).mul(&root.mul(&root).mul(&root)).scale(-0.5);
        let of_mean = bias.mul(&scale.mul(&root)).neg();
        vec![Some(dx), Some(of_centered.mul(&root)), Some(bias), Some(of_mean), Some(of_variance)]
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let mut last = (Vec::new(), (0.0, 0.0));
        let element = |index: &[usize]| {
            // What has one mean follows each other within a channel of a picture.
            if last.0 != index[..2] {
                last = (index[..2].to_vec(), self.mean_and_variance(operands, index));
            }
            let (mean, variance) = last.1;
            let [scale, bias] = [1, 2].map(|operand| at(&operands[operand], &[index[1]]));
            (at(&operands[0], index) - mean) / (variance + self.epsilon.0).sqrt() * scale + bias
        };
        Ok(vec![fill(&results[0], element)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    #[test]
    fn statistics_are_given_or_those_of_parts_of_the_batch() {
        let floats = |shape: &[usize], data: &[f64]| (DType::F32, Array::new(shape, data.to_vec()));
        let operands = [
            floats(&[4, 1, 1], &[1., 3., 10., 14.]),
            floats(&[1], &[2.]),
            floats(&[1], &[5.]),
            floats(&[1], &[1.]),
            floats(&[1], &[4.]),
        ];
        let of = |batches| {
            let op = Op::BatchNorm(BatchNorm { batches, ..BatchNorm::new(0.0) });
            evaluate(op, &operands).expect("fits")[0].data.clone()
        };
        assert_eq!(of(0), [5., 7., 14., 18.]);
        assert_eq!(of(2), [3., 7., 3., 7.]);
    }
}
