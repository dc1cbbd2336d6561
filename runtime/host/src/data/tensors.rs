//! Safetensors files.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::path::Path;

use graphc_ir::types::{DType, TensorType};
use memmap2::Mmap;
use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorInfo};

use super::recognise::describe_fault;
use super::stored::StoredElements;
use super::{HostFileError, open_file, write_with};
use crate::tensor::HostTensor;

/// Loads all tensors of a file, by name.
///
/// # Errors
/// Where the file cannot be read, is no safetensors file, or has an element type that graphc lacks.
pub fn load_safetensors(path: &Path) -> Result<BTreeMap<String, HostTensor>, HostFileError> {
    let read = |reason: String| HostFileError::Read { path: path.display().to_string(), reason };
    let file = open_file(path).map_err(|e| read(e.to_string()))?;
    if file.metadata().is_ok_and(|found| found.len() == 0) {
        return Err(read("the file is empty".into()));
    }
    let bytes = crate::memory::map_file(&file).map_err(|e| read(e.to_string()))?;
    parse_tensors(&bytes, (path, &file), read)
}

fn parse_tensors(
    bytes: &Mmap,
    (path, stored): (&Path, &File),
    read: impl Fn(String) -> HostFileError,
) -> Result<BTreeMap<String, HostTensor>, HostFileError> {
    let file =
        SafeTensors::deserialize(bytes).map_err(|error| read(describe_fault(stored, &error)))?;
    let mut tensors = BTreeMap::new();
    for (name, view) in file.iter() {
        let elements =
            StoredElements::of_file(view.dtype()).ok_or_else(|| HostFileError::DType {
                path: path.display().to_string(),
                name: name.to_owned(),
                dtype: format!("{:?}", view.dtype()),
            })?;
        let bytes = copy_elements(elements, view.data()).map_err(&read)?;
        let tensor = HostTensor::new(elements.dtype, view.shape(), bytes);
        tensors.insert(name.to_owned(), tensor.map_err(|e| read(e.to_string()))?);
    }
    Ok(tensors)
}

/// Reads elements into memory of their own. The file may claim more than there is.
fn copy_elements(elements: StoredElements, bytes: &[u8]) -> Result<Vec<u8>, String> {
    let size = bytes.len() / elements.size() * elements.dtype.size();
    let mut copy = Vec::new();
    copy.try_reserve_exact(size).map_err(|e| format!("{size} bytes: {e}"))?;
    if elements.are_same() {
        copy.extend_from_slice(bytes);
    } else {
        copy.resize(size, 0);
        elements.convert(bytes, &mut copy);
    }
    Ok(copy)
}

/// Returns the element type's name in files.
pub fn file_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
        DType::F8E4M3 => Dtype::F8_E4M3,
        DType::F8E5M2 => Dtype::F8_E5M2,
    }
}

/// Writes tensors to a file: beside it first, then renamed, so that the file is whole or as it was before.
///
/// # Errors
/// Where it cannot be written; nothing half-written is left.
pub fn save_safetensors(
    path: &Path,
    tensors: &BTreeMap<String, HostTensor>,
) -> Result<(), HostFileError> {
    let types = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.ty())).collect();
    let of = |name: &str, write: &mut dyn FnMut(&[u8])| {
        write(tensors[name].bytes());
        Ok::<(), std::convert::Infallible>(())
    };
    save_each(path, &types, of)
}

/// Saves as [`save_safetensors`] tensors that need not be in memory at one time: `bytes` is called with the name of
/// each of them, in the order of [`order_in_file`], and calls what it is given once, with the tensor's elements.
///
/// # Errors
/// Where `bytes` fails, gives other bytes than the type has, or the file cannot be written; nothing half-written is left.
pub fn save_each<E: Display>(
    path: &Path,
    types: &BTreeMap<String, TensorType>,
    mut bytes: impl FnMut(&str, &mut dyn FnMut(&[u8])) -> Result<(), E>,
) -> Result<(), HostFileError> {
    let names = order_in_file(types);
    write_with(path, |file| {
        let tensors = names.iter().map(|&name| (name, types[name].dtype, &types[name].shape[..]));
        file.write_all(&head_of_file(tensors)?)?;
        for name in names {
            let mut written =
                Err(std::io::Error::other(format!("`{name}` has not the bytes of its type")));
            let fits = |found: &[u8]| found.len() == types[name].bytes();
            bytes(name, &mut |found| {
                if fits(found) {
                    written = file.write_all(found);
                }
            })
            .map_err(|error| std::io::Error::other(error.to_string()))?;
            written?;
        }
        Ok(())
    })
}

/// Returns the names of tensors in the order in which they lie in a file: the widest elements first, so that all are
/// aligned.
pub fn order_in_file(types: &BTreeMap<String, TensorType>) -> Vec<&str> {
    let mut names: Vec<&str> = types.keys().map(String::as_str).collect();
    names.sort_by_key(|&name| place_in_file(types[name].dtype, name));
    names
}

/// Returns the key by which tensors of a file are sorted, as safetensors' own writer does: the wider of two element
/// types comes first.
pub fn place_in_file(dtype: DType, name: &str) -> (Reverse<Dtype>, &str) {
    (Reverse(file_dtype(dtype)), name)
}

/// Returns the head of a file: names, element types and shapes of its tensors, which are in the order of
/// [`place_in_file`]. Their elements follow without gaps.
///
/// # Errors
/// Where that is no head of a safetensors file.
pub fn head_of_file<'a>(
    tensors: impl Iterator<Item = (&'a str, DType, &'a [usize])>,
) -> std::io::Result<Vec<u8>> {
    let mut end = 0;
    let infos = tensors.map(|(name, dtype, shape)| {
        let (start, shape) = (end, shape.to_vec());
        end += shape.iter().product::<usize>() * dtype.size();
        let info = TensorInfo { dtype: file_dtype(dtype), shape, data_offsets: (start, end) };
        (name.to_owned(), info)
    });
    let metadata = Metadata::new(None, infos.collect()).map_err(std::io::Error::other)?;
    let mut header = serde_json::to_vec(&metadata)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok([&(header.len() as u64).to_le_bytes()[..], &header].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensors() -> BTreeMap<String, HostTensor> {
        let numbers = HostTensor::from_f32([2, 2], &[1.0, -2.0, 3.5, 0.0]).expect("4 elements");
        let empty = HostTensor::zeros(DType::I64, [0, 3]);
        let truths = HostTensor::from_f64(DType::Bool, [1], &[1.0]).expect("1 element");
        [("numbers", numbers), ("empty", empty), ("truths", truths)]
            .map(|(name, tensor)| (name.to_owned(), tensor))
            .into()
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.safetensors");
        save_safetensors(&path, &tensors()).expect("it is writable");
        assert_eq!(load_safetensors(&path).expect("it is whole"), tensors());
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn a_failed_write_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        // The target is a folder that is not empty, so the rename fails after the write.
        let path = folder.path().join("taken");
        std::fs::create_dir_all(path.join("inside")).expect("a folder");
        let error = save_safetensors(&path, &tensors()).expect_err("the target is a folder");
        assert!(error.to_string().starts_with("cannot write"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn corrupt_and_absent_files_are_errors() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.safetensors");
        assert!(load_safetensors(&path).expect_err("absent").to_string().contains("cannot read"));
        assert!(
            load_safetensors(folder.path())
                .expect_err("a folder")
                .to_string()
                .contains("it is a folder")
        );
        for content in [&b""[..], b"no tensors at all", &[0xFF; 64]] {
            std::fs::write(&path, content).expect("it is writable");
            assert!(matches!(load_safetensors(&path), Err(HostFileError::Read { .. })));
        }
    }
}
