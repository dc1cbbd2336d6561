//! Machines known by name: what the hardware and the best published kernels on it allow. Peaks, memory and links are from the
//! makers' data sheets; shares of them that are reached are from papers, or fitted to measured trainings by the example
//! `training_table`, as is said beside each. `graphc calibrate` replaces a preset by what it measures.

use std::collections::BTreeMap;

use graphc_ir::mesh::DeviceKind;
use graphc_ir::plan::{AttentionShares, Cluster, Device, Framework, Level};

use super::Fitted;

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
        // 8 A100 of 40 GB (NVIDIA's data sheet: 40 GB at 1555 GB/s) as in `dgx-a100`. Between nodes 1600 Gbit/s of RoCE for 8 GPUs,
        // 25 GB/s each, of which the fitted rows of MPT reach less than a fifth.
        "a100-40gb" => (
            Device { memory: 40 * GIB, bandwidth: 1.555e12, ..a100() },
            a100_levels(Fitted::A100_40gbBetweenNodes.value()),
        ),
        // 8 A100: NVLink 3, 12 links of 25 GB/s (data sheet), of which NCCL reaches some 260 GB/s; an HDR (200 Gbit/s) adapter per
        // GPU, of which collectives of many nodes reach 56 %. Both fitted to steps of Megatron-LM.
        "dgx-a100" => (a100(), a100_levels(2.0 * Fitted::A100_4hdrBetweenNodes.value())),
        // The same with 4 HDR adapters for 8 GPUs.
        "dgx-a100-4hdr" => (a100(), a100_levels(Fitted::A100_4hdrBetweenNodes.value())),
        // 8 H100 SXM (data sheet: 80 GB at 3.35 TB/s).
        "dgx-h100" => (h100(80 * GIB, 3.35e12), hopper_levels()),
        // 8 H200 SXM (data sheet: 141 GB at 4.8 TB/s): the same chip with other memory. No row was measured on it.
        "h200" => (h100(141 * 1_000_000_000, 4.8e12), hopper_levels()),
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

/// The shares of the peak that products of so many FLOPs reach on GPUs of which nothing is measured.
const PRODUCTS: [(f64, f64); 4] = [(1e6, 0.01), (1e8, 0.15), (1e10, 0.6), (1e12, 0.75)];

/// The same curve where the largest products reach another share, in hundredths.
fn products_up_to(largest: f64) -> Vec<(f64, f64)> {
    let [.., (_, usual)] = PRODUCTS;
    let share = |share: f64| (100.0 * share * largest / usual).round() / 100.0;
    PRODUCTS.iter().map(|&(flops, of_peak)| (flops, share(of_peak))).collect()
}

fn cuda(memory: u64, peaks: &[(&str, f64)], bandwidth: f64) -> Device {
    Device {
        kind: DeviceKind::Cuda,
        memory,
        flops: flops(peaks),
        matmul_efficiency: PRODUCTS.to_vec(),
        attention: None,
        bandwidth,
        bandwidth_share: 1.0,
        launch: 4e-6,
        dispatch: 0.0,
        overlap: true,
    }
}

fn a100_levels(between_nodes: f64) -> Vec<Level> {
    vec![level(8, 5e-6, Fitted::A100WithinNodes.value()), level(0, 12e-6, between_nodes)]
}

fn v100() -> Device {
    cuda(16 * GIB, &[("f32", 15.7e12), ("f16", 125e12)], 900e9)
}

/// 8 GPUs with NVLink 4: 18 links of 25 GB/s (data sheet), of which NCCL reaches some 370 GB/s; an NDR (400 Gbit/s, 50 GB/s)
/// adapter per GPU, of which the fitted rows of MPT reach 31 GB/s.
fn hopper_levels() -> Vec<Level> {
    vec![level(8, 3e-6, 370e9), level(0, 7e-6, Fitted::H100BetweenNodes.value())]
}

/// Peaks and 80 GB at 2.039 TB/s: NVIDIA's data sheet of A100 SXM. The shares that products and memory-bound kernels reach are
/// fitted to steps of Megatron-LM (`benchmarks/README.md`). FlashAttention-2 reaches 73 % of the peak in the forward and 63 % in the
/// backward pass at its best (Dao, arXiv 2307.08691, section 4.1), with heads of 128: `forward` and `backward` are these
/// over the share of a head of 128; the halves follow its figures over widths and lengths.
fn a100() -> Device {
    let peaks = [("f32", 19.5e12), ("f16", 312e12), ("bf16", 312e12)];
    Device {
        matmul_efficiency: vec![
            (1e8, Fitted::A100Products1e8.value()),
            (3e9, Fitted::A100Products3e9.value()),
            (3e10, Fitted::A100Products3e10.value()),
            (3e11, Fitted::A100Products3e11.value()),
            (3e12, Fitted::A100Products3e12.value()),
            (3e13, Fitted::A100Products3e13.value()),
        ],
        attention: Some(AttentionShares {
            forward: 0.9,
            backward: 0.77,
            half_width: 30.0,
            half_keys: 190.0,
        }),
        bandwidth_share: Fitted::BandwidthShare.value(),
        ..cuda(80 * GIB, &peaks, 2.039e12)
    }
}

/// Peaks without sparsity: NVIDIA's data sheet of H100 SXM. Products reach less of them than on A100: fitted to rows of MPT. FlashAttention-2
/// reaches 34 to 37 % of the peak in the forward and 32 % in the backward pass with heads of 128 (Shah et al., arXiv
/// 2407.08608, figures 5 and 6). The share of the memory's bandwidth is that of A100.
fn h100(memory: u64, bandwidth: f64) -> Device {
    Device {
        attention: Some(AttentionShares {
            forward: 0.44,
            backward: 0.39,
            half_width: 30.0,
            half_keys: 190.0,
        }),
        bandwidth_share: Fitted::BandwidthShare.value(),
        matmul_efficiency: products_up_to(Fitted::H100Products.value()),
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

    #[test]
    fn products_of_other_gpus_follow_the_curve_in_hundredths() {
        assert_eq!(products_up_to(0.75), PRODUCTS);
        assert_eq!(products_up_to(0.66), [(1e6, 0.01), (1e8, 0.13), (1e10, 0.53), (1e12, 0.66)]);
    }
}
