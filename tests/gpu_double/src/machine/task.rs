//! Tasks of streams.

use std::ffi::c_void;

use crate::kernel::Launch;
use crate::work::Work;

/// One operation of a stream.
pub enum Task {
    /// A kernel.
    Launch(Box<Launch>),
    /// Bytes from one place to another.
    Copy(Copy),
    /// A pattern of a few bytes, written again and again.
    Fill {
        /// First address.
        to: u64,
        /// One, two or four bytes.
        pattern: Vec<u8>,
        /// The number of times.
        times: usize,
    },
    /// An event is reached, whose time is noted.
    Reach(u64),
    /// A function of the host program.
    Callback(extern "C" fn(*mut c_void), Pointer),
    /// Memory is freed, as ordered in the stream.
    Free(u64),
    /// Something of a library.
    Work(Box<dyn Work>),
    /// A place in a stream, at which nothing is done.
    Nothing,
}

/// A copy of so many bytes.
pub struct Copy {
    /// The place to which bytes go.
    pub to: End,
    /// The place from which bytes come.
    pub from: End,
    /// The number of bytes.
    pub bytes: usize,
}

/// One end of a copy.
#[derive(Clone)]
pub enum End {
    /// Memory of a card, or pinned memory.
    Memory(u64),
    /// Bytes that were taken at the call.
    Taken(Vec<u8>),
    /// Memory of the host program, which waits for the copy.
    Host(Pointer),
}

/// A pointer of the host program.
#[derive(Clone, Copy, Debug)]
pub struct Pointer(pub *mut c_void);

// SAFETY: the host program answers for what it points to; here it is only handed on.
unsafe impl Send for Pointer {}

impl Task {
    /// Returns the same task for another execution, as a replay of a graph makes it.
    pub fn again(&self) -> Task {
        match self {
            Task::Launch(launch) => Task::Launch(launch.clone()),
            Task::Copy(copy) => {
                Task::Copy(Copy { to: copy.to.clone(), from: copy.from.clone(), bytes: copy.bytes })
            }
            Task::Fill { to, pattern, times } => {
                Task::Fill { to: *to, pattern: pattern.clone(), times: *times }
            }
            Task::Reach(event) => Task::Reach(*event),
            Task::Callback(function, data) => Task::Callback(*function, *data),
            Task::Free(address) => Task::Free(*address),
            Task::Work(work) => Task::Work(work.again()),
            Task::Nothing => Task::Nothing,
        }
    }
}

impl Pointer {
    /// Writes bytes to the place in the host program's memory.
    pub fn put(&self, bytes: &[u8]) {
        // SAFETY: the caller of the copy gave a place for so many bytes, and waits until they are there.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.cast(), bytes.len()) }
    }
}
