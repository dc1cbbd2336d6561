//! Reports of what kernels do wrong, and where.

use thiserror::Error;

use crate::code::Code;
use crate::memory::Trouble;

/// Something that a kernel must not do.
#[derive(Clone, Debug, Error, PartialEq)]
#[allow(missing_docs)]
pub enum Wrong {
    #[error("{0}")]
    Memory(#[from] Trouble),
    #[error("access of {bytes} bytes at byte {at} of shared memory, which has {size}")]
    SharedOutside { at: u64, bytes: usize, size: usize },
    #[error("read of byte {at} of shared memory, which nothing has written")]
    SharedUnwritten { at: usize },
    #[error("access to byte {at} of shared memory before the copy that brings it was waited for")]
    InFlight { at: usize },
    #[error(
        "{how} of byte {at} of shared memory races with {what} by warp {other}: a barrier is missing"
    )]
    SharedRace { at: usize, how: &'static str, other: u32, what: &'static str },
    #[error("access of {bytes} bytes at byte {at} of the thread's own memory, which has {size}")]
    LocalOutside { at: u64, bytes: usize, size: usize },
    #[error("access of {bytes} bytes at byte {at} of the arguments, which have {size}")]
    ArgumentsOutside { at: u64, bytes: usize, size: usize },
    #[error("lanes {lanes:?} of the warp write different values to the same address {address:#x}")]
    Collision { lanes: [u32; 2], address: u64 },
    #[error("members {members:#x} are named, but the lane itself is not among them")]
    NotMember { members: u32 },
    #[error("a value is taken from lane {lane}, which does not take part")]
    AbsentLane { lane: u32 },
    #[error("lanes {lanes:#x} of the warp take part in what needs all 32")]
    PartOfWarp { lanes: u32 },
    #[error(
        "threads of the block wait at different barriers: this one, and that of line {line} of the PTX: {text}"
    )]
    Barriers { line: u32, text: String },
    #[error("the block does not go on: {waiting}")]
    Stuck { waiting: String },
    #[error("trap")]
    Trap,
    #[error("a call within a call of the same function is not known to the GPU double")]
    Recursion,
    #[error("a copy of {bytes} bytes beside the kernel is not possible")]
    CopySize { bytes: usize },
    #[error("branch to place {index} of a table of {labels}")]
    Table { index: u64, labels: usize },
}

impl Wrong {
    fn code(&self) -> Code {
        match self {
            Wrong::Memory(Trouble::Misaligned { .. }) => Code::MisalignedAddress,
            Wrong::Memory(_)
            | Wrong::SharedOutside { .. }
            | Wrong::LocalOutside { .. }
            | Wrong::ArgumentsOutside { .. } => Code::IllegalAddress,
            _ => Code::LaunchFailed,
        }
    }
}

/// The account of what a kernel did wrong: which thread, and at which line of its PTX.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("kernel {kernel}, block {block:?}, thread {thread:?}, PTX line {line} `{text}`: {wrong}")]
pub struct Report {
    /// Name of the entry.
    pub kernel: String,
    /// Coordinates of the block.
    pub block: [u32; 3],
    /// Coordinates of the first thread that did it.
    pub thread: [u32; 3],
    /// Line of the PTX, from 1.
    pub line: u32,
    /// The text of that line.
    pub text: String,
    /// The fault.
    pub wrong: Wrong,
}

impl Report {
    /// The status that driver calls return from then on.
    pub fn code(&self) -> Code {
        self.wrong.code()
    }
}
