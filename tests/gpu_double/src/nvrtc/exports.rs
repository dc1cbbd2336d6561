//! NVRTC's names, handed on to the compiler. Only what would be machine code is the double's: a container with the PTX.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::library::{Handle, text_of};
use super::{LIBRARY, MISSING};

/// The bytes that a container begins with.
const MAGIC: &[u8; 16] = b"GPU double: PTX\n";

/// The PTX in a container, or the text itself where it is PTX; None for anything else, such as real machine code.
///
/// # Safety
/// `image` points to a container, to a text that a zero byte ends, or to an ELF file.
pub unsafe fn ptx_of(image: *const c_void) -> Option<String> {
    // SAFETY: each of the three has a first byte, and comparing stops at the first that differs.
    let starts =
        |with: &[u8]| (0..with.len()).all(|at| unsafe { *image.cast::<u8>().add(at) } == with[at]);
    let text = match () {
        () if starts(MAGIC) => image.cast::<c_char>().wrapping_add(MAGIC.len()),
        () if starts(b"\x7fELF") => return None,
        () => image.cast(),
    };
    // SAFETY: both are ended by a zero byte.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    text.contains(".version").then(|| text.into_owned())
}

fn container(program: Handle) -> Option<Vec<u8>> {
    let library = LIBRARY.as_ref()?;
    let ptx = text_of(library, program, c"nvrtcGetPTXSize", c"nvrtcGetPTX")?;
    Some([MAGIC, ptx.as_bytes(), b"\0"].concat())
}

/// # Safety
/// As NVRTC's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetCUBINSize(program: Handle, size: *mut usize) -> c_int {
    let Some(container) = container(program) else { return MISSING };
    // SAFETY: the caller gives a place for the size.
    unsafe { *size = container.len() };
    0
}

/// # Safety
/// As NVRTC's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetCUBIN(program: Handle, cubin: *mut c_char) -> c_int {
    let Some(container) = container(program) else { return MISSING };
    // SAFETY: the caller gives a place of the size that it has asked for.
    unsafe { std::ptr::copy_nonoverlapping(container.as_ptr(), cubin.cast(), container.len()) };
    0
}

/// Functions that are handed on as they are.
macro_rules! hand_on {
    ($($symbol:literal $name:ident ( $($argument:ident : $type:ty),* );)*) => { $(
        /// # Safety
        /// As NVRTC's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: NVRTC's own declaration; arguments are the caller's.
            unsafe {
                let library = LIBRARY.as_ref();
                let function = library.and_then(|library| {
                    library.function::<unsafe extern "C" fn($($type),*) -> c_int>($symbol)
                });
                function.map_or(MISSING, |function| function($($argument),*))
            }
        }
    )* };
}

hand_on! {
    c"nvrtcVersion" nvrtcVersion(major: *mut c_int, minor: *mut c_int);
    c"nvrtcGetNumSupportedArchs" nvrtcGetNumSupportedArchs(count: *mut c_int);
    c"nvrtcGetSupportedArchs" nvrtcGetSupportedArchs(list: *mut c_int);
    c"nvrtcCreateProgram" nvrtcCreateProgram(
        program: *mut Handle,
        source: *const c_char,
        name: *const c_char,
        headers: c_int,
        texts: *const *const c_char,
        names: *const *const c_char
    );
    c"nvrtcDestroyProgram" nvrtcDestroyProgram(program: *mut Handle);
    c"nvrtcCompileProgram" nvrtcCompileProgram(
        program: Handle,
        count: c_int,
        options: *const *const c_char
    );
    c"nvrtcGetPTXSize" nvrtcGetPTXSize(program: Handle, size: *mut usize);
    c"nvrtcGetPTX" nvrtcGetPTX(program: Handle, ptx: *mut c_char);
    c"nvrtcGetProgramLogSize" nvrtcGetProgramLogSize(program: Handle, size: *mut usize);
    c"nvrtcGetProgramLog" nvrtcGetProgramLog(program: Handle, log: *mut c_char);
    c"nvrtcAddNameExpression" nvrtcAddNameExpression(program: Handle, name: *const c_char);
    c"nvrtcGetLoweredName" nvrtcGetLoweredName(
        program: Handle,
        name: *const c_char,
        lowered: *mut *const c_char
    );
}

/// # Safety
/// As NVRTC's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetErrorString(code: c_int) -> *const c_char {
    type Text = unsafe extern "C" fn(c_int) -> *const c_char;
    // SAFETY: NVRTC's own declaration.
    let function = LIBRARY
        .as_ref()
        .and_then(|library| unsafe { library.function::<Text>(c"nvrtcGetErrorString") });
    match function {
        // SAFETY: as above.
        Some(function) => unsafe { function(code) },
        None => c"NVRTC is not installed".as_ptr(),
    }
}
