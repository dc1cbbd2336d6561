//! Streams, captures of streams, functions of the host in streams.

use std::ffi::c_void;

use super::context::{current, device};
use super::{Handle, put};
use crate::code::Code;
use crate::machine::{self, CaptureMode, Machine, Pointer, Task};

/// Flag of streams that do not wait for the default stream.
const NON_BLOCKING: u32 = 1;

fn find(machine: &mut Machine, stream: Handle) -> Result<u32, Code> {
    machine.stream(stream as u64, device())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(place: *mut Handle, flags: u32) -> i32 {
    machine::call(|machine| {
        let stream = machine.create_stream(current()?, flags & NON_BLOCKING == 0);
        // SAFETY: see `put`.
        unsafe { put(place, stream as Handle) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(place: *mut Handle, flags: u32, _: i32) -> i32 {
    // SAFETY: handed on.
    unsafe { cuStreamCreate(place, flags) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: Handle) -> i32 {
    machine::call(|machine| {
        let stream = find(machine, stream)?;
        machine.destroy_stream(stream);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: Handle) -> i32 {
    machine::wait(|machine| {
        let stream = find(machine, stream)?;
        machine.forbidden_on(stream)?;
        machine.end_of(stream)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(stream: Handle) -> i32 {
    machine::call(|machine| {
        let stream = find(machine, stream)?;
        machine.forbidden_on(stream)?;
        let end = machine.end_of(stream)?;
        machine.query(&end)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, _: u32) -> i32 {
    machine::call(|machine| {
        let stream = find(machine, stream)?;
        machine.wait_event(stream, event as u64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCtx(stream: Handle, context: *mut Handle) -> i32 {
    let found = crate::work::device_of(stream);
    if found < 0 {
        return Code::InvalidHandle as i32;
    }
    // SAFETY: handed on.
    unsafe { super::context::cuDevicePrimaryCtxRetain(context, found) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchHostFunc(
    stream: Handle,
    function: Option<extern "C" fn(*mut c_void)>,
    data: *mut c_void,
) -> i32 {
    machine::call(|machine| {
        let stream = find(machine, stream)?;
        let function = function.ok_or(Code::InvalidValue)?;
        let name = String::from("a function of the host");
        machine.append(stream, Task::Callback(function, Pointer(data)), name)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: Handle, mode: i32) -> i32 {
    machine::call(|machine| {
        let mode = match mode {
            0 => CaptureMode::Global,
            1 => CaptureMode::ThreadLocal,
            2 => CaptureMode::Relaxed,
            _ => return Err(Code::InvalidValue),
        };
        let stream = find(machine, stream)?;
        machine.begin_capture(stream, mode)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) -> i32 {
    machine::call(|machine| {
        let stream = find(machine, stream)?;
        let captured = machine.end_capture(stream);
        let handle = captured.as_ref().map_or(0, |graph| *graph);
        // SAFETY: see `put`.
        unsafe { put(graph, handle as Handle)? };
        captured.map(|_| ())
    })
}

/// Returns the state of a stream's capture: none, one that goes on, or one that a forbidden call has broken.
fn status(machine: &Machine, stream: u32) -> i32 {
    match machine.capture_of(stream) {
        None => 0,
        Some((_, false)) => 1,
        Some((_, true)) => 2,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: Handle, place: *mut i32) -> i32 {
    machine::call(|machine| {
        let stream = find(machine, stream)?;
        // SAFETY: see `put`.
        unsafe { put(place, status(machine, stream)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: Handle,
    place: *mut i32,
    number: *mut u64,
    graph: *mut Handle,
    _: *mut *const Handle,
    count: *mut usize,
) -> i32 {
    machine::call(|machine| {
        let stream = find(machine, stream)?;
        let capture = machine.capture_of(stream).map_or(0, |(handle, _)| handle);
        // SAFETY: see `put`; places that are null are not asked for.
        unsafe {
            put(place, status(machine, stream))?;
            let _ = put(number, capture);
            let _ = put(graph, std::ptr::null_mut());
            let _ = put(count, 0);
        }
        Ok(())
    })
}

/// Gives the capture of a stream. Later versions have one more argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCaptureInfo_v3(
    stream: Handle,
    place: *mut i32,
    number: *mut u64,
    graph: *mut Handle,
    nodes: *mut *const Handle,
    _: *mut *const c_void,
    count: *mut usize,
) -> i32 {
    // SAFETY: handed on.
    unsafe { cuStreamGetCaptureInfo_v2(stream, place, number, graph, nodes, count) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut i32) -> i32 {
    // SAFETY: see `put`: captures are always strict here, whatever threads ask for.
    super::code(unsafe { put(mode, 0) })
}
