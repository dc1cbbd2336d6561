//! Names and texts of results.

use std::ffi::c_char;

use super::{code, put};
use crate::code::{Code, TEXTS};

fn find(error: i32) -> Result<(&'static str, &'static str), Code> {
    let found = TEXTS.iter().find(|(code, _, _)| *code as i32 == error);
    found.map(|(_, name, text)| (*name, *text)).ok_or(Code::InvalidValue)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: i32, name: *mut *const c_char) -> i32 {
    // SAFETY: see `put`.
    code(find(error).and_then(|(found, _)| unsafe { put(name, found.as_ptr().cast()) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: i32, text: *mut *const c_char) -> i32 {
    // SAFETY: see `put`.
    code(find(error).and_then(|(_, found)| unsafe { put(text, found.as_ptr().cast()) }))
}
