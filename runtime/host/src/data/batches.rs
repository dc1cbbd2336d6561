//! Batches of a data set that is in memory.

use std::collections::BTreeMap;

use graphc_ir::types::{Samples, TensorType};

use super::{HostFileError, Pieces};
use crate::tensor::HostTensor;

/// A data set in memory: a tensor for each input. What counts its samples an input says; one that has no such dim is the same in
/// every step.
#[derive(Clone, Debug)]
pub struct Batches {
    inputs: Vec<HeldInput>,
    samples: usize,
    batch: usize,
}

/// An input, and all that it is fed with.
#[derive(Clone, Debug)]
struct HeldInput {
    name: String,
    ty: TensorType,
    /// The dim that counts samples.
    dim: Option<usize>,
    tensor: HostTensor,
}

impl Batches {
    /// Batches of these types (those of the graph's inputs) from these tensors; others are left aside. `samples` says which dims
    /// count samples: the first, where it says nothing.
    ///
    /// # Errors
    /// Where a tensor is missing, is of another type, or has another number of samples than the others.
    pub fn new(
        mut tensors: BTreeMap<String, HostTensor>,
        inputs: &BTreeMap<String, TensorType>,
        samples: &BTreeMap<String, Samples>,
    ) -> Result<Self, HostFileError> {
        let found: Vec<String> = tensors.keys().cloned().collect();
        let mut kept = Vec::new();
        for (name, ty) in inputs {
            let tensor = tensors.remove(name).ok_or_else(|| HostFileError::InputMissing {
                name: name.clone(),
                ty: ty.clone(),
                found: found.clone(),
            })?;
            let dim = samples.get(name).copied().unwrap_or_default().dim(ty.shape.len());
            check_input(name, &tensor, ty, dim)?;
            kept.push(HeldInput { name: name.clone(), ty: ty.clone(), dim, tensor });
        }
        let count =
            |held: &HeldInput| held.dim.map(|dim| (held.name.clone(), held.tensor.shape()[dim]));
        let counts: Vec<(String, usize)> = kept.iter().filter_map(count).collect();
        let samples = counts.first().map_or(0, |first| first.1);
        if counts.iter().any(|count| count.1 != samples) {
            return Err(HostFileError::Samples(counts));
        }
        let batch = kept.iter().find_map(|held| held.dim.map(|dim| held.ty.shape[dim]));
        Ok(Self { inputs: kept, samples, batch: batch.unwrap_or(1) })
    }

    /// Returns the number of samples of the data set.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Samples of a step.
    pub fn batch_size(&self) -> usize {
        self.batch
    }

    /// Returns the feeds of a step: samples `[step * batch, (step + 1) * batch)` of each tensor, wrapping.
    pub fn feeds(&self, step: u64) -> BTreeMap<String, HostTensor> {
        self.inputs.iter().map(|held| (held.name.clone(), held.build_feed(step))).collect()
    }
}

fn check_input(
    name: &str,
    tensor: &HostTensor,
    ty: &TensorType,
    dim: Option<usize>,
) -> Result<(), HostFileError> {
    let found = tensor.ty();
    let name = name.to_owned();
    let Some(dim) = dim else {
        let fits = found == *ty;
        let whole = || HostFileError::Whole { name, expected: ty.clone(), found };
        return if fits { Ok(()) } else { Err(whole()) };
    };
    let others = |shape: &[usize]| -> Vec<usize> {
        shape.iter().enumerate().filter(|&(at, _)| at != dim).map(|(_, &extent)| extent).collect()
    };
    let reason = if found.dtype != ty.dtype {
        "another element type".to_owned()
    } else if found.shape.len() != ty.shape.len() || others(&found.shape) != others(&ty.shape) {
        format!("dims other than {dim}, which counts samples, differ")
    } else if found.shape[dim] == 0 && ty.shape[dim] != 0 {
        "there is no sample".to_owned()
    } else {
        return Ok(());
    };
    Err(HostFileError::InputType { name, expected: ty.clone(), found, reason })
}

impl HeldInput {
    fn build_feed(&self, step: u64) -> HostTensor {
        // What has no samples is the same in every step.
        let Some(dim) = self.dim else { return self.tensor.clone() };
        let mut result = HostTensor::zeros(self.ty.dtype, self.ty.shape.clone());
        let (batch, samples) = (self.ty.shape[dim], self.tensor.shape()[dim]);
        if result.bytes().is_empty() {
            return result;
        }
        let pieces = Pieces::along_dim(&self.ty, dim);
        let mut next = (u128::from(step) * batch as u128 % samples as u128) as usize;
        let mut made = 0;
        while made < batch {
            let count = (samples - next).min(batch - made);
            let from = (self.tensor.bytes(), samples, next);
            pieces.copy_samples(from, (result.bytes_mut(), batch, made), count);
            (made, next) = (made + count, (next + count) % samples);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use graphc_ir::types::DType;

    use super::*;

    fn batches(
        tensors: BTreeMap<String, HostTensor>,
        inputs: &BTreeMap<String, TensorType>,
    ) -> Result<Batches, HostFileError> {
        Batches::new(tensors, inputs, &BTreeMap::new())
    }

    fn inputs(shape: &[usize]) -> BTreeMap<String, TensorType> {
        [("x".to_owned(), TensorType::new(DType::F32, shape))].into()
    }

    fn data(samples: usize) -> BTreeMap<String, HostTensor> {
        let numbers: Vec<f32> = (0..samples * 2).map(|i| i as f32).collect();
        [("x".to_owned(), HostTensor::from_f32([samples, 2], &numbers).expect("fits"))].into()
    }

    #[test]
    fn batches_wrap_around_more_than_once() {
        let all = batches(data(3), &inputs(&[2, 2])).expect("fits");
        let first = |step| all.feeds(step)["x"].to_f32().expect("f32");
        assert_eq!(first(0), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(first(1), [4.0, 5.0, 0.0, 1.0]);
        assert_eq!(first(3), first(0));
        let large = batches(data(1), &inputs(&[3, 2])).expect("fits");
        assert_eq!(large.feeds(7)["x"].to_f32().expect("f32"), [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]);
    }

    #[test]
    fn inputs_of_one_batch_have_as_many_rows() {
        let two = |x: usize, y: usize| {
            let named = |name: &str, rows| (name.to_owned(), data(rows).remove("x").expect("x"));
            [named("x", x), named("y", y)].into()
        };
        let types: BTreeMap<String, TensorType> =
            ["x", "y"].map(|name| (name.into(), TensorType::new(DType::F32, [2, 2]))).into();
        let error = batches(two(4, 2), &types).expect_err("a mask of 2 rows for 4 samples");
        assert!(error.to_string().contains("different numbers of samples"), "{error}");
        // What has no dim of samples is the same in every step.
        let whole = BTreeMap::from([("y".to_owned(), Samples::Whole)]);
        let all = Batches::new(two(4, 2), &types, &whole).expect("fits");
        assert_eq!((all.samples(), &all.feeds(0)["y"]), (4, &all.feeds(1)["y"]));
        let error = Batches::new(two(4, 3), &types, &whole).expect_err("3 rows").to_string();
        assert!(error.contains("the same in every step"), "{error}");
    }

    #[test]
    fn samples_lie_along_any_dim() {
        let numbers: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let state = HostTensor::from_f32([2, 3, 2], &numbers).expect("fits");
        let types = BTreeMap::from([("h".to_owned(), TensorType::new(DType::F32, [2, 2, 2]))]);
        let along = BTreeMap::from([("h".to_owned(), Samples::Dim(1))]);
        let all = Batches::new([("h".to_owned(), state)].into(), &types, &along).expect("fits");
        assert_eq!((all.samples(), all.batch_size()), (3, 2));
        let second = all.feeds(1)["h"].to_f32().expect("f32");
        assert_eq!(second, [4.0, 5.0, 0.0, 1.0, 10.0, 11.0, 6.0, 7.0]);
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let missing = batches(BTreeMap::new(), &inputs(&[2, 2])).expect_err("no x");
        assert_eq!(missing.to_string(), "the data has no tensor `x` (f32[2, 2]); it has []");
        let wide = batches(data(3), &inputs(&[2, 5])).expect_err("2 is not 5");
        assert!(
            wide.to_string().contains("dims other than 0, which counts samples, differ"),
            "{wide}"
        );
        assert!(batches(data(0), &inputs(&[2, 2])).is_err());
    }
}
