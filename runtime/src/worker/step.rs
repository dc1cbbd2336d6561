//! Steps that are under way.
//!
//! Which outputs a step gives is a part of the step (`Session::fetch_only`). Actors that fetch others do nothing in it,
//! on all devices, and nothing is sent or waited for.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::task::{Poll, Waker};

use graphc_host::tensor::HostTensor;
use graphc_ir::learning_rate::GivenRate;
use graphc_ir::open_span;
use graphc_ir::trace::OpenSpan;

use crate::error::RuntimeError;

/// The state of a step that the workers of all ranks and who waits for them share.
pub(crate) struct StepState {
    /// Counted from the session's first.
    pub(crate) index: u64,
    /// Counted over the whole training.
    pub(crate) number: u64,
    /// The feeds, in the order of the plan's inputs.
    pub(crate) feeds: Vec<HostTensor>,
    /// The outputs, in the order of the plan's; each rank writes its part. Those that are not fetched have no elements.
    pub(crate) outputs: Vec<Mutex<HostTensor>>,
    /// Whether its actions are launched one by one, and timed.
    pub(crate) apart: bool,
    /// The learning rate that stands in the place of the plan's.
    pub(crate) rate: Option<GivenRate>,
    /// The flags of the outputs that come to the host, in that order.
    pub(crate) fetched: Arc<[bool]>,
    watch: Option<(Watch, Vec<AtomicUsize>)>,
    /// Workers that are not done yet.
    remaining: AtomicUsize,
    failed: OnceLock<RuntimeError>,
    done: Mutex<Completion>,
    wake: Condvar,
}

/// Whether a step is done, and who is to be woken when it is, besides threads that block.
#[derive(Default)]
struct Completion {
    is_done: bool,
    waker: Option<Waker>,
    /// Ends when the step does.
    span: Option<OpenSpan>,
}

/// The function that is called with an output, by its index, once it is whole.
pub(crate) type Watch = Box<dyn Fn(usize, &HostTensor) + Send + Sync>;

impl std::fmt::Debug for StepState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "StepState({}, {} workers to go)",
            self.index,
            self.remaining.load(Ordering::Relaxed)
        )
    }
}

/// The number of times that a wait yields before it sleeps.
const YIELDS: usize = 200;

impl StepState {
    pub(crate) fn new(
        (index, number): (u64, u64),
        feeds: Vec<HostTensor>,
        (outputs, fetched): (Vec<HostTensor>, Arc<[bool]>),
        workers: usize,
    ) -> Self {
        Self {
            index,
            number,
            feeds,
            outputs: outputs.into_iter().map(Mutex::new).collect(),
            apart: false,
            rate: None,
            fetched,
            watch: None,
            remaining: AtomicUsize::new(workers),
            failed: OnceLock::new(),
            done: Mutex::new(Completion {
                is_done: workers == 0,
                waker: None,
                span: (workers > 0).then(|| open_span!("step", number = number)),
            }),
            wake: Condvar::new(),
        }
    }

    /// Has its actions launched one by one, and timed.
    pub(crate) fn taken_apart(self) -> Self {
        Self { apart: true, ..self }
    }

    /// Has updates go by this learning rate, if one is given.
    pub(crate) fn at_rate(self, rate: Option<GivenRate>) -> Self {
        Self { rate, ..self }
    }

    /// Has `watch` called with each output, which consist of so many parts.
    pub(crate) fn with_watch(mut self, parts: &[usize], watch: Watch) -> Self {
        self.watch = Some((watch, parts.iter().map(|&parts| AtomicUsize::new(parts)).collect()));
        self
    }

    /// Notes that a part of an output was written.
    pub(crate) fn note_written(&self, output: usize) {
        if let Some((watch, parts)) = &self.watch
            && parts[output].fetch_sub(1, Ordering::AcqRel) == 1
        {
            watch(output, &self.outputs[output].lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Ends a worker's part of the step, with or without success.
    pub(crate) fn finish(&self, result: Result<(), RuntimeError>) {
        if let Err(error) = result {
            // Of several workers that fail the first one says why.
            let _ = self.failed.set(error);
        }
        if self.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
            let waker = {
                let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
                done.is_done = true;
                done.span = None;
                done.waker.take()
            };
            self.wake.notify_all();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Whether all workers are done.
    pub(crate) fn is_done(&self) -> bool {
        self.remaining.load(Ordering::Acquire) == 0
    }

    /// Waits until all workers are done.
    pub(crate) fn wait(&self) -> Result<(), RuntimeError> {
        for _ in 0..YIELDS {
            if self.remaining.load(Ordering::Acquire) == 0 {
                break;
            }
            std::thread::yield_now();
        }
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        while !done.is_done {
            done = self.wake.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
        self.result()
    }

    /// Returns the result of the step where all workers are done. Where they are not, `waker` is woken when they are, instead of
    /// one that was given before.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Result<(), RuntimeError>> {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if done.is_done {
            return Poll::Ready(self.result());
        }
        done.waker = Some(waker.clone());
        Poll::Pending
    }

    fn result(&self) -> Result<(), RuntimeError> {
        self.failed.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}
