//! Interns things that are written once and referred to by number.

use std::collections::BTreeMap;

/// Things, each once.
pub(super) struct InternTable<T> {
    /// The entries, by number.
    pub all: Vec<T>,
    known: BTreeMap<T, usize>,
}

impl<T> Default for InternTable<T> {
    fn default() -> Self {
        Self { all: Vec::new(), known: BTreeMap::new() }
    }
}

impl<T: Ord + Clone> InternTable<T> {
    /// A table of things that have their numbers already.
    pub(super) fn new(all: Vec<T>) -> Self {
        let known = all.iter().cloned().enumerate().rev();
        Self { known: known.map(|(number, thing)| (thing, number)).collect(), all }
    }

    /// The number of a thing, a new one if it is new.
    pub(super) fn intern(&mut self, thing: T) -> usize {
        let next = self.all.len();
        *self.known.entry(thing.clone()).or_insert_with(|| {
            self.all.push(thing);
            next
        })
    }
}
