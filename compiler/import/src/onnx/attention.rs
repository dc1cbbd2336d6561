//! Attention and rotary embedding as the standard has them since version 23, in terms of products and softmax.

use graphc_ir::op::Op;
use graphc_ir::ops::{BinaryFunction, Concat, ReduceFunction, Softmax, UnaryFunction, Where};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};

use super::gather::gather_along;
use super::known::KnownValue;
use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with};
use super::places::from_start;

/// Results: the means of values, all keys and all values, and on demand the scores, raw or as weights.
pub(super) fn lower_attention(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let flat = cx.shape(&cx.operand(call, 0)?)?.len() == 3;
    let query = read_heads(cx, call, 0, "q_num_heads")?;
    let (key, value) =
        (read_heads(cx, call, 1, "kv_num_heads")?, read_heads(cx, call, 2, "kv_num_heads")?);
    let ((key, past), (value, _)) =
        (concat_past(cx, call, 4, key)?, concat_past(cx, call, 5, value)?);
    let raw = compute_scores(cx, call, &query, &key)?;
    let weights = compute_weights(cx, call, &raw, past)?;
    let width = cx.shape(&query)?[1];
    let values = cx.shared_heads(&value, width)?;
    let mut means = cx.matmul(&weights, &values, false, false)?;
    if flat {
        means = cx.merge_heads(&means)?;
    }
    let mut results = vec![means, key, value];
    match call.int("qk_matmul_output_mode", 0)? {
        0 => results.push(raw),
        3 => results.push(weights),
        _ => {}
    }
    Ok(results)
}

/// An operand as `[batch, heads, time, width]`.
fn read_heads(cx: &mut Lowering, call: NodeCall<'_>, position: usize, count: &str) -> Res<Val> {
    let x = cx.operand(call, position)?;
    match cx.shape(&x)?[..] {
        [_, _, _, _] => Ok(x),
        [_, _, width] => {
            let heads = usize::try_from(call.int(count, 0)?).unwrap_or(0);
            if heads == 0 || !width.is_multiple_of(heads) {
                return fail_with(format!("the attribute `{count}` must divide {width}"));
            }
            cx.split_heads(&x, heads)
        }
        _ => fail_with(format!("operand {position} must have 3 or 4 dims, not {}", cx.ty(&x)?)),
    }
}

/// Keys or values behind those of earlier calls, and how many of these there are.
pub(super) fn concat_past(
    cx: &mut Lowering,
    call: NodeCall<'_>,
    position: usize,
    x: Val,
) -> Res<(Val, usize)> {
    let Some(past) = cx.optional_operand(call, position)? else { return Ok((x, 0)) };
    match cx.shape(&past)?.get(2).copied().unwrap_or(0) {
        0 => Ok((x, 0)),
        count => Ok((cx.apply(Op::Concat(Concat { axis: 2 }), &[past, x])?, count)),
    }
}

/// Products of queries and keys, scaled, and bounded where a bound is given.
fn compute_scores(cx: &mut Lowering, call: NodeCall<'_>, query: &Val, key: &Val) -> Res<Val> {
    let shape = cx.shape(query)?;
    let default = 1.0 / (shape[3] as f64).sqrt();
    let scale = if call.has_attribute("scale") { call.float("scale", 0.0)? } else { default };
    let query = cx.apply_unary(UnaryFunction::Scale(Scalar(scale)), query)?;
    let key = cx.shared_heads(key, shape[1])?;
    let scores = cx.matmul(&query, &key, false, true)?;
    apply_softcap(cx, &scores, call.float("softcap", 0.0)?)
}

/// bound tanh(x / bound), where a bound is given.
pub(super) fn apply_softcap(cx: &mut Lowering, x: &Val, bound: f64) -> Res<Val> {
    if bound <= 0.0 {
        return Ok(x.clone());
    }
    let mut y = cx.apply_unary(UnaryFunction::Scale(Scalar(1.0 / bound)), x)?;
    y = cx.apply_unary(UnaryFunction::Tanh, &y)?;
    cx.apply_unary(UnaryFunction::Scale(Scalar(bound)), &y)
}

/// Softmax of what the masks leave; 0 for a query that sees no key.
fn compute_weights(cx: &mut Lowering, call: NodeCall<'_>, scores: &Val, past: usize) -> Res<Val> {
    let shape = cx.shape(scores)?;
    let [.., queries, keys] = shape[..] else { return fail_with("scores have no dims") };
    let mut scores = scores.clone();
    let size = |name: &str| call.int(name, -1).map(|size| usize::try_from(size).ok());
    let reach = AttentionReach {
        causal: call.int("is_causal", 0)? != 0,
        before: size("left_window_size")?,
        after: size("right_window_size")?,
    };
    if let Some(seen) = reach.seen_keys(cx, [queries, keys], past)? {
        scores = hide_unseen(cx, &seen, &scores)?;
    }
    let lengths = cx.optional_operand(call, 6)?;
    if let Some(lengths) = &lengths {
        let seen = mask_by_lengths(cx, lengths, keys)?;
        scores = hide_unseen(cx, &seen, &scores)?;
    }
    let given = cx.optional_operand(call, 3)?;
    if let Some(mask) = &given {
        scores = match cx.ty(mask)?.dtype {
            DType::Bool => hide_unseen(cx, mask, &scores)?,
            _ => cx.apply_binary(BinaryFunction::Add, &scores, mask)?,
        };
    }
    let axis = shape.len() - 1;
    if given.is_none() && lengths.is_none() {
        return cx.apply(Op::Softmax(Softmax { axis }), &[scores]);
    }
    // A softmax of nothing has no gradient, not even one of 0: such a query has scores of 0 instead, which it does not use.
    let greatest = cx.reduce(ReduceFunction::Max, &scores, &[axis], true)?;
    let least = cx.number_like(&greatest, f64::NEG_INFINITY)?;
    let none = cx.apply_binary(BinaryFunction::Equal, &greatest, &least)?;
    let zero = cx.number_like(&scores, 0.0)?;
    let scores = cx.apply(Op::Where(Where {}), &[none.clone(), zero.clone(), scores])?;
    let weights = cx.apply(Op::Softmax(Softmax { axis }), &[scores])?;
    cx.apply(Op::Where(Where {}), &[none, zero, weights])
}

/// Returns truth values of shape `[batch, 1, 1, keys]`: whether a key is within the length of its sequence.
pub(super) fn mask_by_lengths(cx: &mut Lowering, lengths: &Val, keys: usize) -> Res<Val> {
    let lengths = cx.cast(lengths, DType::I64)?;
    let batch = cx.shape(&lengths)?.iter().product();
    let lengths = cx.reshape(&lengths, &[batch, 1, 1, 1])?;
    let line: Vec<usize> = (0..keys).collect();
    let line = cx.reshape(&Lowering::known_list(&line), &[1, 1, 1, keys])?;
    cx.apply_binary(BinaryFunction::Less, &line, &lengths)
}

fn hide_unseen(cx: &mut Lowering, seen: &Val, scores: &Val) -> Res<Val> {
    let least = cx.number_like(scores, f64::NEG_INFINITY)?;
    cx.apply(Op::Where(Where {}), &[seen.clone(), scores.clone(), least])
}

/// The keys that a query sees by its position.
#[derive(Clone, Copy, Default)]
pub(super) struct AttentionReach {
    /// Whether a query sees no key behind itself.
    pub causal: bool,
    /// The most keys before itself that a query sees, if that is bounded.
    pub before: Option<usize>,
    /// The most keys behind itself that a query sees, if that is bounded.
    pub after: Option<usize>,
}

impl AttentionReach {
    /// Returns truth values `[queries, keys]`: whether a query sees a key. The first `past` keys are those of earlier calls. Returns `None` if every
    /// query sees all keys.
    pub(super) fn seen_keys(
        self,
        cx: &mut Lowering,
        [queries, keys]: [usize; 2],
        past: usize,
    ) -> Res<Option<Val>> {
        let line = |shape: [usize; 2], first: usize| {
            let numbers = (0..shape[0] * shape[1]).map(|i| (first + i) as f64).collect();
            Val::Known(KnownValue::new(TensorType::new(DType::I64, shape), numbers))
        };
        let (query, key) = (line([queries, 1], past), line([1, keys], 0));
        let ahead = cx.apply_binary(BinaryFunction::Sub, &key, &query)?;
        let bounds = [
            self.causal.then_some((BinaryFunction::LessEqual, 0.0)),
            self.after.map(|after| (BinaryFunction::LessEqual, after as f64)),
            self.before.map(|before| (BinaryFunction::GreaterEqual, -(before as f64))),
        ];
        let mut seen = None;
        for (function, bound) in bounds.into_iter().flatten() {
            let bound = cx.number_like(&ahead, bound)?;
            let own = cx.apply_binary(function, &ahead, &bound)?;
            seen = Some(match seen {
                Some(seen) => cx.apply_binary(BinaryFunction::And, &seen, &own)?,
                None => own,
            });
        }
        Ok(seen)
    }
}

impl Lowering {
    /// `[batch, time, heads * width]` as `[batch, heads, time, width]`; what has four dims is so already.
    pub(super) fn split_heads(&mut self, x: &Val, heads: usize) -> Res<Val> {
        match self.shape(x)?[..] {
            [_, own, _, _] if own == heads => Ok(x.clone()),
            [batch, time, width] if width.is_multiple_of(heads) => {
                let x = self.reshape(x, &[batch, time, heads, width / heads])?;
                self.transpose(&x, vec![0, 2, 1, 3])
            }
            _ => {
                let ty = self.ty(x)?;
                fail_with(format!("{ty} is not [batch, time, numbers] of {heads} heads"))
            }
        }
    }

    /// `[batch, heads, time, width]` as `[batch, time, heads * width]`.
    pub(super) fn merge_heads(&mut self, x: &Val) -> Res<Val> {
        let x = self.transpose(x, vec![0, 2, 1, 3])?;
        let shape = self.shape(&x)?;
        self.reshape(&x, &[shape[0], shape[1], shape[2] * shape[3]])
    }

    /// Heads `[batch, kv, time, width]` of which each stands for as many of `count`.
    pub(super) fn shared_heads(&mut self, x: &Val, count: usize) -> Res<Val> {
        let shape = self.shape(x)?;
        let [batch, own, time, width] = shape[..] else { return fail_with("heads have four dims") };
        if own == count {
            return Ok(x.clone());
        }
        if own == 0 || !count.is_multiple_of(own) {
            return fail_with(format!("{own} heads of keys do not divide {count} of queries"));
        }
        let x = self.reshape(x, &[batch, own, 1, time, width])?;
        let x = self.expand(&x, &[batch, own, count / own, time, width])?;
        self.reshape(&x, &[batch, count, time, width])
    }
}

/// Pairs of elements turned by angles that are given by their cosines and sines.
pub(super) fn lower_rotary_embedding(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = read_heads(cx, call, 0, "num_heads")?;
    let (given, shape) = (cx.shape(&cx.operand(call, 0)?)?, cx.shape(&x)?);
    let turned = match usize::try_from(call.int("rotary_embedding_dim", 0)?) {
        Ok(0) => shape[3],
        Ok(turned) if turned <= shape[3] && turned.is_multiple_of(2) => turned,
        _ => {
            return fail_with(format!(
                "the attribute `rotary_embedding_dim` does not fit {shape:?}"
            ));
        }
    };
    let (cos, sin) = (read_angles(cx, call, 1)?, read_angles(cx, call, 2)?);
    let interleaved = call.int("interleaved", 0)? != 0;
    let part = cx.slice(&x, 3, 0, turned, 1)?;
    let mut parts = vec![rotate_pairs(cx, &part, [&cos, &sin], interleaved)?];
    if turned < shape[3] {
        parts.push(cx.slice(&x, 3, turned, shape[3], 1)?);
    }
    let y = match parts.as_slice() {
        [one] => one.clone(),
        _ => cx.apply(Op::Concat(Concat { axis: 3 }), &parts)?,
    };
    if given.len() == 4 {
        return Ok(vec![y]);
    }
    let y = cx.transpose(&y, vec![0, 2, 1, 3])?;
    Ok(vec![cx.reshape(&y, &given)?])
}

/// Pairs of elements turned by these angles, all of a head.
pub(super) fn rotate_pairs(
    cx: &mut Lowering,
    x: &Val,
    [cos, sin]: [&Val; 2],
    interleaved: bool,
) -> Res<Val> {
    let [first, second] = split_pairs(cx, x, interleaved)?;
    let mut product = |a: &Val, b: &Val| cx.apply_binary(BinaryFunction::Mul, a, b);
    let (a, b) = (product(&first, cos)?, product(&second, sin)?);
    let (c, d) = (product(&first, sin)?, product(&second, cos)?);
    let real = cx.apply_binary(BinaryFunction::Sub, &a, &b)?;
    let imaginary = cx.apply_binary(BinaryFunction::Add, &c, &d)?;
    join_pairs(cx, [&real, &imaginary], interleaved)
}

/// Cosines or sines as `[batch, 1, time, pairs]`: those of positions where these are given.
fn read_angles(cx: &mut Lowering, call: NodeCall<'_>, position: usize) -> Res<Val> {
    let mut angles = cx.operand(call, position)?;
    if let Some(positions) = cx.optional_operand(call, 3)? {
        let extent = cx.shape(&angles)?.first().copied().unwrap_or(0);
        let positions = from_start(cx, &positions, extent)?;
        angles = gather_along(cx, &angles, &positions, 0)?;
    }
    match cx.shape(&angles)?[..] {
        [batch, time, pairs] => cx.reshape(&angles, &[batch, 1, time, pairs]),
        _ => fail_with(format!(
            "operand {position} gives angles of three dims, not {}",
            cx.ty(&angles)?
        )),
    }
}

/// The first and the second elements of all pairs.
fn split_pairs(cx: &mut Lowering, x: &Val, interleaved: bool) -> Res<[Val; 2]> {
    let width = cx.shape(x)?[3];
    let parts = match interleaved {
        true => [cx.slice(x, 3, 0, width, 2)?, cx.slice(x, 3, 1, width, 2)?],
        false => [cx.slice(x, 3, 0, width / 2, 1)?, cx.slice(x, 3, width / 2, width, 1)?],
    };
    Ok(parts)
}

fn join_pairs(cx: &mut Lowering, [first, second]: [&Val; 2], interleaved: bool) -> Res<Val> {
    let operands = [first.clone(), second.clone()];
    if !interleaved {
        return cx.apply(Op::Concat(Concat { axis: 3 }), &operands);
    }
    let mut shape = cx.shape(first)?;
    let apart = [&shape[..], &[1]].concat();
    let operands = [cx.reshape(first, &apart)?, cx.reshape(second, &apart)?];
    let pairs = cx.apply(Op::Concat(Concat { axis: 4 }), &operands)?;
    shape[3] *= 2;
    cx.reshape(&pairs, &shape)
}
