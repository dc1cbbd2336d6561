//! A table of pairs whose equal rows, and equal columns, are kept once.
//!
//! What a pair of nodes pays is what boxing costs between the layout that one label makes and the layout that another takes, and many
//! labels make or take the same. So a table has far fewer different rows and columns than labels, and the least of them over all labels
//! of one side is found among the different ones: the least sum of a row with numbers that columns have is that with the least number
//! of equal columns. That is exact, bit by bit, as rounding keeps the order of sums.

use std::collections::HashMap;
use std::rc::Rc;

use super::tables::{hash, least_sum, lower, mixed, same};

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
        let entries = kept.iter().flat_map(|row| second.iter().map(|&column| row[column]));
        Self {
            entries: entries.collect(),
            rows: rows.into_iter().map(|row| of_row[row as usize]).collect(),
            columns: columns.into_iter().map(|column| of_column[column as usize]).collect(),
            width: second.len(),
        }
    }

    /// Pairs of labels.
    pub fn pairs(&self) -> usize {
        self.rows.len() * self.columns.len()
    }

    /// The cost of a pair of labels.
    pub fn at(&self, row: usize, column: usize) -> f64 {
        self.entries[self.rows[row] as usize * self.width + self.columns[column] as usize]
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

    /// For each label of a member (0 or 1) the least of the costs with what `others` say of the labels of the other member.
    pub fn least(&self, of: usize, others: &[f64], room: &mut Room, least: &mut Vec<f64>) {
        let Room { classes, best } = room;
        let (own, other) =
            if of == 0 { (&self.rows, &self.columns) } else { (&self.columns, &self.rows) };
        let count = if of == 0 { self.width } else { self.entries.len() / self.width.max(1) };
        classes.clear();
        classes.resize(count, f64::INFINITY);
        other
            .iter()
            .zip(others)
            .for_each(|(&class, &cost)| lower(&mut classes[class as usize], cost));
        best.clear();
        self.find_least(of, classes, best);
        least.clear();
        least.extend(own.iter().map(|&class| best[class as usize]));
    }

    /// The least sums of the classes of one side with numbers of those of the other.
    fn find_least(&self, of: usize, classes: &[f64], best: &mut Vec<f64>) {
        let rows = self.entries.chunks_exact(self.width.max(1));
        if of == 0 {
            best.extend(rows.map(|row| least_sum(row, classes)));
            return;
        }
        best.resize(self.width, f64::INFINITY);
        for (row, other) in rows.zip(classes) {
            for (least, cost) in best.iter_mut().zip(row) {
                lower(least, cost + other);
            }
        }
    }
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

/// Memory of one step, kept for the next.
#[derive(Clone, Debug, Default)]
pub struct Room {
    /// By class of the other member.
    classes: Vec<f64>,
    /// By class of the own one.
    best: Vec<f64>,
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

    #[test]
    fn equal_rows_and_columns_are_kept_once() {
        let (table, whole) = (Quotient::new(&table(), COLUMNS), table());
        assert_eq!((table.entries.len(), table.width), (12, 4));
        for (at, &cost) in whole.iter().enumerate() {
            assert_eq!(table.at(at / COLUMNS, at % COLUMNS), cost);
        }
    }

    #[test]
    fn what_no_label_tells_apart_any_more_becomes_one() {
        // Rows 0 and 1 are the same in these columns, once the others are gone.
        let whole = [0.0, 1.0, 2.0, 0.0, 1.0, 5.0, 3.0, 3.0, 3.0];
        let picked = Quotient::new(&whole, 3).picked(&[0, 1, 2], &[0, 1]);
        assert_eq!(picked.entries, [0.0, 1.0, 3.0, 3.0]);
        assert_eq!((picked.pairs(), picked.at(1, 1), picked.at(2, 0)), (6, 1.0, 3.0));
    }

    #[test]
    fn least_costs_are_those_of_all_labels() {
        let (rows, columns): (Vec<usize>, Vec<usize>) = (vec![0, 2, 3, 5, 10], vec![9, 1, 4, 2]);
        let whole = table();
        let picked = Quotient::new(&whole, COLUMNS).picked(&rows, &columns);
        let other = |label: usize| if label == 1 { f64::INFINITY } else { (label * 11 % 5) as f64 };
        let (mut room, mut least) = (Room::default(), Vec::new());
        let cost = |row: usize, column: usize| whole[rows[row] * COLUMNS + columns[column]];
        let others: Vec<f64> = (0..columns.len()).map(other).collect();
        picked.least(0, &others, &mut room, &mut least);
        for (row, &found) in least.iter().enumerate() {
            let all = (0..columns.len()).map(|column| cost(row, column) + others[column]);
            assert_eq!(found, all.fold(f64::INFINITY, f64::min));
        }
        let others: Vec<f64> = (0..rows.len()).map(other).collect();
        picked.least(1, &others, &mut room, &mut least);
        for (column, &found) in least.iter().enumerate() {
            let all = (0..rows.len()).map(|row| cost(row, column) + others[row]);
            assert_eq!(found, all.fold(f64::INFINITY, f64::min));
        }
    }
}
