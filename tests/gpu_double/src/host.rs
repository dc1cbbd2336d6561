//! What a host program does with a card, as functions of Rust: for tests of libraries in the process of the test.
//! Numbers that are returned are `CUresult`s; addresses and streams are those of the driver's functions of C.

use std::ffi::c_void;

use crate::code::Code;
use crate::driver::context;
use crate::machine::{self, CaptureMode, Copy, End, Pointer, Task};

/// The calling thread uses a card.
pub fn use_device(device: i32) {
    context::set(Some(device));
}

/// A stream of the thread's card; a blocking one waits for the default stream, and is waited for.
pub fn stream(blocking: bool) -> Option<*mut c_void> {
    let device = context::device()?;
    let mut made = None;
    let result = machine::call(|machine| {
        made = Some(machine.create_stream(device, blocking) as *mut c_void);
        Ok(())
    });
    made.filter(|_| result == 0)
}

/// Waits for a stream.
pub fn synchronize(stream: *mut c_void) -> i32 {
    machine::wait(|machine| {
        let stream = machine.stream(stream as u64, context::device())?;
        machine.end_of(stream)
    })
}

/// Memory of the thread's card that nothing has written.
pub fn allocate(bytes: usize) -> Option<u64> {
    let device = context::device()?;
    let mut address = None;
    machine::call(|machine| {
        address = machine.space.allocate(device, bytes as u64);
        Ok(())
    });
    address
}

/// Writes to memory of a card, by the default stream, and waits.
pub fn write(to: u64, bytes: &[u8]) -> i32 {
    copy(End::Memory(to), End::Taken(bytes.to_vec()), bytes.len())
}

/// Reads memory of a card, by the default stream, and waits.
pub fn read(from: u64, bytes: &mut [u8]) -> i32 {
    let to = Pointer(bytes.as_mut_ptr().cast());
    copy(End::Host(to), End::Memory(from), bytes.len())
}

fn copy(to: End, from: End, bytes: usize) -> i32 {
    machine::wait(|machine| {
        let stream = machine.stream(0, context::device())?;
        machine.append(stream, Task::Copy(Copy { to, from, bytes }), String::from("copy"))?;
        machine.end_of(stream)
    })
}

/// What a stream is given from now on is captured.
pub fn begin_capture(stream: *mut c_void) -> i32 {
    machine::call(|machine| {
        let stream = machine.stream(stream as u64, context::device())?;
        machine.begin_capture(stream, CaptureMode::ThreadLocal)
    })
}

/// Ends the capture that began in a stream; gives what was captured, ready to be launched.
pub fn end_capture(stream: *mut c_void) -> Option<u64> {
    let mut executable = Err(Code::InvalidValue);
    machine::call(|machine| {
        let stream = machine.stream(stream as u64, context::device())?;
        let graph = machine.end_capture(stream)?;
        executable = machine.instantiate(graph);
        Ok(())
    });
    executable.ok()
}

/// Launches what was captured on a stream.
pub fn launch(executable: u64, stream: *mut c_void) -> i32 {
    machine::call(|machine| {
        let stream = machine.stream(stream as u64, context::device())?;
        machine.launch_graph(executable, stream)
    })
}
