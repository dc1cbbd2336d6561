//! Training throughput of the workloads W1 (MLP), W2 (ResNet-18), W3 (GPT), W4 (MobileNetV2), R50 (ResNet-50), UNET and W5
//! (the data-parallel toy), or that of inference: one JSON line, in the form of `peers/torch_bench.py`, which
//! `compare.py` puts beside it.
//!
//!     cargo run --release --example bench_training -- --workload W1 --threads 1 --ranks 1
//!     cargo run --release --example bench_training -- --workload W2 --profile 15
//!     graphc launch --standalone --nproc-per-node 2 -- target/release/examples/bench_training --workload W1 --ranks 2

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use graphc::compiler::cluster::parse_cluster;
use graphc::ir::mesh::DeviceKind;
use graphc::prelude::*;
use graphc::profile::{self, Profile};
use graphc::runtime::job::Job;
use graphc::runtime::{RankStatistics, Statistics, StepHandle};
use serde_json::{Value, json};

mod toy;
mod workloads;

use workloads::{Workload, workload};

/// Measures training steps.
#[derive(Parser)]
struct Args {
    /// W1, W2, W3, W4, W5, R50 or UNET
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
    /// The forward pass alone, without a loss
    #[arg(long)]
    inference: bool,
    /// Print to standard error where a step's time goes: by kind of actor, and so many of the slowest actors
    #[arg(long)]
    profile: Option<usize>,
    /// Let the planner choose, instead of data parallelism
    #[arg(long)]
    auto: bool,
    /// Mixed precision: bf16 or f16; default f32
    #[arg(long)]
    precision: Option<String>,
    /// The machine that a step's time is predicted for: a file that `graphc calibrate` wrote
    #[arg(long)]
    cluster: Option<std::path::PathBuf>,
    /// Write the plan to this file and measure nothing
    #[arg(long)]
    plan: Option<std::path::PathBuf>,
}

/// The measurements of the steps.
struct Measured {
    /// Seconds of a step in each group of steps, ascending.
    times: Vec<f64>,
    wall: f64,
    before: Statistics,
    after: Statistics,
    last: f32,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let begin = Instant::now();
    let job = Job::from_environment()?;
    if args.workload == "W5" {
        return toy::measure(&args, job.as_ref());
    }
    let Workload { graph, optimizer, feeds, batch } =
        workload(&args.workload, args.ranks, args.inference)?;
    let compile_start = Instant::now();
    let plan = compile(graph, &options(&args, optimizer)?, &cluster(&args)?, None)?.plan;
    let compile_seconds = compile_start.elapsed().as_secs_f64();
    if let Some(path) = &args.plan {
        return Ok(std::fs::write(path, plan.write_sealed())?);
    }
    let session_start = Instant::now();
    let mut session = session(&plan, args.threads, job.as_ref())?;
    let session_seconds = session_start.elapsed().as_secs_f64();
    let first_loss = read(session.step(feeds[0].clone())?)?;
    let first_step = begin.elapsed().as_secs_f64();
    for feed in &feeds[1..3] {
        read(session.step(feed.clone())?)?;
    }
    let measured = measure(&mut session, &feeds, &args, job.as_ref())?;
    let median = measured.times[measured.times.len() / 2];
    let Measured { before, after, .. } = &measured;
    let profile =
        args.profile.is_some().then(|| profile(&plan, &mut session, &feeds[0], job.as_ref()));
    let profile = profile.transpose()?;
    let mut line = json!({
        "workload": args.workload,
        "framework": "graphc",
        "mode": if args.inference { "inference" } else { "training" },
        "threads": args.threads,
        "procs": args.ranks,
        "samples_per_s": batch as f64 / median,
        "step_ms_median": median * 1e3,
        "step_ms_predicted": plan.predicted.step_seconds * 1e3,
        "steps": after.steps - before.steps,
        "start_to_first_step_s": first_step,
        "compile_s": compile_seconds,
        "session_s": session_seconds,
        "peak_rss_mb": peak_rss_mb(),
        "arena_mb": plan.programs[0].arena_bytes as f64 / 1e6,
        "first_loss": first_loss,
        "last_loss": measured.last,
    });
    add(&mut line, shares(&measured, session.ranks().count()));
    if job.is_none_or(|job| job.rank() == 0) {
        if let (Some(slowest), Some(profile)) = (args.profile, &profile) {
            eprint!("{}", table(&plan, profile, slowest)?);
        }
        println!("{line}");
    }
    Ok(())
}

/// The time for which steps are measured together. Where all cores are busy, the thread that reads results is woken a few milliseconds
/// late.
const GROUP: Duration = Duration::from_millis(100);

/// Measures steps. The result of every step is read, and the next step is begun before: a step's time is from result to
/// result, the mean of a group of steps.
fn measure(
    session: &mut Session,
    feeds: &[BTreeMap<String, HostTensor>],
    args: &Args,
    job: Option<&Arc<Job>>,
) -> Result<Measured> {
    let before = session.statistics()?;
    let mut times = Vec::new();
    let start = Instant::now();
    let mut under_way = session.step(feeds[0].clone())?;
    let (mut group_start, mut group, mut steps) = (Instant::now(), 0, 0);
    // Processes count the same steps, and groups by their own clocks.
    while steps < 6 || !enough(start, args, job, steps)? {
        steps += 1;
        let next = session.step(feeds[steps % feeds.len()].clone())?;
        read(std::mem::replace(&mut under_way, next))?;
        group += 1;
        if group_start.elapsed() >= GROUP {
            times.push(group_start.elapsed().as_secs_f64() / f64::from(group));
            (group_start, group) = (Instant::now(), 0);
        }
    }
    if times.is_empty() {
        times.push(group_start.elapsed().as_secs_f64() / f64::from(group));
    }
    let last = read(under_way)?;
    let wall = start.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    Ok(Measured { times, wall, before, after: session.statistics()?, last })
}

/// Measures each actor by steps that are taken apart.
fn profile(
    plan: &VerifiedPlan,
    session: &mut Session,
    feeds: &BTreeMap<String, HostTensor>,
    job: Option<&Arc<Job>>,
) -> Result<Profile> {
    let meet = || job.map_or(Ok(()), |job| job.barrier());
    let own = profile::measure_session(session, feeds, meet)?;
    let all = match job {
        None => vec![own],
        Some(job) => {
            let all = job.all_gather(&serde_json::to_vec(&own)?)?;
            all.iter().map(|bytes| serde_json::from_slice(bytes)).collect::<Result<_, _>>()?
        }
    };
    Ok(Profile::from_times(plan, (DeviceKind::Cpu, all.len()), &all))
}

/// The sum of each kind of actor and the slowest actors, as a table.
fn table(plan: &VerifiedPlan, profile: &Profile, slowest: usize) -> Result<String> {
    let kinds = profile.by_kind(plan)?;
    let total: f64 = kinds.iter().map(|(_, sum)| sum.measured).sum();
    let line = |seconds: f64, what: String| {
        format!("{:>10.3} ms {:>5.1} %  {what}\n", seconds * 1e3, 100.0 * seconds / total)
    };
    let kinds = kinds
        .into_iter()
        .map(|(kind, sum)| line(sum.measured, format!("{:>4} x {kind}", sum.actions)));
    let actors = profile.by_actor(plan)?.into_iter().take(slowest);
    let actors = actors.map(|(name, _, measured)| line(measured, name));
    Ok(kinds.chain(["\n".to_owned()]).chain(actors).collect())
}

/// The first element of a step's only output: its loss, or a logit.
fn read(step: StepHandle) -> Result<f32> {
    let outputs = step.wait()?;
    let output = outputs.values().next().context("a workload has an output")?;
    Ok(output.to_f32()?[0])
}

/// Shares of the time of all ranks of this process.
fn shares(measured: &Measured, ranks: usize) -> Value {
    let share = |time: fn(&RankStatistics) -> Duration| {
        let sum =
            |all: &Statistics| all.ranks.iter().map(|rank| time(rank).as_secs_f64()).sum::<f64>();
        (sum(&measured.after) - sum(&measured.before)) / (measured.wall * ranks as f64)
    };
    json!({
        "outside_kernels": 1.0 - share(|rank| rank.kernels),
        "moving": share(|rank| rank.communication),
        "waiting": share(|rank| rank.waiting),
    })
}

/// Adds the members of an object to another.
fn add(line: &mut Value, more: Value) {
    if let (Value::Object(line), Value::Object(more)) = (line, more) {
        line.extend(more);
    }
}

fn options(args: &Args, optimizer: Option<Optimizer>) -> Result<CompileOptions> {
    Ok(CompileOptions {
        mesh: vec![args.ranks],
        optimizer,
        strategy: if args.auto { Strategy::Auto } else { Strategy::Data },
        precision: args.precision.as_deref().map(precision).transpose()?,
        ..CompileOptions::default()
    })
}

fn cluster(args: &Args) -> Result<graphc::plan::Cluster> {
    match &args.cluster {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            let text =
                text.with_context(|| format!("cannot read the cluster {}", path.display()))?;
            parse_cluster(&text).with_context(|| format!("in the cluster {}", path.display()))
        }
        None => cpu(),
    }
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

fn cpu() -> Result<graphc::plan::Cluster> {
    preset("cpu").context("the preset `cpu` exists")
}

fn session(plan: &VerifiedPlan, threads: usize, job: Option<&Arc<Job>>) -> Result<Session> {
    let options = SessionOptions { threads_per_rank: Some(threads), ..SessionOptions::default() };
    Ok(match job {
        None => Session::new(plan, &BTreeMap::new(), options)?,
        Some(job) => Session::on(job, plan, &BTreeMap::new(), options)?,
    })
}

/// Peak resident set of this process.
fn peak_rss_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}
