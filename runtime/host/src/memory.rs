//! The memory of this machine, and files as memory.

use std::fs::File;

use memmap2::Mmap;

/// Returns the bytes of memory and swap space of this machine; `None` where the system does not say.
#[cfg(target_os = "linux")]
pub fn memory_and_swap() -> Option<u64> {
    let system = rustix::system::sysinfo();
    let pages = system.totalram.checked_add(system.totalswap)?;
    pages.checked_mul(system.mem_unit.max(1).into())
}

/// Returns the bytes of memory and swap space of this machine; `None` where the system does not say.
#[cfg(not(target_os = "linux"))]
pub fn memory_and_swap() -> Option<u64> {
    None
}

/// Maps the content of a file.
///
/// # Errors
/// Where the system cannot map it.
pub fn map_file(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the map is read at once and dropped; that nobody shortens a file while it is read is asked of the user, as
    // by every program that maps files.
    unsafe { Mmap::map(file) }
}
