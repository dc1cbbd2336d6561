//! Tables of costs, each kept once: layers that are alike have the same tables, and what is done with them is done once.

use std::collections::HashMap;
use std::rc::Rc;

/// Costs that several terms may have in common.
pub type Table = Rc<[f64]>;

/// Tables by content.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    known: HashMap<u64, Vec<Table>>,
}

impl Tables {
    /// The table with these entries.
    pub fn intern(&mut self, entries: Vec<f64>) -> Table {
        let known = self.known.entry(hash(&entries)).or_default();
        if let Some(table) = known.iter().find(|table| same(table, &entries)) {
            return table.clone();
        }
        let table: Table = entries.into();
        known.push(table.clone());
        table
    }
}

/// Numbers that are compared side by side: the minimum of few is soon found, and processors compare several at once.
const LANES: usize = 8;

/// The first place of the least of some numbers. The number is found first, several at once, then its place.
pub fn first_least(numbers: &[f64]) -> usize {
    let mut lanes = [f64::INFINITY; LANES];
    let (whole, last) = numbers.as_chunks::<LANES>();
    for numbers in whole {
        for lane in 0..LANES {
            lower(&mut lanes[lane], numbers[lane]);
        }
    }
    let mut least = f64::INFINITY;
    lanes.iter().chain(last).for_each(|&number| lower(&mut least, number));
    let has_least =
        |numbers: &[f64; LANES]| numbers.iter().fold(false, |has, &n| has | (n == least));
    let before = LANES * whole.iter().take_while(|numbers| !has_least(numbers)).count();
    before + numbers[before..].iter().position(|&number| number == least).unwrap_or(0)
}

/// Lowers a number to another that is below.
pub fn lower(least: &mut f64, sum: f64) {
    *least = if sum < *least { sum } else { *least };
}

/// Bit by bit.
pub fn same(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Multiply and rotate, a word at a time: equal tables are looked at anyway.
pub fn hash(entries: &[f64]) -> u64 {
    entries.iter().fold(entries.len() as u64, |hash, &entry| mixed(hash, entry))
}

/// The hash of what has one more entry.
pub fn mixed(hash: u64, entry: f64) -> u64 {
    (hash.rotate_left(5) ^ entry.to_bits()).wrapping_mul(0x517c_c1b7_2722_0a95)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_equal_numbers_the_first_is_the_least() {
        let cases: [&[f64]; 5] = [
            &[f64::INFINITY; 9],
            &[3.0],
            &[2.0, 1.0, 1.0],
            &[5.0; 16],
            &[9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 4.0, 7.0, 4.0, 9.0, 9.0, 9.0, 9.0, 4.0],
        ];
        assert_eq!(cases.map(first_least), [0, 0, 1, 0, 9]);
    }

    #[test]
    fn equal_tables_are_one() {
        let mut tables = Tables::default();
        let first = tables.intern(vec![1.0, f64::INFINITY]);
        assert!(Rc::ptr_eq(&first, &tables.intern(vec![1.0, f64::INFINITY])));
        assert!(!Rc::ptr_eq(&first, &tables.intern(vec![1.0, 2.0])));
    }
}
