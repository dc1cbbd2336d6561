//! A training that the user interrupts (Ctrl-C, SIGTERM): it ends behind a step, saves where checkpoints are asked for, and says how to
//! go on. A second signal ends the process at once.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::cli::output::print_message;
use crate::cli::ranks::Ranks;

/// The time from one look to the next, about: a look costs processes a message to each other.
const INTERVAL: Duration = Duration::from_secs(1);

/// The signal that interrupted a training.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interrupted(i32);

impl Interrupted {
    /// The exit status by which shells know it.
    pub(super) fn exit_code(self) -> ExitCode {
        ExitCode::from(128 + self.0 as u8)
    }
}

/// The signals of a process that trains.
pub(super) struct Interruption {
    /// The signal that came; 0 where none has.
    came: Arc<AtomicUsize>,
    looks: LookSchedule,
}

impl Interruption {
    /// Takes the signals from now on. A launcher ends the ranks that are left with SIGTERM when one has died: no step of theirs ends any
    /// more, so ranks of a job do not wait for one.
    pub(super) fn listen(is_alone: bool, first_step: u64) -> Result<Self> {
        let came = Arc::new(AtomicUsize::new(0));
        let signals: &[i32] = if is_alone { &[SIGINT, SIGTERM] } else { &[SIGINT] };
        for &signal in signals {
            let again = Arc::new(AtomicBool::new(false));
            flag::register_conditional_default(signal, Arc::clone(&again))
                .and_then(|_| flag::register(signal, again))
                .and_then(|_| flag::register_usize(signal, Arc::clone(&came), signal as usize))
                .context("cannot listen to signals")?;
        }
        Ok(Self { came, looks: LookSchedule::after_begin(first_step, Instant::now()) })
    }

    /// The signal for which the training is to end after so many steps. All ranks end behind the same step, which rank 0 chooses.
    pub(super) fn after_step(&mut self, steps: u64, ranks: &Ranks) -> Result<Option<Interrupted>> {
        if !self.looks.are_due(steps) {
            return Ok(None);
        }
        let came = self.came.load(Ordering::Relaxed);
        let own = SharedLook { signal: came as i32, next: self.looks.next(steps, Instant::now()) };
        let SharedLook { signal, next } = ranks.share(own)?;
        self.looks.next = next;
        Ok((signal != 0).then_some(Interrupted(signal)))
    }
}

/// A look of rank 0: the signal that came, or 0, and after how many steps it looks again.
#[derive(Clone, Copy, serde::Serialize, serde::Deserialize)]
struct SharedLook {
    signal: i32,
    next: u64,
}

/// The steps after which one looks: those of about a second.
struct LookSchedule {
    /// The number of steps after which the next look is due.
    next: u64,
    /// The last look: after how many steps, and when.
    last: (u64, Instant),
}

impl LookSchedule {
    fn after_begin(first_step: u64, begin: Instant) -> Self {
        Self { next: first_step, last: (first_step, begin) }
    }

    fn are_due(&self, steps: u64) -> bool {
        steps >= self.next
    }

    /// After how many steps to look again, by the pace since the last look; at most twice as many as were made between the last two.
    fn next(&mut self, steps: u64, now: Instant) -> u64 {
        let (before, since) = std::mem::replace(&mut self.last, (steps, now));
        let (made, took) = (steps - before.min(steps), now - since);
        let pace = made as f64 * INTERVAL.as_secs_f64() / took.as_secs_f64().max(1e-9);
        steps + (pace as u64).clamp(1, (2 * made).max(1))
    }
}

/// Says where an interrupted training has ended, and how to go on from the folder of its checkpoints.
pub(super) fn tell_interruption(done: u64, steps: u64, saved: Option<&Path>) {
    let on = match saved {
        Some(path) => format!("go on with --resume {}", path.display()),
        None => "nothing is saved, as --save is not given".to_owned(),
    };
    print_message("note", &format!("interrupted after {done} of {steps} steps: {on}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_come_about_each_second() {
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        let mut looks = LookSchedule::after_begin(0, begin);
        // Steps of 10 ms: 1, then at most twice as many as between the last two looks, until there are a hundred.
        assert!(looks.are_due(0));
        let (mut steps, mut found) = (1, Vec::new());
        for _ in 0..9 {
            looks.next = looks.next(steps, at(steps * 10));
            assert!(!looks.are_due(looks.next - 1) && looks.are_due(looks.next));
            found.push(looks.next - steps);
            steps = looks.next;
        }
        assert_eq!(found, [2, 4, 8, 16, 32, 64, 100, 100, 100]);
        // Steps that have become longer than a second are looked at one by one.
        let later = steps * 10 + 500_000;
        assert_eq!(looks.next(steps + 100, at(later)), steps + 101);
    }
}
