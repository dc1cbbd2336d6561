//! Measures this machine for a cluster file, by plans that the runtime executes.
//!
//! The figures are those that the planner asks about: the launch of a kernel, matrix products by size and shape,
//! attention, convolutions, passes over memory, and links between ranks. Each figure is the slope of step times over the length of
//! a chain, so what a step costs by itself drops out. The work of a layer is what the same plans say of it. So bytes
//! and FLOPs are counted as they are priced.
//!
//! `bench` times plans, `products`, `convolutions` and `passes` say which, and `file` makes a cluster of the results.

use std::collections::BTreeMap;

use graphc_compiler::error::CompileError;
use graphc_ir::builder::BuildErrors;
use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::{AttentionShape, ConvolutionShape};
use graphc_runtime::RuntimeError;

use bench::Bench;
use disturbance::Observer;

mod bench;
mod convolutions;
mod disturbance;
mod file;
mod passes;
mod products;

pub use disturbance::Disturbance;

/// The extent of the measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CalibrationEffort {
    /// The device that is measured: the processor, or cards.
    pub device: DeviceKind,
    /// Ranks that work at the same time: threads of this process, each with its part of the cores, or a card.
    pub ranks: usize,
    /// Seconds for each figure, about.
    pub seconds: f64,
    /// Rows and columns of the largest matrices.
    pub largest_matmul: usize,
    /// Bytes of the largest tensors.
    pub largest_bytes: usize,
    /// Seconds that one figure may take: a size that would take longer, going by the size before it, ends its list, so
    /// that a slow device is measured too.
    pub patience: f64,
}

impl CalibrationEffort {
    /// Sizes that fill the device.
    pub fn full(device: DeviceKind, ranks: usize) -> Self {
        let (seconds, largest_matmul, largest_bytes) = match device {
            DeviceKind::Cpu => (0.2, 1024, 32 << 20),
            DeviceKind::Cuda => (0.1, 8192, 256 << 20),
        };
        Self { device, ranks, seconds, largest_matmul, largest_bytes, patience: 10.0 }
    }

    /// Small sizes, for a few milliseconds each, and as rough.
    pub fn quick(device: DeviceKind, ranks: usize) -> Self {
        let (largest_matmul, largest_bytes) = (128, 1 << 20);
        Self { device, ranks, seconds: 0.01, largest_matmul, largest_bytes, patience: 3.0 }
    }
}

/// Rates of products by element type: (FLOPs of one product, FLOPs per second), ascending.
pub type Rates = BTreeMap<&'static str, Vec<(f64, f64)>>;

/// The speed of products of one shape: a matrix of so many rows by a square one.
#[derive(Clone, Debug, PartialEq)]
pub struct ProductRate {
    /// The element type.
    pub dtype: &'static str,
    /// Rows of the first matrix.
    pub rows: usize,
    /// Its columns, and rows and columns of the other one.
    pub columns: usize,
    /// FLOPs per second.
    pub rate: f64,
}

/// The speed of attention of one shape.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionRate {
    /// The element type.
    pub dtype: &'static str,
    /// Its heads, keys and direction.
    pub shape: AttentionShape,
    /// FLOPs per second.
    pub rate: f64,
}

/// The speed of convolutions of one shape by windows of 3 by 3.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvolutionRate {
    /// The element type.
    pub dtype: &'static str,
    /// Its channels and direction.
    pub shape: ConvolutionShape,
    /// FLOPs of one op.
    pub flops: f64,
    /// FLOPs per second; of the backward pass of both gradients together.
    pub rate: f64,
}

/// The measurements, on each rank while all work.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The device that was measured.
    pub device: DeviceKind,
    /// Ranks that worked.
    pub ranks: usize,
    /// Ranks that had the machine's cores and memory between them; `None` where each has a device.
    pub shared_by: Option<usize>,
    /// Bytes of memory of a rank.
    pub memory: u64,
    /// Seconds per kernel, of steps that are replayed where the device records launches.
    pub launch: f64,
    /// Seconds per kernel of steps that are not replayed, where others are.
    pub launch_anew: Option<f64>,
    /// Square products.
    pub matmul: Rates,
    /// Products of other shapes.
    pub shapes: Vec<ProductRate>,
    /// Attention: of each direction that of fewer keys, that of more, and that of wider heads; none where that was not measured.
    pub attention: Vec<AttentionRate>,
    /// Convolutions: of each direction that of fewer channels, and that of more; none where that was not measured.
    pub convolution: Vec<ConvolutionRate>,
    /// Bytes per second of kernels that only move memory, by kind; at least one.
    pub passes: Vec<(&'static str, f64)>,
    /// (bytes, seconds) of an all-reduce over all ranks, ascending; none of one rank.
    pub all_reduce: Vec<(usize, f64)>,
    /// The other work of the machine meanwhile.
    pub disturbance: Disturbance,
}

/// An error because of which a machine could not be measured.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// Fewer than one rank.
    #[error("there must be at least one rank")]
    NoRanks,
    /// A machine that does so much else that longer work takes no longer.
    #[error(
        "a chain of {layers} more layers takes no longer than one without them: other processes have the machine, so measure again when it \
         is idle"
    )]
    Disturbed {
        /// Layers of the longer chain beyond those of the shorter.
        layers: usize,
    },
    /// A graph of this module does not fit.
    #[error(transparent)]
    Build(#[from] BuildErrors),
    /// It cannot be planned.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// It cannot run.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

graphc_ir::readable_debug!(CalibrateError);

/// Measures this machine.
///
/// # Errors
/// Returns an error if the runtime cannot run the measurements.
pub fn calibrate_machine(effort: CalibrationEffort) -> Result<Measured, CalibrateError> {
    if effort.ranks == 0 {
        return Err(CalibrateError::NoRanks);
    }
    let (device, ranks) = (effort.device, effort.ranks);
    let observer = Observer::begin();
    let bench = Bench { effort, replay: true, observer: &observer };
    let launch = passes::measure_launch(bench)?;
    let launch_anew = match device {
        DeviceKind::Cpu => None,
        DeviceKind::Cuda => Some(passes::measure_launch(Bench { replay: false, ..bench })?),
    };
    let matmul = products::measure_squares(bench, launch)?;
    let memory = match device {
        DeviceKind::Cpu => machine_memory() / ranks as u64,
        DeviceKind::Cuda => memory_of_cards(ranks),
    };
    Ok(Measured {
        device,
        ranks,
        shared_by: (device == DeviceKind::Cpu).then_some(ranks),
        memory,
        launch,
        launch_anew,
        shapes: products::measure_shapes(bench, &matmul, launch)?,
        attention: products::measure_attention(bench, &matmul, launch)?,
        convolution: convolutions::measure_convolutions(bench, &matmul, launch)?,
        matmul,
        passes: passes::measure_bandwidths(bench, launch)?,
        all_reduce: if ranks > 1 { passes::all_reduces(bench)? } else { Vec::new() },
        disturbance: observer.disturbance(),
    })
}

/// Bytes of memory of this machine; 4 GiB where it does not say.
pub(crate) fn machine_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("MemTotal:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.map_or(4 << 30, |kib| kib << 10)
}

/// Bytes of the memory of the smallest card that a rank has; where ranks share cards, its part.
pub(crate) fn memory_of_cards(ranks: usize) -> u64 {
    let cards = graphc_runtime::cards::list_cards().unwrap_or_default();
    let least = cards.iter().take(ranks).map(|card| card.memory).min().unwrap_or(0);
    least / ranks.div_ceil(cards.len().max(1)) as u64
}

#[cfg(test)]
mod tests {
    use graphc_compiler::cluster::parse_cluster;
    use graphc_compiler::compile::compile;
    use graphc_ir::builder::GraphBuilder;
    use graphc_ir::ops::Init;
    use graphc_ir::types::DType;
    use graphc_plan::{CompileOptions, ConvolutionShares};

    use super::*;

    /// Measures again where other processes have the machine, as the error advises.
    fn calibrate(effort: CalibrationEffort) -> Measured {
        let measure = || calibrate_machine(effort);
        let measured = measure().or_else(|_| measure()).or_else(|_| measure());
        measured.expect("this machine runs plans")
    }

    #[test]
    fn a_quick_look_at_this_machine_is_a_cluster() {
        let measured = calibrate(CalibrationEffort::quick(DeviceKind::Cpu, 2));
        assert!(measured.launch > 0.0 && measured.launch < 1e-2, "{measured:?}");
        assert_eq!(measured.passes.len(), 6);
        assert!(measured.passes.iter().all(|pass| pass.1 > 1e6), "{measured:?}");
        assert_eq!(measured.all_reduce.len(), 3, "4 KiB, 64 KiB and 1 MiB");
        assert_eq!(measured.attention.len(), 6);
        assert_eq!(measured.convolution.len(), 4);
        assert_eq!(measured.shapes.len(), 4 * measured.matmul.len());
        let cluster = parse_cluster(&measured.toml()).expect("a file that is read");
        assert_eq!(cluster.device.kind, DeviceKind::Cpu);
        let peak = cluster.device.flops["f32"];
        let known = measured.cluster().device.flops["f32"];
        assert!((peak - known).abs() <= 1e-6 * known);
        assert!(cluster.device.attention.is_some() && cluster.device.convolution.is_some());
        // It plans a model.
        let g = GraphBuilder::new("model");
        let x = g.input("x", DType::F32, [8, 16]);
        g.output("y", &x.matmul(&g.variable("w", DType::F32, [16, 4], Init::Fill(1.0.into()))));
        let options = CompileOptions { mesh: vec![2], ..CompileOptions::default() };
        let plan = compile(g.finish().expect("fits"), &options, &cluster, None).expect("compiles");
        assert!(plan.plan.predicted.step_seconds > 0.0);
    }

    /// A device is measured with as many sizes as there is time for; the first size of each measurement always is.
    #[test]
    fn a_slow_device_is_measured_by_small_sizes() {
        let effort =
            CalibrationEffort { patience: 0.0, ..CalibrationEffort::quick(DeviceKind::Cpu, 2) };
        let measured = calibrate(effort);
        assert!(measured.matmul.values().all(|rates| rates.len() == 1), "{measured:?}");
        assert_eq!(measured.all_reduce.len(), 1);
        assert!(measured.passes.iter().all(|pass| pass.1 > 0.0));
        parse_cluster(&measured.toml()).expect("a file that is read");
    }

    /// Figures of two ranks that say of links what `all_reduce` says.
    fn measured(launch: f64, all_reduce: Vec<(usize, f64)>) -> Measured {
        Measured {
            device: DeviceKind::Cuda,
            ranks: 2,
            shared_by: None,
            memory: 1 << 30,
            launch,
            launch_anew: Some(2.0 * launch),
            matmul: [
                ("f32", vec![(1e3, 1e9), (1e6, 4e9)]),
                ("bf16", vec![(1e3, 1e9), (1e6, 1e10)]),
            ]
            .into(),
            shapes: Vec::new(),
            attention: Vec::new(),
            convolution: Vec::new(),
            passes: vec![("chains", 1e10), ("updates", 5e9)],
            all_reduce,
            disturbance: Disturbance::NONE,
        }
    }

    /// The link explains the all-reduces of two ranks, each of which sends every byte once.
    #[test]
    fn the_link_explains_the_all_reduces() {
        let (alpha, beta, launch) = (2e-6, 1e-9, 1e-6);
        let seconds = |bytes: usize| launch + 2.0 * (alpha + bytes as f64 / 2.0 * beta);
        let bytes = [4096, 1 << 20];
        let cluster =
            measured(launch, bytes.map(|bytes| (bytes, seconds(bytes))).to_vec()).cluster();
        let level = &cluster.levels[0];
        assert!((level.latency - alpha).abs() < 1e-9 && (level.bandwidth - 1e9).abs() < 1e3);
        assert_eq!(cluster.device.matmul_efficiency, [(1e3, 0.1), (1e6, 1.0)]);
        assert_eq!(cluster.device.matmul_efficiency_of["f32"], [(1e3, 0.25), (1e6, 1.0)]);
        assert_eq!((cluster.device.bandwidth, cluster.device.bandwidth_share), (1e10, 0.75));
    }

    /// Two threads on two cores, as measured: large messages leave the caches, so no line goes through all points.
    #[test]
    fn every_size_of_message_counts_alike() {
        let measured_seconds = [
            (4096, 2.1e-6),
            (65536, 26.8e-6),
            (1 << 20, 541e-6),
            (8 << 20, 5288e-6),
            (32 << 20, 38198e-6),
        ];
        let level = &measured(2.6e-7, measured_seconds.to_vec()).cluster().levels[0];
        for (bytes, seconds) in measured_seconds {
            let known = 2.6e-7 + 2.0 * (level.latency + bytes as f64 / 2.0 / level.bandwidth);
            assert!((0.5..2.0).contains(&(known / seconds)), "{bytes}: {known} for {seconds}");
        }
    }

    #[test]
    fn links_that_were_not_measured_are_those_of_a_preset_and_the_file_says_so() {
        let alone = measured(1e-6, Vec::new());
        let text = alone.toml();
        assert!(text.contains("# links between ranks were not measured"), "{text}");
        let cluster = parse_cluster(&text).expect("a file that is read");
        let preset = graphc_compiler::cluster::preset("dgx-h100").expect("a preset");
        assert_eq!(cluster.levels, preset.levels);
        assert!(
            alone.unmeasured_figures().is_some()
                && measured(1e-6, vec![(1, 1.0)]).unmeasured_figures().is_none()
        );
    }

    /// The best rate of a type is its peak, whatever shape reached it: nothing is more than all of it.
    #[test]
    fn nothing_reaches_more_than_the_peak() {
        let thin = ProductRate { dtype: "f32", rows: 16, columns: 64, rate: 8e9 };
        let measured = Measured { shapes: vec![thin], ..measured(1e-6, Vec::new()) };
        let device = measured.cluster().device;
        assert_eq!(device.flops["f32"], 8e9);
        assert_eq!(device.matmul_efficiency_of["f32"], [(1e3, 0.125), (1e6, 0.5)]);
        let shares: Vec<f64> = (measured.lines().lines())
            .filter_map(|line| line.strip_suffix(" %")?.rsplit(' ').next()?.parse().ok())
            .collect();
        assert!(shares.len() >= 7 && shares.iter().all(|&share| share <= 100.0), "{shares:?}");
    }

    /// Rates that follow the cost model's formula give its constants again.
    #[test]
    fn attention_is_described_by_what_it_reached() {
        let known = graphc_plan::AttentionShares {
            forward: 0.8,
            backward: 0.6,
            half_width: 30.0,
            half_keys: 190.0,
        };
        let of = |(width, keys, backward)| {
            let shape = AttentionShape { width, keys, backward };
            AttentionRate { dtype: "bf16", shape, rate: 1e10 * known.reached_share(&shape) }
        };
        let shapes = [(64, 256.0), (64, 2048.0), (128, 2048.0)];
        let both = shapes.map(|(width, keys)| [(width, keys, false), (width, keys, true)]);
        let attention = both.concat().into_iter().map(of).collect();
        let measured = Measured { attention, ..measured(1e-6, Vec::new()) };
        let text = measured.toml();
        let read = parse_cluster(&text).expect("read").device.attention.expect("it is there");
        let all = |of: graphc_plan::AttentionShares| {
            [of.forward, of.backward, of.half_width, of.half_keys]
        };
        check_near(&all(read), &all(known), &text);
    }

    /// Constants that a file has, of which it writes four digits.
    fn check_near(found: &[f64], known: &[f64], text: &str) {
        for (found, known) in found.iter().zip(known) {
            assert!((found / known - 1.0).abs() < 1e-3, "{found}, not {known}: {text}");
        }
    }

    /// Rates that follow the cost model's formula, at the share that products of as many FLOPs reach, give its constants again.
    #[test]
    fn convolutions_are_described_by_what_they_reached() {
        let known = ConvolutionShares { forward: 0.7, backward: 0.4, half_columns: 110.0 };
        // Products of 1e6 FLOPs reach all of the peak, those of 1e3 a tenth.
        let of = |(columns, flops, reached, backward)| {
            let shape = ConvolutionShape { columns, backward };
            let rate = 1e10 * reached * known.reached_share(&shape);
            ConvolutionRate { dtype: "bf16", shape, flops, rate }
        };
        let shapes = [
            (64, 1e3, 0.1, false),
            (64, 1e3, 0.1, true),
            (256, 1e6, 1.0, false),
            (256, 1e6, 1.0, true),
        ];
        let convolution = shapes.map(of).to_vec();
        let measured = Measured { convolution, ..measured(1e-6, Vec::new()) };
        let text = measured.toml();
        let read = parse_cluster(&text).expect("read").device.convolution.expect("it is there");
        let all = |of: ConvolutionShares| [of.forward, of.backward, of.half_columns];
        check_near(&all(read), &all(known), &text);
    }

    /// A rate that grows with channels faster than the formula can is all of a product's with endlessly many.
    #[test]
    fn convolutions_reach_no_more_than_products() {
        let of = |(columns, rate, backward)| {
            let shape = ConvolutionShape { columns, backward };
            ConvolutionRate { dtype: "bf16", shape, flops: 1e6, rate }
        };
        let rates = [(64, 1e9, false), (64, 1e9, true), (256, 4.5e9, false), (256, 4.5e9, true)];
        let measured =
            Measured { convolution: rates.map(of).to_vec(), ..measured(1e-6, Vec::new()) };
        let shares = measured.cluster().device.convolution.expect("it was measured");
        assert_eq!((shares.forward, shares.backward), (1.0, 1.0));
        for (columns, rate, backward) in rates {
            let reached = 1e10 * shares.reached_share(&ConvolutionShape { columns, backward });
            assert!((0.7..1.4).contains(&(reached / rate)), "{columns}: {reached}");
        }
    }

    #[test]
    fn odd_rows_are_held_against_rows_of_whole_loads() {
        let of = |rows, rate| ProductRate { dtype: "bf16", rows, columns: rows, rate };
        let shapes = vec![
            ProductRate { dtype: "bf16", rows: 16, columns: 2048, rate: 1e8 },
            of(2056, 8e9),
            of(2057, 2e9),
        ];
        let measured = Measured { shapes, ..measured(1e-6, Vec::new()) };
        assert_eq!(measured.cluster().device.matmul_unaligned, 0.25);
        let read = parse_cluster(&measured.toml()).expect("read");
        assert_eq!(read.device.matmul_unaligned, 0.25);
    }
}
