//! Arrays of the oracle: every element as an `f64`, whatever the element type. Slow and obviously right.

use crate::mesh::unravel_position;
use crate::shard::Rect;
use crate::types::row_major_strides;

/// A dense row-major array. Integers up to 2^53 and truth values (0, 1) are exact.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Extent of each dim.
    pub shape: Vec<usize>,
    /// Elements, row-major.
    pub data: Vec<f64>,
}

impl Array {
    /// An array of these elements; panics where their number is not that of `shape`.
    pub fn new(shape: impl Into<Vec<usize>>, data: Vec<f64>) -> Self {
        let shape = shape.into();
        assert_eq!(shape.iter().product::<usize>(), data.len(), "elements of {shape:?}");
        Self { shape, data }
    }

    /// An array that holds `value` everywhere.
    pub fn full(shape: impl Into<Vec<usize>>, value: f64) -> Self {
        let shape = shape.into();
        let data = vec![value; shape.iter().product()];
        Self { shape, data }
    }

    /// An array whose element at each index is `element(index)`.
    pub fn from_fn(shape: impl Into<Vec<usize>>, mut element: impl FnMut(&[usize]) -> f64) -> Self {
        let shape = shape.into();
        let n = shape.iter().product();
        let data = (0..n).map(|position| element(&unravel_position(position, &shape))).collect();
        Self { shape, data }
    }

    /// The element at an index.
    pub(crate) fn element_at(&self, index: &[usize]) -> f64 {
        self.data[self.offset_of_index(index)]
    }

    /// The element that broadcasting reads at an index of a result of equal or higher rank: dims align at
    /// the right, a dim of extent 1 repeats.
    pub fn at_broadcast(&self, index: &[usize]) -> f64 {
        let skip = index.len() - self.shape.len();
        let clamped: Vec<usize> = index[skip..]
            .iter()
            .zip(&self.shape)
            .map(|(&i, &extent)| if extent == 1 { 0 } else { i })
            .collect();
        self.element_at(&clamped)
    }

    /// The row-major position of an index.
    pub fn offset_of_index(&self, index: &[usize]) -> usize {
        index.iter().zip(row_major_strides(&self.shape)).map(|(i, stride)| i * stride).sum()
    }

    /// The part that a rectangle covers.
    pub fn slice_rect(&self, rect: &Rect) -> Array {
        Array::from_fn(rect.extent.clone(), |index| {
            let global: Vec<usize> = index.iter().zip(&rect.origin).map(|(i, o)| i + o).collect();
            self.element_at(&global)
        })
    }

    /// Writes `part` where the rectangle lies.
    pub fn write_rect(&mut self, rect: &Rect, part: &Array) {
        for (position, &value) in part.data.iter().enumerate() {
            let index: Vec<usize> = unravel_position(position, &part.shape)
                .iter()
                .zip(&rect.origin)
                .map(|(i, o)| i + o)
                .collect();
            let offset = self.offset_of_index(&index);
            self.data[offset] = value;
        }
    }
}
