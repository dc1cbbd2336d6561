//! Messages of the control plane: a JSON head and bytes, each with its length before it.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// The longest head: a roster of many thousand members.
const MAX_HEAD: u32 = 64 << 20;
/// The longest bytes.
const MAX_BYTES: u64 = 16 << 30;

/// A message between members and the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ControlMessage {
    /// A member: here I am.
    Join(Member),
    /// The coordinator: all are here.
    Roster(Vec<Member>),
    /// A member: whether it can map the memory of all members of its host.
    Ready { shares: bool },
    /// The coordinator, when all are ready: who can share memory, by rank.
    Go { shares: Vec<bool> },
    /// A member brings its part; to all, when all have brought theirs.
    Gather { key: String },
    /// The coordinator: all parts, whose lengths are given.
    Gathered { key: String, lengths: Vec<u64> },
    /// I am alive.
    Beat,
    /// A member: the job has failed, and why.
    Failed { reason: String },
    /// The coordinator: the job ends; say what you are doing.
    Ending,
    /// A member: what it was doing when it heard of the end.
    Doing { lines: Vec<String> },
    /// The coordinator: the job has ended, and the whole account.
    Ended { report: String },
    /// A member has finished its work and leaves.
    Bye,
    /// The coordinator: a member has left in order.
    Left { rank: u32 },
}

/// A member of the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    /// The address at which the others reach it; the coordinator fills it in as it sees it.
    pub(crate) address: String,
    pub(crate) port: u16,
    /// Processes with the same host name can see each other's memory.
    pub(crate) host: String,
    pub(crate) pid: u32,
    /// The file descriptor of its shared memory and how large it is.
    pub(crate) segment: Option<(i32, u64)>,
    /// The version of graphc.
    #[serde(default)]
    pub(crate) version: String,
}

/// Sends a message.
pub(crate) fn write_message(
    to: &mut impl Write,
    message: &ControlMessage,
    bytes: &[u8],
) -> io::Result<()> {
    let head = serde_json::to_vec(message).map_err(io::Error::other)?;
    let mut frame = Vec::with_capacity(head.len() + 12);
    frame.extend((head.len() as u32).to_le_bytes());
    frame.extend((bytes.len() as u64).to_le_bytes());
    frame.extend(head);
    to.write_all(&frame)?;
    to.write_all(bytes)
}

/// Receives one.
pub(crate) fn read_message(from: &mut impl Read) -> io::Result<(ControlMessage, Vec<u8>)> {
    let mut lengths = [0; 12];
    from.read_exact(&mut lengths)?;
    let head = u32::from_le_bytes(lengths[..4].try_into().expect("four bytes"));
    let bytes = u64::from_le_bytes(lengths[4..].try_into().expect("eight bytes"));
    if head > MAX_HEAD || bytes > MAX_BYTES {
        return Err(io::Error::other("a message beyond all measure"));
    }
    let head = read_exact_bytes(from, u64::from(head))?;
    let message = serde_json::from_slice(&head).map_err(io::Error::other)?;
    Ok((message, read_exact_bytes(from, bytes)?))
}

/// Reads so many bytes; memory grows with what has come, not with what was announced.
fn read_exact_bytes(from: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == length { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}
