//! Arrays of the oracle: every element as an `f64`, whatever the element type. Slow and obviously right.

use crate::shard::Rect;
use crate::types::row_major_position;

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
        let mut data = Vec::with_capacity(shape.iter().product());
        visit_indices(&shape, |index| data.push(element(index)));
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
        let own = index[skip..].iter().zip(&self.shape);
        let clamped = own.map(|(&i, &extent)| if extent == 1 { 0 } else { i });
        self.data[row_major_position(clamped, &self.shape)]
    }

    /// The row-major position of an index.
    pub fn offset_of_index(&self, index: &[usize]) -> usize {
        row_major_position(index.iter().copied(), &self.shape)
    }

    /// The part that a rectangle covers.
    pub fn slice_rect(&self, rect: &Rect) -> Array {
        Array::from_fn(rect.extent.clone(), |index| self.data[self.offset_within(rect, index)])
    }

    /// Writes `part` where the rectangle lies.
    pub fn write_rect(&mut self, rect: &Rect, part: &Array) {
        let mut values = part.data.iter();
        visit_indices(&part.shape, |index| {
            let offset = self.offset_within(rect, index);
            self.data[offset] = *values.next().expect("an element for each index");
        });
    }

    /// The row-major position of an index in a rectangle.
    fn offset_within(&self, rect: &Rect, index: &[usize]) -> usize {
        row_major_position(index.iter().zip(&rect.origin).map(|(i, o)| i + o), &self.shape)
    }
}

/// Calls `visit` with each index of a shape, in row-major order.
pub(crate) fn visit_indices(shape: &[usize], mut visit: impl FnMut(&[usize])) {
    let mut index = vec![0; shape.len()];
    for _ in 0..shape.iter().product() {
        visit(&index);
        for (place, &extent) in index.iter_mut().zip(shape).rev() {
            *place += 1;
            if *place < extent {
                break;
            }
            *place = 0;
        }
    }
}
