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

use graphc_comm::JobEnd;
use graphc_comm::transport::{Receiver, Sender, TransportError};
use graphc_host::threads;

use super::element::{ElementBuffer, writable_bytes, write_elements};
use super::ends::{GroupLane, GroupMembers, LENT, MessagePart, SEGMENT, outgoing_range, send_part};
use super::error::DistError;
use super::header::{GroupCall, GroupOp, HEADER};
use super::work::{PendingWork, Promise};

/// A queue's end.
enum QueueEnd {
    Sender(Box<dyn Sender>),
    Receiver(Box<dyn Receiver>),
}

impl QueueEnd {
    fn is_ready(&self) -> bool {
        match self {
            Self::Sender(sender) => sender.is_ready(),
            Self::Receiver(receiver) => receiver.is_ready(),
        }
    }
}

/// The direction of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineDirection {
    To,
    From,
}

/// The transfers of one direction of one pair.
struct TransferLine {
    way: LineDirection,
    peer: usize,
    end: Option<QueueEnd>,
    /// The number of transfers that were begun.
    number: u64,
    waiting: VecDeque<PendingTransfer>,
    failed: Option<DistError>,
}

/// A transfer that waits for its turn or is under way.
struct PendingTransfer {
    call: GroupCall,
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

impl<B: ElementBuffer + Send> Transfer for Owned<B> {
    fn bytes(&mut self) -> &mut [u8] {
        writable_bytes(&mut self.buffer)
    }

    fn finish(self: Box<Self>, result: Result<(), DistError>) {
        let Self { buffer, promise } = *self;
        promise.fulfill(result.map(|()| buffer));
    }
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TransferLine {
    fn new(way: LineDirection, peer: usize) -> Mutex<Self> {
        let waiting = VecDeque::new();
        Mutex::new(Self { way, peer, end: None, number: 0, waiting, failed: None })
    }

    fn next_call(&mut self, dtype: graphc_ir::types::DType) -> GroupCall {
        self.number += 1;
        GroupCall { op: GroupOp::Send, reduce: None, dtype, root: None, number: self.number - 1 }
    }

    fn open_end(&mut self, members: &GroupMembers) -> Result<&mut QueueEnd, TransportError> {
        let end = match self.end.take() {
            Some(end) => end,
            None => match self.way {
                LineDirection::To => {
                    QueueEnd::Sender(members.open_sender(GroupLane::Pair, self.peer)?)
                }
                LineDirection::From => {
                    QueueEnd::Receiver(members.open_receiver(GroupLane::Pair, self.peer)?)
                }
            },
        };
        Ok(self.end.insert(end))
    }

    /// Moves the next part; waits for the peer where it must. How many bytes are done then. A part that is `lent` goes whole.
    fn move_part(
        &mut self,
        members: &GroupMembers,
        (call, done): (&GroupCall, Option<usize>),
        (bytes, lent): (TransferBytes<'_>, bool),
    ) -> Result<usize, DistError> {
        let (way, peer) = (self.way, self.peer);
        let name = if way == LineDirection::To { "send" } else { "recv" };
        let end =
            self.open_end(members).map_err(|error| members.operation_error(name, peer, error))?;
        let moved = match (end, bytes) {
            (QueueEnd::Sender(sender), bytes) => {
                let (bytes, start) = (bytes.as_bytes(), done.unwrap_or(0));
                let range =
                    outgoing_range(bytes.len(), lent, start / SEGMENT).unwrap_or(start..start);
                let header = done.is_none().then_some(bytes.len());
                let part = MessagePart { header, bytes: &bytes[range.clone()], lent };
                send_part(sender.as_mut(), call, part).map(|()| Ok(range.end))
            }
            (QueueEnd::Receiver(receiver), TransferBytes::Into(bytes)) => {
                receive_part(receiver.as_mut(), (call, done), bytes)
            }
            (QueueEnd::Receiver(_), TransferBytes::From(_)) => {
                unreachable!("who receives has room")
            }
        };
        match moved {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(difference)) => Err(members.end_on_mismatch(peer, difference)),
            Err(error) => Err(members.operation_error(name, peer, error)),
        }
    }

    /// Returns whether the peer can read what is lent to it.
    fn can_lend(&mut self, members: &GroupMembers) -> Result<bool, DistError> {
        let peer = self.peer;
        match self
            .open_end(members)
            .map_err(|error| members.operation_error("send", peer, error))?
        {
            QueueEnd::Sender(sender) => Ok(sender.can_lend()),
            QueueEnd::Receiver(_) => Ok(false),
        }
    }

    /// Moves all of it.
    fn move_all(
        &mut self,
        members: &GroupMembers,
        call: &GroupCall,
        bytes: &mut TransferBytes<'_>,
    ) -> Result<(), DistError> {
        let all = bytes.as_bytes().len();
        let lent = LENT.contains(&all) && self.can_lend(members)?;
        let mut done = None;
        while done.is_none_or(|done| done < all) {
            let bytes = match bytes {
                TransferBytes::From(bytes) => TransferBytes::From(bytes),
                TransferBytes::Into(bytes) => TransferBytes::Into(bytes),
            };
            done = Some(self.move_part(members, (call, done), (bytes, lent))?);
        }
        if lent { self.settle_loans(members) } else { Ok(()) }
    }

    /// Waits until the peer has read what was lent to it.
    fn settle_loans(&mut self, members: &GroupMembers) -> Result<(), DistError> {
        let Some(QueueEnd::Sender(sender)) = &mut self.end else { return Ok(()) };
        let settled = sender.settle_loans().map(|_| ());
        settled.map_err(|error| members.operation_error("send", self.peer, error))
    }

    /// Moves what it can of the waiting transfers, and more while `patient` says so. Returns how many are done, and whether
    /// anything was moved.
    fn advance(&mut self, members: &GroupMembers, patient: &dyn Fn() -> bool) -> (usize, bool) {
        let (mut finished, mut moved) = (0, false);
        while let Some(mut item) = self.waiting.pop_front() {
            let ready = match self.open_end(members) {
                Ok(end) => end.is_ready(),
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
            let result = self.move_part(
                members,
                (&item.call, item.done),
                (TransferBytes::Into(bytes), false),
            );
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

    /// Ends this line, as nothing goes this way any more, and returns how many transfers that ends.
    fn fail(&mut self, members: &GroupMembers, error: &DistError) -> usize {
        if let Some(QueueEnd::Sender(sender)) = &mut self.end {
            sender.withdraw_loans();
        }
        members.transport.end_job(JobEnd::Program { reason: error.to_string() });
        self.failed = Some(error.clone());
        let all = self.waiting.len();
        self.waiting.drain(..).for_each(|item| item.transfer.finish(Err(error.clone())));
        all
    }

    fn is_ready(&mut self, members: &GroupMembers) -> bool {
        !self.waiting.is_empty() && self.open_end(members).is_ok_and(|end| end.is_ready())
    }
}

/// The bytes of a transfer.
enum TransferBytes<'a> {
    From(&'a [u8]),
    Into(&'a mut [u8]),
}

impl TransferBytes<'_> {
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::From(bytes) => bytes,
            Self::Into(bytes) => bytes,
        }
    }
}

/// Receives a part; returns how many bytes are done then, or what the two ranks do, where it differs.
fn receive_part(
    receiver: &mut dyn Receiver,
    (call, done): (&GroupCall, Option<usize>),
    into: &mut [u8],
) -> Result<Result<usize, (String, String)>, TransportError> {
    let mut taken = Ok(0);
    let head = if done.is_none() { HEADER } else { 0 };
    receiver.receive_headed(head, &mut |header, part| {
        if done.is_none()
            && let Err(found) = call.check_header(header, Some(into.len()))
        {
            taken = Err(found);
            return;
        }
        let (start, all) = (done.unwrap_or(0), into.len());
        let end = start + part.len();
        write_elements(call.dtype, &mut into[start..end], part, all);
        taken = Ok(end);
    })?;
    Ok(taken)
}

/// All pairs of this rank in a group.
pub(super) struct PairLines {
    members: GroupMembers,
    /// The lines to each member, then from each.
    lines: Vec<Mutex<TransferLine>>,
    /// Transfers that wait.
    waiting: Mutex<usize>,
    changed: Condvar,
    kicked: AtomicBool,
    over: AtomicBool,
}

impl PairLines {
    fn line(&self, way: LineDirection, peer: usize) -> &Mutex<TransferLine> {
        &self.lines[peer + if way == LineDirection::From { self.members.len() } else { 0 }]
    }

    /// Transfers borrowed memory, after the transfers that wait before it.
    fn transfer_borrowed(
        &self,
        (way, peer): (LineDirection, usize),
        dtype: graphc_ir::types::DType,
        mut bytes: TransferBytes<'_>,
    ) -> Result<(), DistError> {
        let mut line = lock_mutex(self.line(way, peer));
        let (finished, _) = line.advance(&self.members, &|| true);
        self.count_finished(finished);
        if let Some(failed) = &line.failed {
            return Err(failed.clone());
        }
        let call = line.next_call(dtype);
        let result = line.move_all(&self.members, &call, &mut bytes);
        if let Err(error) = &result {
            line.fail(&self.members, error);
        }
        result
    }

    pub(super) fn send<B: ElementBuffer + ?Sized>(
        &self,
        to: usize,
        data: &B,
    ) -> Result<(), DistError> {
        self.transfer_borrowed(
            (LineDirection::To, to),
            data.dtype(),
            TransferBytes::From(data.as_bytes()),
        )
    }

    pub(super) fn recv<B: ElementBuffer + ?Sized>(
        &self,
        from: usize,
        into: &mut B,
    ) -> Result<(), DistError> {
        let dtype = into.dtype();
        self.transfer_borrowed(
            (LineDirection::From, from),
            dtype,
            TransferBytes::Into(writable_bytes(into)),
        )
    }

    /// Transfers memory of its own. Whether the pump is needed for it.
    pub(super) fn start_transfer<B: ElementBuffer + Send + 'static>(
        self: &Arc<Self>,
        (way, peer): (LineDirection, usize),
        buffer: B,
    ) -> (PendingWork<B>, bool) {
        let (work, promise) =
            PendingWork::new(if way == LineDirection::To { "isend" } else { "irecv" });
        let mut line = lock_mutex(self.line(way, peer));
        if let Some(failed) = &line.failed {
            promise.fulfill(Err(failed.clone()));
            return (work, false);
        }
        let call = line.next_call(buffer.dtype());
        let transfer = Box::new(Owned { buffer, promise });
        line.waiting.push_back(PendingTransfer { call, done: None, transfer });
        *lock_mutex(&self.waiting) += 1;
        let (finished, _) = line.advance(&self.members, &|| false);
        let left = !line.waiting.is_empty();
        drop(line);
        self.count_finished(finished);
        if left {
            self.wake_pump();
        }
        let pairs = Arc::clone(self);
        let help = move |done: &dyn Fn() -> bool| pairs.advance_line((way, peer), done);
        (work.helped_by(Box::new(help)), left)
    }

    /// Moves a line on until `done`.
    fn advance_line(&self, (way, peer): (LineDirection, usize), done: &dyn Fn() -> bool) {
        let mut line = lock_mutex(self.line(way, peer));
        let (finished, _) = line.advance(&self.members, &|| !done());
        let left = !line.waiting.is_empty();
        drop(line);
        self.count_finished(finished);
        if left {
            self.wake_pump();
        }
    }

    fn count_finished(&self, transfers: usize) {
        if transfers > 0 {
            *lock_mutex(&self.waiting) -= transfers;
            self.changed.notify_all();
        }
    }

    /// Waits until no transfer waits, at most so long. Whether none does.
    pub(super) fn wait_idle(&self, grace: Duration) -> bool {
        let busy = |waiting: &mut usize| *waiting > 0;
        let waited = self.changed.wait_timeout_while(lock_mutex(&self.waiting), grace, busy);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }

    /// Has the pump look again.
    fn wake_pump(&self) {
        self.kicked.store(true, Ordering::SeqCst);
        self.changed.notify_all();
        self.members.transport.wake_waiters();
    }

    /// Runs the pump until the group goes and nothing waits.
    fn run_pump(&self) {
        loop {
            let mut waiting = lock_mutex(&self.waiting);
            while *waiting == 0 {
                if self.over.load(Ordering::SeqCst) {
                    return;
                }
                waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
            drop(waiting);
            if !self.advance_lines() {
                self.wait_for_line();
            }
        }
    }

    /// Moves the transfers that can be moved, and returns whether any was.
    fn advance_lines(&self) -> bool {
        let mut any = false;
        for line in &self.lines {
            // Who holds a line moves it on.
            if let Ok(mut line) = line.try_lock() {
                let (finished, moved) = line.advance(&self.members, &|| false);
                drop(line);
                self.count_finished(finished);
                any |= moved;
            }
        }
        any
    }

    /// Waits until a line can be moved.
    fn wait_for_line(&self) {
        let ready = || {
            let looked = |line: &Mutex<TransferLine>| {
                line.try_lock().is_ok_and(|mut line| line.is_ready(&self.members))
            };
            // Those who wait for a transfer may have done it themselves.
            self.kicked.swap(false, Ordering::SeqCst)
                || *lock_mutex(&self.waiting) == 0
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
        let error = self.members.operation_error("isend or irecv", peer, error);
        for line in &self.lines {
            let finished = lock_mutex(line).fail(&self.members, &error);
            self.count_finished(finished);
        }
    }
}

/// A group's pairs, and their pump once it is needed. Dropped, it waits until what was started is done.
pub(super) struct PointToPoint {
    pub(super) pairs: Arc<PairLines>,
    pump: Mutex<Option<JoinHandle<()>>>,
}

impl PointToPoint {
    pub(super) fn new(members: GroupMembers) -> Self {
        let n = members.len();
        let to = (0..n).map(|peer| TransferLine::new(LineDirection::To, peer));
        let lines =
            to.chain((0..n).map(|peer| TransferLine::new(LineDirection::From, peer))).collect();
        let pairs = Arc::new(PairLines {
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
    pub(super) fn start_transfer<B: ElementBuffer + Send + 'static>(
        &self,
        line: (LineDirection, usize),
        buffer: B,
    ) -> Result<PendingWork<B>, DistError> {
        let (work, pumped) = self.pairs.start_transfer(line, buffer);
        let mut pump = lock_mutex(&self.pump);
        if pumped && pump.is_none() {
            let pairs = Arc::clone(&self.pairs);
            let thread = threads::start_thread("point to point", move || pairs.run_pump());
            *pump = Some(thread.map_err(DistError::from_thread_error)?);
        }
        Ok(work)
    }
}

impl Drop for PointToPoint {
    fn drop(&mut self) {
        let waiting = lock_mutex(&self.pairs.waiting);
        self.pairs.over.store(true, Ordering::SeqCst);
        drop(waiting);
        self.pairs.wake_pump();
        if let Some(pump) = lock_mutex(&self.pump).take() {
            // A panic there has ended the works, and who waits for them knows.
            let _ = pump.join();
        }
    }
}
