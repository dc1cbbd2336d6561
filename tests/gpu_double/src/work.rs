//! Work of libraries on streams: what the doubles of cuBLASLt and NCCL put there.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::context;
use crate::machine::{self, Task};

pub use crate::memory::Access;

/// Operations that streams were given and that they have done.
static PROGRESS: AtomicU64 = AtomicU64::new(0);

/// A number that grows with each operation that a stream is given or has done.
pub fn progress() -> u64 {
    PROGRESS.load(Ordering::Relaxed)
}

/// A stream was given an operation, or has done one.
pub(crate) fn advance() {
    PROGRESS.fetch_add(1, Ordering::Relaxed);
}

/// Something that a stream does when all before it there is done.
pub trait Work: Send {
    /// Returns its name in messages.
    fn name(&self) -> &str;
    /// Returns its name in the account of what was executed; `None` if it has no line there.
    fn accounted(&self) -> Option<String> {
        None
    }
    /// Modelled time that it takes, besides that of an operation that does nothing.
    fn nanoseconds(&self) -> u64 {
        0
    }
    /// Does it, or a part of it, if it can. Called until it is not [`Poll::NotYet`]; other streams go on meanwhile.
    fn poll(&mut self, memory: &mut Access<'_>) -> Poll;
    /// Notes that it was appended to a stream that will do it, not to a graph: now is its place among the calls of the program.
    fn appended(&mut self) {}
    /// Returns the same work from its beginning: one for each replay of a captured graph.
    fn again(&self) -> Box<dyn Work>;
}

/// The result of a poll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Poll {
    /// It is done.
    Done,
    /// It waits for somebody else.
    NotYet,
    /// It cannot be done: why. The error is sticky, as a card's are.
    Failed(String),
}

/// Appends work to a stream, or to the graph that the stream's operations are captured into. Returns a `CUresult`.
pub fn submit(stream: *mut c_void, work: Box<dyn Work>) -> i32 {
    let name = String::from(work.name());
    machine::call(|machine| {
        let stream = machine.stream(stream as u64, context::device())?;
        machine.append(stream, Task::Work(work), name)
    })
}

/// Gives a stream nothing to do, where all that it does is nothing.
pub(crate) fn nothing(stream: *mut c_void) -> i32 {
    machine::call(|machine| {
        let stream = machine.stream(stream as u64, context::device())?;
        machine.append(stream, Task::Nothing, String::new())
    })
}

/// The card of the calling thread's context.
pub fn current_device() -> Option<i32> {
    context::device()
}

/// The card of a stream; that of the calling thread for the default stream, and -1 for what is no stream.
pub fn device_of(stream: *mut c_void) -> i32 {
    machine::with(|machine| {
        let stream = machine.stream(stream as u64, context::device());
        stream.map_or(-1, |stream| machine.device_of(stream))
    })
}
