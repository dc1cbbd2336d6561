//! A tool that looks on at ranges, as NVIDIA's profilers do: NVTX asks its library to put functions into a program's tables.

use std::ffi::{CStr, c_char, c_void};
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Mutex;

/// The file that gets a line for each range that begins: how many are open in the thread, and its text.
const FILE: &str = "GPU_DOUBLE_RANGES";

/// The numbers by which a program asks for the table of functions that give tables, and for the module with plain functions.
const CALLBACKS: u32 = 1;
const CORE: i32 = 1;
const RANGE_PUSH: usize = 9;
const RANGE_POP: usize = 11;

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    size: usize,
    give_table: unsafe extern "C" fn(i32, *mut *const *mut *const c_void, *mut u32) -> i32,
}

thread_local! {
    static OPEN: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Puts the functions below where a program calls them. Returns 0 where it has no such places.
///
/// # Safety
/// `export_table` gives tables as NVTX has them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtx2(
    export_table: extern "C" fn(u32) -> *const c_void,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(callbacks) = export_table(CALLBACKS).cast::<Callbacks>().as_ref() else {
            return 0;
        };
        let (mut table, mut size) = (std::ptr::null(), 0);
        let given = (callbacks.give_table)(CORE, &raw mut table, &raw mut size);
        if callbacks.size < size_of::<Callbacks>() || given == 0 || size <= RANGE_POP as u32 {
            return 0;
        }
        **table.add(RANGE_PUSH) = push as *const c_void;
        **table.add(RANGE_POP) = pop as *const c_void;
    }
    1
}

/// A range begins.
unsafe extern "C" fn push(text: *const c_char) -> i32 {
    static ONE: Mutex<()> = Mutex::new(());
    let depth = OPEN.get();
    OPEN.set(depth + 1);
    // SAFETY: a text that ends in 0, as the interface has it.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    if let Some(path) = std::env::var_os(FILE) {
        let _one = ONE.lock();
        let file = OpenOptions::new().create(true).append(true).open(path);
        if let Err(error) = file.and_then(|mut file| writeln!(file, "{depth} {text}")) {
            eprintln!("gpu double: {FILE}: {error}");
        }
    }
    depth as i32
}

/// The last range ends.
unsafe extern "C" fn pop() -> i32 {
    let depth = OPEN.get();
    if depth == 0 {
        eprintln!("gpu double: a range ends that has not begun");
        return -1;
    }
    OPEN.set(depth - 1);
    depth as i32 - 1
}
