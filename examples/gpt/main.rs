//! Trains a small GPT on a text, on four CPU ranks laid out as two pipeline stages of two ranks each, with a plan that
//! the planner makes. Shows the plan, the loss on held-out text against a bigram model, text that the model writes
//! before and after, and leaves plan.json and the weights.
//!
//!     cargo run --profile quick --example gpt -- [TEXT] [--mesh 4 --stages 2 --microbatches 4 --steps 1100 ..]
//!     graphc launch --standalone --nproc-per-node 4 -- target/release/examples/gpt

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use graphc::prelude::*;
use graphc::report;
use graphc::runtime::StepHandle;
use indicatif::{ProgressBar, ProgressStyle};

mod corpus;
mod model;

use corpus::Corpus;
use model::{Config, Model};

/// Trains a small GPT on a text.
#[derive(Parser)]
struct Args {
    /// The text; by default The Devil's Dictionary (Ambrose Bierce, 1911; public domain)
    text: Option<PathBuf>,
    /// Ranks, row-major; by default those that the launcher has started, or 4
    #[arg(long)]
    mesh: Option<String>,
    /// Pipeline stages; by default 2, or 1 where the mesh has no halves
    #[arg(long)]
    stages: Option<usize>,
    /// Microbatches per step
    #[arg(long, default_value_t = 4)]
    microbatches: usize,
    /// Training steps
    #[arg(long, default_value_t = 1100)]
    steps: u64,
    /// Sequences per step
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// Learning rate after a tenth of the steps, from where it falls to 0 along a cosine
    #[arg(long, default_value_t = 5e-3)]
    lr: f64,
    /// Seed of initial weights and sampled batches
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where plan.json and weights.safetensors go
    #[arg(long, default_value = "target/gpt")]
    out: PathBuf,
    /// Characters of sampled text
    #[arg(long, default_value_t = 240)]
    sample: usize,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let text = match &args.text {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {} as text", path.display()))?,
        None => include_str!("../data/devils_dictionary.txt").to_string(),
    };
    let corpus = Corpus::new(&text)?;
    let config = Config { vocabulary: corpus.vocabulary(), ..Config::default() };
    ensure!(args.batch > 0 && args.steps > 0, "--batch and --steps are at least 1");
    corpus.check_length(config.sequence)?;

    // Under the launcher the ranks are processes, and rank 0 prints and writes; otherwise they are threads.
    let job = Job::from_environment()?;
    let options = options(&args, job.as_ref().map_or(4, |job| job.world_size()))?;
    let compiled = compile(config.training_graph(args.batch)?, &options, &cpu()?, None)?;
    let plan = compiled.plan;

    let session_options = SessionOptions { seed: args.seed, ..SessionOptions::default() };
    let none = BTreeMap::new();
    let mut session = Session::with_job(job.as_ref(), &plan, &none, session_options)?;
    let parameters = config.parameter_names()?;
    let weights = variables(&mut session, &parameters)?;
    if !session.leads() {
        train(&mut session, &corpus, &args, config.sequence)?;
        variables(&mut session, &parameters)?;
        return Ok(());
    }
    let plan_path = write_plan(&args, &plan)?;
    let mut model = Model::new(config, args.batch, args.seed)?;
    model.load(&weights)?;
    let before = (model.loss(&corpus)?, model.sample(&corpus, args.sample)?);
    let start = Instant::now();
    train(&mut session, &corpus, &args, config.sequence)?;
    println!("trained {} steps in {:.1} s", args.steps, start.elapsed().as_secs_f64());
    let weights = variables(&mut session, &parameters)?;
    model.load(&weights)?;
    let after = (model.loss(&corpus)?, model.sample(&corpus, args.sample)?);

    let weights_path = args.out.join("weights.safetensors");
    graphc::runtime::data::save_safetensors(&weights_path, &weights)?;
    let bigram = corpus.bigram_loss();
    println!("\n-- before training\n{}\n-- after training\n{}\n--", before.1, after.1);
    println!(
        "held-out loss: {:.3} before, {:.3} after; smoothed bigram model {bigram:.3}",
        before.0, after.0
    );
    println!("wrote {} and {}", plan_path.display(), weights_path.display());
    Ok(())
}

/// Shows the plan on one screen and writes all of it.
fn write_plan(args: &Args, plan: &VerifiedPlan) -> Result<PathBuf> {
    print!("{}", report::summary(plan));
    std::fs::create_dir_all(&args.out)
        .with_context(|| format!("cannot make {}", args.out.display()))?;
    let path = args.out.join("plan.json");
    graphc::runtime::data::write_file(&path, plan.write_sealed().as_bytes())?;
    Ok(path)
}

fn cpu() -> Result<graphc::plan::Cluster> {
    preset("cpu").context("the preset `cpu` exists")
}

fn options(args: &Args, ranks: u32) -> Result<CompileOptions> {
    let mesh = args.mesh.clone().unwrap_or_else(|| ranks.to_string());
    let mesh = mesh.split('x').map(str::parse).collect::<Result<Vec<usize>, _>>();
    let mesh = mesh.ok().context("write --mesh as 4 or 2x2")?;
    let halves = mesh.first().is_some_and(|first| first.is_multiple_of(2));
    Ok(CompileOptions {
        stages: args.stages.unwrap_or(if halves { 2 } else { 1 }),
        mesh,
        microbatches: args.microbatches,
        optimizer: Some(Optimizer::AdamW(AdamOptions {
            lr: args.lr,
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-8,
            weight_decay: 0.01,
        })),
        lr_schedule: schedule(args.steps),
        ..CompileOptions::default()
    })
}

/// Rises over a tenth of the steps, then falls to 0 along a cosine.
fn schedule(steps: u64) -> LrSchedule {
    match steps / 10 {
        0 => LrSchedule::default(),
        rise => LrSchedule::from(Curve::Cosine { steps, floor: 0.0.into() }).after_warmup(rise),
    }
}

/// Trains with a few steps under way at once.
fn train(session: &mut Session, corpus: &Corpus, args: &Args, sequence: usize) -> Result<()> {
    let bar = if session.leads() { ProgressBar::new(args.steps) } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::with_template("{bar:32} {pos}/{len} steps, {msg} [{elapsed}]")?);
    let start = Instant::now();
    let mut under_way: VecDeque<StepHandle> = VecDeque::new();
    let mut finished = 0;
    let mut finish = |handle: StepHandle| -> Result<()> {
        let loss = handle.wait()?["loss"].to_f32()?[0];
        finished += 1;
        let tokens = (finished * args.batch * sequence) as f64 / start.elapsed().as_secs_f64();
        bar.set_message(format!("loss {loss:.3}, {tokens:.0} tokens/s"));
        bar.inc(1);
        Ok(())
    };
    for step in 0..args.steps {
        let (ids, labels) = corpus.batch(args.seed, step, args.batch, sequence);
        let shape = [args.batch, sequence];
        let feeds = BTreeMap::from([
            ("ids".to_string(), HostTensor::from_i64(shape, &ids)?),
            ("labels".to_string(), HostTensor::from_i64(shape, &labels)?),
        ]);
        under_way.push_back(session.step(feeds)?);
        if under_way.len() > 4 {
            under_way.pop_front().map(&mut finish).transpose()?;
        }
    }
    under_way.into_iter().try_for_each(&mut finish)?;
    bar.finish();
    Ok(())
}

fn variables(session: &mut Session, names: &[String]) -> Result<BTreeMap<String, HostTensor>> {
    names.iter().map(|name| Ok((name.clone(), session.variable(name)?))).collect()
}
