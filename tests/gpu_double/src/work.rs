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

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;
    use crate::driver::{copies, graphs, memory, streams};

    /// Waits a few times, then doubles a byte.
    struct Twice {
        address: u64,
        waits: u32,
    }

    impl Work for Twice {
        fn name(&self) -> &str {
            "twice"
        }

        fn poll(&mut self, memory: &mut Access<'_>) -> Poll {
            if self.waits < 3 {
                self.waits += 1;
                return Poll::NotYet;
            }
            let doubled = memory.read(self.address, 1).map(|bytes| bytes[0] * 2);
            let written = doubled.and_then(|value| {
                memory.write(self.address, 1)?[0] = value;
                Ok(())
            });
            written.map_or_else(Poll::Failed, |()| Poll::Done)
        }

        fn again(&self) -> Box<dyn Work> {
            Box::new(Twice { address: self.address, waits: 0 })
        }
    }

    fn read(stream: *mut c_void, address: u64) -> u8 {
        let mut byte = 0u8;
        // SAFETY: a place for one byte.
        let code =
            unsafe { copies::cuMemcpyDtoHAsync_v2((&raw mut byte).cast(), address, 1, stream) };
        assert_eq!(code, 0);
        byte
    }

    #[test]
    fn work_is_done_in_its_turn_and_again_in_each_replay() {
        let (mut place, mut stream, mut address) = (null_mut(), null_mut(), 0);
        // SAFETY: places for handles and an address.
        unsafe {
            assert_eq!(context::cuDevicePrimaryCtxRetain(&mut place, 2), 0);
            assert_eq!(context::cuCtxSetCurrent(place), 0);
            assert_eq!(streams::cuStreamCreate(&mut stream, 1), 0);
            assert_eq!(memory::cuMemAlloc_v2(&mut address, 1), 0);
        }
        assert_eq!((current_device(), device_of(stream)), (Some(2), 2));
        assert_eq!(copies::cuMemsetD8Async(address, 3, 1, stream), 0);
        assert_eq!(submit(stream, Box::new(Twice { address, waits: 0 })), 0);
        assert_eq!(read(stream, address), 6);
        let (mut graph, mut executable) = (null_mut(), null_mut());
        assert_eq!(streams::cuStreamBeginCapture_v2(stream, 1), 0);
        assert_eq!(submit(stream, Box::new(Twice { address, waits: 2 })), 0);
        // SAFETY: places for handles.
        unsafe {
            assert_eq!(streams::cuStreamEndCapture(stream, &mut graph), 0);
            assert_eq!(graphs::cuGraphInstantiateWithFlags(&mut executable, graph, 0), 0);
        }
        assert_eq!(read(stream, address), 6);
        assert_eq!(graphs::cuGraphLaunch(executable, stream), 0);
        assert_eq!(graphs::cuGraphLaunch(executable, stream), 0);
        assert_eq!(read(stream, address), 24);
    }
}
