//! The gradients of one step on their way. They fill buckets in whatever order the backward pass makes them. Each bucket
//! is reduced as soon as it and all buckets before it are full, while the backward pass goes on. That order is the same
//! on all ranks, as that of collectives must be (Li et al., "PyTorch Distributed: Experiences on Accelerating Data
//! Parallel Training", VLDB 2020, section 3.2.3).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use graphc_ir::ops::Variable;
use graphc_runtime::dist::{DistError, Group, PendingWork, ReduceOp};
use graphc_runtime::{HostTensor, TensorError};

/// The place of a gradient: a bucket, and a range of its bytes.
#[derive(Clone, Debug, PartialEq)]
struct GradientPlace {
    bucket: usize,
    bytes: Range<usize>,
}

/// The assignment of the parameters' gradients to buckets.
#[derive(Debug)]
pub(super) struct BucketLayout {
    /// The places of gradients, by the parameter's name.
    places: BTreeMap<String, GradientPlace>,
    /// For each bucket, the number of gradients, and a tensor of its type and size.
    buckets: Vec<(usize, HostTensor)>,
}

impl BucketLayout {
    /// `buckets` of indices into `parameters`, each of one type.
    ///
    /// # Errors
    /// None that a bucket of one type could have.
    pub(super) fn new(
        parameters: &[Variable],
        buckets: &[Vec<usize>],
    ) -> Result<Self, TensorError> {
        let (mut places, mut sized) = (BTreeMap::new(), Vec::new());
        for (bucket, members) in buckets.iter().enumerate() {
            let mut end = 0;
            for &index in members {
                let Variable { name, ty, .. } = &parameters[index];
                let bytes = end..end + ty.bytes();
                end = bytes.end;
                places.insert(name.clone(), GradientPlace { bucket, bytes });
            }
            let dtype = parameters[members[0]].ty.dtype;
            sized
                .push((members.len(), HostTensor::new(dtype, [end / dtype.size()], vec![0; end])?));
        }
        Ok(Self { places, buckets: sized })
    }

    /// The bytes of a parameter's gradient in the buckets.
    pub(super) fn find<'a>(&self, name: &str, buckets: &'a [HostTensor]) -> Option<&'a [u8]> {
        let place = self.places.get(name)?;
        Some(&buckets.get(place.bucket)?.bytes()[place.bytes.clone()])
    }

    /// Memory for all buckets.
    pub(super) fn memory(&self) -> Vec<HostTensor> {
        self.buckets.iter().map(|(_, tensor)| tensor.clone()).collect()
    }
}

/// The reduction of a step's gradients.
pub(super) struct Reducer {
    group: Group,
    layout: Arc<BucketLayout>,
    state: Mutex<ReducerState>,
}

struct ReducerState {
    /// The memory of each bucket, until its reduction begins.
    filling: Vec<Option<HostTensor>>,
    /// The number of gradients that each bucket lacks.
    missing: Vec<usize>,
    /// Reductions that have begun: those of the first buckets.
    works: Vec<PendingWork<HostTensor>>,
    failed: Option<DistError>,
}

impl Reducer {
    /// The gradients of a step, which go into `memory`. Parameters that are `unused` take part with zeros; the gradients of
    /// the others are to be [`Reducer::put`].
    pub(super) fn begin<'a>(
        group: &Group,
        layout: &Arc<BucketLayout>,
        memory: Vec<HostTensor>,
        unused: impl Iterator<Item = &'a str>,
    ) -> Self {
        let filling = memory.into_iter().map(Some).collect();
        let missing = layout.buckets.iter().map(|(gradients, _)| *gradients).collect();
        let state = ReducerState { filling, missing, works: Vec::new(), failed: None };
        let (group, layout) = (group.clone(), Arc::clone(layout));
        let this = Self { group, layout, state: Mutex::new(state) };
        unused.for_each(|name| this.fill(name, |bytes| bytes.fill(0)));
        this
    }

    fn state(&self) -> MutexGuard<'_, ReducerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A gradient is there. Starts the reductions that can begin with it.
    pub(super) fn put(&self, name: &str, gradient: &HostTensor) {
        self.fill(name, |bytes| bytes.copy_from_slice(gradient.bytes()));
    }

    fn fill(&self, name: &str, write: impl FnOnce(&mut [u8])) {
        let Some(GradientPlace { bucket, bytes }) = self.layout.places.get(name) else { return };
        let mut state = self.state();
        let ReducerState { filling, missing, .. } = &mut *state;
        if let Some(tensor) = &mut filling[*bucket] {
            write(&mut tensor.bytes_mut()[bytes.clone()]);
            missing[*bucket] -= 1;
        }
        self.start(&mut state);
    }

    /// Starts the reductions of full buckets, in order.
    fn start(&self, state: &mut ReducerState) {
        while state.failed.is_none() && state.missing.get(state.works.len()) == Some(&0) {
            let Some(bucket) = state.filling[state.works.len()].take() else { return };
            match self.group.all_reduce_async(bucket, ReduceOp::Avg) {
                Ok(work) => state.works.push(work),
                Err(error) => state.failed = Some(error),
            }
        }
    }

    /// Returns the number of reductions that have begun, and of those that are done.
    #[cfg(test)]
    fn progress(&self) -> (usize, usize) {
        let state = self.state();
        let done = state.works.iter().filter(|work| work.is_done()).count();
        (state.works.len(), done)
    }

    /// Waits for all reductions; the averages, bucket by bucket.
    ///
    /// # Errors
    /// The first that has failed.
    pub(super) fn finish(&self) -> Result<Vec<HostTensor>, DistError> {
        let mut state = self.state();
        let works = std::mem::take(&mut state.works);
        match state.failed.take() {
            Some(failed) => Err(failed),
            None => works.into_iter().map(PendingWork::wait).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
