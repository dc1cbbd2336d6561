//! Waits for the processes of all ranks; ends them where one fails or the user says so.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use graphc_runtime::threads;
use rustix::process::Signal;
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::attempt::{Attempt, Grace};
use super::guard::Guard;
use super::output::RankOutput;
use super::print_note;
use super::process::{Process, describe_exit};
use super::world::Seat;

/// The time between two looks at what is ending: orphans of a rank send no signal.
const LOOK: Duration = Duration::from_millis(20);

/// The time after which a process that was killed is left to the system: it hangs inside the kernel.
const UNKILLABLE: Duration = Duration::from_secs(5);

/// The end of an attempt.
pub(super) enum AttemptOutcome {
    /// All processes with exit status 0.
    Done,
    /// One process failed first.
    Failed(RankFailure),
    /// A signal interrupted it.
    Interrupted {
        /// Its number.
        signal: i32,
        /// Whether a process had failed before.
        had_failed: bool,
    },
}

/// The first failure.
pub(super) struct RankFailure {
    seat: Seat,
    node: Option<usize>,
    process: i32,
    how: String,
    last_lines: Vec<String>,
}

impl fmt::Display for RankFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Seat { rank, local_rank } = self.seat;
        write!(f, "rank {rank} (local rank {local_rank}, ")?;
        if let Some(node) = self.node {
            write!(f, "node {node}, ")?;
        }
        write!(f, "process {}) failed first: {}", self.process, self.how)?;
        if !self.last_lines.is_empty() {
            write!(f, "; the last lines of its standard error:")?;
        }
        self.last_lines.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

/// The signals of this process, from now on.
pub(super) fn receive_signals() -> Result<Receiver<i32>> {
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGCHLD]).context("cannot listen to signals")?;
    let (sender, receiver) = channel();
    let listen = move || signals.forever().try_for_each(|signal| sender.send(signal));
    threads::start_thread("signals", listen).context("cannot listen to signals")?;
    Ok(receiver)
}

/// Waits so long, while there are no processes, unless the user says that this one is to end: by which signal.
pub(super) fn wait_between_attempts(signals: &Receiver<i32>, pause: Duration) -> Option<i32> {
    let end = Instant::now() + pause;
    loop {
        match signals.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(SIGCHLD) => {}
            Ok(signal) => return Some(signal),
            Err(RecvTimeoutError::Timeout) => return None,
            // Signals come no more.
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(end.saturating_duration_since(Instant::now()));
                return None;
            }
        }
    }
}

/// The state of the processes under supervision.
#[derive(Clone, Copy, PartialEq)]
enum SupervisorPhase {
    Running,
    /// One has failed: the others may end by themselves until then.
    Failing(Instant),
    /// They were asked to end until then.
    Asked(Instant),
    /// They were killed.
    Killed(Instant),
}

/// The process that is named as the one that failed first.
#[derive(Clone, Copy)]
struct Ended {
    place: usize,
    status: ExitStatus,
}

struct Supervisor<'a> {
    attempt: &'a Attempt<'a>,
    processes: Vec<Process>,
    phase: SupervisorPhase,
    first: Option<Ended>,
    interrupted: Option<i32>,
}

impl Attempt<'_> {
    /// Starts all processes and waits until nothing is left of them.
    pub(super) fn run(&self, signals: &Receiver<i32>, guard: &mut Guard) -> Result<AttemptOutcome> {
        let mut supervisor = Supervisor {
            attempt: self,
            processes: Vec::new(),
            phase: SupervisorPhase::Running,
            first: None,
            interrupted: None,
        };
        for &seat in &self.world.seats {
            match Process::start(self, seat, guard) {
                Ok(process) => supervisor.processes.push(process),
                Err(error) => {
                    supervisor.kill();
                    supervisor.wait(signals, guard);
                    return Err(error);
                }
            }
        }
        supervisor.wait(signals, guard);
        Ok(supervisor.outcome())
    }
}

impl Supervisor<'_> {
    fn wait(&mut self, signals: &Receiver<i32>, guard: &mut Guard) {
        loop {
            self.look_for_ended();
            if self.all_gone(guard) {
                break;
            }
            if !self.advance() {
                print_note("a process that was killed has not ended: it is left to the system");
                break;
            }
            let pause =
                if self.phase == SupervisorPhase::Running { Duration::from_secs(1) } else { LOOK };
            match signals.recv_timeout(pause) {
                Ok(SIGCHLD) | Err(RecvTimeoutError::Timeout) => {}
                Ok(signal) => self.interrupt(signal),
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK),
            }
        }
        self.processes
            .iter()
            .filter_map(|process| process.output.as_ref())
            .for_each(RankOutput::finish);
    }

    fn all_gone(&mut self, guard: &mut Guard) -> bool {
        let mut all = true;
        for process in &mut self.processes {
            let gone = process.is_gone();
            if gone && std::mem::take(&mut process.watched) {
                guard.forget(process.group);
            }
            all &= gone;
        }
        all
    }

    /// Looks who has ended, and who failed first.
    fn look_for_ended(&mut self) {
        self.first = self.failed_first();
        if self.phase != SupervisorPhase::Running {
            return;
        }
        if self.first.is_some() {
            self.phase = SupervisorPhase::Failing(self.deadline());
        } else if self.processes.iter_mut().all(|process| process.poll_exit().is_some()) {
            // All are done; what they have left in the background is not wanted any more.
            self.ask_to_end(Signal::TERM);
        }
    }

    /// The process that failed first, as far as is known. The system closes the connections of a process that dies before it
    /// tells of its death, so a rank that noticed it may be seen to fail before it. Until this process sends signals itself,
    /// one that was ended by a signal is therefore the first.
    fn failed_first(&mut self) -> Option<Ended> {
        let known = self.first;
        let settled = known.is_some_and(|known| known.status.signal().is_some());
        if settled || !matches!(self.phase, SupervisorPhase::Running | SupervisorPhase::Failing(_))
        {
            return known;
        }
        let failed = |(place, process): (usize, &mut Process)| {
            let status = process.poll_exit().filter(|status| !status.success())?;
            Some(Ended { place, status })
        };
        let all: Vec<Ended> = self.processes.iter_mut().enumerate().filter_map(failed).collect();
        let by_signal = all.iter().find(|ended| ended.status.signal().is_some()).copied();
        by_signal.or(known).or(all.first().copied())
    }

    /// Goes on where a time is over. False where nothing more can be done.
    fn advance(&mut self) -> bool {
        let now = Instant::now();
        match self.phase {
            SupervisorPhase::Failing(until) if now >= until => self.ask_to_end(Signal::TERM),
            SupervisorPhase::Asked(until) if now >= until => {
                self.say_who_is_killed();
                self.kill();
            }
            SupervisorPhase::Killed(until) => return now < until,
            _ => {}
        }
        true
    }

    /// Hands a signal on; a second one does not wait.
    fn interrupt(&mut self, signal: i32) {
        if self.interrupted.is_some() {
            self.say_who_is_killed();
            return self.kill();
        }
        self.interrupted = Some(signal);
        self.ask_to_end(if signal == SIGINT { Signal::INT } else { Signal::TERM });
    }

    fn ask_to_end(&mut self, signal: Signal) {
        self.processes.iter_mut().for_each(|process| process.signal(signal));
        self.phase = SupervisorPhase::Asked(self.deadline());
    }

    /// Says which ranks have not ended after an interruption, as what they do not save is lost.
    fn say_who_is_killed(&mut self) {
        if self.interrupted.is_none() {
            return;
        }
        let left = self.processes.iter_mut().filter_map(|process| {
            process.poll_exit().is_none().then(|| process.seat.rank.to_string())
        });
        let left: Vec<String> = left.collect();
        if !left.is_empty() {
            let ranks = left.join(", ");
            print_note(&format!(
                "killed before they had ended: rank {ranks}; what they had not saved is lost (--grace SECONDS gives them more time)"
            ));
        }
    }

    fn kill(&mut self) {
        self.processes.iter_mut().for_each(|process| process.signal(Signal::KILL));
        self.phase = SupervisorPhase::Killed(Instant::now() + UNKILLABLE);
    }

    fn deadline(&self) -> Instant {
        let Grace { failed, interrupted } = self.attempt.grace;
        Instant::now() + if self.interrupted.is_some() { interrupted } else { failed }
    }

    fn outcome(self) -> AttemptOutcome {
        if let Some(signal) = self.interrupted {
            return AttemptOutcome::Interrupted { signal, had_failed: self.first.is_some() };
        }
        let Some(Ended { place, status }) = self.first else { return AttemptOutcome::Done };
        let (process, world) = (&self.processes[place], self.attempt.world);
        AttemptOutcome::Failed(RankFailure {
            seat: process.seat,
            node: (world.nodes > 1).then_some(world.node),
            process: process.group.as_raw_nonzero().get(),
            how: describe_exit(status),
            last_lines: process.output.as_ref().map(RankOutput::last_lines).unwrap_or_default(),
        })
    }
}
