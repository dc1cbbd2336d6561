//! Synchronous SGD on MNIST, written by hand: the training set is cut into a part for each rank, each rank computes gradients on
//! its part, and after every step an all-reduce averages them, parameter by parameter. Nothing but `dist` is between ranks.
//!
//!     cargo run --release --example mnist_synchronous_sgd -- --data DIR --ranks 2
//!     graphc launch --standalone --nproc-per-node 2 -- target/release/examples/mnist_synchronous_sgd --data DIR
//!
//! DIR holds the four files of MNIST; `graphc data synth mnist DIR` writes a set in their place, of which more than 95 % of what is
//! held out are told in three epochs. `DataParallel` does the same in buckets, while the backward pass goes on: see `ddp`.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, ensure};
use clap::Parser;
use graphc::data::{DatasetError, DistributedSampler, Field, ImageSet, Remainder, mnist};
use graphc::dist;
use graphc::nn::{BatchNorm2d, Conv2d, ConvConfig, Linear, MaxPool2d, Module, PoolConfig};
use graphc::plan::SAMPLES;
use graphc::prelude::*;

/// Trains on MNIST with gradients averaged by hand.
#[derive(Parser)]
struct Args {
    /// Where the data set lies
    #[arg(long)]
    data: PathBuf,
    /// How often each rank goes through its part
    #[arg(long, default_value_t = 3)]
    epochs: u64,
    /// Samples of a step, over all ranks
    #[arg(long, default_value_t = 128)]
    batch: usize,
    /// Learning rate
    #[arg(long, default_value_t = 0.1)]
    lr: f32,
    /// Threads, where the launcher has not started processes
    #[arg(long, default_value_t = 2)]
    ranks: u32,
}

const MOMENTUM: f32 = 0.9;
/// The seed of the initial weights, the parts and the order.
const SEED: u64 = 1234;

fn main() -> Result<()> {
    let args = Args::parse();
    let open = |split| mnist(&args.data, split).map(Arc::new);
    let sets = [open(Split::Train)?, open(Split::Test)?];
    dist::run(args.ranks, |group| train(&args, &sets, &group).map_err(|e| format!("{e:#}")))?;
    Ok(())
}

/// Scores of ten classes.
fn network(batch: usize) -> Result<Graph> {
    let g = GraphBuilder::new("mnist");
    let x = g.input("x", DType::F32, [batch, 1, 28, 28]);
    let pool = MaxPool2d(PoolConfig::square(2));
    let layer = |name: &str, channels: [usize; 2], x: &Tensor| {
        let config = ConvConfig { padding: [1; 2], bias: false, ..ConvConfig::square(3) };
        let y = Conv2d::new(&g, &format!("{name}.conv"), channels, config).forward(x);
        pool.forward(&BatchNorm2d::new(&g, &format!("{name}.norm"), channels[1]).forward(&y).relu())
    };
    let y = layer("2", [16, 32], &layer("1", [1, 16], &x));
    g.output("scores", &Linear::new(&g, "fc", 32, 10).forward(&y.mean(&[2, 3], false)));
    Ok(g.finish()?)
}

/// The samples of one rank.
struct Part {
    of: Arc<ImageSet>,
    samples: Vec<usize>,
}

impl Dataset for Part {
    fn name(&self) -> &str {
        self.of.name()
    }

    fn samples(&self) -> usize {
        self.samples.len()
    }

    fn fields(&self) -> &[Field] {
        self.of.fields()
    }

    fn read(&self, sample: usize, field: usize, into: &mut [u8]) -> Result<(), DatasetError> {
        self.of.read(self.samples[sample], field, into)
    }
}

/// Equal parts of a shuffled set; of what is held out every `n`-th sample, so that none is left out.
fn part(set: &Arc<ImageSet>, split: Split, group: &Group) -> Arc<Part> {
    let (rank, n) = (group.rank(), group.world_size());
    let samples = match split {
        Split::Train => {
            let sampler = DistributedSampler::new(set.samples(), n, rank, Remainder::Drop);
            sampler.shuffled(SEED).epoch(0)
        }
        Split::Test => (rank..set.samples()).step_by(n).collect(),
    };
    Arc::new(Part { of: Arc::clone(set), samples })
}

fn session(batch: usize, gradients: bool) -> Result<Session> {
    let options = CompileOptions {
        loss: Some(Loss::CrossEntropy),
        metrics: vec![Metric::Top1],
        gradients,
        ..CompileOptions::default()
    };
    let plan = compile(network(batch)?, &options, &preset("cpu").expect("a preset"), None)?.plan;
    // The same seed on all ranks: they begin with the same weights.
    let options = SessionOptions { seed: SEED, ..SessionOptions::default() };
    Ok(Session::new(&plan, &BTreeMap::new(), options)?)
}

fn train(args: &Args, sets: &[Arc<ImageSet>; 2], group: &Group) -> Result<()> {
    let n = group.world_size();
    let batch = args.batch / n;
    ensure!(batch > 0, "--batch {} leaves nothing to some of {n} ranks", args.batch);
    let mut session = session(batch, true)?;
    let source: Source = format!("mnist:{}", args.data.display()).parse()?;
    let own = part(&sets[0], Split::Train, group);
    let loader = Loader::new(own, session.inputs(), source.training(SEED))?;
    let mut velocities = BTreeMap::new();
    for epoch in 0..args.epochs {
        let mut sum = 0.0;
        for batch in loader.epoch(epoch)? {
            let outputs = session.step(batch?.feeds)?.wait()?;
            sum += outputs["loss"].to_f64()[0];
            step(&mut session, &outputs, &mut velocities, group, args.lr)?;
        }
        let (loss, accuracy) =
            (sum / loader.batches() as f64, evaluate(&mut session, &sets[1], &source, group)?);
        println!(
            "rank {} of {n}, epoch {epoch}: loss {loss:.4}, accuracy {accuracy:.4}",
            group.rank()
        );
    }
    Ok(())
}

/// Averages each gradient over the ranks, and makes a step of SGD with momentum along it.
fn step(
    session: &mut Session,
    outputs: &BTreeMap<String, HostTensor>,
    velocities: &mut BTreeMap<String, Vec<f32>>,
    group: &Group,
    lr: f32,
) -> Result<()> {
    for (output, gradient) in outputs {
        let Some(name) = output.strip_prefix("grad.") else { continue };
        let mut gradient = gradient.to_f32()?;
        group.all_reduce(&mut gradient, ReduceOp::Sum)?;
        let mut weight = session.variable(name)?.to_f32()?;
        let velocity = velocities.entry(name.to_owned()).or_insert(vec![0.0; weight.len()]);
        for ((weight, velocity), sum) in weight.iter_mut().zip(velocity).zip(gradient) {
            *velocity = MOMENTUM * *velocity + sum / group.world_size() as f32;
            *weight -= lr * *velocity;
        }
        session.set_variable(name, &HostTensor::from_f32(outputs[output].shape(), &weight)?)?;
    }
    Ok(())
}

/// The share of what is held out that all ranks together tell.
fn evaluate(
    session: &mut Session,
    set: &Arc<ImageSet>,
    source: &Source,
    group: &Group,
) -> Result<f64> {
    let mut tester = self::session(session.inputs()["x"].shape[0], false)?;
    let names = tester.variables();
    tester.copy_variables(session, names.keys().map(String::as_str))?;
    let own = part(set, Split::Test, group);
    let mut counts = [0.0_f32; 2];
    for batch in Loader::new(own, tester.inputs(), source.evaluation())?.epoch(0)? {
        let outputs = tester.step(batch?.feeds)?.wait()?;
        counts[0] += outputs["top1"].to_f32()?[0];
        counts[1] += outputs[SAMPLES].to_f32()?[0];
    }
    group.all_reduce(&mut counts[..], ReduceOp::Sum)?;
    Ok(f64::from(counts[0] / counts[1]))
}
