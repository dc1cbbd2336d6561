//! Machines known by name: the limits of the hardware, and those that the best published kernels reach on it.
//!
//! Beside each figure stands its source: the maker's data sheet, a paper or another publication, or the rows of
//! measured trainings that it is fitted to (`fitted.toml`). "Assumed" stands where there is none, with the reason for
//! the value. `graphc calibrate` replaces a preset by what it measures.
//!
//! Memories are what graphc plans for. Makers write GB for both units. What data sheets call 40 and 80 GB are 40 and
//! 80 GiB here, as `nvidia-smi` has it of A100 (40,960 and 81,920 MiB; of H100 81,559, half a percent less). The 141
//! GB of H200 are taken for 141e9 bytes, which is 131 GiB. That is less than the 143,771 MiB that `nvidia-smi` shows,
//! so plans for it are on the safe side; those for Blackwell likewise.
//!
//! Bandwidths are in 1e9 bytes per second throughout, of one direction. Nothing is taken off for what the driver and
//! libraries hold.

use std::collections::BTreeMap;

use graphc_ir::mesh::DeviceKind;
use graphc_plan::{AttentionShares, Cluster, Device, Framework, Level};

use super::Fitted;

/// The names of all presets.
pub const PRESETS: [&str; 14] = [
    "cpu",
    "p3.16xlarge",
    "a100-40gb",
    "dgx-a100",
    "dgx-a100-4hdr",
    "dgx-h100",
    "h100-96gb",
    "h200",
    "b200",
    "b300",
    "gb200-nvl72",
    "gb300-nvl72",
    "mi300x",
    "mi325x",
];

const GIB: u64 = 1 << 30;

/// Returns the machine of this name, or `None` if there is none.
pub fn preset(name: &str) -> Option<Cluster> {
    let (device, levels) = match name {
        // Assumed, of the order of shared memory between processes: 2 us for a message, 4 GB/s.
        "cpu" => (cpu_device(), vec![new_level(0, 2e-6, 4e9)]),
        "p3.16xlarge" => (v100_device(), v100_levels()),
        // 8 A100 of 40 GB (data sheet: 40 GB at 1555 GB/s). Between nodes 1600 Gbit/s of RoCE for 8 GPUs (tables of
        // mosaicml/llm-foundry), 25 GB/s each, of which the fitted rows of MPT reach a fifth.
        "a100-40gb" => (
            Device { memory: 40 * GIB, bandwidth: 1.555e12, ..a100_device() },
            a100_levels(Fitted::A100_40gbBetweenNodes.value()),
        ),
        // 8 A100 of 80 GB and an HDR adapter (200 Gbit/s, 25 GB/s) for each (data sheet of DGX A100). Assumed that of
        // these the same 56 % are reached as of the four adapters below.
        "dgx-a100" => (a100_device(), a100_levels(2.0 * Fitted::A100_4hdrBetweenNodes.value())),
        // The same with 4 HDR adapters for 8 GPUs, 12.5 GB/s each, of which fitted rows of Megatron-LM reach 56 %.
        "dgx-a100-4hdr" => (a100_device(), a100_levels(Fitted::A100_4hdrBetweenNodes.value())),
        // 8 H100 SXM (data sheet: 80 GB at 3.35 TB/s).
        "dgx-h100" => (h100_device(80 * GIB, 3.35e12), hopper_levels()),
        // 8 H200 SXM (data sheet: 141 GB at 4.8 TB/s): the same chip with other memory. No row was measured on it.
        "h200" => (h100_device(141 * 1_000_000_000, 4.8e12), hopper_levels()),
        // 8 H100 SXM with 96 GB of HBM2e at 2.4 TB/s and 500 W (benchmarks of pytorch/torchtitan, December 2024). Their peaks are assumed to be
        // those of 700 W, which they hold for less long.
        "h100-96gb" => (h100_device(96 * GIB, 2.4e12), hopper_levels()),
        // 8 B200 (data sheet of DGX B200: 1,440 GB and 64 TB/s for 8; of HGX B200: 36 PFLOP/s of FP16 with sparsity and 600 TFLOP/s of FP32
        // for 8), each with an adapter of 400 Gbit/s (data sheet of DGX B200).
        "b200" => (blackwell_device(180, 2.25e15, 75e12), blackwell_levels(8, 1.0)),
        // 8 B300 (data sheet of DGX B300: 2.3 TB and 64 TB/s for 8; of HGX B300: 36 PFLOP/s of FP16 with sparsity and 600 TFLOP/s of FP32 for 8), each with
        // an adapter of 800 Gbit/s (data sheet of DGX B300: ConnectX-8).
        "b300" => (blackwell_device(287, 2.25e15, 75e12), blackwell_levels(8, 2.0)),
        // 72 GPUs joined by NVLink, with 2 for each Grace (data sheet of GB200 NVL72: 13.4 TB, 576 TB/s, 360 PFLOP/s of FP16 with sparsity and
        // 5,760 TFLOP/s of FP32 for 72). Between racks 400 Gbit/s for each (data sheet of DGX GB200: 72 ConnectX-7).
        "gb200-nvl72" => (blackwell_device(186, 2.5e15, 80e12), blackwell_levels(72, 1.0)),
        // The same with more memory (data sheet of GB300 NVL72: 20 TB, 576 TB/s, 360 PFLOP/s of FP16 with sparsity and, rounded, 6 PFLOP/s of FP32
        // for 72). Between racks 800 Gbit/s for each (the same: ConnectX-8).
        "gb300-nvl72" => (blackwell_device(277, 2.5e15, 80e12), blackwell_levels(72, 2.0)),
        // 8 MI300X (data sheet: 192 GB at 5.3 TB/s).
        "mi300x" => (instinct_device(192 * GIB, 5.3e12), instinct_levels()),
        // 8 MI325X (data sheet: 256 GB at 6 TB/s): the same chip with other memory.
        "mi325x" => (instinct_device(256 * GIB, 6e12), instinct_levels()),
        _ => return None,
    };
    let (axes, framework) = (Vec::new(), Framework::default());
    Some(Cluster { name: name.into(), device, levels, axes, framework })
}

fn new_level(size: usize, latency: f64, bandwidth: f64) -> Level {
    Level { size, latency, bandwidth }
}

fn peaks_by_dtype(peaks: &[(&str, f64)]) -> BTreeMap<String, f64> {
    peaks.iter().map(|&(dtype, peak)| (dtype.to_string(), peak)).collect()
}

/// A core of a server, all of it assumed: processors differ too much for one figure, so `graphc calibrate` measures
/// the one at hand. 100 GFLOP/s are some 30 FLOPs a cycle at 3 GHz, as two units of 8 floats have that multiply and
/// add; small products reach less because a call costs something. 10 GB/s of memory are a core's share of a socket's,
/// and 4 GiB what tests and small machines have.
fn cpu_device() -> Device {
    Device {
        kind: DeviceKind::Cpu,
        memory: 4 * GIB,
        flops: peaks_by_dtype(&[("f32", 100e9)]),
        matmul_efficiency: vec![(1e4, 0.1), (1e6, 0.4), (1e8, 0.8)],
        matmul_efficiency_of: BTreeMap::new(),
        matmul_unaligned: 1.0,
        attention: None,
        convolution: None,
        bandwidth: 10e9,
        bandwidth_share: 1.0,
        launch: 1e-6,
        dispatch: 0.0,
        overlap: false,
        shared_by: None,
    }
}

/// The shares of the peak that products of so many FLOPs reach on GPUs about which nothing else is known. They were assumed before anything was
/// measured: three quarters if the product fills the chip many times over, and hundredths if it has tiles for only a few of its hundred processors.
/// No measured row at hand tells the lower points: linear products of MPT have 4e10 FLOPs and more, and Megatron-LM's ran on A100, which has points
/// of its own.
const PRODUCTS: [(f64, f64); 4] = [(1e6, 0.01), (1e8, 0.15), (1e10, 0.6), (1e12, 0.75)];

/// Scales the curve of [`PRODUCTS`] so that the largest products reach the share `largest`, and rounds it to hundredths.
fn products_up_to(largest: f64) -> Vec<(f64, f64)> {
    let [.., (_, usual)] = PRODUCTS;
    let share = |share: f64| (100.0 * share * largest / usual).round() / 100.0;
    PRODUCTS.iter().map(|&(flops, of_peak)| (flops, share(of_peak))).collect()
}

/// A GPU. Assumed: 4 us for a kernel, the order of a launch behind others in a stream. Rows at hand do not tell it
/// from the host's time for a kernel, which is longer. Compute and collectives run side by side, as streams do.
fn cuda_device(memory: u64, peaks: &[(&str, f64)], bandwidth: f64) -> Device {
    Device {
        kind: DeviceKind::Cuda,
        memory,
        flops: peaks_by_dtype(peaks),
        matmul_efficiency: PRODUCTS.to_vec(),
        matmul_efficiency_of: BTreeMap::new(),
        matmul_unaligned: 1.0,
        attention: None,
        convolution: None,
        bandwidth,
        bandwidth_share: 1.0,
        launch: 4e-6,
        dispatch: 0.0,
        overlap: true,
        shared_by: None,
    }
}

/// V100 SXM2 (data sheet: 15.7 and with tensor cores 125 TFLOP/s, 900 GB/s), of 16 GB. Nothing was measured on it.
fn v100_device() -> Device {
    cuda_device(16 * GIB, &[("f32", 15.7e12), ("f16", 125e12)], 900e9)
}

/// AWS's p3.16xlarge. Within: NVLink 2, 6 links of 25 GB/s (data sheet of V100), of which four fifths are assumed to
/// be reached, as NCCL reaches of H100's. Between: 25 Gbit/s (AWS's list of instances) shared by 8 ranks, all of it
/// assumed to be reached. 4 us and, by TCP, 30 us are assumed.
fn v100_levels() -> Vec<Level> {
    vec![new_level(8, 4e-6, 120e9), new_level(0, 30e-6, 25e9 / 8.0 / 8.0)]
}

/// The links of A100. Within a node there is NVLink 3, 12 links of 25 GB/s (data sheet). The part of these 300 GB/s that is reached is fitted to
/// steps of Megatron-LM, and is more than the 235 GB/s that NCCL itself has assumed for this chip (`src/graph/tuning.cc` of NVIDIA/nccl). Latencies
/// of 5 and 12 us are assumed: they were set together with the bandwidths when these were first compared with measured steps, and no search
/// determines them. By the same file of NCCL a step of a ring is 3.4 us over NVLink and 9.6 us, in later versions 14 us, between nodes (`hwLat`,
/// protocol "simple").
fn a100_levels(between_nodes: f64) -> Vec<Level> {
    vec![new_level(8, 5e-6, Fitted::A100WithinNodes.value()), new_level(0, 12e-6, between_nodes)]
}

/// The links of H100 and H200: 8 GPUs with NVLink 4, which is 18 links of 25 GB/s (data sheet), of which NCCL reaches 370 GB/s on a ring (its
/// maintainer in number 212 of NVIDIA/nccl-tests); an NDR (400 Gbit/s, 50 GB/s) adapter per GPU (data sheet of DGX H100), of which fitted rows of MPT
/// reach 31 GB/s. Latencies of 3 and 7 us are assumed, a little over half those of A100, for links of a later generation.
fn hopper_levels() -> Vec<Level> {
    vec![new_level(8, 3e-6, 370e9), new_level(0, 7e-6, Fitted::H100BetweenNodes.value())]
}

/// A100 SXM. The peaks, and 80 GB at 2.039 TB/s, are from NVIDIA's data sheet. The shares that products and memory-bound kernels reach are fitted to
/// steps of Megatron-LM (`fitted.toml`), except for that of 1e8 FLOPs, which is assumed, because products of the rows are larger. FlashAttention-2
/// reaches 73 % of the peak in the forward and 63 % in the backward pass at its best (Dao, arXiv 2307.08691, section 4.1), with heads of 128:
/// `forward` and `backward` are these over the share of a head of 128; the halves follow its figures over widths and lengths.
fn a100_device() -> Device {
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
        ..cuda_device(80 * GIB, &peaks, 2.039e12)
    }
}

/// H100 SXM and H200. The peaks without sparsity are from NVIDIA's data sheet of H100 SXM. Products reach less of them than on A100: the largest are
/// fitted to rows of MPT, and the lower points follow the assumed curve of other GPUs. FlashAttention-2 reaches 34 to 37 % of the peak in the forward
/// and 32 % in the backward pass with heads of 128 (Shah et al., arXiv 2407.08608, figures 5 and 6); its halves and the share of the memory's
/// bandwidth are assumed to be those of A100. Products of bf16 with odd rows reach 0.14 of the rate of others, as measured by `graphc calibrate
/// --device cuda` on an H200.
fn h100_device(memory: u64, bandwidth: f64) -> Device {
    Device {
        attention: Some(AttentionShares {
            forward: 0.44,
            backward: 0.39,
            half_width: 30.0,
            half_keys: 190.0,
        }),
        bandwidth_share: Fitted::BandwidthShare.value(),
        matmul_efficiency: products_up_to(Fitted::H100Products.value()),
        matmul_unaligned: 0.14,
        // Data sheet of H100 SXM, without sparsity.
        ..cuda_device(
            memory,
            &[("f32", 67e12), ("f16", 989e12), ("bf16", 989e12), ("f8e4m3", 1979e12)],
            bandwidth,
        )
    }
}

/// A GPU of Blackwell: the GB of its memory, and its peaks without sparsity, which are half of what data sheets say with it. It has 8 TB/s of memory
/// bandwidth and NVLink 5 with 900 GB/s in each of two directions (data sheet of GB200 NVL72: 576 and 130 TB/s for 72). Nothing was measured on it:
/// the shares of these that are reached are assumed to be those of H100.
fn blackwell_device(gigabytes: u64, halves: f64, singles: f64) -> Device {
    Device {
        // The same data sheets give 8 bits twice the rate of 16.
        flops: peaks_by_dtype(&[
            ("f32", singles),
            ("f16", halves),
            ("bf16", halves),
            ("f8e4m3", 2.0 * halves),
        ]),
        ..h100_device(gigabytes * 1_000_000_000, 8e12)
    }
}

/// The links of this many GPUs with NVLink 5, 900 GB/s, and adapters of `adapters` times 400 Gbit/s. The shares and latencies of H100 are assumed.
fn blackwell_levels(size: usize, adapters: f64) -> Vec<Level> {
    let mut levels = hopper_levels();
    levels[0].size = size;
    levels[0].bandwidth *= 2.0;
    levels[1].bandwidth *= adapters;
    levels
}

/// MI300X and MI325X without sparsity (data sheets: 163.4 TFLOP/s of FP32, 1,307.4 of FP16 and BF16, 2,614.9 of FP8). Nothing was measured on them, so shares are
/// assumed: those of products are those of GPUs about which nothing else is known, and that of memory is that of A100; attention is priced as a
/// product of its FLOPs. PyTorch's builds for these cards call them `cuda` as well.
fn instinct_device(memory: u64, bandwidth: f64) -> Device {
    let peaks = [("f32", 163.4e12), ("f16", 1307.4e12), ("bf16", 1307.4e12), ("f8e4m3", 2614.9e12)];
    Device {
        bandwidth_share: Fitted::BandwidthShare.value(),
        ..cuda_device(memory, &peaks, bandwidth)
    }
}

/// The links of 8 GPUs, each of which has a link of Infinity Fabric of 64 GB/s to each other one (data sheets: 128 GB/s both ways, 7 links), of which
/// four fifths are assumed to be reached, as NCCL reaches of H100's. Between nodes an adapter of 400 Gbit/s for each is assumed, with the share and
/// latencies of H100.
fn instinct_levels() -> Vec<Level> {
    let mut levels = hopper_levels();
    levels[0].bandwidth = 358e9;
    levels
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
    fn later_machines_are_no_slower_than_those_before_them() {
        for names in
            [["dgx-a100", "dgx-h100"], ["dgx-h100", "h200"], ["h200", "b200"], ["b200", "b300"]]
        {
            let [before, later] = names.map(|name| preset(name).expect("listed"));
            assert!(before.device.memory <= later.device.memory, "{names:?}");
            assert!(before.device.bandwidth <= later.device.bandwidth, "{names:?}");
            assert!(before.device.flops["bf16"] <= later.device.flops["bf16"], "{names:?}");
        }
        let [board, rack] = ["b200", "gb200-nvl72"].map(|name| preset(name).expect("listed"));
        assert_eq!([board.levels[0].size, rack.levels[0].size], [8, 72]);
    }

    #[test]
    fn products_of_other_gpus_follow_the_curve_in_hundredths() {
        assert_eq!(products_up_to(0.75), PRODUCTS);
        assert_eq!(products_up_to(0.66), [(1e6, 0.01), (1e8, 0.13), (1e10, 0.53), (1e12, 0.66)]);
    }
}
