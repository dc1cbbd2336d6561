//! Safetensors files as data sets. A dim of each tensor counts samples: the first, unless a graph says otherwise.

use std::collections::BTreeMap;
use std::path::Path;

use graphc_host::data::TensorFile;
use graphc_host::tensor::HostTensor;
use graphc_ir::types::{DType, Samples, TensorType};

use crate::dataset::{Dataset, Field, FieldKind};
use crate::error::DatasetError;

/// A safetensors file as a data set, with a field for each tensor that has as many samples as the set. `u8` of `[n, channels, height, width]` are
/// images; `labels` are classes.
#[derive(Debug)]
pub struct TensorSet {
    name: String,
    file: TensorFile,
    fields: Vec<Field>,
    /// The dim that counts the samples of each field's tensor.
    dims: Vec<usize>,
    samples: usize,
}

impl TensorSet {
    /// Opens a file, whose samples stay there until they are read. If there is a tensor `labels` or `target`, it tells the number of samples, and
    /// tensors of another length are ignored. Otherwise all tensors must agree.
    ///
    /// # Errors
    /// Returns an error if the file is no safetensors file, was cut off, or holds no samples.
    pub fn open(path: &Path) -> Result<Self, DatasetError> {
        Self::with_samples(path, count_samples, &BTreeMap::new())
    }

    /// Opens a file for a graph of these inputs. Samples lie along the given dims, or along the first. If the file has tensors of the inputs' names,
    /// these must agree on the number of samples, and tensors of another length are ignored.
    ///
    /// # Errors
    /// As [`TensorSet::open`].
    pub fn open_for(
        path: &Path,
        inputs: &BTreeMap<String, TensorType>,
        dims: &BTreeMap<String, Samples>,
    ) -> Result<Self, DatasetError> {
        let count = |tensors: &Tensors, dims: &BTreeMap<String, Samples>| {
            let fed = tensors.iter().filter(|(name, ty)| {
                inputs.contains_key(*name) && dim_of(name, ty, dims).is_some()
            });
            let fed: Tensors = fed.map(|(name, ty)| (name.clone(), ty.clone())).collect();
            if fed.is_empty() {
                count_samples(tensors, dims)
            } else {
                count_agreed_samples(&fed, dims)
            }
        };
        Self::with_samples(path, count, dims)
    }

    fn with_samples(
        path: &Path,
        samples: impl Fn(&Tensors, &BTreeMap<String, Samples>) -> Result<usize, String>,
        dims: &BTreeMap<String, Samples>,
    ) -> Result<Self, DatasetError> {
        let file = TensorFile::open(path)?;
        let name = path.display().to_string();
        let samples = samples(file.tensors(), dims)
            .map_err(|reason| DatasetError::unreadable_file(&name, reason))?;
        let counted = file.tensors().iter().filter_map(|(name, ty)| {
            let dim = dim_of(name, ty, dims).filter(|&dim| ty.shape[dim] == samples)?;
            Some((field_of_tensor(name, ty, dim), dim))
        });
        let (fields, dims) = counted.unzip();
        Ok(Self { name, file, fields, dims, samples })
    }
}

type Tensors = BTreeMap<String, TensorType>;

/// Returns the dim that counts the samples of a tensor, if any does.
fn dim_of(name: &str, ty: &TensorType, dims: &BTreeMap<String, Samples>) -> Option<usize> {
    dims.get(name).copied().unwrap_or_default().dim(ty.shape.len())
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
        Ok(self.file.read_row(&self.fields[field].name, (self.dims[field], sample), into)?)
    }

    fn read_whole(&self, name: &str) -> Result<Option<HostTensor>, DatasetError> {
        let held = self.file.tensors().contains_key(name);
        Ok(if held { Some(self.file.read(name)?) } else { None })
    }
}

/// Counts the samples of tensors: those of `labels` or `target` if there is one, otherwise those on which all agree.
fn count_samples(tensors: &Tensors, dims: &BTreeMap<String, Samples>) -> Result<usize, String> {
    let count = |name: &str| {
        let ty = tensors.get(name)?;
        dim_of(name, ty, dims).map(|dim| ty.shape[dim])
    };
    match ["labels", "target"].into_iter().find_map(count) {
        Some(0) => Err("it holds no samples".into()),
        Some(count) => Ok(count),
        None => count_agreed_samples(tensors, dims),
    }
}

/// Returns the number of samples on which tensors agree.
fn count_agreed_samples(
    tensors: &Tensors,
    dims: &BTreeMap<String, Samples>,
) -> Result<usize, String> {
    let count =
        |(name, ty): (&String, &TensorType)| dim_of(name, ty, dims).map(|dim| ty.shape[dim]);
    let mut counts: Vec<usize> = tensors.iter().filter_map(count).collect();
    counts.sort_unstable();
    counts.dedup();
    match counts[..] {
        [] => Err("it holds no tensor of which a dim could count samples".into()),
        [0] => Err("it holds no samples".into()),
        [count] => Ok(count),
        _ => {
            let said = |(name, ty): (&String, &TensorType)| match dim_of(name, ty, dims) {
                Some(dim @ 1..) => format!("{name} {ty} along dim {dim}"),
                _ => format!("{name} {ty}"),
            };
            let all = tensors.iter().map(said);
            let all: Vec<String> = all.collect();
            Err(format!(
                "its tensors have different numbers of samples, {counts:?}: {}",
                all.join(", ")
            ))
        }
    }
}

fn field_of_tensor(name: &str, ty: &TensorType, dim: usize) -> Field {
    let sample = TensorType { dtype: ty.dtype, shape: shape_without_dim(&ty.shape, dim) };
    let kind = match (name, ty.dtype, sample.shape.len()) {
        ("labels", ..) => FieldKind::Labels,
        (_, DType::U8, 3) => FieldKind::Image,
        _ => FieldKind::Plain,
    };
    Field::new(name, sample, kind)
}

/// Returns the extents of all other dims.
pub(crate) fn shape_without_dim(shape: &[usize], dim: usize) -> Vec<usize> {
    shape.iter().enumerate().filter(|&(at, _)| at != dim).map(|(_, &extent)| extent).collect()
}

#[cfg(test)]
mod tests {
    use graphc_host::data::save_safetensors;

    use super::*;

    fn opened(tensors: &[(&str, HostTensor)]) -> Result<TensorSet, DatasetError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("set.safetensors");
        let tensors = tensors.iter().map(|(name, tensor)| (name.to_string(), tensor.clone()));
        save_safetensors(&path, &tensors.collect()).expect("it is writable");
        TensorSet::open(&path)
    }

    #[test]
    fn labels_count_the_samples_and_bytes_are_images() {
        let labels = HostTensor::from_i64([2], &[4, -100]).expect("2");
        let mut images = HostTensor::zeros(DType::U8, [2, 1, 2, 2]);
        images.bytes_mut().copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let table = HostTensor::zeros(DType::F32, [7, 3]);
        let set = opened(&[("labels", labels), ("images", images), ("table", table)]);
        let set = set.expect("it is whole");
        let kinds: Vec<_> = set.fields().iter().map(|f| (f.name.as_str(), f.kind)).collect();
        assert_eq!(kinds, [("images", FieldKind::Image), ("labels", FieldKind::Labels)]);
        let mut image = [0; 4];
        set.read(1, 0, &mut image).expect("it is there");
        assert_eq!((set.samples(), image), (2, [5, 6, 7, 8]));
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
        let samples = |names: &[&str]| {
            TensorSet::open_for(&path, &inputs(names), &BTreeMap::new()).map(|set| set.samples())
        };
        assert_eq!((samples(&["x", "y"]), samples(&["other"])), (Ok(4), Ok(3)));
        let error = samples(&["x", "other"]).expect_err("they differ").to_string();
        assert!(error.contains("[3, 4]: other f32[3, 2], x f32[4, 2]"), "{error}");
        assert!(samples(&["z"]).is_err(), "nobody says which count");
    }

    #[test]
    fn samples_lie_along_the_dim_that_the_graph_says() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("set.safetensors");
        let state = HostTensor::from_f32([2, 3, 1], &[0., 1., 2., 3., 4., 5.]).expect("6");
        let table = HostTensor::from_f32([2], &[7., 8.]).expect("2");
        let tensors = [("h".to_owned(), state), ("table".to_owned(), table.clone())];
        save_safetensors(&path, &tensors.into()).expect("it is writable");
        let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
        let inputs = [("h".to_owned(), ty(&[2, 1, 1])), ("table".to_owned(), ty(&[2]))].into();
        let dims = [("h".to_owned(), Samples::Dim(1)), ("table".to_owned(), Samples::Whole)];
        let set = TensorSet::open_for(&path, &inputs, &dims.into()).expect("it is whole");
        assert_eq!((set.samples(), &set.fields()[0].ty.shape[..]), (3, &[2, 1][..]));
        let mut sample = [0; 8];
        set.read(1, 0, &mut sample).expect("there are 3");
        assert_eq!(HostTensor::new(DType::F32, [2], sample.into()).expect("2").to_f64(), [1., 4.]);
        assert_eq!(set.read_whole("table").expect("readable"), Some(table));
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
