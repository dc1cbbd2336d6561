//! An account of a program's calls to the double: how many there are, how many of them give streams something to do, and
//! how long the double takes for them. Where kernels are empty that is what is left of its own cost, and is subtracted
//! where the cost of the program is measured.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// The file that a process writes its account to as it ends, if any: two whole numbers in JSON.
const FILE: &str = "GPU_DOUBLE_CALLS";

static CALLS: AtomicU64 = AtomicU64::new(0);
static GIVEN: AtomicU64 = AtomicU64::new(0);
static NANOSECONDS: AtomicU64 = AtomicU64::new(0);

/// Whether streams do nothing of what they are given: `GPU_DOUBLE_EMPTY=1`.
pub fn is_empty() -> bool {
    static EMPTY: LazyLock<bool> =
        LazyLock::new(|| std::env::var("GPU_DOUBLE_EMPTY").is_ok_and(|text| text.trim() == "1"));
    *EMPTY
}

/// Counts a call, and the time that it takes.
#[inline]
pub fn measured<R>(call: impl FnOnce() -> R) -> R {
    let begun = Instant::now();
    let result = call();
    NANOSECONDS.fetch_add(begun.elapsed().as_nanos() as u64, Relaxed);
    CALLS.fetch_add(1, Relaxed);
    result
}

/// A stream was given something to do.
#[inline]
pub fn given() {
    GIVEN.fetch_add(1, Relaxed);
}

/// Calls of the process so far, those that gave streams something to do, and nanoseconds in all of them.
///
/// # Safety
/// `numbers` is a place for three numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuDoubleAccount(numbers: *mut u64) {
    for (place, number) in [&CALLS, &GIVEN, &NANOSECONDS].into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { numbers.add(place).write(number.load(Relaxed)) };
    }
}

/// Writes the account as the process ends.
extern "C" fn write() {
    if let Some(file) = std::env::var_os(FILE).map(PathBuf::from) {
        let (calls, given) = (CALLS.load(Relaxed), GIVEN.load(Relaxed));
        let written =
            std::fs::write(&file, format!("{{\"calls\": {calls}, \"given\": {given}}}\n"));
        if let Err(error) = written {
            eprintln!("gpu double: {FILE}={}: {error}", file.display());
        }
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = write;
