//! The test whether this process itself has stood still, as where a whole job is suspended for a while: then the silence
//! of the others says nothing about them.

use std::time::{Duration, Instant};

/// The looks of a thread that looks often.
pub struct Looks {
    last: Instant,
    /// The time between two looks beyond which it is a standstill.
    long: Duration,
}

impl Looks {
    /// Starts to look, several times in so long a time.
    pub fn new(heartbeat: Duration) -> Self {
        Self { last: Instant::now(), long: heartbeat / 2 }
    }

    /// Looks at this time, and returns how long this process has stood still since the last look, where it has.
    pub fn look(&mut self, now: Instant) -> Option<Duration> {
        let since = now.saturating_duration_since(self.last);
        self.last = now;
        Some(since).filter(|&since| since > self.long)
    }

    /// Leaves out the time that the thread itself has waited since the last look: it was no standstill.
    pub fn skip_wait(&mut self) {
        self.last = Instant::now();
    }
}

/// A wait, whose time does not pass while this process stands still.
pub struct WaitingTime {
    begun: Instant,
    looks: Looks,
    still: Duration,
}

impl WaitingTime {
    /// Begins one that ends after this time, and in which somebody looks more often than that.
    pub fn begin(timeout: Duration) -> Self {
        /// A machine that is busy keeps a thread from looking for so long.
        const BUSY: Duration = Duration::from_secs(1);
        let begun = Instant::now();
        let looks = Looks { last: begun, long: (timeout / 2).max(BUSY) };
        Self { begun, looks, still: Duration::ZERO }
    }

    /// Returns the time that it has lasted.
    #[inline]
    pub fn elapsed(&mut self) -> Duration {
        self.elapsed_at(Instant::now())
    }

    fn elapsed_at(&mut self, now: Instant) -> Duration {
        self.still += self.looks.look(now).unwrap_or_default();
        now.saturating_duration_since(self.begun).saturating_sub(self.still)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_long_time_between_looks_is_a_standstill() {
        let mut looks = Looks::new(Duration::from_secs(4));
        let begun = looks.last;
        let mut at = |seconds| looks.look(begun + Duration::from_secs(seconds));
        assert_eq!([at(1), at(3), at(4)], [None; 3]);
        assert_eq!(at(9), Some(Duration::from_secs(5)));
        assert_eq!(at(10), None);
    }

    #[test]
    fn a_wait_does_not_go_on_while_the_process_stands_still() {
        let seconds = Duration::from_secs;
        let mut wait = WaitingTime::begin(seconds(10));
        let begun = wait.begun;
        let mut at = |after| wait.elapsed_at(begun + seconds(after)).as_secs();
        assert_eq!([at(4), at(8), at(1000), at(1003)], [4, 8, 8, 11]);
        // One that is short ends, however seldom somebody looks.
        let mut short = WaitingTime::begin(Duration::from_millis(1));
        assert!(short.elapsed_at(short.begun + seconds(1)) == seconds(1));
    }
}
