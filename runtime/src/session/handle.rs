//! Steps as the program that began them sees them: it waits for them, asks whether they are over, or awaits them.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use graphc_host::tensor::HostTensor;

use crate::error::RuntimeError;
use crate::worker::StepState;

/// A step under way. It is also a future, which any executor can drive: the last worker of the step wakes it. A step whose handle is
/// dropped goes on.
#[derive(Debug)]
pub struct StepHandle {
    pub(super) number: u64,
    pub(super) state: Arc<StepState>,
    /// The plan's outputs.
    pub(super) names: Arc<[String]>,
}

impl StepHandle {
    /// Returns the step's number.
    pub fn step(&self) -> u64 {
        self.number
    }

    /// Whether the step is over on all ranks, with or without success. Never blocks; [`StepHandle::wait`] does not block then either.
    pub fn is_finished(&self) -> bool {
        self.state.is_done()
    }

    /// Waits until the step is done on all ranks. Returns the outputs that it was to fetch, by name.
    ///
    /// # Errors
    /// Where a rank has failed or the session was dropped before.
    pub fn wait(self) -> Result<BTreeMap<String, HostTensor>, RuntimeError> {
        self.state.wait()?;
        Ok(self.take_outputs())
    }

    fn take_outputs(&self) -> BTreeMap<String, HostTensor> {
        let take = |output: &Mutex<HostTensor>| {
            let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
            let nothing = HostTensor::zeros(output.dtype(), [0]);
            std::mem::replace(&mut *output, nothing)
        };
        let outputs = self.names.iter().zip(&self.state.outputs).zip(self.state.fetched.iter());
        let fetched = outputs.filter(|&(_, &is_fetched)| is_fetched);
        fetched.map(|((name, output), _)| (name.clone(), take(output))).collect()
    }
}

/// A future of what [`StepHandle::wait`] returns. It is not to be polled again after the step is done: its outputs have been
/// taken.
impl Future for StepHandle {
    type Output = Result<BTreeMap<String, HostTensor>, RuntimeError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.state.poll(context.waker()).map(|done| done.map(|()| self.take_outputs()))
    }
}
