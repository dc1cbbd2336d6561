//! The cards that there are: all alike, with the numbers of an H100, or of an A100 where the environment says 8.0.

use std::ffi::{c_char, c_void};

use super::{code, put};
use crate::code::Code;
use crate::machine;
use crate::settings::Settings;

/// CUDA 13.0.
const VERSION: i32 = 13000;

fn settings() -> Settings {
    machine::with(|machine| machine.settings.clone())
}

fn device(number: i32) -> Result<i32, Code> {
    let there = (0..settings().devices).contains(&number);
    if there { Ok(number) } else { Err(Code::InvalidDevice) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: u32) -> i32 {
    match (flags, settings().devices) {
        (0, 1..) => 0,
        (0, _) => 100,
        _ => Code::InvalidValue as i32,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut i32) -> i32 {
    // SAFETY: see `put`.
    code(unsafe { put(version, VERSION) })
}

/// NVRTC asks for tables that only NVIDIA's tools know.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetExportTable(table: *mut *const c_void, _: *const c_void) -> i32 {
    // SAFETY: see `put`.
    let _ = unsafe { put(table, std::ptr::null()) };
    Code::NotFound as i32
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(place: *mut i32, number: i32) -> i32 {
    // SAFETY: see `put`.
    code(device(number).and_then(|number| unsafe { put(place, number) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut i32) -> i32 {
    // SAFETY: see `put`.
    code(unsafe { put(count, settings().devices) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, room: i32, number: i32) -> i32 {
    let text = format!("GPU double {number}");
    let result = device(number).and_then(|_| match name.is_null() || room <= 0 {
        true => Err(Code::InvalidValue),
        false => {
            let length = text.len().min(room as usize - 1);
            // SAFETY: the caller gives `room` bytes.
            unsafe {
                std::ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), length);
                *name.add(length) = 0;
            }
            Ok(())
        }
    });
    code(result)
}

/// The number of a card, in 16 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], number: i32) -> i32 {
    let mut bytes = *b"GPU double      ";
    bytes[12..].copy_from_slice(&number.to_be_bytes());
    // SAFETY: see `put`.
    code(device(number).and_then(|_| unsafe { put(uuid, bytes) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid(uuid: *mut [u8; 16], number: i32) -> i32 {
    // SAFETY: handed on.
    unsafe { cuDeviceGetUuid_v2(uuid, number) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, number: i32) -> i32 {
    // SAFETY: see `put`.
    code(device(number).and_then(|_| unsafe { put(bytes, settings().memory as usize) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut i32, attribute: i32, number: i32) -> i32 {
    let result = device(number).and_then(|number| {
        let found = attribute_of(attribute, number, settings().capability);
        // SAFETY: see `put`.
        unsafe { put(value, found) }
    });
    code(result)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceComputeCapability(
    major: *mut i32,
    minor: *mut i32,
    number: i32,
) -> i32 {
    let (x, y) = settings().capability;
    // SAFETY: see `put`.
    code(device(number).and_then(|_| unsafe { put(major, x).and(put(minor, y)) }))
}

/// Answers that no card reaches the memory of another but by copies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(can: *mut i32, from: i32, to: i32) -> i32 {
    // SAFETY: see `put`.
    code(device(from).and(device(to)).and_then(|_| unsafe { put(can, 0) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(name: *mut c_char, room: i32, number: i32) -> i32 {
    let text = format!("0000:{:02x}:00.0\0", number + 1);
    if room < text.len() as i32 {
        return Code::InvalidValue as i32;
    }
    let result = device(number).map(|_| {
        // SAFETY: the caller gives `room` bytes, which are enough.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), text.len()) };
    });
    code(result)
}

/// Returns an attribute by its number of `CUdevice_attribute`.
fn attribute_of(attribute: i32, number: i32, (major, minor): (i32, i32)) -> i32 {
    let hopper = major >= 9;
    match attribute {
        1 => 1024,        // threads of a block
        2 | 3 => 1024,    // in x, in y
        4 => 64,          // in z
        5 => i32::MAX,    // blocks in x
        6 | 7 => 65535,   // in y, in z
        8 => 48 << 10,    // shared memory of a block
        9 => 64 << 10,    // constant memory
        10 => 32,         // threads of a warp
        12 | 82 => 65536, // registers of a block, of a multiprocessor
        13 => 1_980_000,  // kHz
        16 => {
            if hopper {
                132
            } else {
                108
            }
        } // multiprocessors
        18 => 0,          // integrated
        19 | 31 | 41 => 1, // maps host memory, kernels at a time, unified addresses
        33 => number + 1, // PCI bus
        34 | 50 => 0,     // PCI device and domain
        36 => 2_619_000,  // kHz of memory
        37 => 5120,       // bits of the memory's bus
        38 => 50 << 20,   // cache
        39 => 2048,       // threads of a multiprocessor
        40 => 3,          // engines for copies
        75 => major,
        76 => minor,
        78..=80 => 1, // priorities, caches
        81 => {
            if hopper {
                228 << 10
            } else {
                164 << 10
            }
        } // shared memory of a multiprocessor
        83 => 0,      // managed memory
        97 => {
            if hopper {
                227 << 10
            } else {
                163 << 10
            }
        } // shared memory of a block that asks for it
        106 => 32,    // blocks of a multiprocessor
        111 => 1024,  // shared memory that the system keeps
        115 => 1,     // memory pools
        _ => 0,
    }
}
