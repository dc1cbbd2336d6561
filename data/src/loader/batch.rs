//! Makes the batch of a step, which is a function of the step's number.
//!
//! The order of an epoch is a Fisher-Yates shuffle with Philox numbers of seed and epoch, the same that `DistributedSampler` distributes over ranks.
//! Augmentation draws from seed, epoch and sample.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};

use graphc_host::data::Pieces;
use graphc_host::tensor::HostTensor;
use graphc_host::threads::panic_text;

use super::bind::Binding;
use super::{LastBatch, LoaderState};
use crate::dataset::FieldKind;
use crate::error::DatasetError;

/// The feeds of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The step, counted from the first of epoch 0.
    pub step: u64,
    /// The epoch of the step.
    pub epoch: u64,
    /// The index of the batch in its epoch, from 0.
    pub index: u64,
    /// The number of samples of the whole batch, without the padding behind the last.
    pub samples: usize,
    /// The feeds: whole, or only the rows of this process.
    pub feeds: BTreeMap<String, HostTensor>,
}

/// Memory through which samples pass.
#[derive(Default)]
struct SampleScratch {
    read: Vec<u8>,
    augmented: Vec<u8>,
}

impl LoaderState {
    /// Returns the number of batches of an epoch.
    pub(super) fn batches(&self) -> u64 {
        let (all, batch) = (self.sampler.len(), self.batch);
        (if self.options.last == LastBatch::Drop { all / batch } else { all.div_ceil(batch) })
            as u64
    }

    /// Makes the batch of a step. Before each sample `stop` is asked whether the batch is no longer wanted.
    pub(super) fn make_batch(
        &self,
        step: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<Batch, DatasetError> {
        let (epoch, first) = self.first_sample(step);
        let mut feeds = self.fixed.clone();
        for binding in &self.bindings {
            feeds.insert(binding.input.clone(), self.make_feed(binding, epoch, first, stop)?);
        }
        let samples = match self.options.last {
            LastBatch::Pad => (self.sampler.len() - first).min(self.batch),
            LastBatch::Drop | LastBatch::Wrap | LastBatch::Join => self.batch,
        };
        let index = (first / self.batch) as u64;
        Ok(Batch { step, epoch, index, samples, feeds })
    }

    /// Returns the epoch in which the batch of a step begins, and the index of its first sample there.
    fn first_sample(&self, step: u64) -> (u64, usize) {
        if self.options.last == LastBatch::Join {
            let (row, all) = (u128::from(step) * self.batch as u128, self.sampler.len() as u128);
            return ((row / all) as u64, (row % all) as usize);
        }
        let (epoch, index) = (step / self.batches(), step % self.batches());
        (epoch, index as usize * self.batch)
    }

    /// Returns the samples of an epoch, in order.
    fn sample_order(&self, epoch: u64) -> Arc<Vec<usize>> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, order)) = orders.iter().find(|(known, _)| *known == epoch) {
            return Arc::clone(order);
        }
        let order = Arc::new(self.sampler.epoch(epoch));
        orders.truncate(1);
        orders.push_front((epoch, Arc::clone(&order)));
        order
    }

    fn make_feed(
        &self,
        binding: &Binding,
        epoch: u64,
        first: usize,
        stop: &dyn Fn() -> bool,
    ) -> Result<HostTensor, DatasetError> {
        let (mut shape, held) = (binding.ty.shape.clone(), binding.count_rows());
        shape[binding.dim] = held;
        let mut tensor = HostTensor::zeros(binding.ty.dtype, shape);
        let pieces = Pieces::along_dim(&binding.ty, binding.dim);
        let mut scratch = SampleScratch::default();
        let mut order = (epoch, self.sample_order(epoch));
        let mut sample = vec![0; pieces.sample_bytes()];
        for (at, place) in binding.rows.iter().cloned().flatten().enumerate() {
            if stop() {
                break;
            }
            // A sample that lies in one piece is made where it belongs.
            let target = match pieces.blocks {
                1 => &mut tensor.bytes_mut()[at * pieces.bytes..][..pieces.bytes],
                _ => &mut sample[..],
            };
            match (self.find_sample(&mut order, epoch, first + place), &binding.nothing) {
                (Some(sample), _) => {
                    self.read_row(binding, order.0, sample, &mut scratch, target)?
                }
                (None, Some(nothing)) => target.copy_from_slice(nothing),
                (None, None) => unreachable!("a loader that pads knows what stands for no label"),
            }
            if pieces.blocks != 1 {
                pieces.copy_samples((&sample, 1, 0), (tensor.bytes_mut(), held, at), 1);
            }
        }
        Ok(tensor)
    }

    /// Returns the sample at a position from the first of an epoch, or `None` if there is only padding. `order` has the order of the epoch of the
    /// previous sample, and is replaced by that of this sample's epoch.
    fn find_sample(
        &self,
        order: &mut (u64, Arc<Vec<usize>>),
        epoch: u64,
        place: usize,
    ) -> Option<usize> {
        let all = self.sampler.len();
        if self.options.last == LastBatch::Join {
            let of = epoch + (place / all) as u64;
            if of != order.0 {
                *order = (of, self.sample_order(of));
            }
        }
        let beyond = place >= order.1.len();
        match self.options.last {
            LastBatch::Pad if beyond => None,
            _ => Some(order.1[place % order.1.len()]),
        }
    }

    /// Reads a sample's field. What a program's own data set says of an error, or of a panic, has the sample's name put before it.
    fn read_field(&self, sample: usize, field: usize, into: &mut [u8]) -> Result<(), DatasetError> {
        let read = catch_unwind(AssertUnwindSafe(|| self.set.read(sample, field, into)));
        let reason = match read {
            Ok(Err(DatasetError::Custom(reason))) => reason,
            Ok(read) => return read,
            Err(panic) => format!("reading it panicked: {}", panic_text(&*panic)),
        };
        let (set, name) = (self.set.name(), &self.set.fields()[field].name);
        Err(DatasetError::Custom(format!("`{name}` of sample {sample} of {set}: {reason}")))
    }

    /// Reads a sample's field, augments and converts it, and writes it to `target`.
    fn read_row(
        &self,
        binding: &Binding,
        epoch: u64,
        sample: usize,
        scratch: &mut SampleScratch,
        target: &mut [u8],
    ) -> Result<(), DatasetError> {
        let field = &self.set.fields()[binding.field];
        scratch.read.resize(field.ty.bytes(), 0);
        self.read_field(sample, binding.field, &mut scratch.read)?;
        let mut read = &scratch.read;
        let augment = self.options.augment;
        if let (FieldKind::Image, &[channels, height, width]) = (field.kind, &field.ty.shape[..])
            && augment != crate::Augment::NONE
        {
            scratch.augmented.resize(read.len(), 0);
            let drawn = augment.draw(self.options.seed, epoch, sample);
            drawn.apply([channels, height, width], read, &mut scratch.augmented);
            read = &scratch.augmented;
        }
        let written = binding.conversion.convert_into(read, target);
        written.map_err(|reason| {
            let (set, name) = (self.set.name(), &field.name);
            DatasetError::Loader(format!("`{name}` of sample {sample} of {set}: {reason}"))
        })
    }
}
