//! Measures convolutions by windows of 3 by 3 and their gradients.

use graphc_ir::builder::{BuildErrors, GraphBuilder, Tensor};
use graphc_ir::graph::Graph;
use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::{ConvolutionShape, Op};
use graphc_ir::ops::{Convolution, ConvolutionInputGrad, ConvolutionKernelGrad, Init, Window};
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_ir::types::DType;
use graphc_plan::CompileOptions;

use super::bench::{Bench, split_rows};
use super::{CalibrateError, ConvolutionRate, Rates};

/// Convolutions one behind the other.
const LAYERS: usize = 4;
/// The extents of windows.
const KERNEL: [usize; 2] = [3; 2];
/// Windows that step over nothing and leave images as large as they are.
const WINDOW: Window = Window { strides: [1; 2], pads: [1; 4], dilations: [1; 2] };

/// Images of each rank, whose channels a convolution keeps as many as they are.
#[derive(Clone, Copy)]
struct Images {
    dtype: DType,
    batch: usize,
    side: usize,
    channels: usize,
}

impl Images {
    fn flops(self) -> f64 {
        let Self { batch, side, channels, .. } = self;
        2.0 * (batch * side * side * 9 * channels * channels) as f64
    }

    /// A tensor of which each rank has so many.
    fn of_ranks(self, g: &GraphBuilder, name: &str, ranks: usize) -> Tensor {
        let Self { dtype, batch, side, channels } = self;
        split_rows(g, name, dtype, &[ranks * batch, side, side, channels])
    }

    /// A kernel that all ranks have, by which images keep their size on the whole.
    fn kernel(self, g: &GraphBuilder) -> Tensor {
        let Self { dtype, channels, .. } = self;
        let std = 1.0 / ((9 * channels) as f64).sqrt();
        let init = Init::Normal { mean: 0.0.into(), std: std.into() };
        let kernel = g.variable("k", dtype, [channels, channels, KERNEL[0], KERNEL[1]], init);
        kernel.pin(NdSbp(vec![Sbp::Broadcast]))
    }
}

/// Convolutions forward and backward of few channels and of many.
pub(super) fn measure_convolutions(
    bench: Bench<'_>,
    squares: &Rates,
    launch: f64,
) -> Result<Vec<ConvolutionRate>, CalibrateError> {
    let is_half = bench.effort.device == DeviceKind::Cuda && squares.contains_key("bf16");
    let dtype = if is_half { DType::BF16 } else { DType::F32 };
    let (batch, side, all) = match bench.effort.largest_matmul {
        4096.. => (64, 28, [64, 256]),
        1024.. => (4, 28, [16, 64]),
        _ => (1, 14, [8, 32]),
    };
    let mut measured: Vec<ConvolutionRate> = Vec::new();
    for channels in all {
        let images = Images { dtype, batch, side, channels };
        let flops = images.flops();
        for backward in [false, true] {
            let last = measured.last();
            if last.is_some_and(|last| !bench.affords(LAYERS, 2.0 * flops / last.rate)) {
                return Ok(Vec::new());
            }
            let rate = match backward {
                false => forward_rate(bench, images, launch)?,
                true => backward_rate(bench, images, launch)?,
            };
            let shape = ConvolutionShape { columns: channels, backward };
            measured.push(ConvolutionRate { dtype: dtype.name(), shape, flops, rate });
        }
    }
    Ok(measured)
}

/// FLOPs per second of convolutions one behind the other.
fn forward_rate(bench: Bench<'_>, images: Images, launch: f64) -> Result<f64, CalibrateError> {
    let begin =
        |g: &GraphBuilder| vec![images.of_ranks(g, "x", bench.effort.ranks), images.kernel(g)];
    let op = Op::Convolution(Convolution { window: WINDOW, groups: 1, channels_last: true });
    let layer = |tensors: &[Tensor], last: &Tensor| {
        last.builder().apply_all(op.clone(), &[last, &tensors[1]]).swap_remove(0)
    };
    let taken = bench.per_layer(LAYERS, &begin, &layer)?;
    Ok(taken.flops / taken.at_work(launch))
}

/// FLOPs per second of both gradients: that of images is the next layer's, those of kernels are summed at the end, so that ranks exchange one number.
fn backward_rate(bench: Bench<'_>, images: Images, launch: f64) -> Result<f64, CalibrateError> {
    let (window, groups, channels_last) = (WINDOW, 1, true);
    let extents = [images.side; 2];
    let of_x =
        Op::ConvolutionInputGrad(ConvolutionInputGrad { window, groups, extents, channels_last });
    let extents = KERNEL;
    let of_k =
        Op::ConvolutionKernelGrad(ConvolutionKernelGrad { window, groups, extents, channels_last });
    let graph = |layers: usize| -> Result<Graph, BuildErrors> {
        let g = GraphBuilder::new("calibrate");
        let [x, mut dy] = ["x", "dy"].map(|name| images.of_ranks(&g, name, bench.effort.ranks));
        let k = images.kernel(&g);
        let mut sum: Option<Tensor> = None;
        for _ in 0..layers {
            let dk = g.apply_all(of_k.clone(), &[&x, &dy]).swap_remove(0);
            let next = dk.cast(DType::F32).sum(&[0, 1, 2, 3], false);
            sum = Some(sum.map_or_else(|| next.clone(), |sum| sum.add(&next)));
            dy = g.apply_all(of_x.clone(), &[&k, &dy]).swap_remove(0);
        }
        let last = dy.cast(DType::F32).sum(&[0, 1, 2, 3], false);
        g.output("out", &sum.map_or_else(|| last.clone(), |sum| sum.add(&last)));
        g.finish()
    };
    let taken = bench.time_more_layers(LAYERS, &graph, &CompileOptions::default())?;
    Ok(taken.flops / taken.at_work(launch))
}
