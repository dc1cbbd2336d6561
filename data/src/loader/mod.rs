//! Loaders: from a data set to the feeds of steps.
//!
//! A step's batch is a range of the epoch's order, and the order a function of seed and epoch, so any step can be made
//! anew (`batch.rs`). Threads make batches ahead of who takes them (`feeds.rs`). Which field feeds which input `bind.rs`
//! finds out.
//!
//! A loader knows inputs by their types alone. With the rows of a batch that its process reads, which
//! `Session::feed_rows` finds in the plan's feeds, it feeds those rows, packed, instead of whole tensors.

mod batch;
mod bind;
mod feeds;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use graphc_ir::types::{Samples, TensorType};
use graphc_runtime::dist::{DistributedSampler, Remainder};
use graphc_runtime::{HostTensor, Session, memory_and_swap};

use crate::augment::{Augment, Normalize};
use crate::dataset::{Dataset, describe_dataset};
use crate::error::DatasetError;
pub use batch::Batch;
pub use bind::IGNORED;
use bind::{Binding, bind_inputs, read_fixed_feeds};
pub use feeds::Feeds;

/// The treatment of the samples that are left where a batch is more than they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastBatch {
    /// They are left out: no sample comes twice in an epoch.
    Drop,
    /// The first ones of the epoch come again behind them: every sample comes at least once.
    Wrap,
    /// The next epoch begins behind them, in the same batch: samples follow each other without end, and batches belong to
    /// no epoch. Such batches are taken by [`Loader::from_step`].
    Join,
    /// Zeros come behind them, with labels that are ignored (-100): for evaluation, where every sample counts once.
    Pad,
}

/// Options of a loader.
#[derive(Clone, Debug)]
pub struct LoaderOptions {
    /// The seed of the order and of augmentation.
    pub seed: u64,
    /// Whether the order is another one in each epoch; otherwise it is the data set's.
    pub shuffle: bool,
    /// The treatment of the last batch of an epoch.
    pub last: LastBatch,
    /// The augmentation of images, at random.
    pub augment: Augment,
    /// The normalization of `u8` that feed floats, once they are in `[0, 1]`.
    pub normalize: Option<Normalize>,
    /// The number of threads that make batches. Each is one batch ahead, so this is also how many batches are held.
    pub ahead: usize,
    /// Which dims of inputs count samples: the first, where nothing is said. [`Loader::for_session`] knows them.
    pub samples: BTreeMap<String, Samples>,
    /// For data parallelism by hand: the samples of this rank, whose batches they make alone. It has an order of its own.
    pub sampler: Option<DistributedSampler>,
}

impl LoaderOptions {
    /// Options for training: shuffled, without a last batch that is not full.
    pub fn training(seed: u64) -> Self {
        Self { seed, shuffle: true, last: LastBatch::Drop, ..Self::evaluation() }
    }

    /// Options for evaluation: each sample once, in order.
    pub fn evaluation() -> Self {
        Self {
            seed: 0,
            shuffle: false,
            last: LastBatch::Pad,
            augment: Augment::NONE,
            normalize: None,
            ahead: 2,
            samples: BTreeMap::new(),
            sampler: None,
        }
    }
}

/// Makes the feeds of steps from a data set.
///
/// Step `k` of an epoch takes samples `k * batch` to `(k + 1) * batch` of its order. The order is a function of seed and epoch,
/// and what augmentation does one of seed, epoch and sample: so the batches are the same on every mesh, and from whatever
/// step on. Only rows that the ranks of this process read are made ([`Loader::for_session`]).
#[derive(Clone)]
pub struct Loader {
    work: Arc<Work>,
}

/// The work that threads share.
struct Work {
    set: Arc<dyn Dataset>,
    bindings: Vec<Binding>,
    /// The feeds that are the same in every step.
    fixed: BTreeMap<String, HostTensor>,
    options: LoaderOptions,
    batch: usize,
    sampler: DistributedSampler,
    /// The orders of the last two epochs that were asked for: threads are in two at the turn.
    orders: Mutex<VecDeque<(u64, Arc<Vec<usize>>)>>,
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (set, batch) = (describe_dataset(self.work.set.as_ref()), self.work.batch);
        write!(f, "Loader({set}, in batches of {batch})")
    }
}

impl Loader {
    /// Whole batches for inputs of these types. Each input is fed with the field of its name, or with the only one that fits its
    /// shape and type; one without a dim of samples with the set's own tensor of its name, the same in every step.
    ///
    /// # Errors
    /// Where the data set does not fit the inputs, or has no samples or fewer than a batch that must be full.
    pub fn new(
        set: Arc<dyn Dataset>,
        inputs: &BTreeMap<String, TensorType>,
        options: LoaderOptions,
    ) -> Result<Self, DatasetError> {
        let bindings =
            bind_inputs(set.as_ref(), inputs, &options.samples, options.normalize.as_ref())?;
        let fixed = read_fixed_feeds(set.as_ref(), inputs, &options.samples)?;
        let batch = batch_of(&bindings)?;
        let sampler = sampler(set.as_ref(), &options)?;
        check(set.as_ref(), &sampler, batch, &options)?;
        check_padding(&bindings, options.last)?;
        let work = Work { set, bindings, fixed, options, batch, sampler, orders: Mutex::default() };
        Ok(Self { work: Arc::new(work) })
    }

    /// Feeds for a session, with the rows alone that its ranks read ([`Session::feed_rows`]).
    ///
    /// # Errors
    /// As [`Loader::new`].
    pub fn for_session(
        set: Arc<dyn Dataset>,
        session: &Session,
        options: LoaderOptions,
    ) -> Result<Self, DatasetError> {
        let options = LoaderOptions { samples: session.samples().clone(), ..options };
        Ok(Self::new(set, session.inputs(), options)?.with_rows(&session.feed_rows()))
    }

    /// Makes these rows of inputs alone, one after the other; ascending ranges of the batch.
    #[must_use]
    pub fn with_rows(self, rows: &BTreeMap<String, Vec<Range<usize>>>) -> Self {
        let work = &self.work;
        let mut bindings = work.bindings.clone();
        for binding in &mut bindings {
            if let Some(rows) = rows.get(&binding.input) {
                let inside = |range: &Range<usize>| range.start..range.end.min(work.batch);
                binding.rows = rows.iter().map(inside).filter(|range| !range.is_empty()).collect();
            }
        }
        let (set, options) = (Arc::clone(&work.set), work.options.clone());
        let (batch, sampler, fixed) = (work.batch, work.sampler.clone(), work.fixed.clone());
        let work = Work { set, bindings, fixed, options, batch, sampler, orders: Mutex::default() };
        Self { work: Arc::new(work) }
    }

    /// Samples of a batch.
    pub fn batch(&self) -> usize {
        self.work.batch
    }

    /// Samples that come in an epoch; of this rank, where there is a sampler.
    pub fn samples(&self) -> usize {
        let (all, batch) = (self.work.sampler.len(), self.work.batch);
        if self.work.options.last == LastBatch::Drop { all / batch * batch } else { all }
    }

    /// The number of batches, and so of steps, of an epoch.
    pub fn batches(&self) -> u64 {
        self.work.batches()
    }

    /// The epoch of a step, and which of its batches it takes.
    pub fn place(&self, step: u64) -> (u64, u64) {
        (step / self.batches(), step % self.batches())
    }

    /// The batch of a step, made here and now.
    ///
    /// # Errors
    /// Where a sample cannot be read or does not fit.
    pub fn make(&self, step: u64) -> Result<Batch, DatasetError> {
        self.work.make_batch(step, &|| false)
    }

    /// The batches from a step on, epoch after epoch, without end: steps are counted from the first of epoch 0. Threads make
    /// them ahead.
    ///
    /// # Errors
    /// Where there is no thread to be had.
    pub fn from_step(&self, step: u64) -> Result<Feeds, DatasetError> {
        Feeds::start_threads(&self.work, step..u64::MAX)
    }

    /// The batches of an epoch from `batch` on. Threads make them ahead.
    ///
    /// # Errors
    /// Where there is no thread to be had.
    pub fn epoch_from(&self, epoch: u64, batch: u64) -> Result<Feeds, DatasetError> {
        let first = epoch.saturating_mul(self.batches());
        let end = first.saturating_add(self.batches());
        Feeds::start_threads(&self.work, first.saturating_add(batch).min(end)..end)
    }

    /// The batches of an epoch. Threads make them ahead.
    ///
    /// # Errors
    /// Where there is no thread to be had.
    pub fn epoch(&self, epoch: u64) -> Result<Feeds, DatasetError> {
        self.epoch_from(epoch, 0)
    }
}

/// The samples of all inputs that have any.
fn batch_of(bindings: &[Binding]) -> Result<usize, DatasetError> {
    let batches: BTreeMap<usize, &str> =
        bindings.iter().map(|binding| (binding.batch_size(), binding.input.as_str())).collect();
    let mut all = batches.iter();
    match (all.next(), all.next()) {
        (Some((&batch, _)), None) if batch > 0 => Ok(batch),
        (Some((a, x)), Some((b, y))) => {
            let text = format!("inputs `{x}` and `{y}` have batches of {a} and {b} samples");
            Err(DatasetError::Loader(text))
        }
        (Some((_, input)), None) => {
            Err(DatasetError::Loader(format!("input `{input}` has a batch of no samples")))
        }
        (None, _) => {
            Err(DatasetError::Loader("the graph has no inputs to feed with samples".into()))
        }
    }
}

/// The samples of this rank: all, unless told otherwise.
fn sampler(set: &dyn Dataset, options: &LoaderOptions) -> Result<DistributedSampler, DatasetError> {
    let Some(sampler) = &options.sampler else {
        let all = DistributedSampler::new(set.samples(), 1, 0, Remainder::Drop);
        return Ok(if options.shuffle { all.shuffled(options.seed) } else { all });
    };
    if sampler.samples() != set.samples() {
        let (found, all) = (sampler.samples(), set.samples());
        let text = format!("the sampler is for {found} samples, and {} has {all}", set.name());
        return Err(DatasetError::Loader(text));
    }
    Ok(sampler.clone())
}

fn check(
    set: &dyn Dataset,
    sampler: &DistributedSampler,
    batch: usize,
    options: &LoaderOptions,
) -> Result<(), DatasetError> {
    let (name, samples) = (set.name(), sampler.len());
    let text = match options.last {
        _ if samples == 0 => format!("{name} has no samples (for this rank)"),
        LastBatch::Drop if samples < batch => {
            let of = if options.sampler.is_some() { " for this rank" } else { "" };
            format!(
                "{name} has {samples} samples{of}, fewer than a batch of {batch}: take a smaller batch (--batch), or let the \
                 last one wrap"
            )
        }
        _ if beyond_memory(sampler.samples(), memory_and_swap()) => format!(
            "{name} has {} samples, and the order of so many, of {ORDER_BYTES} bytes each, is more than this machine's memory: \
             take a part of it, or longer samples",
            sampler.samples()
        ),
        _ => return Ok(()),
    };
    Err(DatasetError::Loader(text))
}

/// Bytes of memory that the order of an epoch takes for each sample: it is made of another list, and that of the epoch
/// before is kept.
const ORDER_BYTES: u64 = 32;

/// Whether the order of so many samples is more than there is memory; where the system does not say how much there is, it is not.
fn beyond_memory(samples: usize, memory: Option<u64>) -> bool {
    let bytes = (samples as u64).saturating_mul(ORDER_BYTES);
    memory.is_some_and(|memory| bytes > memory)
}

/// Checks that labels can say that they do not count, where a batch is padded.
fn check_padding(bindings: &[Binding], last: LastBatch) -> Result<(), DatasetError> {
    match bindings.iter().find(|binding| binding.nothing.is_none()) {
        Some(Binding { input, ty, .. }) if last == LastBatch::Pad => {
            let dtype = ty.dtype;
            Err(DatasetError::Loader(format!(
                "input `{input}` is of {dtype}, which has no {IGNORED} for labels that do not count"
            )))
        }
        _ => Ok(()),
    }
}
