//! What goes into the files of a checkpoint.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use graphc_ir::plan::TensorKind;
use graphc_ir::sbp::ReduceKind;
use graphc_ir::shard::Rect;
use graphc_ir::types::DType;
use safetensors::tensor::{Metadata, TensorInfo};
use sha2::{Digest, Sha256};

use super::manifest::{FileRecord, Part, Piece, VariableRecord, hexadecimal};
use super::{CheckpointError, folder};
use crate::data::file_dtype;
use crate::device::Memory;
use crate::memory::Place;
use crate::tensor::{HostTensor, is_finite};

/// A rectangle of a variable.
pub(super) struct Stored<'a> {
    pub(super) name: &'a str,
    pub(super) kind: TensorKind,
    pub(super) dtype: DType,
    /// Of the whole.
    pub(super) shape: &'a [usize],
    pub(super) rect: Rect,
    /// `None` where a rank before this one holds the same; otherwise how it combines with those before it.
    pub(super) added: Option<Option<ReduceKind>>,
    pub(super) bytes: Bytes<'a>,
    /// Whether training changes it: then all of its elements must be finite.
    pub(super) updated: bool,
}

impl<'a> Stored<'a> {
    /// A variable that lies whole in the memory of the host.
    pub(super) fn whole(
        name: &'a str,
        kind: TensorKind,
        tensor: &'a HostTensor,
        updated: bool,
    ) -> Self {
        Self {
            name,
            kind,
            dtype: tensor.dtype(),
            shape: tensor.shape(),
            rect: Rect::whole(tensor.shape()),
            added: Some(None),
            bytes: Bytes::Host(tensor.bytes()),
            updated,
        }
    }

    /// Whether a training has made of it what no training goes on from.
    fn is_ruined(&self) -> bool {
        self.updated && !self.bytes.read(|bytes| is_finite(self.dtype, bytes))
    }
}

/// Where the elements are.
pub(super) enum Bytes<'a> {
    /// In the memory of a rank.
    Of(&'a Memory, Place),
    /// In the memory of the host.
    Host(&'a [u8]),
}

impl Bytes<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Of(_, place) => place.bytes,
            Self::Host(bytes) => bytes.len(),
        }
    }

    /// No stream may be in a step.
    fn read<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Self::Of(memory, place) => memory.read(*place, read),
            Self::Host(bytes) => read(bytes),
        }
    }
}

/// Writes what a rank adds to a checkpoint, each rectangle that no rank before it has. What it has written.
pub(super) fn write(
    partial: &Path,
    rank: u32,
    all: Vec<Stored<'_>>,
) -> Result<Part, CheckpointError> {
    let name = folder::shards_name(rank);
    let mut part = Part::default();
    let mut kept = Vec::new();
    for stored in all {
        let (kind, dtype, shape) = (stored.kind, stored.dtype, stored.shape.to_vec());
        let mut record = VariableRecord { kind, dtype, shape, pieces: Vec::new() };
        let variable = stored.name.to_owned();
        if let Some(reduce) = stored.added
            && stored.bytes.len() > 0
        {
            if stored.is_ruined() {
                part.not_finite.insert(variable.clone());
            }
            let (file, tensor, rect) = (name.clone(), variable.clone(), stored.rect.clone());
            record.pieces.push(Piece { file, tensor, rect, reduce });
            kept.push(stored);
        }
        part.variables.insert(variable, record);
    }
    if !kept.is_empty() {
        // The widest elements first: then all are aligned.
        kept.sort_by_key(|stored| (std::cmp::Reverse(stored.dtype.size()), stored.name));
        let path = partial.join(&name);
        let written = write_safetensors(&path, &kept);
        part.files.insert(name, written.map_err(|error| CheckpointError::write(&path, error))?);
    }
    Ok(part)
}

/// Writes a safetensors file straight from memory, its hash taken on the way.
fn write_safetensors(path: &Path, all: &[Stored<'_>]) -> std::io::Result<FileRecord> {
    let mut end = 0;
    let infos = all.iter().map(|stored| {
        let start = end;
        end += stored.bytes.len();
        let (dtype, shape) = (file_dtype(stored.dtype), stored.rect.extent.clone());
        (stored.name.to_owned(), TensorInfo { dtype, shape, data_offsets: (start, end) })
    });
    let metadata = Metadata::new(None, infos.collect()).map_err(std::io::Error::other)?;
    let mut header = serde_json::to_vec(&metadata)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = HashedFile::create(path)?;
    file.write(&(header.len() as u64).to_le_bytes())?;
    file.write(&header)?;
    all.iter().try_for_each(|stored| stored.bytes.read(|bytes| file.write(bytes)))?;
    file.finish()
}

struct HashedFile {
    file: BufWriter<File>,
    hash: Sha256,
    bytes: u64,
}

impl HashedFile {
    fn create(path: &Path) -> std::io::Result<Self> {
        let file = File::options().write(true).create_new(true).open(path)?;
        Ok(Self { file: BufWriter::new(file), hash: Sha256::new(), bytes: 0 })
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    /// Makes it durable.
    fn finish(self) -> std::io::Result<FileRecord> {
        let file = self.file.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        file.sync_all()?;
        let sha256 = hexadecimal(&self.hash.finalize());
        Ok(FileRecord { bytes: self.bytes, sha256 })
    }
}
