//! Measures launches, passes over memory, and all-reduces.

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::op::Op;
use graphc_ir::ops::{CrossEntropy, Init};
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_ir::types::DType;
use graphc_plan::{AdamOptions, CompileOptions, Loss, Optimizer};

use super::CalibrateError;
use super::bench::{Bench, TimedWork, broadcast_weight, split_rows};

/// Products of a row of 8 by 8x8: next to no work.
pub(super) fn measure_launch(bench: Bench<'_>) -> Result<f64, CalibrateError> {
    let begin = |g: &GraphBuilder| {
        vec![
            split_rows(g, "x", DType::F32, &[bench.effort.ranks, 8]),
            broadcast_weight(g, DType::F32, 8),
        ]
    };
    let product = |tensors: &[Tensor], last: &Tensor| last.matmul(&tensors[1]);
    Ok(bench.per_layer(200, &begin, &product)?.seconds)
}

/// Columns of what passes go over.
const COLUMNS: usize = 1024;
/// Layers of passes.
const PASSES: usize = 6;

/// A kernel that multiplies nothing.
#[derive(Clone, Copy)]
enum MemoryPass {
    Chain,
    Reduction,
    Normalize,
    Softmax,
    CrossEntropy,
    Update,
}

/// Bytes per second of kernels that move memory, by kind, of the largest tensors that can be afforded.
pub(super) fn measure_bandwidths(
    bench: Bench<'_>,
    launch: f64,
) -> Result<Vec<(&'static str, f64)>, CalibrateError> {
    let (mut chain, mut count) = (None, 1);
    for share in [256, 16, 1] {
        let more = (bench.effort.largest_bytes / 4 / COLUMNS / share).max(1);
        let bytes = 2.0 * (more * COLUMNS * 4) as f64;
        if chain.is_some_and(|rate| !bench.affords(PASSES, bytes / rate)) {
            break;
        }
        (chain, count) = (Some(measure_pass(bench, MemoryPass::Chain, more, launch)?), more);
    }
    let mut measured = vec![("chains", chain.expect("the first size is always measured"))];
    for (name, kind) in [
        ("reductions", MemoryPass::Reduction),
        ("normalize", MemoryPass::Normalize),
        ("softmax", MemoryPass::Softmax),
        ("cross entropy", MemoryPass::CrossEntropy),
        ("updates", MemoryPass::Update),
    ] {
        measured.push((name, measure_pass(bench, kind, count, launch)?));
    }
    Ok(measured)
}

/// Bytes per second of a kind of pass over so many rows, as the cost model counts bytes.
fn measure_pass(
    bench: Bench<'_>,
    kind: MemoryPass,
    count: usize,
    launch: f64,
) -> Result<f64, CalibrateError> {
    let all = bench.effort.ranks * count;
    let matrix = |g: &GraphBuilder| split_rows(g, "x", DType::F32, &[all, COLUMNS]);
    let column = |g: &GraphBuilder, dims: &[usize]| {
        let of_rows = g.variable("column", DType::F32, dims, Init::Fill(1.0.into()));
        vec![of_rows.pin(NdSbp(vec![Sbp::Split(0)])), matrix(g)]
    };
    let whole = |g: &GraphBuilder| vec![matrix(g)];
    let taken = match kind {
        // What a chain ends in is summed before the next can begin.
        MemoryPass::Chain => bench
            .per_layer(PASSES, &whole, &|_, last| last.add(&last.sum(&[1], true).scale(1e-3)))?,
        MemoryPass::Reduction => {
            bench.per_layer(PASSES, &|g| column(g, &[all, 1]), &|tensors, last| {
                tensors[1].add(last).sum(&[1], true).scale(1e-3)
            })?
        }
        MemoryPass::Normalize => {
            bench.per_layer(PASSES, &whole, &|_, last| last.normalize(true, 1e-5))?
        }
        MemoryPass::Softmax => bench.per_layer(PASSES, &whole, &|_, last| last.softmax(1))?,
        // The loss of a row, some 7, is its label of the next layer.
        MemoryPass::CrossEntropy => {
            bench.per_layer(PASSES, &|g| column(g, &[all]), &|tensors, last| {
                let losses = Op::CrossEntropy(CrossEntropy::default());
                let labels = last.cast(DType::I64);
                last.builder().apply_all(losses, &[&tensors[1], &labels]).swap_remove(0)
            })?
        }
        MemoryPass::Update => measure_updates(bench, all)?,
    };
    Ok(taken.bytes / taken.at_work(launch))
}

/// Updates by Adam, with the gradient, of a network that is as many matrices and no more.
fn measure_updates(bench: Bench<'_>, all: usize) -> Result<TimedWork, CalibrateError> {
    let graph = |layers: usize| {
        let g = GraphBuilder::new("calibrate");
        let square = |layer: usize| {
            let name = format!("w{layer}");
            let matrix = split_rows(&g, &name, DType::F32, &[all, COLUMNS]);
            matrix.mul(&matrix).sum(&[0, 1], false)
        };
        let sums = (1..layers).fold(square(0), |sum, layer| sum.add(&square(layer)));
        g.output("sum", &sums);
        g.finish()
    };
    let adam = AdamOptions { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };
    let options = CompileOptions {
        loss: Some(Loss::Sum),
        optimizer: Some(Optimizer::AdamW(adam)),
        ..CompileOptions::default()
    };
    bench.time_more_layers(2, &graph, &options)
}

/// The least share of a layer with an all-reduce that this takes.
const LEAST_SHARE: f64 = 0.02;

/// Bytes and seconds of all-reduces of several sizes: what a chain with them takes beyond one that adds up within ranks.
pub(super) fn all_reduces(bench: Bench<'_>) -> Result<Vec<(usize, f64)>, CalibrateError> {
    let ranks = bench.effort.ranks;
    let sizes = [4 << 10, 64 << 10, 1 << 20, 8 << 20, 32 << 20, 256 << 20];
    let mut measured: Vec<(usize, f64)> = Vec::new();
    // Of one byte, with what is done beside the all-reduce.
    let mut rate: Option<f64> = None;
    for bytes in sizes.into_iter().filter(|&bytes| bytes <= bench.effort.largest_bytes) {
        let elements = bytes / 4;
        let layers = if bytes <= 64 << 10 { 32 } else { 4 };
        if rate.is_some_and(|rate| !bench.affords(layers, bytes as f64 * rate)) {
            break;
        }
        let begin = |g: &GraphBuilder| vec![split_rows(g, "x", DType::F32, &[ranks, 1, elements])];
        let whole = NdSbp(vec![Sbp::Broadcast]);
        let across = |_: &[Tensor], last: &Tensor| {
            last.add(&last.sum(&[0], true).pin(whole.clone()).scale(1e-3))
        };
        let within = |_: &[Tensor], last: &Tensor| last.add(&last.sum(&[1], true).scale(1e-3));
        let with = bench.per_layer(layers, &begin, &across)?.seconds;
        let without = bench.per_layer(layers, &begin, &within)?.seconds;
        // What it takes beside other work is never nothing.
        measured.push((bytes, (with - without).max(with * LEAST_SHARE)));
        rate = Some(with / bytes as f64);
    }
    Ok(measured)
}
