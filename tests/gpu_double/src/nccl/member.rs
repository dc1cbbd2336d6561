//! A rank's end of a communicator: what it said, what it heard, and whose turn it is.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use super::call::Call;
use super::hub::patience;
use super::pulse::{self, Wait};
use super::types::{Code, Refusal, refuse};
use super::wire::{Place, ToHub, ToMember, receive, send};

/// One rank of one communicator.
pub struct Member {
    /// The communicator's name, for messages.
    pub name: String,
    /// The number of the rank.
    pub rank: usize,
    /// The number of ranks.
    pub ranks: usize,
    /// The device that it uses.
    pub device: i32,
    /// Whether calls wait until they are done.
    pub blocking: bool,
    state: Mutex<State>,
    news: Condvar,
    /// The end that is written to. It has a lock of its own: what is heard is taken in while a long message goes out.
    link: Mutex<Option<UnixStream>>,
    /// Operations that graphs keep.
    kept: AtomicUsize,
}

/// The phase of a rank's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Joining,
    Ready,
    Finalized,
    Aborted,
}

struct State {
    phase: Phase,
    /// The same end as `link` of the member, to be shut.
    link: Option<UnixStream>,
    /// Whether rank 0, in whose process the hub is, has left as it should.
    hub_may_go: bool,
    /// Whether all ranks know that this one has left, or nobody can tell.
    left: bool,
    /// Operations that were called and are not done, by the order of their calls.
    open: BTreeSet<u64>,
    tickets: u64,
    done: BTreeMap<u64, Vec<u8>>,
    broken: Option<String>,
    asynchronous: Code,
    placed: Option<Option<Place>>,
    last_error: std::ffi::CString,
}

/// The state of an operation that was posted.
pub enum Answer {
    /// Others are waited for.
    NotYet,
    /// The bytes that its calls get, one after another.
    Done(Vec<u8>),
    /// It never will be done.
    Failed(String),
}

impl Member {
    /// A rank that is about to join.
    pub fn new(name: String, rank: usize, ranks: usize, device: i32, blocking: bool) -> Member {
        let state = State {
            phase: Phase::Joining,
            link: None,
            hub_may_go: false,
            left: false,
            open: BTreeSet::new(),
            tickets: 0,
            done: BTreeMap::new(),
            broken: None,
            asynchronous: Code::InProgress,
            placed: None,
            last_error: c"".into(),
        };
        let (state, news, link) = (Mutex::new(state), Condvar::new(), Mutex::new(None));
        let kept = AtomicUsize::new(0);
        Member { name, rank, ranks, device, blocking, state, news, link, kept }
    }

    /// A graph keeps an operation, or does so no more.
    pub fn keep(&self, keeps: bool) {
        match keeps {
            true => self.kept.fetch_add(1, Ordering::Relaxed),
            false => self.kept.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// A communicator does not end before the graphs with its operations: NCCL would wait for them, for ever.
    pub fn check_unkept(&self) -> Result<(), Refusal> {
        match self.kept.load(Ordering::Relaxed) {
            0 => Ok(()),
            kept => refuse(
                Code::InvalidUsage,
                format!("graphs keep {kept} operations of the communicator, for which NCCL waits"),
            ),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    fn end(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.link.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Tells the hub something. That a hub is gone is noticed by who hears it.
    fn tell(&self, message: &ToHub, bytes: &[u8]) {
        if let Some(link) = &mut *self.end() {
            let _ = send(link, message, bytes);
        }
    }

    /// Tells the hub that this process is at work.
    pub fn pulse(&self) {
        self.tell(&ToHub::Pulse, &[]);
    }

    /// The hub has answered the hello: the rank is there, and a thread hears what else it is told. A rank that was
    /// aborted meanwhile hangs up.
    pub fn welcome(self: &Arc<Self>, link: UnixStream) -> std::io::Result<()> {
        let (mut heard, written) = (link.try_clone()?, link.try_clone()?);
        let mut state = self.lock();
        if state.phase != Phase::Joining {
            return link.shutdown(std::net::Shutdown::Both);
        }
        *self.end() = Some(written);
        state.phase = Phase::Ready;
        state.asynchronous = Code::Success;
        state.link = Some(link);
        drop(state);
        pulse::add(self);
        let member = self.clone();
        let thread = std::thread::Builder::new().name("nccl double's rank".into());
        thread.spawn(move || member.hear(&mut heard)).map(drop)
    }

    /// The rank did not come to be.
    pub fn fail_to_join(&self, refusal: &Refusal) {
        self.lock().asynchronous = refusal.code;
        self.note(&refusal.reason);
    }

    fn hear(&self, link: &mut UnixStream) {
        while let Ok((message, bytes)) = receive::<ToMember>(link) {
            let mut state = self.lock();
            match message {
                ToMember::Done { operation } => drop(state.done.insert(operation, bytes)),
                ToMember::Broken { reason } => {
                    state.asynchronous = Code::InvalidUsage;
                    state.broken = Some(reason);
                }
                ToMember::Dead { rank } => state.lose(&format!("rank {rank} is gone")),
                ToMember::Left { rank } => {
                    state.hub_may_go |= rank == 0;
                    state.left |= rank == self.rank;
                }
                ToMember::Placed { place } => state.placed = Some(place),
                ToMember::Welcome | ToMember::Refused { .. } => {}
            }
            self.news.notify_all();
        }
        let mut state = self.lock();
        state.left = true;
        if state.phase == Phase::Ready && !(state.hub_may_go && state.waits_for_none()) {
            state.lose("rank 0 is gone");
        }
        self.news.notify_all();
    }

    /// Returns the error that `ncclCommGetAsyncError` gives.
    pub fn asynchronous(&self) -> Code {
        self.lock().asynchronous
    }

    /// Keeps a sentence for `ncclGetLastError`.
    pub fn note(&self, reason: &str) {
        self.lock().last_error = std::ffi::CString::new(reason).unwrap_or_default();
    }

    /// The last sentence; it is valid until the next one.
    pub fn last_error(&self) -> *const std::ffi::c_char {
        self.lock().last_error.as_ptr()
    }

    /// Whether calls may be made.
    pub fn usable(&self) -> Result<(), Refusal> {
        let state = self.lock();
        match (state.phase, state.asynchronous) {
            (Phase::Joining, _) => {
                refuse(Code::InvalidArgument, "the communicator is not there yet")
            }
            (Phase::Finalized, _) => refuse(Code::InvalidUsage, "the communicator was finalized"),
            (Phase::Aborted, _) => refuse(Code::InvalidUsage, "the communicator was aborted"),
            (Phase::Ready, Code::Success | Code::InProgress) => Ok(()),
            (Phase::Ready, code) => refuse(code, "an earlier error of the communicator"),
        }
    }

    /// A place in the order of this rank's operations; it must be left in the end.
    pub fn enter(&self) -> u64 {
        let mut state = self.lock();
        let ticket = state.tickets;
        state.tickets += 1;
        state.open.insert(ticket);
        ticket
    }

    /// An operation is over, in whatever way.
    pub fn leave(&self, ticket: u64) {
        let mut state = self.lock();
        state.open.remove(&ticket);
        state.done.remove(&ticket);
        self.news.notify_all();
    }

    /// Posts an operation, with what its calls give, if all that were called before it are done. Gives whether it was.
    pub fn post(
        &self,
        ticket: u64,
        calls: Vec<Call>,
        give: impl FnOnce() -> Result<Vec<u8>, String>,
    ) -> Result<bool, String> {
        let state = self.lock();
        state.check_alive()?;
        let turn = state.open.first() == Some(&ticket);
        drop(state);
        if turn {
            self.tell(&ToHub::Post { operation: ticket, calls }, &give()?);
        }
        Ok(turn)
    }

    /// Returns the state of an operation that was posted.
    pub fn answer(&self, ticket: u64) -> Answer {
        let mut state = self.lock();
        match state.done.remove(&ticket) {
            Some(bytes) => Answer::Done(bytes),
            None => match state.check_alive() {
                Ok(()) => Answer::NotYet,
                Err(reason) => Answer::Failed(reason),
            },
        }
    }

    /// Ends waiting operations with an error, and leaves without a goodbye.
    pub fn abort(&self) {
        let mut state = self.lock();
        state.phase = Phase::Aborted;
        state.asynchronous = Code::InvalidUsage;
        state.hang_up();
        self.news.notify_all();
    }

    /// Waits until all operations are over, then leaves, and waits until that is known.
    pub fn finalize(&self) -> Result<(), Refusal> {
        let mut wait = Wait::begin();
        let mut state = self.lock();
        while !state.open.is_empty() && state.asynchronous == Code::Success {
            if wait.is_too_long() {
                return refuse(Code::SystemError, "operations of the communicator do not end");
            }
            let waited = self.news.wait_timeout(state, patience() / 20);
            state = waited.unwrap_or_else(|poison| poison.into_inner()).0;
        }
        if state.phase == Phase::Ready {
            state.phase = Phase::Finalized;
            drop(state);
            self.tell(&ToHub::Goodbye, &[]);
            state = self.lock();
            while !state.left {
                state = self.news.wait(state).unwrap_or_else(|poison| poison.into_inner());
            }
            state.hang_up();
        }
        Ok(())
    }

    /// Waits for the place of this rank after a split.
    pub fn split(&self, color: i32, key: i32) -> Result<Option<Place>, Refusal> {
        self.tell(&ToHub::Split { color, key }, &[]);
        let mut state = self.lock();
        loop {
            if let Some(place) = state.placed.take() {
                return Ok(place);
            }
            if let Err(reason) = state.check_alive() {
                return refuse(Code::InvalidUsage, reason);
            }
            if state.asynchronous != Code::Success {
                return refuse(state.asynchronous, "a rank of the communicator is gone");
            }
            state = self.news.wait(state).unwrap_or_else(|poison| poison.into_inner());
        }
    }
}

impl State {
    /// Notes that somebody is gone.
    fn lose(&mut self, reason: &str) {
        self.asynchronous = Code::RemoteError;
        self.last_error = std::ffi::CString::new(reason).unwrap_or_default();
    }

    /// Whether the hub has answered all that is open.
    fn waits_for_none(&self) -> bool {
        self.open.iter().all(|ticket| self.done.contains_key(ticket))
    }

    fn check_alive(&self) -> Result<(), String> {
        match (&self.broken, self.phase) {
            (Some(reason), _) => Err(reason.clone()),
            (None, Phase::Aborted) => Err("the communicator was aborted".into()),
            _ => Ok(()),
        }
    }

    fn hang_up(&mut self) {
        if let Some(link) = self.link.take() {
            // It may be closed already.
            let _ = link.shutdown(std::net::Shutdown::Both);
        }
    }
}
