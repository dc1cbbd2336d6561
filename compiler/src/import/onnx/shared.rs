//! Weights that PyTorch has once and a file of the older exporter twice: where a layer multiplies with a weight from the other side,
//! the exporter turns it, and gives the copy a name of its own.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::import::weights::WeightTensor;

/// Elements that are compared before all of them are.
const SAMPLED: usize = 64;

/// A sentence for each trained weight that the exporter has named and that begins as another one, as it is or turned.
pub(super) fn describe_copies(
    trained: &BTreeSet<String>,
    tensors: &BTreeMap<String, WeightTensor>,
) -> Vec<String> {
    let matrices =
        trained.iter().filter_map(|name| WeightMatrix::from_tensor(name, tensors.get(name)?));
    let (made, named): (Vec<WeightMatrix<'_>>, Vec<WeightMatrix<'_>>) =
        matrices.partition(|matrix| matrix.name.starts_with("onnx::"));
    let mut found = Vec::new();
    for copy in made {
        let of = |turned: bool| named.iter().find(|matrix| copy.is_copy(matrix, turned));
        if let Some(source) = of(true) {
            found.push(format!("`{}` (`{}` turned)", copy.name, source.name));
        } else if let Some(source) = of(false) {
            found.push(format!("`{}` (`{}`)", copy.name, source.name));
        }
    }
    found
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
