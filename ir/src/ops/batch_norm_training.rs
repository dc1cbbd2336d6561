//! Batch normalization (Ioffe and Szegedy, arXiv 1502.03167) by the statistics of the batch itself.
//!
//! The pass `training_mode` puts this op into a training graph, and it lasts until gradients are made. They have a closed form:
//! two sums over the batch, which all else shares. Then [`crate::decompose`] always takes the op apart.
//!
//! With M microbatches the op sees the batch as `[M, n / M, ..]`. A reduction over the second dim is then the statistics of one
//! microbatch over all ranks, by the same rule as any other reduction. With one microbatch nothing is reshaped.

use serde::{Deserialize, Serialize};

use super::shards::{fill_shard, one_float, read_element};
use crate::array::Array;
use crate::mesh::unravel_position;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, shape_error,
};
use crate::rule::{DimRule, FactorKind, Rule};
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

/// (x, scale \[c\], bias \[c\]) -> ((x - mean) / sqrt(variance + epsilon) scale + bias, mean, variance): the mean and the biased
/// variance of each channel, in each of `batches` consecutive parts of the batch by itself.
///
/// Of one part no tensor changes its shape: statistics are `[c]` where channels are the last dim, else those of x with all other
/// dims 1. Of M parts x is seen as `[M, n / M, ..]`, and statistics are of that shape with all dims 1 but parts and channels. They are
/// f32, and so is what is computed between, whatever the precision of x.
///
/// No kernel computes it. It exists until gradients are made, which have a closed form, and is then taken apart into reductions, whose
/// results are partial sums where the batch is split, and elementwise ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BatchNormTraining {
    /// The term that is added to the variance.
    pub epsilon: Scalar,
    /// The number of parts of the batch that have statistics of their own: the microbatches.
    pub batches: usize,
    /// The dim of channels: 1, or the last.
    pub channel: usize,
}

/// The form in which a tensor is read while its channels are normalized.
pub(crate) struct ChannelView {
    /// The shape in which the tensor is read, `[parts, n / parts, ..]` where there are several parts.
    pub(crate) shape: Vec<usize>,
    /// The dims that statistics are taken over.
    pub(crate) axes: Vec<usize>,
    /// Whether statistics keep these dims, with extent 1.
    pub(crate) keep_dims: bool,
    /// The shape of a value of channels that broadcasts to the tensor.
    pub(crate) wide: Vec<usize>,
}

impl ChannelView {
    /// Returns the number of elements that a statistic is taken over.
    pub(crate) fn count_elements(&self) -> usize {
        self.axes.iter().map(|&axis| self.shape[axis]).product()
    }
}

impl BatchNormTraining {
    /// Returns the form in which a tensor of this shape, which the op must take, is read.
    pub(crate) fn view_channels(&self, shape: &[usize]) -> ChannelView {
        let parts = self.batches;
        let (lead, whole) = match parts {
            1 => (vec![shape[0]], 0),
            _ => (vec![parts, shape[0] / parts], 1),
        };
        let seen = [lead.as_slice(), &shape[1..]].concat();
        let channel = self.channel + whole;
        let wide = (channel..seen.len()).map(|dim| if dim == channel { seen[dim] } else { 1 });
        ChannelView {
            axes: (whole..seen.len()).filter(|&dim| dim != channel).collect(),
            keep_dims: parts > 1 || channel + 1 < seen.len(),
            wide: wide.collect(),
            shape: seen,
        }
    }

    fn check_shapes(&self, operands: &[&TensorType]) -> Result<(), OpError> {
        let shape = &operands[0].shape;
        if self.channel == 0 || self.channel >= shape.len() {
            let reason = format!("dim {} cannot be that of channels", self.channel);
            return Err(shape_error(self.name(), operands, reason));
        }
        let channels = [shape[self.channel]];
        if operands[1..].iter().any(|operand| operand.shape != channels) {
            let reason = format!("operands 1 and 2 must be {channels:?}");
            return Err(shape_error(self.name(), operands, reason));
        }
        if self.batches == 0 || !shape[0].is_multiple_of(self.batches) {
            let (parts, batch) = (self.batches, shape[0]);
            let reason = format!("{parts} microbatches do not divide a batch of {batch}");
            return Err(shape_error(self.name(), operands, reason));
        }
        Ok(())
    }

    /// Returns the mean and the variance of the channel, in the part, that an index of x lies in.
    fn channel_statistics(&self, x: &Operand<'_>, index: &[usize]) -> (f64, f64) {
        let global = &x.region.global;
        let mut extents = global.clone();
        extents[0] /= self.batches;
        extents[self.channel] = 1;
        let first = index[0] / extents[0] * extents[0];
        let value = |place| {
            let mut place = unravel_position(place, &extents);
            place[0] += first;
            place[self.channel] = index[self.channel];
            read_element(x, &place)
        };
        let values: Vec<f64> = (0..extents.iter().product()).map(value).collect();
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        (mean, values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count)
    }

    /// Returns an index of x whose statistics stand at an index of the statistics.
    fn place_of(&self, statistic: &[usize], shape: &[usize]) -> Vec<usize> {
        let mut place = vec![0; shape.len()];
        match self.batches {
            1 => place[self.channel] = statistic[self.channel.min(statistic.len() - 1)],
            parts => {
                place[0] = statistic[0] * (shape[0] / parts);
                place[self.channel] = statistic[self.channel + 1];
            }
        }
        place
    }
}

impl Operation for BatchNormTraining {
    fn name(&self) -> &'static str {
        "batch_norm_training"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 3, "3")?;
        Ok(vec![one_float(self.name(), operands, &[0, 1, 2])?, DType::F32, DType::F32])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        self.check_shapes(operands)?;
        let shape = &operands[0].shape;
        let mut rule = Rule::default();
        let parts = rule.add_factor(self.batches, FactorKind::Parallel);
        let each = rule.add_factor(shape[0] / self.batches, FactorKind::Whole);
        let channel =
            DimRule::Factors(vec![rule.add_factor(shape[self.channel], FactorKind::Parallel)]);
        let lead = if self.batches == 1 { vec![each] } else { vec![parts, each] };
        let mut dims = vec![DimRule::Factors(lead)];
        for (dim, &extent) in shape.iter().enumerate().skip(1) {
            dims.push(match dim == self.channel {
                true => channel.clone(),
                false => DimRule::Factors(vec![rule.add_factor(extent, FactorKind::Whole)]),
            });
        }
        let seen = self.view_channels(shape);
        let statistic = (0..seen.shape.len())
            .filter(|dim| seen.keep_dims || !seen.axes.contains(dim))
            .map(|dim| match (seen.axes.contains(&dim), dim) {
                (true, _) => DimRule::Factors(Vec::new()),
                (false, 0) => DimRule::Factors(vec![parts]),
                (false, _) => channel.clone(),
            })
            .collect::<Vec<_>>();
        rule.operands = vec![dims.clone(), vec![channel.clone()], vec![channel]];
        rule.results = vec![dims, statistic.clone(), statistic];
        Ok(rule)
    }

    fn flops_per_point(&self) -> f64 {
        8.0
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let (x, shape) = (&operands[0], &operands[0].region.global);
        let mut last = (Vec::new(), (0.0, 0.0));
        let y = fill_shard(&results[0], |index| {
            // What has one mean often follows each other.
            let key = vec![index[0], index[self.channel]];
            if last.0 != key {
                last = (key, self.channel_statistics(x, index));
            }
            let (mean, variance) = last.1;
            let [scale, bias] =
                [1, 2].map(|operand| read_element(&operands[operand], &[index[self.channel]]));
            (read_element(x, index) - mean) / (variance + self.epsilon.0).sqrt() * scale + bias
        });
        let statistics = |index: &[usize]| self.channel_statistics(x, &self.place_of(index, shape));
        let mean = fill_shard(&results[1], |index| statistics(index).0);
        let variance = fill_shard(&results[2], |index| statistics(index).1);
        Ok(vec![y, mean, variance])
    }
}

impl BatchNormTraining {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    fn of(shape: &[usize], batches: usize, channel: usize) -> Vec<Array> {
        let floats = |shape: &[usize], data: &[f64]| (DType::F32, Array::new(shape, data.to_vec()));
        let operands = [
            floats(shape, &[1., 0., 3., 2., 10., 4., 14., 6.]),
            floats(&[2], &[2., 1.]),
            floats(&[2], &[5., 0.]),
        ];
        let op = BatchNormTraining { epsilon: Scalar(0.0), batches, channel };
        evaluate(Op::BatchNormTraining(op), &operands).expect("fits")
    }

    #[test]
    fn statistics_are_those_of_channels_in_parts_of_the_batch() {
        let results = of(&[4, 2], 2, 1);
        assert_eq!(results[0].data, [3., -1., 7., 1., 3., -1., 7., 1.]);
        assert_eq!(results[1], Array::new([2, 1, 2], vec![2., 1., 12., 5.]));
        assert_eq!(results[2], Array::new([2, 1, 2], vec![1., 1., 4., 1.]));
    }

    #[test]
    fn of_one_part_statistics_broadcast_as_they_are() {
        assert_eq!(of(&[4, 2], 1, 1)[1], Array::new([2], vec![7., 3.]));
        assert_eq!(of(&[2, 1, 2, 2], 1, 3)[1], Array::new([2], vec![7., 3.]));
        assert_eq!(of(&[2, 2, 2], 1, 1)[1], Array::new([1, 2, 1], vec![3.75, 6.25]));
    }
}
