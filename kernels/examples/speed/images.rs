//! Convolution at the sizes of ResNet-18 and MobileNetV2 on images of 32 x 32 at batch 64: the forward pass and both gradients,
//! beside a product of large matrices.

use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::Op;
use graphc_ir::ops::*;
use graphc_ir::types::TensorType;
use graphc_kernels::prepare_op;

use crate::{Bench, f32s};

/// Images of a batch.
const BATCH: usize = 64;

/// Places of a side, channels, features, kernel, stride, groups, how often a step has it.
type Shape = (usize, usize, usize, usize, usize, usize, usize);

const RESNET: &[Shape] = &[
    (32, 3, 64, 7, 2, 1, 1),
    (8, 64, 64, 3, 1, 1, 4),
    (8, 64, 128, 3, 2, 1, 1),
    (8, 64, 128, 1, 2, 1, 1),
    (4, 128, 128, 3, 1, 1, 3),
    (4, 128, 256, 3, 2, 1, 1),
    (4, 128, 256, 1, 2, 1, 1),
    (2, 256, 256, 3, 1, 1, 3),
    (2, 256, 512, 3, 2, 1, 1),
    (2, 256, 512, 1, 2, 1, 1),
    (1, 512, 512, 3, 1, 1, 3),
];

const MOBILENET: &[Shape] = &[
    (32, 3, 32, 3, 2, 1, 1),
    (16, 32, 32, 3, 1, 32, 1),
    (16, 32, 16, 1, 1, 1, 1),
    (16, 16, 96, 1, 1, 1, 1),
    (16, 96, 96, 3, 2, 96, 1),
    (8, 96, 24, 1, 1, 1, 1),
    (8, 24, 144, 1, 1, 1, 2),
    (8, 144, 144, 3, 1, 144, 1),
    (8, 144, 24, 1, 1, 1, 1),
    (8, 144, 144, 3, 2, 144, 1),
    (4, 144, 32, 1, 1, 1, 1),
    (4, 32, 192, 1, 1, 1, 3),
    (4, 192, 192, 3, 1, 192, 2),
    (4, 192, 32, 1, 1, 1, 2),
    (4, 192, 192, 3, 2, 192, 1),
    (2, 192, 64, 1, 1, 1, 1),
    (2, 64, 384, 1, 1, 1, 4),
    (2, 384, 384, 3, 1, 384, 4),
    (2, 384, 64, 1, 1, 1, 3),
    (2, 384, 96, 1, 1, 1, 1),
    (2, 96, 576, 1, 1, 1, 3),
    (2, 576, 576, 3, 1, 576, 2),
    (2, 576, 96, 1, 1, 1, 2),
    (2, 576, 576, 3, 2, 576, 1),
    (1, 576, 160, 1, 1, 1, 1),
    (1, 160, 960, 1, 1, 1, 3),
    (1, 960, 960, 3, 1, 960, 3),
    (1, 960, 160, 1, 1, 1, 2),
    (1, 960, 320, 1, 1, 1, 1),
    (1, 320, 1280, 1, 1, 1, 1),
];

/// The least time of a call of an op on `f32`.
fn least(bench: &mut Bench, op: &Op, operands: &[TensorType]) -> f64 {
    let results = op.infer_types(&operands.iter().collect::<Vec<_>>()).expect("the types fit");
    let call = prepare_op(op, operands, &results, DeviceKind::Cpu).expect("a kernel");
    bench.least(operands, &results, 0.03, |x, y, cx| call.launch(x, y, cx))
}

/// Counts the pairs of a place and an element of the window that meets the image there, along one dim.
fn meetings(window: Window, extent: usize, kernel: usize, places: usize) -> usize {
    let places = (0..places)
        .map(|p| (0..kernel).filter(|&k| window.source_index(0, p, k, extent).is_some()).count());
    places.sum()
}

/// Times every shape, and sums up a step of each model.
pub fn images(bench: &mut Bench) {
    let square = f32s(&[1024, 1024]);
    let product = Op::MatMul(MatMul { transpose_a: false, transpose_b: false });
    let rate = 2.0 * 1024f64.powi(3) / least(bench, &product, &[square.clone(), square]);
    println!("product of 1024 x 1024 matrices: {:.1} GFLOP/s", rate * 1e-9);
    println!(
        "forward, input gradient, kernel gradient: us, GFLOP/s without border, share of the product"
    );
    for (model, shapes) in [("ResNet-18", RESNET), ("MobileNetV2", MOBILENET)] {
        let mut step = [0.0; 3];
        for shape in shapes {
            for (sum, seconds) in step.iter_mut().zip(row(bench, shape, rate)) {
                *sum += seconds * shape.6 as f64;
            }
        }
        let [forward, input, kernel] = step.map(|seconds| seconds * 1e3);
        println!("{model:44} {forward:.2} ms, {input:.2} ms, {kernel:.2} ms a step");
    }
}

/// Times the three ops of one shape, and prints them.
fn row(bench: &mut Bench, shape: &Shape, rate: f64) -> [f64; 3] {
    let &(side, channels, features, kernel, stride, groups, times) = shape;
    let window = Window { strides: [stride; 2], pads: [kernel / 2; 4], dilations: [1; 2] };
    let (extents, channels_last) = ([side; 2], true);
    let x = f32s(&[BATCH, side, side, channels]);
    let k = f32s(&[features, channels / groups, kernel, kernel]);
    let forward = Op::Convolution(Convolution { window, groups, channels_last });
    let y = forward.infer_types(&[&x, &k]).expect("fits").swap_remove(0);
    let met = meetings(window, side, kernel, y.shape[1]);
    let flops = 2.0 * (BATCH * met * met * channels / groups * features) as f64;
    let input = ConvolutionInputGrad { window, groups, extents, channels_last };
    let of_kernel = ConvolutionKernelGrad { window, groups, extents: [kernel; 2], channels_last };
    let seconds = [
        least(bench, &forward, &[x.clone(), k.clone()]),
        least(bench, &Op::ConvolutionInputGrad(input), &[k, y.clone()]),
        least(bench, &Op::ConvolutionKernelGrad(of_kernel), &[x, y]),
    ];
    let name = format!(
        "{side:2}^2 x {channels:3} -> {features:4}, {kernel}^2 / {stride}, {groups:3} groups, {times} x"
    );
    print!("{name:44}");
    for seconds in seconds {
        let reached = flops / seconds;
        print!(" {:8.1} {:6.1} {:4.0} %", seconds * 1e6, reached * 1e-9, 100.0 * reached / rate);
    }
    println!();
    seconds
}
