//! TCP as the carrier of queues between processes: one connection per peer and direction, over which the frames of all
//! queues go, and a thread per connection that takes in whatever comes.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::queue::{HEAD, Head, Inboxes, Received, lock};
use super::wait::{NEWS, Waiter};
use crate::job::{Door, Member, handshake};
use crate::transport::TransportError;

/// How long a peer is tried that cannot be reached: its door may be besieged.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long one try may take.
const TRY: Duration = Duration::from_secs(5);
/// So many bytes of a message have memory before they come.
const BEGINNING: usize = 64 << 20;
/// How often a write that makes no progress looks whether the job goes on.
const LOOK: Duration = Duration::from_millis(200);

/// The TCP side of one process.
#[derive(Debug)]
pub(crate) struct Tcp {
    token: String,
    members: Vec<Member>,
    inboxes: Arc<Inboxes>,
    outgoing: Mutex<BTreeMap<u32, Arc<Mutex<TcpStream>>>>,
    /// Where the peers come in.
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
        let serve = move || host.door.serve(|stream, peer| host.admit(stream, peer));
        std::thread::Builder::new().name("tcp door".into()).spawn(serve)?;
        Ok(tcp)
    }

    /// Lets the door and the readers go.
    pub(super) fn stop(&self) {
        self.door.close();
        for stream in lock(&self.outgoing).values() {
            let _ = lock(stream).shutdown(std::net::Shutdown::Write);
        }
    }

    /// A peer has come. Where there is no thread for it the connection closes, and it comes again.
    fn admit(self: &Arc<Self>, stream: TcpStream, peer: u32) {
        let tcp = Arc::clone(self);
        let name = std::thread::Builder::new().name("tcp reader".into());
        let _ = name.spawn(move || tcp.serve(stream, peer));
    }

    fn serve(&self, mut stream: TcpStream, peer: u32) {
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
    fn take(&self, stream: &mut TcpStream, peer: u32) -> io::Result<()> {
        let mut bytes = [0; HEAD];
        stream.read_exact(&mut bytes)?;
        let head = Head::read(&bytes)?;
        if head.is_read() {
            self.inboxes.was_read(peer, &head);
            return Ok(());
        }
        let message = receive(stream, &head, self.inboxes.buffer(peer, &head))?;
        self.inboxes.deliver(peer, &head, message)
    }

    /// Connects to a peer, unless it is connected.
    pub(super) fn reach(&self, peer: u32) -> io::Result<()> {
        self.connection(peer).map(|_| ())
    }

    /// Sends a frame.
    pub(super) fn send(&self, peer: u32, parts: &[&[u8]], waiter: &Waiter) -> io::Result<()> {
        let stream = self.connection(peer)?;
        let mut parts: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut stream = lock(&stream);
        write_all(&mut stream, &mut parts, waiter)
    }

    /// The connection to a peer, made when it is first needed.
    fn connection(&self, peer: u32) -> io::Result<Arc<Mutex<TcpStream>>> {
        let mut outgoing = lock(&self.outgoing);
        if let Some(stream) = outgoing.get(&peer) {
            return Ok(Arc::clone(stream));
        }
        let stream = Arc::new(Mutex::new(self.connect(peer)?));
        outgoing.insert(peer, Arc::clone(&stream));
        Ok(stream)
    }

    fn connect(&self, peer: u32) -> io::Result<TcpStream> {
        let end = Instant::now() + PATIENCE;
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
        handshake::connect(&mut stream, &self.token, self.inboxes.rank)?;
        stream.set_write_timeout(Some(LOOK))?;
        Ok(stream)
    }
}

/// Takes in as many frames as bytes hold, as from a peer, for nobody. How many there are.
pub(in crate::transport) fn hear(mut bytes: &[u8]) -> io::Result<usize> {
    let mut frames = 0;
    while !bytes.is_empty() {
        let mut head = [0; HEAD];
        bytes.read_exact(&mut head)?;
        let head = Head::read(&head)?;
        if !head.is_read() {
            receive(&mut bytes, &head, Vec::new())?;
        }
        frames += 1;
    }
    Ok(frames)
}

/// The message that follows a head.
fn receive(stream: &mut impl Read, head: &Head, buffer: Vec<u8>) -> io::Result<Received> {
    let mut message = Received::new(buffer, 0);
    for _ in 0..head.pieces {
        let mut length = [0; 8];
        stream.read_exact(&mut length)?;
        message.note(length)?;
    }
    let length = message.check(head)?;
    fill(stream, &mut message.bytes, length)?;
    Ok(message)
}

/// Reads so many bytes. Beyond a beginning memory grows with what has come, not with what was announced.
fn fill(from: &mut impl Read, bytes: &mut Vec<u8>, length: usize) -> io::Result<()> {
    let mut filled = 0;
    // The buffer keeps what it held: only what is new is zeroed.
    bytes.truncate(length);
    while filled < length {
        let next = length.min((2 * filled).max(BEGINNING));
        bytes.try_reserve(next.saturating_sub(bytes.len())).map_err(io::Error::other)?;
        bytes.resize(next.max(bytes.len()), 0);
        from.read_exact(&mut bytes[filled..next])?;
        filled = next;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of one piece of this length, and what comes of it.
    fn frame(length: u64, bytes: &[u8]) -> Vec<u8> {
        let head = Head::of_message(1, 0, length.wrapping_add(8), 1);
        [&head.bytes()[..], &length.to_le_bytes(), bytes].concat()
    }

    #[test]
    fn messages_are_heard() {
        let frames = [frame(3, b"abc"), frame(0, b""), frame(1, b"d")].concat();
        assert_eq!(hear(&frames).expect("they are whole"), 3);
    }

    #[test]
    fn what_is_announced_takes_no_memory_before_it_comes() {
        for length in [4, 1 << 40, 1 << 62, u64::MAX - 7, u64::MAX] {
            hear(&frame(length, b"abc")).expect_err("less has come");
        }
    }

    #[test]
    fn what_a_buffer_held_does_not_count() {
        for length in [0, 2, 5] {
            let (mut buffer, from) = (vec![7; 4], [1, 2, 3, 4, 5]);
            fill(&mut &from[..length], &mut buffer, length).expect("as many have come");
            assert_eq!(buffer, from[..length]);
        }
        let long = vec![3; BEGINNING + 9];
        let mut buffer = Vec::new();
        fill(&mut &long[..], &mut buffer, long.len()).expect("as many have come");
        assert!(buffer == long);
    }
}
