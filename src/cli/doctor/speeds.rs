//! What a device reaches: products of matrices, memory, launches.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result};
use graphc::prelude::*;
use graphc_ir::mesh::DeviceKind;

use super::{Line, looked};

/// Steps that are timed; the median counts.
const TIMED: usize = 5;

/// Measures.
pub(super) fn measure(device: DeviceKind) -> Vec<Line> {
    let side = 4096;
    let product = |dtype: DType| {
        move || {
            let again = 8;
            let seconds = seconds(device, |g| chain_of_products(g, side, dtype, again))?;
            let flops = 2.0 * (side as f64).powi(3) * again as f64;
            Ok(format!("{:.1} TFLOP/s", flops / seconds / 1e12))
        }
    };
    let memory = || {
        let (elements, again) = (1 << 26, 8);
        let seconds = seconds(device, |g| chain_of_sums(g, elements, again))?;
        // Each reads two numbers and writes one.
        let bytes = 12.0 * elements as f64 * again as f64;
        Ok(format!("{:.0} GB/s", bytes / seconds / 1e9))
    };
    let launches = || {
        let again = 400;
        let seconds = seconds(device, |g| chain_of_transposes(g, again))?;
        Ok(format!("{:.2} us each", seconds / again as f64 * 1e6))
    };
    vec![
        looked(&format!("products of {side} x {side}, f32"), product(DType::F32)),
        looked(&format!("products of {side} x {side}, bf16"), product(DType::BF16)),
        looked("memory, by passes over 256 MiB", memory),
        looked("launches of one stream", launches),
    ]
}

/// The median time of a step of the graph that `build` makes, which begins with its first variable.
fn seconds(device: DeviceKind, build: impl FnOnce(&GraphBuilder)) -> Result<f64> {
    let g = GraphBuilder::new("speed");
    build(&g);
    let cluster = preset("cpu").context("a preset")?;
    let plan = compile(g.finish()?, &CompileOptions::default(), &cluster, None)?.plan;
    let options = SessionOptions { device: Some(device), ..SessionOptions::default() };
    let mut session = Session::new(&plan, &BTreeMap::new(), options)?;
    let mut times = Vec::new();
    for step in 0..TIMED + 2 {
        let begun = Instant::now();
        session.step(BTreeMap::new())?.wait()?;
        // In the first two kernels are loaded and launches recorded.
        if step >= 2 {
            times.push(begun.elapsed().as_secs_f64());
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[TIMED / 2])
}

fn uniform() -> Init {
    Init::Uniform { low: (-0.01).into(), high: 0.01.into() }
}

fn chain_of_products(g: &GraphBuilder, side: usize, dtype: DType, again: usize) {
    let a = g.variable("a", dtype, [side, side], uniform());
    let mut x = g.variable("x", dtype, [side, side], uniform());
    for _ in 0..again {
        x = x.matmul(&a);
    }
    g.output("out", &x.slice(0, 0..1).slice(1, 0..1));
}

fn chain_of_sums(g: &GraphBuilder, elements: usize, again: usize) {
    let a = g.variable("a", DType::F32, [elements], uniform());
    let mut x = g.variable("x", DType::F32, [elements], uniform());
    for _ in 0..again {
        // What cannot be joined with the next.
        x = (&x + &a).reshape(&[elements / 64, 64]).transpose(&[1, 0]).reshape(&[elements]);
    }
    g.output("out", &x.slice(0, 0..1));
}

fn chain_of_transposes(g: &GraphBuilder, again: usize) {
    let mut x = g.variable("x", DType::F32, [2, 3], uniform());
    for _ in 0..again / 2 {
        x = (x.transpose(&[1, 0]) + 1.0).transpose(&[1, 0]).exp();
    }
    g.output("out", &x);
}
