//! A table of pairs whose equal rows, and equal columns, are kept once.
//!
//! What a pair of nodes pays is what boxing costs between the layout that one label makes and the layout that another takes, and many
//! labels make or take the same. So a table has far fewer different rows and columns than labels, and the least of them over all labels
//! of one side is found among the different ones: the least sum of a row with numbers that columns have is that with the least number
//! of equal columns. That is exact, bit by bit, as rounding keeps the order of sums.

use std::collections::HashMap;
use std::rc::Rc;

use super::tables::{hash, lower, mixed, same};

/// Classes whose least sums are found at once.
const LANES: usize = 8;

/// A table with its different rows and columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Quotient {
    /// By class of rows and class of columns.
    entries: Vec<f64>,
    /// By label of the first member: its class.
    rows: Vec<u32>,
    /// By label of the second member: its class.
    columns: Vec<u32>,
    /// Classes of columns.
    width: usize,
    /// By member: the entries of [`LANES`] of its classes for each class of the other, then those of the next.
    lanes: [Vec<f64>; 2],
}

impl Quotient {
    /// A row-major table with so many columns.
    pub fn new(table: &[f64], columns: usize) -> Self {
        let all = |count: usize| (0..count as u32).collect();
        let rows = table.len() / columns.max(1);
        Self::merged(table, all(rows), all(columns), columns)
    }

    /// The same where some of the rows and columns of `entries` are equal, or are those of no label.
    fn merged(entries: &[f64], rows: Vec<u32>, columns: Vec<u32>, width: usize) -> Self {
        let (first, of_row) = equal_rows(entries, width);
        let kept: Vec<&[f64]> = first.iter().map(|&row| row_of(entries, width, row)).collect();
        let (second, of_column) = equal_columns(&kept, width);
        let at = |row: usize, column: usize| kept[row][second[column]];
        let lanes_of_columns = laned(second.len(), kept.len(), |column, row| at(row, column));
        let entries = kept.iter().flat_map(|row| second.iter().map(|&column| row[column]));
        Self {
            entries: entries.collect(),
            lanes: [laned(kept.len(), second.len(), at), lanes_of_columns],
            rows: rows.into_iter().map(|row| of_row[row as usize]).collect(),
            columns: columns.into_iter().map(|column| of_column[column as usize]).collect(),
            width: second.len(),
        }
    }

    /// Pairs of labels.
    pub fn pairs(&self) -> usize {
        self.rows.len() * self.columns.len()
    }

    /// The table in which the two members have these labels alone.
    pub fn picked(&self, rows: &[usize], columns: &[usize]) -> Self {
        let (of_row, rows) = used(&self.rows, rows);
        let (of_column, columns) = used(&self.columns, columns);
        let pick = |&row: &u32| {
            let row = row_of(&self.entries, self.width, row as usize);
            of_column.iter().map(|&column| row[column as usize])
        };
        let entries: Vec<f64> = of_row.iter().flat_map(pick).collect();
        Self::merged(&entries, rows, columns, of_column.len())
    }

    /// The cost of each class of a member (0 or 1) with a label of the other.
    pub fn line(&self, of: usize, label: usize, line: &mut Vec<f64>) {
        let class = self.classes(1 - of)[label] as usize;
        line.clear();
        match of {
            0 => line.extend(self.entries.chunks_exact(self.width).map(|row| row[class])),
            _ => line.extend(row_of(&self.entries, self.width, class)),
        }
    }

    /// The class of each label of a member (0 or 1).
    pub fn classes(&self, member: usize) -> &[u32] {
        if member == 0 { &self.rows } else { &self.columns }
    }

    /// The number of classes of a member.
    pub fn count(&self, member: usize) -> usize {
        if member == 0 { self.entries.len() / self.width.max(1) } else { self.width }
    }

    /// For each class of a member the least of the costs with what `others` say of the classes of the other member. Some more numbers
    /// follow.
    pub fn least(&self, of: usize, others: &[f64], best: &mut Vec<f64>) {
        best.clear();
        let (entries, _) = self.lanes[of].as_chunks::<LANES>();
        for entries in entries.chunks_exact(others.len().max(1)) {
            let mut least = [f64::INFINITY; LANES];
            for (entries, other) in entries.iter().zip(others) {
                for lane in 0..LANES {
                    lower(&mut least[lane], entries[lane] + other);
                }
            }
            best.extend(least);
        }
    }
}

/// Entries of so many own and other classes as [`Quotient::lanes`] has them.
fn laned(count: usize, others: usize, at: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    let mut lanes = Vec::with_capacity(count.next_multiple_of(LANES) * others);
    for first in (0..count).step_by(LANES) {
        for other in 0..others {
            let of = |own: usize| if own < count { at(own, other) } else { f64::INFINITY };
            lanes.extend((first..first + LANES).map(of));
        }
    }
    lanes
}

/// Tables by content: layers that are alike have the same.
#[derive(Clone, Debug, Default)]
pub struct Quotients {
    known: HashMap<u64, Vec<Rc<Quotient>>>,
}

impl Quotients {
    /// The table that is equal to this one.
    pub fn intern(&mut self, table: Quotient) -> Rc<Quotient> {
        let known = self.known.entry(hash(&table.entries)).or_default();
        if let Some(known) = known.iter().find(|known| ***known == table) {
            return known.clone();
        }
        known.push(Rc::new(table));
        known[known.len() - 1].clone()
    }
}

fn row_of(entries: &[f64], width: usize, row: usize) -> &[f64] {
    &entries[row * width..][..width]
}

/// The classes that these labels have, and for each label its place among them.
fn used(classes: &[u32], labels: &[usize]) -> (Vec<u32>, Vec<u32>) {
    let mut all: Vec<u32> = labels.iter().map(|&label| classes[label]).collect();
    all.sort_unstable();
    all.dedup();
    let place = |&label: &usize| all.binary_search(&classes[label]).expect("it is used") as u32;
    let places = labels.iter().map(place).collect();
    (all, places)
}

/// The first of all equal rows, and for each row the place of its first.
fn equal_rows(entries: &[f64], width: usize) -> (Vec<usize>, Vec<u32>) {
    let rows = entries.len() / width.max(1);
    let row = |at: usize| row_of(entries, width, at);
    classes((0..rows).map(|at| hash(row(at))), |a, b| same(row(a), row(b)))
}

/// The same of the columns of these rows.
fn equal_columns(rows: &[&[f64]], width: usize) -> (Vec<usize>, Vec<u32>) {
    let mut hashes = vec![0; width];
    for row in rows {
        hashes.iter_mut().zip(*row).for_each(|(known, &entry)| *known = mixed(*known, entry));
    }
    let equal = |a: usize, b: usize| rows.iter().all(|row| row[a].to_bits() == row[b].to_bits());
    classes(hashes.into_iter(), equal)
}

/// The first of all that are equal, and for each the place of its first. Only what has the same hash is compared.
fn classes(
    hashes: impl Iterator<Item = u64>,
    equal: impl Fn(usize, usize) -> bool,
) -> (Vec<usize>, Vec<u32>) {
    let mut known: HashMap<u64, Vec<u32>> = HashMap::new();
    let mut firsts: Vec<usize> = Vec::new();
    let class = |(at, hash): (usize, u64)| {
        let alike = known.entry(hash).or_default();
        let found = alike.iter().find(|&&class| equal(firsts[class as usize], at));
        found.copied().unwrap_or_else(|| {
            let class = firsts.len() as u32;
            alike.push(class);
            firsts.push(at);
            class
        })
    };
    let of = hashes.enumerate().map(class).collect();
    (firsts, of)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: usize = 12;
    const COLUMNS: usize = 10;

    /// Three different rows and four different columns, one pair of which is forbidden.
    fn table() -> Vec<f64> {
        let cost = |row: usize, column: usize| match (row % 3, column * 7 % 4) {
            (1, 2) => f64::INFINITY,
            (row, column) => ((row * 5 + column * 3) % 7) as f64 + 0.1,
        };
        (0..ROWS).flat_map(|row| (0..COLUMNS).map(move |column| cost(row, column))).collect()
    }

    /// The cost of a pair of labels.
    fn at_labels(table: &Quotient, row: usize, column: usize) -> f64 {
        let mut line = Vec::new();
        table.line(0, column, &mut line);
        line[table.classes(0)[row] as usize]
    }

    #[test]
    fn equal_rows_and_columns_are_kept_once() {
        let (table, whole) = (Quotient::new(&table(), COLUMNS), table());
        assert_eq!((table.entries.len(), table.width), (12, 4));
        for (at, &cost) in whole.iter().enumerate() {
            assert_eq!(at_labels(&table, at / COLUMNS, at % COLUMNS), cost);
        }
    }

    #[test]
    fn what_no_label_tells_apart_any_more_becomes_one() {
        // Rows 0 and 1 are the same in these columns, once the others are gone.
        let whole = [0.0, 1.0, 2.0, 0.0, 1.0, 5.0, 3.0, 3.0, 3.0];
        let picked = Quotient::new(&whole, 3).picked(&[0, 1, 2], &[0, 1]);
        assert_eq!(picked.entries, [0.0, 1.0, 3.0, 3.0]);
        assert_eq!(
            (picked.pairs(), at_labels(&picked, 1, 1), at_labels(&picked, 2, 0)),
            (6, 1.0, 3.0)
        );
    }

    #[test]
    fn least_costs_are_those_of_all_labels() {
        let (rows, columns): (Vec<usize>, Vec<usize>) = (vec![0, 2, 3, 5, 10], vec![9, 1, 4, 2]);
        let whole = table();
        let picked = Quotient::new(&whole, COLUMNS).picked(&rows, &columns);
        let other = |label: usize| if label == 1 { f64::INFINITY } else { (label * 11 % 5) as f64 };
        let cost = |row: usize, column: usize| whole[rows[row] * COLUMNS + columns[column]];
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

    /// By label of a member, where those of the other cost as much as `others` says.
    fn least_of_labels(table: &Quotient, of: usize, others: &[f64]) -> Vec<f64> {
        let mut classes = vec![f64::INFINITY; table.count(1 - of)];
        for (&class, &cost) in table.classes(1 - of).iter().zip(others) {
            lower(&mut classes[class as usize], cost);
        }
        let mut best = Vec::new();
        table.least(of, &classes, &mut best);
        table.classes(of).iter().map(|&class| best[class as usize]).collect()
    }
}
