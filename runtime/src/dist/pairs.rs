//! Messages between two ranks of a group.
//!
//! Each direction of each pair is a line of transfers, done in order. A transfer that cannot be done at once is moved on
//! by whoever waits for it, or by the group's pump, a thread that looks after all lines. So what was started goes on
//! whatever the program does meanwhile.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::element::{Buffer, put, writable};
use super::ends::{LENT, Lane, Members, Part, SEGMENT, outgoing, send};
use super::error::DistError;
use super::header::{Call, HEADER, Op};
use super::work::{Promise, Work};
use crate::error::RuntimeError;
use crate::threads;
use crate::transport::{Receiver, Sender, TransportError};

/// A queue's end.
enum End {
    Sender(Box<dyn Sender>),
    Receiver(Box<dyn Receiver>),
}

impl End {
    fn ready(&self) -> bool {
        match self {
            Self::Sender(sender) => sender.ready(),
            Self::Receiver(receiver) => receiver.ready(),
        }
    }
}

/// Which way a line goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    To,
    From,
}

/// The transfers of one direction of one pair.
struct Line {
    way: Way,
    peer: usize,
    end: Option<End>,
    /// The number of transfers that were begun.
    number: u64,
    waiting: VecDeque<Item>,
    failed: Option<DistError>,
}

/// A transfer that waits for its turn or is under way.
struct Item {
    call: Call,
    /// Bytes that are done; none before the first part, which there is even of nothing.
    done: Option<usize>,
    transfer: Box<dyn Transfer>,
}

trait Transfer: Send {
    fn bytes(&mut self) -> &mut [u8];
    fn finish(self: Box<Self>, result: Result<(), DistError>);
}

struct Owned<B> {
    buffer: B,
    promise: Promise<B>,
}

impl<B: Buffer + Send> Transfer for Owned<B> {
    fn bytes(&mut self) -> &mut [u8] {
        writable(&mut self.buffer)
    }

    fn finish(self: Box<Self>, result: Result<(), DistError>) {
        let Self { buffer, promise } = *self;
        promise.keep(result.map(|()| buffer));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Line {
    fn new(way: Way, peer: usize) -> Mutex<Self> {
        let waiting = VecDeque::new();
        Mutex::new(Self { way, peer, end: None, number: 0, waiting, failed: None })
    }

    fn call(&mut self, dtype: graphc_ir::types::DType) -> Call {
        self.number += 1;
        Call { op: Op::Send, reduce: None, dtype, root: None, number: self.number - 1 }
    }

    fn end(&mut self, members: &Members) -> Result<&mut End, TransportError> {
        let end = match self.end.take() {
            Some(end) => end,
            None => match self.way {
                Way::To => End::Sender(members.sender(Lane::Pair, self.peer)?),
                Way::From => End::Receiver(members.receiver(Lane::Pair, self.peer)?),
            },
        };
        Ok(self.end.insert(end))
    }

    /// Moves the next part; waits for the peer where it must. How many bytes are done then. A part that is `lent` goes whole.
    fn part(
        &mut self,
        members: &Members,
        (call, done): (&Call, Option<usize>),
        (bytes, lent): (Moved<'_>, bool),
    ) -> Result<usize, DistError> {
        let (way, peer) = (self.way, self.peer);
        let name = if way == Way::To { "send" } else { "recv" };
        let end = self.end(members).map_err(|error| members.fail(name, peer, error))?;
        let moved = match (end, bytes) {
            (End::Sender(sender), bytes) => {
                let (bytes, start) = (bytes.read(), done.unwrap_or(0));
                let range = outgoing(bytes.len(), lent, start / SEGMENT).unwrap_or(start..start);
                let header = done.is_none().then_some(bytes.len());
                let part = Part { header, bytes: &bytes[range.clone()], lent };
                send(sender.as_mut(), call, part).map(|()| Ok(range.end))
            }
            (End::Receiver(receiver), Moved::Into(bytes)) => {
                take(receiver.as_mut(), (call, done), bytes)
            }
            (End::Receiver(_), Moved::From(_)) => unreachable!("who receives has room"),
        };
        match moved {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(difference)) => Err(members.mismatch(peer, difference)),
            Err(error) => Err(members.fail(name, peer, error)),
        }
    }

    /// Whether the peer can read what is lent to it.
    fn lends(&mut self, members: &Members) -> Result<bool, DistError> {
        let peer = self.peer;
        match self.end(members).map_err(|error| members.fail("send", peer, error))? {
            End::Sender(sender) => Ok(sender.lends()),
            End::Receiver(_) => Ok(false),
        }
    }

    /// Moves all of it.
    fn whole(
        &mut self,
        members: &Members,
        call: &Call,
        bytes: &mut Moved<'_>,
    ) -> Result<(), DistError> {
        let all = bytes.read().len();
        let lent = LENT.contains(&all) && self.lends(members)?;
        let mut done = None;
        while done.is_none_or(|done| done < all) {
            let bytes = match bytes {
                Moved::From(bytes) => Moved::From(bytes),
                Moved::Into(bytes) => Moved::Into(bytes),
            };
            done = Some(self.part(members, (call, done), (bytes, lent))?);
        }
        if lent { self.settle(members) } else { Ok(()) }
    }

    /// Waits until the peer has read what was lent to it.
    fn settle(&mut self, members: &Members) -> Result<(), DistError> {
        let Some(End::Sender(sender)) = &mut self.end else { return Ok(()) };
        let settled = sender.settle().map(|_| ());
        settled.map_err(|error| members.fail("send", self.peer, error))
    }

    /// Moves what it can of what waits, and more while `patient` says so. How many transfers are done, and whether anything
    /// was moved.
    fn advance(&mut self, members: &Members, patient: &dyn Fn() -> bool) -> (usize, bool) {
        let (mut finished, mut moved) = (0, false);
        while let Some(mut item) = self.waiting.pop_front() {
            let ready = match self.end(members) {
                Ok(end) => end.ready(),
                // The attempt says what is wrong.
                Err(_) => true,
            };
            if !ready && !patient() {
                self.waiting.push_front(item);
                break;
            }
            let bytes = item.transfer.bytes();
            let all = bytes.len();
            // Who started it does not wait: what was lent would have to be waited for.
            let result = self.part(members, (&item.call, item.done), (Moved::Into(bytes), false));
            moved = true;
            match result {
                Ok(done) if done < all => {
                    item.done = Some(done);
                    self.waiting.push_front(item);
                }
                Ok(_) => {
                    finished += 1;
                    item.transfer.finish(Ok(()));
                }
                Err(error) => {
                    self.waiting.push_front(item);
                    finished += self.fail(members, &error);
                }
            }
        }
        (finished, moved)
    }

    /// Nothing goes this way any more. How many transfers that ends.
    fn fail(&mut self, members: &Members, error: &DistError) -> usize {
        if let Some(End::Sender(sender)) = &mut self.end {
            sender.withdraw();
        }
        members.transport.end(RuntimeError::Program { reason: error.to_string() });
        self.failed = Some(error.clone());
        let all = self.waiting.len();
        self.waiting.drain(..).for_each(|item| item.transfer.finish(Err(error.clone())));
        all
    }

    fn is_ready(&mut self, members: &Members) -> bool {
        !self.waiting.is_empty() && self.end(members).is_ok_and(|end| end.ready())
    }
}

/// The bytes of a transfer.
enum Moved<'a> {
    From(&'a [u8]),
    Into(&'a mut [u8]),
}

impl Moved<'_> {
    fn read(&self) -> &[u8] {
        match self {
            Self::From(bytes) => bytes,
            Self::Into(bytes) => bytes,
        }
    }
}

/// Receives a part; how many bytes are done then, or what the two ranks do, where it differs.
fn take(
    receiver: &mut dyn Receiver,
    (call, done): (&Call, Option<usize>),
    into: &mut [u8],
) -> Result<Result<usize, (String, String)>, TransportError> {
    let mut taken = Ok(0);
    let head = if done.is_none() { HEADER } else { 0 };
    receiver.receive_headed(head, &mut |header, part| {
        if done.is_none()
            && let Err(found) = call.accept(header, Some(into.len()))
        {
            taken = Err(found);
            return;
        }
        let (start, all) = (done.unwrap_or(0), into.len());
        let end = start + part.len();
        put(call.dtype, &mut into[start..end], part, all);
        taken = Ok(end);
    })?;
    Ok(taken)
}

/// All pairs of this rank in a group.
pub(super) struct Pairs {
    members: Members,
    /// The lines to each member, then from each.
    lines: Vec<Mutex<Line>>,
    /// Transfers that wait.
    waiting: Mutex<usize>,
    changed: Condvar,
    kicked: AtomicBool,
    over: AtomicBool,
}

impl Pairs {
    fn line(&self, way: Way, peer: usize) -> &Mutex<Line> {
        &self.lines[peer + if way == Way::From { self.members.len() } else { 0 }]
    }

    /// Transfers borrowed memory, after what waits before it.
    fn transfer(
        &self,
        (way, peer): (Way, usize),
        dtype: graphc_ir::types::DType,
        mut bytes: Moved<'_>,
    ) -> Result<(), DistError> {
        let mut line = lock(self.line(way, peer));
        let (finished, _) = line.advance(&self.members, &|| true);
        self.finished(finished);
        if let Some(failed) = &line.failed {
            return Err(failed.clone());
        }
        let call = line.call(dtype);
        let result = line.whole(&self.members, &call, &mut bytes);
        if let Err(error) = &result {
            line.fail(&self.members, error);
        }
        result
    }

    pub(super) fn send<B: Buffer + ?Sized>(&self, to: usize, data: &B) -> Result<(), DistError> {
        self.transfer((Way::To, to), data.dtype(), Moved::From(data.as_bytes()))
    }

    pub(super) fn recv<B: Buffer + ?Sized>(
        &self,
        from: usize,
        into: &mut B,
    ) -> Result<(), DistError> {
        let dtype = into.dtype();
        self.transfer((Way::From, from), dtype, Moved::Into(writable(into)))
    }

    /// Transfers memory of its own. Whether the pump is needed for it.
    pub(super) fn start<B: Buffer + Send + 'static>(
        self: &Arc<Self>,
        (way, peer): (Way, usize),
        buffer: B,
    ) -> (Work<B>, bool) {
        let (work, promise) = Work::new(if way == Way::To { "isend" } else { "irecv" });
        let mut line = lock(self.line(way, peer));
        if let Some(failed) = &line.failed {
            promise.keep(Err(failed.clone()));
            return (work, false);
        }
        let call = line.call(buffer.dtype());
        let transfer = Box::new(Owned { buffer, promise });
        line.waiting.push_back(Item { call, done: None, transfer });
        *lock(&self.waiting) += 1;
        let (finished, _) = line.advance(&self.members, &|| false);
        let left = !line.waiting.is_empty();
        drop(line);
        self.finished(finished);
        if left {
            self.kick();
        }
        let pairs = Arc::clone(self);
        let help = move |done: &dyn Fn() -> bool| pairs.help((way, peer), done);
        (work.helped_by(Box::new(help)), left)
    }

    /// Moves a line on until `done`.
    fn help(&self, (way, peer): (Way, usize), done: &dyn Fn() -> bool) {
        let mut line = lock(self.line(way, peer));
        let (finished, _) = line.advance(&self.members, &|| !done());
        let left = !line.waiting.is_empty();
        drop(line);
        self.finished(finished);
        if left {
            self.kick();
        }
    }

    fn finished(&self, transfers: usize) {
        if transfers > 0 {
            *lock(&self.waiting) -= transfers;
            self.changed.notify_all();
        }
    }

    /// Waits until no transfer waits, at most so long. Whether none does.
    pub(super) fn settle(&self, grace: Duration) -> bool {
        let busy = |waiting: &mut usize| *waiting > 0;
        let waited = self.changed.wait_timeout_while(lock(&self.waiting), grace, busy);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }

    /// Has the pump look again.
    fn kick(&self) {
        self.kicked.store(true, Ordering::SeqCst);
        self.changed.notify_all();
        self.members.transport.nudge();
    }

    /// The pump: until the group goes and nothing waits.
    fn pump(&self) {
        loop {
            let mut waiting = lock(&self.waiting);
            while *waiting == 0 {
                if self.over.load(Ordering::SeqCst) {
                    return;
                }
                waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
            drop(waiting);
            if !self.sweep() {
                self.rest();
            }
        }
    }

    /// Moves what can be moved. Whether anything was.
    fn sweep(&self) -> bool {
        let mut any = false;
        for line in &self.lines {
            // Who holds a line moves it on.
            if let Ok(mut line) = line.try_lock() {
                let (finished, moved) = line.advance(&self.members, &|| false);
                drop(line);
                self.finished(finished);
                any |= moved;
            }
        }
        any
    }

    /// Waits until a line can be moved.
    fn rest(&self) {
        let ready = || {
            let looked = |line: &Mutex<Line>| {
                line.try_lock().is_ok_and(|mut line| line.is_ready(&self.members))
            };
            // Those who wait for a transfer may have done it themselves.
            self.kicked.swap(false, Ordering::SeqCst)
                || *lock(&self.waiting) == 0
                || self.lines.iter().any(looked)
        };
        let peer = self.lines.iter().find_map(|line| {
            let line = line.try_lock().ok()?;
            (!line.waiting.is_empty()).then_some(line.peer)
        });
        let peer = peer.unwrap_or(self.members.me);
        let rank = self.members.ranks[peer];
        let what = "to take part in isend or irecv";
        let Err(error) = self.members.transport.wait_until(rank, what, &ready) else { return };
        let error = self.members.fail("isend or irecv", peer, error);
        for line in &self.lines {
            let finished = lock(line).fail(&self.members, &error);
            self.finished(finished);
        }
    }
}

/// A group's pairs, and their pump once it is needed. Dropped, it waits until what was started is done.
pub(super) struct PointToPoint {
    pub(super) pairs: Arc<Pairs>,
    pump: Mutex<Option<JoinHandle<()>>>,
}

impl PointToPoint {
    pub(super) fn new(members: Members) -> Self {
        let n = members.len();
        let to = (0..n).map(|peer| Line::new(Way::To, peer));
        let lines = to.chain((0..n).map(|peer| Line::new(Way::From, peer))).collect();
        let pairs = Arc::new(Pairs {
            members,
            lines,
            waiting: Mutex::new(0),
            changed: Condvar::new(),
            kicked: AtomicBool::new(false),
            over: AtomicBool::new(false),
        });
        Self { pairs, pump: Mutex::new(None) }
    }

    /// Starts a transfer.
    pub(super) fn start<B: Buffer + Send + 'static>(
        &self,
        line: (Way, usize),
        buffer: B,
    ) -> Result<Work<B>, DistError> {
        let (work, pumped) = self.pairs.start(line, buffer);
        let mut pump = lock(&self.pump);
        if pumped && pump.is_none() {
            let pairs = Arc::clone(&self.pairs);
            let thread = threads::start("point to point", move || pairs.pump());
            *pump = Some(thread.map_err(DistError::thread)?);
        }
        Ok(work)
    }
}

impl Drop for PointToPoint {
    fn drop(&mut self) {
        let waiting = lock(&self.pairs.waiting);
        self.pairs.over.store(true, Ordering::SeqCst);
        drop(waiting);
        self.pairs.kick();
        if let Some(pump) = lock(&self.pump).take() {
            // A panic there has ended the works, and who waits for them knows.
            let _ = pump.join();
        }
    }
}
