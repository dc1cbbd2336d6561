//! The code that the examples on CIFAR-10 share: options, the loop over epochs with evaluation, the last and the best weights on disk, a
//! log of JSON lines. A [`Trainer`] makes the steps.

pub mod sbp;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use graphc::data::{ImageSet, cifar10};
use graphc::plan::SAMPLES;
use graphc::prelude::*;
use serde_json::json;

pub type Tensors = BTreeMap<String, HostTensor>;

/// Options of the command line.
#[derive(clap::Args)]
pub struct Options {
    /// Where the data set lies
    #[arg(long)]
    pub data: PathBuf,
    /// Epochs of the whole training
    #[arg(long, default_value_t = 10)]
    pub epochs: u64,
    /// Samples of a step, over all ranks
    #[arg(long, default_value_t = 128)]
    pub batch: usize,
    /// Learning rate after the warm-up, which is the first half of an epoch
    #[arg(long, default_value_t = 0.1)]
    pub lr: f64,
    /// Ranks, e.g. 4 or 2x2; by default those that the launcher has started
    #[arg(long)]
    pub mesh: Option<String>,
    /// Of initial weights, order and augmentation
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Save the last and the best weights here
    #[arg(long)]
    pub save: Option<PathBuf>,
    /// Go on from the last weights that were saved here
    #[arg(long)]
    pub resume: Option<PathBuf>,
    /// Append a line of JSON for each epoch
    #[arg(long)]
    pub log: Option<PathBuf>,
}

/// The network to train, and its weight decay.
pub struct Recipe<'a> {
    /// Scores of ten classes for so many images, on a mesh of so many axes.
    pub network: &'a (dyn Fn(usize, usize) -> Result<Graph> + Sync),
    /// The decay of all weights but those below.
    pub weight_decay: f64,
    /// Patterns of the names of weights that do not decay.
    pub no_decay: &'a [&'a str],
}

impl Options {
    /// The ranks: `world` is how many the launcher has started.
    pub fn mesh(&self, world: Option<usize>) -> Result<Vec<usize>> {
        let text = self.mesh.clone().unwrap_or_else(|| world.unwrap_or(1).to_string());
        let axis = |axis: &str| axis.parse().context("--mesh is written as 4 or 2x2");
        let mesh: Vec<usize> = text.split('x').map(axis).collect::<Result<_>>()?;
        let ranks: usize = mesh.iter().product();
        ensure!(
            world.is_none_or(|world| world == ranks),
            "--mesh {text} has {ranks} ranks, and the launcher has started {}: leave it out",
            world.unwrap_or(1)
        );
        Ok(mesh)
    }

    /// Opens the training set and the test set.
    pub fn sets(&self) -> Result<[Arc<ImageSet>; 2]> {
        let set = |split| cifar10(&self.data, split).map(Arc::new);
        let sets = [set(Split::Train)?, set(Split::Test)?];
        let samples = sets[0].samples();
        ensure!(self.batch > 0 && self.batch <= samples, "--batch is 1 to the {samples} samples");
        Ok(sets)
    }

    /// Returns the source of images, which says how they are normalized and augmented.
    pub fn source(&self) -> Result<Source> {
        Ok(format!("cifar10:{}", self.data.display()).parse()?)
    }

    /// The checkpoint to go on from.
    pub fn resumed(&self) -> Result<Option<Checkpoint>> {
        Ok(self.resume.as_ref().map(|path| Checkpoint::open(&path.join("last"))).transpose()?)
    }

    /// Begins where a checkpoint ends.
    pub fn session(&self, resumed: Option<&Checkpoint>) -> SessionOptions {
        SessionOptions {
            first_step: resumed.map_or(0, Checkpoint::step),
            seed: resumed.map_or(self.seed, Checkpoint::seed),
            ..SessionOptions::default()
        }
    }

    /// The optimizer and its schedule, for epochs of so many samples.
    pub fn training(&self, recipe: &Recipe, samples: usize) -> Result<CompileOptions> {
        let epoch = (samples / self.batch) as u64;
        let mut lr_schedule: LrSchedule = format!("cosine:{}", epoch * self.epochs).parse()?;
        let warmup = (epoch / 2).max(1);
        if warmup < epoch * self.epochs {
            lr_schedule.warmup = Some(warmup.to_string().parse()?);
        }
        let (lr, weight_decay) = (self.lr, recipe.weight_decay);
        Ok(CompileOptions {
            optimizer: Some(Optimizer::Sgd { lr, momentum: 0.9, nesterov: true, weight_decay }),
            lr_schedule,
            groups: recipe.no_decay.iter().map(|&name| ParameterGroup::no_decay(name)).collect(),
            ..evaluation()
        })
    }
}

/// The loss and what is counted beside it: all that an evaluation needs.
pub fn evaluation() -> CompileOptions {
    CompileOptions {
        loss: Some(Loss::CrossEntropy),
        metrics: vec![Metric::Top1],
        ..CompileOptions::default()
    }
}

/// A way to train.
pub trait Trainer {
    /// Whether this process prints and writes.
    fn leads(&self) -> bool;

    /// Begins a step. The outputs of the steps that have ended.
    fn step(&mut self, feeds: Tensors) -> Result<Vec<Tensors>>;

    /// Ends all steps that have begun.
    fn finish(&mut self) -> Result<Vec<Tensors>>;

    /// Adds up the counts of all ranks.
    fn total(&mut self, sums: Sums) -> Result<Sums>;

    /// Evaluates what is held out, in inference form: with running statistics.
    fn evaluate(&mut self) -> Result<Sums>;

    /// Saves a checkpoint.
    fn save(&mut self, to: &mut Checkpoints) -> Result<()>;
}

/// Trains from a step on, on so many ranks.
pub fn run(
    options: &Options,
    trainer: &mut dyn Trainer,
    loader: &Loader,
    first_step: u64,
    ranks: usize,
) -> Result<()> {
    let mut keeper = options.save.as_deref().map(Keeper::new).transpose()?;
    for epoch in first_step / loader.batches()..options.epochs {
        let begun = Instant::now();
        let mut sums = Sums::default();
        let from = first_step.saturating_sub(epoch * loader.batches());
        for batch in loader.epoch_from(epoch, from)? {
            trainer.step(batch?.feeds)?.iter().try_for_each(|outputs| sums.add(outputs))?;
        }
        trainer.finish()?.iter().try_for_each(|outputs| sums.add(outputs))?;
        let (sums, seconds) = (trainer.total(sums)?, begun.elapsed().as_secs_f64());
        let found = trainer.evaluate()?;
        if let Some(keeper) = &mut keeper {
            keeper.keep(trainer, found.top1())?;
        }
        if trainer.leads() {
            let line = json!({
                "epoch": epoch, "loss": sums.loss(), "top1": sums.top1(),
                "samples_per_second_and_rank": (sums.samples / seconds / ranks as f64).round(),
                "eval": { "loss": found.loss(), "top1": found.top1(), "samples": found.samples },
            });
            println!("{line}");
            write_line(options.log.as_deref(), &line.to_string())?;
        }
    }
    Ok(())
}

fn write_line(log: Option<&Path>, line: &str) -> Result<()> {
    let Some(path) = log else { return Ok(()) };
    let mut file = std::fs::File::options().create(true).append(true).open(path)?;
    Ok(writeln!(file, "{line}")?)
}

/// Sums over steps. The mean loss of a step counts as often as it has samples.
#[derive(Clone, Copy, Default)]
pub struct Sums {
    pub loss: f64,
    pub top1: f64,
    pub samples: f64,
}

impl Sums {
    pub fn add(&mut self, outputs: &Tensors) -> Result<()> {
        let number = |name: &str| outputs.get(name).map_or(0.0, |output| output.to_f64()[0]);
        let samples = number(SAMPLES);
        if samples == 0.0 {
            return Ok(()); // all rows stand behind the last sample, and a mean over none is no number
        }
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

/// Keeps the last and the best weights. How good the best are stands beside them, for who goes on.
struct Keeper {
    last: Checkpoints,
    best: Checkpoints,
    note: PathBuf,
    top1: f64,
}

impl Keeper {
    fn new(path: &Path) -> Result<Self> {
        let folder = |name: &str| Checkpoints::create(path.join(name), 1);
        let (last, best, note) = (folder("last")?, folder("best")?, path.join("best/top1"));
        let known = std::fs::read_to_string(&note).ok().and_then(|text| text.parse().ok());
        Ok(Self { last, best, note, top1: known.unwrap_or(f64::NEG_INFINITY) })
    }

    fn keep(&mut self, trainer: &mut dyn Trainer, top1: f64) -> Result<()> {
        trainer.save(&mut self.last)?;
        if top1 > self.top1 {
            trainer.save(&mut self.best)?;
            self.top1 = top1;
            if trainer.leads() {
                std::fs::write(&self.note, top1.to_string())?;
            }
        }
        Ok(())
    }
}
