//! ResNet-18 on CIFAR-10, as people train it: shuffled and augmented pictures, SGD with momentum and weight decay, a cosine
//! schedule with warm-up, evaluation after each epoch, the best and the last weights on disk, a log of JSON lines.
//!
//!     cargo run --release --example resnet18_cifar10 -- --data DIR --epochs 10 --batch 128 --lr 0.1 --mesh 4
//!     graphc launch --standalone --nproc-per-node 4 -- target/release/examples/resnet18_cifar10 --data DIR
//!
//! DIR holds the binary version of CIFAR-10; `graphc data synth cifar10 DIR` writes a set in its place. Each rank reads its own
//! samples alone, and batches are the same on every mesh. `--save DIR` keeps checkpoints, `--resume DIR` goes on from the last,
//! on whatever mesh.

use std::collections::VecDeque;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use graphc::data::cifar10;
use graphc::ir::models::{ResNet, ResNetConfig};
use graphc::ir::nn::Module;
use graphc::ir::plan::{Metric, ParameterGroup, SAMPLES, TensorKind};
use graphc::prelude::*;
use serde_json::json;

/// Trains ResNet-18 on CIFAR-10.
#[derive(Parser)]
struct Args {
    /// Where the data set lies
    #[arg(long)]
    data: PathBuf,
    /// Epochs of the whole training
    #[arg(long, default_value_t = 10)]
    epochs: u64,
    /// Samples of a step, over all ranks
    #[arg(long, default_value_t = 128)]
    batch: usize,
    /// Learning rate after the warm-up, which is the first half of an epoch
    #[arg(long, default_value_t = 0.1)]
    lr: f64,
    /// Ranks, e.g. 4 or 2x2; by default those that the launcher has started
    #[arg(long)]
    mesh: Option<String>,
    /// Channels of the first layer
    #[arg(long, default_value_t = 64)]
    width: usize,
    /// Of initial weights, order and augmentation
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Save the last and the best weights here
    #[arg(long)]
    save: Option<PathBuf>,
    /// Go on from the last weights that were saved here
    #[arg(long)]
    resume: Option<PathBuf>,
    /// Append a line of JSON for each epoch
    #[arg(long)]
    log: Option<PathBuf>,
}

/// Steps under way at once.
const DEPTH: usize = 3;

fn main() -> Result<()> {
    let args = Args::parse();
    let job = Job::from_environment()?;
    let result = train(&args, job.as_ref());
    if let (Some(job), Err(error)) = (&job, &result) {
        job.fail(format!("{error:#}"));
    }
    result
}

/// Scores of ten classes.
fn network(args: &Args) -> Result<Graph> {
    let g = GraphBuilder::new("resnet18");
    let config = ResNetConfig { width: args.width, ..ResNetConfig::resnet18(10).cifar() };
    let pictures = g.input("x", DType::F32, [args.batch, 3, 32, 32]);
    g.output("scores", &ResNet::new(&g, &config).forward(&pictures));
    Ok(g.finish()?)
}

fn mesh(args: &Args, job: Option<&Arc<Job>>) -> Result<Vec<usize>> {
    let world = job.map_or(1, |job| job.world_size());
    let text = args.mesh.clone().unwrap_or_else(|| world.to_string());
    text.split('x').map(|axis| axis.parse().context("--mesh is written as 4 or 2x2")).collect()
}

fn train(args: &Args, job: Option<&Arc<Job>>) -> Result<()> {
    let [train, test] = [Split::Train, Split::Test].map(|split| cifar10(&args.data, split));
    let (train, test) = (Arc::new(train?), Arc::new(test?));
    let epoch = (train.samples() / args.batch) as u64;
    ensure!(epoch > 0, "--batch is more than the {} samples", train.samples());
    let forms = CompileOptions {
        mesh: mesh(args, job)?,
        loss: Some(Loss::CrossEntropy),
        metrics: vec![Metric::Top1],
        ..CompileOptions::default()
    };
    let sgd = Optimizer::Sgd { lr: args.lr, momentum: 0.9, nesterov: true, weight_decay: 5e-4 };
    let mut lr_schedule: graphc::ir::learning_rate::LrSchedule =
        format!("cosine:{}", epoch * args.epochs).parse()?;
    lr_schedule.warmup = Some((epoch / 2).max(1).to_string().parse()?);
    // Norms and biases do not decay.
    let groups = ["*bn*", "*downsample.1*", "*bias"].map(ParameterGroup::no_decay).to_vec();
    let training = CompileOptions { optimizer: Some(sgd), lr_schedule, groups, ..forms.clone() };
    let cluster = preset("cpu").context("a preset")?;
    let plan = compile(network(args)?, &training, &cluster, None)?.plan;
    let evaluation = compile(network(args)?, &forms, &cluster, None)?.plan;

    let resumed =
        args.resume.as_ref().map(|path| Checkpoint::open(&path.join("last"))).transpose()?;
    let options = SessionOptions {
        first_step: resumed.as_ref().map_or(0, Checkpoint::step),
        seed: resumed.as_ref().map_or(args.seed, Checkpoint::seed),
        ..SessionOptions::default()
    };
    let (first_step, seed) = (options.first_step, options.seed);
    let mut session = Session::with_job(job, &plan, &BTreeMap::new(), options)?;
    if let Some(checkpoint) = &resumed {
        session.load_checkpoint(checkpoint)?;
    }
    let tester = Session::with_job(job, &evaluation, &BTreeMap::new(), SessionOptions::default())?;
    let source: Source = format!("cifar10:{}", args.data.display()).parse()?;
    let loader = Loader::for_session(train, &session, source.training(seed))?;
    let tests = Loader::for_session(test, &tester, source.evaluation())?;
    let mut judge = Judge { session: tester, loader: tests };
    let mut keeper = args.save.as_ref().map(|path| Keeper::new(path)).transpose()?;

    for epoch in first_step / loader.batches()..args.epochs {
        let begun = Instant::now();
        let mut sums = Sums::default();
        let mut under_way = VecDeque::new();
        let from = first_step.saturating_sub(epoch * loader.batches());
        for batch in loader.epoch_from(epoch, from)? {
            under_way.push_back(session.step(batch?.feeds)?);
            if under_way.len() >= DEPTH {
                sums.add(under_way.pop_front().context("a step")?.wait()?)?;
            }
        }
        for handle in under_way {
            sums.add(handle.wait()?)?;
        }
        let seconds = begun.elapsed().as_secs_f64();
        let found = judge.run(&mut session)?;
        if let Some(keeper) = &mut keeper {
            keeper.keep(&mut session, job, found.top1())?;
        }
        if session.leads() {
            let pace = sums.samples / seconds / plan.world_size as f64;
            let line = json!({
                "epoch": epoch, "loss": sums.loss(), "top1": sums.top1(),
                "samples_per_second_and_rank": pace.round(),
                "eval": { "loss": found.loss(), "top1": found.top1(), "samples": found.samples },
            });
            println!("{line}");
            write_line(args, &line.to_string())?;
        }
    }
    Ok(())
}

fn write_line(args: &Args, line: &str) -> Result<()> {
    let Some(path) = &args.log else { return Ok(()) };
    let mut file = std::fs::File::options().create(true).append(true).open(path)?;
    Ok(writeln!(file, "{line}")?)
}

/// Sums over steps. The mean loss of a step counts as often as it has samples.
#[derive(Default)]
struct Sums {
    loss: f64,
    top1: f64,
    samples: f64,
}

impl Sums {
    fn add(&mut self, outputs: BTreeMap<String, HostTensor>) -> Result<()> {
        let number = |name: &str| outputs.get(name).map_or(0.0, |output| output.to_f64()[0]);
        let samples = number(SAMPLES);
        self.loss += number("loss") * samples;
        self.top1 += number("top1");
        self.samples += samples;
        ensure!(self.loss.is_finite(), "the loss is no number any more: lower --lr");
        Ok(())
    }

    fn loss(&self) -> f64 {
        self.loss / self.samples
    }

    fn top1(&self) -> f64 {
        self.top1 / self.samples
    }
}

/// Evaluates on held-out pictures, in inference form: with running statistics.
struct Judge {
    session: Session,
    loader: Loader,
}

impl Judge {
    fn run(&mut self, training: &mut Session) -> Result<Sums> {
        for (name, (kind, _)) in self.session.variables() {
            if kind == TensorKind::Parameter {
                self.session.set_variable(&name, &training.variable(&name)?)?;
            }
        }
        let mut sums = Sums::default();
        for batch in self.loader.epoch(0)? {
            sums.add(self.session.step(batch?.feeds)?.wait()?)?;
        }
        Ok(sums)
    }
}

/// Keeps the last and the best weights.
struct Keeper {
    last: Checkpoints,
    best: Checkpoints,
    top1: f64,
}

impl Keeper {
    fn new(path: &std::path::Path) -> Result<Self> {
        let folder = |name: &str| Checkpoints::create(&path.join(name), 1);
        Ok(Self { last: folder("last")?, best: folder("best")?, top1: f64::NEG_INFINITY })
    }

    fn keep(&mut self, session: &mut Session, job: Option<&Arc<Job>>, top1: f64) -> Result<()> {
        let mut barrier = || job.map_or(Ok(()), |job| job.barrier());
        session.save_checkpoint_with(&mut self.last, &mut barrier)?;
        if top1 > self.top1 {
            session.save_checkpoint_with(&mut self.best, &mut barrier)?;
            self.top1 = top1;
        }
        Ok(())
    }
}
