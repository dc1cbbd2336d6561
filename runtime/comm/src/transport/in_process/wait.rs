//! Waiting for another thread: spin while an answer is a matter of nanoseconds, then let others have the core, then
//! sleep.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use super::{Hub, TransportError};
use crate::explore::{exploring, point};
use crate::standstill::WaitingTime;

/// The number of times that a wait yields before it sleeps.
pub(super) const YIELDS: u32 = 64;
/// The longest time of a sleep: the job's end wakes nobody, sleepers look for it.
pub(super) const NAP: Duration = Duration::from_millis(20);

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

    fn sleep_unless(&self, ready: &impl Fn() -> bool) {
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
        if ready() { Ok(Duration::ZERO) } else { self.wait_patiently(&ready) }
    }

    #[cold]
    fn wait_patiently(self, ready: &impl Fn() -> bool) -> Result<Duration, TransportError> {
        while exploring() {
            point();
            if ready() {
                return Ok(Duration::ZERO);
            }
            if self.hub.is_over() {
                return Err(TransportError::Ended);
            }
            self.sleeper.sleep_unless(ready);
        }
        let mut wait = WaitingTime::begin(self.hub.patience.timeout);
        let mut turns = 0;
        loop {
            // Reading the clock costs as much as some looks.
            for _ in 0..8 {
                if ready() {
                    return Ok(wait.elapsed());
                }
                std::hint::spin_loop();
            }
            if self.hub.is_over() {
                return Err(TransportError::Ended);
            }
            let waited = wait.elapsed();
            if waited < self.hub.patience.spin {
                continue;
            }
            if waited > self.hub.patience.timeout {
                return Err(self.timeout_error(waited));
            }
            turns += 1;
            if turns < YIELDS {
                std::thread::yield_now();
            } else {
                self.sleeper.sleep_unless(ready);
            }
        }
    }

    fn timeout_error(self, waited: Duration) -> TransportError {
        let what = format!("{} {}", self.what, self.tag);
        let seconds = waited.as_secs_f64();
        TransportError::Timeout { rank: self.rank, peer: self.peer, what, seconds }
    }
}
