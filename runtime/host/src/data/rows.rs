//! Safetensors files of which rows are read, and the whole where it is asked for.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use graphc_ir::types::TensorType;
use safetensors::tensor::Metadata;

use super::recognise::describe_fault;
use super::stored::StoredElements;
use super::{HostFileError, Pieces, open_file};
use crate::tensor::HostTensor;

/// The greatest number of bytes that the format allows for a header.
const MOST_HEADER: u64 = 100_000_000;

/// A safetensors file that stays where it is: rows of its tensors are read as they are asked for.
#[derive(Debug)]
pub struct TensorFile {
    path: String,
    file: File,
    tensors: BTreeMap<String, TensorType>,
    places: BTreeMap<String, TensorPlace>,
}

/// The place of a tensor in a file.
#[derive(Clone, Copy, Debug)]
struct TensorPlace {
    /// The offset at which it begins, in bytes.
    begin: u64,
    elements: StoredElements,
}

impl TensorFile {
    /// Opens a file and reads its header. Tensors of element types that graphc lacks are read as one that it has (binary64 as binary32,
    /// narrow integers as wider ones), or left aside where there is none.
    ///
    /// # Errors
    /// Where the file cannot be read, or is no safetensors file of the length that its header says.
    pub fn open(path: &Path) -> Result<Self, HostFileError> {
        let fail =
            |reason: String| HostFileError::Read { path: path.display().to_string(), reason };
        let file = open_file(path).map_err(|e| fail(e.to_string()))?;
        let (metadata, data) =
            read_header(&file).map_err(|reason| fail(describe_fault(&file, &reason)))?;
        let (mut tensors, mut places) = (BTreeMap::new(), BTreeMap::new());
        for (name, info) in metadata.tensors() {
            if let Some(elements) = StoredElements::of_file(info.dtype) {
                let ty = TensorType { dtype: elements.dtype, shape: info.shape.clone() };
                let begin = data + info.data_offsets.0 as u64;
                tensors.insert(name.clone(), ty);
                places.insert(name, TensorPlace { begin, elements });
            }
        }
        Ok(Self { path: path.display().to_string(), file, tensors, places })
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
    ) -> Result<(), HostFileError> {
        let (ty, place) = self.find_tensor(name)?;
        let rows = ty.shape.get(dim).copied().unwrap_or(0);
        if row >= rows || ty.bytes() / rows != into.len() {
            let text = format!("`{name}` is {ty}: no row {row} of {} bytes", into.len());
            return Err(self.read_error(text));
        }
        let bytes = Pieces::along_dim(ty, dim).bytes;
        let elements = bytes / ty.dtype.size();
        for (block, piece) in into.chunks_exact_mut(bytes.max(1)).enumerate() {
            self.read_elements(place, (block * rows + row) * elements, piece)?;
        }
        Ok(())
    }

    /// Reads a tensor.
    ///
    /// # Errors
    /// Where there is none of that name, or the file cannot be read.
    pub fn read(&self, name: &str) -> Result<HostTensor, HostFileError> {
        let (ty, place) = self.find_tensor(name)?;
        let mut tensor = HostTensor::zeros(ty.dtype, ty.shape.clone());
        self.read_elements(place, 0, tensor.bytes_mut())?;
        Ok(tensor)
    }

    /// Reads elements of a tensor, of which `first` is the first, until `into` is full.
    fn read_elements(
        &self,
        place: TensorPlace,
        first: usize,
        into: &mut [u8],
    ) -> Result<(), HostFileError> {
        let TensorPlace { begin, elements } = place;
        let at = begin + (first * elements.size()) as u64;
        let read = if elements.are_same() {
            self.file.read_exact_at(into, at)
        } else {
            let mut stored = vec![0; into.len() / elements.dtype.size() * elements.size()];
            let read = self.file.read_exact_at(&mut stored, at);
            elements.convert(&stored, into);
            read
        };
        read.map_err(|e| self.read_error(e.to_string()))
    }

    /// Finds a tensor's type, and where it lies.
    fn find_tensor(&self, name: &str) -> Result<(&TensorType, TensorPlace), HostFileError> {
        let known = self.tensors.get(name).zip(self.places.get(name).copied());
        known.ok_or_else(|| self.read_error(format!("it has no tensor `{name}`")))
    }

    fn read_error(&self, reason: String) -> HostFileError {
        HostFileError::Read { path: self.path.clone(), reason }
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

    /// Elements of types that graphc lacks keep their values, but for the rounding of binary64.
    #[test]
    fn elements_of_other_types_are_read_as_those_of_graphc() {
        use safetensors::tensor::{Dtype, TensorView};
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.safetensors");
        let floats: Vec<u8> =
            [0.1f64, -2.5, 1e300, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let words: Vec<u8> = [-1i16, 300, -32768, 7].iter().flat_map(|v| v.to_le_bytes()).collect();
        let unsigned: Vec<u8> = [u32::MAX, 1, 2, 3].iter().flat_map(|v| v.to_le_bytes()).collect();
        let view = |dtype, bytes| TensorView::new(dtype, vec![2, 2], bytes).expect("it fits");
        let tensors = [
            ("floats", view(Dtype::F64, &floats[..])),
            ("words", view(Dtype::I16, &words)),
            ("wide", view(Dtype::U16, &words)),
            ("bytes", view(Dtype::I8, &[255, 1, 128, 127])),
            ("unsigned", view(Dtype::U32, &unsigned)),
            ("far", view(Dtype::U64, &floats)),
        ];
        safetensors::serialize_to_file(tensors, None, &path).expect("it is writable");
        let file = TensorFile::open(&path).expect("it is whole");
        assert!(!file.tensors().contains_key("far"));
        for (name, ty, values) in [
            ("floats", "f32[2, 2]", [f64::from(0.1f32), -2.5, f64::INFINITY, 4.0]),
            ("words", "i32[2, 2]", [-1.0, 300.0, -32768.0, 7.0]),
            ("wide", "i32[2, 2]", [65535.0, 300.0, 32768.0, 7.0]),
            ("bytes", "i32[2, 2]", [-1.0, 1.0, -128.0, 127.0]),
            ("unsigned", "i64[2, 2]", [4_294_967_295.0, 1.0, 2.0, 3.0]),
        ] {
            let found = file.read(name).expect("it is there");
            assert_eq!((found.ty().to_string().as_str(), &found.to_f64()[..]), (ty, &values[..]));
            let mut row = HostTensor::zeros(found.ty().dtype, [2]);
            file.read_row(name, (1, 1), row.bytes_mut()).expect("there are 2");
            assert_eq!(row.to_f64(), [values[1], values[3]], "{name}");
        }
        let loaded = crate::data::load_safetensors(&path).expect_err("u64 has no type");
        assert!(loaded.to_string().contains("`far` has elements of U64"), "{loaded}");
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
