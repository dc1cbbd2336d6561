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

/// Bit by bit.
fn same(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Multiply and rotate, a word at a time: equal tables are looked at anyway.
fn hash(entries: &[f64]) -> u64 {
    let mix = |hash: u64, entry: &f64| {
        (hash.rotate_left(5) ^ entry.to_bits()).wrapping_mul(0x517c_c1b7_2722_0a95)
    };
    entries.iter().fold(entries.len() as u64, mix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_tables_are_one() {
        let mut tables = Tables::default();
        let first = tables.intern(vec![1.0, f64::INFINITY]);
        assert!(Rc::ptr_eq(&first, &tables.intern(vec![1.0, f64::INFINITY])));
        assert!(!Rc::ptr_eq(&first, &tables.intern(vec![1.0, 2.0])));
    }
}
