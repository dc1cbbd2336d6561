//! Tensors in which the exporter's optimizer has repeated parts of a parameter: rows of a table that it has looked up, or samples of a batch. The model
//! learns each of them once, so the weight is a matrix of the rows that differ, and the tensor is looked up in it again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use graphc_ir::types::{DType, TensorType};

use super::gather::gather_along;
use super::known::KnownValue;
use super::lower::{Lowering, Val};
use super::node::LoweringProblem;
use crate::ImportError;
use crate::weights::{WeightData, WeightTensor};

/// The repetition of parts in a tensor, of which the model learns each part once.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Repetition {
    /// The shape of the tensor.
    whole: Vec<usize>,
    /// The shape in which its rows are found: its own, or a matrix with a sample in each row.
    shape: Vec<usize>,
    /// The dim along which rows lie.
    dim: usize,
    /// For each place of the other dims, in order, the row that it has, of those that differ.
    rows: Vec<usize>,
}

/// A row that is the same number everywhere occurs several times, so it may be several rows that begin alike.
pub(super) struct AmbiguousRows;

impl Repetition {
    /// Finds the samples of a tensor that are alike, if all of a batch are. The batch is the first dim along which all is alike and that has its
    /// extent, or else a multiple of it: heads or frames of each sample are then behind those of the sample before.
    pub(super) fn along_batch(
        name: &str,
        tensor: &WeightTensor,
        batch: Option<usize>,
    ) -> Option<Self> {
        let batch = batch.filter(|&batch| batch > 1)?;
        let bytes = tensor.bytes(name).ok()?;
        let whole = &tensor.shape;
        let of_extent = |multiple: usize| {
            let dims = (0..whole.len()).filter(move |&dim| whole[dim] == batch * multiple);
            dims.filter_map(|dim| Self::along_dim(tensor, &bytes, dim, batch)).next()
        };
        if let Some(found) = of_extent(1) {
            return Some(found);
        }
        // What is one number throughout is alike along any dim.
        let is_one_number = bytes.chunks(tensor.dtype.size()).all(|x| bytes.starts_with(x));
        let multiples = whole.iter().map(|extent| extent / batch).filter(|&multiple| multiple > 1);
        let multiples: BTreeSet<usize> = multiples.collect();
        multiples.into_iter().filter(|_| !is_one_number).find_map(of_extent)
    }

    /// Finds what recurs along a dim as often as there are samples, or more often by a factor.
    fn along_dim(tensor: &WeightTensor, bytes: &[u8], dim: usize, batch: usize) -> Option<Self> {
        let whole = &tensor.shape;
        let outer = whole[..dim].iter().product();
        let elements: usize = whole[dim + 1..].iter().product();
        let all = elements * whole[dim];
        let recur = |count: &usize| {
            let run = (all / count * tensor.dtype.size()).max(1);
            let are_alike = |samples: &[u8]| samples.chunks(run).all(|s| s == &samples[..run]);
            bytes.chunks((all * tensor.dtype.size()).max(1)).all(are_alike)
        };
        let counts = (batch..=whole[dim]).rev();
        let count = counts
            .filter(|count| count.is_multiple_of(batch) && whole[dim].is_multiple_of(*count))
            .find(recur)?;
        let rows = (0..outer).flat_map(|row| vec![row; count]).collect();
        Some(Self { whole: whole.clone(), shape: vec![outer, count, all / count], dim: 2, rows })
    }

    /// Finds the rows of a tensor that are alike, along the dim of which the fewest differ. There is none if all differ.
    pub(super) fn of_rows(
        name: &str,
        tensor: &WeightTensor,
    ) -> Result<Option<Self>, AmbiguousRows> {
        let Ok(bytes) = tensor.bytes(name) else { return Ok(None) };
        let Ok(numbers) = tensor.elements(name) else { return Ok(None) };
        let elements = numbers.len();
        let mut best: Option<(usize, Self, bool)> = None;
        for dim in (0..tensor.shape.len()).filter(|&dim| tensor.shape[dim] > 1) {
            let (rows, is_ambiguous) = find_alike(&bytes, &numbers, tensor, dim);
            let different = rows.iter().max().map_or(0, |last| last + 1) * tensor.shape[dim];
            if different < elements && best.as_ref().is_none_or(|(least, ..)| different <= *least) {
                let (whole, shape) = (tensor.shape.clone(), tensor.shape.clone());
                best = Some((different, Self { whole, shape, dim, rows }, is_ambiguous));
            }
        }
        match best {
            Some((_, _, true)) => Err(AmbiguousRows),
            found => Ok(found.map(|(_, repetition, _)| repetition)),
        }
    }

    /// Returns the rows that differ, as a matrix.
    pub(super) fn different_rows(
        &self,
        name: &str,
        tensor: &WeightTensor,
    ) -> Result<WeightTensor, ImportError> {
        let (bytes, size) = (read_bytes(name, tensor)?, tensor.dtype.size());
        let mut content = Vec::new();
        let mut next = 0;
        for (place, &row) in self.rows.iter().enumerate() {
            if row == next {
                row_places(&self.shape, self.dim, place)
                    .for_each(|at| content.extend_from_slice(&bytes[at * size..][..size]));
                next += 1;
            }
        }
        let shape = vec![next, self.shape[self.dim]];
        Ok(WeightTensor { dtype: tensor.dtype, shape, data: WeightData::Bytes(content.into()) })
    }

    /// Returns the tensor of the file, of a matrix of rows.
    pub(super) fn repeat_rows(
        &self,
        name: &str,
        matrix: &WeightTensor,
    ) -> Result<WeightTensor, ImportError> {
        let (bytes, size) = (read_bytes(name, matrix)?, matrix.dtype.size());
        let mut content = vec![0; self.whole.iter().product::<usize>() * size];
        let width = self.shape[self.dim];
        for (place, &row) in self.rows.iter().enumerate() {
            for (column, at) in row_places(&self.shape, self.dim, place).enumerate() {
                let element = &bytes[(row * width + column) * size..][..size];
                content[at * size..][..size].copy_from_slice(element);
            }
        }
        let data = WeightData::Bytes(content.into());
        Ok(WeightTensor { dtype: matrix.dtype, shape: self.whole.clone(), data })
    }
}

/// Returns the places of the elements of a row along a dim.
fn row_places(shape: &[usize], dim: usize, place: usize) -> impl Iterator<Item = usize> {
    let inner: usize = shape[dim + 1..].iter().product();
    let (outer, behind) = (place / inner, place % inner);
    let extent = shape[dim];
    (0..extent).map(move |at| (outer * extent + at) * inner + behind)
}

/// The greatest score that a mask leaves of what it hides; softmax makes 0 of it, so that it learns nothing.
const HIDDEN: f64 = -1e4;

/// Numbers the rows along a dim that differ, in the order in which they come, and says whether one of a single number occurs twice,
/// but for one that a mask hides.
fn find_alike(
    bytes: &[u8],
    numbers: &[f64],
    tensor: &WeightTensor,
    dim: usize,
) -> (Vec<usize>, bool) {
    let size = tensor.dtype.size();
    let count = tensor.ty().elements() / tensor.shape[dim].max(1);
    let (mut known, mut is_ambiguous) = (BTreeMap::new(), false);
    let number = |place: usize| {
        let places = row_places(&tensor.shape, dim, place);
        let row: Vec<u8> = places.flat_map(|at| bytes[at * size..][..size].to_vec()).collect();
        let is_one_number = row.chunks_exact(size).all(|element| element == &row[..size]);
        let first = row_places(&tensor.shape, dim, place).next().map_or(0.0, |at| numbers[at]);
        let next = known.len();
        let row = *known.entry(row).or_insert(next);
        is_ambiguous |= is_one_number && first > HIDDEN && row != next;
        row
    };
    ((0..count).map(number).collect(), is_ambiguous)
}

fn read_bytes(name: &str, tensor: &WeightTensor) -> Result<Arc<[u8]>, ImportError> {
    tensor.bytes(name).map_err(|failure| ImportError::Tensor {
        name: name.to_owned(),
        reason: failure.to_string(),
    })
}

impl Lowering {
    /// Lets the rows of a weight, each as often as the exporter has repeated it, stand for the tensor that the file has.
    pub(super) fn repeat_weight(&mut self, name: &str, of: &Repetition) -> Result<(), ImportError> {
        let mut others = of.shape.clone();
        others.remove(of.dim);
        let rows = of.rows.iter().map(|&row| row as f64).collect();
        let places = Val::Known(KnownValue::new(TensorType::new(DType::I64, others), rows));
        let repeated = gather_along(self, &Val::Weight(name.into()), &places, 0)
            .and_then(|found| self.moved_from_last(&found, of.dim))
            .and_then(|whole| self.reshape(&whole, &of.whole));
        let error = |LoweringProblem(reason)| ImportError::Tensor { name: name.into(), reason };
        self.values.insert(name.into(), repeated.map_err(error)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &[usize], elements: &[f32]) -> WeightTensor {
        let bytes: Vec<u8> = elements.iter().flat_map(|value| value.to_le_bytes()).collect();
        WeightTensor {
            dtype: DType::F32,
            shape: shape.to_vec(),
            data: WeightData::Bytes(bytes.into()),
        }
    }

    /// Rows lie along any dim; the tensor is what the rows that differ give again.
    #[test]
    fn rows_that_were_looked_up_several_times_are_found() {
        let rows = tensor(&[2, 2, 2], &[1., 2., 3., 4., 1., 2., 1., 2.]);
        let turned = tensor(&[2, 4], &[1., 3., 1., 1., 2., 4., 2., 2.]);
        for (tensor, dim) in [(rows, 2), (turned, 0)] {
            let found = Repetition::of_rows("t", &tensor).ok().flatten().expect("rows repeat");
            assert_eq!((found.dim, &found.rows[..]), (dim, &[0, 1, 0, 0][..]));
            let different = found.different_rows("t", &tensor).expect("in memory");
            assert_eq!(different.elements("t").expect("in memory"), [1.0, 2.0, 3.0, 4.0]);
            let again = found.repeat_rows("t", &different).expect("in memory");
            assert_eq!(again, tensor);
        }
        let all_differ = tensor(&[2, 2], &[1., 2., 3., 4.]);
        assert_eq!(Repetition::of_rows("t", &all_differ).ok(), Some(None));
        // Two rows of zeros may be two rows.
        assert!(Repetition::of_rows("t", &tensor(&[3, 2], &[0., 0., 1., 2., 0., 0.])).is_err());
        // Hidden, they learn nothing.
        let hidden = tensor(&[3, 2], &[-1e9, -1e9, 1., 2., -1e9, -1e9]);
        let found = Repetition::of_rows("t", &hidden).ok().flatten().expect("rows repeat");
        assert_eq!(found.rows, [0, 1, 0]);
    }

    #[test]
    fn samples_that_are_alike_are_one() {
        let samples = tensor(&[2, 1, 2], &[0., 5., 0., 5.]);
        let found = Repetition::along_batch("t", &samples, Some(2)).expect("they are alike");
        let one = found.different_rows("t", &samples).expect("in memory");
        assert_eq!((&one.shape[..], one.elements("t")), (&[1, 2][..], Ok(vec![0.0, 5.0])));
        let again = found.repeat_rows("t", &one).expect("in memory");
        assert_eq!(again, samples);
        // The batch behind another dim.
        let behind = tensor(&[2, 2, 1], &[7., 7., 5., 5.]);
        let found = Repetition::along_batch("t", &behind, Some(2)).expect("they are alike");
        let each = found.different_rows("t", &behind).expect("in memory");
        assert_eq!((&each.shape[..], each.elements("t")), (&[2, 1][..], Ok(vec![7.0, 5.0])));
        assert_eq!(found.repeat_rows("t", &each).expect("in memory"), behind);
        assert_eq!(Repetition::along_batch("t", &samples, Some(3)), None);
        assert_eq!(Repetition::along_batch("t", &tensor(&[2, 1], &[1., 2.]), Some(2)), None);
    }

    /// Samples, and behind each other what each sample has of two heads; with heads that are alike too it is one row.
    #[test]
    fn samples_that_are_alike_with_all_their_heads_are_one() {
        for (elements, count, one) in [
            ([1., 2., 3., 4., 1., 2., 3., 4.], 2, &[1., 2., 3., 4.][..]),
            ([1., 2., 1., 2., 1., 2., 1., 2.], 4, &[1., 2.]),
        ] {
            let heads = tensor(&[4, 1, 2], &elements);
            let found = Repetition::along_batch("t", &heads, Some(2)).expect("they are alike");
            assert_eq!(found.shape, [1, count, one.len()]);
            let each = found.different_rows("t", &heads).expect("in memory");
            assert_eq!(
                (&each.shape[..], each.elements("t")),
                (&[1, one.len()][..], Ok(one.to_vec()))
            );
            assert_eq!(found.repeat_rows("t", &each).expect("in memory"), heads);
        }
        // Zeros may be positions as well as samples.
        assert_eq!(Repetition::along_batch("t", &tensor(&[4, 1], &[0.0; 4]), Some(2)), None);
    }
}
