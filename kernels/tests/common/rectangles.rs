//! Rectangles of tensors that are copied to others or joined with what is there.
#![allow(dead_code, reason = "each test binary uses a part")]

use graphc_ir::sbp::ReduceKind;
use graphc_ir::types::DType;

/// A rectangle of a tensor: the extents of the tensor, and where it begins.
pub type Part = ([usize; 3], [usize; 3]);

/// Joins a rectangle of one memory with a rectangle of another, and returns the latter memory.
pub fn joined(
    [from, to]: [&[f64]; 2],
    [(of_from, from_start), (of_to, to_start)]: [Part; 2],
    extent: [usize; 3],
    join: impl Fn(f64, f64) -> f64,
) -> Vec<f64> {
    let mut found = to.to_vec();
    for at in 0..extent.iter().product() {
        let index = [at / extent[2] / extent[1], at / extent[2] % extent[1], at % extent[2]];
        let place = |of: [usize; 3], start: [usize; 3]| {
            (0..3).fold(0, |place, dim| place * of[dim] + start[dim] + index[dim])
        };
        let to = place(of_to, to_start);
        found[to] = join(found[to], from[place(of_from, from_start)]);
    }
    found
}

/// Returns the value that an element becomes: the one that comes, or both joined.
pub fn join(dtype: DType, kind: Option<ReduceKind>, there: f64, comes: f64) -> f64 {
    match kind {
        None => comes,
        Some(ReduceKind::Sum) if dtype == DType::Bool => there.max(comes),
        Some(ReduceKind::Sum) => there + comes,
        Some(ReduceKind::Max) => there.max(comes),
        Some(ReduceKind::Min) => there.min(comes),
    }
}

/// Two places and an extent whose rows are whole words.
pub const WIDE: ([Part; 2], [usize; 3]) =
    ([([3, 5, 16], [1, 0, 8]), ([2, 6, 8], [0, 2, 0])], [2, 4, 8]);

/// Two places and an extent whose rows are no whole words.
pub const ODD: ([Part; 2], [usize; 3]) =
    ([([2, 3, 7], [0, 1, 2]), ([4, 2, 5], [2, 0, 1])], [2, 2, 3]);
