//! How fast convolution is on this machine, at the sizes of ResNet-18 and MobileNetV2 on pictures of 32 x 32, batch 64, beside a
//! product of large matrices: `cargo run --release -p graphc-kernels --example pictures -- [THREADS]`.

use std::time::{Duration, Instant};

use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::Op;
use graphc_ir::ops::*;
use graphc_ir::types::{DType, TensorType};
use graphc_kernels::{KernelContext, Scratch, ThreadPool, View, ViewMut, prepare};

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

struct Bench {
    threads: usize,
    pool: ThreadPool,
    scratch: Scratch,
}

impl Bench {
    fn time(&mut self, op: &Op, operands: &[TensorType]) -> f64 {
        let results = op.infer(&operands.iter().collect::<Vec<_>>()).expect("the types fit");
        let call = prepare(op, operands, &results, DeviceKind::Cpu).expect("a kernel");
        let fill = |ty: &TensorType| {
            (0..ty.elements()).map(|i| (i * 7919 % 1000) as f32 * 1e-3 - 0.5).collect::<Vec<f32>>()
        };
        let inputs: Vec<Vec<f32>> = operands.iter().map(fill).collect();
        let mut outputs: Vec<Vec<f32>> = results.iter().map(fill).collect();
        let views: Vec<View<'_>> = inputs
            .iter()
            .zip(operands)
            .map(|(m, ty)| View::whole(ty.dtype, &ty.shape, m))
            .collect();
        let mut out: Vec<ViewMut<'_>> = outputs
            .iter_mut()
            .zip(&results)
            .map(|(m, ty)| ViewMut::whole(ty.dtype, &ty.shape, m))
            .collect();
        let pool = (self.threads > 1).then_some(&self.pool);
        let (mut best, start, mut count) = (f64::INFINITY, Instant::now(), 0);
        while count < 5 || start.elapsed().as_secs_f64() < 0.03 {
            let begin = Instant::now();
            let mut cx = KernelContext {
                seed: 0,
                step: 0,
                threads: self.threads,
                pool,
                scratch: &mut self.scratch,
            };
            call.launch(&views, &mut out, &mut cx).expect("the views fit");
            best = best.min(begin.elapsed().as_secs_f64());
            count += 1;
        }
        best
    }
}

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

/// Products without border.
fn useful(window: Window, extent: usize, kernel: usize, places: usize) -> usize {
    let places = (0..places)
        .map(|p| (0..kernel).filter(|&k| window.source(0, p, k, extent).is_some()).count());
    places.sum()
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|t| t.parse().ok()).unwrap_or(1);
    let only = std::env::args().nth(2).unwrap_or_default();
    let name = |index| format!("thread {index}");
    let pool = ThreadPool::new(threads, Duration::from_millis(1), name).expect("threads start");
    let mut bench = Bench { threads, pool, scratch: Scratch::new() };
    let batch = 64;
    let square = f32s(&[1024, 1024]);
    let seconds = bench.time(
        &Op::MatMul(MatMul { transpose_a: false, transpose_b: false }),
        &[square.clone(), square],
    );
    let peak = 2.0 * 1024f64.powi(3) / seconds;
    println!("product of 1024 x 1024 matrices: {:.1} GFLOP/s", peak * 1e-9);
    for (model, shapes) in [("ResNet-18", RESNET), ("MobileNetV2", MOBILENET)] {
        if !model.starts_with(&only) {
            continue;
        }
        let mut sums = [0.0; 3];
        println!(
            "{model:44} forward, input gradient, kernel gradient: us, GFLOP/s without border, share of the product"
        );
        for &(side, channels, features, kernel, stride, groups, times) in shapes {
            let window = Window { strides: [stride; 2], pads: [kernel / 2; 4], dilations: [1; 2] };
            let x = f32s(&[batch, side, side, channels]);
            let k = f32s(&[features, channels / groups, kernel, kernel]);
            let forward = Op::Convolution(Convolution { window, groups, channels_last: true });
            let y = forward.infer(&[&x, &k]).expect("fits").swap_remove(0);
            let places = y.shape[1];
            let input = Op::ConvolutionInputGrad(ConvolutionInputGrad {
                window,
                groups,
                extents: [side; 2],
                channels_last: true,
            });
            let kernels = Op::ConvolutionKernelGrad(ConvolutionKernelGrad {
                window,
                groups,
                extents: [kernel; 2],
                channels_last: true,
            });
            let met = useful(window, side, kernel, places);
            let flops = 2.0 * (batch * met * met * channels / groups * features) as f64;
            let of = [
                bench.time(&forward, &[x.clone(), k.clone()]),
                bench.time(&input, &[k.clone(), y.clone()]),
                bench.time(&kernels, &[x, y]),
            ];
            let name = format!(
                "{side:3} x {side:2} x {channels:3} -> {features:4}, {kernel} x {kernel} / {stride}, {groups:3} groups, {times} times"
            );
            print!("{name:44}");
            for (sum, seconds) in sums.iter_mut().zip(of) {
                *sum += seconds * times as f64;
                print!(
                    " {:8.1} {:6.1} {:3.0} %",
                    seconds * 1e6,
                    flops / seconds * 1e-9,
                    100.0 * flops / seconds / peak
                );
            }
            println!();
        }
        println!(
            "{:44} {:.2} ms, {:.2} ms, {:.2} ms",
            "a step",
            sums[0] * 1e3,
            sums[1] * 1e3,
            sums[2] * 1e3
        );
    }
}
