//! Who may speak: both ends of a new connection prove that they know the job's token, without sending it
//! (HMAC-SHA256, RFC 2104, over nonces of both sides).

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The first bytes on every connection.
const MAGIC: [u8; 8] = *b"graphc\x00\x01";
const NONCE: usize = 16;
const PROOF: usize = 32;
/// How long a stranger may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Lets a connection in. Returns the rank that it claims to be, which the token vouches for.
///
/// # Errors
/// Where the other end does not know the token, is too slow, or speaks something else.
pub(crate) fn accept(stream: &mut TcpStream, token: &str) -> io::Result<u32> {
    timed(stream, |stream| {
        let mut hello = [0; MAGIC.len() + 4 + NONCE];
        stream.read_exact(&mut hello)?;
        if hello[..MAGIC.len()] != MAGIC {
            return Err(refused("it does not speak graphc's protocol"));
        }
        let own = nonce()?;
        let mut answer = own.to_vec();
        answer.extend(proof(token, b"accept", &hello, &own));
        stream.write_all(&answer)?;
        let mut theirs = [0; PROOF];
        stream.read_exact(&mut theirs)?;
        check(token, b"connect", &hello, &own, &theirs)?;
        let rank = &hello[MAGIC.len()..MAGIC.len() + 4];
        Ok(u32::from_le_bytes(rank.try_into().expect("four bytes")))
    })
}

/// Asks to be let in as `rank`.
///
/// # Errors
/// Where the other end does not know the token, is too slow, or speaks something else.
pub(crate) fn connect(stream: &mut TcpStream, token: &str, rank: u32) -> io::Result<()> {
    timed(stream, |stream| {
        let mut hello = MAGIC.to_vec();
        hello.extend(rank.to_le_bytes());
        hello.extend(nonce()?);
        stream.write_all(&hello)?;
        let mut answer = [0; NONCE + PROOF];
        stream.read_exact(&mut answer)?;
        let (theirs, shown) = answer.split_at(NONCE);
        check(token, b"accept", &hello, theirs, shown)?;
        stream.write_all(&proof(token, b"connect", &hello, theirs))
    })
}

fn timed<T>(
    stream: &mut TcpStream,
    talk: impl FnOnce(&mut TcpStream) -> io::Result<T>,
) -> io::Result<T> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let result = talk(stream)?;
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    Ok(result)
}

fn nonce() -> io::Result<[u8; NONCE]> {
    let mut bytes = [0; NONCE];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

fn mac(token: &str, side: &[u8], hello: &[u8], nonce: &[u8]) -> Hmac<Sha256> {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(token.as_bytes()).expect("a key of any length fits");
    [side, hello, nonce].iter().for_each(|part| mac.update(part));
    mac
}

fn proof(token: &str, side: &[u8], hello: &[u8], nonce: &[u8]) -> Vec<u8> {
    mac(token, side, hello, nonce).finalize().into_bytes().to_vec()
}

fn check(token: &str, side: &[u8], hello: &[u8], nonce: &[u8], shown: &[u8]) -> io::Result<()> {
    let right = mac(token, side, hello, nonce).verify_slice(shown);
    right.map_err(|_| refused("it does not know the job's token"))
}

fn refused(reason: &str) -> io::Error {
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
            let (mut stream, _) = listener.accept()?;
            accept(&mut stream, server)
        });
        let result = client(TcpStream::connect(address).expect("a connection"));
        (accepting.join().expect("no panic"), result)
    }

    #[test]
    fn who_knows_the_token_is_let_in() {
        let (rank, client) = meet("secret", |mut stream| connect(&mut stream, "secret", 7));
        assert_eq!(rank.expect("let in"), 7);
        client.expect("let in");
    }

    #[test]
    fn who_does_not_is_refused_on_both_sides() {
        let (rank, client) = meet("secret", |mut stream| connect(&mut stream, "guess", 7));
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
