//! Branch and bound, depth first: parts of a problem are bounded, and divided in two if something better may be in them.
//!
//! The user defines what a part is, and how it is bounded and divided. Parts are labels of a network ([`subdivide`](super::subdivide)), or labels
//! within a limit of memory, with prices.
//!
//! The latest part is always next. So only as many parts are open as divisions are nested, and plans are found early. Taking the part of the lowest
//! bound instead, or both in turn, gives the same plans and bounds (benchmarks/README.md).

/// A problem that is divided.
pub trait Division {
    /// A part of it.
    type Part;

    /// Returns the known lower bound of all assignments in a part.
    fn part_bound(part: &Self::Part) -> f64;

    /// Whether one more part may be looked at.
    fn has_work(&mut self) -> bool;

    /// Raises the bound of a part, and divides it into two parts, the more promising one last. `None` if nothing better is in it, or if it cannot be
    /// divided.
    fn divide(&mut self, part: &mut Self::Part) -> Option<[Self::Part; 2]>;
}

/// Bounds all assignments in these parts, as far as the work lasts. The last part is looked at first.
pub fn branch_and_bound<D: Division>(division: &mut D, mut open: Vec<D::Part>) -> f64 {
    let mut least = f64::INFINITY;
    while division.has_work() {
        let Some(mut part) = open.pop() else { break };
        match division.divide(&mut part) {
            Some(parts) => open.extend(parts),
            None => least = least.min(D::part_bound(&part)),
        }
    }
    open.iter().map(D::part_bound).fold(least, f64::min)
}
