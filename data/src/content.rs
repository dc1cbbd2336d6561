//! The content of files: read where it is asked for, or held in memory where it was compressed.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use flate2::read::GzDecoder;
use graphc_runtime::data::open_file;

use crate::error::DatasetError;

/// As much as a compressed file may hold.
const MOST_UNPACKED: u64 = 1 << 30;

/// Bytes that can be read from any place, from several threads at once.
#[derive(Debug)]
pub(crate) struct Content {
    path: String,
    bytes: u64,
    held: Held,
}

#[derive(Debug)]
enum Held {
    File(File),
    Memory(Vec<u8>),
}

impl Content {
    /// Opens a file.
    ///
    /// # Errors
    /// Where it is not there, with what must be, or cannot be read.
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
            _ => DatasetError::read(&name, error),
        })?;
        let bytes = file.metadata().map_err(|error| DatasetError::read(&name, error))?.len();
        Ok(Self { path: name, bytes, held: Held::File(file) })
    }

    /// Opens a file of gzip and unpacks it.
    ///
    /// # Errors
    /// Where it is not there, is no whole file of gzip, or holds more than 1 GiB.
    pub(crate) fn unpack(path: &Path, layout: &'static str) -> Result<Self, DatasetError> {
        let packed = Self::open(path, layout)?;
        let damaged = |reason: String| packed.damaged(reason, layout);
        let Held::File(file) = &packed.held else { return Err(damaged("it is no file".into())) };
        let mut unpacked = Vec::new();
        let read = GzDecoder::new(file).take(MOST_UNPACKED + 1).read_to_end(&mut unpacked);
        read.map_err(|error| damaged(format!("it is no whole file of gzip ({error})")))?;
        let bytes = unpacked.len() as u64;
        if bytes > MOST_UNPACKED {
            return Err(damaged("it holds more than 1 GiB".into()));
        }
        Ok(Self { path: packed.path, bytes, held: Held::Memory(unpacked) })
    }

    /// The file.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// How many bytes there are.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads from a place on.
    ///
    /// # Errors
    /// Where there are not as many bytes, or they cannot be read.
    pub(crate) fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), DatasetError> {
        match &self.held {
            Held::File(file) => {
                file.read_exact_at(into, at).map_err(|error| DatasetError::read(&self.path, error))
            }
            Held::Memory(bytes) => {
                let from = usize::try_from(at).ok().and_then(|at| bytes.get(at..));
                let part = from.and_then(|from| from.get(..into.len()));
                let part = part.ok_or_else(|| DatasetError::read(&self.path, "it is too short"))?;
                into.copy_from_slice(part);
                Ok(())
            }
        }
    }

    /// The file is not what it should be.
    pub(crate) fn damaged(&self, reason: String, layout: &'static str) -> DatasetError {
        DatasetError::Damaged { path: self.path.clone(), reason, layout }
    }
}
