//! Memory that processes of one host share. A process makes it without a name (memfd), and the others open it through
//! /proc: it goes when the last process that maps it ends, however it ends.
//!
//! The `unsafe` of this file: bytes of a mapping are lent as slices. Who may write which when is said by the queues that
//! lie in the memory ([`super::shared`]), whose counters order the accesses of both processes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

use memmap2::{MmapOptions, MmapRaw};

/// A mapping of shared memory, own or a peer's.
#[derive(Debug)]
pub(crate) struct SharedSegment {
    map: MmapRaw,
    /// The file, kept open by its maker so that others can open it.
    file: Option<File>,
}

impl SharedSegment {
    /// Makes new memory of zeros. Its pages are made when they are touched.
    #[cfg(target_os = "linux")]
    pub(crate) fn new(bytes: u64) -> io::Result<Self> {
        use rustix::fs::{MemfdFlags, memfd_create};
        let file = File::from(memfd_create("graphc", MemfdFlags::CLOEXEC)?);
        file.set_len(bytes)?;
        let map = Self::map_bytes(&file, bytes)?;
        // Larger pages make large arenas faster; where the system gives none nothing is lost.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Self { map, file: Some(file) })
    }

    /// Fails: elsewhere there is no such memory, and processes speak TCP.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn new(_: u64) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Maps the memory of another process.
    pub(crate) fn open(pid: u32, descriptor: i32, bytes: u64) -> io::Result<Self> {
        let path = format!("/proc/{pid}/fd/{descriptor}");
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        if file.metadata()?.len() != bytes {
            return Err(io::Error::other("the memory has another size than announced"));
        }
        Ok(Self { map: Self::map_bytes(&file, bytes)?, file: None })
    }

    fn map_bytes(file: &File, bytes: u64) -> io::Result<MmapRaw> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        MmapOptions::new().len(bytes).no_reserve_swap().map_raw(file)
    }

    /// Returns the maker's file descriptor.
    pub(crate) fn descriptor(&self) -> i32 {
        self.file.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Returns the address of `bytes` bytes from `offset`, if they are inside.
    pub(super) fn locate_range(&self, offset: u64, bytes: u64) -> Option<*mut u8> {
        let end = offset.checked_add(bytes)?;
        // SAFETY: inside the mapping, or one past it.
        (end <= self.len() as u64).then(|| unsafe { self.start().add(offset as usize) })
    }

    /// Returns bytes to be read, if inside.
    ///
    /// # Safety
    /// Nobody writes them while they are borrowed.
    pub(crate) unsafe fn read(&self, offset: u64, bytes: u64) -> Option<&[u8]> {
        let start = self.locate_range(offset, bytes)?;
        // SAFETY: inside the mapping; not written, as the caller promises.
        Some(unsafe { std::slice::from_raw_parts(start, bytes as usize) })
    }

    /// Returns bytes to be written, if inside.
    ///
    /// # Safety
    /// Nobody else reads or writes them while they are borrowed.
    #[expect(clippy::mut_from_ref, reason = "exclusive by the caller's promise")]
    pub(crate) unsafe fn write(&self, offset: u64, bytes: u64) -> Option<&mut [u8]> {
        let start = self.locate_range(offset, bytes)?;
        // SAFETY: inside the mapping; nobody else's, as the caller promises.
        Some(unsafe { std::slice::from_raw_parts_mut(start, bytes as usize) })
    }

    /// Returns a structure at an offset, if it fits.
    ///
    /// # Safety
    /// `T` consists of atomics alone, so that zeros and whatever another process writes are values of it.
    pub(crate) unsafe fn struct_at<T>(&self, offset: u64) -> Option<&T> {
        let start = self.locate_range(offset, size_of::<T>() as u64)?;
        let aligned = start.cast::<T>().is_aligned();
        // SAFETY: inside the mapping and aligned; shared access to atomics is sound whoever else has it.
        aligned.then(|| unsafe { &*start.cast::<T>() })
    }
}
