//! TCP as the carrier of queues between processes: one connection per peer and direction, over which the frames of all
//! queues go, and a thread per connection that takes in whatever comes.
//!
//! Behind the bytes of a message stands their checksum, because TCP's own, of 16 bits, misses some damage, and what
//! stands between two hosts makes it anew. It is taken of a part of the bytes right before they are written and right
//! after they were read, while a cache has them.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crc32fast::Hasher;

use graphc_host::threads;

use super::frames::{FrameHead, HEAD, Inboxes, Received, lock_mutex};
use super::wait::{NEWS, Waiter};
use crate::control::{Door, Member, handshake};
use crate::standstill::WaitingTime;
use crate::transport::TransportError;

/// The time for which a peer is tried that cannot be reached: its door may be besieged.
const REACH_PATIENCE: Duration = Duration::from_secs(30);
/// The longest time of one try.
const TRY: Duration = Duration::from_secs(5);
/// Bytes that are written or read at once, and summed.
const AT_ONCE: usize = 256 << 10;
/// Bytes of a checksum.
const SUM: usize = 4;
/// The bytes of a message that have memory before they come.
const BEGINNING: usize = 64 << 20;
/// The time after which a write that makes no progress looks whether the job goes on.
const LOOK: Duration = Duration::from_millis(200);

/// The TCP side of one process.
#[derive(Debug)]
pub(crate) struct Tcp {
    token: String,
    members: Vec<Member>,
    inboxes: Arc<Inboxes>,
    outgoing: Mutex<BTreeMap<u32, Arc<Mutex<TcpStream>>>>,
    /// The listener to which peers connect.
    door: Door,
}

impl Tcp {
    /// Serves the peers that connect to `listener`.
    pub(super) fn start(
        listener: TcpListener,
        token: &str,
        members: Vec<Member>,
        inboxes: &Arc<Inboxes>,
    ) -> io::Result<Arc<Self>> {
        let tcp = Arc::new(Self {
            token: token.to_owned(),
            members,
            inboxes: Arc::clone(inboxes),
            outgoing: Mutex::default(),
            door: Door::new(listener, token)?,
        });
        let host = Arc::clone(&tcp);
        let serve = move || host.door.serve(|stream, peer| host.admit_peer(stream, peer));
        threads::start_thread("tcp door", serve)?;
        Ok(tcp)
    }

    /// Lets the door and the readers go.
    pub(super) fn stop(&self) {
        self.door.close();
        for stream in lock_mutex(&self.outgoing).values() {
            let _ = lock_mutex(stream).shutdown(std::net::Shutdown::Write);
        }
    }

    /// Admits a peer. Where there is no thread for it the job ends.
    fn admit_peer(self: &Arc<Self>, stream: TcpStream, peer: u32) {
        let tcp = Arc::clone(self);
        let reading =
            threads::start_thread("tcp reader", move || tcp.serve_connection(stream, peer));
        if let Err(error) = reading {
            let (rank, reason) = (self.inboxes.rank, error.to_string());
            self.inboxes.line.fail(TransportError::Broken { rank, peer, reason }.into());
        }
    }

    fn serve_connection(&self, mut stream: TcpStream, peer: u32) {
        let reason = loop {
            match self.take_frame(&mut stream, peer) {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        self.report_broken(peer, &reason);
    }

    /// Reports a connection that has broken. The coordinator knows best why; where it knows nothing, this is the
    /// reason.
    fn report_broken(&self, peer: u32, reason: &io::Error) {
        let (begun, line) = (Instant::now(), &self.inboxes.line);
        let known = || self.door.is_closing() || line.is_over() || line.has_left(peer);
        while begun.elapsed() < NEWS {
            if known() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let (rank, reason) = (self.inboxes.rank, reason.to_string());
        line.fail(TransportError::Broken { rank, peer, reason }.into());
    }

    /// Takes one frame in.
    fn take_frame(&self, stream: &mut TcpStream, peer: u32) -> io::Result<()> {
        let mut bytes = [0; HEAD];
        stream.read_exact(&mut bytes)?;
        let head = FrameHead::from_bytes(&bytes)?;
        if head.is_read() {
            self.inboxes.was_read(peer, &head);
            return Ok(());
        }
        let message = receive_message(stream, &head, self.inboxes.take_buffer(peer, &head))?;
        let message = message.ok_or_else(|| {
            let channel = self.inboxes.describe_channel(peer, &head);
            io::Error::other(format!(
                "a message {channel} was damaged on its way: its checksum does not fit, which a fault of the network or of a \
                 machine's memory does"
            ))
        })?;
        self.inboxes.deliver_message(peer, &head, message)
    }

    /// Connects to a peer, unless it is connected.
    pub(super) fn reach_peer(&self, peer: u32) -> io::Result<()> {
        self.connection(peer).map(|_| ())
    }

    /// Sends a frame.
    pub(super) fn send_frame(&self, peer: u32, parts: &[&[u8]], waiter: &Waiter) -> io::Result<()> {
        let stream = self.connection(peer)?;
        let mut stream = lock_mutex(&stream);
        write_summed(parts, |parts| {
            let mut parts: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
            write_all(&mut stream, &mut parts, waiter)
        })
    }

    /// Returns the connection to a peer, made when it is first needed.
    fn connection(&self, peer: u32) -> io::Result<Arc<Mutex<TcpStream>>> {
        let mut outgoing = lock_mutex(&self.outgoing);
        if let Some(stream) = outgoing.get(&peer) {
            return Ok(Arc::clone(stream));
        }
        let stream = Arc::new(Mutex::new(self.connect_peer(peer)?));
        outgoing.insert(peer, Arc::clone(&stream));
        Ok(stream)
    }

    fn connect_peer(&self, peer: u32) -> io::Result<TcpStream> {
        let end = Instant::now() + REACH_PATIENCE;
        loop {
            let error = match self.try_connect(peer) {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            let refused = error.kind() == io::ErrorKind::PermissionDenied;
            let line = &self.inboxes.line;
            if refused || line.is_over() || line.has_left(peer) || Instant::now() > end {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn try_connect(&self, peer: u32) -> io::Result<TcpStream> {
        let member = &self.members[peer as usize];
        let mut addresses = (member.address.as_str(), member.port).to_socket_addrs()?;
        let address = addresses.next().ok_or_else(|| io::Error::other("no address"))?;
        let mut stream = TcpStream::connect_timeout(&address, TRY)?;
        handshake::request_entry(&mut stream, &self.token, self.inboxes.rank)?;
        stream.set_write_timeout(Some(LOOK))?;
        Ok(stream)
    }
}

/// Writes a head and the parts of a message, which is summed; behind a head alone stands nothing.
fn write_summed(
    parts: &[&[u8]],
    mut write: impl FnMut(&[&[u8]]) -> io::Result<()>,
) -> io::Result<()> {
    let Some((head, message)) = parts.split_first().filter(|(_, message)| !message.is_empty())
    else {
        return write(parts);
    };
    let (mut sum, mut hasher) = ([0; SUM], Hasher::new());
    let (mut together, mut bytes) = (vec![*head], 0);
    for part in message.iter().flat_map(|part| part.chunks(AT_ONCE)) {
        if bytes + part.len() > AT_ONCE {
            write(&together)?;
            (bytes, together) = (0, Vec::new());
        }
        hasher.update(part);
        bytes += part.len();
        together.push(part);
    }
    sum.copy_from_slice(&hasher.finalize().to_le_bytes());
    together.push(&sum);
    write(&together)
}

/// Takes in as many frames as bytes hold, as from a peer, for nobody. How many there are.
pub(in crate::transport) fn count_frames(mut bytes: &[u8]) -> io::Result<usize> {
    let mut frames = 0;
    while !bytes.is_empty() {
        let mut head = [0; HEAD];
        bytes.read_exact(&mut head)?;
        let head = FrameHead::from_bytes(&head)?;
        if !head.is_read() {
            let damaged = || io::Error::new(io::ErrorKind::InvalidData, "a damaged message");
            receive_message(&mut bytes, &head, Vec::new())?.ok_or_else(damaged)?;
        }
        frames += 1;
    }
    Ok(frames)
}

/// Receives the message that follows a head; `None` where it is not what was sent.
fn receive_message(
    stream: &mut impl Read,
    head: &FrameHead,
    buffer: Vec<u8>,
) -> io::Result<Option<Received>> {
    let mut message = Received::new(buffer, 0);
    let mut hasher = Hasher::new();
    for _ in 0..head.pieces {
        let mut length = [0; 8];
        stream.read_exact(&mut length)?;
        hasher.update(&length);
        message.note_length(length)?;
    }
    let length = message.check_length(head)?;
    if head.pieces == 0 {
        message.bytes.clear();
        return Ok(Some(message));
    }
    let (end, mut left) = (length.saturating_add(SUM), length);
    fill_buffer(stream, &mut message.bytes, end, |part| {
        let own = part.len().min(left);
        hasher.update(&part[..own]);
        left -= own;
    })?;
    let is_whole = message.bytes[length..] == hasher.finalize().to_le_bytes();
    message.bytes.truncate(length);
    Ok(is_whole.then_some(message))
}

/// Reads so many bytes, and shows each part that has come. Beyond a beginning memory grows with what has come, not with
/// what was announced.
fn fill_buffer(
    from: &mut impl Read,
    bytes: &mut Vec<u8>,
    length: usize,
    mut show: impl FnMut(&[u8]),
) -> io::Result<()> {
    let mut filled = 0;
    // The buffer keeps what it held: only what is new is zeroed.
    bytes.truncate(length);
    while filled < length {
        let room = length.min((2 * filled).max(BEGINNING));
        bytes.try_reserve(room.saturating_sub(bytes.len())).map_err(io::Error::other)?;
        bytes.resize(room.max(bytes.len()), 0);
        while filled < room {
            let part = &mut bytes[filled..(filled + AT_ONCE).min(room)];
            from.read_exact(part)?;
            show(part);
            filled += part.len();
        }
    }
    Ok(())
}

/// Writes all of it, while the job goes on and the peer takes anything.
fn write_all(
    stream: &mut TcpStream,
    mut parts: &mut [IoSlice<'_>],
    waiter: &Waiter,
) -> io::Result<()> {
    let patience = waiter.patience.timeout;
    let mut progress = WaitingTime::begin(patience);
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match stream.write_vectored(parts) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                IoSlice::advance_slices(&mut parts, written);
                progress = WaitingTime::begin(patience);
            }
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    if !waiter.line.is_over() && progress.elapsed() < patience => {}
                _ => return Err(error),
            },
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::frames::frame;
    use super::*;

    /// Returns the bytes that are written of a message of pieces.
    fn written(pieces: &[&[u8]]) -> Vec<u8> {
        let lengths: Vec<[u8; 8]> = pieces.iter().map(|p| (p.len() as u64).to_le_bytes()).collect();
        let whole = frame(pieces);
        let parts = std::iter::once(&whole[..HEAD]).chain(lengths.iter().map(|l| &l[..]));
        let parts: Vec<&[u8]> = parts.chain(pieces.iter().copied()).collect();
        let mut bytes = Vec::new();
        let write = |parts: &[&[u8]]| {
            bytes.extend(parts.concat());
            Ok(())
        };
        write_summed(&parts, write).expect("memory takes all");
        assert!(bytes.starts_with(&whole) && bytes.len() <= whole.len() + SUM);
        bytes
    }

    /// Reads the pieces from these bytes.
    fn read(mut bytes: &[u8]) -> io::Result<Option<Vec<Vec<u8>>>> {
        let (head, rest) = bytes.split_first_chunk().expect("a head");
        bytes = rest;
        // A buffer that held another message.
        let message = receive_message(&mut bytes, &FrameHead::from_bytes(head)?, vec![7; 50])?;
        assert!(bytes.is_empty(), "all of it is read");
        Ok(message.map(|message| message.pieces().into_iter().map(<[u8]>::to_vec).collect()))
    }

    #[test]
    fn messages_of_all_lengths_come_as_they_were_sent() {
        let long: Vec<u8> = (0..3 * AT_ONCE + 9).map(|at| (at % 251) as u8).collect();
        for length in [0, 1, 9, AT_ONCE - SUM, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, long.len()] {
            for pieces in [&[&long[..length]][..], &[&long[..length], &[], &long[..100]]] {
                let found = read(&written(pieces)).expect("all is there").expect("undamaged");
                assert!(found == pieces, "{length} bytes of {} pieces", pieces.len());
            }
        }
        assert_eq!(read(&written(&[])).expect("a head"), Some(vec![]));
    }

    #[test]
    fn every_bit_that_is_another_one_is_noticed() {
        let right = written(&[b"some numbers", b"", b"and more of them"]);
        for bit in 0..8 * right.len() {
            let mut changed = right.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let found = read(&changed);
            assert!(!matches!(found, Ok(Some(_))), "bit {bit}: {found:?}");
        }
    }

    #[test]
    fn messages_are_heard() {
        let frames = [written(&[b"abc"]), written(&[b""]), written(&[b"d"])].concat();
        assert_eq!(count_frames(&frames).expect("they are whole"), 3);
    }

    #[test]
    fn a_head_of_another_kind_is_refused() {
        let mut head = FrameHead::of_read(1, 0).to_bytes();
        head[4..8].copy_from_slice(&9_u32.to_le_bytes());
        let sum = crc32fast::hash(&head[..HEAD - SUM]);
        head[HEAD - SUM..].copy_from_slice(&sum.to_le_bytes());
        let error = count_frames(&head).expect_err("no message is of it").to_string();
        assert!(error.contains("of the kind 9"), "{error}");
    }

    #[test]
    fn what_is_announced_takes_no_memory_before_it_comes() {
        for length in [4_u64, 1 << 40, 1 << 62, u64::MAX - 7, u64::MAX] {
            let head = FrameHead::of_message(1, 0, length.wrapping_add(8), 1);
            let frame = [&head.to_bytes()[..], &length.to_le_bytes(), b"abc"].concat();
            count_frames(&frame).expect_err("less has come");
        }
    }

    #[test]
    fn what_a_buffer_held_does_not_count() {
        for length in [0, 2, 5] {
            let (mut buffer, from) = (vec![7; 4], [1, 2, 3, 4, 5]);
            fill_buffer(&mut &from[..length], &mut buffer, length, |_| ())
                .expect("as many have come");
            assert_eq!(buffer, from[..length]);
        }
        let long = vec![3; BEGINNING + 9];
        let (mut buffer, mut bytes) = (Vec::new(), 0);
        let count = |part: &[u8]| bytes += part.len();
        fill_buffer(&mut &long[..], &mut buffer, long.len(), count).expect("as many have come");
        assert!(buffer == long && bytes == long.len());
    }
}
