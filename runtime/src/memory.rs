//! Memory of ranks and of files.

use memmap2::Mmap;
use std::fs::File;

/// The content of a file.
pub(crate) fn map_file(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the map is read at once and dropped; that nobody shortens a file that is being read is asked of the user,
    // as every program that maps files does.
    unsafe { Mmap::map(file) }
}
