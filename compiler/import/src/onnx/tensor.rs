//! Tensors of a model file: types, shapes and bytes, checked against each other.

use std::path::{Component, Path};

use graphc_ir::types::{DType, TensorType};
use rten_onnx::onnx::{DataLocation, DataType, TensorProto};

use crate::ImportError;
use crate::weights::{WeightData, WeightTensor};

/// An element type of a file: how it is stored, and the element type that it becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoredType {
    data_type: i32,
    /// Bytes of a stored element.
    size: usize,
    /// The element type that it becomes.
    pub dtype: DType,
}

/// Returns how graphc reads an element type; `None` if it does not. A type that graphc lacks becomes the nearest that it has.
pub(super) fn stored_type(data_type: DataType) -> Option<StoredType> {
    let (size, dtype) = match data_type {
        DataType::FLOAT => (4, DType::F32),
        DataType::DOUBLE => (8, DType::F32),
        DataType::FLOAT16 => (2, DType::F16),
        DataType::BFLOAT16 => (2, DType::BF16),
        DataType::INT64 | DataType::UINT64 => (8, DType::I64),
        DataType::UINT32 => (4, DType::I64),
        DataType::INT32 => (4, DType::I32),
        DataType::INT16 | DataType::UINT16 => (2, DType::I32),
        DataType::INT8 => (1, DType::I32),
        DataType::UINT8 => (1, DType::U8),
        DataType::BOOL => (1, DType::Bool),
        _ => return None,
    };
    Some(StoredType { data_type: data_type.0, size, dtype })
}

impl StoredType {
    /// Whether elements are kept as they are stored.
    pub(super) fn is_exact(self) -> bool {
        let exact = [DataType::FLOAT, DataType::FLOAT16, DataType::BFLOAT16, DataType::INT64]
            .into_iter()
            .chain([DataType::INT32, DataType::UINT8, DataType::BOOL]);
        exact.into_iter().any(|data_type| data_type.0 == self.data_type)
    }

    /// Converts stored bytes to the bytes of the element type that they become.
    fn convert_bytes(self, bytes: &[u8]) -> Vec<u8> {
        fn convert_chunks<const N: usize, const M: usize>(
            b: &[u8],
            f: impl Fn([u8; N]) -> [u8; M],
        ) -> Vec<u8> {
            b.as_chunks::<N>().0.iter().flat_map(|&chunk| f(chunk)).collect()
        }
        match DataType(self.data_type) {
            DataType::DOUBLE => {
                convert_chunks(bytes, |b: [u8; 8]| (f64::from_le_bytes(b) as f32).to_le_bytes())
            }
            DataType::UINT32 => {
                convert_chunks(bytes, |b: [u8; 4]| i64::from(u32::from_le_bytes(b)).to_le_bytes())
            }
            DataType::INT16 => {
                convert_chunks(bytes, |b: [u8; 2]| i32::from(i16::from_le_bytes(b)).to_le_bytes())
            }
            DataType::UINT16 => {
                convert_chunks(bytes, |b: [u8; 2]| i32::from(u16::from_le_bytes(b)).to_le_bytes())
            }
            DataType::INT8 => {
                convert_chunks(bytes, |b: [u8; 1]| i32::from(i8::from_le_bytes(b)).to_le_bytes())
            }
            DataType::BOOL => bytes.iter().map(|&byte| u8::from(byte != 0)).collect(),
            _ => bytes.to_vec(),
        }
    }
}

/// Reads a tensor of a file.
///
/// # Errors
/// Returns an error if its element type is not supported, or its bytes do not fit its shape.
pub(super) fn read_tensor(
    tensor: &TensorProto,
    base_dir: &Path,
) -> Result<WeightTensor, ImportError> {
    let name = tensor.name.as_deref().unwrap_or("");
    let error = |reason: String| ImportError::Tensor { name: name.into(), reason };
    let data_type = tensor.data_type.ok_or_else(|| error("it has no element type".into()))?;
    let stored = stored_type(data_type)
        .ok_or_else(|| error(format!("the element type {data_type} is not supported")))?;
    let shape = check_shape(&tensor.dims).map_err(error)?;
    let ty = TensorType::new(stored.dtype, shape);
    let data = if tensor.data_location == Some(DataLocation::EXTERNAL) {
        read_external(tensor, base_dir, &ty, stored).map_err(error)?
    } else {
        read_inline(tensor, &ty, stored).map_err(error)?
    };
    Ok(WeightTensor { dtype: ty.dtype, shape: ty.shape, data })
}

/// Returns the elements of a tensor of DOUBLE that lie inside the file, not rounded; `None` for any other tensor.
///
/// # Errors
/// Returns an error as [`read_tensor`] does.
pub(super) fn read_doubles(
    tensor: &TensorProto,
    base_dir: &Path,
) -> Result<Option<Vec<f64>>, ImportError> {
    let is_external = tensor.data_location == Some(DataLocation::EXTERNAL);
    if tensor.data_type != Some(DataType::DOUBLE) || is_external {
        return Ok(None);
    }
    read_tensor(tensor, base_dir)?;
    let raw = tensor.raw_data.as_ref().map(|raw| raw.borrow());
    Ok(Some(match raw.filter(|raw| !raw.is_empty()) {
        Some(raw) => raw.as_chunks().0.iter().map(|&chunk| f64::from_le_bytes(chunk)).collect(),
        None => tensor.double_data.clone(),
    }))
}

pub(super) fn check_shape(dims: &[i64]) -> Result<Vec<usize>, String> {
    let shape: Option<Vec<usize>> = dims.iter().map(|&dim| usize::try_from(dim).ok()).collect();
    let shape = shape.ok_or_else(|| format!("its shape {dims:?} has a negative extent"))?;
    let size =
        shape.iter().filter(|&&extent| extent > 0).try_fold(8usize, |n, &e| n.checked_mul(e));
    match size.filter(|&size| size < 1 << 50) {
        Some(_) => Ok(shape),
        None => Err(format!("its shape {dims:?} has too many elements")),
    }
}

fn read_external(
    tensor: &TensorProto,
    base_dir: &Path,
    ty: &TensorType,
    stored: StoredType,
) -> Result<WeightData, String> {
    let entry = |key: &str| {
        let entry = tensor.external_data.iter().find(|entry| entry.key.as_deref() == Some(key));
        entry.and_then(|entry| entry.value.as_deref())
    };
    let number = |key: &str| match entry(key) {
        None => Ok(None),
        Some(text) => {
            text.parse::<u64>().map(Some).map_err(|_| format!("its {key} `{text}` is no number"))
        }
    };
    let location = entry("location").ok_or("it is in another file, which is not named")?;
    // A model must not make its reader open what is not beside it.
    let inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if !Path::new(location).components().all(inside) {
        return Err(format!("its file `{location}` is not beside the model"));
    }
    let expected = ty.elements() * stored.size;
    if let Some(length) = number("length")?.filter(|&length| length != expected as u64) {
        return Err(format!("it has {length} bytes, and {ty} needs {expected}"));
    }
    let offset = number("offset")?.unwrap_or(0);
    let folder = Some(base_dir.to_owned());
    let file = WeightData::File { path: base_dir.join(location), offset, folder };
    if stored.is_exact() {
        return Ok(file);
    }
    // What becomes another type is read at once.
    let raw = WeightTensor { dtype: DType::U8, shape: vec![expected], data: file };
    let bytes = raw.bytes(location).map_err(|error| error.to_string())?;
    Ok(WeightData::Bytes(stored.convert_bytes(&bytes).into()))
}

fn read_inline(
    tensor: &TensorProto,
    ty: &TensorType,
    stored: StoredType,
) -> Result<WeightData, String> {
    let raw = tensor.raw_data.as_ref().map(|raw| raw.borrow());
    let bytes = match raw.filter(|raw| !raw.is_empty()) {
        Some(raw) => {
            let expected = ty.elements() * stored.size;
            if raw.len() != expected {
                return Err(format!("it has {} bytes, and {ty} needs {expected}", raw.len()));
            }
            stored.convert_bytes(&raw)
        }
        None => {
            let bytes = encode_fields(tensor, stored);
            let (found, expected) = (bytes.len() / stored.size, ty.elements());
            if found != expected {
                return Err(format!("it has {found} elements, and {ty} needs {expected}"));
            }
            stored.convert_bytes(&bytes)
        }
    };
    Ok(WeightData::Bytes(bytes.into()))
}

/// Encodes the numbers of a tensor's typed fields as stored bytes. The field of `int32` holds small integers, halves and truth values too.
fn encode_fields(tensor: &TensorProto, stored: StoredType) -> Vec<u8> {
    fn flatten_bytes<T: Copy, const N: usize>(
        values: &[T],
        bytes: impl Fn(T) -> [u8; N],
    ) -> Vec<u8> {
        values.iter().flat_map(|&value| bytes(value)).collect()
    }
    match DataType(stored.data_type) {
        DataType::FLOAT => flatten_bytes(&tensor.float_data, f32::to_le_bytes),
        DataType::DOUBLE => flatten_bytes(&tensor.double_data, f64::to_le_bytes),
        DataType::INT64 => flatten_bytes(&tensor.int64_data, i64::to_le_bytes),
        _ => match stored.size {
            1 => flatten_bytes(&tensor.int32_data, |value| [value as u8]),
            2 => flatten_bytes(&tensor.int32_data, |value| (value as u16).to_le_bytes()),
            _ => flatten_bytes(&tensor.int32_data, i32::to_le_bytes),
        },
    }
}
