//! Measures this machine: what a kernel costs to start, how fast matrix products of each size and passes over memory
//! are, and how fast ranks reach each other, all through plans that the runtime executes, so that what is measured is
//! what the planner asks about. Each figure is the slope of step times of two plans of different length: what a step costs
//! by itself drops out.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Instant;

use graphc_compiler::cluster::preset;
use graphc_compiler::compile::compile;
use graphc_compiler::error::CompileError;
use graphc_ir::builder::{BuildErrors, GraphBuilder, Tensor};
use graphc_ir::graph::Graph;
use graphc_ir::mesh::DeviceKind;
use graphc_ir::ops::Init;
use graphc_ir::plan::{Cluster, CompileOptions, Device, Framework, Level};
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_ir::types::DType;
use graphc_runtime::{RuntimeError, Session, SessionOptions};

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// What is measured: the processor, or cards.
    pub device: DeviceKind,
    /// Ranks that work at the same time: threads of this process, each with its part of the cores, or a card.
    pub ranks: usize,
    /// Seconds for each figure, about.
    pub seconds: f64,
    /// Rows and columns of the largest matrices.
    pub largest_matmul: usize,
    /// Bytes of the largest tensors.
    pub largest_bytes: usize,
    /// Seconds that one figure may take: a size that would take longer, going by the size before it, ends its list, so that a slow
    /// device is measured too.
    pub patience: f64,
}

impl Effort {
    /// What takes some seconds.
    pub fn full(device: DeviceKind, ranks: usize) -> Self {
        let (largest_matmul, largest_bytes) = match device {
            DeviceKind::Cpu => (1024, 32 << 20),
            DeviceKind::Cuda => (8192, 256 << 20),
        };
        Self { device, ranks, seconds: 0.3, largest_matmul, largest_bytes, patience: 10.0 }
    }

    /// What takes less than a second, and is as rough.
    pub fn quick(device: DeviceKind, ranks: usize) -> Self {
        let (largest_matmul, largest_bytes) = (128, 1 << 20);
        Self { device, ranks, seconds: 0.01, largest_matmul, largest_bytes, patience: 3.0 }
    }

    /// Whether a chain of so many layers is to be measured, of which one is thought to take so many seconds: two steps before, and as
    /// many as are timed.
    fn affords(&self, layers: usize, seconds: f64) -> bool {
        (2 + FEWEST_STEPS) as f64 * layers as f64 * seconds < self.patience
    }
}

/// Steps that are timed at the least.
const FEWEST_STEPS: usize = 5;

/// What was measured, on each rank while all work.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// What was measured.
    pub device: DeviceKind,
    /// Ranks that worked.
    pub ranks: usize,
    /// Bytes of memory of a rank.
    pub memory: u64,
    /// Seconds per kernel.
    pub launch: f64,
    /// By element type: (FLOPs of one product, FLOPs per second), ascending.
    pub matmul: BTreeMap<&'static str, Vec<(f64, f64)>>,
    /// Bytes per second of elementwise ops and reductions.
    pub bandwidth: f64,
    /// (bytes, seconds) of an all-reduce over all ranks, ascending; none of one rank.
    pub all_reduce: Vec<(usize, f64)>,
}

/// Why a machine could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// Fewer than one rank.
    #[error("there must be at least one rank")]
    NoRanks,
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

/// Measures this machine.
///
/// # Errors
/// Where the runtime cannot run what is measured.
pub fn calibrate(effort: Effort) -> Result<Measured, CalibrateError> {
    if effort.ranks == 0 {
        return Err(CalibrateError::NoRanks);
    }
    let launch = launch(effort)?;
    let mut matmul = BTreeMap::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        match matmul_rates(effort, dtype, launch) {
            Ok(rates) => _ = matmul.insert(dtype.name(), rates),
            Err(error) if dtype == DType::F32 => return Err(error),
            // There is no kernel for this element type here.
            Err(_) => {}
        }
    }
    let bandwidth = bandwidth(effort, launch)?;
    let all_reduce = if effort.ranks > 1 { all_reduces(effort)? } else { Vec::new() };
    let (device, ranks) = (effort.device, effort.ranks);
    let memory = match device {
        DeviceKind::Cpu => memory() / ranks as u64,
        DeviceKind::Cuda => memory_of_cards(ranks),
    };
    Ok(Measured { device, ranks, memory, launch, matmul, bandwidth, all_reduce })
}

/// A tensor of which each rank has its rows.
fn rows(g: &GraphBuilder, name: &str, dtype: DType, shape: &[usize], std: f64) -> Tensor {
    let init = Init::Normal { mean: 0.0.into(), std: std.into() };
    g.variable(name, dtype, shape, init).pin(NdSbp(vec![Sbp::Split(0)]))
}

/// Seconds per layer of a chain: `layer` makes the next tensor from the last.
fn per_layer(
    effort: Effort,
    layers: usize,
    begin: &dyn Fn(&GraphBuilder) -> Vec<Tensor>,
    layer: &dyn Fn(&[Tensor], &Tensor) -> Tensor,
) -> Result<f64, CalibrateError> {
    let graph = |layers: usize| -> Result<Graph, BuildErrors> {
        let g = GraphBuilder::new("calibrate");
        let tensors = begin(&g);
        let last = (0..layers).fold(tensors[0].clone(), |last, _| layer(&tensors, &last));
        let dims: Vec<usize> = (0..last.shape().len()).collect();
        g.output("out", &last.sum(&dims, false));
        g.finish()
    };
    let short = step_seconds(effort, graph(1)?)?;
    let long = step_seconds(effort, graph(1 + layers)?)?;
    Ok(((long - short) / layers as f64).max(1e-9))
}

/// The least time of a step: what else the machine does only adds to it.
fn step_seconds(effort: Effort, graph: Graph) -> Result<f64, CalibrateError> {
    let options = CompileOptions { mesh: vec![effort.ranks], ..CompileOptions::default() };
    let cluster = preset("cpu").expect("it is a preset");
    let plan = compile(graph, &options, &cluster, None)?.plan;
    let device = Some(effort.device);
    let options = SessionOptions { device, ..SessionOptions::default() };
    let mut session = Session::new(&plan, &BTreeMap::new(), options)?;
    // In the first two steps kernels are loaded, and launches recorded.
    for _ in 0..2 {
        session.step(BTreeMap::new())?.wait()?;
    }
    let (mut least, mut steps) = (f64::INFINITY, 0);
    let begun = Instant::now();
    while steps < FEWEST_STEPS || begun.elapsed().as_secs_f64() < effort.seconds / 2.0 {
        let start = Instant::now();
        session.step(BTreeMap::new())?.wait()?;
        least = least.min(start.elapsed().as_secs_f64());
        steps += 1;
    }
    Ok(least)
}

/// Products of a row of 8 by 8x8: next to no work.
fn launch(effort: Effort) -> Result<f64, CalibrateError> {
    let begin = |g: &GraphBuilder| {
        let x = rows(g, "x", DType::F32, &[effort.ranks, 8], 1.0);
        vec![x, square(g, DType::F32, 8)]
    };
    per_layer(effort, 200, &begin, &|tensors, last| last.matmul(&tensors[1]))
}

fn square(g: &GraphBuilder, dtype: DType, size: usize) -> Tensor {
    let std = 1.0 / (size as f64).sqrt();
    let init = Init::Normal { mean: 0.0.into(), std: std.into() };
    g.variable("w", dtype, [size, size], init).pin(NdSbp(vec![Sbp::Broadcast]))
}

/// FLOPs and rates of square products.
fn matmul_rates(
    effort: Effort,
    dtype: DType,
    launch: f64,
) -> Result<Vec<(f64, f64)>, CalibrateError> {
    let sizes = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];
    let mut rates: Vec<(f64, f64)> = Vec::new();
    for size in sizes.into_iter().filter(|&size| size <= effort.largest_matmul) {
        let layers = if size <= 128 { 32 } else { 4 };
        let flops = 2.0 * (size as f64).powi(3);
        if rates.last().is_some_and(|(_, rate)| !effort.affords(layers, flops / rate)) {
            break;
        }
        let begin = |g: &GraphBuilder| {
            vec![rows(g, "x", dtype, &[effort.ranks * size, size], 1.0), square(g, dtype, size)]
        };
        let seconds = per_layer(effort, layers, &begin, &|tensors, last| last.matmul(&tensors[1]))?;
        // Of a small product most is the launch: its own time is then not known well.
        rates.push((flops, flops / (seconds - launch).max(seconds / 2.0)));
    }
    Ok(rates)
}

/// A pass that reads and writes a tensor, and one that reads it: three times its bytes. Of the largest tensors that can be afforded.
fn bandwidth(effort: Effort, launch: f64) -> Result<f64, CalibrateError> {
    let (columns, layers) = (1024, 6);
    let layer = |_: &[Tensor], last: &Tensor| last.mul(&last.sum(&[1], true).scale(1e-3));
    let mut reached = None;
    for share in [256, 16, 1] {
        let count = (effort.largest_bytes / 4 / columns / share).max(1);
        let bytes = 3.0 * (count * columns * 4) as f64;
        if reached.is_some_and(|rate| !effort.affords(layers, bytes / rate)) {
            break;
        }
        let begin = |g: &GraphBuilder| {
            vec![rows(g, "x", DType::F32, &[effort.ranks * count, columns], 1.0)]
        };
        let seconds = per_layer(effort, layers, &begin, &layer)?;
        reached = Some(bytes / (seconds - 3.0 * launch).max(seconds / 2.0));
    }
    Ok(reached.expect("the first size is always measured"))
}

/// All-reduces of several sizes: what a chain with them takes beyond one that adds up within ranks.
fn all_reduces(effort: Effort) -> Result<Vec<(usize, f64)>, CalibrateError> {
    let ranks = effort.ranks;
    let sizes = [4 << 10, 64 << 10, 1 << 20, 8 << 20, 32 << 20, 256 << 20];
    let mut measured: Vec<(usize, f64)> = Vec::new();
    // Of one byte, with what is done beside the all-reduce.
    let mut rate: Option<f64> = None;
    for bytes in sizes.into_iter().filter(|&bytes| bytes <= effort.largest_bytes) {
        let elements = bytes / 4;
        let layers = if bytes <= 64 << 10 { 32 } else { 4 };
        if rate.is_some_and(|rate| !effort.affords(layers, bytes as f64 * rate)) {
            break;
        }
        let begin = |g: &GraphBuilder| vec![rows(g, "x", DType::F32, &[ranks, 1, elements], 1.0)];
        let whole = NdSbp(vec![Sbp::Broadcast]);
        let across = |_: &[Tensor], last: &Tensor| {
            last.add(&last.sum(&[0], true).pin(whole.clone()).scale(1e-3))
        };
        let within = |_: &[Tensor], last: &Tensor| last.add(&last.sum(&[1], true).scale(1e-3));
        let with = per_layer(effort, layers, &begin, &across)?;
        let without = per_layer(effort, layers, &begin, &within)?;
        measured.push((bytes, (with - without).max(1e-9)));
        rate = Some(with / bytes as f64);
    }
    Ok(measured)
}

/// Bytes of memory of this machine; 4 GiB where it does not say.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("MemTotal:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.map_or(4 << 30, |kib| kib << 10)
}

/// Bytes of the memory of the smallest card that a rank has; where ranks share cards, its part.
fn memory_of_cards(ranks: usize) -> u64 {
    let cards = graphc_runtime::cards::cards().unwrap_or_default();
    let least = cards.iter().take(ranks).map(|card| card.memory).min().unwrap_or(0);
    least / ranks.div_ceil(cards.len().max(1)) as u64
}

impl Measured {
    /// The machine as the planner and the null device know it: one level that joins any number of ranks.
    pub fn cluster(&self) -> Cluster {
        let peak = |rates: &Vec<(f64, f64)>| rates.iter().map(|rate| rate.1).fold(0.0, f64::max);
        let flops: BTreeMap<String, f64> =
            self.matmul.iter().map(|(&dtype, rates)| (dtype.to_string(), peak(rates))).collect();
        let rates = self.shares_of();
        let share = |&(flops, rate): &(f64, f64)| (flops, (rate / peak(rates)).clamp(1e-3, 1.0));
        let (latency, bandwidth) = self.link();
        Cluster {
            name: "calibrated".into(),
            device: Device {
                kind: self.device,
                memory: self.memory,
                flops,
                matmul_efficiency: rates.iter().map(share).collect(),
                matmul_unaligned: 1.0,
                attention: None,
                bandwidth: self.bandwidth,
                bandwidth_share: 1.0,
                launch: self.launch,
                dispatch: 0.0,
                overlap: self.device == DeviceKind::Cuda,
            },
            levels: vec![Level { size: 0, latency, bandwidth }],
            axes: Vec::new(),
            framework: Framework::default(),
        }
    }

    /// The products whose shares of the peak are told: on cards those of bf16, where most time goes.
    fn shares_of(&self) -> &Vec<(f64, f64)> {
        let singles = &self.matmul[DType::F32.name()];
        match self.device {
            DeviceKind::Cpu => singles,
            DeviceKind::Cuda => self.matmul.get(DType::BF16.name()).unwrap_or(singles),
        }
    }

    /// Latency and bandwidth of a ring, from the smallest and the largest all-reduce; of one rank those of its memory.
    fn link(&self) -> (f64, f64) {
        let (Some(&small), Some(&large)) = (self.all_reduce.first(), self.all_reduce.last()) else {
            return (self.launch, self.bandwidth);
        };
        let ranks = self.ranks as f64;
        let passes = 2.0 * (ranks - 1.0);
        let bytes = passes / ranks * (large.0 - small.0) as f64;
        let beta = if bytes > 0.0 { (large.1 - small.1) / bytes } else { 0.0 };
        let beta = beta.max(1e-12);
        let latency = (small.1 - self.launch) / passes - small.0 as f64 / ranks * beta;
        (latency.max(1e-8), 1.0 / beta)
    }

    /// What was measured, line by line.
    pub fn lines(&self) -> String {
        let mut text = format!("{} ranks at once, figures of each\n", self.ranks);
        let _ = writeln!(text, "launch       {:.2} us per kernel", self.launch * 1e6);
        let _ = writeln!(text, "memory       {:.1} GB/s", self.bandwidth / 1e9);
        for (dtype, rates) in &self.matmul {
            for (flops, rate) in rates {
                let size = (flops / 2.0).cbrt().round();
                let _ = writeln!(text, "matmul {dtype}   {size:>5}^3   {:.1} GFLOP/s", rate / 1e9);
            }
        }
        for (bytes, seconds) in &self.all_reduce {
            let _ = writeln!(text, "all-reduce   {bytes:>9} bytes   {:.1} us", seconds * 1e6);
        }
        let (latency, bandwidth) = self.link();
        let _ = writeln!(
            text,
            "link         latency {:.2} us, {:.1} GB/s",
            latency * 1e6,
            bandwidth / 1e9
        );
        text
    }

    /// The cluster as a file that `--cluster` reads, with what was measured as comments.
    pub fn toml(&self) -> String {
        let Cluster { name, device, levels, .. } = self.cluster();
        let mut text: String = self.lines().lines().map(|line| format!("# {line}\n")).collect();
        let flops = device.flops.iter().map(|(dtype, peak)| format!("{dtype} = {peak:e}"));
        let points = device.matmul_efficiency.iter();
        let points = points.map(|(flops, share)| format!("[{flops:e}, {share:.4}]"));
        let (flops, points): (Vec<_>, Vec<_>) = (flops.collect(), points.collect());
        let _ = writeln!(text, "name = \"{name}\"\n\n[device]\nkind = \"{}\"", device.kind);
        if device.overlap {
            let _ = writeln!(text, "overlap = true");
        }
        let _ = writeln!(text, "memory = {}", device.memory);
        let _ = writeln!(text, "flops = {{ {} }}", flops.join(", "));
        let _ = writeln!(text, "matmul_efficiency = [{}]", points.join(", "));
        let _ = writeln!(text, "bandwidth = {:e}\nlaunch = {:e}", device.bandwidth, device.launch);
        for Level { size, latency, bandwidth } in levels {
            let _ = writeln!(text, "\n[[level]]\nsize = {size}");
            let _ = writeln!(text, "latency = {latency:e}\nbandwidth = {bandwidth:e}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use graphc_compiler::cluster::parse_cluster;

    use super::*;

    #[test]
    fn a_quick_look_at_this_machine_is_a_cluster() {
        let measured =
            calibrate(Effort::quick(DeviceKind::Cpu, 2)).expect("this machine runs plans");
        assert!(measured.launch > 0.0 && measured.launch < 1e-2, "{measured:?}");
        assert!(measured.bandwidth > 1e7, "{measured:?}");
        assert_eq!(measured.all_reduce.len(), 3, "4 KiB, 64 KiB and 1 MiB");
        let cluster = parse_cluster(&measured.toml()).expect("a file that is read");
        assert_eq!(cluster.device.kind, DeviceKind::Cpu);
        let peak = cluster.device.flops["f32"];
        let known = measured.cluster().device.flops["f32"];
        assert!((peak - known).abs() <= 1e-6 * known);
        // It plans a model.
        let g = GraphBuilder::new("model");
        let x = g.input("x", DType::F32, [8, 16]);
        g.output("y", &x.matmul(&g.variable("w", DType::F32, [16, 4], Init::Fill(1.0.into()))));
        let options = CompileOptions { mesh: vec![2], ..CompileOptions::default() };
        let plan = compile(g.finish().expect("fits"), &options, &cluster, None).expect("compiles");
        assert!(plan.plan.predicted.step_seconds > 0.0);
    }

    /// As many sizes as there is time for; the first of each in any case.
    #[test]
    fn a_slow_device_is_measured_by_small_sizes() {
        let effort = Effort { patience: 0.0, ..Effort::quick(DeviceKind::Cpu, 2) };
        let measured = calibrate(effort).expect("this machine runs plans");
        assert!(measured.matmul.values().all(|rates| rates.len() == 1), "{measured:?}");
        assert_eq!(measured.all_reduce.len(), 1);
        assert!(measured.bandwidth > 0.0);
        parse_cluster(&measured.toml()).expect("a file that is read");
    }

    /// Two ranks: an all-reduce sends every byte once.
    #[test]
    fn the_link_explains_the_all_reduces() {
        let (alpha, beta, launch) = (2e-6, 1e-9, 1e-6);
        let seconds = |bytes: usize| launch + 2.0 * (alpha + bytes as f64 / 2.0 * beta);
        let measured = Measured {
            device: DeviceKind::Cpu,
            ranks: 2,
            memory: 1 << 30,
            launch,
            matmul: [("f32", vec![(1e3, 1e9), (1e6, 4e9)])].into(),
            bandwidth: 1e10,
            all_reduce: [4096, 1 << 20].map(|bytes| (bytes, seconds(bytes))).to_vec(),
        };
        let (latency, bandwidth) = measured.link();
        assert!((latency - alpha).abs() < 1e-9 && (bandwidth - 1e9).abs() < 1e3, "{latency}");
        assert_eq!(measured.cluster().device.matmul_efficiency, [(1e3, 0.25), (1e6, 1.0)]);
    }
}
