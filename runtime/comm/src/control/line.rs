//! A member's line to the coordinator.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use graphc_host::threads;

use super::activity::Activities;
use super::wire::{ControlMessage, Member, read_message, write_message};
use crate::end::JobEnd;
use crate::standstill::{Looks, WaitingTime};

/// The longest time that messages of a rank that has left may still be under way: a few retransmissions of TCP.
const UNDER_WAY: Duration = Duration::from_secs(3);
/// The longest wait for the account of a job that ends.
const ACCOUNT: Duration = Duration::from_millis(2500);

/// A process's knowledge of its job's state.
#[derive(Debug)]
pub(crate) struct JobLine {
    pub(crate) activities: Activities,
    rank: u32,
    heartbeat: Duration,
    writer: Mutex<TcpStream>,
    over: AtomicBool,
    /// The reason why it ended, as known here first.
    reason: OnceLock<JobEnd>,
    inbox: Mutex<LineInbox>,
    changed: Condvar,
}

#[derive(Debug)]
struct LineInbox {
    roster: Option<Vec<Member>>,
    shares: Option<Vec<bool>>,
    gathered: BTreeMap<String, Vec<Vec<u8>>>,
    left: BTreeMap<u32, Instant>,
    report: Option<String>,
    heard: Instant,
    closed: bool,
    /// The connection has ended.
    #[cfg(feature = "mpi")]
    cut: bool,
}

impl JobLine {
    /// Speaks through `stream`, which has been let in.
    pub(crate) fn start(
        stream: &TcpStream,
        rank: u32,
        heartbeat: Duration,
    ) -> io::Result<Arc<Self>> {
        let inbox = LineInbox {
            roster: None,
            shares: None,
            gathered: BTreeMap::new(),
            left: BTreeMap::new(),
            report: None,
            heard: Instant::now(),
            closed: false,
            #[cfg(feature = "mpi")]
            cut: false,
        };
        let line = Arc::new(Self {
            activities: Activities::default(),
            rank,
            heartbeat,
            writer: Mutex::new(stream.try_clone()?),
            over: AtomicBool::new(false),
            reason: OnceLock::new(),
            inbox: Mutex::new(inbox),
            changed: Condvar::new(),
        });
        let (ear, pulse) = (Arc::clone(&line), Arc::clone(&line));
        let mut reader = stream.try_clone()?;
        threads::start_thread("job line", move || ear.read_messages(&mut reader))?;
        threads::start_thread("job pulse", move || pulse.send_heartbeats())?;
        Ok(line)
    }

    /// Whether the job has ended.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Whether the job ends within this time.
    pub(crate) fn ends_within(&self, timeout: Duration) -> bool {
        self.wait_for_inbox(timeout, |_| self.is_over().then_some(())).is_some() || self.is_over()
    }

    /// Whether a rank has left the job in order.
    pub(crate) fn has_left(&self, rank: u32) -> bool {
        self.lock_inbox().left.contains_key(&rank)
    }

    /// Whether a rank has left so long ago that nothing of it can still be under way.
    pub(crate) fn is_gone(&self, rank: u32) -> bool {
        let inbox = self.lock_inbox();
        inbox.left.get(&rank).is_some_and(|since| since.elapsed() > UNDER_WAY)
    }

    /// Whether the job has ended otherwise than by all ranks' leave.
    #[cfg(feature = "mpi")]
    pub(crate) fn has_failed(&self) -> bool {
        self.reason.get().is_some() || self.lock_inbox().report.is_some()
    }

    /// Whether all ranks have left in order.
    #[cfg(feature = "mpi")]
    pub(crate) fn all_have_left(&self, world: u32) -> bool {
        self.lock_inbox().left.len() == world as usize
    }

    /// Whether nothing more will be heard of the coordinator.
    #[cfg(feature = "mpi")]
    pub(crate) fn is_cut(&self) -> bool {
        self.lock_inbox().cut
    }

    /// Ends the job on all ranks.
    pub(crate) fn fail(&self, reason: JobEnd) {
        let text = reason.text_of_rank(self.rank);
        if self.reason.set(reason).is_ok() && !self.is_over() {
            self.send_message(&ControlMessage::Failed { reason: text }, &[]);
        }
        self.over.store(true, Ordering::SeqCst);
        self.changed.notify_all();
    }

    /// Returns the reason why the job has ended, if it has. The account of all ranks may take a moment to come.
    pub(crate) fn end_reason(&self) -> Option<JobEnd> {
        if !self.is_over() {
            return None;
        }
        let report = self.wait_for_inbox(ACCOUNT, |inbox| inbox.report.clone());
        let local = || self.reason.get().cloned().unwrap_or(JobEnd::ShutDown);
        Some(report.map_or_else(local, |report| JobEnd::Job { report }))
    }

    pub(crate) fn send_message(&self, message: &ControlMessage, bytes: &[u8]) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        // Where the coordinator is gone the reader of this line says so.
        let _ = write_message(&mut *writer, message, bytes);
    }

    pub(crate) fn wait_for_roster(&self, timeout: Duration) -> Option<Vec<Member>> {
        self.wait_for_inbox(timeout, |inbox| inbox.roster.clone())
    }

    pub(crate) fn wait_for_shares(&self, timeout: Duration) -> Option<Vec<bool>> {
        self.wait_for_inbox(timeout, |inbox| inbox.shares.clone())
    }

    /// Waits for all ranks' parts, and returns them once all have come; `None` where the job ends before.
    pub(crate) fn wait_for_gathered(&self, key: &str) -> Option<Vec<Vec<u8>>> {
        self.wait_for_inbox(Duration::MAX, |inbox| inbox.gathered.remove(key))
    }

    /// Says goodbye and closes the line.
    pub(crate) fn close(&self) {
        self.lock_inbox().closed = true;
        if !self.is_over() {
            self.send_message(&ControlMessage::Bye, &[]);
        }
        self.over.store(true, Ordering::SeqCst);
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        // The coordinator may be gone already.
        let _ = writer.shutdown(Shutdown::Write);
    }

    fn lock_inbox(&self) -> MutexGuard<'_, LineInbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something has come, or a report that it will not.
    fn wait_for_inbox<T>(
        &self,
        timeout: Duration,
        mut take: impl FnMut(&mut LineInbox) -> Option<T>,
    ) -> Option<T> {
        let mut time = WaitingTime::begin(timeout);
        let mut inbox = self.lock_inbox();
        loop {
            if let Some(taken) = take(&mut inbox) {
                return Some(taken);
            }
            let waited = time.elapsed();
            if inbox.report.is_some() || waited >= timeout {
                return None;
            }
            let nap = (timeout - waited).min(Duration::from_millis(100));
            let wait = self.changed.wait_timeout(inbox, nap);
            inbox = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn read_messages(&self, stream: &mut TcpStream) {
        while let Ok((message, bytes)) = read_message(stream) {
            self.accept_message(message, &bytes);
        }
        self.report_lost("has died: the connection closed without a word");
    }

    fn accept_message(&self, message: ControlMessage, bytes: &[u8]) {
        if message == ControlMessage::Ending {
            // Before anybody here hears of the end: what were they doing?
            self.send_message(
                &ControlMessage::Doing { lines: self.activities.status_lines() },
                &[],
            );
            self.over.store(true, Ordering::SeqCst);
        }
        let mut inbox = self.lock_inbox();
        inbox.heard = Instant::now();
        match message {
            ControlMessage::Roster(roster) => inbox.roster = Some(roster),
            ControlMessage::Go { shares } => inbox.shares = Some(shares),
            ControlMessage::Gathered { key, lengths } => {
                let mut rest = bytes;
                let mut part = |&length: &u64| {
                    let (part, after) = rest.split_at((length as usize).min(rest.len()));
                    rest = after;
                    part.to_vec()
                };
                let parts = lengths.iter().map(&mut part).collect();
                inbox.gathered.insert(key, parts);
            }
            ControlMessage::Left { rank } => {
                inbox.left.insert(rank, Instant::now());
            }
            ControlMessage::Ended { report } => {
                inbox.report.get_or_insert(report);
                self.over.store(true, Ordering::SeqCst);
            }
            // A beat has been heard; the others are not for members.
            _ => {}
        }
        self.changed.notify_all();
    }

    /// Ends the job, as rank 0 is gone: the account is what this process knows.
    fn report_lost(&self, how: &str) {
        let mut inbox = self.lock_inbox();
        #[cfg(feature = "mpi")]
        {
            inbox.cut = true;
        }
        if !inbox.closed && inbox.report.is_none() {
            let mut report = format!("rank 0, which leads the job, {how}");
            for line in self.activities.status_lines() {
                report += &format!("\n  rank {}: {line}", self.rank);
            }
            inbox.report = Some(report);
            self.over.store(true, Ordering::SeqCst);
        }
        self.changed.notify_all();
    }

    fn send_heartbeats(&self) {
        let beat = (self.heartbeat / 4).min(Duration::from_secs(1));
        let mut looks = Looks::new(self.heartbeat);
        let mut inbox = self.lock_inbox();
        while !inbox.closed && inbox.report.is_none() {
            let now = Instant::now();
            if let Some(stood) = looks.look(now) {
                // Rank 0 may have stood still as well: for that time, and no longer.
                inbox.heard = now.min(inbox.heard + stood);
            }
            let silence = now.saturating_duration_since(inbox.heard);
            drop(inbox);
            if silence > self.heartbeat {
                let seconds = silence.as_secs_f64();
                return self.report_lost(&format!("has given no sign of life for {seconds:.1} s"));
            }
            self.send_message(&ControlMessage::Beat, &[]);
            looks.skip_wait();
            inbox = self.lock_inbox();
            let begun = Instant::now();
            while !inbox.closed && inbox.report.is_none() && begun.elapsed() < beat {
                let wait = self.changed.wait_timeout(inbox, beat);
                inbox = wait.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}
