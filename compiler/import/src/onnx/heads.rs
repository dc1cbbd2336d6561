//! Attention as onnxruntime has it (`com.microsoft`): `Attention`, `MultiHeadAttention` and `GroupQueryAttention`, in terms of
//! products and softmax, and its rotary embedding.
//!
//! Results are means of values, and on demand all keys and values, those of earlier calls first.

use graphc_ir::op::Op;
use graphc_ir::ops::{BinaryFunction, Concat, Softmax, UnaryFunction, Where};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::DType;

use super::attention::{AttentionReach, apply_softcap, concat_past, mask_by_lengths, rotate_pairs};
use super::gather::gather_along;
use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with};
use super::places::from_start;

/// The masks that hide keys from queries.
#[derive(Default)]
struct Masks {
    /// The keys that a query sees by its position.
    reach: AttentionReach,
    /// Truth values that broadcast to the scores: whether a key is seen.
    seen: Option<Val>,
    /// The summands of the scores.
    biases: Vec<Val>,
}

/// Lowers attention whose queries, keys and values come from one product of the input with weights.
pub(super) fn lower_attention(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let (x, weights) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    let mut joined = cx.matmul(&x, &weights, false, false)?;
    if let Some(bias) = cx.optional_operand(call, 2)? {
        joined = cx.apply_binary(BinaryFunction::Add, &joined, &bias)?;
    }
    let [_, _, width] = cx.shape(&joined)?[..] else {
        return fail_with("its input has three dims");
    };
    let sizes = match call.ints("qkv_hidden_sizes")? {
        Some(given) => super::sequence::convert_extents(given)?,
        None => vec![width / 3; 3],
    };
    let fits = sizes.iter().all(|&size| size <= width) && sizes.iter().sum::<usize>() == width;
    if sizes.len() != 3 || !fits {
        return fail_with(format!("{width} columns are no queries, keys and values of {sizes:?}"));
    }
    let count = heads_of(call, "num_heads")?;
    let parts = cx.split(&joined, 2, sizes)?;
    let parts = parts.iter().map(|part| cx.split_heads(part, count)).collect::<Res<Vec<_>>>()?;
    let [query, key, value] = <[Val; 3]>::try_from(parts).or_else(|_| fail_with("three parts"))?;
    if call.int("do_rotary", 0)? != 0 {
        return fail_with(
            "do_rotary=1 is not supported: give RotaryEmbedding as a node of its own",
        );
    }
    if cx.optional_operand(call, 4)?.is_some() {
        return fail_with("the operand `past` is not supported: export the model without it");
    }
    let extents = [cx.shape(&query)?[2], cx.shape(&key)?[2]];
    let biases = [mask_of(cx, call, 3, extents)?, cx.optional_operand(call, 5)?];
    let masks = Masks {
        reach: AttentionReach {
            causal: call.int("unidirectional", 0)? != 0,
            ..AttentionReach::default()
        },
        biases: biases.into_iter().flatten().collect(),
        ..Masks::default()
    };
    let means = compute_attention(cx, call, [&query, &key, &value], &masks, 0)?;
    Ok(vec![cx.merge_heads(&means)?])
}

/// Queries, keys and values of as many heads, each an operand of its own or packed.
pub(super) fn lower_multi_head_attention(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let count = heads_of(call, "num_heads")?;
    let [query, key, value] = read_packed_heads(cx, call, count)?;
    let (key, past) = concat_past(cx, call, 6, key)?;
    let (value, _) = concat_past(cx, call, 7, value)?;
    let extents = [cx.shape(&query)?[2], cx.shape(&key)?[2]];
    let biases = [mask_of(cx, call, 4, extents)?, cx.optional_operand(call, 5)?];
    let masks = Masks {
        reach: AttentionReach {
            causal: call.int("unidirectional", 0)? != 0,
            ..AttentionReach::default()
        },
        biases: biases.into_iter().flatten().collect(),
        ..Masks::default()
    };
    let means = compute_attention(cx, call, [&query, &key, &value], &masks, past)?;
    Ok(vec![cx.merge_heads(&means)?, key, value])
}

/// The operands of [`lower_multi_head_attention`] as `[batch, heads, time, width]`, with their bias.
fn read_packed_heads(cx: &mut Lowering, call: NodeCall<'_>, count: usize) -> Res<[Val; 3]> {
    let query = cx.operand(call, 0)?;
    let (key, value) = (cx.optional_operand(call, 1)?, cx.optional_operand(call, 2)?);
    let mut parts = match (key, value) {
        (Some(key), Some(value)) => [query, key, value],
        (Some(key), None) => {
            let [key, value] = unpack_tensors(cx, &key)?;
            [query, key, value]
        }
        _ => unpack_tensors(cx, &query)?,
    };
    if let Some(bias) = cx.optional_operand(call, 3)? {
        if cx.shape(&bias)?.len() != 1 {
            return fail_with("a bias has one dim");
        }
        let mut at = 0;
        for part in &mut parts {
            let shape = cx.shape(part)?;
            // What has heads already has its bias, too.
            let [_, _, width] = shape[..] else {
                return fail_with("a bias is of operands of three dims");
            };
            let own = cx.slice(&bias, 0, at, at + width, 1)?;
            *part = cx.apply_binary(BinaryFunction::Add, part, &own)?;
            at += width;
        }
    }
    let [query, key, value] = parts;
    Ok([
        cx.split_heads(&query, count)?,
        cx.split_heads(&key, count)?,
        cx.split_heads(&value, count)?,
    ])
}

/// Tensors that lie side by side as `[batch, time, heads, N, width]`, each as `[batch, time, heads * width]`.
fn unpack_tensors<const N: usize>(cx: &mut Lowering, x: &Val) -> Res<[Val; N]> {
    let [batch, time, heads, count, width] = cx.shape(x)?[..] else {
        let ty = cx.ty(x)?;
        return fail_with(format!("what is packed must have five dims, not {ty}"));
    };
    if count != N {
        return fail_with(format!("{count} tensors are packed, not {N}"));
    }
    let part = |at: usize| {
        let part = cx.slice(x, 3, at, at + 1, 1)?;
        cx.reshape(&part, &[batch, time, heads * width])
    };
    let parts = (0..N).map(part).collect::<Res<Vec<Val>>>()?;
    <[Val; N]>::try_from(parts).or_else(|_| fail_with("a part is missing"))
}

/// Heads of queries that share heads of keys and values; causal.
pub(super) fn lower_group_query_attention(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let (count, shared) = (heads_of(call, "num_heads")?, heads_of(call, "kv_num_heads")?);
    let [mut query, mut key, value] = read_grouped_heads(cx, call, [count, shared])?;
    let past = match cx.optional_operand(call, 3)? {
        Some(past) => cx.shape(&past)?.get(2).copied().unwrap_or(0),
        None => 0,
    };
    if call.int("do_rotary", 0)? != 0 {
        let time = cx.shape(&query)?[2];
        let positions: Vec<usize> = (past..past + time).collect();
        let positions = Lowering::known_list(&positions);
        let interleaved = call.int("rotary_interleaved", 0)? != 0;
        let [cos, sin] = [7, 8].map(|table| angles_at(cx, call, table, &positions));
        let angles = [cos?, sin?];
        query = rotate_first_pairs(cx, &query, &angles, interleaved)?;
        key = rotate_first_pairs(cx, &key, &angles, interleaved)?;
    }
    let (key, _) = concat_past(cx, call, 3, key)?;
    let (value, _) = concat_past(cx, call, 4, value)?;
    let total = cx.shape(&key)?[2];
    let seen = within_lengths(cx, call, total)?;
    // How many keys there are in all says their shape.
    cx.optional_operand(call, 6)?;
    for unsupported in [9, 11] {
        if cx.optional_operand(call, unsupported)?.is_some() {
            return fail_with(format!("its operand {unsupported} is not supported"));
        }
    }
    // The query's own place is one of its window.
    let before = match usize::try_from(call.int("local_window_size", -1)?) {
        Ok(0) => {
            return fail_with("the attribute `local_window_size` must be 1 or more, or -1 for all");
        }
        window => window.ok().map(|window| window - 1),
    };
    let masks = Masks {
        reach: AttentionReach { causal: true, before, after: None },
        seen: Some(seen),
        biases: cx.optional_operand(call, 10)?.into_iter().collect(),
    };
    let means = compute_attention(cx, call, [&query, &key, &value], &masks, past)?;
    Ok(vec![cx.merge_heads(&means)?, key, value])
}

/// Queries, keys and values of [`lower_group_query_attention`]: three operands, or side by side in the first one.
fn read_grouped_heads(
    cx: &mut Lowering,
    call: NodeCall<'_>,
    [count, shared]: [usize; 2],
) -> Res<[Val; 3]> {
    let query = cx.operand(call, 0)?;
    let parts = match (cx.optional_operand(call, 1)?, cx.optional_operand(call, 2)?) {
        (Some(key), Some(value)) => [query, key, value],
        _ => {
            let [_, _, columns] = cx.shape(&query)?[..] else {
                return fail_with("its queries have three dims");
            };
            let width = columns / (count + 2 * shared);
            let sizes = vec![count * width, shared * width, shared * width];
            let parts = cx.split(&query, 2, sizes)?;
            <[Val; 3]>::try_from(parts).or_else(|_| fail_with("three parts"))?
        }
    };
    let [query, key, value] = parts;
    Ok([
        cx.split_heads(&query, count)?,
        cx.split_heads(&key, shared)?,
        cx.split_heads(&value, shared)?,
    ])
}

/// Returns truth values: whether a key is within the length of its sequence. The operand `seqlens_k` holds these lengths less one.
fn within_lengths(cx: &mut Lowering, call: NodeCall<'_>, total: usize) -> Res<Val> {
    let last = cx.operand(call, 5)?;
    let last = cx.cast(&last, DType::I64)?;
    let one = cx.number_like(&last, 1.0)?;
    let lengths = cx.apply_binary(BinaryFunction::Add, &last, &one)?;
    mask_by_lengths(cx, &lengths, total)
}

/// Lowers the rotation of pairs of elements by angles from tables. The operands are `input, position_ids, cos_cache, sin_cache`.
pub(super) fn lower_rotary_embedding(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let given = cx.shape(&x)?;
    let half = *cx.shape(&cx.operand(call, 2)?)?.last().unwrap_or(&0);
    let count = match (usize::try_from(call.int("num_heads", 0)?), &given[..]) {
        (Ok(0), &[_, _, width]) => width / (2 * half).max(1),
        (Ok(count), _) => count,
        _ => return fail_with("the attribute `num_heads` must not be negative"),
    };
    let x = if given.len() == 4 { x } else { cx.split_heads(&x, count)? };
    let time = cx.shape(&x)?[2];
    let mut positions = cx.operand(call, 1)?;
    positions = cx.cast(&positions, DType::I64)?;
    if cx.ty(&positions)?.elements() == 1 && cx.shape(&positions)?.len() < 2 {
        let line: Vec<usize> = (0..time).collect();
        positions =
            cx.apply_binary(BinaryFunction::Add, &Lowering::known_list(&line), &positions)?;
    }
    let [cos, sin] = [2, 3].map(|table| angles_at(cx, call, table, &positions));
    let y = rotate_first_pairs(cx, &x, &[cos?, sin?], call.int("interleaved", 0)? != 0)?;
    let scale = call.float("scale", 1.0)?;
    let y = if scale == 1.0 { y } else { cx.apply_unary(UnaryFunction::Scale(Scalar(scale)), &y)? };
    Ok(vec![if given.len() == 4 { y } else { cx.merge_heads(&y)? }])
}

/// Rows of a table at positions, as `[batch or 1, 1, time, pairs]`.
fn angles_at(cx: &mut Lowering, call: NodeCall<'_>, table: usize, positions: &Val) -> Res<Val> {
    let table = cx.operand(call, table)?;
    let [extent, pairs] = cx.shape(&table)?[..] else { return fail_with("a cache has two dims") };
    let positions = from_start(cx, positions, extent)?;
    let found = gather_along(cx, &table, &positions, 0)?;
    let shape = cx.shape(&found)?;
    match shape[..] {
        [time, _] => cx.reshape(&found, &[1, 1, time, pairs]),
        [batch, time, _] => cx.reshape(&found, &[batch, 1, time, pairs]),
        _ => fail_with("positions are [time] or [batch, time]"),
    }
}

/// Heads whose first pairs are turned, as many as there are angles.
fn rotate_first_pairs(
    cx: &mut Lowering,
    x: &Val,
    angles: &[Val; 2],
    interleaved: bool,
) -> Res<Val> {
    let (width, pairs) = (cx.shape(x)?[3], cx.shape(&angles[0])?[3]);
    if 2 * pairs > width {
        return fail_with(format!(
            "{pairs} angles turn {} numbers, and a head has {width}",
            2 * pairs
        ));
    }
    let first = cx.slice(x, 3, 0, 2 * pairs, 1)?;
    let first = rotate_pairs(cx, &first, [&angles[0], &angles[1]], interleaved)?;
    if 2 * pairs == width {
        return Ok(first);
    }
    let rest = cx.slice(x, 3, 2 * pairs, width, 1)?;
    cx.apply(Op::Concat(Concat { axis: 3 }), &[first, rest])
}

fn heads_of(call: NodeCall<'_>, name: &str) -> Res<usize> {
    match usize::try_from(call.int(name, 0)?) {
        Ok(count @ 1..=65536) => Ok(count),
        _ => fail_with(format!("the attribute `{name}` must be 1 or more, and not huge")),
    }
}

/// Returns a summand for the scores that hides keys: 0 for those that are seen, and `mask_filter_value` for the others. The operand holds the length
/// of each sequence, or for each key a number that is not 0 if the key is seen.
fn mask_of(
    cx: &mut Lowering,
    call: NodeCall<'_>,
    position: usize,
    [queries, keys]: [usize; 2],
) -> Res<Option<Val>> {
    let Some(mask) = cx.optional_operand(call, position)? else { return Ok(None) };
    let shape = cx.shape(&mask)?;
    let seen = if shape.len() == 1 {
        mask_by_lengths(cx, &mask, keys)?
    } else {
        let apart = match shape[..] {
            [batch, own] if own == keys => [batch, 1, 1, keys],
            [batch, own, time] if own == queries && time == keys => [batch, 1, queries, keys],
            _ => {
                let ty = cx.ty(&mask)?;
                return fail_with(format!(
                    "a mask of {ty} does not fit {queries} queries and {keys} keys"
                ));
            }
        };
        let mask = cx.cast(&mask, DType::Bool)?;
        cx.reshape(&mask, &apart)?
    };
    let x = cx.operand(call, 0)?;
    let hidden = cx.number_like(&x, call.float("mask_filter_value", -10000.0)?)?;
    let zero = cx.number_like(&x, 0.0)?;
    cx.apply(Op::Where(Where {}), &[seen, zero, hidden]).map(Some)
}

/// Computes attention, `[batch, heads, time, width]`: means of values, weighted by the softmax of products. There are `past` keys before those of the
/// first query.
fn compute_attention(
    cx: &mut Lowering,
    call: NodeCall<'_>,
    [query, key, value]: [&Val; 3],
    masks: &Masks,
    past: usize,
) -> Res<Val> {
    let shape = cx.shape(query)?;
    let usual = 1.0 / (shape[3] as f64).sqrt();
    let given = call.float("scale", 0.0)?;
    let scale = if given == 0.0 { usual } else { given };
    let query = cx.apply_unary(UnaryFunction::Scale(Scalar(scale)), query)?;
    let (key, value) = (cx.shared_heads(key, shape[1])?, cx.shared_heads(value, shape[1])?);
    let mut scores = cx.matmul(&query, &key, false, true)?;
    scores = apply_softcap(cx, &scores, call.float("softcap", 0.0)?)?;
    let keys = cx.shape(&key)?[2];
    for bias in &masks.biases {
        scores = cx.apply_binary(BinaryFunction::Add, &scores, bias)?;
    }
    // The least number and not infinity: a query that sees nothing has weights all the same.
    let hidden = cx.number_like(&scores, f64::from(f32::MIN))?;
    for seen in masks.seen.iter().chain(&masks.reach.seen_keys(cx, [shape[2], keys], past)?) {
        scores = cx.apply(Op::Where(Where {}), &[seen.clone(), scores, hidden.clone()])?;
    }
    let weights = cx.apply(Op::Softmax(Softmax { axis: 3 }), &[scores])?;
    cx.matmul(&weights, &value, false, false)
}
