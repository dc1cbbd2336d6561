//! MPI as the carrier of queues between processes.
//!
//! A frame is one MPI message, or several above 1 GiB. Sends never wait: the frame is copied into a buffer that MPI keeps
//! until it is done, so a rank whose peer has died is not stuck in the library. The thread that owns MPI takes in
//! whatever comes, and sleeps 0.2 ms between looks where nothing comes. Whoever waits for a message looks too, so an
//! answer is seen at once.
//!
//! A rank that leaves serves the others until all have left, and only then has MPI end. Where the job has failed it
//! leaves without, as `MPI_Finalize` would wait for the dead. It never calls `MPI_Abort`: mpirun sees the exit status.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::frames::{FrameHead, HEAD, Inboxes, Received, lock_mutex};
use crate::end::JobEnd;
use crate::mpi::{Flying, MpiWorld};

/// The longest message; longer frames go in several.
const LONGEST: usize = 1 << 30;
/// The number of buffers that are kept for later frames.
const KEPT: usize = 64;
/// The time after the last message for which the owner looks for the next one without sleeping.
const SPIN: Duration = Duration::from_micros(100);
/// The pause between two looks while nothing comes.
const NAP: Duration = Duration::from_micros(200);
/// The time that the last messages may take when all ranks have left.
const FAREWELL: Duration = Duration::from_secs(10);

/// The MPI side of one process.
#[derive(Debug)]
pub(crate) struct Mpi {
    world: Arc<MpiWorld>,
    inboxes: Arc<Inboxes>,
    /// The messages that the peers have not taken yet.
    sending: Mutex<Vec<Flying>>,
    receiving: Mutex<BTreeMap<u32, MpiSource>>,
    buffers: Mutex<Vec<Vec<u8>>>,
    stop: AtomicBool,
    /// Whether MPI is not to be called any more.
    over: RwLock<bool>,
    owner: Mutex<Option<JoinHandle<()>>>,
}

/// The messages under way from a peer, in order.
#[derive(Debug, Default)]
struct MpiSource {
    flying: VecDeque<Flying>,
    frame: Assembly,
}

/// A frame of which not all messages have come.
#[derive(Debug, Default)]
struct Assembly {
    bytes: Vec<u8>,
}

impl Mpi {
    /// Carries frames, until it is stopped.
    pub(super) fn start(world: Arc<MpiWorld>, inboxes: &Arc<Inboxes>) -> io::Result<Arc<Self>> {
        let mpi = Arc::new(Self {
            world,
            inboxes: Arc::clone(inboxes),
            sending: Mutex::default(),
            receiving: Mutex::default(),
            buffers: Mutex::default(),
            stop: AtomicBool::new(false),
            over: RwLock::new(false),
            owner: Mutex::new(None),
        });
        let serving = Arc::clone(&mpi);
        *lock_mutex(&mpi.owner) = Some(mpi.world.serve(move || serving.serve_until_left())?);
        Ok(mpi)
    }

    /// Waits until all ranks have left, and ends MPI.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(owner) = lock_mutex(&self.owner).take() {
            // A panic there is a fault of graphc; the job is over anyway.
            let _ = owner.join();
        }
    }

    /// Sends a frame of parts; it is under way when this returns.
    pub(super) fn send_frame(&self, peer: u32, parts: &[&[u8]]) -> io::Result<()> {
        let mut frames = Vec::new();
        let mut rest = parts.iter().map(|part| part.len()).sum::<usize>();
        let mut frame = self.take_buffer(rest.min(LONGEST));
        for mut part in parts.iter().copied() {
            while !part.is_empty() {
                let (now, later) = part.split_at(part.len().min(LONGEST - frame.len()));
                frame.extend_from_slice(now);
                (part, rest) = (later, rest - now.len());
                if frame.len() == LONGEST && rest > 0 {
                    let next = self.take_buffer(rest.min(LONGEST));
                    frames.push(std::mem::replace(&mut frame, next));
                }
            }
        }
        frames.push(frame);
        let over = self.over.read().unwrap_or_else(PoisonError::into_inner);
        if *over {
            return Err(io::Error::other("MPI has ended"));
        }
        // Held until all messages of the frame are on their way: no other frame comes between.
        let mut sending = lock_mutex(&self.sending);
        for frame in frames {
            let mut flying = self.world.communicator.send(frame, peer)?;
            match flying.take_if_done()? {
                Some(buffer) => self.recycle_buffer(buffer),
                None => sending.push(flying),
            }
        }
        Ok(())
    }

    /// Takes in what has come, unless somebody else is at it, and returns whether anything has.
    pub(super) fn take_arrivals(&self) -> bool {
        let Ok(mut receiving) = self.receiving.try_lock() else { return false };
        let Ok(over) = self.over.try_read() else { return false };
        if *over {
            return false;
        }
        let moved =
            self.take_frames(&mut receiving).and_then(|came| Ok(self.reclaim_sent()? || came));
        moved.unwrap_or_else(|error| {
            let (rank, line) = (self.inboxes.rank, &self.inboxes.line);
            line.fail(JobEnd::Program { reason: format!("rank {rank}: {error}") });
            false
        })
    }

    /// Takes a buffer back.
    pub(super) fn recycle_buffer(&self, buffer: Vec<u8>) {
        let mut buffers = lock_mutex(&self.buffers);
        if buffers.len() < KEPT {
            buffers.push(buffer);
        }
    }

    /// Takes an empty buffer with a capacity of so many bytes.
    fn take_buffer(&self, bytes: usize) -> Vec<u8> {
        let mut buffers = lock_mutex(&self.buffers);
        let fits = buffers.iter().rposition(|buffer| buffer.capacity() >= bytes);
        let mut buffer = fits.map(|at| buffers.swap_remove(at)).unwrap_or_default();
        drop(buffers);
        buffer.clear();
        buffer.reserve_exact(bytes);
        buffer
    }

    fn take_frames(&self, receiving: &mut BTreeMap<u32, MpiSource>) -> io::Result<bool> {
        let mut came = false;
        while let Some((peer, flying)) = self.world.communicator.receive(|n| self.take_buffer(n))? {
            receiving.entry(peer).or_default().flying.push_back(flying);
            came = true;
        }
        for (&peer, source) in receiving {
            while let Some(flying) = source.flying.front_mut() {
                let Some(message) = flying.take_if_done()? else { break };
                source.flying.pop_front();
                if let Some(frame) = source.frame.add_message(message)? {
                    self.deliver_frame(peer, frame)?;
                }
                came = true;
            }
        }
        Ok(came)
    }

    fn deliver_frame(&self, peer: u32, frame: Vec<u8>) -> io::Result<()> {
        let head = read_head(&frame)?;
        if head.is_read() {
            self.inboxes.was_read(peer, &head);
            self.recycle_buffer(frame);
            return Ok(());
        }
        self.inboxes.deliver_message(peer, &head, parse_message(&head, frame)?)
    }

    /// Takes back the buffers of what has been sent, and returns whether there were any.
    fn reclaim_sent(&self) -> io::Result<bool> {
        let Ok(mut sending) = self.sending.try_lock() else { return Ok(false) };
        let before = sending.len();
        let mut index = 0;
        while let Some(flying) = sending.get_mut(index) {
            match flying.take_if_done()? {
                Some(buffer) => {
                    self.recycle_buffer(buffer);
                    sending.swap_remove(index);
                }
                None => index += 1,
            }
        }
        Ok(sending.len() < before)
    }

    /// Does the owner's work, and returns whether all ranks have parted in order.
    fn serve_until_left(&self) -> bool {
        let mut last = Instant::now();
        while !self.stop.load(Ordering::SeqCst) {
            self.poll_or_rest(&mut last);
        }
        let parted = self.leave_in_order().unwrap_or(false);
        *self.over.write().unwrap_or_else(PoisonError::into_inner) = true;
        parted
    }

    /// Looks once, and rests where nothing has come for a while.
    fn poll_or_rest(&self, last: &mut Instant) {
        if self.take_arrivals() {
            *last = Instant::now();
        } else if last.elapsed() < SPIN {
            std::thread::yield_now();
        } else {
            std::thread::sleep(NAP);
        }
    }

    /// Serves the others, after this rank has left, until they have, too, and all messages have come. Returns whether
    /// they did.
    fn leave_in_order(&self) -> io::Result<bool> {
        let line = &self.inboxes.line;
        let mut last = Instant::now();
        let mut barrier: Option<Flying> = None;
        let mut all_left = None;
        loop {
            self.poll_or_rest(&mut last);
            if line.has_failed() {
                return Ok(false);
            }
            if line.all_have_left(self.world.size) {
                let since = *all_left.get_or_insert_with(Instant::now);
                if since.elapsed() > FAREWELL {
                    return Ok(false);
                }
            } else if line.is_cut() {
                return Ok(false);
            }
            if let Some(barrier) = &mut barrier {
                if barrier.take_if_done()?.is_some() {
                    return Ok(true);
                }
            } else if lock_mutex(&self.sending).is_empty() {
                barrier = Some(self.world.communicator.barrier()?);
            }
        }
    }
}

fn read_head(frame: &[u8]) -> io::Result<FrameHead> {
    let head = frame.first_chunk::<HEAD>();
    FrameHead::from_bytes(
        head.ok_or_else(|| io::Error::other("a message is shorter than its head"))?,
    )
}

/// Parses the message of a whole frame.
fn parse_message(head: &FrameHead, frame: Vec<u8>) -> io::Result<Received> {
    let short = || io::Error::other("a message is not as long as its head says");
    let start = (head.pieces as usize).checked_mul(8).and_then(|n| n.checked_add(HEAD));
    let start = start.filter(|&start| start <= frame.len()).ok_or_else(short)?;
    let mut message = Received::new(frame, start);
    for at in (HEAD..start).step_by(8) {
        let length = message.bytes[at..at + 8].try_into().expect("eight bytes");
        message.note_length(length)?;
    }
    if message.check_length(head)? != message.bytes.len() {
        return Err(short());
    }
    Ok(message)
}

impl Assembly {
    /// Takes the next message; gives the frame that it completes.
    fn add_message(&mut self, message: Vec<u8>) -> io::Result<Option<Vec<u8>>> {
        if self.bytes.is_empty() {
            self.bytes = message;
        } else {
            self.bytes.extend_from_slice(&message);
        }
        let length = read_head(&self.bytes)?.length.saturating_add(HEAD as u64);
        if self.bytes.len() as u64 > length {
            return Err(io::Error::other("a message is longer than its head says"));
        }
        let whole = self.bytes.len() as u64 == length;
        Ok(whole.then(|| std::mem::take(&mut self.bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::frames::frame;
    use super::*;

    #[test]
    fn a_frame_in_several_messages_is_put_together() {
        let whole = frame(&[b"one", b"", &[7; 100]]);
        for length in [HEAD, HEAD + 1, whole.len() - 1, whole.len()] {
            let mut assembly = Assembly::default();
            let frames: Vec<_> = whole
                .chunks(length)
                .filter_map(|message| assembly.add_message(message.to_vec()).expect("sound"))
                .collect();
            assert_eq!(frames, std::slice::from_ref(&whole), "in messages of {length}");
        }
        let head = read_head(&whole).expect("sound");
        let message = parse_message(&head, whole).expect("sound");
        assert_eq!(message.pieces(), [b"one".as_slice(), b"", &[7; 100]]);
    }

    #[test]
    fn what_does_not_fit_its_head_is_refused() {
        let whole = frame(&[b"one", b"two"]);
        let long = [whole.as_slice(), b"!"].concat();
        for (bytes, reason) in [(&whole[..HEAD - 1], "shorter"), (&long, "longer")] {
            let error =
                Assembly::default().add_message(bytes.to_vec()).expect_err("refused").to_string();
            assert!(error.contains(reason), "{error}");
        }
        let mut other = whole.clone();
        other[HEAD] += 1; // the length of the first piece
        let head = read_head(&other).expect("the head is sound");
        parse_message(&head, other).expect_err("the pieces are longer than the frame");
    }
}
