//! Batches of a data set that is in memory.

use std::collections::BTreeMap;

use graphc_ir::types::TensorType;

use super::DataError;
use crate::tensor::HostTensor;

/// A data set: one tensor per input, whose first dim counts samples. Where the first dims of inputs differ, a tensor that is
/// as large as its input is no set of samples but the same in every step.
#[derive(Clone, Debug)]
pub struct Batches {
    inputs: Vec<(HostTensor, TensorType, String)>,
    samples: usize,
    batch: usize,
}

impl Batches {
    /// Batches of these types (those of the graph's inputs) from these tensors; others are left aside.
    ///
    /// # Errors
    /// Where a tensor is missing, is of another type, or has another number of samples than the others.
    pub fn new(
        mut tensors: BTreeMap<String, HostTensor>,
        inputs: &BTreeMap<String, TensorType>,
    ) -> Result<Self, DataError> {
        let found: Vec<String> = tensors.keys().cloned().collect();
        let mut kept = Vec::new();
        for (name, ty) in inputs {
            let tensor = tensors.remove(name).ok_or_else(|| DataError::InputMissing {
                name: name.clone(),
                ty: ty.clone(),
                found: found.clone(),
            })?;
            check(name, &tensor, ty)?;
            kept.push((tensor, ty.clone(), name.clone()));
        }
        let count = |(tensor, _, name): &(HostTensor, TensorType, String)| {
            tensor.shape().first().map(|&samples| (name.clone(), samples))
        };
        let counts: Vec<(String, usize)> = kept.iter().filter_map(count).collect();
        let firsts = || inputs.values().filter_map(|ty| ty.shape.first());
        let one_batch = firsts().zip(firsts().skip(1)).all(|(a, b)| a == b);
        let alike = one_batch || counts.windows(2).all(|pair| pair[0].1 == pair[1].1);
        // Where the first dims of inputs differ, what is as large as its input is no set of samples.
        let sampled = |&(tensor, ty, _): &&(HostTensor, TensorType, String)| {
            !ty.shape.is_empty() && (alike || tensor.shape() != ty.shape)
        };
        let counts: Vec<(String, usize)> = match kept.iter().find(sampled) {
            Some(_) => kept.iter().filter(sampled).filter_map(count).collect(),
            None => counts.into_iter().take(1).collect(),
        };
        let samples = counts.first().map_or(0, |first| first.1);
        if counts.iter().any(|count| count.1 != samples) {
            return Err(DataError::Samples(counts));
        }
        let of_input = |(name, _): &(String, usize)| inputs[name].shape.first().copied();
        let batch = counts.first().and_then(of_input).unwrap_or(1);
        Ok(Self { inputs: kept, samples, batch })
    }

    /// Number of samples of the data set.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Samples of a step.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The feeds of a step: rows `[step * batch, (step + 1) * batch)` of each tensor, wrapping.
    pub fn feeds(&self, step: u64) -> BTreeMap<String, HostTensor> {
        let feed = |(tensor, ty, name): &(HostTensor, TensorType, String)| {
            (name.clone(), rows(tensor, ty, step))
        };
        self.inputs.iter().map(feed).collect()
    }
}

fn check(name: &str, tensor: &HostTensor, ty: &TensorType) -> Result<(), DataError> {
    let found = tensor.ty();
    let (samples, batch) = (found.shape.first(), ty.shape.first());
    let reason = if found.dtype != ty.dtype {
        "another element type"
    } else if found.shape.get(1..) != ty.shape.get(1..) {
        "the dims after the first differ"
    } else if samples == Some(&0) && batch != Some(&0) {
        "there is no sample"
    } else {
        return Ok(());
    };
    Err(DataError::InputType { name: name.to_owned(), expected: ty.clone(), found, reason })
}

fn rows(tensor: &HostTensor, ty: &TensorType, step: u64) -> HostTensor {
    let mut result = HostTensor::zeros(ty.dtype, ty.shape.clone());
    let (Some(&batch), Some(&samples)) = (ty.shape.first(), tensor.shape().first()) else {
        return tensor.clone(); // a scalar is the same in every step
    };
    if result.bytes().is_empty() {
        return result;
    }
    let row = result.bytes().len() / batch;
    let mut next = (u128::from(step) * batch as u128 % samples as u128) as usize;
    let mut rest = result.bytes_mut();
    while !rest.is_empty() {
        let count = (samples - next).min(rest.len() / row);
        let (now, later) = rest.split_at_mut(count * row);
        now.copy_from_slice(&tensor.bytes()[next * row..(next + count) * row]);
        rest = later;
        next = (next + count) % samples;
    }
    result
}

#[cfg(test)]
mod tests {
    use graphc_ir::types::DType;

    use super::*;

    fn inputs(shape: &[usize]) -> BTreeMap<String, TensorType> {
        [("x".to_owned(), TensorType::new(DType::F32, shape))].into()
    }

    fn data(samples: usize) -> BTreeMap<String, HostTensor> {
        let numbers: Vec<f32> = (0..samples * 2).map(|i| i as f32).collect();
        [("x".to_owned(), HostTensor::from_f32([samples, 2], &numbers).expect("fits"))].into()
    }

    #[test]
    fn batches_wrap_around_more_than_once() {
        let batches = Batches::new(data(3), &inputs(&[2, 2])).expect("fits");
        let first = |step| batches.feeds(step)["x"].to_f32().expect("f32");
        assert_eq!(first(0), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(first(1), [4.0, 5.0, 0.0, 1.0]);
        assert_eq!(first(3), first(0));
        let large = Batches::new(data(1), &inputs(&[3, 2])).expect("fits");
        assert_eq!(large.feeds(7)["x"].to_f32().expect("f32"), [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]);
    }

    #[test]
    fn inputs_of_one_batch_have_as_many_rows() {
        let two = |x: usize, y: usize| {
            let named = |name: &str, rows| (name.to_owned(), data(rows).remove("x").expect("x"));
            [named("x", x), named("y", y)].into()
        };
        let types = |y: usize| {
            [inputs(&[2, 2]), BTreeMap::from([("y".into(), TensorType::new(DType::F32, [y, 2]))])]
        };
        let of = |y| types(y).into_iter().flatten().collect();
        let error = Batches::new(two(4, 2), &of(2)).expect_err("a mask of 2 rows for 4 samples");
        assert!(error.to_string().contains("different numbers of samples"), "{error}");
        // A state of another size than the batch is the same in every step.
        assert_eq!(Batches::new(two(4, 3), &of(3)).expect("fits").samples(), 4);
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let missing = Batches::new(BTreeMap::new(), &inputs(&[2, 2])).expect_err("no x");
        assert_eq!(missing.to_string(), "the data has no tensor `x` (f32[2, 2]); it has []");
        let wide = Batches::new(data(3), &inputs(&[2, 5])).expect_err("2 is not 5");
        assert!(wide.to_string().contains("the dims after the first differ"), "{wide}");
        assert!(Batches::new(data(0), &inputs(&[2, 2])).is_err());
    }
}
