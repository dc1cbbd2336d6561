//! Troubles: what may be wrong with an access to memory.

use thiserror::Error;

/// An access that a program must not make. Texts name addresses, allocations and the other operation.
#[derive(Clone, Debug, Error, PartialEq)]
#[allow(missing_docs)]
pub enum Trouble {
    /// No allocation has all of the bytes.
    #[error("access of {bytes} bytes at {address:#x} is outside of all allocations{near}")]
    Outside { address: u64, bytes: usize, near: String },
    /// The allocation was freed.
    #[error(
        "access of {bytes} bytes at {address:#x}, byte {offset} of {allocation}, which was freed"
    )]
    Freed { address: u64, bytes: usize, offset: u64, allocation: String },
    /// The address is no multiple of the size.
    #[error("access of {bytes} bytes at {address:#x} is misaligned")]
    Misaligned { address: u64, bytes: usize },
    /// The bytes were never written.
    #[error(
        "read of {bytes} bytes at {address:#x}, byte {offset} of {allocation}, that nothing has written"
    )]
    Unwritten { address: u64, bytes: usize, offset: u64, allocation: String },
    /// Memory of another card, without a copy between cards.
    #[error("access at {address:#x} from device {device}, but {allocation} is not there")]
    OtherDevice { address: u64, device: i32, allocation: String },
    /// Another thread of the same launch touched the bytes, and nothing orders the two.
    #[error(
        "{how} of {bytes} bytes at {address:#x}, byte {offset} of {allocation}, races with {other} of the same launch"
    )]
    Race {
        how: &'static str,
        address: u64,
        bytes: usize,
        offset: u64,
        allocation: String,
        other: String,
    },
    /// Another operation touched the bytes, and nothing orders the two.
    #[error(
        "{how} of {bytes} bytes at {address:#x}, byte {offset} of {allocation}, is not ordered after {what} by {other}: an event or a synchronization is missing"
    )]
    Unordered {
        how: &'static str,
        what: &'static str,
        address: u64,
        bytes: usize,
        offset: u64,
        allocation: String,
        other: String,
    },
}
