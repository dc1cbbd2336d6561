//! Safetensors files of which rows are read, and the whole where it is asked for.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use graphc_ir::types::TensorType;
use safetensors::tensor::Metadata;

use super::tensors::dtype_of;
use super::{DataError, Pieces, open_file};
use crate::tensor::HostTensor;

/// The greatest number of bytes that the format allows for a header.
const MOST_HEADER: u64 = 100_000_000;

/// A safetensors file that stays where it is: rows of its tensors are read as they are asked for.
#[derive(Debug)]
pub struct TensorFile {
    path: String,
    file: File,
    tensors: BTreeMap<String, TensorType>,
    /// The offset in the file at which each of them begins, in bytes.
    begins: BTreeMap<String, u64>,
}

impl TensorFile {
    /// Opens a file and reads its header. Tensors of element types that graphc lacks are left aside.
    ///
    /// # Errors
    /// Where the file cannot be read, or is no safetensors file of the length that its header says.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let fail = |reason: String| DataError::Read { path: path.display().to_string(), reason };
        let file = open_file(path).map_err(|e| fail(e.to_string()))?;
        let (metadata, data) = read_header(&file)
            .map_err(|reason| fail(format!("it is no valid safetensors file: {reason}")))?;
        let (mut tensors, mut begins) = (BTreeMap::new(), BTreeMap::new());
        for (name, info) in metadata.tensors() {
            if let Some(dtype) = dtype_of(info.dtype) {
                tensors.insert(name.clone(), TensorType { dtype, shape: info.shape.clone() });
                begins.insert(name, data + info.data_offsets.0 as u64);
            }
        }
        Ok(Self { path: path.display().to_string(), file, tensors, begins })
    }

    /// Returns the tensors, by name.
    pub fn tensors(&self) -> &BTreeMap<String, TensorType> {
        &self.tensors
    }

    /// Reads one row, element `row` of the dim `dim`, of a tensor.
    ///
    /// # Errors
    /// Where there is no such row, it has not as many bytes as `into`, or the file cannot be read.
    pub fn read_row(
        &self,
        name: &str,
        (dim, row): (usize, usize),
        into: &mut [u8],
    ) -> Result<(), DataError> {
        let (ty, begin) = self.find_tensor(name)?;
        let rows = ty.shape.get(dim).copied().unwrap_or(0);
        if row >= rows || ty.bytes() / rows != into.len() {
            let text = format!("`{name}` is {ty}: no row {row} of {} bytes", into.len());
            return Err(self.read_error(text));
        }
        let bytes = Pieces::along_dim(ty, dim).bytes;
        for (block, piece) in into.chunks_exact_mut(bytes.max(1)).enumerate() {
            let at = begin + ((block * rows + row) * bytes) as u64;
            self.file.read_exact_at(piece, at).map_err(|e| self.read_error(e.to_string()))?;
        }
        Ok(())
    }

    /// Reads a tensor.
    ///
    /// # Errors
    /// Where there is none of that name, or the file cannot be read.
    pub fn read(&self, name: &str) -> Result<HostTensor, DataError> {
        let (ty, begin) = self.find_tensor(name)?;
        let mut tensor = HostTensor::zeros(ty.dtype, ty.shape.clone());
        let read = self.file.read_exact_at(tensor.bytes_mut(), begin);
        read.map_err(|e| self.read_error(e.to_string()))?;
        Ok(tensor)
    }

    /// Finds a tensor's type, and where it begins.
    fn find_tensor(&self, name: &str) -> Result<(&TensorType, u64), DataError> {
        let known = self.tensors.get(name).zip(self.begins.get(name).copied());
        known.ok_or_else(|| self.read_error(format!("it has no tensor `{name}`")))
    }

    fn read_error(&self, reason: String) -> DataError {
        DataError::Read { path: self.path.clone(), reason }
    }
}

/// Reads the header of a file, and returns where its data begins.
fn read_header(file: &File) -> Result<(Metadata, u64), String> {
    let said = |e: std::io::Error| e.to_string();
    let length = file.metadata().map_err(said)?.len();
    let mut word = [0; 8];
    file.read_exact_at(&mut word, 0).map_err(|_| "it is shorter than a header".to_owned())?;
    let bytes = u64::from_le_bytes(word);
    if bytes > MOST_HEADER || bytes > length - 8 {
        return Err(format!("its header has {bytes} bytes, the file {length}"));
    }
    let mut text = vec![0; bytes as usize];
    file.read_exact_at(&mut text, 8).map_err(said)?;
    let metadata: Metadata = serde_json::from_slice(&text).map_err(|e| e.to_string())?;
    let (data, expected) = (8 + bytes, (8 + bytes).checked_add(metadata.data_len() as u64));
    if expected != Some(length) {
        let expected = expected.unwrap_or(u64::MAX);
        return Err(format!("it has {length} bytes where its header says {expected}"));
    }
    Ok((metadata, data))
}

#[cfg(test)]
mod tests {
    use graphc_ir::types::DType;

    use super::*;
    use crate::data::save_safetensors;

    fn saved(path: &Path) -> TensorFile {
        let x = HostTensor::from_f32([3, 2], &[0., 1., 2., 3., 4., 5.]).expect("6 elements");
        let flag = HostTensor::zeros(DType::Bool, []);
        let tensors = [("x".to_owned(), x), ("flag".to_owned(), flag)].into();
        save_safetensors(path, &tensors).expect("it is writable");
        TensorFile::open(path).expect("it is whole")
    }

    #[test]
    fn rows_are_those_of_the_tensor() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = saved(&folder.path().join("t.safetensors"));
        assert_eq!(file.tensors()["x"].to_string(), "f32[3, 2]");
        let mut row = [0; 8];
        file.read_row("x", (0, 1), &mut row).expect("there are 3");
        assert_eq!(HostTensor::new(DType::F32, [2], row.into()).expect("2").to_f64(), [2.0, 3.0]);
        file.read_row("x", (0, 3), &mut row).expect_err("there are 3");
        file.read_row("x", (0, 0), &mut row[1..]).expect_err("a row has 8 bytes");
        file.read_row("flag", (0, 0), &mut row[..1]).expect_err("it has no rows");
        file.read_row("z", (0, 0), &mut row).expect_err("there is none");
        let mut column = [0; 12];
        file.read_row("x", (1, 1), &mut column).expect("there are 2");
        let column = HostTensor::new(DType::F32, [3], column.into()).expect("3");
        assert_eq!(column.to_f64(), [1.0, 3.0, 5.0]);
        assert_eq!(file.read("x").expect("it is there").to_f64(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    }

    #[test]
    fn files_of_another_length_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.safetensors");
        drop(saved(&path));
        let whole = std::fs::read(&path).expect("it exists");
        for length in [0, 7, 8, 30, whole.len() - 1] {
            std::fs::write(&path, &whole[..length]).expect("it is writable");
            let error = TensorFile::open(&path).expect_err("it was cut").to_string();
            assert!(error.contains("t.safetensors"), "{error}");
        }
        std::fs::write(&path, [&whole[..], b"more"].concat()).expect("it is writable");
        TensorFile::open(&path).expect_err("it is too long");
    }
}
