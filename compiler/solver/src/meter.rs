//! Measures the planner's work by a count that is the same on every machine.

use std::cell::Cell;
use std::rc::Rc;

/// Counts entries of cost tables that are made or looked at, and routes that are priced. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Meter(Rc<Cell<u64>>);

impl Meter {
    /// Counts some more.
    pub fn add(&self, entries: usize) {
        self.0.set(self.0.get() + entries as u64);
    }

    /// All that was counted.
    pub fn entries(&self) -> u64 {
        self.0.get()
    }
}
