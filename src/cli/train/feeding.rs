//! The feeds of a training: rows of a file in their order, or the batches of a loader, epoch after epoch.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use graphc_data::{Feeds, Kind, LastBatch, Loader, LoaderOptions, Source, Split, describe_dataset};
use graphc_runtime::data::{Batches, load_safetensors};
use graphc_runtime::{HostTensor, Session};

use crate::cli::args::TrainArgs;
use crate::cli::data_files::{DataExtents, Types, read_types};
use crate::cli::output::print_message;
use crate::cli::ranks::Ranks;

/// The data of a training, as far as it can be read before there is a plan.
pub(super) struct Training<'a> {
    args: &'a TrainArgs,
    /// The tensors of a file.
    tensors: Option<Types>,
    /// Whether they are taken row by row in their order, wrapping: no epochs.
    in_order: bool,
}

impl<'a> Training<'a> {
    /// Opens what `--data` names. Of a file only its header is read.
    pub(super) fn open_data(args: &'a TrainArgs) -> Result<Self> {
        let is_file = args.data.kind == Kind::Tensors;
        ensure!(
            is_file || !args.shuffle,
            "--shuffle is for safetensors files: {} is shuffled anyway",
            args.data
        );
        args.data.check_kind()?;
        let tensors = is_file.then(|| read_types(&args.data.path)).transpose()?;
        Ok(Self { args, tensors, in_order: is_file && !args.shuffle && args.epochs.is_none() })
    }

    /// Returns the model's extents as a file says them: of the batch only where its rows are taken in their order.
    pub(super) fn extents(&self) -> Option<DataExtents<'_>> {
        let of = |types| DataExtents { types, are_batch: self.in_order };
        self.tensors.as_ref().map(of)
    }

    /// The tensors that ranks must have alike before there is a plan.
    pub(super) fn shared_tensors(&self) -> Option<(&Path, &Types)> {
        let tensors = self.tensors.as_ref().filter(|_| self.in_order);
        tensors.map(|tensors| (self.args.data.path.as_path(), tensors))
    }

    /// The batches for a session; all ranks must have the same data set.
    pub(super) fn feeder(&self, session: &Session, ranks: &Ranks, seed: u64) -> Result<Feeder> {
        let source = &self.args.data;
        let in_order = self.in_order;
        if in_order && session.feed_rows().is_empty() {
            let tensors = load_safetensors(&source.path)?;
            let batches = Batches::new(tensors, session.inputs(), session.samples());
            return Ok(Feeder::Whole(batches.with_context(|| format!("in {source}"))?));
        }
        let set = source.open_for(Split::Train, session)?;
        if let Some(note) = set.note().filter(|_| ranks.leads()) {
            print_message("note", note);
        }
        let described = match source.kind {
            // Hosts may have it in other folders.
            Kind::Tensors => describe_dataset(set.as_ref()).replacen(set.name(), "the file", 1),
            _ => describe_dataset(set.as_ref()),
        };
        ranks.agree_on_set(&described)?;
        let options = match in_order {
            true => LoaderOptions { last: LastBatch::Join, ..ordered_options(source, seed) },
            false => loader_options(source, seed, self.args.shuffle),
        };
        let loader = Loader::for_session(set, session, options);
        let loader = loader.with_context(|| format!("in {source}"))?;
        if let (Kind::Tensors, true) = (&source.kind, ranks.leads()) {
            loader.renamed_fields().for_each(|(input, field)| note_renamed(input, field));
        }
        let (samples, batch) = (loader.samples(), loader.batch());
        if in_order && samples < batch && ranks.leads() {
            let often = "so a step takes samples more than once: take a smaller batch (--batch)";
            print_message(
                "warning",
                &format!("{source} has {samples} samples for a batch of {batch}, {often}"),
            );
        }
        Ok(Feeder::Loader { loader, feeds: None, has_epochs: !in_order })
    }
}

fn note_renamed(input: &str, field: &str) {
    let text = format!(
        "the data has no tensor `{input}`: it is fed with `{field}`, the only one that fits"
    );
    print_message("note", &text);
}

/// A file is in the order that it has, unless it is to be shuffled.
fn loader_options(source: &Source, seed: u64, shuffle: bool) -> LoaderOptions {
    match source.kind {
        Kind::Tensors if !shuffle => ordered_options(source, seed),
        _ => source.training(seed),
    }
}

fn ordered_options(source: &Source, seed: u64) -> LoaderOptions {
    LoaderOptions { shuffle: false, ..source.training(seed) }
}

/// Feeds step after step.
pub(super) enum Feeder {
    /// Tensors that are the same in every step: where no input has samples.
    Whole(Batches),
    /// The rows that the ranks of this process read.
    Loader {
        /// Makes the batches.
        loader: Loader,
        /// The feeds that are made ahead, once there is a first step.
        feeds: Option<Feeds>,
        /// Whether batches belong to epochs, whose order is a function of the seed and the epoch. Otherwise step `k` takes rows
        /// `[k * batch, (k + 1) * batch)`, wrapping.
        has_epochs: bool,
    },
}

impl Feeder {
    /// The feeds of a step, the one behind that asked for last.
    pub(super) fn next(&mut self, step: u64) -> Result<BTreeMap<String, HostTensor>> {
        let (loader, feeds) = match self {
            Self::Whole(batches) => return Ok(batches.feeds(step)),
            Self::Loader { loader, feeds, .. } => (loader, feeds),
        };
        if feeds.is_none() {
            *feeds = Some(loader.from_step(step)?);
        }
        let Some(batch) = feeds.as_mut().and_then(Iterator::next) else {
            bail!("the loader has ended before step {step}");
        };
        let batch = batch?;
        debug_assert_eq!(batch.step, step);
        Ok(batch.feeds)
    }

    /// Steps of an epoch, where there are epochs.
    pub(super) fn steps_per_epoch(&self) -> Option<u64> {
        match self {
            Self::Loader { loader, has_epochs: true, .. } => Some(loader.batches()),
            Self::Loader { .. } | Self::Whole(_) => None,
        }
    }

    /// Samples of a step.
    pub(super) fn batch_size(&self) -> usize {
        match self {
            Self::Whole(batches) => batches.batch_size(),
            Self::Loader { loader, .. } => loader.batch(),
        }
    }

    /// The steps of the whole training.
    pub(super) fn steps(&self, args: &TrainArgs) -> Result<u64> {
        let Some(epochs) = args.epochs else { return args.steps.context("--steps or --epochs") };
        let epoch = self.steps_per_epoch().context("--epochs needs a data set")?;
        epochs.checked_mul(epoch).context("--epochs is more than can be counted in steps")
    }
}
