//! Finds weights that PyTorch has once and a file twice. If a layer multiplies with a weight from the other side, such as a head with a table
//! of tokens, the exporter may turn the weight, and give the copy a name of its own.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::weights::WeightTensor;

/// Elements that are compared before all of them are.
const SAMPLED: usize = 64;

/// Returns the trained weights that the exporter has made (`is_made`) and that begin as another one, turned or as it is, each with that one.
pub(super) fn find_made_copies(
    trained: &BTreeSet<String>,
    tensors: &BTreeMap<String, WeightTensor>,
    is_made: impl Fn(&str) -> bool,
    turned: bool,
) -> BTreeMap<String, String> {
    let matrices =
        trained.iter().filter_map(|name| WeightMatrix::from_tensor(name, tensors.get(name)?));
    let (made, named): (Vec<WeightMatrix<'_>>, Vec<WeightMatrix<'_>>) =
        matrices.partition(|matrix| is_made(matrix.name));
    let pair = |copy: &WeightMatrix<'_>| {
        let source = named.iter().find(|matrix| copy.is_copy(matrix, turned))?;
        Some((copy.name.to_owned(), source.name.to_owned()))
    };
    made.iter().filter_map(pair).collect()
}

/// A weight of two dims.
struct WeightMatrix<'a> {
    name: &'a str,
    tensor: &'a WeightTensor,
    shape: [usize; 2],
    bytes: OnceCell<Option<Arc<[u8]>>>,
}

impl<'a> WeightMatrix<'a> {
    fn from_tensor(name: &'a str, tensor: &'a WeightTensor) -> Option<Self> {
        let &[rows, columns] = &tensor.shape[..] else { return None };
        let bytes = OnceCell::new();
        (rows > 1 && columns > 1).then_some(Self { name, tensor, shape: [rows, columns], bytes })
    }

    /// Whether it has the elements of another, which are not the same number everywhere.
    fn is_copy(&self, other: &Self, turned: bool) -> bool {
        let [rows, columns] = other.shape;
        let shape = if turned { [columns, rows] } else { other.shape };
        if self.shape != shape || self.tensor.dtype != other.tensor.dtype {
            return false;
        }
        let (Some(own), Some(theirs)) = (self.bytes(), other.bytes()) else { return false };
        let size = self.tensor.dtype.size();
        let same = |at: usize| {
            let there = if turned { at % rows * columns + at / rows } else { at };
            element_bytes(own, at, size) == element_bytes(theirs, there, size)
        };
        let count = rows * columns;
        let mut sampled = (0..SAMPLED).map(|i| i * (count - 1) / (SAMPLED - 1));
        let first = element_bytes(own, 0, size);
        let mut others = (1..count).map(|at| element_bytes(own, at, size));
        sampled.all(same) && others.any(|other| other != first) && (0..count).all(same)
    }

    /// Returns its elements. They are read once, as they may lie in a file.
    fn bytes(&self) -> Option<&[u8]> {
        self.bytes.get_or_init(|| self.tensor.bytes(self.name).ok()).as_deref()
    }
}

fn element_bytes(bytes: &[u8], at: usize, size: usize) -> &[u8] {
    &bytes[at * size..][..size]
}
