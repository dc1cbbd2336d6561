//! The iteration space of attention, and how much of it a mask leaves.

use std::num::NonZeroU32;

use super::Attention;
use crate::operation::{OpError, shape_error};
use crate::rule::{DimRule, FactorKind, Rule};
use crate::types::TensorType;

pub(super) const BATCH: usize = 0;
pub(super) const QUERIES: usize = 1;
pub(super) const SHARED: usize = 2;
pub(super) const GROUP: usize = 3;
pub(super) const KEYS: usize = 4;
pub(super) const WIDTH: usize = 5;

/// Returns the share of the pairs of queries and keys that a query sees: half under a causal mask.
pub(super) fn seen_share(op: Attention, keys: f64) -> f64 {
    match (op.causal, op.window) {
        (false, _) => 1.0,
        (true, None) => 0.5,
        (true, Some(window)) => {
            let window = f64::from(window.get()).min(keys) / keys.max(1.0);
            window * (1.0 - window / 2.0)
        }
    }
}

/// Returns the FLOPs of the part with most to do, as a multiple of the mean: with a causal mask the last queries see the most keys, and the first
/// keys are seen by the most queries. Parts of whole pairs of chunks all have the mean.
pub(super) fn most_to_mean(op: Attention, whole: &Rule, part: &Rule) -> f64 {
    let [queries, keys] = [QUERIES, KEYS].map(|factor| part.factors[factor].size as f64);
    if !op.causal || queries * keys == 0.0 {
        return 1.0;
    }
    if op.zigzag.is_some_and(|pairs| has_whole_pairs(part.factors[QUERIES].size, whole, pairs)) {
        return 1.0;
    }
    // Keys before the first query are all seen; of the others half of the pairs are.
    let all = whole.factors[KEYS].size as f64;
    let masked = (queries + keys - all).max(0.0);
    let seen = queries * keys - masked * masked / 2.0;
    let most = match op.window {
        Some(window) if f64::from(window.get()) < all => {
            let whole_part = queries == all && keys == all;
            let of_band = f64::from(window.get()) * queries.min(keys);
            if whole_part { return 1.0 } else { seen.min(of_band) }
        }
        _ => seen,
    };
    most / (queries * keys * seen_share(op, keys))
}

/// Whether parts of so many queries each are whole pairs of chunks.
fn has_whole_pairs(queries: usize, whole: &Rule, pairs: NonZeroU32) -> bool {
    queries.is_multiple_of((whole.factors[QUERIES].size / pairs.get() as usize).max(1))
}

/// The iteration space, every factor parallel, and the dims of queries, of keys and of one number for each query.
pub(super) struct AttentionRule {
    pub rule: Rule,
    pub query: Vec<DimRule>,
    pub key: Vec<DimRule>,
    pub row: Vec<DimRule>,
}

/// Builds the iteration space of an op with these queries, keys and values.
pub(super) fn build_rule(
    op: &'static str,
    operands: &[&TensorType],
    causal: bool,
) -> Result<AttentionRule, OpError> {
    let fail = |reason: String| Err(shape_error(op, operands, reason));
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
    let [b, t, kv, group, s, d] = extents.map(|size| rule.add_factor(size, FactorKind::Parallel));
    let dims = |dims: &[&[usize]]| dims.iter().map(|f| DimRule::Factors(f.to_vec())).collect();
    let query = dims(&[&[b], &[t], &[kv, group], &[d]]);
    let row = dims(&[&[b], &[t], &[kv, group]]);
    let key = dims(&[&[b], &[s], &[kv], &[d]]);
    Ok(AttentionRule { rule, query, key, row })
}

impl AttentionRule {
    /// Returns the dims of a bias `[batch, heads, queries, keys]`, of which each may have extent 1.
    pub(super) fn bias_dims(
        &self,
        op: &'static str,
        operands: &[&TensorType],
        bias: &TensorType,
    ) -> Result<Vec<DimRule>, OpError> {
        let whole = [&[BATCH][..], &[SHARED, GROUP], &[QUERIES], &[KEYS]]
            .map(|factors| DimRule::Factors(factors.to_vec()));
        let extents = whole.each_ref().map(|dim| self.rule.extent(dim));
        let dim = |(whole, &extent): (&DimRule, &usize)| match extent {
            _ if extent == self.rule.extent(whole) => Some(whole.clone()),
            1 => Some(DimRule::Factors(Vec::new())),
            _ => None,
        };
        let dims: Option<Vec<DimRule>> = whole.iter().zip(&bias.shape).map(dim).collect();
        dims.filter(|dims| dims.len() == whole.len() && bias.shape.len() == whole.len()).ok_or_else(
            || {
                let reason = format!(
                    "the bias is {:?} and must be {extents:?}, each extent that or 1",
                    bias.shape
                );
                shape_error(op, operands, reason)
            },
        )
    }
}
