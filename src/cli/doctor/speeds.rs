//! The speeds that a device reaches: products of matrices, memory, launches.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result};
use graphc::prelude::*;
use graphc_ir::mesh::DeviceKind;
use graphc_plan::{Cluster, Device};
use graphc_runtime::cards::list_cards;

use super::{DoctorLine, examine_item};

/// Steps that are timed; the median counts.
const TIMED: usize = 5;

/// A size is measured where a step of the one before it took less than this: so a slow device has figures too, of smaller sizes.
const QUICK_STEP: f64 = 0.02;

/// Parts of cards' names, and the presets that describe such cards; the first that fits counts.
const PRESETS: [(&str, &str); 9] = [
    ("GB300", "gb300-nvl72"),
    ("B300", "b300"),
    ("GB200", "gb200-nvl72"),
    ("B200", "b200"),
    ("H200", "h200"),
    ("H100", "dgx-h100"),
    ("A100-PCIE-40GB", "a100-40gb"),
    ("A100", "dgx-a100"),
    ("V100", "p3.16xlarge"),
];

/// The preset of these machines; `None` where none describes them.
fn find_preset(device: DeviceKind) -> Option<Cluster> {
    match device {
        DeviceKind::Cpu => preset("cpu"),
        DeviceKind::Cuda => {
            let cards = list_cards().ok()?;
            let name = &cards.first()?.name;
            let (_, of) = PRESETS.iter().find(|(part, _)| name.contains(part))?;
            preset(of)
        }
    }
}

/// The value of a preset, to stand beside what was measured.
fn preset_note(known: Option<&Cluster>, says: impl Fn(&Device) -> Option<String>) -> String {
    let said = known.and_then(|known| Some(format!("; {}: {}", known.name, says(&known.device)?)));
    said.unwrap_or_else(|| "; no preset says what such a device reaches".into())
}

/// Measures the speeds.
pub(super) fn measure_speeds(device: DeviceKind) -> Vec<DoctorLine> {
    let known = find_preset(device);
    let known = known.as_ref();
    let product = |dtype: DType| {
        move || {
            let again = 8;
            let build = |g: &GraphBuilder, side| chain_of_products(g, side, dtype, again);
            let (side, seconds) = largest_size(device, &[128, 1024, 4096], build)?;
            let flops = 2.0 * (side as f64).powi(3) * again as f64;
            let rate = |flops: f64| format!("{:.1} GFLOP/s", flops / 1e9);
            let beside =
                preset_note(known, |of| of.flops.get(dtype.name()).map(|&peak| rate(peak)));
            Ok(format!("{}, {side} x {side}{beside}", rate(flops / seconds)))
        }
    };
    let memory = || {
        let again = 8;
        let build = |g: &GraphBuilder, elements| chain_of_sums(g, elements, again);
        let (elements, seconds) = largest_size(device, &[1 << 14, 1 << 20, 1 << 26], build)?;
        // Each reads two numbers and writes one.
        let bytes = 12.0 * elements as f64 * again as f64;
        let rate = |bytes: f64| format!("{:.0} GB/s", bytes / 1e9);
        let beside = preset_note(known, |of| Some(rate(of.bandwidth)));
        Ok(format!("{}, passes over {} KiB{beside}", rate(bytes / seconds), elements / 256))
    };
    let launches = || {
        let again = 400;
        let seconds = seconds_per_step(device, |g| chain_of_transposes(g, again))?;
        let each = |seconds: f64| format!("{:.2} us each", seconds * 1e6);
        let beside = preset_note(known, |of| Some(each(of.launch)));
        Ok(format!("{}{beside}", each(seconds / again as f64)))
    };
    vec![
        examine_item("products of matrices, f32", product(DType::F32)),
        examine_item("products of matrices, bf16", product(DType::BF16)),
        examine_item("memory", memory),
        examine_item("launches of one stream", launches),
    ]
}

/// The largest of the ascending sizes that this device is quick enough for, and the seconds of a step.
fn largest_size(
    device: DeviceKind,
    sizes: &[usize],
    build: impl Fn(&GraphBuilder, usize),
) -> Result<(usize, f64)> {
    let mut reached = (0, 0.0);
    for &size in sizes {
        if reached.1 > QUICK_STEP {
            break;
        }
        reached = (size, seconds_per_step(device, |g| build(g, size))?);
    }
    Ok(reached)
}

/// The median time of a step of the graph that `build` makes, which begins with its first variable.
fn seconds_per_step(device: DeviceKind, build: impl FnOnce(&GraphBuilder)) -> Result<f64> {
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

fn uniform_init() -> Init {
    Init::Uniform { low: (-0.01).into(), high: 0.01.into() }
}

fn chain_of_products(g: &GraphBuilder, side: usize, dtype: DType, again: usize) {
    let a = g.variable("a", dtype, [side, side], uniform_init());
    let mut x = g.variable("x", dtype, [side, side], uniform_init());
    for _ in 0..again {
        x = x.matmul(&a);
    }
    g.output("out", &x.slice(0, 0..1).slice(1, 0..1));
}

fn chain_of_sums(g: &GraphBuilder, elements: usize, again: usize) {
    let a = g.variable("a", DType::F32, [elements], uniform_init());
    let mut x = g.variable("x", DType::F32, [elements], uniform_init());
    for _ in 0..again {
        // What cannot be joined with the next.
        x = (&x + &a).reshape(&[elements / 64, 64]).transpose(&[1, 0]).reshape(&[elements]);
    }
    g.output("out", &x.slice(0, 0..1));
}

fn chain_of_transposes(g: &GraphBuilder, again: usize) {
    let mut x = g.variable("x", DType::F32, [2, 3], uniform_init());
    for _ in 0..again / 2 {
        x = (x.transpose(&[1, 0]) + 1.0).transpose(&[1, 0]).exp();
    }
    g.output("out", &x);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preset_stands_beside_what_is_measured() {
        assert!(PRESETS.iter().all(|(_, of)| preset(of).is_some()));
        let cpu = find_preset(DeviceKind::Cpu);
        let says = |of: &Device| of.flops.get("f32").map(|peak| format!("{peak:e}"));
        assert_eq!(preset_note(cpu.as_ref(), says), "; cpu: 1e11");
        assert!(preset_note(cpu.as_ref(), |_| None).contains("no preset"));
        assert!(preset_note(None, says).contains("no preset"));
    }
}
