//! Attention without the matrix of scores: softmax(scale q k^T) v for heads that share keys and values in groups.
//!
//! Kernels go over blocks of keys with a running maximum and sum (Milakov and Gimelshein, arXiv 1805.02867). For the gradient
//! they compute the scores again (FlashAttention; Dao et al., arXiv 2205.14135). So no tensor has the extent queries x keys.
//!
//! *Splits.* The forward pass keeps keys whole, because its maximum and sum run over all of them. Batch, queries and heads may be
//! split. The gradient knows the log-sum-exp, so there keys may be split as well, and `dq` is then partial. Heads are two factors
//! on the side of queries, kv heads and the group that shares each, and one on the side of keys. So tensor parallelism first
//! splits kv heads, and then the heads of a group, with keys whole.
//!
//! *FLOPs.* The forward pass makes two products. The gradient makes five, because it computes the scores again; four would be the
//! model's own. A causal mask halves all of them. If ranks share queries under a causal mask, the last rank sees nearly all keys
//! and has nearly twice the mean FLOPs. The op counts that rank's FLOPs ([`Operation::most_flops`]). So the planner chooses
//! context parallelism where the batch and the heads of keys are fewer than the ranks.

use std::cell::RefCell;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::shards::{at, fill, no_gradient, one_float};
use crate::array::Array;
use crate::builder::Tensor;
use crate::op::{
    Arithmetic, AttentionShape, EvalContext, GradientNode, Op, OpError, Operand, Operation, Region,
    arity, dtypes, shapes,
};
use crate::rule::{DimRule, FactorKind, Rule};
use crate::sbp::ReduceKind;
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

/// (q [b, t, heads, d], k [b, s, kv, d], v [b, s, kv, d]) -> (o [b, t, heads, d], l [b, t, heads] of f32):
/// l = log(sum(exp(scale q k))) over the keys, o = sum(exp(scale q k - l) v).
///
/// Head h reads keys and values of head h / (heads / kv): `kv` divides `heads`. Batch, queries and heads may be split;
/// keys are whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Attention {
    /// Whether query i sees keys 0..=i alone; there are then as many keys as queries.
    pub causal: bool,
    /// Multiplies the scores, usually 1 / sqrt(d).
    pub scale: Scalar,
}

/// (q, k, v, o, l, do [, dl]) -> (dq, dk, dv), shaped as the operands of [`Attention`]. Keys may be split too: each rank
/// then adds its part to dq.
///
/// p = exp(scale q k - l), ds = p (do v - sum(do o) + dl); dq = scale ds k, dk = scale ds^T q, dv = p^T do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AttentionGrad {
    /// As in [`Attention`].
    pub causal: bool,
    /// As in [`Attention`].
    pub scale: Scalar,
}

/// FLOPs of one product for each batch element, head, query, key and element of a head: a causal mask halves them.
fn flops_of_product(causal: bool) -> f64 {
    if causal { 1.0 } else { 2.0 }
}

/// The FLOPs of the part with most to do, as a multiple of the mean: with a causal mask the last queries see the most keys, and the
/// first keys are seen by the most queries.
fn most_to_mean(causal: bool, whole: &Rule, part: &Rule) -> f64 {
    let [queries, keys] = [QUERIES, KEYS].map(|factor| part.factors[factor].size as f64);
    if !causal || queries * keys == 0.0 {
        return 1.0;
    }
    // Keys before the first query are all seen; of the others half of the pairs are.
    let masked = (queries + keys - whole.factors[KEYS].size as f64).max(0.0);
    2.0 - masked * masked / (queries * keys)
}

/// The sizes that attention's speed depends on: operands begin with queries and keys `[batch, time, heads, width of a head]`.
fn arithmetic(operands: &[&TensorType], causal: bool, backward: bool) -> Arithmetic {
    let extent = |operand: usize, dim: usize| {
        operands.get(operand).and_then(|ty| ty.shape.get(dim)).copied().unwrap_or(1)
    };
    let keys = extent(1, 1) as f64 * if causal { 0.5 } else { 1.0 };
    Arithmetic::Attention(AttentionShape { width: extent(0, 3), keys, backward })
}

impl Operation for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        arity(self.name(), operands, 3, "3")?;
        Ok(vec![one_float(self.name(), operands, &[0, 1, 2])?, DType::F32])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let Space { mut rule, query, key, row } = space(self.name(), operands, self.causal)?;
        for factor in [KEYS, WIDTH] {
            rule.factors[factor].kind = FactorKind::Whole;
        }
        rule.operands = vec![query.clone(), key.clone(), key];
        rule.results = vec![query, row];
        Ok(rule)
    }

    /// Two products: scores and the sum of values.
    fn flops_per_point(&self) -> f64 {
        2.0 * flops_of_product(self.causal)
    }

    fn most_flops(&self, whole: &Rule, part: &Rule) -> f64 {
        self.flops(part) * most_to_mean(self.causal, whole, part)
    }

    fn multiplies_matrices(&self) -> bool {
        true
    }

    fn arithmetic(&self, operands: &[&TensorType]) -> Arithmetic {
        arithmetic(operands, self.causal, false)
    }

    fn gradient(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let ([q, k, v], [o, l]) = (node.operands, node.results) else { return Vec::new() };
        let zero = || o.full_like(0.0);
        let of_o = node.gradients[0].clone().unwrap_or_else(zero);
        let mut operands = vec![q, k, v, o, l, &of_o];
        operands.extend(&node.gradients[1]);
        let (causal, scale) = (self.causal, self.scale);
        let op = Op::AttentionGrad(AttentionGrad { causal, scale });
        let gradients = o.builder().apply_all(op, &operands);
        gradients.into_iter().map(Some).collect()
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let [q, k, v] = [&operands[0], &operands[1], &operands[2]];
        let scores = Scores { q, k, causal: self.causal, scale: self.scale.0 };
        let all = |row: &[usize]| -> Vec<f64> {
            (0..k.region.global[1]).map(|key| scores.at(row, key)).collect()
        };
        // The elements of a row follow each other.
        let mut last = (Vec::new(), Vec::new());
        let output = fill(&results[0], |index| {
            let row = &index[..3];
            if last.0 != row {
                last = (row.to_vec(), all(row));
            }
            let l = log_sum_exp(&last.1);
            let value = |key| at(v, &[row[0], key, scores.shared_head(row[2]), index[3]]);
            let seen = last.1.iter().enumerate().filter(|(_, score)| **score > f64::NEG_INFINITY);
            seen.map(|(key, score)| (score - l).exp() * value(key)).sum()
        });
        let l = fill(&results[1], |row| log_sum_exp(&all(row)));
        Ok(vec![output, l])
    }
}

impl Operation for AttentionGrad {
    fn name(&self) -> &'static str {
        "attention_grad"
    }

    fn dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        if operands.len() != 7 {
            arity(self.name(), operands, 6, "6, or 7 with the gradient of the log-sum-exp")?;
        }
        if operands.iter().enumerate().any(|(i, ty)| [4, 6].contains(&i) && ty.dtype != DType::F32)
        {
            return Err(dtypes(self.name(), operands, "the log-sum-exp and its gradient are f32"));
        }
        Ok(vec![one_float(self.name(), operands, &[0, 1, 2, 3, 5])?; 3])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let Space { mut rule, query, key, row } = space(self.name(), operands, self.causal)?;
        for factor in [QUERIES, GROUP, KEYS] {
            rule.factors[factor].kind = FactorKind::Reduction(ReduceKind::Sum);
        }
        rule.factors[WIDTH].kind = FactorKind::Whole;
        let expected = [&query, &key, &key, &query, &row, &query, &row];
        for (index, (operand, dims)) in operands.iter().zip(expected).enumerate() {
            let shape: Vec<usize> = dims.iter().map(|dim| rule.extent(dim)).collect();
            if operand.shape != shape {
                let reason = format!("operand {index} must be {shape:?}");
                return Err(shapes(self.name(), operands, reason));
            }
        }
        rule.linear = vec![(5..operands.len()).collect()];
        rule.operands = expected.into_iter().take(operands.len()).cloned().collect();
        rule.results = vec![query, key.clone(), key];
        Ok(rule)
    }

    /// Five products: the scores again, and the gradients of weights, queries, keys and values.
    fn flops_per_point(&self) -> f64 {
        5.0 * flops_of_product(self.causal)
    }

    fn most_flops(&self, whole: &Rule, part: &Rule) -> f64 {
        self.flops(part) * most_to_mean(self.causal, whole, part)
    }

    /// Of the five products the first: the scores.
    fn repeated_share(&self) -> f64 {
        0.2
    }

    fn multiplies_matrices(&self) -> bool {
        true
    }

    fn arithmetic(&self, operands: &[&TensorType]) -> Arithmetic {
        arithmetic(operands, self.causal, true)
    }

    fn gradient(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        no_gradient(self.name(), node)
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let [q, k] = [&operands[0], &operands[1]];
        let scores = Scores { q, k, causal: self.causal, scale: self.scale.0 };
        let terms = Terms { scores, operands, known: RefCell::default() };
        let (queries, keys) = (range(q, 1), range(k, 1));
        let dq = fill(&results[0], |index| {
            let row = &index[..3];
            let term = |key| {
                let shared = scores.shared_head(row[2]);
                terms.weight_and_gradient(row, key).1 * at(k, &[row[0], key, shared, index[3]])
            };
            self.scale.0 * keys.clone().map(term).sum::<f64>()
        });
        // Of a key or value: the sum over the rows that see it of `factor` times an element of `rows`.
        let over_rows = |index: &[usize], rows: &Operand<'_>, factor: fn((f64, f64)) -> f64| {
            let reads = |head: &usize| scores.shared_head(*head) == index[2];
            let heads: Vec<usize> = range(q, 2).filter(reads).collect();
            let none = q.region.rect.extent.contains(&0);
            assert!(none || !heads.is_empty(), "the rule gives a rank heads that read its keys");
            let of = |query: usize, head: usize| {
                let row = [index[0], query, head];
                let element = at(rows, &[index[0], query, head, index[3]]);
                factor(terms.weight_and_gradient(&row, index[1])) * element
            };
            queries
                .clone()
                .flat_map(|query| heads.iter().map(move |&h| (query, h)))
                .map(|(query, head)| of(query, head))
                .sum::<f64>()
        };
        let dk =
            fill(&results[1], |index| self.scale.0 * over_rows(index, q, |(_, of_score)| of_score));
        let dv = fill(&results[2], |index| over_rows(index, &operands[5], |(weight, _)| weight));
        Ok(vec![dq, dk, dv])
    }
}

/// The range of a dim that an operand's shard covers.
fn range(operand: &Operand<'_>, dim: usize) -> std::ops::Range<usize> {
    let rect = &operand.region.rect;
    rect.origin[dim]..rect.origin[dim] + rect.extent[dim]
}

/// The terms that a query and a key add to the gradients.
struct Terms<'a> {
    scores: Scores<'a>,
    /// q, k, v, o, l, do and perhaps dl.
    operands: &'a [Operand<'a>],
    known: RefCell<HashMap<[usize; 4], (f64, f64)>>,
}

impl Terms<'_> {
    /// Of a query [b, t, head] and a key: p, and ds before it is scaled.
    fn weight_and_gradient(&self, row: &[usize], key: usize) -> (f64, f64) {
        let place = [row[0], row[1], row[2], key];
        if let Some(&known) = self.known.borrow().get(&place) {
            return known;
        }
        let weight = (self.scores.at(row, key) - at(&self.operands[4], row)).exp();
        let other = [row[0], key, self.scores.shared_head(row[2])];
        let gradient = self.dot(5, row, 2, &other) - self.dot(5, row, 3, row);
        let of_l = self.operands.get(6).map_or(0.0, |of_l| at(of_l, row));
        let found = (weight, weight * (gradient + of_l));
        self.known.borrow_mut().insert(place, found);
        found
    }

    /// The product of the last dims of two operands.
    fn dot(&self, a: usize, at_a: &[usize], b: usize, at_b: &[usize]) -> f64 {
        let [a, b] = [&self.operands[a], &self.operands[b]];
        (0..a.region.global[3])
            .map(|c| at(a, &[at_a, &[c]].concat()) * at(b, &[at_b, &[c]].concat()))
            .sum()
    }
}

/// log(sum(exp(x))); that of nothing is -inf.
fn log_sum_exp(x: &[f64]) -> f64 {
    let greatest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if greatest == f64::NEG_INFINITY {
        return greatest;
    }
    greatest + x.iter().map(|x| (x - greatest).exp()).sum::<f64>().ln()
}

/// The scores, element by element.
#[derive(Clone, Copy)]
struct Scores<'a> {
    q: &'a Operand<'a>,
    k: &'a Operand<'a>,
    causal: bool,
    scale: f64,
}

impl Scores<'_> {
    /// The head of keys and values that a head reads.
    fn shared_head(&self, head: usize) -> usize {
        head / (self.q.region.global[2] / self.k.region.global[2])
    }

    /// Of a query [b, t, head] and a key; -inf where the query does not see it.
    fn at(&self, row: &[usize], key: usize) -> f64 {
        if self.causal && key > row[1] {
            return f64::NEG_INFINITY;
        }
        let head = self.shared_head(row[2]);
        let product =
            |c| at(self.q, &[row[0], row[1], row[2], c]) * at(self.k, &[row[0], key, head, c]);
        self.scale * (0..self.q.region.global[3]).map(product).sum::<f64>()
    }
}

const QUERIES: usize = 1;
const GROUP: usize = 3;
const KEYS: usize = 4;
const WIDTH: usize = 5;

/// The iteration space, every factor parallel, and the dims of queries, of keys and of one number for each query.
struct Space {
    rule: Rule,
    query: Vec<DimRule>,
    key: Vec<DimRule>,
    row: Vec<DimRule>,
}

fn space(op: &'static str, operands: &[&TensorType], causal: bool) -> Result<Space, OpError> {
    let fail = |reason: String| Err(shapes(op, operands, reason));
    let ([batch, queries, heads, width], [key_batch, keys, shared, key_width]) =
        (&operands[0].shape[..], &operands[1].shape[..])
    else {
        return fail("queries and keys need four dims: batch, time, heads, width of a head".into());
    };
    if operands[1].shape != operands[2].shape {
        return fail("keys and values must have one shape".into());
    }
    if (batch, width) != (key_batch, key_width) {
        return fail(
            "queries and keys must have the same batch and the same width of a head".into(),
        );
    }
    if *shared == 0 || !heads.is_multiple_of(*shared) {
        return fail(format!("{shared} heads of keys do not divide {heads} heads of queries"));
    }
    if causal && queries != keys {
        return fail(format!(
            "a causal mask needs as many keys as queries, not {keys} and {queries}"
        ));
    }
    let mut rule = Rule::default();
    let extents = [*batch, *queries, *shared, heads / shared, *keys, *width];
    let [b, t, kv, group, s, d] = extents.map(|size| rule.factor(size, FactorKind::Parallel));
    let dims = |dims: &[&[usize]]| dims.iter().map(|f| DimRule::Factors(f.to_vec())).collect();
    let query = dims(&[&[b], &[t], &[kv, group], &[d]]);
    let row = dims(&[&[b], &[t], &[kv, group]]);
    let key = dims(&[&[b], &[s], &[kv], &[d]]);
    Ok(Space { rule, query, key, row })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::shards::tests::evaluate;

    fn op(causal: bool) -> Op {
        Op::Attention(Attention { causal, scale: Scalar(1.0) })
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
        let types = op(true).infer(&[&q, &k, &k]).expect("fits");
        assert_eq!(types[0], q);
        assert_eq!(types[1], TensorType::new(DType::F32, [2, 1024, 8]));
        let flops = |op: Op, operands: &[&TensorType]| {
            let rule = op.operation().rule(operands).expect("fits");
            rule.points() * op.operation().flops_per_point()
        };
        let products = 2.0 * 2.0 * 8.0 * 1024.0 * 1024.0 * 64.0;
        assert_eq!(flops(op(false), &[&q, &k, &k]), 2.0 * products);
        assert_eq!(flops(op(true), &[&q, &k, &k]), products);
        let gradient = Op::AttentionGrad(AttentionGrad { causal: true, scale: Scalar(1.0) });
        assert_eq!(flops(gradient, &[&q, &k, &k, &q, &types[1], &q]), 2.5 * products);
    }

    /// The pairs that each part sees, counted one by one.
    #[test]
    fn of_a_causal_mask_the_part_with_most_to_do_is_counted() {
        let time = 24;
        let q = TensorType::new(DType::F32, [1, time, 1, 1]);
        let l = TensorType::new(DType::F32, [1, time, 1]);
        let gradient = Op::AttentionGrad(AttentionGrad { causal: true, scale: Scalar(1.0) });
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
        let plain = Op::AttentionGrad(AttentionGrad { causal: false, scale: Scalar(1.0) });
        let whole = plain.operation().rule(&[&q, &q, &q, &q, &l, &q]).expect("fits");
        let mut part = whole.clone();
        part.factors[QUERIES].size = time / 4;
        let [most, all] = [&part, &whole].map(|part| plain.operation().most_flops(&whole, part));
        assert_eq!(most, all / 4.0);
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let ty = |shape: [usize; 4]| TensorType::new(DType::F32, shape);
        let reason = |q, k| op(true).infer(&[&q, &k, &k]).expect_err("does not fit").to_string();
        let error = reason(ty([1, 4, 6, 8]), ty([1, 4, 4, 8]));
        assert!(error.ends_with("4 heads of keys do not divide 6 heads of queries"), "{error}");
        let error = reason(ty([1, 4, 4, 8]), ty([1, 5, 4, 8]));
        assert!(error.ends_with("as many keys as queries, not 5 and 4"), "{error}");
    }
}
