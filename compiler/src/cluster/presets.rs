//! Machines known by name. Figures are those that the makers publish; latencies and reached shares of the peak are
//! typical of NCCL and cuBLAS on them, and `graphc calibrate` replaces them by measured ones.

use std::collections::BTreeMap;

use graphc_ir::mesh::DeviceKind;
use graphc_ir::plan::{AttentionShares, Cluster, Device, Framework, Level};

/// The names of all presets.
pub const PRESETS: [&str; 7] =
    ["cpu", "p3.16xlarge", "a100-40gb", "dgx-a100", "dgx-a100-4hdr", "dgx-h100", "h200"];

const GIB: u64 = 1 << 30;

/// The machine of this name; `None` where there is none.
pub fn preset(name: &str) -> Option<Cluster> {
    let (device, levels) = match name {
        "cpu" => (cpu(), vec![level(0, 2e-6, 4e9)]),
        // 8 V100: NVLink 2, 6 links of 25 GB/s; 25 Gbit/s of network shared by 8 ranks.
        "p3.16xlarge" => (v100(), vec![level(8, 4e-6, 120e9), level(0, 30e-6, 25e9 / 8.0 / 8.0)]),
        "a100-40gb" => (
            Device { memory: 40 * GIB, bandwidth: 1.555e12, ..a100() },
            vec![level(8, 5e-6, 260e9), level(0, 12e-6, 14e9)],
        ),
        // 8 A100: NVLink 3, 12 links of 25 GB/s, of which NCCL reaches some 260 GB/s; an HDR (200 Gbit/s) adapter per
        // GPU, of which collectives of many nodes reach 56 %.
        "dgx-a100" => (a100(), vec![level(8, 5e-6, 260e9), level(0, 12e-6, 14e9)]),
        // The same with 4 HDR adapters for 8 GPUs.
        "dgx-a100-4hdr" => (a100(), vec![level(8, 5e-6, 260e9), level(0, 12e-6, 7e9)]),
        // 8 H100: NVLink 4, 18 links of 25 GB/s; an NDR (400 Gbit/s) adapter per GPU.
        "dgx-h100" => (h100(80 * GIB, 3.35e12), vec![level(8, 3e-6, 370e9), level(0, 7e-6, 50e9)]),
        "h200" => {
            (h100(141 * 1_000_000_000, 4.8e12), vec![level(8, 3e-6, 370e9), level(0, 7e-6, 50e9)])
        }
        _ => return None,
    };
    let (axes, framework) = (Vec::new(), Framework::default());
    Some(Cluster { name: name.into(), device, levels, axes, framework })
}

fn level(size: usize, latency: f64, bandwidth: f64) -> Level {
    Level { size, latency, bandwidth }
}

fn flops(peaks: &[(&str, f64)]) -> BTreeMap<String, f64> {
    peaks.iter().map(|&(dtype, peak)| (dtype.to_string(), peak)).collect()
}

fn cpu() -> Device {
    Device {
        kind: DeviceKind::Cpu,
        memory: 4 * GIB,
        flops: flops(&[("f32", 100e9)]),
        matmul_efficiency: vec![(1e4, 0.1), (1e6, 0.4), (1e8, 0.8)],
        attention: None,
        bandwidth: 10e9,
        bandwidth_share: 1.0,
        launch: 1e-6,
        dispatch: 0.0,
        overlap: false,
    }
}

fn cuda(memory: u64, peaks: &[(&str, f64)], bandwidth: f64) -> Device {
    Device {
        kind: DeviceKind::Cuda,
        memory,
        flops: flops(peaks),
        matmul_efficiency: vec![(1e6, 0.01), (1e8, 0.15), (1e10, 0.6), (1e12, 0.75)],
        attention: None,
        bandwidth,
        bandwidth_share: 1.0,
        launch: 4e-6,
        dispatch: 0.0,
        overlap: true,
    }
}

fn v100() -> Device {
    cuda(16 * GIB, &[("f32", 15.7e12), ("f16", 125e12)], 900e9)
}

/// Shares of the peak and of the 2.039 TB/s of memory that kernels reach, as measured steps of GPT training have it:
/// `benchmarks/README.md` says how they were found and how far off they are on rows that they were not found from.
fn a100() -> Device {
    let peaks = [("f32", 19.5e12), ("f16", 312e12), ("bf16", 312e12)];
    Device {
        matmul_efficiency: vec![
            (1e8, 0.1),
            (3e9, 0.46),
            (3e10, 0.6),
            (3e11, 0.73),
            (3e12, 0.765),
            (3e13, 0.86),
        ],
        attention: Some(AttentionShares {
            forward: 0.9,
            backward: 0.77,
            half_width: 30.0,
            half_keys: 190.0,
        }),
        bandwidth_share: 0.7357,
        ..cuda(80 * GIB, &peaks, 2.039e12)
    }
}

fn h100(memory: u64, bandwidth: f64) -> Device {
    Device {
        attention: Some(AttentionShares {
            forward: 0.44,
            backward: 0.39,
            half_width: 30.0,
            half_keys: 190.0,
        }),
        bandwidth_share: 0.75,
        ..cuda(memory, &[("f32", 67e12), ("f16", 989e12), ("bf16", 989e12)], bandwidth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_there_under_its_name() {
        for name in PRESETS {
            assert_eq!(preset(name).expect("listed").name, name);
        }
        assert_eq!(preset("toaster"), None);
    }
}
