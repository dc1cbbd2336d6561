//! Waiting for another process: spin while an answer is a matter of nanoseconds, then let others have the core, then
//! sleep. Every wait ends: with the answer, with the job, with the peer's leave, or with the patience.

use std::sync::Arc;
use std::time::Duration;

use super::bell::Bell;
use crate::control::{JobLine, note_waiting};
use crate::explore::{exploring, point};
use crate::standstill::WaitingTime;
use crate::transport::Patience;
use crate::transport::TransportError;

/// The number of times that a wait yields before it sleeps.
const YIELDS: u32 = 64;
/// The longest time of a sleep: the job's end rings no bell, sleepers look for it.
const NAP: Duration = Duration::from_millis(20);

/// The means by which the ends of one process wait.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    pub(crate) rank: u32,
    pub(crate) line: Arc<JobLine>,
    pub(crate) bell: Arc<dyn HasBell>,
    pub(crate) patience: Patience,
}

/// Memory with a bell in it.
pub(crate) trait HasBell: Send + Sync + std::fmt::Debug {
    fn bell(&self) -> &Bell;
}

impl HasBell for Bell {
    fn bell(&self) -> &Bell {
        self
    }
}

impl Waiter {
    /// Waits for `peer` until `ready`; returns for how long.
    #[inline]
    pub(crate) fn wait_until(
        &self,
        peer: u32,
        what: impl Fn() -> String,
        ready: impl Fn() -> bool,
    ) -> Result<Duration, TransportError> {
        if ready() { Ok(Duration::ZERO) } else { self.wait_patiently(peer, &what, &ready) }
    }

    #[cold]
    fn wait_patiently(
        &self,
        peer: u32,
        what: &dyn Fn() -> String,
        ready: &dyn Fn() -> bool,
    ) -> Result<Duration, TransportError> {
        while exploring() {
            point();
            if ready() {
                return Ok(Duration::ZERO);
            }
            self.bell.bell().sleep_unless(NAP, ready);
        }
        let mut wait = WaitingTime::begin(self.patience.timeout);
        let mut turns = 0;
        let mut noted = None;
        loop {
            // Reading the clock costs as much as some looks.
            for _ in 0..8 {
                if ready() {
                    return Ok(wait.elapsed());
                }
                std::hint::spin_loop();
            }
            if self.line.is_over() {
                return Err(TransportError::Ended);
            }
            let waited = wait.elapsed();
            if waited < self.patience.spin {
                continue;
            }
            turns += 1;
            if turns < YIELDS {
                std::thread::yield_now();
                continue;
            }
            noted.get_or_insert_with(|| note_waiting(|| format!("for rank {peer} {}", what())));
            self.give_up(peer, what, waited, ready)?;
            self.bell.bell().sleep_unless(NAP, ready);
        }
    }

    /// Returns the error of a peer whose memory is gone.
    pub(super) fn lost_error(&self, peer: u32, error: &std::io::Error) -> TransportError {
        lost_error(&self.line, (self.rank, peer), error)
    }

    fn give_up(
        &self,
        peer: u32,
        what: &dyn Fn() -> String,
        waited: Duration,
        ready: &dyn Fn() -> bool,
    ) -> Result<(), TransportError> {
        let rank = self.rank;
        // What it has sent before it left is still to be read.
        if self.line.is_gone(peer) && !ready() {
            return Err(TransportError::Left { rank, peer, what: what() });
        }
        if waited > self.patience.timeout {
            let seconds = waited.as_secs_f64();
            return Err(TransportError::Timeout { rank, peer, what: what(), seconds });
        }
        Ok(())
    }
}

/// The time that the coordinator has to say that a peer whose connection broke is dead.
pub(super) const NEWS: Duration = Duration::from_secs(2);

/// Returns the error of a connection that is gone. The coordinator knows best why; where it knows nothing, this is the
/// reason.
pub(super) fn lost_error(
    line: &JobLine,
    (rank, peer): (u32, u32),
    error: &std::io::Error,
) -> TransportError {
    if line.ends_within(NEWS) {
        return TransportError::Ended;
    }
    TransportError::Broken { rank, peer, reason: error.to_string() }
}
