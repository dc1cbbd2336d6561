//! Modules: PTX, as text or in the container that stands for machine code.

use std::ffi::{c_char, c_void};

use super::context::current;
use super::{Handle, put, text};
use crate::code::Code;
use crate::machine;
use crate::nvrtc::exports::ptx_of;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut Handle, image: *const c_void) -> i32 {
    if image.is_null() {
        return Code::InvalidValue as i32;
    }
    machine::call(|machine| {
        machine.unsafe_call()?;
        let device = current()?;
        // SAFETY: the caller gives an image.
        let Some(ptx) = (unsafe { ptx_of(image) }) else {
            eprintln!(
                "gpu double: cuModuleLoadData: the image is neither PTX nor what nvrtcGetCUBIN gives"
            );
            return Err(Code::NoBinaryForGpu);
        };
        let loaded = machine.load_module(&ptx, device)?;
        // SAFETY: see `put`.
        unsafe { put(module, loaded as Handle) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut Handle,
    image: *const c_void,
    _: u32,
    _: *mut c_void,
    _: *mut c_void,
) -> i32 {
    // SAFETY: handed on.
    unsafe { cuModuleLoadData(module, image) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: Handle) -> i32 {
    machine::call(|machine| machine.unload_module(module as u64))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut Handle,
    module: Handle,
    name: *const c_char,
) -> i32 {
    machine::call(|machine| {
        // SAFETY: see `text` and `put`.
        let name = unsafe { text(name)? };
        let found = machine.function(module as u64, &name)?;
        // SAFETY: see `put`.
        unsafe { put(function, found as Handle) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetGlobal_v2(
    address: *mut u64,
    bytes: *mut usize,
    module: Handle,
    name: *const c_char,
) -> i32 {
    machine::call(|machine| {
        // SAFETY: see `text`.
        let name = unsafe { text(name)? };
        let (found, size) = machine.variable(module as u64, &name)?;
        // SAFETY: see `put`; places that are null are not asked for.
        unsafe {
            let _ = put(address, found);
            let _ = put(bytes, size);
        }
        Ok(())
    })
}
