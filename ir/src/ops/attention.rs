//! Attention without the matrix of scores: softmax(scale q k^T) v for heads that share keys and values in groups.
//!
//! Kernels go over blocks of keys with a running maximum and sum (Milakov and Gimelshein, arXiv 1805.02867). For the gradient
//! they compute the scores again (FlashAttention; Dao et al., arXiv 2205.14135). So no tensor has the extent queries x keys, but for a
//! bias that has it.
//!
//! *Scores.* A product of a query and a key is scaled, bounded by the soft cap, and the bias is added. A finite sum below [`FLOOR`]
//! counts as that: the lowest number of a type, by which models hide keys, leaves a log-sum-exp of no use to the gradient where a row
//! has no other keys. Softmax makes such a score exactly 0 beside any other. Of a query that sees no key, by a mask or because its
//! biases are -inf, the result and its gradients are 0 and the log-sum-exp is -inf.
//!
//! *Splits.* The forward pass keeps keys whole, because its maximum and sum run over all of them. Batch, queries and heads may be
//! split. The gradient knows the log-sum-exp, so there keys may be split as well, and `dq` is then partial. Heads are two factors
//! on the side of queries, kv heads and the group that shares each, and one on the side of keys. So tensor parallelism first
//! splits kv heads, and then the heads of a group, with keys whole. A bias is split where it has the dim; its gradient is partial where it
//! has not.
//!
//! *Dropout.* Where the op drops weights, those of softmax are dropped: 0 with a probability, else larger, as [`DropoutOp`] has it. The place that tells
//! a weight's random number is its own in the whole `[batch, heads, queries, keys]`, so softmax, dropout and a product drop the same. The
//! log-sum-exp is that of all scores.
//!
//! *FLOPs.* The forward pass makes two products. The gradient makes five, because it computes the scores again; four would be the
//! model's own. A causal mask halves all of them, and a window leaves its share. If ranks share queries under a causal mask, the last rank
//! sees nearly all keys and has nearly twice the mean FLOPs. The op counts that rank's FLOPs ([`Operation::most_flops`]). So the planner
//! chooses context parallelism where the batch and the heads of keys are fewer than the ranks.

mod scores;
mod space;

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::dropout::DropoutOp;
use super::shards::{fill_shard, one_float, read_element};
use super::zigzag::{find_position, has_pairs};
use crate::array::Array;
use crate::operation::{
    Arithmetic, AttentionShape, EvalContext, OpError, Operand, Operation, Region, check_arity,
    dtype_error, shape_error,
};
use crate::rule::{DimRule, FactorKind, Rule};
use crate::sbp::ReduceKind;
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

use scores::{AttentionScores, GradientTerm, GradientTerms, log_sum_exp, shard_range};
use space::{
    AttentionRule, BATCH, GROUP, KEYS, QUERIES, SHARED, WIDTH, build_rule, most_to_mean, seen_share,
};

/// The least score that a finite bias leaves.
pub const FLOOR: f64 = -3e4;

/// (q [b, t, heads, d], k [b, s, kv, d], v [b, s, kv, d] [, bias [b|1, heads|1, t|1, s|1]]) -> (o [b, t, heads, d], l [b, t, heads] of
/// f32): l = log(sum(exp(score))) over the keys, o = sum(exp(score - l) v), score = scale q k, or cap tanh(scale q k / cap), plus the
/// bias, which is of the queries' element type or f32. A dropout stands between the weights exp(score - l) and v.
///
/// Head h reads keys and values of head h / (heads / kv): `kv` divides `heads`. Batch, queries and heads may be split;
/// keys are whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Attention {
    /// Whether query i sees keys 0..=i alone; there are then as many keys as queries.
    pub causal: bool,
    /// The factor of the scores, usually 1 / sqrt(d).
    pub scale: Scalar,
    /// The number of keys that each query sees at most, the last ones up to its own place; with a causal mask alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<NonZeroU32>,
    /// The bound of the scaled scores, by cap tanh(score / cap), before a bias is added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft_cap: Option<Scalar>,
    /// The dropout of the weights, whose whole is `[batch, heads, queries, keys]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropout: Option<DropoutOp>,
    /// The pairs of chunks in whose order queries and keys lie, where they are in the order of [`Zigzag`](super::Zigzag); with a
    /// causal mask, without dropout and bias.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zigzag: Option<NonZeroU32>,
}

impl Attention {
    /// Makes an op without window, soft cap and dropout, of a sequence in its own order.
    pub fn new(causal: bool, scale: Scalar) -> Self {
        Self { causal, scale, window: None, soft_cap: None, dropout: None, zigzag: None }
    }

    /// Returns the dropout of the weights, if any of them can be dropped.
    pub fn weight_dropout(&self) -> Option<DropoutOp> {
        self.dropout.filter(DropoutOp::can_drop)
    }

    /// Returns the place in the sequence of a query or key, of `extent`.
    pub fn position(&self, index: usize, extent: usize) -> usize {
        self.zigzag.map_or(index, |pairs| find_position(index, extent, pairs))
    }

    /// Returns whether a query sees a key, by mask and window: by their places in the sequence.
    pub fn sees(&self, query: usize, key: usize) -> bool {
        let near = self.window.is_none_or(|window| query < key + window.get() as usize);
        !self.causal || key <= query && near
    }

    /// Checks that the payload is possible: a window needs a causal mask, the soft cap is above 0, and weights are dropped by a
    /// probability.
    fn check_payload(&self, op: &'static str, operands: &[&TensorType]) -> Result<(), OpError> {
        if self.window.is_some() && !self.causal {
            return Err(shape_error(op, operands, "a window needs a causal mask"));
        }
        if self.soft_cap.is_some_and(|cap| cap.0.is_nan() || cap.0 <= 0.0) {
            return Err(shape_error(op, operands, "the soft cap must be above 0"));
        }
        self.dropout.map_or(Ok(()), |dropout| dropout.check_probability(op, operands))
    }

    /// Checks that an order of pairs is that of a causal mask, and that there are such pairs. Biases, and weights that are dropped, have their places
    /// in the sequence's own order.
    fn check_order(
        &self,
        op: &'static str,
        operands: &[&TensorType],
        has_bias: bool,
    ) -> Result<(), OpError> {
        let Some(pairs) = self.zigzag else { return Ok(()) };
        let queries = operands[0].shape.get(1).copied().unwrap_or(0);
        if !self.causal || self.dropout.is_some() || has_bias {
            let reason = "an order of pairs needs a causal mask, no dropout and no bias";
            return Err(shape_error(op, operands, reason));
        }
        if !has_pairs(queries, pairs) {
            let reason = format!("{queries} queries are not {pairs} pairs of equal chunks");
            return Err(shape_error(op, operands, reason));
        }
        Ok(())
    }
}

/// (q, k, v, o, l, do [, dl] [, bias]) -> (dq, dk, dv [, dbias]), shaped as the operands of [`Attention`]. Keys may be split too: each rank
/// then adds its part to dq.
///
/// p = exp(score - l), ds = p (do v - sum(do o) + dl), which is the gradient of the bias; dq = scale ds' k, dk = scale ds'^T q,
/// dv = p^T do, where ds' is ds times the slope of the soft cap. A dropout applies to do v in ds and to p in dv.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AttentionGrad {
    /// Whether query i sees keys 0..=i alone, as in [`Attention`].
    pub causal: bool,
    /// The factor of the scores, as in [`Attention`].
    pub scale: Scalar,
    /// The number of keys that each query sees at most, as in [`Attention`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<NonZeroU32>,
    /// The bound of the scaled scores, as in [`Attention`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft_cap: Option<Scalar>,
    /// The dropout of the weights, as in [`Attention`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropout: Option<DropoutOp>,
    /// The pairs of chunks in whose order queries and keys lie, as in [`Attention`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zigzag: Option<NonZeroU32>,
    /// The part of a bias, which is the last operand if there is one.
    #[serde(default, skip_serializing_if = "AttentionBias::is_none")]
    pub bias: AttentionBias,
}

/// The part of a bias in the gradient of attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionBias {
    /// No bias: it is not an operand.
    #[default]
    None,
    /// A bias that is added to the scores, and has no gradient.
    Added,
    /// A bias that is added to the scores and has all queries and keys; its gradient is the fourth result.
    Learned,
}

impl AttentionBias {
    /// Returns whether there is no bias.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

impl AttentionGrad {
    /// Makes the gradient of an attention op, with its parameters.
    pub fn from_attention(op: Attention, bias: AttentionBias) -> Self {
        let Attention { causal, scale, window, soft_cap, dropout, zigzag } = op;
        Self { causal, scale, window, soft_cap, dropout, zigzag, bias }
    }

    /// Makes an op without bias, window, soft cap and dropout.
    pub fn new(causal: bool, scale: Scalar) -> Self {
        Self::from_attention(Attention::new(causal, scale), AttentionBias::None)
    }

    /// Returns the attention op whose gradient it is.
    pub fn forward(&self) -> Attention {
        let Self { causal, scale, window, soft_cap, dropout, zigzag, bias: _ } = *self;
        Attention { causal, scale, window, soft_cap, dropout, zigzag }
    }

    /// Returns the places among the operands of the gradient of the log-sum-exp and of the bias, where they are there.
    pub fn optional_operands(&self, operands: usize) -> (Option<usize>, Option<usize>) {
        let bias = (!self.bias.is_none()).then(|| operands.saturating_sub(1));
        let last = bias.unwrap_or(operands);
        ((last > ROWS).then_some(ROWS), bias)
    }
}

/// The number of operands of the gradient before those that may be left out.
const ROWS: usize = 6;

/// Checks that a bias is of the queries' element type, or f32.
fn check_bias(op: &'static str, operands: &[&TensorType], bias: usize) -> Result<(), OpError> {
    if [operands[0].dtype, DType::F32].contains(&operands[bias].dtype) {
        return Ok(());
    }
    Err(dtype_error(op, operands, "a bias must be of the queries' element type, or f32"))
}

/// Returns the sizes that attention's speed depends on: operands begin with queries and keys `[batch, time, heads, width of a head]`.
fn attention_arithmetic(op: Attention, operands: &[&TensorType], backward: bool) -> Arithmetic {
    let extent = |operand: usize, dim: usize| {
        operands.get(operand).and_then(|ty| ty.shape.get(dim)).copied().unwrap_or(1)
    };
    let keys = extent(1, 1) as f64;
    let keys = keys * seen_share(op, keys);
    Arithmetic::Attention(AttentionShape { width: extent(0, 3), keys, backward })
}

/// Counts the FLOPs of `products` products for each pair of a query and a key that it sees.
fn attention_flops(op: Attention, products: f64, rule: &Rule) -> f64 {
    2.0 * products * rule.count_points() * seen_share(op, rule.factors[KEYS].size as f64)
}

impl Operation for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        if operands.len() == 4 {
            check_bias(self.name(), operands, 3)?;
        } else {
            check_arity(self.name(), operands, 3, "3, or 4 with a bias")?;
        }
        Ok(vec![one_float(self.name(), operands, &[0, 1, 2])?, DType::F32])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        self.check_payload(self.name(), operands)?;
        self.check_order(self.name(), operands, operands.len() > 3)?;
        let space = build_rule(self.name(), operands, self.causal)?;
        let bias = operands.get(3).map(|bias| space.bias_dims(self.name(), operands, bias));
        let AttentionRule { mut rule, query, key, row } = space;
        for factor in [KEYS, WIDTH] {
            rule.factors[factor].kind = FactorKind::Whole;
        }
        rule.operands = vec![query.clone(), key.clone(), key];
        rule.operands.extend(bias.transpose()?);
        rule.results = vec![query, row];
        Ok(rule)
    }

    /// Returns the FLOPs of two products: scores and the sum of values.
    fn flops(&self, rule: &Rule) -> f64 {
        attention_flops(*self, 2.0, rule)
    }

    fn most_flops(&self, whole: &Rule, part: &Rule) -> f64 {
        self.flops(part) * most_to_mean(*self, whole, part)
    }

    fn multiplies_matrices(&self) -> bool {
        true
    }

    fn arithmetic(&self, operands: &[&TensorType]) -> Arithmetic {
        attention_arithmetic(*self, operands, false)
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let [q, k, v] = [&operands[0], &operands[1], &operands[2]];
        let scores = AttentionScores { q, k, bias: operands.get(3), op: *self, cx };
        let all = |row: &[usize]| -> Vec<f64> {
            (0..k.region.global[1]).map(|key| scores.score_at(row, key)).collect()
        };
        // The elements of a row follow each other.
        let mut last = (Vec::new(), Vec::new());
        let output = fill_shard(&results[0], |index| {
            let row = &index[..3];
            if last.0 != row {
                last = (row.to_vec(), all(row));
            }
            let l = log_sum_exp(&last.1);
            let value = |key| read_element(v, &[row[0], key, scores.shared_head(row[2]), index[3]]);
            let seen = last.1.iter().enumerate().filter(|(_, score)| **score > f64::NEG_INFINITY);
            seen.map(|(key, score)| scores.kept_share(row, key) * (score - l).exp() * value(key))
                .sum()
        });
        let l = fill_shard(&results[1], |row| log_sum_exp(&all(row)));
        Ok(vec![output, l])
    }
}

impl Operation for AttentionGrad {
    fn name(&self) -> &'static str {
        "attention_grad"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        let least = ROWS + usize::from(!self.bias.is_none());
        if operands.len() != least + 1 {
            let expected = "6, one more with the gradient of the log-sum-exp, one more with a bias";
            check_arity(self.name(), operands, least, expected)?;
        }
        let (of_l, bias) = self.optional_operands(operands.len());
        if [Some(4), of_l].into_iter().flatten().any(|row| operands[row].dtype != DType::F32) {
            return Err(dtype_error(
                self.name(),
                operands,
                "the log-sum-exp and its gradient are f32",
            ));
        }
        let mut results = vec![one_float(self.name(), operands, &[0, 1, 2, 3, 5])?; 3];
        if let Some(bias) = bias {
            check_bias(self.name(), operands, bias)?;
            results.extend((self.bias == AttentionBias::Learned).then_some(operands[bias].dtype));
        }
        Ok(results)
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        self.forward().check_payload(self.name(), operands)?;
        self.forward().check_order(self.name(), operands, !self.bias.is_none())?;
        let space = build_rule(self.name(), operands, self.causal)?;
        let (of_l, bias) = self.optional_operands(operands.len());
        let bias =
            bias.map(|bias| space.bias_dims(self.name(), operands, operands[bias])).transpose()?;
        let AttentionRule { mut rule, query, key, row } = space;
        let learned = bias.as_ref().filter(|_| self.bias == AttentionBias::Learned);
        if learned.is_some_and(|dims| dims[2..].iter().any(|dim| dim.factors().is_empty())) {
            let reason = "a bias whose gradient is wanted must have all queries and keys";
            return Err(shape_error(self.name(), operands, reason));
        }
        let mut summed = vec![QUERIES, GROUP];
        match self.zigzag {
            None => summed.push(KEYS),
            // Keys of a part would be two runs of the sequence, and kernels know one.
            Some(_) => rule.factors[KEYS].kind = FactorKind::Whole,
        }
        let lacks = |factor: &usize| {
            learned.is_some_and(|dims| !dims.iter().any(|dim| dim.factors().contains(factor)))
        };
        summed.extend([BATCH, SHARED].into_iter().filter(lacks));
        for factor in summed {
            rule.factors[factor].kind = FactorKind::Reduction(ReduceKind::Sum);
        }
        rule.factors[WIDTH].kind = FactorKind::Whole;
        let mut expected = vec![&query, &key, &key, &query, &row, &query];
        expected.extend(of_l.map(|_| &row));
        self.check_shapes(operands, &rule, &expected)?;
        rule.linear = vec![[Some(5), of_l].into_iter().flatten().collect()];
        rule.operands = expected.into_iter().cloned().collect();
        rule.operands.extend(bias.clone());
        rule.results = vec![query, key.clone(), key];
        rule.results.extend(bias.filter(|_| self.bias == AttentionBias::Learned));
        Ok(rule)
    }

    /// Counts the FLOPs of five products: the scores again, and the gradients of weights, queries, keys and values.
    fn flops(&self, rule: &Rule) -> f64 {
        attention_flops(self.forward(), 5.0, rule)
    }

    fn most_flops(&self, whole: &Rule, part: &Rule) -> f64 {
        self.flops(part) * most_to_mean(self.forward(), whole, part)
    }

    /// Returns the share of the scores, the first of five products, which the op computes again.
    fn repeated_share(&self) -> f64 {
        0.2
    }

    fn multiplies_matrices(&self) -> bool {
        true
    }

    fn arithmetic(&self, operands: &[&TensorType]) -> Arithmetic {
        attention_arithmetic(self.forward(), operands, true)
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let [q, k] = [&operands[0], &operands[1]];
        let (of_l, bias) = self.optional_operands(operands.len());
        let [of_l, bias] = [of_l, bias].map(|place| place.map(|place| &operands[place]));
        let scores = AttentionScores { q, k, bias, op: self.forward(), cx };
        let terms = GradientTerms::new(scores, operands, of_l);
        let (queries, keys) = (shard_range(q, 1), shard_range(k, 1));
        let dq = fill_shard(&results[0], |index| {
            let row = &index[..3];
            let term = |key| {
                let shared = scores.shared_head(row[2]);
                terms.term_at(row, key).of_product
                    * read_element(k, &[row[0], key, shared, index[3]])
            };
            self.scale.0 * keys.clone().map(term).sum::<f64>()
        });
        // Of a key or value: the sum over the rows that see it of `factor` times an element of `rows`.
        let over_rows = |index: &[usize], rows: &Operand<'_>, factor: fn(GradientTerm) -> f64| {
            let reads = |head: &usize| scores.shared_head(*head) == index[2];
            let heads: Vec<usize> = shard_range(q, 2).filter(reads).collect();
            let none = q.region.rect.extent.contains(&0);
            assert!(none || !heads.is_empty(), "the rule gives a rank heads that read its keys");
            let of = |query: usize, head: usize| {
                let row = [index[0], query, head];
                let element = read_element(rows, &[index[0], query, head, index[3]]);
                factor(terms.term_at(&row, index[1])) * element
            };
            queries
                .clone()
                .flat_map(|query| heads.iter().map(move |&h| (query, h)))
                .map(|(query, head)| of(query, head))
                .sum::<f64>()
        };
        let dk = fill_shard(&results[1], |index| {
            self.scale.0 * over_rows(index, q, |term| term.of_product)
        });
        let dv = fill_shard(&results[2], |index| {
            over_rows(index, &operands[5], |term| term.kept_weight)
        });
        let of_bias = results.get(3).map(|result| {
            // All that is broadcast to is summed.
            let along = |dim: usize, of: usize, index: usize| match result.global[dim] {
                1 => shard_range(q, of),
                _ => index..index + 1,
            };
            fill_shard(result, |index| {
                let samples = along(0, 0, index[0]);
                let rows =
                    samples.flat_map(|b| along(1, 2, index[1]).map(move |h| [b, index[2], h]));
                rows.map(|row| terms.term_at(&row, index[3]).of_score).sum()
            })
        });
        Ok([dq, dk, dv].into_iter().chain(of_bias).collect())
    }
}

impl AttentionGrad {
    fn check_shapes(
        &self,
        operands: &[&TensorType],
        rule: &Rule,
        expected: &[&Vec<DimRule>],
    ) -> Result<(), OpError> {
        for (index, (operand, dims)) in operands.iter().zip(expected).enumerate() {
            let shape: Vec<usize> = dims.iter().map(|dim| rule.extent(dim)).collect();
            if operand.shape != shape {
                let reason = format!("operand {index} must be {shape:?}");
                return Err(shape_error(self.name(), operands, reason));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    fn op(causal: bool) -> Op {
        Op::Attention(Attention::new(causal, Scalar(1.0)))
    }

    /// Keys whose scores are logarithms: weights are fractions.
    #[test]
    fn a_query_averages_the_values_it_sees() {
        let q = (DType::F32, Array::new([1, 2, 2, 1], vec![0.0, 1.0, 1.0, 2.0]));
        let k = (DType::F32, Array::new([1, 2, 1, 1], vec![0.0, 2f64.ln()]));
        let v = (DType::F32, Array::new([1, 2, 1, 1], vec![3.0, 9.0]));
        let near = |found: &Array, expected: &[f64]| {
            let same = found.data.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12);
            assert!(same && found.data.len() == expected.len(), "{found:?} is not {expected:?}");
        };
        let full = evaluate(op(false), &[q.clone(), k.clone(), v.clone()]).expect("fits");
        near(&full[0], &[6.0, 7.0, 7.0, 7.8]);
        near(&full[1], &[2f64.ln(), 3f64.ln(), 3f64.ln(), 5f64.ln()]);
        let causal = evaluate(op(true), &[q, k, v]).expect("fits");
        near(&causal[0], &[3.0, 3.0, 7.0, 7.8]);
        near(&causal[1], &[0.0, 0.0, 3f64.ln(), 5f64.ln()]);
    }

    #[test]
    fn nothing_of_the_size_of_the_scores_is_counted_but_flops() {
        let q = TensorType::new(DType::BF16, [2, 1024, 8, 64]);
        let k = TensorType::new(DType::BF16, [2, 1024, 2, 64]);
        let types = op(true).infer_types(&[&q, &k, &k]).expect("fits");
        assert_eq!(types[0], q);
        assert_eq!(types[1], TensorType::new(DType::F32, [2, 1024, 8]));
        let flops = |op: Op, operands: &[&TensorType]| {
            let rule = op.operation().rule(operands).expect("fits");
            op.operation().flops(&rule)
        };
        let products = 2.0 * 2.0 * 8.0 * 1024.0 * 1024.0 * 64.0;
        assert_eq!(flops(op(false), &[&q, &k, &k]), 2.0 * products);
        assert_eq!(flops(op(true), &[&q, &k, &k]), products);
        let gradient = Op::AttentionGrad(AttentionGrad::new(true, Scalar(1.0)));
        assert_eq!(flops(gradient, &[&q, &k, &k, &q, &types[1], &q]), 2.5 * products);
    }

    /// The pairs that each part sees, counted one by one.
    #[test]
    fn of_a_causal_mask_the_part_with_most_to_do_is_counted() {
        let time = 24;
        let q = TensorType::new(DType::F32, [1, time, 1, 1]);
        let l = TensorType::new(DType::F32, [1, time, 1]);
        let gradient = Op::AttentionGrad(AttentionGrad::new(true, Scalar(1.0)));
        let whole = gradient.operation().rule(&[&q, &q, &q, &q, &l, &q]).expect("fits");
        let all = gradient.operation().flops(&whole);
        assert_eq!(gradient.operation().most_flops(&whole, &whole), all);
        for (of_queries, of_keys) in [(1, 4), (4, 1), (2, 2), (3, 2), (8, 1), (1, 24)] {
            let mut part = whole.clone();
            part.factors[QUERIES].size = time / of_queries;
            part.factors[KEYS].size = time / of_keys;
            // The last queries and the first keys; half of a pair on the diagonal.
            let seen = |query: usize, key: usize| match key.cmp(&query) {
                std::cmp::Ordering::Less => 1.0,
                std::cmp::Ordering::Equal => 0.5,
                std::cmp::Ordering::Greater => 0.0,
            };
            let queries = time - time / of_queries..time;
            let pairs = queries.flat_map(|q| (0..time / of_keys).map(move |k| seen(q, k)));
            let expected = all * pairs.sum::<f64>() / (time * time / 2) as f64;
            let found = gradient.operation().most_flops(&whole, &part);
            assert!((found / expected - 1.0).abs() < 1e-12, "{of_queries}, {of_keys}: {found}");
        }
        let plain = Op::AttentionGrad(AttentionGrad::new(false, Scalar(1.0)));
        let whole = plain.operation().rule(&[&q, &q, &q, &q, &l, &q]).expect("fits");
        let mut part = whole.clone();
        part.factors[QUERIES].size = time / 4;
        let [most, all] = [&part, &whole].map(|part| plain.operation().most_flops(&whole, part));
        assert_eq!(most, all / 4.0);
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let ty = |shape: [usize; 4]| TensorType::new(DType::F32, shape);
        let reason =
            |q, k| op(true).infer_types(&[&q, &k, &k]).expect_err("does not fit").to_string();
        let error = reason(ty([1, 4, 6, 8]), ty([1, 4, 4, 8]));
        assert!(error.ends_with("4 heads of keys do not divide 6 heads of queries"), "{error}");
        let error = reason(ty([1, 4, 4, 8]), ty([1, 5, 4, 8]));
        assert!(error.ends_with("as many keys as queries, not 5 and 4"), "{error}");
    }
}
