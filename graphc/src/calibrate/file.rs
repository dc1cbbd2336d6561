//! Turns measurements into a cluster, the text of its file, and a table.
//!
//! A cluster has the fewest constants that describe what was measured:
//!
//! - Products: shares of the peak by element type, from squares. Other shapes are printed but not priced, except odd
//!   rows in half precision.
//! - Attention: both halves (`AttentionShares`) from how much more wider heads and longer sequences reach, and each
//!   direction's share from what reached most.
//! - Convolutions: the half (`ConvolutionShares`) from how much more of a product's rate many channels reach than few, and each
//!   direction's share from what reached most.
//! - Memory: the one share of the bandwidth that half of the kinds of kernels reach, or chains and reductions where these reach less.
//!
//! Whatever was measured, a reader accepts the file: numbers and shares are kept within the allowed range.

use std::collections::BTreeMap;
use std::fmt::Write;

use graphc_compiler::cluster::preset;
use graphc_compiler::cost::gathered_efficiency;
use graphc_ir::mesh::DeviceKind;
use graphc_ir::types::DType;
use graphc_plan::{AttentionShares, Cluster, ConvolutionShares, Device, Framework, Level};

use super::{AttentionRate, ConvolutionRate, Measured, ProductRate};
use crate::median::median;

/// The least and the greatest number of a cluster file.
const POSSIBLE: [f64; 2] = [1e-30, 1e30];
/// The least share that is written: of what is slower than this the measurement went wrong.
const LEAST_SHARE: f64 = 1e-3;

/// A number that a cluster file may have in its place.
fn limit_figure(value: f64) -> f64 {
    let [least, most] = POSSIBLE;
    if value.is_nan() { least } else { value.clamp(least, most) }
}

/// A share that a cluster file may have in its place.
fn limit_share(of: f64, whole: f64) -> f64 {
    let share = of / whole;
    if share.is_nan() { LEAST_SHARE } else { share.clamp(LEAST_SHARE, 1.0) }
}

impl Measured {
    /// The machine as the planner and the null device know it: one level that joins any number of ranks, as it was
    /// measured, or the levels of a preset.
    pub fn cluster(&self) -> Cluster {
        let types = || self.matmul.keys().copied();
        let flops: BTreeMap<String, f64> =
            types().map(|dtype| (dtype.to_string(), limit_figure(self.peak(dtype)))).collect();
        let curves = types().map(|dtype| (dtype.to_string(), self.curve(dtype)));
        let mut matmul_efficiency_of: BTreeMap<String, _> = curves.collect();
        let matmul_efficiency = matmul_efficiency_of.remove(self.main_type()).unwrap_or_default();
        let best = self.best_bandwidth();
        let levels = match self.link() {
            Some((latency, bandwidth)) => vec![Level { size: 0, latency, bandwidth }],
            None => preset(self.preset()).expect("it is one").levels,
        };
        let mut cluster = Cluster {
            name: "calibrated".into(),
            device: Device {
                kind: self.device,
                // What TOML counts up to.
                memory: self.memory.clamp(1, i64::MAX as u64),
                attention: self.attention_shares(&flops),
                convolution: None,
                flops,
                matmul_efficiency,
                matmul_efficiency_of,
                matmul_unaligned: self.unaligned_share().unwrap_or(1.0),
                bandwidth: limit_figure(best),
                bandwidth_share: self.bandwidth_share(),
                launch: limit_figure(self.launch),
                dispatch: 0.0,
                overlap: self.device == DeviceKind::Cuda,
                shared_by: self.shared_by,
            },
            levels,
            axes: Vec::new(),
            framework: Framework::default(),
        };
        cluster.device.convolution = self.convolution_shares(&cluster);
        cluster
    }

    /// The preset whose links are taken where none was measured.
    pub fn preset(&self) -> &'static str {
        match self.device {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Cuda => "dgx-h100",
        }
    }

    /// The element type whose products' shares of the peak hold for all that say nothing else: on cards bf16, where
    /// most time goes.
    fn main_type(&self) -> &'static str {
        let usual = match self.device {
            DeviceKind::Cpu => DType::F32.name(),
            DeviceKind::Cuda => DType::BF16.name(),
        };
        let known = |dtype: &&str| self.matmul.contains_key(*dtype);
        let first = || self.matmul.keys().next().copied();
        Some(usual).filter(known).or_else(first).unwrap_or(usual)
    }

    /// The best rate of all that multiplies in an element type.
    fn peak(&self, dtype: &str) -> f64 {
        let squares = self.matmul.get(dtype).into_iter().flatten().map(|&(_, rate)| rate);
        let shapes = self.shapes.iter().filter(|of| of.dtype == dtype).map(|of| of.rate);
        let attention = self.attention.iter().filter(|of| of.dtype == dtype).map(|of| of.rate);
        let convolutions = self.convolution.iter().filter(|of| of.dtype == dtype);
        let convolutions = convolutions.map(|of| of.rate);
        squares.chain(shapes).chain(attention).chain(convolutions).fold(0.0, f64::max)
    }

    /// The shares of the peak of square products, where a file may have them.
    fn curve(&self, dtype: &str) -> Vec<(f64, f64)> {
        let is_possible = |(flops, _): &&(f64, f64)| (POSSIBLE[0]..=POSSIBLE[1]).contains(flops);
        let peak = self.peak(dtype);
        let of = |&(flops, rate): &(f64, f64)| (flops, limit_share(rate, peak));
        self.matmul[dtype].iter().filter(is_possible).map(of).collect()
    }

    /// The share that odd rows leave of the rate of products in half precision; `None` where that was not measured. On
    /// processors rows have no alignment that matters.
    fn unaligned_share(&self) -> Option<f64> {
        let rows = |odd: usize| {
            let of = |p: &&ProductRate| p.dtype == self.main_type() && p.rows == p.columns;
            self.shapes.iter().filter(of).find(|p| p.rows % 8 == odd).map(|p| p.rate)
        };
        let is_half = self.main_type() != DType::F32.name();
        is_half.then(|| Some(limit_share(rows(1)?, rows(0)?))).flatten()
    }

    /// The rate of the fastest kernels that move memory.
    fn best_bandwidth(&self) -> f64 {
        self.passes.iter().map(|pass| pass.1).fold(0.0, f64::max)
    }

    /// The share of that which half of the kinds reach, and no more than chains and reductions do in the mean: fused kernels, which most of
    /// the bytes of a training go through, are made of these.
    fn bandwidth_share(&self) -> f64 {
        let rates = || self.passes.iter().map(|pass| pass.1);
        let fused = self.passes.iter().filter(|pass| ["chains", "reductions"].contains(&pass.0));
        let fused: Vec<f64> = fused.map(|pass| pass.1).collect();
        let mean = fused.iter().sum::<f64>() / fused.len() as f64;
        // Without either there is no mean.
        limit_share(median(rates()).min(mean), self.best_bandwidth())
    }

    /// The shares of the peak that attention reaches, by [`AttentionShares`]'s formula: both halves from how much more
    /// wider heads and longer sequences reach, forward and backward together, and each direction's share from what
    /// reached most.
    fn attention_shares(&self, flops: &BTreeMap<String, f64>) -> Option<AttentionShares> {
        let directions = split_directions(&self.attention, |rate| rate.shape.backward);
        let [[short, long, wide], [_, _, _]] = [&directions[0][..], &directions[1][..]] else {
            return None;
        };
        let gain = |more: usize, less: usize| {
            let of = |rates: &Vec<&AttentionRate>| rates[more].rate / rates[less].rate;
            (of(&directions[0]) * of(&directions[1])).sqrt()
        };
        let half_keys = half_reached_at(short.shape.keys, long.shape.keys, gain(1, 0));
        let half_width =
            half_reached_at(long.shape.width as f64, wide.shape.width as f64, gain(2, 1));
        let mut shares = AttentionShares { forward: 1.0, backward: 1.0, half_width, half_keys };
        let best = |rates: &Vec<&AttentionRate>, formula: &AttentionShares| {
            let of = |rate: &&AttentionRate| {
                rate.rate / flops[rate.dtype] / formula.reached_share(&rate.shape)
            };
            limit_share(rates.iter().map(of).fold(0.0, f64::max), 1.0)
        };
        let [forward, backward] = directions.each_ref().map(|rates| best(rates, &shares));
        (shares.forward, shares.backward) = (forward, backward);
        Some(shares)
    }

    /// The shares of a product's rate that convolutions reach, by [`ConvolutionShares`]'s formula, on a machine whose products are known: the half from
    /// how much more many channels reach than few, forward and backward together, and each direction's share from what reached most. Where that
    /// would be more than all, it is all, and the half the mean of those that give the rates, by their logarithms.
    fn convolution_shares(&self, known: &Cluster) -> Option<ConvolutionShares> {
        let share = |of: &ConvolutionRate| {
            let dtype: DType = of.dtype.parse().expect("it is the name of one");
            of.rate / (known.device.flops[of.dtype] * gathered_efficiency(known, dtype, of.flops))
        };
        let directions = split_directions(&self.convolution, |rate| rate.shape.backward);
        let [[few, many], [_, _]] = [&directions[0][..], &directions[1][..]] else { return None };
        let gain = |of: &Vec<&ConvolutionRate>| share(of[1]) / share(of[0]);
        let gain = (gain(&directions[0]) * gain(&directions[1])).sqrt();
        let [less, more] = [few, many].map(|rate| rate.shape.columns as f64);
        let half_columns = half_reached_at(less, more, gain);
        let formula = ConvolutionShares { forward: 1.0, backward: 1.0, half_columns };
        let [forward, backward] = directions.map(|rates| {
            let of = |rate: &&ConvolutionRate| share(rate) / formula.reached_share(&rate.shape);
            rates.iter().map(of).fold(0.0, f64::max)
        });
        if forward.max(backward) <= 1.0 {
            let [forward, backward] = [forward, backward].map(|best| limit_share(best, 1.0));
            return Some(ConvolutionShares { forward, backward, half_columns });
        }
        let half = |rate: &ConvolutionRate| {
            (rate.shape.columns as f64 * (1.0 / share(rate) - 1.0)).max(1.0).ln()
        };
        let mean = self.convolution.iter().map(half).sum::<f64>() / self.convolution.len() as f64;
        Some(ConvolutionShares { half_columns: mean.exp(), ..formula })
    }

    /// Latency and bandwidth of a ring: the two with which its times are nearest to those of all sizes, by the squares of
    /// the logarithms of their ratios, so that each size counts alike. `None` where none was measured.
    fn link(&self) -> Option<(f64, f64)> {
        self.all_reduce.first()?;
        let ranks = self.ranks as f64;
        let passes = 2.0 * (ranks - 1.0);
        let without_launch = |&(bytes, seconds): &(usize, f64)| {
            (bytes as f64 / ranks, (seconds - self.launch).max(seconds / 10.0) / passes)
        };
        let per_pass: Vec<(f64, f64)> = self.all_reduce.iter().map(without_launch).collect();
        let (latency, seconds_per_byte) = fit_line(&per_pass);
        let bandwidth = 1.0 / seconds_per_byte.max(1e-12);
        Some((limit_figure(latency.max(1e-8)), limit_figure(bandwidth)))
    }

    /// The figures that the planner takes although they were not measured; `None` where everything was.
    pub fn unmeasured_figures(&self) -> Option<String> {
        let preset = self.preset();
        self.link().is_none().then(|| {
            format!("links between ranks were not measured: those of the preset {preset} are taken")
        })
    }

    /// The measurements, line by line.
    pub fn lines(&self) -> String {
        let mut text = format!("{} ranks at once, figures of each\n", self.ranks);
        let launch = |seconds: f64| format!("{:.2} us per kernel", seconds * 1e6);
        let _ = write!(text, "launch       {}", launch(self.launch));
        if let Some(anew) = self.launch_anew {
            let _ = write!(text, " of a recorded step, {} of one that is not", launch(anew));
        }
        text.push('\n');
        self.passes_text(&mut text);
        self.products_text(&mut text);
        self.attention_text(&mut text);
        self.convolution_text(&mut text);
        for (bytes, seconds) in &self.all_reduce {
            let _ = writeln!(text, "all-reduce   {bytes:>9} bytes   {:.1} us", seconds * 1e6);
        }
        let _ = match self.link() {
            Some((latency, bandwidth)) => writeln!(
                text,
                "link         latency {:.2} us, {:.1} GB/s",
                latency * 1e6,
                bandwidth / 1e9
            ),
            None => writeln!(text, "link         not measured"),
        };
        text
    }

    fn passes_text(&self, text: &mut String) {
        let best = self.best_bandwidth();
        for (kind, rate) in &self.passes {
            let of_best = format_percent(rate / best);
            let _ = writeln!(text, "memory       {kind:<16} {:.1} GB/s   {of_best}", rate / 1e9);
        }
    }

    fn products_text(&self, text: &mut String) {
        for (dtype, rates) in &self.matmul {
            let best = self.peak(dtype);
            let mut line = |[rows, columns]: [usize; 2], rate: f64| {
                let shape = format!("{rows} x {columns} x {columns}");
                let of_peak = format_percent(rate / best);
                let _ = writeln!(
                    text,
                    "matmul {dtype}   {shape:>20}   {:.1} GFLOP/s   {of_peak}",
                    rate / 1e9
                );
            };
            for (flops, rate) in rates {
                let size = (flops / 2.0).cbrt().round() as usize;
                line([size, size], *rate);
            }
            for shape in self.shapes.iter().filter(|shape| shape.dtype == *dtype) {
                line([shape.rows, shape.columns], shape.rate);
            }
        }
        if let Some(share) = self.unaligned_share() {
            let _ = writeln!(
                text,
                "odd rows     {} of the rate of aligned ones",
                format_percent(share)
            );
        }
    }

    fn attention_text(&self, text: &mut String) {
        for AttentionRate { dtype, shape, rate } in &self.attention {
            let direction = direction_name(shape.backward);
            let of_peak = format_percent(rate / self.peak(dtype));
            let _ = writeln!(
                text,
                "attention {dtype}   {direction}, heads of {}, {} keys in the mean   {:.1} GFLOP/s   {of_peak}",
                shape.width,
                shape.keys,
                rate / 1e9
            );
        }
    }

    fn convolution_text(&self, text: &mut String) {
        for ConvolutionRate { dtype, shape, rate, .. } in &self.convolution {
            let direction = direction_name(shape.backward);
            let of_peak = format_percent(rate / self.peak(dtype));
            let _ = writeln!(
                text,
                "convolution {dtype}   {direction}, windows of 3 x 3, {} channels   {:.1} GFLOP/s   {of_peak}",
                shape.columns,
                rate / 1e9
            );
        }
    }

    /// The cluster as a file that `--cluster` reads, with what was measured as comments.
    pub fn toml(&self) -> String {
        let Cluster { name, device, levels, .. } = self.cluster();
        let mut text: String = self.lines().lines().map(|line| format!("# {line}\n")).collect();
        let _ = writeln!(text, "name = \"{name}\"\n");
        device_toml(&mut text, &device);
        for note in self.unmeasured_figures().into_iter().chain(self.disturbance.advice()) {
            let _ = writeln!(text, "\n# {note}");
        }
        for Level { size, latency, bandwidth } in levels {
            let _ = writeln!(text, "\n[[level]]\nsize = {size}");
            let _ = writeln!(text, "latency = {latency:e}\nbandwidth = {bandwidth:e}");
        }
        text
    }
}

/// Splits rates by their direction: those of the forward pass, and those of the backward pass.
fn split_directions<R>(rates: &[R], is_backward: impl Fn(&R) -> bool) -> [Vec<&R>; 2] {
    [false, true]
        .map(|backward| rates.iter().filter(|rate| is_backward(rate) == backward).collect())
}

fn direction_name(is_backward: bool) -> &'static str {
    if is_backward { "backward" } else { "forward" }
}

fn format_percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// The extent at which half is reached, where `more` of it reaches `gain` times what `less` reaches: by `n / (n +
/// half)`. No more than 16 times the greater one: what grows in step with it says nothing of where that ends.
fn half_reached_at(less: f64, more: f64, gain: f64) -> f64 {
    let most = 16.0 * more;
    let half = less * more * (gain - 1.0) / (more - gain * less);
    if gain * less >= more { most } else { half.max(0.0).min(most) }
}

/// Base and slope of the line that is nearest to points of positive numbers, by the logarithms of ratios.
///
/// With `base = slope * offset` the best slope of an offset is known, so the offset alone is searched for: over powers of two, and
/// between the neighbours of the best of these by thirds.
fn fit_line(points: &[(f64, f64)]) -> (f64, f64) {
    let slope_and_error = |offset: f64| {
        let logs = points.iter().map(|(x, y)| (y / (x + offset)).ln());
        let mean = logs.clone().sum::<f64>() / points.len() as f64;
        (mean.exp(), logs.map(|log| (log - mean).powi(2)).sum::<f64>())
    };
    let error = |exponent: f64| slope_and_error(exponent.exp2()).1;
    let of_power = |power: &i32| error(f64::from(*power));
    // Of one point any offset is right: the longest, by which its size does not matter.
    let nearest = (-10..40).rev().min_by(|a, b| of_power(a).total_cmp(&of_power(b))).unwrap_or(0);
    let (mut low, mut high) = (f64::from(nearest) - 1.0, f64::from(nearest) + 1.0);
    for _ in 0..80 {
        let third = (high - low) / 3.0;
        if error(low + third) <= error(high - third) {
            high -= third;
        } else {
            low += third;
        }
    }
    let offset = f64::midpoint(low, high).exp2();
    let (slope, _) = slope_and_error(offset);
    (slope * offset, slope)
}

fn format_points(curve: &[(f64, f64)]) -> String {
    let points = curve.iter().map(|(flops, share)| format!("[{flops:e}, {share:.4}]"));
    format!("[{}]", points.collect::<Vec<_>>().join(", "))
}

fn device_toml(text: &mut String, device: &Device) {
    let _ = writeln!(text, "[device]\nkind = \"{}\"", device.kind);
    if device.overlap {
        let _ = writeln!(text, "overlap = true");
    }
    let flops = device.flops.iter().map(|(dtype, peak)| format!("{dtype} = {peak:e}"));
    let _ = writeln!(text, "memory = {}", device.memory);
    let _ = writeln!(text, "flops = {{ {} }}", flops.collect::<Vec<_>>().join(", "));
    let _ = writeln!(text, "matmul_efficiency = {}", format_points(&device.matmul_efficiency));
    if !device.matmul_efficiency_of.is_empty() {
        let of = |(dtype, curve): (&String, &Vec<_>)| format!("{dtype} = {}", format_points(curve));
        let curves: Vec<_> = device.matmul_efficiency_of.iter().map(of).collect();
        let _ = writeln!(text, "matmul_efficiency_of = {{ {} }}", curves.join(", "));
    }
    if device.matmul_unaligned < 1.0 {
        let _ = writeln!(text, "matmul_unaligned = {:.4}", device.matmul_unaligned);
    }
    let _ = writeln!(text, "bandwidth = {:e}", device.bandwidth);
    let _ = writeln!(text, "bandwidth_share = {:.4}", device.bandwidth_share);
    let _ = writeln!(text, "launch = {:e}", device.launch);
    if let Some(ranks) = device.shared_by {
        let _ = writeln!(text, "shared_by = {ranks}");
    }
    if let Some(AttentionShares { forward, backward, half_width, half_keys }) = device.attention {
        let _ = writeln!(text, "\n[device.attention]");
        let _ = writeln!(text, "forward = {forward:.4}\nbackward = {backward:.4}");
        let _ = writeln!(text, "half_width = {half_width:e}\nhalf_keys = {half_keys:e}");
    }
    if let Some(ConvolutionShares { forward, backward, half_columns }) = device.convolution {
        let _ = writeln!(text, "\n[device.convolution]");
        let _ = writeln!(text, "forward = {forward:.4}\nbackward = {backward:.4}");
        let _ = writeln!(text, "half_columns = {half_columns:e}");
    }
}
