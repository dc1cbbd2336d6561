//! Training throughput of the workloads W1 (MLP), W3 (GPT) and W5 (the data-parallel toy): one JSON line, in the form
//! of `peers/torch_bench.py`, which `compare.py` puts beside it.
//!
//!     cargo run --release --example bench_training -- --workload W1 --threads 1 --ranks 1
//!     graphc launch --standalone --nproc-per-node 2 -- target/release/examples/bench_training --workload W1 --ranks 2

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use graphc::compiler::cluster::parse_cluster;
use graphc::ir::random::Stream;
use graphc::prelude::*;
use graphc::runtime::job::Job;
use graphc::runtime::{RankStatistics, Statistics};
use serde_json::json;

use graphc::ir::nn::{Linear, Module};

/// Measures training steps.
#[derive(Parser)]
struct Args {
    /// W1, W3 or W5
    #[arg(long)]
    workload: String,
    /// Threads per rank
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Ranks, data parallel unless the strategy says otherwise; the batch grows with them (weak scaling)
    #[arg(long, default_value_t = 1)]
    ranks: usize,
    /// Seconds to measure
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Let the planner choose, instead of data parallelism
    #[arg(long)]
    auto: bool,
    /// Mixed precision: bf16 or f16; default f32
    #[arg(long)]
    precision: Option<String>,
    /// The machine that a step's time is predicted for: a file that `graphc calibrate` wrote
    #[arg(long)]
    cluster: Option<std::path::PathBuf>,
}

/// What is trained.
struct Workload {
    graph: Graph,
    optimizer: Optimizer,
    feeds: Vec<BTreeMap<String, HostTensor>>,
    batch: usize,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let begin = Instant::now();
    let job = Job::from_environment()?;
    let leads = job.as_ref().is_none_or(|job| job.rank() == 0);
    if args.workload == "W5" {
        return toy(&args, job.as_ref());
    }
    let Workload { graph, optimizer, feeds, batch } = match args.workload.as_str() {
        "W1" => mlp(128 * args.ranks)?,
        "W3" => gpt(8 * args.ranks)?,
        other => bail!("no workload `{other}`: W1, W3 or W5"),
    };
    let options = CompileOptions {
        mesh: vec![args.ranks],
        optimizer: Some(optimizer),
        strategy: if args.auto { Strategy::Auto } else { Strategy::Data },
        precision: args.precision.as_deref().map(precision).transpose()?,
        ..CompileOptions::default()
    };
    let compile_start = Instant::now();
    let cluster = match &args.cluster {
        Some(path) => parse_cluster(&std::fs::read_to_string(path)?)?,
        None => cpu()?,
    };
    let plan = compile(graph, &options, &cluster, None)?.plan;
    let compile_seconds = compile_start.elapsed().as_secs_f64();
    let session_start = Instant::now();
    let mut session = session(&plan, args.threads, job.as_ref())?;
    let session_seconds = session_start.elapsed().as_secs_f64();
    let step = |session: &mut Session, index: usize| -> Result<f32> {
        Ok(session.step(feeds[index % feeds.len()].clone())?.wait()?["loss"].to_f32()?[0])
    };
    let first_loss = step(&mut session, 0)?;
    let first_step = begin.elapsed().as_secs_f64();
    for index in 1..3 {
        step(&mut session, index)?;
    }
    let before = session.statistics()?;
    let mut times = Vec::new();
    let start = Instant::now();
    // The loss of every step is read, and the next step is begun before: a step's time is from loss to loss.
    let mut under_way = session.step(feeds[0].clone())?;
    let mut step_start = Instant::now();
    while times.len() < 6 || !enough(start, &args, job.as_ref(), times.len())? {
        let next = session.step(feeds[(times.len() + 1) % feeds.len()].clone())?;
        std::mem::replace(&mut under_way, next).wait()?["loss"].to_f32()?;
        times.push(step_start.elapsed().as_secs_f64());
        step_start = Instant::now();
    }
    let last_loss = under_way.wait()?["loss"].to_f32()?[0];
    let wall = start.elapsed().as_secs_f64();
    let after = session.statistics()?;
    let here = session.ranks().count();
    // Shares of the time of all ranks of this process.
    let share = |time: fn(&RankStatistics) -> Duration| {
        let sum =
            |all: &Statistics| all.ranks.iter().map(|rank| time(rank).as_secs_f64()).sum::<f64>();
        (sum(&after) - sum(&before)) / (wall * here as f64)
    };
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    let line = json!({
        "workload": args.workload,
        "framework": "graphc",
        "threads": args.threads,
        "procs": args.ranks,
        "samples_per_s": batch as f64 / median,
        "step_ms_median": median * 1e3,
        "step_ms_predicted": plan.predicted.step_seconds * 1e3,
        "steps": times.len(),
        "start_to_first_step_s": first_step,
        "compile_s": compile_seconds,
        "session_s": session_seconds,
        "outside_kernels": 1.0 - share(|rank| rank.kernels),
        "moving": share(|rank| rank.communication),
        "waiting": share(|rank| rank.waiting),
        "peak_rss_mb": peak_rss_mb(),
        "arena_mb": plan.programs[0].arena_bytes as f64 / 1e6,
        "first_loss": first_loss,
        "last_loss": last_loss,
    });
    if leads {
        println!("{line}");
    }
    Ok(())
}

/// Whether it was measured long enough: processes ask rank 0, and not at every step.
fn enough(start: Instant, args: &Args, job: Option<&Arc<Job>>, steps: usize) -> Result<bool> {
    let over = start.elapsed().as_secs_f64() >= args.seconds;
    match job {
        None => Ok(over),
        Some(_) if !steps.is_multiple_of(32) => Ok(false),
        Some(job) => Ok(job.from_rank_0(&[u8::from(over)])? == [1]),
    }
}

fn precision(name: &str) -> Result<DType> {
    match name {
        "f32" => Ok(DType::F32),
        "bf16" => Ok(DType::BF16),
        "f16" => Ok(DType::F16),
        other => bail!("no precision `{other}`: f32, bf16 or f16"),
    }
}

fn cpu() -> Result<graphc::ir::plan::Cluster> {
    preset("cpu").context("the preset `cpu` exists")
}

fn session(plan: &VerifiedPlan, threads: usize, job: Option<&Arc<Job>>) -> Result<Session> {
    let options = SessionOptions { threads_per_rank: Some(threads), ..SessionOptions::default() };
    Ok(match job {
        None => Session::new(plan, &BTreeMap::new(), options)?,
        Some(job) => Session::on(job, plan, &BTreeMap::new(), options)?,
    })
}

/// W1: 784-2048-2048-10, batch 128 a rank, SGD with momentum.
fn mlp(batch: usize) -> Result<Workload> {
    let g = GraphBuilder::new("W1");
    let mut x = g.input("x", DType::F32, [batch, 784]);
    for (index, (inputs, outputs)) in [(784, 2048), (2048, 2048), (2048, 10)].iter().enumerate() {
        x = Linear::new(&g, &format!("layers.{index}"), *inputs, *outputs).forward(&x);
        x = if index < 2 { x.relu() } else { x };
    }
    let labels = g.input("labels", DType::I64, [batch]);
    g.output("loss", &x.cross_entropy(&labels));
    let feeds = (0..4).map(|part| {
        let stream = Stream { seed: 1, key: part, step: 0 };
        let pixels: Vec<f32> = (0..batch as u64 * 784).map(|i| stream.normal(i)).collect();
        Ok(BTreeMap::from([
            ("x".to_string(), HostTensor::from_f32([batch, 784], &pixels)?),
            ("labels".to_string(), integers(&[batch], 10, part + 10)?),
        ]))
    });
    let optimizer = Optimizer::Sgd { lr: 0.01, momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    Ok(Workload { graph: g.finish()?, optimizer, feeds: feeds.collect::<Result<_>>()?, batch })
}

/// W3: GPT of 4 layers, width 256, 8 heads, 128 tokens, vocabulary 8192, batch 8 a rank, AdamW.
fn gpt(batch: usize) -> Result<Workload> {
    let g = GraphBuilder::new("W3");
    let config = nn::GptConfig { layers: 4, width: 256, heads: 8, sequence: 128, vocabulary: 8192 };
    let model = nn::Gpt::new(&g, &config);
    let logits = model.forward(&g.input("ids", DType::I64, [batch, 128]));
    g.output("loss", &logits.cross_entropy(&g.input("labels", DType::I64, [batch, 128])));
    let feeds = (0..4).map(|part| {
        Ok(BTreeMap::from([
            ("ids".to_string(), integers(&[batch, 128], 8192, part)?),
            ("labels".to_string(), integers(&[batch, 128], 8192, part + 10)?),
        ]))
    });
    let optimizer = Optimizer::AdamW(AdamOptions {
        lr: 3e-4,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0.01,
    });
    Ok(Workload { graph: g.finish()?, optimizer, feeds: feeds.collect::<Result<_>>()?, batch })
}

fn integers(shape: &[usize], below: u64, key: u64) -> Result<HostTensor> {
    let stream = Stream { seed: 2, key, step: 0 };
    let n = shape.iter().product::<usize>() as u64;
    let data: Vec<i64> = (0..n).map(|i| (u64::from(stream.words(i)[0]) % below) as i64).collect();
    Ok(HostTensor::from_i64(shape, &data)?)
}

/// W5: the data-parallel toy, 500 steps, the median of several runs.
fn toy(args: &Args, job: Option<&Arc<Job>>) -> Result<()> {
    let g = GraphBuilder::new("toy");
    let rows = 2 * args.ranks;
    let x = g.input("x", DType::F32, [rows, 2]).pin(NdSbp(vec![Sbp::Split(0)]));
    let y = g.input("y", DType::F32, [rows, 1]).pin(NdSbp(vec![Sbp::Split(0)]));
    let w = g.variable("w", DType::F32, [2, 1], Init::Fill(0.0.into()));
    let error = x.matmul(&w.pin(NdSbp(vec![Sbp::Broadcast]))) - y;
    g.output("loss", &(&error * &error).sum(&[0, 1], false).scale(1.0 / args.ranks as f64));
    let options = CompileOptions {
        mesh: vec![args.ranks],
        optimizer: Some(Optimizer::Sgd {
            lr: 0.01,
            momentum: 0.0,
            nesterov: false,
            weight_decay: 0.0,
        }),
        ..CompileOptions::default()
    };
    let plan = compile(g.finish()?, &options, &cpu()?, None)?.plan;
    let mut session = session(&plan, args.threads, job)?;
    let (xs, ys) = ([1., 2., 2., 3., 4., 6., 3., 1.], [8., 13., 26., 9.]);
    let feeds = BTreeMap::from([
        ("x".into(), HostTensor::from_f32([rows, 2], &xs[..rows * 2])?),
        ("y".into(), HostTensor::from_f32([rows, 1], &ys[..rows])?),
    ]);
    let mut times = Vec::new();
    for _ in 0..11 {
        session.set_variable("w", &HostTensor::from_f32([2, 1], &[0.0, 0.0])?)?;
        let start = Instant::now();
        let mut last = None;
        for _ in 0..500 {
            last = Some(session.step(feeds.clone())?);
        }
        last.context("500 steps")?.wait()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let w = session.variable("w")?.to_f32()?;
    let line = json!({
        "workload": "W5",
        "framework": "graphc",
        "procs": args.ranks,
        "wall_500_s": times[times.len() / 2],
        "w": w,
    });
    if job.is_none_or(|job| job.rank() == 0) {
        println!("{line}");
    }
    Ok(())
}

/// Peak resident set of this process.
fn peak_rss_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}
