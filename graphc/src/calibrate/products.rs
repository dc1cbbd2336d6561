//! Measures matrix products by size and shape, and attention.

use std::collections::BTreeMap;

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::{AttentionShape, Op};
use graphc_ir::ops::{Attention, AttentionGrad};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::DType;

use super::bench::{Bench, broadcast_weight, split_rows};
use super::{AttentionRate, CalibrateError, ProductRate, Rates};

/// Rows and columns of square products.
const SIZES: [usize; 10] = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];

/// Square products by element type, as far as there are kernels for it.
pub(super) fn measure_squares(bench: Bench<'_>, launch: f64) -> Result<Rates, CalibrateError> {
    let mut rates = BTreeMap::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        match squares_of(bench, dtype, launch) {
            Ok(of) => _ = rates.insert(dtype.name(), of),
            Err(error) if dtype == DType::F32 => return Err(error),
            // There is no kernel for this element type here.
            Err(_) => {}
        }
    }
    Ok(rates)
}

/// FLOPs and rates of square products.
fn squares_of(
    bench: Bench<'_>,
    dtype: DType,
    launch: f64,
) -> Result<Vec<(f64, f64)>, CalibrateError> {
    let mut rates: Vec<(f64, f64)> = Vec::new();
    for size in SIZES.into_iter().filter(|&size| size <= bench.effort.largest_matmul) {
        let (layers, flops) = (layers_of(size), 2.0 * (size as f64).powi(3));
        if rates.last().is_some_and(|(_, rate)| !bench.affords(layers, flops / rate)) {
            break;
        }
        rates.push((flops, measure_rate(bench, dtype, [size, size], launch)?));
    }
    Ok(rates)
}

fn layers_of(size: usize) -> usize {
    if size <= 128 { 32 } else { 4 }
}

/// FLOPs per second of products of a matrix of so many rows and columns by a square one.
fn measure_rate(
    bench: Bench<'_>,
    dtype: DType,
    [height, width]: [usize; 2],
    launch: f64,
) -> Result<f64, CalibrateError> {
    let begin = |g: &GraphBuilder| {
        let x = split_rows(g, "x", dtype, &[bench.effort.ranks * height, width]);
        vec![x, broadcast_weight(g, dtype, width)]
    };
    let product = |tensors: &[Tensor], last: &Tensor| last.matmul(&tensors[1]);
    let taken = bench.per_layer(layers_of(width), &begin, &product)?;
    Ok(2.0 * (height * width * width) as f64 / taken.at_work(launch))
}

/// Products that are no squares of whole tiles: few rows, many rows and few columns, and extents that no tile or load divides.
pub(super) fn measure_shapes(
    bench: Bench<'_>,
    squares: &Rates,
    launch: f64,
) -> Result<Vec<ProductRate>, CalibrateError> {
    let size = (bench.effort.largest_matmul / 4).max(32);
    // Rows of a multiple of 8 elements are whole loads of 16 bytes in half precision; those of one more are of 2.
    let shapes = [[16, size], [16 * size, 32], [size + 8, size + 8], [size + 9, size + 9]];
    let mut measured = Vec::new();
    for (&dtype, rates) in squares {
        for [height, width] in shapes {
            let (flops, best) = (2.0 * (height * width * width) as f64, best_rate(rates));
            // A tenth of the best rate is a guess of what odd shapes reach at the least.
            if bench.affords(layers_of(width), 10.0 * flops / best) {
                let of: DType = dtype.parse().expect("it is the name of one");
                let rate = measure_rate(bench, of, [height, width], launch)?;
                measured.push(ProductRate { dtype, rows: height, columns: width, rate });
            }
        }
    }
    Ok(measured)
}

/// The best rate.
fn best_rate(rates: &[(f64, f64)]) -> f64 {
    rates.iter().map(|rate| rate.1).fold(0.0, f64::max)
}

/// Attention with a causal mask, forward and backward: two lengths and two widths of heads.
pub(super) fn measure_attention(
    bench: Bench<'_>,
    squares: &Rates,
    launch: f64,
) -> Result<Vec<AttentionRate>, CalibrateError> {
    let is_half = bench.effort.device == DeviceKind::Cuda && squares.contains_key("bf16");
    let dtype = if is_half { DType::BF16 } else { DType::F32 };
    let size = bench.effort.largest_matmul;
    let [narrow, wide] = if size < 4096 { [32, 64] } else { [64, 128] };
    let (tokens, heads) = (size / 2, (size / 64).clamp(1, 8));
    let mut measured: Vec<AttentionRate> = Vec::new();
    for (length, width) in [(tokens / 8, narrow), (tokens, narrow), (tokens, wide)] {
        for backward in [false, true] {
            // Two products forward and five backward, of which a mask leaves half.
            let products = if backward { 5.0 } else { 2.0 };
            let flops = products * (heads * tokens * length * width) as f64;
            let last = measured.last();
            if last.is_some_and(|last| !bench.affords(ATTENTIONS, flops / last.rate)) {
                return Ok(measured);
            }
            let q = [tokens / length, length, heads, width];
            let rate = attention_rate(bench, dtype, q, backward, launch)?;
            let shape = AttentionShape { width, keys: length as f64 / 2.0, backward };
            measured.push(AttentionRate { dtype: dtype.name(), shape, rate });
        }
    }
    Ok(measured)
}

/// Layers of attention.
const ATTENTIONS: usize = 4;

/// FLOPs per second, as ops count them, of attention on queries `[batch, time, heads, width]` of each rank.
fn attention_rate(
    bench: Bench<'_>,
    dtype: DType,
    q: [usize; 4],
    backward: bool,
    launch: f64,
) -> Result<f64, CalibrateError> {
    let [batch, length, heads, width] = q;
    let (causal, scale) = (true, Scalar(1.0 / (width as f64).sqrt()));
    let begin = |g: &GraphBuilder| {
        let shape = [bench.effort.ranks * batch, length, heads, width];
        let [q, k, v] = ["q", "k", "v"].map(|name| split_rows(g, name, dtype, &shape));
        let made = match backward {
            true => g.apply_all(Op::Attention(Attention::new(causal, scale)), &[&q, &k, &v]),
            false => Vec::new(),
        };
        [vec![q, k, v], made].concat()
    };
    let layer = |tensors: &[Tensor], last: &Tensor| match tensors {
        [q, k, v, o, l] => {
            let gradient = Op::AttentionGrad(AttentionGrad::new(causal, scale));
            last.builder().apply_all(gradient, &[q, k, v, o, l, last]).swap_remove(0)
        }
        tensors => last.attention(&tensors[1], &tensors[2], causal),
    };
    let taken = bench.per_layer(ATTENTIONS, &begin, &layer)?;
    Ok(taken.flops / taken.at_work(launch))
}
