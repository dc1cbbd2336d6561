//! Communication under way: a handle to wait for it.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::error::DistError;

/// A communication under way, which owns its buffers until [`PendingWork::wait`] gives them back. Dropped, it goes on unobserved.
#[must_use = "the buffers come back by `wait`"]
pub struct PendingWork<B> {
    outcome: Arc<WorkOutcome<B>>,
    /// Takes part in the work instead of waiting, until it is done.
    help: Option<Help>,
}

pub(super) type Help = Box<dyn FnOnce(&dyn Fn() -> bool) + Send>;

impl<B> std::fmt::Debug for PendingWork<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Work({})", if self.is_done() { "done" } else { "under way" })
    }
}

struct WorkOutcome<B> {
    value: Mutex<Option<Result<B, DistError>>>,
    done: Condvar,
}

impl<B> WorkOutcome<B> {
    fn set(&self, value: Result<B, DistError>) {
        *self.value.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        self.done.notify_all();
    }

    fn is_set(&self) -> bool {
        self.value.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// The other end of [`PendingWork`]: whoever does it keeps it, and dropping it unkept is a failure too.
pub(super) struct Promise<B> {
    outcome: Arc<WorkOutcome<B>>,
    op: &'static str,
    kept: bool,
}

impl<B> Promise<B> {
    pub(super) fn fulfill(mut self, value: Result<B, DistError>) {
        self.kept = true;
        self.outcome.set(value);
    }
}

impl<B> Drop for Promise<B> {
    fn drop(&mut self) {
        if !self.kept {
            self.outcome.set(Err(DistError::Abandoned { op: self.op.to_owned() }));
        }
    }
}

impl<B> PendingWork<B> {
    pub(super) fn new(op: &'static str) -> (Self, Promise<B>) {
        let outcome = Arc::new(WorkOutcome { value: Mutex::new(None), done: Condvar::new() });
        let promise = Promise { outcome: Arc::clone(&outcome), op, kept: false };
        (Self { outcome, help: None }, promise)
    }

    pub(super) fn helped_by(mut self, help: Help) -> Self {
        self.help = Some(help);
        self
    }

    /// Whether it is done, or has failed.
    pub fn is_done(&self) -> bool {
        self.outcome.is_set()
    }

    /// Waits until it is done; gives the buffers back.
    ///
    /// # Errors
    /// Why it has failed; the buffers are lost then.
    pub fn wait(self) -> Result<B, DistError> {
        if let Some(help) = self.help
            && !self.outcome.is_set()
        {
            help(&|| self.outcome.is_set());
        }
        let mut value = self.outcome.value.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(value) = value.take() {
                return value;
            }
            value = self.outcome.done.wait(value).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Waits for all, in order; gives the buffers back.
///
/// # Errors
/// The first failure.
pub fn wait_all<B>(works: impl IntoIterator<Item = PendingWork<B>>) -> Result<Vec<B>, DistError> {
    works.into_iter().map(PendingWork::wait).collect()
}
