//! Interns things that are written once and referred to by number.

use std::collections::BTreeMap;

/// Things, each once.
pub struct Table<T> {
    /// By number.
    pub all: Vec<T>,
    known: BTreeMap<T, usize>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { all: Vec::new(), known: BTreeMap::new() }
    }
}

impl<T: Ord + Clone> Table<T> {
    /// The number of a thing, a new one if it is new.
    pub fn number(&mut self, thing: T) -> usize {
        let next = self.all.len();
        *self.known.entry(thing.clone()).or_insert_with(|| {
            self.all.push(thing);
            next
        })
    }
}
