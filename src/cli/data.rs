//! `graphc data synth`: a data set in the true format, where none can be downloaded.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use graphc_data::synth::{self, SynthSet};

use super::numbers::{parse_positive, parse_whole};
use super::output::print_escaped;

/// `graphc data`
#[derive(Args)]
pub(crate) struct DataArgs {
    /// What to do.
    #[command(subcommand)]
    command: DataCommand,
}

#[derive(Subcommand)]
enum DataCommand {
    /// Write a data set of images that no linear classifier can learn and a convolutional network can, in the true format
    Synth(SynthArgs),
}

/// `graphc data synth`
#[derive(Args)]
struct SynthArgs {
    /// The format
    #[arg(value_enum)]
    set: SetName,
    /// The folder; files that are there already are not overwritten
    folder: PathBuf,
    /// Training samples; a fifth as many are held out
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = parse_positive::<usize>)]
    samples: usize,
    /// Another seed, another set
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = parse_whole::<u64>)]
    seed: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum SetName {
    /// CIFAR-10, binary: five files of training images and one of held-out ones
    Cifar10,
    /// MNIST, IDX: images and labels, for training and held out
    Mnist,
}

/// Runs the command.
pub(super) fn run_data(args: &DataArgs) -> Result<()> {
    let DataCommand::Synth(args) = &args.command;
    let (set, name) = match args.set {
        SetName::Cifar10 => (SynthSet::Cifar10, "cifar10"),
        SetName::Mnist => (SynthSet::Mnist, "mnist"),
    };
    let files = synth::write_set(set, &args.folder, args.samples, args.seed)?;
    let (folder, count) = (args.folder.display(), files.len());
    let held_out = synth::held_out(args.samples);
    print_escaped(&format!(
        "{name}:{folder}: {} training samples and {held_out} held out, in {count} files\n",
        args.samples
    ))
}
