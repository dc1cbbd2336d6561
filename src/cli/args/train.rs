//! The options of `graphc train`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use graphc_data::Source;

use super::values::parse_source;
use super::{RuntimeArgs, SharedArgs};
use crate::cli::numbers::{parse_positive, parse_whole};

/// `graphc train`
#[derive(Args)]
#[command(group = clap::ArgGroup::new("length").required(true).args(["steps", "epochs"]))]
pub(crate) struct TrainArgs {
    /// The model (.onnx, .gir, hf:DIR) or a plan (.json)
    pub model: PathBuf,
    /// The data: a safetensors file with one tensor per graph input, and `labels` or `target`; or cifar10:DIR, cifar100:DIR,
    /// mnist:DIR, images:DIR, text:PATH, bpe:DIR, shuffled by the seed and the epoch
    #[arg(long, value_name = "FILE|NAME:DIR", value_parser = parse_source)]
    pub data: Source,
    /// Number of steps of the whole training: a run resumed at 120 of 200 makes 80 more
    #[arg(long, value_parser = parse_positive::<u64>)]
    pub steps: Option<u64>,
    /// Number of epochs of the whole training, instead: each takes every sample once, but for those that are left where batches
    /// do not divide them
    #[arg(long, value_name = "E", value_parser = parse_positive::<u64>)]
    pub epochs: Option<u64>,
    /// Shuffle a safetensors file too: by the seed and the epoch
    #[arg(long)]
    pub shuffle: bool,
    /// Evaluate on what is held out of this data: at the end, and after every --eval-every steps
    #[arg(long, value_name = "FILE|NAME:DIR", value_parser = parse_source)]
    pub eval_data: Option<Source>,
    /// Evaluate after every so many steps; without it after each epoch, if there are epochs
    #[arg(long, value_name = "K", requires = "eval_data", value_parser = parse_positive::<u64>)]
    pub eval_every: Option<u64>,
    /// End after so many evaluations in a row whose loss is no lower than the lowest before
    #[arg(long, value_name = "N", requires = "eval_data", value_parser = parse_positive::<usize>)]
    pub patience: Option<usize>,
    /// End after more than so many steps in a row that change nothing, be it by an overflow of f16 or by --on-nan skip; default 50, without
    /// limit under --on-nan ignore
    #[arg(long, value_name = "N", value_parser = parse_whole::<u64>)]
    pub max_skips: Option<u64>,
    /// Where losses go: one JSON object a line and step
    #[arg(long, value_name = "FILE")]
    pub metrics: Option<PathBuf>,
    /// Where the same numbers go as event files, which TensorBoard shows: a folder
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
    /// Measure the first 28 steps and write the seconds of each actor to this file: 3 warm up, 20 are timed as a whole, fewer where there
    /// are fewer, and 5 action by action
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Begin with these weights: a safetensors file with the model's names, or a checkpoint, of which the weights alone are
    /// taken
    #[arg(long, value_name = "FILE|CHECKPOINT", conflicts_with = "resume")]
    pub weights_from: Option<PathBuf>,
    /// Where the trained weights go: a safetensors file with the model's names
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,
    /// Where the outputs of the last step go: a safetensors file. Of a model all of them, or those that --fetch names; of a plan those
    /// that it was compiled with
    #[arg(long, value_name = "FILE")]
    pub outputs: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub checkpoints: CheckpointArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub shared: SharedArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub runtime: RuntimeArgs,
}

/// The measure by which a checkpoint is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lowercase")]
pub(crate) enum BestBy {
    /// The lowest loss
    Loss,
    /// The lowest exponential of the loss, of sequences
    Perplexity,
    /// The largest share of labels for which no class scores more
    Top1,
    /// The largest share of labels for which fewer than five classes score more
    Top5,
}

impl BestBy {
    /// Returns the name that evaluations give it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Perplexity => "perplexity",
            Self::Top1 => "top1",
            Self::Top5 => "top5",
        }
    }

    /// Whether a value is better than another.
    pub(crate) fn is_better(self, value: f64, other: f64) -> bool {
        match self {
            Self::Loss | Self::Perplexity => value < other,
            Self::Top1 | Self::Top5 => value > other,
        }
    }
}

/// Options of checkpoints.
#[derive(Args)]
pub(crate) struct CheckpointArgs {
    /// Save checkpoints here: a directory, which all processes of the job see
    #[arg(long, value_name = "DIR")]
    pub save: Option<PathBuf>,
    /// Save after every so many steps; without it after the last one
    #[arg(long, value_name = "K", requires = "save", value_parser = parse_positive::<u64>)]
    pub save_every: Option<u64>,
    /// How many checkpoints are kept: the latest
    #[arg(long, value_name = "N", default_value_t = 2, requires = "save", value_parser = parse_positive::<usize>)]
    pub keep: usize,
    /// Keep the best checkpoint as well, by what evaluations find: in the folder `best` of --save
    #[arg(long, value_name = "METRIC", value_enum, requires_all = ["save", "eval_data"])]
    pub keep_best: Option<BestBy>,
    /// Go on from this checkpoint, or from the latest in this directory
    #[arg(long, value_name = "DIR")]
    pub resume: Option<PathBuf>,
}
