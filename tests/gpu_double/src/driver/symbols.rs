//! Functions by name, for programs that ask the driver instead of the dynamic linker.

use std::ffi::{c_char, c_void};

use super::put;
use crate::code::Code;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    place: *mut *mut c_void,
    _: i32,
    _: u64,
    status: *mut i32,
) -> i32 {
    // SAFETY: see `text` and `put`; symbols are looked up in the library that holds this function.
    let result = unsafe {
        super::text(name).and_then(|name| {
            let found = find(&name);
            let _ = put(status, if found.is_null() { 1 } else { 0 });
            put(place, found)?;
            if found.is_null() { Err(Code::NotFound) } else { Ok(()) }
        })
    };
    super::code(result)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress(
    name: *const c_char,
    place: *mut *mut c_void,
    version: i32,
    flags: u64,
) -> i32 {
    // SAFETY: handed on.
    unsafe { cuGetProcAddress_v2(name, place, version, flags, std::ptr::null_mut()) }
}

/// The newest version of a function that is there.
fn find(name: &str) -> *mut c_void {
    // SAFETY: asks where this function itself is, which has an address.
    let library = unsafe {
        let mut here: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(cuGetProcAddress as *const c_void, &mut here) == 0 {
            return std::ptr::null_mut();
        }
        libc::dlopen(here.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD)
    };
    let names = ["_v3", "_v2", ""].map(|version| format!("{name}{version}\0"));
    // SAFETY: a handle of the dynamic linker, or null, for which nothing is found.
    let symbols = names.map(|name| unsafe { libc::dlsym(library, name.as_ptr().cast()) });
    symbols.into_iter().find(|symbol| !symbol.is_null()).unwrap_or(std::ptr::null_mut())
}
