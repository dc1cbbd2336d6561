//! The functions of CUDA's driver API, each a few lines over [`crate::machine`]. Arguments are checked as the driver checks
//! them; pointers are the caller's word, as everywhere in C.

// Each function is unsafe for the one reason that `put` and `text` state.
#![allow(clippy::missing_safety_doc, missing_docs)]

pub mod context;
pub mod copies;
pub mod devices;
pub mod errors;
pub mod events;
pub mod graphs;
pub mod launches;
pub mod memory;
pub mod modules;
pub mod streams;
pub mod symbols;

use std::ffi::{CStr, c_char, c_void};

use crate::code::Code;

/// A handle, or an address of the host.
pub(crate) type Handle = *mut c_void;

/// Writes a result where the caller wants it.
unsafe fn put<T>(place: *mut T, value: T) -> Result<(), Code> {
    if place.is_null() {
        return Err(Code::InvalidValue);
    }
    // SAFETY: the caller of the driver gives a place for the result.
    unsafe { place.write(value) };
    Ok(())
}

/// A text of the caller.
unsafe fn text(place: *const c_char) -> Result<String, Code> {
    if place.is_null() {
        return Err(Code::InvalidValue);
    }
    // SAFETY: the caller of the driver gives a text that a zero byte ends.
    Ok(unsafe { CStr::from_ptr(place) }.to_string_lossy().into_owned())
}

fn code(result: Result<(), Code>) -> i32 {
    result.map_or_else(|code| code as i32, |()| Code::Success as i32)
}
