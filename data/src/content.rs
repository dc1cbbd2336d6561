//! The content of files, which is read on request, or held in memory if the file is compressed.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use flate2::read::MultiGzDecoder;
use graphc_host::data::open_file;

use crate::error::DatasetError;

/// The most bytes that a compressed file may unpack to.
const MOST_UNPACKED: u64 = 1 << 30;

/// Bytes that can be read from any position, by several threads at once.
#[derive(Debug)]
pub(crate) struct FileContent {
    path: String,
    bytes: u64,
    held: ContentStorage,
}

#[derive(Debug)]
enum ContentStorage {
    File(File),
    Memory(Vec<u8>),
}

impl FileContent {
    /// Opens a file.
    ///
    /// # Errors
    /// Returns an error if the file does not exist, with a text that says what must lie there, or if it cannot be read.
    pub(crate) fn open(path: &Path, layout: &'static str) -> Result<Self, DatasetError> {
        let name = path.display().to_string();
        let file = open_file(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                DatasetError::Missing { path: name.clone(), layout }
            }
            ErrorKind::InvalidInput => {
                let reason = error.to_string();
                DatasetError::Damaged { path: name.clone(), reason, layout }
            }
            _ => DatasetError::unreadable_file(&name, error),
        })?;
        let bytes =
            file.metadata().map_err(|error| DatasetError::unreadable_file(&name, error))?.len();
        Ok(Self { path: name, bytes, held: ContentStorage::File(file) })
    }

    /// Opens a gzip file and unpacks all of its members, one behind the other.
    ///
    /// # Errors
    /// Returns an error if the file does not exist, is no whole gzip file, or unpacks to more than 1 GiB.
    pub(crate) fn unpack(path: &Path, layout: &'static str) -> Result<Self, DatasetError> {
        Self::unpack_within(path, layout, MOST_UNPACKED)
    }

    fn unpack_within(path: &Path, layout: &'static str, most: u64) -> Result<Self, DatasetError> {
        let packed = Self::open(path, layout)?;
        let damaged = |reason: String| packed.damaged_error(reason, layout);
        let ContentStorage::File(file) = &packed.held else {
            return Err(damaged("it is no file".into()));
        };
        let mut unpacked = Vec::new();
        let read = MultiGzDecoder::new(file).take(most + 1).read_to_end(&mut unpacked);
        read.map_err(|error| damaged(format!("it is no whole file of gzip ({error})")))?;
        let bytes = unpacked.len() as u64;
        if bytes > most {
            return Err(damaged(format!(
                "it unpacks to more than {most} bytes, which is the most"
            )));
        }
        Ok(Self { path: packed.path, bytes, held: ContentStorage::Memory(unpacked) })
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads bytes from position `at` on, as many as `into` has.
    ///
    /// # Errors
    /// Returns an error if there are not as many bytes, or they cannot be read.
    pub(crate) fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), DatasetError> {
        match &self.held {
            ContentStorage::File(file) => file
                .read_exact_at(into, at)
                .map_err(|error| DatasetError::unreadable_file(&self.path, error)),
            ContentStorage::Memory(bytes) => {
                let from = usize::try_from(at).ok().and_then(|at| bytes.get(at..));
                let part = from.and_then(|from| from.get(..into.len()));
                let part = part
                    .ok_or_else(|| DatasetError::unreadable_file(&self.path, "it is too short"))?;
                into.copy_from_slice(part);
                Ok(())
            }
        }
    }

    /// Makes the error of a file that is not what it should be.
    pub(crate) fn damaged_error(&self, reason: String, layout: &'static str) -> DatasetError {
        DatasetError::Damaged { path: self.path.clone(), reason, layout }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn no_more_is_unpacked_than_a_file_may_hold() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("packed.gz");
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packer.write_all(&[7; 1 << 10]).expect("memory");
        let member = packer.finish().expect("memory");
        std::fs::write(&path, member.repeat(65)).expect("writable");
        let unpack = |most| FileContent::unpack_within(&path, "a set", most);
        let error = unpack(1 << 16).expect_err("65 KiB").to_string();
        assert!(error.contains("it unpacks to more than 65536 bytes"), "{error}");
        assert_eq!(unpack(65 << 10).expect("all of it").bytes(), 65 << 10);
    }
}
