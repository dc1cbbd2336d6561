//! The handshake of a new connection: both ends prove that they know the job's token, without sending it (HMAC-SHA256,
//! RFC 2104, over nonces of both sides). Nothing else is read before.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The first bytes on every connection.
const MAGIC: [u8; 8] = *b"graphc\x00\x01";
const NONCE: usize = 16;
const PROOF: usize = 32;
/// The bytes of a hello: magic, rank and nonce.
const HELLO: usize = MAGIC.len() + 4 + NONCE;
/// The time that a handshake may take, all of it.
pub(crate) const ENTRY_PATIENCE: Duration = Duration::from_secs(5);

/// Somebody at the door, who may be a stranger. Nothing here waits.
#[derive(Debug)]
pub(crate) struct Guest {
    stream: TcpStream,
    until: Instant,
    heard: Vec<u8>,
    /// The nonce for which it is to give proof, once it has said hello.
    asked: Option<[u8; NONCE]>,
}

impl Guest {
    /// Begins with a guest that has just come, and may take so long.
    pub(crate) fn new(stream: TcpStream, patience: Duration) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let until = Instant::now() + patience;
        Ok(Self { stream, until, heard: Vec::new(), asked: None })
    }

    /// Returns its connection.
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Returns the time when its patience is over.
    pub(crate) fn deadline(&self) -> Instant {
        self.until
    }

    /// Whether it has said hello as a process of graphc does.
    pub(crate) fn has_greeted(&self) -> bool {
        self.asked.is_some()
    }

    /// Takes in what has come. Returns the rank that it claims to be, once it has shown that it knows the token, which vouches
    /// for it.
    ///
    /// # Errors
    /// Where it does not know the token, hangs up, or speaks something else.
    pub(crate) fn receive_hello(&mut self, token: &str) -> io::Result<Option<u32>> {
        let mut buffer = [0; HELLO + PROOF];
        loop {
            let wanted = if self.has_greeted() { HELLO + PROOF } else { HELLO };
            // Nothing beyond is read: it belongs to whom the connection is given.
            let room = &mut buffer[..wanted - self.heard.len()];
            match self.stream.read(room) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.heard.extend_from_slice(&room[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if let Some(rank) = self.answer_hello(token)? {
                return Ok(Some(rank));
            }
        }
    }

    fn answer_hello(&mut self, token: &str) -> io::Result<Option<u32>> {
        let start = self.heard.len().min(MAGIC.len());
        if self.heard[..start] != MAGIC[..start] {
            return Err(refusal_error("it does not speak graphc's protocol"));
        }
        let (hello, shown) = self.heard.split_at(self.heard.len().min(HELLO));
        match self.asked {
            None if hello.len() == HELLO => {
                let own = random_nonce()?;
                let mut answer = own.to_vec();
                answer.extend(compute_proof(token, b"accept", hello, &own));
                // A new connection has room for it.
                self.stream.write_all(&answer)?;
                self.asked = Some(own);
                Ok(None)
            }
            Some(own) if shown.len() == PROOF => {
                check_proof(token, b"connect", hello, &own, shown)?;
                let rank = &hello[MAGIC.len()..MAGIC.len() + 4];
                Ok(Some(u32::from_le_bytes(rank.try_into().expect("four bytes"))))
            }
            _ => Ok(None),
        }
    }

    /// Returns the connection of who was let in.
    pub(crate) fn into_stream(self) -> io::Result<TcpStream> {
        self.stream.set_nonblocking(false)?;
        Ok(self.stream)
    }
}

/// Asks to be let in as `rank`.
///
/// # Errors
/// Where the other end does not know the token, is too slow, or speaks something else.
pub(crate) fn request_entry(stream: &mut TcpStream, token: &str, rank: u32) -> io::Result<()> {
    let until = Instant::now() + ENTRY_PATIENCE;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(ENTRY_PATIENCE))?;
    let mut hello = MAGIC.to_vec();
    hello.extend(rank.to_le_bytes());
    hello.extend(random_nonce()?);
    stream.write_all(&hello)?;
    let mut answer = [0; NONCE + PROOF];
    read_until(stream, &mut answer, until)?;
    let (theirs, shown) = answer.split_at(NONCE);
    check_proof(token, b"accept", &hello, theirs, shown)?;
    stream.write_all(&compute_proof(token, b"connect", &hello, theirs))?;
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)
}

/// Fills `bytes` before a moment, however they trickle in.
fn read_until(stream: &mut TcpStream, mut bytes: &mut [u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => bytes = &mut bytes[read..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn random_nonce() -> io::Result<[u8; NONCE]> {
    let mut bytes = [0; NONCE];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

fn compute_mac(token: &str, side: &[u8], hello: &[u8], nonce: &[u8]) -> Hmac<Sha256> {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(token.as_bytes()).expect("a key of any length fits");
    [side, hello, nonce].iter().for_each(|part| mac.update(part));
    mac
}

fn compute_proof(token: &str, side: &[u8], hello: &[u8], nonce: &[u8]) -> Vec<u8> {
    compute_mac(token, side, hello, nonce).finalize().into_bytes().to_vec()
}

fn check_proof(
    token: &str,
    side: &[u8],
    hello: &[u8],
    nonce: &[u8],
    shown: &[u8],
) -> io::Result<()> {
    let right = compute_mac(token, side, hello, nonce).verify_slice(shown);
    right.map_err(|_| refusal_error("it does not know the job's token"))
}

fn refusal_error(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn meet(
        server: &'static str,
        client: impl FnOnce(TcpStream) -> io::Result<()>,
    ) -> (io::Result<u32>, io::Result<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let accepting = std::thread::spawn(move || {
            let mut guest = Guest::new(listener.accept()?.0, ENTRY_PATIENCE)?;
            loop {
                if let Some(rank) = guest.receive_hello(server)? {
                    return Ok(rank);
                }
                std::thread::yield_now();
            }
        });
        let result = client(TcpStream::connect(address).expect("a connection"));
        (accepting.join().expect("no panic"), result)
    }

    #[test]
    fn who_knows_the_token_is_let_in() {
        let (rank, client) = meet("secret", |mut stream| request_entry(&mut stream, "secret", 7));
        assert_eq!(rank.expect("let in"), 7);
        client.expect("let in");
    }

    #[test]
    fn who_does_not_is_refused_on_both_sides() {
        let (rank, client) = meet("secret", |mut stream| request_entry(&mut stream, "guess", 7));
        rank.expect_err("refused");
        let message = client.expect_err("refused").to_string();
        assert!(message.contains("token"), "{message}");
    }

    #[test]
    fn noise_is_refused() {
        let (rank, _) = meet("secret", |mut stream| stream.write_all(&[0xa5; 4096]));
        let message = rank.expect_err("refused").to_string();
        assert!(message.contains("protocol"), "{message}");
    }
}
