//! Waiting for another rank: spin while an answer is a matter of nanoseconds, then let others have the core, then sleep. Every wait ends: with
//! the answer, with the job, or with the patience.

use std::time::Duration;

use super::TransportError;
use crate::explore::{exploring, point};
use crate::standstill::WaitingTime;

/// The number of times that a wait yields before it sleeps.
const YIELDS: u32 = 64;

/// The longest time of a sleep: the job's end wakes nobody, sleepers look for it.
pub(super) const NAP: Duration = Duration::from_millis(20);

/// The limits of waiting between ranks of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The time after which a wait is an error.
    pub timeout: Duration,
    /// The time for which a wait keeps the core before it yields: worth it where every rank has a core.
    pub spin: Duration,
}

/// One wait of a rank: what ends it besides the answer, and where it sleeps.
pub(super) trait Waiting {
    /// Whether the job has ended.
    fn is_over(&self) -> bool;

    /// Sleeps until somebody wakes it, for [`NAP`] at the most; not at all where it is ready.
    fn sleep_unless(&self, ready: &dyn Fn() -> bool);

    /// Fails where the answer can come no more, or is late.
    fn check_hope(&self, waited: Duration, ready: &dyn Fn() -> bool) -> Result<(), TransportError>;
}

impl Patience {
    /// Waits until `ready`; returns for how long.
    #[inline]
    pub(super) fn wait_until(
        self,
        waiting: &impl Waiting,
        ready: &impl Fn() -> bool,
    ) -> Result<Duration, TransportError> {
        if ready() { Ok(Duration::ZERO) } else { self.wait_patiently(waiting, ready) }
    }

    #[cold]
    fn wait_patiently(
        self,
        waiting: &impl Waiting,
        ready: &impl Fn() -> bool,
    ) -> Result<Duration, TransportError> {
        while exploring() {
            point();
            if ready() {
                return Ok(Duration::ZERO);
            }
            if waiting.is_over() {
                return Err(TransportError::Ended);
            }
            waiting.sleep_unless(ready);
        }
        let mut time = WaitingTime::begin(self.timeout);
        let mut turns = 0;
        loop {
            // Reading the clock costs as much as some looks.
            for _ in 0..8 {
                if ready() {
                    return Ok(time.elapsed());
                }
                std::hint::spin_loop();
            }
            if waiting.is_over() {
                return Err(TransportError::Ended);
            }
            let waited = time.elapsed();
            if waited < self.spin {
                continue;
            }
            turns += 1;
            if turns < YIELDS {
                std::thread::yield_now();
                continue;
            }
            waiting.check_hope(waited, ready)?;
            waiting.sleep_unless(ready);
        }
    }
}
