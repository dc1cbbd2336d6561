//! Reading another process's own memory, which the system copies straight into this one's: one copy where shared memory
//! takes two. Linux alone does it (`process_vm_readv`), and may refuse: to processes of other users, in some containers,
//! where Yama restricts tracing. So it is tried first, and what cannot be read so is sent through shared memory.
//!
//! The `unsafe` of this file is the call itself. It writes this process's buffer alone; what it reads the system checks.

use std::io;

/// Copies `into.len()` bytes from `address` of process `pid`.
///
/// # Errors
/// Where the system refuses, the process is gone, or its memory ends before.
#[cfg(target_os = "linux")]
pub(super) fn read_process_memory(pid: u32, address: u64, into: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        let rest = &mut into[done..];
        let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        let start = (address as usize + done) as *mut libc::c_void;
        let remote = libc::iovec { iov_base: start, iov_len: rest.len() };
        // SAFETY: `local` is a buffer borrowed for writing, of the length given; `remote` is looked up in the other process by
        // the system, which answers with an error where there is no such memory.
        let copied = unsafe { libc::process_vm_readv(pid as i32, &local, 1, &remote, 1, 0) };
        match copied {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            copied if copied > 0 => done += copied as usize,
            _ => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

/// Fails: other systems have no such call.
#[cfg(not(target_os = "linux"))]
pub(super) fn read_process_memory(_: u32, _: u64, _: &mut [u8]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
