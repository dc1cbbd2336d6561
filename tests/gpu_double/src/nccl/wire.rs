//! Messages between ranks and the hub, and how they travel: a header of JSON, then bytes, each behind its length.

use std::io::{self, Read, Write};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::call::Call;

/// A message from a rank to the hub.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ToHub {
    /// The first message: who comes.
    Hello {
        /// The number of the rank.
        rank: usize,
        /// The number of ranks, as it was told.
        ranks: usize,
        /// The device that it uses, the same text for the same device.
        card: String,
    },
    /// An operation's turn has come on its stream; the bytes are what its calls give, one after another.
    Post {
        /// The operation, by a number that the rank chose.
        operation: u64,
        /// The calls, which are made at once.
        calls: Vec<Call>,
    },
    /// The rank wants to be in a new communicator.
    Split {
        /// With all ranks of this color; none if negative.
        color: i32,
        /// Its place among them.
        key: i32,
    },
    /// Streams of the rank's process have done something.
    Pulse,
    /// The rank leaves as it should.
    Goodbye,
}

/// A message from the hub to a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ToMember {
    /// All ranks are there.
    Welcome,
    /// There will be no communicator.
    Refused {
        /// Whether ranks contradict each other, or else do not come.
        usage: bool,
        /// The reason.
        reason: String,
    },
    /// An operation is done; the bytes are what its calls get, one after another.
    Done {
        /// The number of the operation.
        operation: u64,
    },
    /// No operation will be done any more.
    Broken {
        /// The reason.
        reason: String,
    },
    /// A rank is gone without a goodbye.
    Dead {
        /// The number of the rank.
        rank: usize,
    },
    /// A rank has left as it should.
    Left {
        /// The number of the rank.
        rank: usize,
    },
    /// The rank has a place after a split.
    Placed {
        /// Its new communicator; none for a rank without a color.
        place: Option<Place>,
    },
}

/// A rank's place in a communicator that comes of a split.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The name of its hub.
    pub name: String,
    /// The number of the rank.
    pub rank: usize,
    /// The number of ranks.
    pub ranks: usize,
}

/// Sends a message with its bytes.
pub fn send(stream: &mut UnixStream, message: &impl Serialize, bytes: &[u8]) -> io::Result<()> {
    let header = serde_json::to_vec(message)?;
    let mut lengths = [0; 16];
    lengths[..8].copy_from_slice(&(header.len() as u64).to_le_bytes());
    lengths[8..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    stream.write_all(&lengths)?;
    stream.write_all(&header)?;
    stream.write_all(bytes)
}

/// Waits for a message with its bytes.
pub fn receive<M: DeserializeOwned>(stream: &mut UnixStream) -> io::Result<(M, Vec<u8>)> {
    let mut lengths = [0; 16];
    stream.read_exact(&mut lengths)?;
    let length = |part: &[u8]| u64::from_le_bytes(part.try_into().expect("8 bytes")) as usize;
    let mut header = vec![0; length(&lengths[..8])];
    let mut bytes = vec![0; length(&lengths[8..])];
    stream.read_exact(&mut header)?;
    stream.read_exact(&mut bytes)?;
    Ok((serde_json::from_slice(&header)?, bytes))
}

/// Listens under a name that needs no file and ends with its listener.
pub fn listen(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&address(name)?)
}

/// Connects to who listens under a name.
pub fn connect(name: &str) -> io::Result<UnixStream> {
    UnixStream::connect_addr(&address(name)?)
}

#[cfg(target_os = "linux")]
fn address(name: &str) -> io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt;
    SocketAddr::from_abstract_name(format!("gpu-double-nccl-{name}"))
}

/// Elsewhere a name is that of a file.
#[cfg(not(target_os = "linux"))]
fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_pathname(std::env::temp_dir().join(format!("gpu-double-nccl-{name}")))
}
