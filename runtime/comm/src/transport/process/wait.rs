//! Waiting for another process: besides what ends every wait, the peer's leave ends it.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use super::bell::Bell;
use crate::control::{JobLine, WaitGuard, note_waiting};
use crate::transport::TransportError;
use crate::transport::patience::{NAP, Patience, Waiting};

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
        let waiting = PeerWait { waiter: self, peer, what: &what, noted: OnceCell::new() };
        self.patience.wait_until(&waiting, &ready)
    }

    /// Returns the error of a peer whose memory is gone.
    pub(super) fn lost_error(&self, peer: u32, error: &std::io::Error) -> TransportError {
        lost_error(&self.line, (self.rank, peer), error)
    }
}

/// A wait for one peer.
struct PeerWait<'a> {
    waiter: &'a Waiter,
    peer: u32,
    what: &'a dyn Fn() -> String,
    /// The note for whoever asks what the job waits for, once it has waited for long.
    noted: OnceCell<WaitGuard>,
}

impl Waiting for PeerWait<'_> {
    fn is_over(&self) -> bool {
        self.waiter.line.is_over()
    }

    fn sleep_unless(&self, ready: &dyn Fn() -> bool) {
        self.waiter.bell.bell().sleep_unless(NAP, ready);
    }

    fn check_hope(&self, waited: Duration, ready: &dyn Fn() -> bool) -> Result<(), TransportError> {
        let (rank, peer, what) = (self.waiter.rank, self.peer, self.what);
        self.noted.get_or_init(|| note_waiting(|| format!("for rank {peer} {}", what())));
        // What it has sent before it left is still to be read.
        if self.waiter.line.is_gone(peer) && !ready() {
            return Err(TransportError::Left { rank, peer, what: what() });
        }
        if waited > self.waiter.patience.timeout {
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
