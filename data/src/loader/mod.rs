//! Loaders make the feeds of steps from a data set.
//!
//! The batch of a step is a range of the epoch's order, and the order is a function of seed and epoch, so any step can be made again (`batch.rs`).
//! Threads make batches in advance (`feeds.rs`). `bind.rs` finds the field that feeds each input.
//!
//! A loader knows inputs by their types alone. If it is given the rows of a batch that its process reads, which `Session::feed_rows` finds in the
//! plan's feeds, it feeds those rows, packed, instead of whole tensors.

mod batch;
mod bind;
mod feeds;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use graphc_host::FeedTypes;
use graphc_host::memory::memory_and_swap;
use graphc_host::tensor::HostTensor;
use graphc_ir::types::{Samples, TensorType};

use crate::augment::{Augment, Normalize};
use crate::dataset::{Dataset, describe_dataset};
use crate::error::DatasetError;
use crate::sampler::{DistributedSampler, Remainder};
pub use batch::Batch;
pub use bind::IGNORED;
use bind::{Binding, bind_inputs, read_fixed_feeds};
pub use feeds::Feeds;

/// The treatment of the samples at the end of an epoch that do not fill a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastBatch {
    /// They are left out, so that no sample comes twice in an epoch.
    Drop,
    /// The first samples of the epoch are repeated behind them, so that every sample comes at least once.
    Wrap,
    /// The next epoch begins behind them, in the same batch, so samples follow each other without end, and batches belong to no epoch.
    /// [`Loader::from_step`] gives such batches.
    Join,
    /// Zeros come behind them, with labels that are ignored (-100). This is for evaluation, where every sample counts once.
    Pad,
}

/// Options of a loader.
#[derive(Clone, Debug)]
pub struct LoaderOptions {
    /// The seed of the order and of augmentation.
    pub seed: u64,
    /// Whether the order changes in each epoch; otherwise it is the data set's.
    pub shuffle: bool,
    /// The treatment of the last batch of an epoch.
    pub last: LastBatch,
    /// The random augmentation of images.
    pub augment: Augment,
    /// The normalization of `u8` fields that feed floats, after they were scaled to `[0, 1]`.
    pub normalize: Option<Normalize>,
    /// The number of threads that make batches. Each makes one batch in advance, so this is also the number of batches that are held.
    pub ahead: usize,
    /// The dims of inputs that count samples. For inputs that are not listed it is the first. [`Loader::for_session`] sets them.
    pub samples: BTreeMap<String, Samples>,
    /// For data parallelism by hand: the sampler of this rank, whose samples alone make the batches. It has an order of its own.
    pub sampler: Option<DistributedSampler>,
}

impl LoaderOptions {
    /// Returns options for training: shuffled, without a last batch that is not full.
    pub fn training(seed: u64) -> Self {
        Self { seed, shuffle: true, last: LastBatch::Drop, ..Self::evaluation() }
    }

    /// Returns options for evaluation: each sample once, in order.
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
/// Step `k` of an epoch takes samples `k * batch` to `(k + 1) * batch` of its order. The order is a function of seed and epoch, and augmentation is
/// one of seed, epoch and sample. So the batches are the same on every mesh, and from whatever step on. Only the rows that the ranks of this process
/// read are made ([`Loader::for_session`]).
#[derive(Clone)]
pub struct Loader {
    work: Arc<LoaderState>,
}

/// The state that the threads share.
struct LoaderState {
    set: Arc<dyn Dataset>,
    bindings: Vec<Binding>,
    /// The feeds that are the same in every step.
    fixed: BTreeMap<String, HostTensor>,
    options: LoaderOptions,
    batch: usize,
    sampler: DistributedSampler,
    /// The orders of the last two epochs that were asked for. At the turn of an epoch threads are in two of them.
    orders: Mutex<VecDeque<(u64, Arc<Vec<usize>>)>>,
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (set, batch) = (describe_dataset(self.work.set.as_ref()), self.work.batch);
        write!(f, "Loader({set}, in batches of {batch})")
    }
}

impl Loader {
    /// Makes a loader of whole batches for inputs of these types. Each input is fed with the field of its name, or with the only one that fits its
    /// shape and type. An input without a dim of samples is fed with the set's own tensor of its name, the same in every step.
    ///
    /// # Errors
    /// Returns an error if the data set does not fit the inputs, if it has no samples, or if it has fewer than a batch that must be full.
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
        let work =
            LoaderState { set, bindings, fixed, options, batch, sampler, orders: Mutex::default() };
        Ok(Self { work: Arc::new(work) })
    }

    /// Makes a loader for a session, which feeds only the rows that the session's ranks read ([`FeedTypes::rows`]).
    ///
    /// # Errors
    /// As [`Loader::new`].
    pub fn for_session<S>(
        set: Arc<dyn Dataset>,
        session: &S,
        options: LoaderOptions,
    ) -> Result<Self, DatasetError>
    where
        for<'a> &'a S: Into<FeedTypes>,
    {
        let FeedTypes { inputs, samples, rows } = session.into();
        let options = LoaderOptions { samples, ..options };
        Ok(Self::new(set, &inputs, options)?.with_rows(&rows))
    }

    /// Makes only these rows of inputs, one after the other. They are ascending ranges of the batch.
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
        let work =
            LoaderState { set, bindings, fixed, options, batch, sampler, orders: Mutex::default() };
        Self { work: Arc::new(work) }
    }

    /// Returns the inputs that are fed with a field of another name, with that name: the only one that fits.
    pub fn renamed_fields(&self) -> impl Iterator<Item = (&str, &str)> {
        let fields = self.work.set.fields();
        let pairs = self.work.bindings.iter().map(|b| (&*b.input, &*fields[b.field].name));
        pairs.filter(|(input, field)| input != field)
    }

    /// Returns the number of samples of a batch.
    pub fn batch(&self) -> usize {
        self.work.batch
    }

    /// Returns the number of samples that come in an epoch, or those of this rank if there is a sampler.
    pub fn samples(&self) -> usize {
        let (all, batch) = (self.work.sampler.len(), self.work.batch);
        if self.work.options.last == LastBatch::Drop { all / batch * batch } else { all }
    }

    /// Returns the number of batches, and so of steps, of an epoch.
    pub fn batches(&self) -> u64 {
        self.work.batches()
    }

    /// Returns the epoch of a step, and the index of its batch there, at [`Loader::batches`] steps for each epoch. Under [`LastBatch::Join`] the
    /// samples of the step may come from a later epoch, since batches do not end with epochs: [`Batch::epoch`] and [`Batch::index`] say where they
    /// begin.
    pub fn place(&self, step: u64) -> (u64, u64) {
        (step / self.batches(), step % self.batches())
    }

    /// Makes the batch of a step, in the calling thread.
    ///
    /// # Errors
    /// Returns an error if a sample cannot be read or does not fit.
    pub fn make(&self, step: u64) -> Result<Batch, DatasetError> {
        self.work.make_batch(step, &|| false)
    }

    /// Returns the batches from a step on, epoch after epoch, without end. Steps are counted from the first of epoch 0. Threads make the batches in
    /// advance.
    ///
    /// # Errors
    /// Returns an error if no thread can be started.
    pub fn from_step(&self, step: u64) -> Result<Feeds, DatasetError> {
        Feeds::start_threads(&self.work, step..u64::MAX)
    }

    /// Returns the batches of an epoch from `batch` on. Threads make them in advance.
    ///
    /// # Errors
    /// Returns an error if no thread can be started.
    pub fn epoch_from(&self, epoch: u64, batch: u64) -> Result<Feeds, DatasetError> {
        let first = epoch.saturating_mul(self.batches());
        let end = first.saturating_add(self.batches());
        Feeds::start_threads(&self.work, first.saturating_add(batch).min(end)..end)
    }

    /// Returns the batches of an epoch. Threads make them in advance.
    ///
    /// # Errors
    /// Returns an error if no thread can be started.
    pub fn epoch(&self, epoch: u64) -> Result<Feeds, DatasetError> {
        self.epoch_from(epoch, 0)
    }
}

/// Returns the number of samples of a batch, on which all inputs that have samples must agree.
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

/// Returns the sampler of this rank. It has all samples, unless the options say otherwise.
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
                "{name} has {samples} samples{of}, fewer than a batch of {batch}: take a smaller batch"
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

/// The bytes of memory that the order of an epoch takes for each sample. It is made from another list, and the order of the previous epoch is kept.
const ORDER_BYTES: u64 = 32;

/// Whether the order of this many samples needs more memory than there is. If the system does not tell how much there is, it does not.
fn beyond_memory(samples: usize, memory: Option<u64>) -> bool {
    let bytes = (samples as u64).saturating_mul(ORDER_BYTES);
    memory.is_some_and(|memory| bytes > memory)
}

/// Checks, if a batch is padded, that the labels' type has a value that is ignored.
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
