//! Safetensors files as data sets: the first dim of each tensor counts samples.

use std::collections::BTreeMap;
use std::path::Path;

use graphc_ir::types::{DType, TensorType};
use graphc_runtime::data::TensorFile;

use crate::dataset::{Dataset, Field, FieldKind};
use crate::error::DatasetError;

/// A safetensors file: a field for each tensor whose first dim counts samples. `u8` of `[n, channels, height, width]` are
/// pictures; `labels` are classes.
#[derive(Debug)]
pub struct TensorSet {
    name: String,
    file: TensorFile,
    fields: Vec<Field>,
    samples: usize,
}

impl TensorSet {
    /// Opens a file; samples stay there until they are read. How many there are `labels` or `target` say, where there is one
    /// of them, and tensors of another length are left aside; otherwise all tensors must agree.
    ///
    /// # Errors
    /// Where the file is no safetensors file, was cut off, or holds no samples.
    pub fn open(path: &Path) -> Result<Self, DatasetError> {
        Self::with_samples(path, samples)
    }

    /// Opens a file for a graph of these inputs: tensors of their names say how many samples there are, where the file has any of
    /// them, and others are left aside.
    ///
    /// # Errors
    /// As [`TensorSet::open`].
    pub fn open_for(
        path: &Path,
        inputs: &BTreeMap<String, TensorType>,
    ) -> Result<Self, DatasetError> {
        Self::with_samples(path, |tensors| {
            let is_fed = |(name, ty): &(&String, &TensorType)| {
                inputs.contains_key(*name) && !ty.shape.is_empty()
            };
            let fed: BTreeMap<String, TensorType> = tensors
                .iter()
                .filter(is_fed)
                .map(|(name, ty)| (name.clone(), ty.clone()))
                .collect();
            if fed.is_empty() { samples(tensors) } else { agreed(&fed) }
        })
    }

    fn with_samples(
        path: &Path,
        samples: impl Fn(&BTreeMap<String, TensorType>) -> Result<usize, String>,
    ) -> Result<Self, DatasetError> {
        let file = TensorFile::open(path)?;
        let name = path.display().to_string();
        let samples =
            samples(file.tensors()).map_err(|reason| DatasetError::read(&name, reason))?;
        let counted = file.tensors().iter().filter(|(_, ty)| ty.shape.first() == Some(&samples));
        let fields = counted.map(|(name, ty)| field(name, ty)).collect();
        Ok(Self { name, file, fields, samples })
    }
}

impl Dataset for TensorSet {
    fn name(&self) -> &str {
        &self.name
    }

    fn samples(&self) -> usize {
        self.samples
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn read(&self, sample: usize, field: usize, into: &mut [u8]) -> Result<(), DatasetError> {
        Ok(self.file.read_row(&self.fields[field].name, sample, into)?)
    }
}

/// How many samples tensors hold.
fn samples(tensors: &BTreeMap<String, TensorType>) -> Result<usize, String> {
    let count = |name: &str| tensors.get(name)?.shape.first().copied();
    match ["labels", "target"].into_iter().find_map(count) {
        Some(0) => Err("it holds no samples".into()),
        Some(count) => Ok(count),
        None => agreed(tensors),
    }
}

/// The number of samples on which tensors agree.
fn agreed(tensors: &BTreeMap<String, TensorType>) -> Result<usize, String> {
    let mut counts: Vec<usize> =
        tensors.values().filter_map(|ty| ty.shape.first().copied()).collect();
    counts.sort_unstable();
    counts.dedup();
    match counts[..] {
        [] => Err("it holds no tensor whose first dim could count samples".into()),
        [0] => Err("it holds no samples".into()),
        [count] => Ok(count),
        _ => {
            let all = tensors.iter().map(|(name, ty)| format!("{name} {ty}"));
            let all: Vec<String> = all.collect();
            Err(format!(
                "its tensors have different numbers of samples, {counts:?}: {}",
                all.join(", ")
            ))
        }
    }
}

fn field(name: &str, ty: &TensorType) -> Field {
    let sample = TensorType { dtype: ty.dtype, shape: ty.shape[1..].to_vec() };
    let kind = match (name, ty.dtype, sample.shape.len()) {
        ("labels", ..) => FieldKind::Labels,
        (_, DType::U8, 3) => FieldKind::Picture,
        _ => FieldKind::Plain,
    };
    Field::new(name, sample, kind)
}

#[cfg(test)]
mod tests {
    use graphc_runtime::HostTensor;
    use graphc_runtime::data::save_safetensors;

    use super::*;

    fn opened(tensors: &[(&str, HostTensor)]) -> Result<TensorSet, DatasetError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("set.safetensors");
        let tensors = tensors.iter().map(|(name, tensor)| (name.to_string(), tensor.clone()));
        save_safetensors(&path, &tensors.collect()).expect("it is writable");
        TensorSet::open(&path)
    }

    #[test]
    fn labels_count_the_samples_and_bytes_are_pictures() {
        let labels = HostTensor::from_i64([2], &[4, -100]).expect("2");
        let mut images = HostTensor::zeros(DType::U8, [2, 1, 2, 2]);
        images.bytes_mut().copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let table = HostTensor::zeros(DType::F32, [7, 3]);
        let set = opened(&[("labels", labels), ("images", images), ("table", table)]);
        let set = set.expect("it is whole");
        let kinds: Vec<_> = set.fields().iter().map(|f| (f.name.as_str(), f.kind)).collect();
        assert_eq!(kinds, [("images", FieldKind::Picture), ("labels", FieldKind::Labels)]);
        let mut picture = [0; 4];
        set.read(1, 0, &mut picture).expect("it is there");
        assert_eq!((set.samples(), picture), (2, [5, 6, 7, 8]));
    }

    #[test]
    fn tensors_that_no_input_has_the_name_of_have_no_say() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("set.safetensors");
        let zeros = |rows: usize| HostTensor::zeros(DType::F32, [rows, 2]);
        let tensors = [("x", 4), ("y", 4), ("other", 3)];
        let tensors = tensors.map(|(name, rows)| (name.to_owned(), zeros(rows)));
        save_safetensors(&path, &tensors.into()).expect("it is writable");
        let inputs = |names: &[&str]| {
            let ty = || TensorType::new(DType::F32, [2, 2]);
            names.iter().map(|name| (name.to_string(), ty())).collect()
        };
        let samples =
            |names: &[&str]| TensorSet::open_for(&path, &inputs(names)).map(|set| set.samples());
        assert_eq!((samples(&["x", "y"]), samples(&["other"])), (Ok(4), Ok(3)));
        let error = samples(&["x", "other"]).expect_err("they differ").to_string();
        assert!(error.contains("[3, 4]: other f32[3, 2], x f32[4, 2]"), "{error}");
        assert!(samples(&["z"]).is_err(), "nobody says which count");
    }

    #[test]
    fn it_must_be_clear_how_many_samples_there_are() {
        let zeros = |rows: usize| HostTensor::zeros(DType::F32, [rows, 2]);
        assert_eq!(opened(&[("x", zeros(3)), ("y", zeros(3))]).expect("3").samples(), 3);
        let fails =
            |tensors: &[(&str, HostTensor)]| opened(tensors).expect_err("unclear").to_string();
        assert!(fails(&[("x", zeros(3)), ("y", zeros(4))]).contains("[3, 4]"));
        assert!(fails(&[("x", zeros(0))]).contains("no samples"));
        assert!(fails(&[("x", HostTensor::zeros(DType::F32, []))]).contains("no tensor"));
        let missing = TensorSet::open(Path::new("/nowhere/set.safetensors")).expect_err("absent");
        assert!(missing.to_string().contains("/nowhere/set.safetensors"), "{missing}");
    }
}
