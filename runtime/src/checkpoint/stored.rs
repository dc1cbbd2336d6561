//! The content of a checkpoint's files.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use graphc_comm::memory::ArenaRange;
use graphc_host::data::{head_of_file, place_in_file};
use graphc_host::tensor::{HostTensor, is_finite};
use graphc_ir::hex::encode_hex;
use graphc_ir::sbp::ReduceKind;
use graphc_ir::shard::Rect;
use graphc_ir::types::DType;
use graphc_plan::TensorKind;
use sha2::{Digest, Sha256};

use super::manifest::{CheckpointPart, FileRecord, VariablePiece, VariableRecord};
use super::{CheckpointError, folder};
use crate::device::DeviceMemory;

/// A rectangle of a variable.
pub(super) struct StoredRectangle<'a> {
    pub(super) name: &'a str,
    pub(super) kind: TensorKind,
    pub(super) dtype: DType,
    /// The shape of the whole.
    pub(super) shape: &'a [usize],
    pub(super) rect: Rect,
    /// `None` where a rank before this one holds the same; otherwise how it combines with those before it.
    pub(super) added: Option<Option<ReduceKind>>,
    pub(super) bytes: StoredBytes<'a>,
    /// Whether training changes it: then all of its elements must be finite.
    pub(super) updated: bool,
}

impl<'a> StoredRectangle<'a> {
    /// Describes a variable that lies whole in the memory of the host.
    pub(super) fn from_host_tensor(
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
            bytes: StoredBytes::Host(tensor.bytes()),
            updated,
        }
    }

    /// Writes its elements, which are read once, as that may bring them from a card. Whether a training has made of it
    /// what no training goes on from.
    fn write_elements(&self, file: &mut HashedFile) -> std::io::Result<bool> {
        self.bytes.read(|bytes| {
            file.write(bytes)?;
            Ok(self.updated && !is_finite(self.dtype, bytes))
        })
    }
}

/// The place of the elements.
pub(super) enum StoredBytes<'a> {
    /// Bytes in the memory of a rank.
    Of(&'a DeviceMemory, ArenaRange),
    /// Bytes in the memory of the host.
    Host(&'a [u8]),
}

impl StoredBytes<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Of(_, place) => place.bytes,
            Self::Host(bytes) => bytes.len(),
        }
    }

    /// Calls `read` with the bytes. No stream may be in a step.
    fn read<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Self::Of(memory, place) => memory.read(*place, read),
            Self::Host(bytes) => read(bytes),
        }
    }
}

/// Writes what a rank adds to a checkpoint, each rectangle that no rank before it has, and returns what it has written.
pub(super) fn write_rank_part(
    partial: &Path,
    rank: u32,
    all: Vec<StoredRectangle<'_>>,
) -> Result<CheckpointPart, CheckpointError> {
    let name = folder::shards_name(rank);
    let mut part = CheckpointPart::default();
    let mut kept = Vec::new();
    for stored in all {
        let (kind, dtype, shape) = (stored.kind, stored.dtype, stored.shape.to_vec());
        let mut record = VariableRecord { kind, dtype, shape, pieces: Vec::new() };
        let variable = stored.name.to_owned();
        if let Some(reduce) = stored.added
            && stored.bytes.len() > 0
        {
            let (file, tensor, rect) = (name.clone(), variable.clone(), stored.rect.clone());
            record.pieces.push(VariablePiece { file, tensor, rect, reduce });
            kept.push(stored);
        }
        part.variables.insert(variable, record);
    }
    if !kept.is_empty() {
        kept.sort_by_key(|stored| place_in_file(stored.dtype, stored.name));
        let path = partial.join(&name);
        let written = write_safetensors(&path, &kept);
        let (file, ruined) =
            written.map_err(|error| CheckpointError::cannot_write(&path, error))?;
        part.files.insert(name, file);
        part.not_finite.extend(ruined);
    }
    Ok(part)
}

/// Writes a safetensors file straight from memory, its hash taken on the way; returns the names of variables that a training has
/// ruined.
fn write_safetensors(
    path: &Path,
    all: &[StoredRectangle<'_>],
) -> std::io::Result<(FileRecord, Vec<String>)> {
    let tensors = all.iter().map(|stored| (stored.name, stored.dtype, &stored.rect.extent[..]));
    let head = head_of_file(tensors)?;
    let mut file = HashedFile::create(path)?;
    file.write(&head)?;
    let mut ruined = Vec::new();
    for stored in all {
        if stored.write_elements(&mut file)? {
            ruined.push(stored.name.to_owned());
        }
    }
    Ok((file.finish()?, ruined))
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
        let sha256 = encode_hex(&self.hash.finalize());
        Ok(FileRecord { bytes: self.bytes, sha256 })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use graphc_host::data::save_safetensors;
    use graphc_host::tensor::HostTensor;

    /// Variables of several types: of those of 4 bytes the names and the types are in different orders.
    fn variables() -> BTreeMap<String, HostTensor> {
        let [i64, i32, f32, f16] = [DType::I64, DType::I32, DType::F32, DType::F16]
            .map(|dtype| HostTensor::from_f64(dtype, [3], &[1.0, 2.0, 3.0]).expect("3 elements"));
        let ruined = HostTensor::from_f32([2], &[1.0, f32::INFINITY]).expect("2 elements");
        let named = [("a", i32), ("b", f32), ("c", i64), ("d", f16), ("e", ruined.clone())];
        let all = named.into_iter().chain([("f", ruined)]);
        all.map(|(name, tensor)| (name.to_owned(), tensor)).collect()
    }

    fn stored<'a>((name, tensor): (&'a String, &'a HostTensor)) -> StoredRectangle<'a> {
        StoredRectangle::from_host_tensor(name, TensorKind::Parameter, tensor, name != "f")
    }

    #[test]
    fn a_file_of_a_checkpoint_is_a_file_of_tensors_and_what_is_ruined_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let variables = variables();
        let part = write_rank_part(folder.path(), 0, variables.iter().map(stored).collect());
        let part = part.expect("writable");
        assert_eq!(part.not_finite, ["e".to_owned()].into());
        let of_tensors = folder.path().join("tensors");
        save_safetensors(&of_tensors, &variables).expect("writable");
        let written = folder.path().join(folder::shards_name(0));
        let [written, of_tensors] = [written, of_tensors].map(|path| std::fs::read(path).ok());
        assert!(written.is_some() && written == of_tensors, "{written:?}, {of_tensors:?}");
    }
}
