//! The door of a process: where connections come in, those of the job and those of strangers.
//!
//! One thread speaks with all who have not shown yet that they know the job's token, and waits for none of them. Whoever
//! is silent, slow or speaks nonsense is sent away after 5 seconds, or sooner where others come. So strangers take no
//! threads, hold up nobody, and take no place for long.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::handshake::{ENTRY_PATIENCE, Guest};

/// The most guests that may stand at the door at once: each takes a file descriptor.
const GUESTS: usize = 256;
/// The most guests that come in before those at the door are listened to again.
const AT_ONCE: usize = 32;
/// The time after which the door looks whether it is to close.
const LOOK: Duration = Duration::from_secs(1);
/// The time that it waits where the system gives no descriptor.
const PAUSE: Duration = Duration::from_millis(20);

/// A door.
#[derive(Debug)]
pub(crate) struct Door {
    listener: TcpListener,
    address: SocketAddr,
    token: String,
    /// The time that a handshake may take.
    patience: Duration,
    closing: AtomicBool,
}

impl Door {
    /// Lets those in who come to `listener` and know the token, once it is served.
    pub(crate) fn new(listener: TcpListener, token: &str) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let (address, token) = (listener.local_addr()?, token.to_owned());
        let (patience, closing) = (ENTRY_PATIENCE, AtomicBool::new(false));
        Ok(Self { listener, address, token, patience, closing })
    }

    /// Returns the address of the door.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether nobody is let in any more.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Lets [`Door::serve`] return.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        // A connection wakes it; an address of all interfaces is reached by the loopback.
        let mut address = self.address;
        if address.ip().is_unspecified() {
            address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        }
        let _ = TcpStream::connect_timeout(&address, LOOK);
    }

    /// Calls `admit` with each connection that has shown the token, and with the rank that it vouches for, until the door
    /// is closed.
    pub(crate) fn serve(&self, mut admit: impl FnMut(TcpStream, u32)) {
        let mut guests = Vec::new();
        while !self.is_closing() {
            let speaking = self.wait_for_guests(&guests);
            guests = self.hear_guests(guests, &speaking, &mut admit);
            self.take_in_guests(&mut guests);
        }
    }

    /// Waits until somebody comes or speaks, or the time of one is over, and returns who speaks.
    fn wait_for_guests(&self, guests: &[Guest]) -> Vec<bool> {
        let now = Instant::now();
        let times = guests.iter().map(|guest| guest.deadline().saturating_duration_since(now));
        let patience = times.min().unwrap_or(LOOK).min(LOOK);
        let timeout = Timespec::try_from(patience).unwrap_or_default();
        let streams = guests.iter().map(|guest| PollFd::new(guest.stream(), PollFlags::IN));
        let listener = PollFd::new(&self.listener, PollFlags::IN);
        let mut all: Vec<PollFd<'_>> = std::iter::once(listener).chain(streams).collect();
        match poll(&mut all, Some(&timeout)) {
            Ok(_) => all[1..].iter().map(|one| !one.revents().is_empty()).collect(),
            // Interrupted, perhaps: all are looked at.
            Err(_) => vec![true; guests.len()],
        }
    }

    /// Hears those who speak; who is let in or sent away is not among the guests that are returned.
    fn hear_guests(
        &self,
        guests: Vec<Guest>,
        speaking: &[bool],
        admit: &mut impl FnMut(TcpStream, u32),
    ) -> Vec<Guest> {
        let now = Instant::now();
        let mut remain = Vec::with_capacity(guests.len());
        for (mut guest, &speaks) in guests.into_iter().zip(speaking) {
            let heard = if speaks { guest.receive_hello(&self.token) } else { Ok(None) };
            match heard {
                Ok(Some(rank)) => {
                    // A connection that the system cannot keep is closed, and its peer comes again.
                    if let Ok(stream) = guest.into_stream() {
                        admit(stream, rank);
                    }
                }
                Ok(None) if now < guest.deadline() => remain.push(guest),
                // Late, or nobody of this job.
                _ => {}
            }
        }
        remain
    }

    /// Takes in those who have come. Where the door is full those go who have said nothing for longest.
    fn take_in_guests(&self, guests: &mut Vec<Guest>) {
        for _ in 0..AT_ONCE {
            match self.listener.accept() {
                Ok((stream, _)) => guests.extend(Guest::new(stream, self.patience).ok()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // It has gone already.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => {
                    // Out of descriptors, perhaps.
                    make_room(guests);
                    return std::thread::sleep(PAUSE);
                }
            }
            if guests.len() > GUESTS {
                make_room(guests);
            }
        }
    }
}

/// Sends one away: the first of those who have not said hello, or of all.
fn make_room(guests: &mut Vec<Guest>) {
    let silent = guests.iter().position(|guest| !guest.has_greeted());
    if !guests.is_empty() {
        guests.remove(silent.unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::super::handshake::request_entry;
    use super::*;

    /// Runs `work` beside a door of token `secret`, with its address. The ranks that were let in.
    fn beside(work: impl FnOnce(SocketAddr)) -> Vec<u32> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let door = Door::new(listener, "secret").expect("a door");
        // Nobody goes because the machine is busy.
        let door = Arc::new(Door { patience: Duration::from_secs(600), ..door });
        let (sender, admitted) = channel();
        let serving = std::thread::spawn({
            let door = Arc::clone(&door);
            move || door.serve(|_, rank| sender.send(rank).expect("the test listens"))
        });
        work(door.address());
        door.close();
        serving.join().expect("no panic");
        admitted.iter().collect()
    }

    fn come(address: SocketAddr, token: &str, rank: u32) -> io::Result<()> {
        let mut stream = TcpStream::connect(address)?;
        request_entry(&mut stream, token, rank)?;
        // Let in: nobody hangs up before the test does. The test's door drops what it is given.
        assert_eq!(stream.read(&mut [0])?, 0);
        Ok(())
    }

    #[test]
    fn strangers_take_nobodys_place() {
        let mut strangers = Vec::new();
        let ranks = beside(|address| {
            // More than there is room for, silent and half-spoken, and all of them stay.
            for number in 0..3 * GUESTS {
                let mut stream = TcpStream::connect(address).expect("there is a door");
                let part = &b"graphc\x00\x01\x00\x00"[..number % 11 % 10];
                stream.write_all(part).expect("room for a few bytes");
                strangers.push(stream);
                if number % GUESTS == 0 {
                    come(address, "secret", (number / GUESTS) as u32).expect("let in");
                    come(address, "guess", 9).expect_err("sent away");
                }
            }
            come(address, "secret", 3).expect("let in");
        });
        assert_eq!(ranks, [0, 1, 2, 3]);
    }

    #[test]
    fn who_has_said_hello_goes_last() {
        let mut hello = b"graphc\x00\x01\x07\x00\x00\x00".to_vec();
        hello.extend([3; 16]);
        let ranks = beside(|address| {
            let mut early = TcpStream::connect(address).expect("there is a door");
            early.write_all(&hello).expect("room for a few bytes");
            let mut answer = [0; 48];
            early.read_exact(&mut answer).expect("it was heard");
            let strangers: Vec<_> = (0..2 * GUESTS).map(|_| TcpStream::connect(address)).collect();
            assert!(strangers.iter().all(Result::is_ok));
            // The first of them was sent away.
            let mut first = strangers.into_iter().next().and_then(Result::ok).expect("it came");
            assert_eq!(first.read(&mut [0]).expect("it hears the end"), 0);
            early.set_nonblocking(true).expect("a socket");
            let kept = early.read(&mut [0]).expect_err("nobody has hung up");
            assert_eq!(kept.kind(), io::ErrorKind::WouldBlock);
        });
        assert!(ranks.is_empty(), "{ranks:?}");
    }
}
