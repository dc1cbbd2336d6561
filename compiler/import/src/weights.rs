//! The weights of a model: element types, shapes, and where the bytes are. Bytes in files are read when they are asked
//! for, so that what needs shapes alone works without them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use graphc_ir::float8::{E4M3, E5M2};
use graphc_ir::table::decode_numbers;
use graphc_ir::types::{DType, TensorType};

use super::file;

/// The weights of a model, by the names of its variables.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weights {
    /// The weights.
    pub tensors: BTreeMap<String, WeightTensor>,
    /// The model's other parameters and buffers, which the graph has no variables for.
    pub others: BTreeMap<String, WeightTensor>,
    /// The names of weights whose numbers the import has computed with. With other numbers the graph would be another one.
    pub fixed: BTreeSet<String>,
}

/// One weight.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightTensor {
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<usize>,
    /// The bytes, or the part of a file that holds them.
    pub data: WeightData,
}

/// The content of a weight: elements row-major, little-endian, bool as one byte 0 or 1.
#[derive(Clone, Debug, PartialEq)]
pub enum WeightData {
    /// In memory.
    Bytes(Arc<[u8]>),
    /// In a part of a file, which need not be there until the bytes are needed.
    File {
        /// The file.
        path: PathBuf,
        /// The first byte of the part.
        offset: u64,
        /// The folder that must hold the file, links followed; `None` if it may be anywhere.
        folder: Option<PathBuf>,
    },
    /// A matrix with the columns of another one as rows.
    Turned(Arc<WeightTensor>),
}

/// An error of reading weights.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The file that holds them cannot be read.
    #[error("the weight `{name}` is in {}, which cannot be read: {reason}", path.display())]
    File {
        /// The weight.
        name: String,
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// There is no such weight.
    #[error("there is no weight `{name}`")]
    Missing {
        /// The weight.
        name: String,
    },
    /// A weight of another type than its variable.
    #[error("the weight `{name}` is {found} in {}, and {expected} in the model", path.display())]
    Type {
        /// The weight.
        name: String,
        /// The file.
        path: PathBuf,
        /// The type in the file.
        found: TensorType,
        /// The variable's type.
        expected: TensorType,
    },
    /// A file of weights is damaged.
    #[error("{} is no safetensors file: {reason}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
}

graphc_ir::readable_debug!(WeightsError);

impl Weights {
    /// Returns the bytes of a weight.
    ///
    /// # Errors
    /// Returns an error if there is no such weight, or the file that holds it cannot be read.
    pub fn bytes(&self, name: &str) -> Result<Arc<[u8]>, WeightsError> {
        let missing = || WeightsError::Missing { name: name.into() };
        self.tensors.get(name).ok_or_else(missing)?.bytes(name)
    }
}

impl WeightTensor {
    /// Returns the element type and shape.
    pub fn ty(&self) -> TensorType {
        TensorType::new(self.dtype, self.shape.clone())
    }

    /// Returns the bytes, read from the file if they are in one. `name` is for the error.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn bytes(&self, name: &str) -> Result<Arc<[u8]>, WeightsError> {
        match &self.data {
            WeightData::Bytes(bytes) => Ok(bytes.clone()),
            WeightData::File { .. } | WeightData::Turned(_) => Ok(self.to_vec(name)?.into()),
        }
    }

    /// Returns a copy of the bytes. Of bytes in a file it is the only one in memory. `name` is for the error.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn to_vec(&self, name: &str) -> Result<Vec<u8>, WeightsError> {
        match &self.data {
            WeightData::Bytes(bytes) => Ok(bytes.to_vec()),
            WeightData::File { path, offset, folder } => {
                let bytes = read_part(path, folder.as_deref(), *offset, self.ty().bytes());
                bytes.map_err(|error| WeightsError::File {
                    name: name.into(),
                    path: path.clone(),
                    reason: error.to_string(),
                })
            }
            WeightData::Turned(matrix) => {
                let bytes = matrix.bytes(name)?;
                let ([rows, columns], size) = ([self.shape[1], self.shape[0]], self.dtype.size());
                let places = (0..rows * columns).map(|at| at % rows * columns + at / rows);
                Ok(places.flat_map(|at| &bytes[at * size..][..size]).copied().collect())
            }
        }
    }

    /// Returns a matrix with its columns as rows. Its bytes are turned when they are asked for.
    ///
    /// # Panics
    /// If it has another number of dims than two.
    #[must_use]
    pub fn turn(&self) -> Self {
        let [rows, columns] = self.shape[..] else { panic!("{} is no matrix", self.ty()) };
        let data = match &self.data {
            WeightData::Turned(matrix) => matrix.data.clone(),
            WeightData::Bytes(_) | WeightData::File { .. } => {
                WeightData::Turned(Arc::new(self.clone()))
            }
        };
        Self { dtype: self.dtype, shape: vec![columns, rows], data }
    }

    /// Returns the elements as `f64`, whatever the element type.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn elements(&self, name: &str) -> Result<Vec<f64>, WeightsError> {
        Ok(decode_numbers(self.dtype, &self.bytes(name)?))
    }
}

fn read_part(
    path: &Path,
    folder: Option<&Path>,
    offset: u64,
    length: usize,
) -> std::io::Result<Vec<u8>> {
    let mut file = match folder {
        Some(folder) => file::open_file(&file::resolve_in_folder(folder, path)?)?,
        None => file::open_file(path)?,
    };
    let size = file.metadata()?.len();
    // Checked before memory is asked for, so that a damaged length cannot ask for all of it.
    if offset.checked_add(length as u64).is_none_or(|end| end > size) {
        let text = format!("it has {size} bytes, and {length} are needed from byte {offset} on");
        return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, text));
    }
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = file::allocate_zeros(length, 0)?;
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The bytes of elements of a type that has 32 bits, or is an integer or a truth value.
pub(crate) fn encode_elements(dtype: DType, elements: &[f64]) -> Vec<u8> {
    let each = |bytes: &dyn Fn(f64) -> Vec<u8>| elements.iter().flat_map(|&x| bytes(x)).collect();
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => each(&|x| (x as f32).to_le_bytes().to_vec()),
        DType::I64 => each(&|x| (x as i64).to_le_bytes().to_vec()),
        DType::I32 => each(&|x| (x as i32).to_le_bytes().to_vec()),
        DType::U8 => each(&|x| vec![x as u8]),
        DType::Bool => each(&|x| vec![u8::from(x != 0.0)]),
        DType::F8E4M3 => each(&|x| vec![E4M3.encode(x as f32)]),
        DType::F8E5M2 => each(&|x| vec![E5M2.encode(x as f32)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_file_is_an_error_only_when_its_bytes_are_needed() {
        let data = WeightData::File { path: "absent.bin".into(), offset: 0, folder: None };
        let tensor = WeightTensor { dtype: DType::F32, shape: vec![2], data };
        let error = tensor.bytes("w").expect_err("there is no such file").to_string();
        assert!(
            error.starts_with("the weight `w` is in absent.bin, which cannot be read"),
            "{error}"
        );
    }
}
