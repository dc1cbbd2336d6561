//! Batch normalization (Ioffe and Szegedy, arXiv 1502.03167) of `[n, channels, ..]`.

use serde::{Deserialize, Serialize};

use super::shards::{fill_shard, one_float, read_element};
use crate::array::Array;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, shape_error,
};
use crate::rule::Rule;
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

/// `(x [n, c, ..], scale [c], bias [c], mean [c], variance [c]) -> (x - mean) / sqrt(variance + epsilon) scale + bias`.
///
/// In training the statistics are those of the batch, and the operands `mean` and `variance`, if they are variables, are running
/// statistics: it becomes a [`super::BatchNormTraining`], of whose results they take their share. No kernel computes it: in inference
/// it is taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BatchNorm {
    /// The term that is added to the variance.
    pub epsilon: Scalar,
    /// The share of the running statistics that stays when a batch's are taken in, as ONNX has it: 1 less torch's momentum.
    #[serde(default = "BatchNorm::default_momentum")]
    pub momentum: Scalar,
}

impl BatchNorm {
    /// Makes an op with given statistics, and the momentum of ONNX and torch.
    pub fn new(epsilon: f64) -> Self {
        Self { epsilon: Scalar(epsilon), momentum: Self::default_momentum() }
    }

    fn default_momentum() -> Scalar {
        Scalar(0.9)
    }
}

impl Operation for BatchNorm {
    fn name(&self) -> &'static str {
        "batch_norm"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 5, "5")?;
        Ok(vec![one_float(self.name(), operands, &[0, 1, 2, 3, 4])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let [batch, channels, rest @ ..] = &operands[0].shape[..] else {
            return Err(shape_error(self.name(), operands, "it needs a batch and channels"));
        };
        if operands[1..].iter().any(|operand| operand.shape != [*channels]) {
            return Err(shape_error(
                self.name(),
                operands,
                format!("operands 1 to 4 must be [{channels}]"),
            ));
        }
        let mut rule = Rule { linear: vec![vec![0, 2, 3], vec![1, 2]], ..Rule::default() };
        let mut dims = rule.add_parallel_dims(&[*batch]);
        let channel = rule.add_parallel_dims(&[*channels]);
        dims.extend(channel.clone());
        dims.extend(rule.add_parallel_dims(rest));
        rule.operands = [vec![dims.clone()], vec![channel; 4]].concat();
        rule.results = vec![dims];
        Ok(rule)
    }

    fn flops_per_point(&self) -> f64 {
        6.0
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let element = |index: &[usize]| {
            let [scale, bias, mean, variance] =
                [1, 2, 3, 4].map(|operand| read_element(&operands[operand], &[index[1]]));
            (read_element(&operands[0], index) - mean) / (variance + self.epsilon.0).sqrt() * scale
                + bias
        };
        Ok(vec![fill_shard(&results[0], element)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    #[test]
    fn statistics_are_given() {
        let floats = |shape: &[usize], data: &[f64]| (DType::F32, Array::new(shape, data.to_vec()));
        let operands = [
            floats(&[4, 1, 1], &[1., 3., 10., 14.]),
            floats(&[1], &[2.]),
            floats(&[1], &[5.]),
            floats(&[1], &[1.]),
            floats(&[1], &[4.]),
        ];
        let y = evaluate(Op::BatchNorm(BatchNorm::new(0.0)), &operands).expect("fits");
        assert_eq!(y[0].data, [5., 7., 14., 18.]);
    }
}
