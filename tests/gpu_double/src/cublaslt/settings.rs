//! The functions of C that make, change and end descriptors, and those that say what the library is.

use std::ffi::{CStr, c_char, c_void};

use super::descriptors::{Descriptor, Layout, MatmulDescriptor, Preference, find, get, set};
use super::types::Status;

/// Puts a descriptor into new memory, which outlives its destruction.
///
/// # Safety
/// `place` is null or a place.
unsafe fn create<D: Descriptor>(place: *mut *mut c_void, descriptor: D) -> i32 {
    // SAFETY: the caller's promise.
    let Some(place) = (unsafe { place.as_mut() }) else { return Status::InvalidValue as i32 };
    *place = std::ptr::from_mut(Box::leak(Box::new(descriptor))).cast();
    Status::Success as i32
}

/// Puts a descriptor into memory of the caller, of `bytes`.
///
/// # Safety
/// `place` is null or has that many bytes, aligned to 8.
unsafe fn init<D: Descriptor>(place: *mut c_void, bytes: usize, descriptor: D) -> i32 {
    if place.is_null() {
        return Status::InvalidValue as i32;
    }
    if bytes < size_of::<D>() {
        return Status::AllocFailed as i32;
    }
    // SAFETY: there is room.
    unsafe { place.cast::<D>().write(descriptor) };
    Status::Success as i32
}

/// Ends a descriptor. Null is none, and ends well.
///
/// # Safety
/// As `find`.
unsafe fn destroy<D: Descriptor>(pointer: *mut c_void) -> i32 {
    if pointer.is_null() {
        return Status::Success as i32;
    }
    // SAFETY: the caller's promise.
    match unsafe { find::<D>(pointer) } {
        Some(descriptor) => {
            *descriptor.magic() = 0;
            Status::Success as i32
        }
        None => Status::InvalidValue as i32,
    }
}

/// The functions that all kinds of descriptors have.
macro_rules! lifecycle {
    ($kind:ty, $destroy:ident, $set:ident, $get:ident) => {
        /// Ends a descriptor.
        ///
        /// # Safety
        /// The pointer is null or points to a descriptor.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $destroy(descriptor: *mut c_void) -> i32 {
            // SAFETY: the caller's promise.
            unsafe { destroy::<$kind>(descriptor) }
        }

        /// Changes an attribute.
        ///
        /// # Safety
        /// Pointers are null or point to a descriptor and to that many bytes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $set(
            descriptor: *mut c_void,
            attribute: i32,
            buffer: *const c_void,
            bytes: usize,
        ) -> i32 {
            // SAFETY: the caller's promise.
            unsafe { set::<$kind>(descriptor, attribute, buffer, bytes) as i32 }
        }

        /// Reads an attribute.
        ///
        /// # Safety
        /// Pointers are null or point to a descriptor, to that many bytes and to a place.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get(
            descriptor: *mut c_void,
            attribute: i32,
            buffer: *mut c_void,
            bytes: usize,
            written: *mut usize,
        ) -> i32 {
            // SAFETY: the caller's promise.
            unsafe { get::<$kind>(descriptor, attribute, buffer, bytes, written) as i32 }
        }
    };
}

lifecycle!(
    MatmulDescriptor,
    cublasLtMatmulDescDestroy,
    cublasLtMatmulDescSetAttribute,
    cublasLtMatmulDescGetAttribute
);
lifecycle!(
    Layout,
    cublasLtMatrixLayoutDestroy,
    cublasLtMatrixLayoutSetAttribute,
    cublasLtMatrixLayoutGetAttribute
);
lifecycle!(
    Preference,
    cublasLtMatmulPreferenceDestroy,
    cublasLtMatmulPreferenceSetAttribute,
    cublasLtMatmulPreferenceGetAttribute
);

/// A product by a compute type and a type of alpha and beta.
///
/// # Safety
/// `place` is null or a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulDescCreate(
    place: *mut *mut c_void,
    compute_type: i32,
    scale_type: i32,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { create(place, MatmulDescriptor::new(compute_type, scale_type)) }
}

/// A product in memory of the caller.
///
/// # Safety
/// `place` is null or has that many bytes, aligned to 8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulDescInit_internal(
    place: *mut c_void,
    bytes: usize,
    compute_type: i32,
    scale_type: i32,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { init(place, bytes, MatmulDescriptor::new(compute_type, scale_type)) }
}

/// A matrix.
///
/// # Safety
/// `place` is null or a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatrixLayoutCreate(
    place: *mut *mut c_void,
    element: i32,
    rows: u64,
    cols: u64,
    ld: i64,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { create(place, Layout::new(element, rows, cols, ld)) }
}

/// A matrix in memory of the caller.
///
/// # Safety
/// `place` is null or has that many bytes, aligned to 8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatrixLayoutInit_internal(
    place: *mut c_void,
    bytes: usize,
    element: i32,
    rows: u64,
    cols: u64,
    ld: i64,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { init(place, bytes, Layout::new(element, rows, cols, ld)) }
}

/// A preference that allows no workspace.
///
/// # Safety
/// `place` is null or a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulPreferenceCreate(place: *mut *mut c_void) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { create(place, Preference::new()) }
}

/// A preference in memory of the caller.
///
/// # Safety
/// `place` is null or has that many bytes, aligned to 8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulPreferenceInit_internal(
    place: *mut c_void,
    bytes: usize,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { init(place, bytes, Preference::new()) }
}

/// The library's version, as 13.0.0.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetVersion() -> usize {
    130_000
}

/// The version of CUDA's runtime that the library goes with.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetCudartVersion() -> usize {
    13_000
}

/// Major, minor and patch number of the version, by 0, 1 and 2.
///
/// # Safety
/// `value` is null or a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtGetProperty(property: i32, value: *mut i32) -> i32 {
    let number = match property {
        0 => 13,
        1 | 2 => 0,
        _ => return Status::InvalidValue as i32,
    };
    // SAFETY: the caller's promise.
    let Some(value) = (unsafe { value.as_mut() }) else { return Status::InvalidValue as i32 };
    *value = number;
    Status::Success as i32
}

/// A status's name.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetStatusName(status: i32) -> *const c_char {
    texts(status).0.as_ptr()
}

/// A status's meaning.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetStatusString(status: i32) -> *const c_char {
    texts(status).1.as_ptr()
}

fn texts(status: i32) -> (&'static CStr, &'static CStr) {
    const UNKNOWN: &CStr = c"unrecognized status";
    Status::of(status).map_or((UNKNOWN, UNKNOWN), Status::texts)
}

/// Messages go to standard error, whatever the level.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtLoggerSetLevel(level: i32) -> i32 {
    let known = (0..=5).contains(&level);
    (if known { Status::Success } else { Status::InvalidValue }) as i32
}
