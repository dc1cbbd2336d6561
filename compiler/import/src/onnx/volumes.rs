//! Convolution and pooling of volumes `[n, channels, depth, height, width]`, in terms of those of images.
//!
//! A convolution is the sum of one of images for each place in the depth of its kernels. Pooling of a volume is pooling of its images,
//! and then of their depth.

use graphc_ir::op::Op;
use graphc_ir::ops::{
    AveragePool, BinaryFunction, Convolution, ConvolutionInputGrad, MaxPool, Pad, Window,
};
use graphc_ir::scalar::Scalar;

use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with};

/// The most places in the depth of a kernel. Each of them is a convolution of its own.
const MOST_DEEP: usize = 1 << 10;

/// The window along one dim.
#[derive(Clone, Copy, Debug, PartialEq)]
struct WindowDim {
    kernel: usize,
    stride: usize,
    dilation: usize,
    /// The extents of the border before and behind.
    pads: [usize; 2],
}

impl WindowDim {
    fn reach(self) -> usize {
        self.dilation * (self.kernel - 1) + 1
    }
}

/// Whether an operand is a volume.
pub(super) fn is_volume(cx: &Lowering, call: NodeCall<'_>) -> Res<bool> {
    Ok(cx.shape(&cx.operand(call, 0)?)?.len() == 5)
}

fn volume_extents(cx: &Lowering, x: &Val) -> Res<[usize; 5]> {
    <[usize; 5]>::try_from(cx.shape(x)?).or_else(|_| fail_with("a volume has five dims"))
}

/// Reads three numbers of an attribute, that of the depth first.
fn read_three(call: NodeCall<'_>, name: &str, default: usize, least: usize) -> Res<[usize; 3]> {
    let Some(given) = call.ints(name)? else { return Ok([default; 3]) };
    let fits = |&value: &i64| usize::try_from(value).ok().filter(|v| (least..1 << 20).contains(v));
    let numbers: Option<Vec<usize>> = given.iter().map(fits).collect();
    match numbers.map(<[usize; 3]>::try_from) {
        Some(Ok(numbers)) => Ok(numbers),
        _ => fail_with(format!(
            "the attribute `{name}` must be 3 numbers from {least}, not {given:?}"
        )),
    }
}

/// Reads the windows along depth, height and width.
fn read_window_dims(
    call: NodeCall<'_>,
    extents: [usize; 3],
    kernel: [usize; 3],
) -> Res<[WindowDim; 3]> {
    if kernel.contains(&0) {
        return fail_with("the kernel is empty");
    }
    if kernel[0] > MOST_DEEP {
        return fail_with(format!("kernels are {} deep, and {MOST_DEEP} is the most", kernel[0]));
    }
    let (strides, dilations) =
        (read_three(call, "strides", 1, 1)?, read_three(call, "dilations", 1, 1)?);
    let given = call.ints("pads")?.unwrap_or(&[0; 6]);
    let pads: Vec<usize> = given
        .iter()
        .filter_map(|&pad| usize::try_from(pad).ok())
        .filter(|&pad| pad < 1 << 40)
        .collect();
    let auto = call.text("auto_pad", "NOTSET")?;
    let way = |dim: usize| {
        let (stride, dilation, kernel) = (strides[dim], dilations[dim], kernel[dim]);
        let mut way = WindowDim { kernel, stride, dilation, pads: [0; 2] };
        match auto {
            "NOTSET" if pads.len() == 6 => way.pads = [pads[dim], pads[dim + 3]],
            "NOTSET" => return fail_with("the attribute `pads` must be 6 numbers, none negative"),
            "VALID" => {}
            "SAME_UPPER" | "SAME_LOWER" => {
                let extent = extents[dim].max(1);
                let needed = (extent.div_ceil(stride) - 1) * stride + way.reach();
                let border = needed.saturating_sub(extent);
                let (less, more) = (border / 2, border - border / 2);
                way.pads = if auto == "SAME_UPPER" { [less, more] } else { [more, less] };
            }
            other => return fail_with(format!("there is no auto_pad `{other}`")),
        }
        Ok(way)
    };
    Ok([way(0)?, way(1)?, way(2)?])
}

fn image_window([rows, columns]: [WindowDim; 2]) -> Window {
    Window {
        strides: [rows.stride, columns.stride],
        pads: [rows.pads[0], columns.pads[0], rows.pads[1], columns.pads[1]],
        dilations: [rows.dilation, columns.dilation],
    }
}

fn read_groups(call: NodeCall<'_>) -> Res<usize> {
    match usize::try_from(call.int("group", 1)?) {
        Ok(groups @ 1..) => Ok(groups),
        _ => fail_with("the attribute `group` must be 1 or more"),
    }
}

/// Returns the extents of kernels. The attribute `kernel_shape`, if given, must repeat them.
fn read_kernels(cx: &mut Lowering, call: NodeCall<'_>) -> Res<(Val, [usize; 3])> {
    let value = cx.operand(call, 1)?;
    let [_, _, d, h, w] = volume_extents(cx, &value)?;
    match read_three(call, "kernel_shape", 0, 0)? {
        [0, 0, 0] => Ok((value, [d, h, w])),
        given if given == [d, h, w] => Ok((value, given)),
        given => {
            fail_with(format!("`kernel_shape` is {given:?}, and its kernels are {d}, {h}, {w}"))
        }
    }
}

pub(super) fn lower_convolution(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let (kernels, kernel) = read_kernels(cx, call)?;
    let [n, c, d, h, w] = volume_extents(cx, &x)?;
    let [deep, rows, columns] = read_window_dims(call, [d, h, w], kernel)?;
    let x = pad_dim(cx, &x, 2, [deep.pads[0], deep.pads[1], 0], 0.0)?;
    let x = cx.transpose(&x, vec![0, 2, 1, 3, 4])?;
    let Some(room) = (d + deep.pads[0] + deep.pads[1]).checked_sub(deep.reach()) else {
        return fail_with(format!("kernels of depth {} do not fit a depth of {d}", deep.reach()));
    };
    let depth = room / deep.stride + 1;
    let op = Convolution {
        window: image_window([rows, columns]),
        groups: read_groups(call)?,
        channels_last: false,
    };
    let mut sum: Option<Val> = None;
    for at in 0..deep.kernel {
        let first = at * deep.dilation;
        let end = first + (depth - 1) * deep.stride + 1;
        let layers = cx.slice(&x, 1, first, end, deep.stride)?;
        let images = cx.reshape(&layers, &[n * depth, c, h, w])?;
        let kernels = kernels_at(cx, &kernels, at)?;
        let y = cx.apply(Op::Convolution(op), &[images, kernels])?;
        sum = Some(add_into_sum(cx, sum, y)?);
    }
    let y = stack_images(cx, sum, [n, depth])?;
    add_bias(cx, call, y)
}

/// Returns the kernels at a place of their depth.
fn kernels_at(cx: &mut Lowering, kernels: &Val, at: usize) -> Res<Val> {
    let [o, c, _, h, w] = volume_extents(cx, kernels)?;
    let part = cx.slice(kernels, 2, at, at + 1, 1)?;
    cx.reshape(&part, &[o, c, h, w])
}

fn add_into_sum(cx: &mut Lowering, sum: Option<Val>, y: Val) -> Res<Val> {
    match sum {
        Some(sum) => cx.apply_binary(BinaryFunction::Add, &sum, &y),
        None => Ok(y),
    }
}

/// Arranges images `[n * depth, channels, height, width]` as volumes.
fn stack_images(cx: &mut Lowering, images: Option<Val>, [n, depth]: [usize; 2]) -> Res<Val> {
    let Some(images) = images else { return fail_with("the kernel is empty") };
    let [_, c, h, w] = cx.shape(&images)?[..] else { return fail_with("an image has four dims") };
    let y = cx.reshape(&images, &[n, depth, c, h, w])?;
    cx.transpose(&y, vec![0, 2, 1, 3, 4])
}

fn add_bias(cx: &mut Lowering, call: NodeCall<'_>, y: Val) -> Res<Vec<Val>> {
    let Some(bias) = cx.optional_operand(call, 2)? else { return Ok(vec![y]) };
    let count = cx.shape(&bias)?.iter().product();
    let bias = cx.reshape(&bias, &[count, 1, 1, 1])?;
    Ok(vec![cx.apply_binary(BinaryFunction::Add, &y, &bias)?])
}

/// A border of a dim: elements before, behind, and between two neighbours.
pub(super) fn pad_dim(
    cx: &mut Lowering,
    x: &Val,
    dim: usize,
    [before, behind, between]: [usize; 3],
    value: f64,
) -> Res<Val> {
    if [before, behind, between] == [0; 3] {
        return Ok(x.clone());
    }
    let rank = cx.shape(x)?.len();
    let along = |width: usize| {
        let mut widths = vec![0; rank];
        widths[dim] = width;
        widths
    };
    let (low, high, interior) = (along(before), along(behind), along(between));
    let pad = Pad { low, high, interior, value: Scalar(value) };
    cx.apply(Op::Pad(pad), std::slice::from_ref(x))
}

/// Each place in the depth of kernels makes images that lie as many places further on: their sum, without the border.
pub(super) fn lower_transposed_convolution(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    if call.text("auto_pad", "NOTSET")? != "NOTSET" || call.has_attribute("output_shape") {
        return fail_with("auto_pad and output_shape are not supported: give `pads`");
    }
    let x = cx.operand(call, 0)?;
    let (kernels, kernel) = read_kernels(cx, call)?;
    let [n, c, d, h, w] = volume_extents(cx, &x)?;
    let ways = read_window_dims(call, [d, h, w], kernel)?;
    let more = read_three(call, "output_padding", 0, 0)?;
    let mut extents = [0; 3];
    for (dim, extent) in [d, h, w].into_iter().enumerate() {
        let way = ways[dim];
        let whole = (extent.max(1) - 1) * way.stride + way.reach() + more[dim];
        match whole.checked_sub(way.pads[0] + way.pads[1]) {
            Some(left @ 1..) if more[dim] < way.stride => extents[dim] = left,
            Some(1..) => {
                return fail_with("the attribute `output_padding` must be less than the strides");
            }
            _ => return fail_with(format!("its border leaves nothing of {whole}")),
        }
    }
    let [deep, rows, columns] = ways;
    let images = cx.transpose(&x, vec![0, 2, 1, 3, 4])?;
    let images = cx.reshape(&images, &[n * d, c, h, w])?;
    let op = ConvolutionInputGrad {
        window: image_window([rows, columns]),
        groups: read_groups(call)?,
        extents: [extents[1], extents[2]],
        channels_last: false,
    };
    let whole = extents[0] + deep.pads[0] + deep.pads[1];
    let mut sum: Option<Val> = None;
    for at in 0..deep.kernel {
        let kernels = kernels_at(cx, &kernels, at)?;
        let y = cx.apply(Op::ConvolutionInputGrad(op), &[kernels, images.clone()])?;
        let y = stack_images(cx, Some(y), [n, d])?;
        let first = at * deep.dilation;
        let behind = whole - first - ((d.max(1) - 1) * deep.stride + 1);
        let y = pad_dim(cx, &y, 2, [first, behind, deep.stride - 1], 0.0)?;
        sum = Some(add_into_sum(cx, sum, y)?);
    }
    let Some(sum) = sum else { return fail_with("the kernel is empty") };
    let y = cx.slice(&sum, 2, deep.pads[0], deep.pads[0] + extents[0], 1)?;
    add_bias(cx, call, y)
}

pub(super) fn lower_max_pool(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    pool_volume(cx, call, |kernel, window| {
        Op::MaxPool(MaxPool { kernel, window, channels_last: false })
    })
}

/// The number of elements of a window is the product of those along each dim, so the mean is one of means.
pub(super) fn lower_average_pool(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let count_border = call.int("count_include_pad", 0)? != 0;
    if count_border && call.int("ceil_mode", 0)? != 0 {
        return fail_with("count_include_pad=1 with ceil_mode=1 is not supported of volumes");
    }
    pool_volume(cx, call, |kernel, window| {
        Op::AveragePool(AveragePool { kernel, window, count_border, channels_last: false })
    })
}

fn pool_volume(
    cx: &mut Lowering,
    call: NodeCall<'_>,
    op: impl Fn([usize; 2], Window) -> Op,
) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let [n, c, d, h, w] = volume_extents(cx, &x)?;
    let kernel = read_three(call, "kernel_shape", 0, 0)?;
    let [deep, rows, columns] = read_window_dims(call, [d, h, w], kernel)?;
    let ceil = call.int("ceil_mode", 0)? != 0;
    let of = |ways: [WindowDim; 2], extents: [usize; 2]| {
        let (kernel, window) = (ways.map(|way| way.kernel), image_window(ways));
        (kernel, if ceil { window.with_ceil_mode(extents, kernel) } else { window })
    };
    let images = cx.reshape(&x, &[n, c * d, h, w])?;
    let (kernel, flat) = of([rows, columns], [h, w]);
    let y = cx.apply(op(kernel, flat), &[images])?;
    let [_, _, h, w] = cx.shape(&y)?[..] else { return fail_with("an image has four dims") };
    let y = cx.reshape(&y, &[n, c, d, h * w])?;
    let still = WindowDim { kernel: 1, stride: 1, dilation: 1, pads: [0; 2] };
    let (kernel, upright) = of([deep, still], [d, h * w]);
    let y = cx.apply(op(kernel, upright), &[y])?;
    let depth = cx.shape(&y)?[2];
    Ok(vec![cx.reshape(&y, &[n, c, depth, h, w])?])
}
