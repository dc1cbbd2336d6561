//! Contexts: one for each card, and which of them a thread uses.

use std::cell::Cell;

use super::{Handle, code, put};
use crate::code::Code;
use crate::machine;

/// Kind of the handles of contexts.
const CONTEXT: u64 = 0xD << 48;

thread_local! {
    static CURRENT: Cell<Option<i32>> = const { Cell::new(None) };
}

/// The card of the calling thread's context.
pub fn device() -> Option<i32> {
    CURRENT.get()
}

/// Returns the card of the calling thread's context, or an error, for calls that need one.
pub(super) fn current() -> Result<i32, Code> {
    device().ok_or(Code::InvalidContext)
}

fn handle(device: i32) -> Handle {
    (CONTEXT | ((device as u64 + 1) << 4)) as Handle
}

fn device_of(context: Handle) -> Option<i32> {
    let number = (context as u64 ^ CONTEXT) >> 4;
    (1..=1024).contains(&number).then(|| number as i32 - 1)
}

fn known(device: i32) -> Result<i32, Code> {
    let devices = machine::with(|machine| machine.settings.devices);
    if (0..devices).contains(&device) { Ok(device) } else { Err(Code::InvalidDevice) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: i32) -> i32 {
    // SAFETY: see `put`.
    code(known(device).and_then(|device| unsafe { put(context, handle(device)) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: i32) -> i32 {
    code(known(device).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxSetFlags_v2(device: i32, _: u32) -> i32 {
    code(known(device).map(|_| ()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    device: i32,
    flags: *mut u32,
    active: *mut i32,
) -> i32 {
    // SAFETY: see `put`.
    code(known(device).and_then(|_| unsafe { put(flags, 0).and(put(active, 1)) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v2(context: *mut Handle, _: u32, device: i32) -> i32 {
    let result = known(device).and_then(|device| {
        CURRENT.set(Some(device));
        // SAFETY: see `put`.
        unsafe { put(context, handle(device)) }
    });
    code(result)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v3(
    context: *mut Handle,
    _: *mut Handle,
    _: i32,
    flags: u32,
    device: i32,
) -> i32 {
    // SAFETY: handed on.
    unsafe { cuCtxCreate_v2(context, flags, device) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v4(
    context: *mut Handle,
    _: *mut Handle,
    flags: u32,
    device: i32,
) -> i32 {
    // SAFETY: handed on.
    unsafe { cuCtxCreate_v2(context, flags, device) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxDestroy_v2(context: Handle) -> i32 {
    if device_of(context).is_some() && device_of(context) == device() {
        CURRENT.set(None);
    }
    code(device_of(context).map(|_| ()).ok_or(Code::InvalidContext))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: Handle) -> i32 {
    let device = device_of(context);
    if device.is_none() && !context.is_null() {
        return Code::InvalidContext as i32;
    }
    CURRENT.set(device);
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPushCurrent_v2(context: Handle) -> i32 {
    cuCtxSetCurrent(context)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut Handle) -> i32 {
    let popped = CURRENT.replace(None).map_or(std::ptr::null_mut(), handle);
    // SAFETY: see `put`.
    unsafe { put(context, popped).map_or(0, |()| 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut Handle) -> i32 {
    // SAFETY: see `put`.
    code(unsafe { put(context, device().map_or(std::ptr::null_mut(), handle)) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(place: *mut i32) -> i32 {
    // SAFETY: see `put`.
    code(current().and_then(|device| unsafe { put(place, device) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) -> i32 {
    // SAFETY: see `put`.
    code(unsafe { put(least, 0).and(put(greatest, -5)) })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxEnablePeerAccess(_: Handle, _: u32) -> i32 {
    Code::PeerAccessUnsupported as i32
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetFlags(_: u32) -> i32 {
    code(current().map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> i32 {
    machine::wait(|machine| {
        machine.unsafe_call()?;
        machine.ends_of_device(current()?)
    })
}
