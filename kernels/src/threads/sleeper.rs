//! The place where a helper sleeps until there is work.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::Thread;

use crate::explore::{exploring, point};

#[derive(Debug, Default)]
pub(super) struct PoolSleeper {
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
    /// The token that `unpark` leaves for `park`, in tests that explore.
    #[cfg(test)]
    token: AtomicBool,
}

impl PoolSleeper {
    /// Wakes the sleeper if it sleeps. It is to be called after each change of what the sleeper may wait for.
    pub(super) fn wake(&self) {
        // Either this fence comes before the sleeper's, and it sees the change before it sleeps, or after, and this
        // thread sees that it sleeps.
        fence(Ordering::SeqCst);
        point();
        if self.asleep.load(Ordering::Relaxed) {
            self.rouse();
        }
    }

    /// Wakes the thread once. The first of several changes does so, and the thread that was woken looks for all of them.
    #[cold]
    fn rouse(&self) {
        if !self.asleep.swap(false, Ordering::Relaxed) {
            return;
        }
        #[cfg(test)]
        self.token.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Sleeps, unless it is `ready`; it may wake without a reason.
    pub(super) fn sleep(&self, ready: &dyn Fn() -> bool) {
        self.thread.get_or_init(std::thread::current);
        point();
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !ready() {
            self.park();
        }
        self.asleep.store(false, Ordering::Relaxed);
    }

    fn park(&self) {
        #[cfg(test)]
        while exploring() {
            if self.token.swap(false, Ordering::SeqCst) {
                return;
            }
            point();
        }
        if !exploring() {
            std::thread::park();
        }
    }
}
