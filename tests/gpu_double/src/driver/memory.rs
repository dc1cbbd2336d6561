//! Allocations on cards and of pinned memory.

use std::ffi::c_void;

use super::context::{current, device};
use super::{Handle, put};
use crate::code::Code;
use crate::machine::{self, Machine, Task};
use crate::memory::Home;

/// Memory of a card, as long as there is some.
fn allocate(machine: &mut Machine, device: i32, bytes: usize) -> Result<u64, Code> {
    let bytes = bytes as u64;
    let room = machine.settings.memory.saturating_sub(machine.space.held(device));
    if bytes == 0 {
        return Err(Code::InvalidValue);
    }
    let fits = (bytes <= room).then(|| machine.space.allocate(device, bytes));
    fits.flatten().ok_or(Code::OutOfMemory)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(place: *mut u64, bytes: usize) -> i32 {
    machine::call(|machine| {
        machine.unsafe_call()?;
        let address = allocate(machine, current()?, bytes)?;
        // SAFETY: see `put`.
        unsafe { put(place, address) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> i32 {
    machine::call(|machine| {
        machine.unsafe_call()?;
        if address == 0 {
            return Ok(());
        }
        machine.free(address)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(place: *mut u64, bytes: usize, stream: Handle) -> i32 {
    machine::call(|machine| {
        let stream = machine.stream(stream as u64, device())?;
        machine.forbidden_on(stream)?;
        let address = allocate(machine, machine.device_of(stream), bytes)?;
        // SAFETY: see `put`.
        unsafe { put(place, address) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(address: u64, stream: Handle) -> i32 {
    machine::call(|machine| {
        let stream = machine.stream(stream as u64, device())?;
        machine.forbidden_on(stream)?;
        machine.append(stream, Task::Free(address), String::from("a free"))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> i32 {
    machine::call(|machine| {
        let all = machine.settings.memory as usize;
        let held = machine.space.held(current()?) as usize;
        // SAFETY: see `put`.
        unsafe { put(free, all - held).and(put(total, all)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(place: *mut *mut c_void, bytes: usize, _: u32) -> i32 {
    machine::call(|machine| {
        machine.unsafe_call()?;
        current()?;
        let address = machine.space.allocate_host(bytes as u64).ok_or(Code::OutOfMemory)?;
        // SAFETY: see `put`.
        unsafe { put(place, address as *mut c_void) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(place: *mut *mut c_void, bytes: usize) -> i32 {
    // SAFETY: handed on.
    unsafe { cuMemHostAlloc(place, bytes, 0) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(place: *mut c_void) -> i32 {
    machine::call(|machine| {
        machine.unsafe_call()?;
        machine.free(place as u64)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(place: *mut c_void, bytes: usize, _: u32) -> i32 {
    machine::call(|machine| {
        if place.is_null() || bytes == 0 {
            return Err(Code::InvalidValue);
        }
        if machine.space.whose(place as u64).is_some() {
            return Err(Code::HostMemoryAlreadyRegistered);
        }
        machine.space.register_host(place.cast(), bytes as u64);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(place: *mut c_void) -> i32 {
    machine::call(|machine| match machine.space.whose(place as u64) {
        Some((Home::Host, ..)) => machine.free(place as u64),
        _ => Err(Code::HostMemoryNotRegistered),
    })
}

/// Pinned memory has the same address everywhere.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    to: *mut u64,
    place: *mut c_void,
    _: u32,
) -> i32 {
    machine::call(|machine| match machine.space.whose(place as u64) {
        // SAFETY: see `put`.
        Some((Home::Host, ..)) => unsafe { put(to, place as u64) },
        _ => Err(Code::InvalidValue),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(
    base: *mut u64,
    bytes: *mut usize,
    address: u64,
) -> i32 {
    machine::call(|machine| {
        let (_, first, size) = machine.space.whose(address).ok_or(Code::NotFound)?;
        // SAFETY: see `put`.
        unsafe {
            let _ = put(base, first);
            let _ = put(bytes, size as usize);
        }
        Ok(())
    })
}
