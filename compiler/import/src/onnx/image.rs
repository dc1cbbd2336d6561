//! Convolution, pooling and batch normalization of images. A sequence, of batch, channels and width, is an image of
//! height 1. Volumes are in [`volumes`].

use graphc_ir::op::Op;
use graphc_ir::ops::{
    AveragePool, BatchNorm, BinaryFunction, Convolution, ConvolutionInputGrad, MaxPool, Pad, Window,
};
use graphc_ir::scalar::Scalar;

use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with};
use super::normalize::shortest_number;
use super::volumes;

pub(super) fn lower_convolution(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    if volumes::is_volume(cx, call)? {
        return volumes::lower_convolution(cx, call);
    }
    let (x, k) = (Image::from_operand(cx, call, 0)?, Image::from_operand(cx, call, 1)?);
    check_kernel(call, &k)?;
    let window = given_window(call, &x, k.extents)?;
    let groups = check_positive(call.int("group", 1)?, "group")?;
    let op = Op::Convolution(Convolution { window, groups, channels_last: false });
    let y = cx.apply(op, &[x.value.clone(), k.value])?;
    add_bias(cx, call, &x, y)
}

/// Checks that `kernel_shape`, where it is given, is that of the kernels.
fn check_kernel(call: NodeCall<'_>, kernels: &Image) -> Res<()> {
    match read_steps(call, "kernel_shape", kernels.rank)? {
        Some(given) if given != kernels.extents => {
            let (given, found) = (call.ints("kernel_shape")?.unwrap_or(&[]), kernels.extents);
            let found = &found[4 - kernels.rank..];
            fail_with(format!(
                "the attribute `kernel_shape` is {given:?}, and its kernels are {found:?}"
            ))
        }
        _ => Ok(()),
    }
}

/// The gradient of a convolution's images, from the channels of the kernels' first dim to those of their second.
pub(super) fn lower_transposed_convolution(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    if volumes::is_volume(cx, call)? {
        return volumes::lower_transposed_convolution(cx, call);
    }
    let (x, k) = (Image::from_operand(cx, call, 0)?, Image::from_operand(cx, call, 1)?);
    if call.text("auto_pad", "NOTSET")? != "NOTSET" || call.has_attribute("output_shape") {
        return fail_with("auto_pad and output_shape are not supported: give `pads`");
    }
    check_kernel(call, &k)?;
    let window = given_window(call, &x, k.extents)?;
    let groups = check_positive(call.int("group", 1)?, "group")?;
    let more = read_numbers(call, "output_padding", x.rank)?.unwrap_or([0; 2]);
    let mut extents = [0; 2];
    for dim in [0, 1] {
        let reach = window.dilations[dim] * (k.extents[dim] - 1) + 1;
        let padded = (x.extents[dim].max(1) - 1) * window.strides[dim] + reach + more[dim];
        let border = window.pads[dim] + window.pads[dim + 2];
        if more[dim] >= window.strides[dim] {
            return fail_with("the attribute `output_padding` must be less than the strides");
        }
        match padded.checked_sub(border) {
            Some(extent @ 1..) => extents[dim] = extent,
            _ => return fail_with(format!("the border of {border} leaves nothing of {padded}")),
        }
    }
    let op = Op::ConvolutionInputGrad(ConvolutionInputGrad {
        window,
        groups,
        extents,
        channels_last: false,
    });
    let y = cx.apply(op, &[k.value, x.value.clone()])?;
    add_bias(cx, call, &x, y)
}

/// Adds a convolution's bias to the result `y`, if the node has one, and gives the result the rank of the node's operand.
fn add_bias(cx: &mut Lowering, call: NodeCall<'_>, x: &Image, y: Val) -> Res<Vec<Val>> {
    let y = x.restore_rank(cx, y)?;
    let Some(bias) = cx.optional_operand(call, 2)? else { return Ok(vec![y]) };
    let mut shape = vec![1; x.rank - 1];
    shape[0] = cx.shape(&bias)?.iter().product();
    let bias = cx.reshape(&bias, &shape)?;
    Ok(vec![cx.apply_binary(BinaryFunction::Add, &y, &bias)?])
}

pub(super) fn lower_max_pool(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    if volumes::is_volume(cx, call)? {
        return volumes::lower_max_pool(cx, call);
    }
    let (x, kernel, window) = read_pool(cx, call)?;
    let y = cx.apply(
        Op::MaxPool(MaxPool { kernel, window, channels_last: false }),
        std::slice::from_ref(&x.value),
    )?;
    Ok(vec![x.restore_rank(cx, y)?])
}

pub(super) fn lower_average_pool(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    if volumes::is_volume(cx, call)? {
        return volumes::lower_average_pool(cx, call);
    }
    let (mut x, kernel, mut window) = read_pool(cx, call)?;
    let mut count_border = call.int("count_include_pad", 0)? != 0;
    if count_border && window != given_window(call, &x, kernel)? {
        // Zeros of the border count, and what windows reach beyond it does not.
        window = x.pad_border(cx, call, kernel)?;
        count_border = false;
    }
    let op = Op::AveragePool(AveragePool { kernel, window, count_border, channels_last: false });
    let y = cx.apply(op, std::slice::from_ref(&x.value))?;
    Ok(vec![x.restore_rank(cx, y)?])
}

/// An image `[n, c, h, w]`, or a sequence `[n, c, w]` as one of height 1.
struct Image {
    value: Val,
    /// Height and width.
    extents: [usize; 2],
    /// The rank of the model's own value.
    rank: usize,
}

impl Image {
    fn from_operand(cx: &mut Lowering, call: NodeCall<'_>, position: usize) -> Res<Self> {
        let value = cx.operand(call, position)?;
        match cx.shape(&value)?[..] {
            [_, _, h, w] => Ok(Self { value, extents: [h, w], rank: 4 }),
            [n, c, w] => {
                let value = cx.reshape(&value, &[n, c, 1, w])?;
                Ok(Self { value, extents: [1, w], rank: 3 })
            }
            _ => {
                let ty = cx.ty(&value)?;
                fail_with(format!(
                    "only sequences (batch, channels, width), images (batch, channels, height, width) and volumes (batch, channels, \
                     depth, height, width) are supported, not {ty}"
                ))
            }
        }
    }

    /// Makes the border part of the image, and gives the window that then goes beyond it alone.
    fn pad_border(
        &mut self,
        cx: &mut Lowering,
        call: NodeCall<'_>,
        kernel: [usize; 2],
    ) -> Res<Window> {
        let given = given_window(call, self, kernel)?;
        let ceiled = given.with_ceil_mode(self.extents, kernel);
        let [top, left, bottom, right] = given.pads;
        if given.pads != [0; 4] {
            let (low, high) = (vec![0, 0, top, left], vec![0, 0, bottom, right]);
            let pad = Pad { low, high, interior: vec![0; 4], value: Scalar(0.0) };
            self.value = cx.apply(Op::Pad(pad), std::slice::from_ref(&self.value))?;
        }
        self.extents = [self.extents[0] + top + bottom, self.extents[1] + left + right];
        let beyond = [0, 1, 2, 3].map(|side| ceiled.pads[side] - given.pads[side]);
        Ok(Window { pads: beyond, ..given })
    }

    /// Returns a result in the model's rank.
    fn restore_rank(&self, cx: &mut Lowering, y: Val) -> Res<Val> {
        match (self.rank, &cx.shape(&y)?[..]) {
            (3, &[n, c, _, w]) => cx.reshape(&y, &[n, c, w]),
            _ => Ok(y),
        }
    }
}

/// Lowers batch normalization with the statistics that the file holds. Training uses those of the batch, and updates the running ones.
pub(super) fn lower_batch_normalization(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let operands = cx.operands(call)?;
    let [epsilon, momentum] = [call.float("epsilon", 1e-5)?, call.float("momentum", 0.9)?]
        .map(|x| Scalar(shortest_number(x)));
    let op = Op::BatchNorm(BatchNorm { epsilon, momentum });
    Ok(vec![cx.apply(op, &operands)?])
}

fn read_pool(cx: &mut Lowering, call: NodeCall<'_>) -> Res<(Image, [usize; 2], Window)> {
    let x = Image::from_operand(cx, call, 0)?;
    let Some(kernel) = read_steps(call, "kernel_shape", x.rank)? else {
        return fail_with("the attribute `kernel_shape` is missing");
    };
    let mut window = given_window(call, &x, kernel)?;
    if call.int("ceil_mode", 0)? != 0 {
        window = window.with_ceil_mode(x.extents, kernel);
    }
    Ok((x, kernel, window))
}

/// Reads the strides, border and dilations of a node's window. Every place of the window lies within the border; `ceil_mode` is not considered.
fn given_window(call: NodeCall<'_>, x: &Image, kernel: [usize; 2]) -> Res<Window> {
    let strides = read_steps(call, "strides", x.rank)?.unwrap_or([1; 2]);
    let dilations = read_steps(call, "dilations", x.rank)?.unwrap_or([1; 2]);
    if kernel.contains(&0) {
        return fail_with("the kernel is empty");
    }
    let pads = match call.text("auto_pad", "NOTSET")? {
        "NOTSET" => given_pads(call, x.rank)?,
        "VALID" => [0; 4],
        same @ ("SAME_UPPER" | "SAME_LOWER") => {
            let of = |dim: usize| {
                let extent = x.extents[dim].max(1);
                let reach = dilations[dim] * (kernel[dim] - 1) + 1;
                let needed = (extent.div_ceil(strides[dim]) - 1) * strides[dim] + reach;
                needed.saturating_sub(extent)
            };
            let (rows, columns) = (of(0), of(1));
            let less = [rows / 2, columns / 2];
            let more = [rows - less[0], columns - less[1]];
            let [first, last] = if same == "SAME_UPPER" { [less, more] } else { [more, less] };
            [first[0], first[1], last[0], last[1]]
        }
        other => return fail_with(format!("there is no auto_pad `{other}`")),
    };
    Ok(Window { strides, pads, dilations })
}

fn given_pads(call: NodeCall<'_>, rank: usize) -> Res<[usize; 4]> {
    let Some(pads) = call.ints("pads")? else { return Ok([0; 4]) };
    let pads: Vec<usize> = pads.iter().filter_map(|&pad| usize::try_from(pad).ok()).collect();
    match (rank, &pads[..]) {
        (4, &[top, left, bottom, right]) => Ok([top, left, bottom, right]),
        (3, &[left, right]) => Ok([0, left, 0, right]),
        _ => fail_with(format!(
            "the attribute `pads` must be {} numbers, none negative",
            2 * (rank - 2)
        )),
    }
}

/// Reads a number of at least 1 for height and one for width.
fn read_steps(call: NodeCall<'_>, name: &str, rank: usize) -> Res<Option<[usize; 2]>> {
    match read_numbers(call, name, rank)? {
        Some(found) if found.contains(&0) => {
            fail_with(format!("the attribute `{name}` must be 1 or more"))
        }
        found => Ok(found),
    }
}

/// A number for height and one for width; of a sequence the width's alone is given, and nothing is added to its height.
fn read_numbers(call: NodeCall<'_>, name: &str, rank: usize) -> Res<Option<[usize; 2]>> {
    let Some(values) = call.ints(name)? else { return Ok(None) };
    let number = |value: i64| match usize::try_from(value) {
        Ok(value) if value < 1 << 20 => Ok(value),
        _ => {
            fail_with(format!("the attribute `{name}` must not be negative or huge, as {value} is"))
        }
    };
    match (rank, values) {
        (4, &[h, w]) => Ok(Some([number(h)?, number(w)?])),
        (3, &[w]) => Ok(Some([usize::from(name != "output_padding"), number(w)?])),
        _ => fail_with(format!("the attribute `{name}` must be {} numbers", rank - 2)),
    }
}

fn check_positive(value: i64, name: &str) -> Res<usize> {
    match usize::try_from(value) {
        Ok(value) if (1..1 << 20).contains(&value) => Ok(value),
        _ => fail_with(format!(
            "the attribute `{name}` must be 1 or more, and not huge, not {value}"
        )),
    }
}
