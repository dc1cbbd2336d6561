//! TCP between processes: one connection per peer and direction, over which the messages of all queues go. A frame is a
//! head with a checksum, and bytes. A sender has as many messages under way as its queue has slots, and a thread per
//! connection takes in whatever comes; so no queue holds up another.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::wait::{HasBell, Waiter};
use crate::job::{Line, Member, handshake};
use crate::transport::TransportError;

/// The first bytes of a frame.
const MAGIC: u32 = 0x6772_6631;
/// Bytes of a frame's head: magic, kind, key, sequence, length, pieces, checksum.
const HEAD: usize = 40;
/// How many strangers may be at the door at once.
const STRANGERS: usize = 64;
/// How long the coordinator may take to say that a peer whose connection broke is dead.
const NEWS: Duration = Duration::from_secs(2);

/// How often a write that makes no progress looks whether the job goes on.
const LOOK: Duration = Duration::from_millis(200);

const DATA: u32 = 0;
/// So many messages have been read.
const READ: u32 = 1;

/// A queue: (key, peer).
type Name = (u64, u32);

/// The TCP side of one process.
#[derive(Debug)]
pub(crate) struct Tcp {
    rank: u32,
    token: String,
    members: Vec<Member>,
    line: Arc<Line>,
    bell: Arc<dyn HasBell>,
    outgoing: Mutex<BTreeMap<u32, Arc<Mutex<TcpStream>>>>,
    incoming: Mutex<BTreeMap<Name, Arc<Inbox>>>,
    /// Messages of own queues that their receivers have read.
    read: Mutex<BTreeMap<Name, Arc<AtomicU64>>>,
    strangers: AtomicUsize,
    stop: AtomicBool,
}

/// Messages that have come.
#[derive(Debug, Default)]
struct Inbox {
    messages: Mutex<VecDeque<Received>>,
    /// How many have come so far.
    filled: AtomicU64,
    /// Buffers to be used again.
    free: Mutex<Vec<Vec<u8>>>,
}

/// A message: bytes and where each of its pieces ends.
#[derive(Debug, Default)]
struct Received {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tcp {
    /// Serves the peers that connect to `listener`.
    pub(crate) fn start(
        listener: TcpListener,
        rank: u32,
        token: &str,
        members: Vec<Member>,
        line: &Arc<Line>,
        bell: Arc<dyn HasBell>,
    ) -> io::Result<Arc<Self>> {
        let tcp = Arc::new(Self {
            rank,
            token: token.to_owned(),
            members,
            line: Arc::clone(line),
            bell,
            outgoing: Mutex::default(),
            incoming: Mutex::default(),
            read: Mutex::default(),
            strangers: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        let door = Arc::clone(&tcp);
        std::thread::Builder::new().name("tcp door".into()).spawn(move || door.door(&listener))?;
        Ok(tcp)
    }

    /// Lets the door and the readers go.
    pub(crate) fn stop(&self, port: u16) {
        self.stop.store(true, Ordering::SeqCst);
        for stream in lock(&self.outgoing).values() {
            let _ = lock(stream).shutdown(std::net::Shutdown::Write);
        }
        let own = &self.members[self.rank as usize].address;
        let _ = TcpStream::connect((own.as_str(), port));
    }

    fn door(self: &Arc<Self>, listener: &TcpListener) {
        while !self.stop.load(Ordering::SeqCst) {
            let Ok((stream, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(50)); // out of descriptors, perhaps
                continue;
            };
            if self.strangers.fetch_add(1, Ordering::Relaxed) < STRANGERS {
                let tcp = Arc::clone(self);
                let name = std::thread::Builder::new().name("tcp reader".into());
                if name.spawn(move || tcp.serve(stream)).is_ok() {
                    continue;
                }
            }
            self.strangers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn serve(&self, mut stream: TcpStream) {
        let peer = handshake::accept(&mut stream, &self.token);
        self.strangers.fetch_sub(1, Ordering::Relaxed);
        // Who does not know the token is nobody of this job.
        let Ok(peer) = peer else { return };
        let reason = loop {
            match self.take(&mut stream, peer) {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        self.broken(peer, &reason);
    }

    /// A connection has broken. The coordinator knows best why; where it knows nothing, this is the reason.
    fn broken(&self, peer: u32, reason: &io::Error) {
        let begun = Instant::now();
        let known =
            || self.stop.load(Ordering::SeqCst) || self.line.is_over() || self.line.has_left(peer);
        while begun.elapsed() < NEWS {
            if known() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let (rank, reason) = (self.rank, reason.to_string());
        self.line.fail(TransportError::Broken { rank, peer, reason }.into());
    }

    /// Takes one frame in.
    fn take(&self, stream: &mut TcpStream, peer: u32) -> io::Result<()> {
        let mut bytes = [0; HEAD];
        stream.read_exact(&mut bytes)?;
        let head = Head::read(&bytes)?;
        if head.kind == READ {
            let count = self.count((head.key, peer));
            count.fetch_max(head.sequence, Ordering::Release);
        } else {
            let inbox = self.inbox((head.key, peer));
            let bytes = lock(&inbox.free).pop().unwrap_or_default();
            let mut message = Received { bytes, ends: Vec::new() };
            message.fill(stream, &head)?;
            let mut messages = lock(&inbox.messages);
            if inbox.filled.load(Ordering::Relaxed) != head.sequence {
                return Err(io::Error::other("a message is missing"));
            }
            messages.push_back(message);
            inbox.filled.fetch_add(1, Ordering::Release);
        }
        self.bell.bell().ring();
        Ok(())
    }

    fn inbox(&self, name: Name) -> Arc<Inbox> {
        Arc::clone(lock(&self.incoming).entry(name).or_default())
    }

    fn count(&self, name: Name) -> Arc<AtomicU64> {
        Arc::clone(lock(&self.read).entry(name).or_default())
    }

    /// The connection to a peer, made when it is first needed.
    fn connection(&self, peer: u32) -> Result<Arc<Mutex<TcpStream>>, TransportError> {
        let mut outgoing = lock(&self.outgoing);
        if let Some(stream) = outgoing.get(&peer) {
            return Ok(Arc::clone(stream));
        }
        let stream = self.connect(peer).map_err(|error| self.lost(peer, &error))?;
        let stream = Arc::new(Mutex::new(stream));
        outgoing.insert(peer, Arc::clone(&stream));
        Ok(stream)
    }

    fn connect(&self, peer: u32) -> io::Result<TcpStream> {
        let member = &self.members[peer as usize];
        let mut last = io::Error::other("no address");
        for _ in 0..5 {
            match TcpStream::connect((member.address.as_str(), member.port)) {
                Ok(mut stream) => {
                    handshake::connect(&mut stream, &self.token, self.rank)?;
                    stream.set_write_timeout(Some(LOOK))?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err(last)
    }

    fn lost(&self, peer: u32, error: &io::Error) -> TransportError {
        if self.line.is_over() {
            return TransportError::Ended;
        }
        TransportError::Broken { rank: self.rank, peer, reason: error.to_string() }
    }
}

/// What stands before a frame's bytes.
struct Head {
    kind: u32,
    key: u64,
    /// Number of the message, or how many have been read.
    sequence: u64,
    /// Bytes that follow, the lengths of pieces among them.
    length: u64,
    pieces: u32,
}

impl Head {
    fn bytes(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.kind.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.key.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.length.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.pieces.to_le_bytes());
        let sum = crc32fast::hash(&bytes[..36]);
        bytes[36..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn read(bytes: &[u8; HEAD]) -> io::Result<Self> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        if word(0) != MAGIC || word(36) != crc32fast::hash(&bytes[..36]) {
            return Err(io::Error::other("the head of a message is damaged"));
        }
        let (kind, key, sequence) = (word(4), long(8), long(16));
        Ok(Self { kind, key, sequence, length: long(24), pieces: word(32) })
    }
}

impl Received {
    fn fill(&mut self, stream: &mut TcpStream, head: &Head) -> io::Result<()> {
        let mut end = 0;
        for _ in 0..head.pieces {
            let mut length = [0; 8];
            stream.read_exact(&mut length)?;
            let next = usize::try_from(u64::from_le_bytes(length)).ok();
            let next = next.and_then(|length| length.checked_add(end));
            end = next.ok_or_else(|| io::Error::other("a piece beyond all measure"))?;
            self.ends.push(end);
        }
        if (end + 8 * head.pieces as usize) as u64 != head.length {
            return Err(io::Error::other("the pieces of a message are not its length"));
        }
        // The buffer keeps what it held: only what is new is zeroed.
        self.bytes.resize(end, 0);
        stream.read_exact(&mut self.bytes)
    }

    fn pieces(&self) -> Vec<&[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end]).collect()
    }
}

/// The sending end of a queue.
pub(super) struct TcpSender {
    tcp: Arc<Tcp>,
    stream: Arc<Mutex<TcpStream>>,
    read: Arc<AtomicU64>,
    waiter: Waiter,
    name: Name,
    tag: u32,
    slots: u64,
    sent: u64,
    buffer: Vec<u8>,
}

impl TcpSender {
    pub(super) fn new(
        tcp: &Arc<Tcp>,
        waiter: Waiter,
        (key, to, tag): (u64, u32, u32),
        slots: u64,
    ) -> Result<Self, TransportError> {
        let (stream, name) = (tcp.connection(to)?, (key, to));
        let (read, tcp) = (tcp.count(name), Arc::clone(tcp));
        Ok(Self { tcp, stream, read, waiter, name, tag, slots, sent: 0, buffer: Vec::new() })
    }

    /// Whether a message would be taken at once.
    pub(super) fn ready(&self) -> bool {
        self.sent.saturating_sub(self.read.load(Ordering::Acquire)) < self.slots
    }

    /// Sends a message of one piece, which `fill` writes.
    pub(super) fn send(
        &mut self,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Duration, TransportError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(bytes, 0);
        fill(&mut buffer);
        let waited = self.show(&[&buffer]);
        self.buffer = buffer;
        waited
    }

    /// Sends a message of pieces.
    pub(super) fn show(&mut self, pieces: &[&[u8]]) -> Result<Duration, TransportError> {
        let what = || format!("to read what was sent in {}", self.tag);
        let waited = self.waiter.until(self.name.1, what, || self.ready())?;
        let lengths: Vec<[u8; 8]> = pieces.iter().map(|p| (p.len() as u64).to_le_bytes()).collect();
        let length = pieces.iter().map(|piece| piece.len() as u64 + 8).sum();
        let pieces_count = pieces.len() as u32;
        let head = Head {
            kind: DATA,
            key: self.name.0,
            sequence: self.sent,
            length,
            pieces: pieces_count,
        };
        let head = head.bytes();
        let parts = std::iter::once(&head[..]).chain(lengths.iter().map(|l| &l[..]));
        let mut parts: Vec<IoSlice<'_>> =
            parts.chain(pieces.iter().copied()).map(IoSlice::new).collect();
        let sent = write_all(&mut lock(&self.stream), &mut parts, &self.waiter);
        sent.map_err(|error| self.tcp.lost(self.name.1, &error))?;
        self.sent += 1;
        Ok(waited)
    }
}

/// Writes all of it, while the job goes on and the peer takes anything.
fn write_all(
    stream: &mut TcpStream,
    mut parts: &mut [IoSlice<'_>],
    waiter: &Waiter,
) -> io::Result<()> {
    let mut progress = Instant::now();
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match stream.write_vectored(parts) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                IoSlice::advance_slices(&mut parts, written);
                progress = Instant::now();
            }
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    if !waiter.line.is_over() && progress.elapsed() < waiter.patience.timeout => {}
                _ => return Err(error),
            },
        }
    }
    Ok(())
}

/// The receiving end of a queue.
pub(super) struct TcpReceiver {
    tcp: Arc<Tcp>,
    inbox: Arc<Inbox>,
    waiter: Waiter,
    name: Name,
    tag: u32,
    read: u64,
}

impl TcpReceiver {
    pub(super) fn new(tcp: &Arc<Tcp>, waiter: Waiter, (key, from, tag): (u64, u32, u32)) -> Self {
        let (inbox, name) = (tcp.inbox((key, from)), (key, from));
        Self { tcp: Arc::clone(tcp), inbox, waiter, name, tag, read: 0 }
    }

    /// Whether a message is there.
    pub(super) fn ready(&self) -> bool {
        self.inbox.filled.load(Ordering::Acquire) > self.read
    }

    /// Lets `read` read the next message.
    pub(super) fn receive(
        &mut self,
        read: &mut dyn FnMut(&[&[u8]]),
    ) -> Result<Duration, TransportError> {
        let what = || format!("to send in {}", self.tag);
        let waited = self.waiter.until(self.name.1, what, || self.ready())?;
        let message = lock(&self.inbox.messages).pop_front().unwrap_or_default();
        read(&message.pieces());
        lock(&self.inbox.free).push(message.bytes);
        self.read += 1;
        self.acknowledge()?;
        Ok(waited)
    }

    fn acknowledge(&self) -> Result<(), TransportError> {
        let (key, peer) = self.name;
        let head = Head { kind: READ, key, sequence: self.read, length: 0, pieces: 0 };
        let stream = self.tcp.connection(peer)?;
        let head = head.bytes();
        let sent = write_all(&mut lock(&stream), &mut [IoSlice::new(&head)], &self.waiter);
        match sent {
            // A peer that has left in order needs to hear nothing.
            Err(_) if self.waiter.line.has_left(peer) => Ok(()),
            sent => sent.map_err(|error| self.tcp.lost(peer, &error)),
        }
    }
}

impl Drop for TcpReceiver {
    fn drop(&mut self) {
        lock(&self.tcp.incoming).remove(&self.name);
    }
}

impl Drop for TcpSender {
    fn drop(&mut self) {
        lock(&self.tcp.read).remove(&self.name);
    }
}
