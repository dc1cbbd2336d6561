//! Bells: a process sleeps at one until another, or another of its threads, changes what it waits for. A bell may lie in
//! memory that processes share.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

#[cfg(target_os = "linux")]
use crate::explore::exploring;
use crate::explore::point;

/// A futex with a count of who waits; without a futex, sleepers look from time to time.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Bell {
    rung: AtomicU32,
    waiting: AtomicU32,
}

impl Bell {
    /// Rings, after each change of what somebody may wait for.
    #[inline]
    pub(crate) fn ring(&self) {
        // Either this fence comes before the sleeper's, and it sees the change before it sleeps, or after, and this
        // thread sees that it waits.
        fence(Ordering::SeqCst);
        point();
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.wake_sleepers();
        }
    }

    #[cold]
    fn wake_sleepers(&self) {
        self.rung.fetch_add(1, Ordering::SeqCst);
        wake_futex(&self.rung);
    }

    /// Sleeps until the bell rings, at most for `nap`; not at all where `ready`.
    pub(crate) fn sleep_unless(&self, nap: Duration, ready: impl Fn() -> bool) {
        let rung = self.rung.load(Ordering::SeqCst);
        point();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        point();
        if !ready() {
            sleep_on_futex(&self.rung, rung, nap);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(target_os = "linux")]
fn wake_futex(rung: &AtomicU32) {
    use rustix::thread::futex;
    // It fails for bad addresses alone, and a reference is none.
    let _ = futex::wake(rung, futex::Flags::empty(), i32::MAX as u32);
}

#[cfg(target_os = "linux")]
fn sleep_on_futex(rung: &AtomicU32, seen: u32, nap: Duration) {
    use rustix::thread::futex;
    while exploring() {
        point();
        if rung.load(Ordering::SeqCst) != seen {
            return;
        }
    }
    let nap = futex::Timespec { tv_sec: nap.as_secs() as i64, tv_nsec: nap.subsec_nanos().into() };
    // Woken, too late, interrupted: the caller looks again in any case.
    let _ = futex::wait(rung, futex::Flags::empty(), seen, Some(&nap));
}

#[cfg(not(target_os = "linux"))]
fn wake_futex(_: &AtomicU32) {}

#[cfg(not(target_os = "linux"))]
fn sleep_on_futex(_: &AtomicU32, _: u32, nap: Duration) {
    std::thread::sleep(nap.min(Duration::from_micros(50)));
}
