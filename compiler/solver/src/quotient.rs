//! Prepares a table of pairs for messages: one number for each class of labels of the other member.
//!
//! The least sum of a row with numbers of that member's labels is the least sum with the least number of each class.
//! This is exact, bit by bit, because rounding keeps the order of sums.

use std::rc::Rc;

use pulp::{Arch, Simd, WithSimd};

use super::tables::{CostTable, LANES};

/// A table by the classes of either member.
#[derive(Clone, Debug)]
pub(crate) struct Quotient {
    table: Rc<CostTable>,
    /// The entries of each member: those of [`LANES`] of its classes for each class of the other, then those of the next classes.
    lanes: [Vec<f64>; 2],
}

impl Quotient {
    /// Prepares a table over two variables.
    pub(crate) fn new(table: Rc<CostTable>) -> Self {
        let [rows, columns] = [0, 1].map(|at| table.axes[at].count);
        let at = |row: usize, column: usize| table.entries[row * columns + column];
        let lanes = [
            build_lanes(rows, columns, at),
            build_lanes(columns, rows, |column, row| at(row, column)),
        ];
        Self { lanes, table }
    }

    /// Returns the number of pairs of classes.
    pub(crate) fn count_pairs(&self) -> usize {
        self.classes(0).len() * self.classes(1).len()
    }

    /// Returns the table in which the two members have only these labels.
    pub(crate) fn with_labels(&self, rows: &[usize], columns: &[usize]) -> CostTable {
        self.table.with_labels(&[rows, columns])
    }

    /// Writes the cost of each class of a member (0 or 1) with a label of the other.
    pub(crate) fn write_costs(&self, of: usize, label: usize, line: &mut Vec<f64>) {
        let (class, width) = (self.table.axes[1 - of].class(label), self.count_classes(1));
        line.clear();
        match of {
            0 => line.extend(self.table.entries.chunks_exact(width).map(|row| row[class])),
            _ => line.extend(&self.table.entries[class * width..][..width]),
        }
    }

    /// Returns the class of each label of a member (0 or 1).
    pub(crate) fn classes(&self, member: usize) -> &[u32] {
        &self.table.axes[member].classes
    }

    /// Returns the number of classes of a member.
    pub(crate) fn count_classes(&self, member: usize) -> usize {
        self.table.axes[member].count
    }

    /// Computes, for each class of a member, the least sum of the costs and of the costs `others` of the other member's classes. Padding follows the
    /// classes.
    pub(crate) fn least_costs(&self, of: usize, others: &[f64], arch: Arch, best: &mut Vec<f64>) {
        arch.dispatch(LeastPairs { entries: &self.lanes[of], others, best });
    }
}

/// [`Quotient::least_costs`], compiled for the instructions of the processor.
struct LeastPairs<'a> {
    /// The costs, in the order of [`Quotient::lanes`].
    entries: &'a [f64],
    others: &'a [f64],
    best: &'a mut Vec<f64>,
}

impl WithSimd for LeastPairs<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (entries, _) = S::as_simd_f64s(self.entries);
        let vectors = LANES / S::F64_LANES;
        let entries = entries.chunks_exact(vectors * self.others.len().max(1));
        self.best.clear();
        self.best.resize(entries.len() * LANES, 0.0);
        let (best, _) = S::as_mut_simd_f64s(self.best);
        for (entries, best) in entries.zip(best.chunks_exact_mut(vectors)) {
            for (vector, best) in best.iter_mut().enumerate() {
                let mut least = simd.splat_f64s(f64::INFINITY);
                for (entries, &other) in entries.chunks_exact(vectors).zip(self.others) {
                    let sum = simd.add_f64s(entries[vector], simd.splat_f64s(other));
                    least = simd.min_f64s(sum, least);
                }
                *best = least;
            }
        }
    }
}

/// Makes the entries of these own and other classes in the order of [`Quotient::lanes`].
fn build_lanes(count: usize, others: usize, at: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    let mut lanes = Vec::with_capacity(count.next_multiple_of(LANES) * others);
    for first in (0..count).step_by(LANES) {
        for other in 0..others {
            let of = |own: usize| if own < count { at(own, other) } else { f64::INFINITY };
            lanes.extend((first..first + LANES).map(of));
        }
    }
    lanes
}

impl From<Rc<CostTable>> for Quotient {
    fn from(table: Rc<CostTable>) -> Self {
        Self::new(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::tests::{COLUMNS, ROWS, cost, every_arch};
    use crate::tables::{LabelAxis, lower_to};

    fn table() -> Quotient {
        Quotient::new(Rc::new(CostTable::of_pair(
            [ROWS, COLUMNS].map(LabelAxis::one_per_label),
            cost,
        )))
    }

    #[test]
    fn lines_are_those_of_all_labels() {
        let (table, mut line) = (table(), Vec::new());
        assert_eq!(
            (table.count_pairs(), table.count_classes(0), table.count_classes(1)),
            (120, 3, 4)
        );
        for (row, column) in (0..ROWS).flat_map(|row| (0..COLUMNS).map(move |c| (row, c))) {
            table.write_costs(0, column, &mut line);
            assert_eq!(line[table.classes(0)[row] as usize], cost(row, column));
            table.write_costs(1, row, &mut line);
            assert_eq!(line[table.classes(1)[column] as usize], cost(row, column));
        }
    }

    #[test]
    fn least_costs_are_those_of_all_labels() {
        let (rows, columns): (Vec<usize>, Vec<usize>) = (vec![0, 2, 3, 5, 10], vec![9, 1, 4, 2]);
        let picked = Quotient::new(Rc::new(table().with_labels(&rows, &columns)));
        let other = |label: usize| if label == 1 { f64::INFINITY } else { (label * 11 % 5) as f64 };
        let cost = |row: usize, column: usize| cost(rows[row], columns[column]);
        let others: Vec<f64> = (0..columns.len()).map(other).collect();
        for (row, found) in least_of_labels(&picked, 0, &others).into_iter().enumerate() {
            let all = (0..columns.len()).map(|column| cost(row, column) + others[column]);
            assert_eq!(found, all.fold(f64::INFINITY, f64::min));
        }
        let others: Vec<f64> = (0..rows.len()).map(other).collect();
        for (column, found) in least_of_labels(&picked, 1, &others).into_iter().enumerate() {
            let all = (0..rows.len()).map(|row| cost(row, column) + others[row]);
            assert_eq!(found, all.fold(f64::INFINITY, f64::min));
        }
    }

    /// Returns the least cost of each label of a member, given the costs `others` of the other member's labels.
    fn least_of_labels(table: &Quotient, of: usize, others: &[f64]) -> Vec<f64> {
        let mut classes = vec![f64::INFINITY; table.count_classes(1 - of)];
        for (&class, &cost) in table.classes(1 - of).iter().zip(others) {
            lower_to(&mut classes[class as usize], cost);
        }
        let least_by = |arch: Arch| -> Vec<f64> {
            let mut best = Vec::new();
            table.least_costs(of, &classes, arch, &mut best);
            table.classes(of).iter().map(|&class| best[class as usize]).collect()
        };
        let found = least_by(Arch::new());
        every_arch().into_iter().for_each(|arch| assert_eq!(least_by(arch), found, "{arch:?}"));
        found
    }
}
