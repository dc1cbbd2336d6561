//! Shards: the rectangle of a tensor that a rank holds, from shape, hierarchy, SBP and coordinates.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::sbp::{NdSbp, Sbp};

/// An axis-aligned part of a tensor: per dim where it begins and how many elements it has.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rect {
    /// First element of each dim, in the whole tensor.
    pub origin: Vec<usize>,
    /// Number of elements of each dim.
    pub extent: Vec<usize>,
}

impl Rect {
    /// The whole of a shape.
    pub fn whole(shape: &[usize]) -> Self {
        Self { origin: vec![0; shape.len()], extent: shape.to_vec() }
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.extent.iter().product()
    }

    /// The part that both rectangles cover; `None` where that is empty.
    pub fn intersect(&self, other: &Rect) -> Option<Rect> {
        let mut result = Rect { origin: Vec::new(), extent: Vec::new() };
        for dim in 0..self.origin.len() {
            let start = self.origin[dim].max(other.origin[dim]);
            let end =
                (self.origin[dim] + self.extent[dim]).min(other.origin[dim] + other.extent[dim]);
            if start >= end {
                return None;
            }
            result.origin.push(start);
            result.extent.push(end - start);
        }
        Some(result)
    }
}

/// Range `index` of `extent` elements cut into `parts`: the first ranges take the extra element.
pub fn split_range(extent: usize, parts: usize, index: usize) -> Range<usize> {
    let (base, extra) = (extent / parts, extent % parts);
    let start = index * base + index.min(extra);
    start..start + base + usize::from(index < extra)
}

/// The ranges of [`split_range`] that overlap a range of elements, by index.
pub fn overlapping_parts(extent: usize, parts: usize, elements: Range<usize>) -> Range<usize> {
    let (start, end) = (elements.start.min(extent), elements.end.min(extent));
    if start >= end {
        return 0..0;
    }
    let (base, extra) = (extent / parts, extent % parts);
    let long = extra * (base + 1);
    let part = |element: usize| match element.checked_sub(long) {
        None => element / (base + 1),
        Some(rest) => extra + rest / base,
    };
    part(start)..part(end - 1) + 1
}

/// The rectangle of a tensor of `shape` that the rank at `coordinates` holds. Splits of one dim nest in
/// the order of the mesh axes; broadcast and partial axes hold the full range.
pub fn shard_rect(
    shape: &[usize],
    hierarchy: &[usize],
    sbp: &NdSbp,
    coordinates: &[usize],
) -> Rect {
    let mut rect = Rect::whole(shape);
    for (axis, sbp) in sbp.0.iter().enumerate() {
        if let Sbp::Split(dim) = *sbp {
            let range = split_range(rect.extent[dim], hierarchy[axis], coordinates[axis]);
            rect.origin[dim] += range.start;
            rect.extent[dim] = range.len();
        }
    }
    rect
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_ranges_take_the_extra_element() {
        let ranges: Vec<_> = (0..4).map(|i| split_range(5, 4, i)).collect();
        assert_eq!(ranges, [0..2, 2..3, 3..4, 4..5]);
        assert_eq!((0..3).map(|i| split_range(2, 3, i).len()).collect::<Vec<_>>(), [1, 1, 0]);
    }

    #[test]
    fn parts_overlap_as_their_ranges_do() {
        for (extent, parts) in [(7, 3), (2, 5), (8, 4), (0, 2), (1, 1)] {
            for (start, end) in (0..10).flat_map(|end| (0..=end).map(move |start| (start, end))) {
                let meets = |part: &usize| {
                    let range = split_range(extent, parts, *part);
                    range.start.max(start) < range.end.min(end)
                };
                let found: Vec<usize> = overlapping_parts(extent, parts, start..end).collect();
                assert_eq!(found, (0..parts).filter(meets).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn splits_of_one_dim_nest_in_axis_order() {
        let sbp = NdSbp(vec![Sbp::Split(0), Sbp::Split(0)]);
        let rect = shard_rect(&[7, 3], &[2, 2], &sbp, &[0, 1]);
        assert_eq!(rect, Rect { origin: vec![2, 0], extent: vec![2, 3] });
        let rect = shard_rect(&[7, 3], &[2, 2], &sbp, &[1, 1]);
        assert_eq!(rect, Rect { origin: vec![6, 0], extent: vec![1, 3] });
    }
}
