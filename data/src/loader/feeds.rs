//! Batches that threads make in advance.
//!
//! Of `n` threads each makes every `n`-th batch and holds it until it is taken, by a channel without capacity. That bounds memory, needs no queue to
//! be put in order, and ends with the iterator.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use graphc_host::threads;

use super::LoaderState;
use super::batch::Batch;
use crate::error::DatasetError;

/// The most threads of a loader.
const MOST_THREADS: usize = 256;

/// An iterator over the batches of steps, in order. Of `n` threads each makes every `n`-th batch and holds it until it is taken, so `n` batches are
/// made in advance. When it is dropped, its threads end. After an error it yields nothing.
#[derive(Debug)]
pub struct Feeds {
    steps: Range<u64>,
    /// The receivers of the threads' batches.
    made: Vec<Receiver<Made>>,
    /// The index of the thread that has the next batch.
    turn: usize,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

type Made = Result<Batch, DatasetError>;

impl Feeds {
    pub(super) fn start_threads(
        work: &Arc<LoaderState>,
        steps: Range<u64>,
    ) -> Result<Self, DatasetError> {
        let wanted = work.options.ahead.clamp(1, MOST_THREADS) as u64;
        let count = wanted.min(steps.end - steps.start).max(1) as usize;
        let stop = Arc::new(AtomicBool::new(false));
        let (made, threads) = (Vec::new(), Vec::new());
        // Where one thread cannot be started this is dropped and ends those that were.
        let mut feeds = Self { steps: steps.clone(), made, turn: 0, stop, threads };
        for first in 0..count {
            // A thread holds its batch until it is taken: nothing lies between.
            let (sender, receiver) = bounded(0);
            let (work, stop) = (Arc::clone(work), Arc::clone(&feeds.stop));
            let own = (steps.start.saturating_add(first as u64)..steps.end).step_by(count);
            let serve = move || send_batches(&work, own, &sender, &stop);
            let thread = threads::start_thread(format!("loader {first}"), serve);
            let fail =
                |error: std::io::Error| DatasetError::Thread(format!("was not started: {error}"));
            feeds.threads.push(thread.map_err(fail)?);
            feeds.made.push(receiver);
        }
        Ok(feeds)
    }
}

/// Makes batch after batch, until nobody takes them or one fails.
fn send_batches(
    work: &LoaderState,
    steps: impl Iterator<Item = u64>,
    to: &Sender<Made>,
    stop: &AtomicBool,
) {
    for step in steps {
        let made = work.make_batch(step, &|| stop.load(Ordering::Relaxed));
        let failed = made.is_err();
        if stop.load(Ordering::Relaxed) || to.send(made).is_err() || failed {
            return;
        }
    }
}

impl Iterator for Feeds {
    type Item = Made;

    fn next(&mut self) -> Option<Made> {
        self.steps.next()?;
        let turn = self.turn;
        self.turn = (turn + 1) % self.made.len();
        let lost = |_| Err(DatasetError::Thread("has ended: reading the data set panicked".into()));
        let made = self.made[turn].recv().unwrap_or_else(lost);
        if made.is_err() {
            self.steps = 0..0;
        }
        Some(made)
    }
}

impl Drop for Feeds {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Who waits to hand over a batch sees that nobody is there.
        self.made.clear();
        for thread in self.threads.drain(..) {
            // Where it has panicked the iterator has said so.
            let _ = thread.join();
        }
    }
}
