//! Launches of kernels, and what is asked of kernels before.

use std::ffi::c_void;

use super::context::device;
use super::{Handle, put};
use crate::account;
use crate::code::Code;
use crate::machine::{self, Task};

/// The numbers of a launch.
#[repr(C)]
pub struct Configuration {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: Handle,
    attributes: *mut c_void,
    count: u32,
}

unsafe fn launch(
    function: Handle,
    shape: ([u32; 3], [u32; 3]),
    shared: u32,
    stream: Handle,
    (arguments, extra): (*const *const c_void, *const *const c_void),
) -> i32 {
    machine::call(|machine| {
        if !extra.is_null() {
            return Err(Code::NotSupported);
        }
        let stream = machine.stream(stream as u64, device())?;
        if account::is_empty() {
            return machine.append(stream, Task::Nothing, String::new());
        }
        let sizes = machine.arguments(function as u64)?;
        if arguments.is_null() && !sizes.is_empty() {
            return Err(Code::InvalidValue);
        }
        let taken = (0..).zip(&sizes).map(|(at, bytes)| {
            // SAFETY: the caller gives a place for each argument, of the size that the kernel declares.
            unsafe {
                std::slice::from_raw_parts((*arguments.add(at)).cast::<u8>(), *bytes).to_vec()
            }
        });
        let taken = taken.collect();
        machine.launch(function as u64, stream, shape, shared as usize, taken)
    })
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: Handle,
    gx: u32,
    gy: u32,
    gz: u32,
    bx: u32,
    by: u32,
    bz: u32,
    shared: u32,
    stream: Handle,
    arguments: *const *const c_void,
    extra: *const *const c_void,
) -> i32 {
    let shape = ([gx, gy, gz], [bx, by, bz]);
    // SAFETY: handed on.
    unsafe { launch(function, shape, shared, stream, (arguments, extra)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernelEx(
    configuration: *const Configuration,
    function: Handle,
    arguments: *const *const c_void,
    extra: *const *const c_void,
) -> i32 {
    if configuration.is_null() {
        return Code::InvalidValue as i32;
    }
    // SAFETY: the caller gives a configuration.
    let c = unsafe { &*configuration };
    if c.count > 0 {
        return Code::NotSupported as i32;
    }
    // SAFETY: handed on.
    unsafe { launch(function, (c.grid, c.block), c.shared, c.stream, (arguments, extra)) }
}

/// Gives an attribute by its number of `CUfunction_attribute`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(
    value: *mut i32,
    attribute: i32,
    function: Handle,
) -> i32 {
    machine::call(|machine| {
        let found = machine.function_attribute(function as u64, attribute)?;
        // SAFETY: see `put`.
        unsafe { put(value, found) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(function: Handle, attribute: i32, value: i32) -> i32 {
    machine::call(|machine| machine.set_function_attribute(function as u64, attribute, value))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetCacheConfig(function: Handle, _: i32) -> i32 {
    machine::call(|machine| machine.arguments(function as u64).map(|_| ()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut i32,
    function: Handle,
    threads: i32,
    shared: usize,
) -> i32 {
    machine::call(|machine| {
        let found = machine.occupancy(function as u64, threads, shared)?;
        // SAFETY: see `put`.
        unsafe { put(blocks, found) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: *mut i32,
    function: Handle,
    threads: i32,
    shared: usize,
    _: u32,
) -> i32 {
    // SAFETY: handed on.
    unsafe { cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared) }
}
