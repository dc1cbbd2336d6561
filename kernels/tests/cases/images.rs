//! Convolutions, pools and interpolation.

use graphc_ir::op::Op;
use graphc_ir::ops::*;
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};

use super::super::common::{Random, ordinary};
use super::{Example, Examples, FLOATS, ty};

/// A convolution: images `[n, h, w, channels]` whatever their layout, kernels of `outputs` channels.
pub struct Setting {
    pub image: [usize; 4],
    pub outputs: usize,
    pub kernel: [usize; 2],
    pub window: Window,
    pub groups: usize,
    pub channels_last: bool,
}

pub fn examples() -> Vec<Example> {
    let to = &mut Examples::new(12);
    for dtype in FLOATS {
        // Kernels of both halves differ in a few instructions alone.
        let few = if dtype == DType::F16 { 1 } else { usize::MAX };
        for setting in settings().iter().take(few) {
            convolutions(to, dtype, setting);
        }
        for channels_last in [true, false].into_iter().take(few) {
            pools(to, dtype, channels_last);
        }
        resizes(to, dtype);
    }
    for setting in [empty([0, 5, 5, 3]), empty([2, 5, 5, 0])] {
        convolutions(to, DType::F32, &setting);
    }
    parts_of_groups(to);
    large(to, DType::F32);
    large(to, DType::BF16);
    std::mem::take(&mut to.all).into_iter().chain(products()).collect()
}

pub fn setting(image: [usize; 4], outputs: usize, kernel: usize, stride: usize) -> Setting {
    let pad = kernel / 2;
    let window = Window { strides: [stride; 2], pads: [pad; 4], dilations: [1; 2] };
    let kernel = [kernel; 2];
    Setting { image, outputs, kernel, window, groups: 1, channels_last: true }
}

/// Returns settings with extents that fill tiles only in part, steps and holes of the window, both layouts, and groups of many, few and
/// single channels. Some images have one place, where windows of one element meet it, or meet padding alone.
fn settings() -> Vec<Setting> {
    let uneven = Window { strides: [2, 1], pads: [2, 0, 1, 1], dilations: [1, 2] };
    let beside = Window { strides: [3; 2], pads: [1; 4], dilations: [1; 2] };
    vec![
        setting([2, 7, 6, 24], 40, 3, 2),
        setting([3, 5, 4, 7], 70, 3, 1),
        setting([1, 3, 2, 70], 5, 3, 1),
        Setting { window: uneven, kernel: [3, 2], ..setting([2, 9, 8, 16], 8, 3, 1) },
        Setting { channels_last: false, ..setting([2, 6, 7, 5], 9, 3, 2) },
        Setting { groups: 2, ..setting([2, 4, 5, 32], 48, 3, 1) },
        setting([5, 1, 1, 24], 40, 1, 1),
        Setting { window: beside, ..setting([5, 1, 1, 24], 40, 1, 1) },
        // What are products where channels lie last.
        Setting { channels_last: false, ..setting([5, 1, 1, 24], 40, 1, 1) },
        Setting { groups: 2, window: beside, ..setting([5, 1, 1, 48], 80, 1, 1) },
        Setting { groups: 24, ..setting([2, 6, 5, 24], 24, 3, 1) },
        Setting { groups: 3, ..setting([2, 6, 5, 6], 12, 3, 2) },
        Setting { groups: 6, channels_last: false, ..setting([2, 6, 5, 6], 6, 3, 2) },
    ]
}

/// Convolutions and gradients that are products of matrices: windows of one element, some of which step over elements or meet padding
/// alone, and larger ones with many columns.
pub fn products() -> Vec<Example> {
    let to = &mut Examples::new(13);
    let uneven = Window { strides: [2, 1], pads: [2, 0, 1, 1], dilations: [1, 2] };
    let beside = Window { strides: [3; 2], pads: [1; 4], dilations: [1; 2] };
    for dtype in [DType::F32, DType::BF16] {
        let one = setting([2, 5, 6, 24], 10, 1, 1);
        each(operands(dtype, &one), |op, types| to.whole(op, types, 1e-4));
        for window in [Window { strides: [2; 2], ..Window::PLAIN }, beside] {
            let one = Setting { window, ..setting([2, 5, 6, 7], 10, 1, 1) };
            each(operands(dtype, &one), |op, types| to.whole(op, types, 1e-4));
        }
    }
    let wide = Setting { window: uneven, kernel: [3, 2], ..setting([2, 6, 5, 8], 136, 3, 1) };
    let [forward, _, of_k] = operands(DType::BF16, &wide);
    let [_, of_x, _] = operands(DType::BF16, &setting([1, 5, 4, 128], 16, 3, 1));
    each([forward, of_x, of_k], |op, types| to.whole(op, types, 1e-4));
    // Rows of fewer channels than an access to memory brings, with zeros behind them.
    let [forward, _, of_k] = operands(DType::F16, &setting([2, 6, 5, 3], 40, 3, 2));
    let [_, of_x, _] = operands(DType::F16, &setting([2, 6, 5, 40], 3, 3, 1));
    each([forward, of_x, of_k], |op, types| to.whole(op, types, 1e-4));
    std::mem::take(&mut to.all)
}

fn each(all: [(Op, Vec<TensorType>); 3], mut add: impl FnMut(Op, &[TensorType])) {
    all.into_iter().for_each(|(op, types)| add(op, &types));
}

/// Groups of which ranks have some, or a part of their channels.
fn parts_of_groups(to: &mut Examples) {
    for (inputs, outputs) in [(4, 2), (4, 6), (16, 10), (16, 8)] {
        let x = ty(DType::F32, &[2, 3, 4, 2 * inputs]);
        let k = ty(DType::F32, &[2 * outputs, inputs, 1, 1]);
        let op = Convolution { window: Window::PLAIN, groups: 2, channels_last: true };
        for hierarchy in [vec![2], vec![2, 2], vec![2, 2]] {
            let types = [x.clone(), k.clone()];
            to.filled(&hierarchy, Op::Convolution(op), &types, 2e-5, &mut ordinary);
        }
    }
}

/// Adds a convolution of so many places that tiles are the largest.
fn large(to: &mut Examples, dtype: DType) {
    let (x, k) = (ty(dtype, &[2, 92, 93, 8]), ty(dtype, &[68, 8, 1, 2]));
    let op = Convolution { window: Window::PLAIN, groups: 1, channels_last: true };
    to.whole(Op::Convolution(op), &[x, k], 2e-5);
}

fn empty(image: [usize; 4]) -> Setting {
    setting(image, 4, 3, 1)
}

pub fn convolutions(to: &mut Examples, dtype: DType, setting: &Setting) {
    let [forward, of_x, of_k] = operands(dtype, setting);
    to.both(forward.0, &forward.1, 2e-5);
    to.both(of_x.0, &of_x.1, 4e-5);
    to.both(of_k.0, &of_k.1, 1e-4);
}

/// A convolution and both gradients, with the types of their operands.
fn operands(dtype: DType, setting: &Setting) -> [(Op, Vec<TensorType>); 3] {
    let &Setting { image: [n, h, w, c], outputs, kernel, window, groups, channels_last } = setting;
    let x = ty(dtype, &if channels_last { [n, h, w, c] } else { [n, c, h, w] });
    let k = ty(dtype, &[outputs, c / groups, kernel[0], kernel[1]]);
    let op = Op::Convolution(Convolution { window, groups, channels_last });
    let y = op.infer_types(&[&x, &k]).expect("it fits").swap_remove(0);
    let of_x = ConvolutionInputGrad { window, groups, extents: [h, w], channels_last };
    let of_k = ConvolutionKernelGrad { window, groups, extents: kernel, channels_last };
    [
        (op, vec![x.clone(), k.clone()]),
        (Op::ConvolutionInputGrad(of_x), vec![k, y.clone()]),
        (Op::ConvolutionKernelGrad(of_k), vec![x, y]),
    ]
}

fn pools(to: &mut Examples, dtype: DType, channels_last: bool) {
    let windows = [
        Window { strides: [2; 2], pads: [1; 4], dilations: [1; 2] },
        Window { strides: [1, 2], pads: [0, 2, 1, 1], dilations: [2, 1] },
    ];
    for (window, channels) in windows.into_iter().zip([8, 3]) {
        let (kernel, [h, w]) = ([2, 3], [7, 8]);
        let shape = if channels_last { [2, h, w, channels] } else { [2, channels, h, w] };
        let x = ty(dtype, &shape);
        let op = Op::MaxPool(MaxPool { kernel, window, channels_last });
        let y = op.infer_types(&[&x]).expect("it fits").swap_remove(0);
        // Many are equal: the first of them counts; and some are no numbers.
        let coarse = &mut |random: &mut Random, operand: usize, _: DType| match random.below(30) {
            0 if operand == 0 => f64::NAN,
            _ => random.below(4) as f64,
        };
        to.both_filled(op, std::slice::from_ref(&x), 0.0, coarse);
        let op = Op::MaxPoolGrad(MaxPoolGrad { kernel, window, channels_last });
        to.both_filled(op, &[x.clone(), y.clone()], 1e-6, coarse);
        let count_border = channels == 8;
        let op = Op::AveragePool(AveragePool { kernel, window, count_border, channels_last });
        to.both(op, &[x], 2e-6);
        let extents = [h, w];
        let op = AveragePoolGrad { kernel, window, count_border, extents, channels_last };
        to.both(Op::AveragePoolGrad(op), &[y], 2e-6);
    }
}

fn resizes(to: &mut Examples, dtype: DType) {
    let sampling = |filter, coordinates, scale, smooth| {
        let scale = Scalar(f64::from(scale));
        Sampling { filter, coordinates, scale, smooth, inside: smooth }
    };
    let linear = sampling(Filter::Linear, Coordinates::HalfPixel, 13.0f32 / 5.0, false);
    let cubic =
        sampling(Filter::Cubic(Scalar(-0.75)), Coordinates::AlignCorners, 4.0f32 / 9.0, true);
    for (shape, axis, extent, sampling) in
        [([3, 5, 8], 1, 13, linear), ([2, 7, 9], 2, 4, cubic), ([0, 5, 2], 1, 13, linear)]
    {
        resized(to, dtype, &shape, (axis, extent), sampling);
    }
}

pub fn resized(
    to: &mut Examples,
    dtype: DType,
    shape: &[usize],
    (axis, extent): (usize, usize),
    sampling: Sampling,
) {
    let op = Op::Resize(Resize { axis, extent, sampling });
    let x = ty(dtype, shape);
    let y = op.infer_types(&[&x]).expect("it fits").swap_remove(0);
    to.filled(&[1], op, std::slice::from_ref(&x), 2e-5, &mut ordinary);
    let op = Op::ResizeGrad(ResizeGrad { axis, extent: shape[axis], sampling });
    to.filled(&[2], op, &[y], 2e-5, &mut ordinary);
}
