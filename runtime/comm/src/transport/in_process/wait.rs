//! Where a thread sleeps that waits for another one.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use super::{Hub, TransportError};
#[cfg(any(test, feature = "explore"))]
use crate::explore::exploring;
use crate::explore::point;
use crate::transport::patience::{NAP, Waiting};

/// A place where a thread sleeps until another changes what it waits for.
#[derive(Debug, Default)]
pub(super) struct ParkingSpot {
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
    /// The token that `unpark` leaves for `park`, in tests that explore.
    #[cfg(any(test, feature = "explore"))]
    token: AtomicBool,
}

impl ParkingSpot {
    /// Wakes the sleeper, after each change of what it may wait for.
    #[inline]
    pub(super) fn wake(&self) {
        // Either this fence comes before the sleeper's, and it sees the change before it sleeps, or after, and this
        // thread sees that it sleeps.
        fence(Ordering::SeqCst);
        point();
        if self.asleep.load(Ordering::Relaxed) {
            self.unpark_thread();
        }
    }

    #[cold]
    fn unpark_thread(&self) {
        #[cfg(any(test, feature = "explore"))]
        self.token.store(true, Ordering::SeqCst);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(thread) = thread {
            thread.unpark();
        }
    }

    fn sleep_unless(&self, ready: &dyn Fn() -> bool) {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::current());
        point();
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        point();
        if !ready() {
            self.park();
        }
        self.asleep.store(false, Ordering::Relaxed);
    }
}

impl ParkingSpot {
    #[cfg(not(any(test, feature = "explore")))]
    fn park(&self) {
        std::thread::park_timeout(NAP);
    }

    #[cfg(any(test, feature = "explore"))]
    fn park(&self) {
        if !exploring() {
            std::thread::park_timeout(NAP);
        }
        while exploring() && !self.token.swap(false, Ordering::SeqCst) {
            point();
        }
    }
}

/// The parties of a wait and its reason.
#[derive(Clone, Copy)]
pub(super) struct WaitReason<'a> {
    pub(super) hub: &'a Hub,
    pub(super) rank: u32,
    pub(super) peer: u32,
    pub(super) sleeper: &'a ParkingSpot,
    pub(super) tag: u32,
    /// e.g. `to join collective`.
    pub(super) what: &'static str,
}

impl WaitReason<'_> {
    /// Waits until `ready`; returns for how long.
    #[inline]
    pub(super) fn wait_until(self, ready: impl Fn() -> bool) -> Result<Duration, TransportError> {
        self.hub.patience.wait_until(&self, &ready)
    }
}

impl Waiting for WaitReason<'_> {
    fn is_over(&self) -> bool {
        self.hub.is_over()
    }

    fn sleep_unless(&self, ready: &dyn Fn() -> bool) {
        self.sleeper.sleep_unless(ready);
    }

    fn check_hope(&self, waited: Duration, _: &dyn Fn() -> bool) -> Result<(), TransportError> {
        let what = || format!("{} {}", self.what, self.tag);
        self.hub.check_timeout((self.rank, self.peer), what, waited)
    }
}

/// A wait that ends with any of a process's channels.
pub(super) struct AnyChannel<'a> {
    pub(super) hub: &'a Hub,
    pub(super) rank: u32,
    pub(super) peer: u32,
    pub(super) what: &'a str,
}

impl Waiting for AnyChannel<'_> {
    fn is_over(&self) -> bool {
        self.hub.is_over()
    }

    fn sleep_unless(&self, ready: &dyn Fn() -> bool) {
        self.hub.bell.sleep_unless(NAP, ready);
    }

    fn check_hope(&self, waited: Duration, _: &dyn Fn() -> bool) -> Result<(), TransportError> {
        self.hub.check_timeout((self.rank, self.peer), || self.what.to_owned(), waited)
    }
}
