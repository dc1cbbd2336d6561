//! Batch normalization in parts, and the update that its statistics make to running ones.
//!
//! torch takes in statistics with every forward pass: r' = d r + (1 - d) s. Here d is the share that stays, and the variance is
//! the unbiased one. A step of M microbatches is M forward passes, so r' = d^M r + (1 - d) sum_i d^(M - 1 - i) s_i. This is one
//! weighted sum over the first dim of the statistics `[M, ..]`. Microbatches cut that dim, so the sum is accumulated like a
//! gradient.
//!
//! A layer that is applied several times takes in its statistics in that order within each pass.

use std::collections::{BTreeMap, BTreeSet};

use super::NodeDecomposer;
use crate::graph::{Graph, Node};
use crate::ids::{NodeId, ValueId};
use crate::op::{Op, OpError};
use crate::ops::{
    BatchNorm, BatchNormTraining, BinaryFunction, Blend, ChannelView, Constant, Reduce,
    ReduceFunction, UnaryFunction,
};
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

/// The statistics that a batch normalization in training has found: those of [`BatchNormTraining`].
pub(super) struct BatchStatistics {
    /// The number of elements that they are taken over.
    count: usize,
    mean: ValueId,
    variance: ValueId,
}

/// Running statistics of a graph.
pub(super) struct RunningStatistics {
    /// The number of parts of the batch that have statistics of their own; 0 where the statistics are given.
    batches: usize,
    /// Normalizations by statistics that are given in training, too.
    kept: BTreeSet<NodeId>,
    /// The uses of each variable's statistics, in the order of the graph.
    uses: BTreeMap<ValueId, Vec<StatisticUse>>,
}

/// A normalization that takes part in a running statistic.
struct StatisticUse {
    node: NodeId,
    /// The share that stays.
    decay: f64,
    /// The statistic that it takes in, `[c]`, and its factor, once both are known.
    found: Option<(ValueId, f64)>,
}

/// Operands of a batch normalization that are running statistics.
const STATISTICS: [usize; 2] = [3, 4];

impl RunningStatistics {
    /// Finds the running statistics of the normalizations that read variables, of a batch in so many parts; 0 in inference, where nothing
    /// runs. Nodes that are kept are as in inference.
    pub(super) fn from_graph(
        graph: &Graph,
        batches: usize,
        is_kept: impl Fn(&Node) -> bool,
    ) -> Self {
        let mut uses: BTreeMap<ValueId, Vec<StatisticUse>> = BTreeMap::new();
        let mut kept = BTreeSet::new();
        for (node, parts) in graph.iter() {
            let Op::BatchNorm(op) = &parts.op else { continue };
            if is_kept(parts) {
                kept.insert(node);
                continue;
            }
            let variables = STATISTICS.map(|operand| parts.operands[operand]);
            let runs = |value: &ValueId| matches!(graph.producer(*value).op, Op::Variable(_));
            for variable in variables.into_iter().filter(|v| batches > 0 && runs(v)) {
                let of = StatisticUse { node, decay: op.momentum.0, found: None };
                uses.entry(variable).or_default().push(of);
            }
        }
        Self { batches, kept, uses }
    }

    /// Returns the number of parts of the batch that have statistics of their own in a normalization; 0 where the statistics are given.
    pub(super) fn batches_of_node(&self, node: NodeId) -> usize {
        if self.kept.contains(&node) { 0 } else { self.batches }
    }

    /// Takes in the statistics of a node that has just been taken apart; when a variable has all of its own it is updated.
    /// `operands` are those of the new graph.
    pub(super) fn take_statistics(
        &mut self,
        id: NodeId,
        parts: &mut NodeDecomposer<'_>,
        operands: &[ValueId],
    ) -> Result<(), OpError> {
        let Some(found) = parts.statistics.take() else { return Ok(()) };
        let (BatchStatistics { count, mean, variance }, batches) = (found, self.batches);
        // One element has no unbiased variance; the biased one, 0, is taken.
        let unbiased = if count > 1 { count as f64 / (count - 1) as f64 } else { 1.0 };
        for (operand, (statistic, factor)) in
            STATISTICS.into_iter().zip([(mean, 1.0), (variance, unbiased)])
        {
            let Some(uses) = self.uses.get_mut(&parts.node.operands[operand]) else { continue };
            let decay = uses.iter().map(|of| of.decay).product();
            let sum = parts.decayed_sum(statistic, batches, decay)?;
            if let Some(own) = uses.iter_mut().find(|of| of.node == id && of.found.is_none()) {
                own.found = Some((sum, factor));
            }
            if uses.iter().all(|of| of.found.is_some()) {
                parts.update_variable(operands[operand], uses, batches)?;
            }
        }
        Ok(())
    }
}

impl NodeDecomposer<'_> {
    /// The op in training, whose statistics running ones take in.
    pub(super) fn batch_norm_in_training(
        &mut self,
        op: &BatchNorm,
        batches: usize,
        operands: &[ValueId],
    ) -> Result<Vec<ValueId>, OpError> {
        let op = BatchNormTraining { epsilon: op.epsilon, batches, channel: 1 };
        let shape = self.graph.value(operands[0]).ty.shape.clone();
        let results = self.push(Op::BatchNormTraining(op), &operands[..3])?;
        let (count, mean, variance) =
            (op.view_channels(&shape).count_elements(), results[1], results[2]);
        self.statistics = Some(BatchStatistics { count, mean, variance });
        Ok(results[..1].to_vec())
    }

    /// x s + (bias - m s), where s = scale / sqrt(v + epsilon), of mean m and variance v that are given, computed in f32: an element
    /// takes one product and one sum.
    pub(super) fn batch_norm(
        &mut self,
        op: &BatchNorm,
        operands: &[ValueId],
    ) -> Result<ValueId, OpError> {
        let &[x, scale, bias, mean, variance] = operands else { return Ok(operands[0]) };
        let TensorType { dtype, shape } = self.graph.value(x).ty.clone();
        let x = self.cast(x, DType::F32)?;
        let wide = [&shape[1..2], &vec![1; shape.len() - 2]].concat();
        let mut each = [scale, bias, mean, variance];
        for value in &mut each {
            *value = self.cast(*value, DType::F32)?;
        }
        let [scale, bias, mean, variance] = each;
        let r = self.inverse_deviation(variance, op.epsilon)?;
        let slope = self.push_binary(BinaryFunction::Mul, r, scale)?;
        let moved = self.push_binary(BinaryFunction::Mul, mean, slope)?;
        let offset = self.push_binary(BinaryFunction::Sub, bias, moved)?;
        let (slope, offset) = (self.reshape(slope, wide.clone())?, self.reshape(offset, wide)?);
        let scaled = self.push_binary(BinaryFunction::Mul, x, slope)?;
        let y = self.push_binary(BinaryFunction::Add, scaled, offset)?;
        self.cast(y, dtype)
    }

    /// (x - m) (r scale) + bias with mean m and variance of the batch, of each part of it by itself; all of it is computed in f32.
    pub(super) fn batch_norm_training(
        &mut self,
        op: &BatchNormTraining,
        operands: &[ValueId],
    ) -> Result<Vec<ValueId>, OpError> {
        let &[x, scale, bias] = operands else { return Ok(operands.to_vec()) };
        let TensorType { dtype, shape } = self.graph.value(x).ty.clone();
        let ChannelView { shape: seen, axes, keep_dims, wide } = op.view_channels(&shape);
        let mean_of = |of: &mut Self, x| {
            let function = ReduceFunction::Mean;
            of.push_one(Op::Reduce(Reduce { function, axes: axes.clone(), keep_dims }), &[x])
        };
        let x = self.cast(x, DType::F32)?;
        let x = self.reshape(x, seen)?;
        let mean = mean_of(self, x)?;
        let centered = self.push_binary(BinaryFunction::Sub, x, mean)?;
        let squares = self.push_binary(BinaryFunction::Mul, centered, centered)?;
        let variance = mean_of(self, squares)?;
        let r = self.inverse_deviation(variance, op.epsilon)?;
        let (scale, bias) = (self.widen_channels(scale, &wide)?, self.widen_channels(bias, &wide)?);
        let slope = self.push_binary(BinaryFunction::Mul, r, scale)?;
        let scaled = self.push_binary(BinaryFunction::Mul, centered, slope)?;
        let y = self.push_binary(BinaryFunction::Add, scaled, bias)?;
        let y = self.reshape(y, shape)?;
        Ok(vec![self.cast(y, dtype)?, mean, variance])
    }

    /// 1 / sqrt(variance + epsilon).
    fn inverse_deviation(
        &mut self,
        variance: ValueId,
        epsilon: Scalar,
    ) -> Result<ValueId, OpError> {
        let offset = self.push_unary(UnaryFunction::Offset(epsilon), variance)?;
        self.push_unary(UnaryFunction::Rsqrt, offset)
    }

    /// Values of channels as f32, in a shape that broadcasts to an image.
    fn widen_channels(&mut self, value: ValueId, shape: &[usize]) -> Result<ValueId, OpError> {
        let own = self.cast(value, DType::F32)?;
        self.reshape(own, shape.to_vec())
    }

    /// Sums statistics `[parts, 1, c, 1, ..]` over parts, `[c]`, each times decay^(parts after it). A single part is its own sum.
    fn decayed_sum(
        &mut self,
        statistic: ValueId,
        parts: usize,
        decay: f64,
    ) -> Result<ValueId, OpError> {
        let shape = self.graph.value(statistic).ty.shape.clone();
        if parts == 1 {
            return self.reshape(statistic, vec![shape.iter().product()]);
        }
        let weight = |part| Scalar(decay.powi((parts - 1 - part) as i32));
        let data = (0..parts).map(weight).collect();
        let ones = vec![1; shape.len() - 1];
        let ty = TensorType::new(DType::F32, [vec![parts], ones].concat());
        let weights = self.push_one(Op::Constant(Constant { ty, data }), &[])?;
        let weighted = self.push_binary(BinaryFunction::Mul, statistic, weights)?;
        let axes = (0..shape.len()).filter(|&axis| axis != 2).collect();
        let sum = Reduce { function: ReduceFunction::Sum, axes, keep_dims: false };
        self.push_one(Op::Reduce(sum), &[weighted])
    }

    /// Lets a variable take in what all its uses have found.
    fn update_variable(
        &mut self,
        variable: ValueId,
        uses: &[StatisticUse],
        parts: usize,
    ) -> Result<(), OpError> {
        let pass: f64 = uses.iter().map(|of| of.decay).product();
        let rate = |at: usize, of: &StatisticUse, factor: f64| {
            let later: f64 = uses[at + 1..].iter().map(|of| of.decay).product();
            (1.0 - of.decay) * later * factor
        };
        let found = uses
            .iter()
            .enumerate()
            .filter_map(|(at, of)| of.found.map(|(value, factor)| (value, rate(at, of, factor))));
        let found: Vec<(ValueId, f64)> = found.collect();
        let (taken, rate) = match found[..] {
            [only] => only,
            _ => (self.weighted_sum(&found)?, 1.0),
        };
        let blend = Blend::with_decay(pass.powi(parts as i32), rate);
        self.push_one(Op::Blend(blend), &[variable, taken])?;
        Ok(())
    }

    fn weighted_sum(&mut self, terms: &[(ValueId, f64)]) -> Result<ValueId, OpError> {
        let mut sum = None;
        for &(value, factor) in terms {
            let scaled = self.push_unary(UnaryFunction::Scale(Scalar(factor)), value)?;
            sum = Some(match sum {
                Some(sum) => self.push_binary(BinaryFunction::Add, sum, scaled)?,
                None => scaled,
            });
        }
        Ok(sum.expect("a running statistic has a use"))
    }
}
