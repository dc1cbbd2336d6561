//! A port for a job that nobody has given one.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Ports that Linux gives to no socket on its own: those begin at 32,768 (`net.ipv4.ip_local_port_range`).
const PORTS: Range<u16> = 15_000..32_000;

/// Finds a port of this host at which nobody listens, for a rank 0 that will listen there soon
/// ([`JobOptions::from_url`]).
///
/// It is none that the system would give to another socket in between, and this process gets each once. Two processes that
/// ask at the same time begin their search at random, so that both get the same one hardly ever.
///
/// # Errors
///
/// When no port is free, or this host lets nobody listen.
///
/// [`JobOptions::from_url`]: super::JobOptions::from_url
pub fn free_port() -> io::Result<u16> {
    static NEXT: LazyLock<AtomicU64> =
        LazyLock::new(|| AtomicU64::new(u64::from(RandomState::new().hash_one(()) as u32)));
    for _ in PORTS {
        let at = NEXT.fetch_add(1, Ordering::Relaxed) % PORTS.len() as u64;
        let port = PORTS.start + at as u16;
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => return Ok(port),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, format!("all ports of {PORTS:?} are in use")))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ports_are_distinct_and_nobody_listens_there() {
        let (mut seen, mut held) = (HashSet::new(), Vec::new());
        for _ in 0..50 {
            let port = free_port().expect("a port");
            assert!(PORTS.contains(&port) && seen.insert(port), "{port}");
            held.push(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("nobody listens"));
        }
    }
}
