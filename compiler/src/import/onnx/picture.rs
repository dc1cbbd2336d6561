//! Convolution, pooling and batch normalization of pictures.

use graphc_ir::op::Op;
use graphc_ir::ops::{AveragePool, BatchNorm, BinaryFunction, Convolution, MaxPool, Window};
use graphc_ir::scalar::Scalar;

use super::lower::{Lowering, Val};
use super::node::{Call, Res, fail};
use super::normalize::shortest;

pub(super) fn convolution(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let (x, k) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    let kernel = match cx.shape(&k)?[..] {
        [_, _, h, w] => [h, w],
        _ => return fail(format!("only kernels of four dims are supported, not {}", cx.ty(&k)?)),
    };
    let window = window(cx, call, &x, kernel)?;
    let groups = positive(call.int("group", 1)?, "group")?;
    let y = cx.apply(Op::Convolution(Convolution { window, groups }), &[x, k])?;
    let Some(bias) = cx.optional(call, 2)? else { return Ok(vec![y]) };
    let channels = cx.shape(&bias)?.iter().product();
    let bias = cx.reshape(&bias, &[channels, 1, 1])?;
    Ok(vec![cx.binary(BinaryFunction::Add, &y, &bias)?])
}

pub(super) fn max_pool(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let (x, kernel, window) = pool(cx, call)?;
    Ok(vec![cx.apply(Op::MaxPool(MaxPool { kernel, window }), &[x])?])
}

pub(super) fn average_pool(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let (x, kernel, window) = pool(cx, call)?;
    let count_border = call.int("count_include_pad", 0)? != 0;
    let op = AveragePool { kernel, window, count_border };
    Ok(vec![cx.apply(Op::AveragePool(op), &[x])?])
}

/// With the statistics that the file holds; training takes those of the batch.
pub(super) fn batch_normalization(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let operands = cx.operands(call)?;
    let epsilon = Scalar(shortest(call.float("epsilon", 1e-5)?));
    Ok(vec![cx.apply(Op::BatchNorm(BatchNorm { epsilon, batches: 0 }), &operands)?])
}

fn pool(cx: &mut Lowering, call: Call<'_>) -> Res<(Val, [usize; 2], Window)> {
    let x = cx.operand(call, 0)?;
    let Some(kernel) = pair(call, "kernel_shape")? else {
        return fail("the attribute `kernel_shape` is missing");
    };
    let window = window(cx, call, &x, kernel)?;
    if call.int("ceil_mode", 0)? != 0 {
        // Where the last window ends with the picture, rounding up is rounding down.
        let shape = cx.shape(&x)?;
        let rest = |dim: usize| {
            let padded = shape[2 + dim] + window.pads[dim] + window.pads[dim + 2];
            let reach = window.dilations[dim] * (kernel[dim] - 1) + 1;
            padded.checked_sub(reach).is_none_or(|rest| rest % window.strides[dim] != 0)
        };
        if rest(0) || rest(1) {
            return fail("ceil_mode is not supported where windows reach beyond the border");
        }
    }
    Ok((x, kernel, window))
}

/// How the window goes, of a picture `[n, c, h, w]`.
fn window(cx: &Lowering, call: Call<'_>, x: &Val, kernel: [usize; 2]) -> Res<Window> {
    let [_, _, h, w] = cx.shape(x)?[..] else {
        let ty = cx.ty(x)?;
        return fail(format!(
            "only pictures are supported, of batch, channels, height and width, not {ty}"
        ));
    };
    let strides = pair(call, "strides")?.unwrap_or([1; 2]);
    let dilations = pair(call, "dilations")?.unwrap_or([1; 2]);
    let pads = match call.text("auto_pad", "NOTSET")? {
        "NOTSET" => given_pads(call)?,
        "VALID" => [0; 4],
        same @ ("SAME_UPPER" | "SAME_LOWER") => {
            let total = [h, w].map(|extent| extent.max(1));
            let of = |dim: usize| {
                let reach = dilations[dim] * (kernel[dim] - 1) + 1;
                let needed = (total[dim].div_ceil(strides[dim]) - 1) * strides[dim] + reach;
                needed.saturating_sub(total[dim])
            };
            let (rows, columns) = (of(0), of(1));
            let less = [rows / 2, columns / 2];
            let more = [rows - less[0], columns - less[1]];
            let [first, last] = if same == "SAME_UPPER" { [less, more] } else { [more, less] };
            [first[0], first[1], last[0], last[1]]
        }
        other => return fail(format!("there is no auto_pad `{other}`")),
    };
    Ok(Window { strides, pads, dilations })
}

fn given_pads(call: Call<'_>) -> Res<[usize; 4]> {
    let Some(pads) = call.ints("pads")? else { return Ok([0; 4]) };
    let pads: Vec<usize> = pads.iter().filter_map(|&pad| usize::try_from(pad).ok()).collect();
    match pads[..] {
        [top, left, bottom, right] => Ok([top, left, bottom, right]),
        _ => fail("the attribute `pads` must be four numbers, none negative"),
    }
}

/// Two numbers of at least 1, for height and width.
fn pair(call: Call<'_>, name: &str) -> Res<Option<[usize; 2]>> {
    let Some(values) = call.ints(name)? else { return Ok(None) };
    match *values {
        [h, w] => Ok(Some([positive(h, name)?, positive(w, name)?])),
        _ => fail(format!("the attribute `{name}` must be two numbers: pictures have two dims")),
    }
}

fn positive(value: i64, name: &str) -> Res<usize> {
    match usize::try_from(value) {
        Ok(value) if (1..1 << 20).contains(&value) => Ok(value),
        _ => fail(format!("the attribute `{name}` must be 1 or more, and not huge, not {value}")),
    }
}
