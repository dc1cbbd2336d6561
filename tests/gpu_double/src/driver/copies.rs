//! Copies and fills. Bytes of ordinary host memory are taken at the call, as the driver does; pinned ones when the copy runs.

use std::ffi::c_void;

use super::Handle;
use super::context::device;
use crate::code::Code;
use crate::machine::{self, Copy, End, Machine, Place, Pointer, Task};
use crate::memory::Home;

/// An address of the host as an end that is read.
unsafe fn source(machine: &Machine, place: *const c_void, bytes: usize) -> End {
    match machine.space.whose(place as u64) {
        Some(_) => End::Memory(place as u64),
        None => {
            // SAFETY: the caller of the driver gives so many bytes.
            let taken = unsafe { std::slice::from_raw_parts(place.cast::<u8>(), bytes) };
            End::Taken(taken.to_vec())
        }
    }
}

/// An address of the host as an end that is written; whether the host must wait.
fn target(machine: &Machine, place: *mut c_void) -> End {
    match machine.space.whose(place as u64) {
        Some(_) => End::Memory(place as u64),
        None => End::Host(Pointer(place)),
    }
}

/// Appends a copy, and says what the host waits for: all of it where the call is synchronous, or memory of the host is not
/// pinned and written. One from such memory to a card returns when its bytes are taken, although it is called synchronous.
fn copy(
    machine: &mut Machine,
    stream: Handle,
    (to, from): (End, End),
    bytes: usize,
    wait: bool,
) -> Result<Vec<Place>, Code> {
    let stream = machine.stream(stream as u64, device())?;
    let pageable = matches!(to, End::Host(_)) || matches!(from, End::Taken(_));
    if wait {
        machine.unsafe_call()?;
    }
    if pageable {
        machine.forbidden_on(stream)?;
    }
    let taken = matches!(from, End::Taken(_));
    let wait = (wait && !taken) || matches!(to, End::Host(_));
    if bytes > 0 {
        let name = format!("a copy of {bytes} bytes {}", way(machine, &to, &from));
        machine.append(stream, Task::Copy(Copy { to, from, bytes }), name)?;
    }
    if wait { machine.end_of(stream) } else { Ok(Vec::new()) }
}

fn way(machine: &Machine, to: &End, from: &End) -> &'static str {
    let host = |end: &End| match end {
        End::Memory(address) => {
            matches!(machine.space.whose(*address), Some((Home::Host, ..)))
        }
        _ => true,
    };
    match (host(to), host(from)) {
        (true, true) => "of the host's memory",
        (true, false) => "to the host",
        (false, true) => "from the host",
        (false, false) => "between places of cards",
    }
}

/// The card's memory and the host's.
unsafe fn to_card(to: u64, from: *const c_void, bytes: usize, stream: Handle, wait: bool) -> i32 {
    machine::wait(|machine| {
        // SAFETY: the caller of the driver gives so many bytes.
        let from = unsafe { source(machine, from, bytes) };
        copy(machine, stream, (End::Memory(to), from), bytes, wait)
    })
}

fn to_host(to: *mut c_void, from: u64, bytes: usize, stream: Handle, wait: bool) -> i32 {
    machine::wait(|machine| {
        let to = target(machine, to);
        copy(machine, stream, (to, End::Memory(from)), bytes, wait)
    })
}

fn within(to: u64, from: u64, bytes: usize, stream: Handle, wait: bool) -> i32 {
    machine::wait(|machine| {
        copy(machine, stream, (End::Memory(to), End::Memory(from)), bytes, wait)
    })
}

/// Copies between any two addresses: what is in no allocation is memory of the host.
unsafe fn anywhere(to: u64, from: u64, bytes: usize, stream: Handle, wait: bool) -> i32 {
    machine::wait(|machine| {
        let to = target(machine, to as *mut c_void);
        // SAFETY: the caller of the driver gives so many bytes.
        let from = unsafe { source(machine, from as *const c_void, bytes) };
        copy(machine, stream, (to, from), bytes, wait)
    })
}

const DEFAULT: Handle = std::ptr::null_mut();

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> i32 {
    // SAFETY: handed on.
    unsafe { to_card(to, from, bytes, DEFAULT, true) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const c_void,
    bytes: usize,
    stream: Handle,
) -> i32 {
    // SAFETY: handed on.
    unsafe { to_card(to, from, bytes, stream, false) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> i32 {
    to_host(to, from, bytes, DEFAULT, true)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: u64,
    bytes: usize,
    stream: Handle,
) -> i32 {
    to_host(to, from, bytes, stream, false)
}

/// Copies between places of one card. The host does not wait, as on a card: it is an operation of the default stream.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) -> i32 {
    machine::wait(|machine| {
        machine.unsafe_call()?;
        copy(machine, DEFAULT, (End::Memory(to), End::Memory(from)), bytes, false)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) -> i32 {
    within(to, from, bytes, stream, false)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpy(to: u64, from: u64, bytes: usize) -> i32 {
    // SAFETY: handed on.
    unsafe { anywhere(to, from, bytes, DEFAULT, true) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Handle) -> i32 {
    // SAFETY: handed on.
    unsafe { anywhere(to, from, bytes, stream, false) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyPeerAsync(
    to: u64,
    _: Handle,
    from: u64,
    _: Handle,
    bytes: usize,
    stream: Handle,
) -> i32 {
    within(to, from, bytes, stream, false)
}

fn fill(to: u64, pattern: Vec<u8>, times: usize, stream: Handle, wait: bool) -> i32 {
    machine::call(|machine| {
        if !to.is_multiple_of(pattern.len() as u64) {
            return Err(Code::InvalidValue);
        }
        if wait {
            machine.unsafe_call()?;
        }
        let stream = machine.stream(stream as u64, device())?;
        let name = format!("a fill of {} bytes", pattern.len() * times);
        if times == 0 {
            return Ok(());
        }
        machine.append(stream, Task::Fill { to, pattern, times }, name)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8_v2(to: u64, value: u8, count: usize) -> i32 {
    fill(to, vec![value], count, DEFAULT, true)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD16_v2(to: u64, value: u16, count: usize) -> i32 {
    fill(to, value.to_le_bytes().to_vec(), count, DEFAULT, true)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD32_v2(to: u64, value: u32, count: usize) -> i32 {
    fill(to, value.to_le_bytes().to_vec(), count, DEFAULT, true)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Handle) -> i32 {
    fill(to, vec![value], count, stream, false)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: Handle) -> i32 {
    fill(to, value.to_le_bytes().to_vec(), count, stream, false)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: Handle) -> i32 {
    fill(to, value.to_le_bytes().to_vec(), count, stream, false)
}
