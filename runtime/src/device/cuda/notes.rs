//! Notes about cards, in sentences for the user, until [`take_notes`] takes them: nothing here writes anything. Each text is
//! noted once in a process.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

static NOTES: Mutex<Notes> = Mutex::new(Notes::new());

struct Notes {
    /// The notes that were written or will be.
    seen: BTreeSet<String>,
    /// Whether a note about kept files was added.
    is_said_of_cache: bool,
    /// The notes that nobody has taken yet, in order.
    open: Vec<String>,
}

impl Notes {
    const fn new() -> Self {
        Self { seen: BTreeSet::new(), is_said_of_cache: false, open: Vec::new() }
    }

    fn add(&mut self, text: String) {
        if self.seen.insert(text.clone()) {
            self.open.push(text);
        }
    }

    fn add_of_cache(&mut self, text: String) {
        if !std::mem::replace(&mut self.is_said_of_cache, true) {
            self.add(text);
        }
    }
}

/// Adds a note.
pub(super) fn add_note(text: String) {
    NOTES.lock().unwrap_or_else(PoisonError::into_inner).add(text);
}

/// Adds a note that something is wrong with what is kept from one process to the next. Of several things the first is enough: they
/// tend to be many of one kind.
pub(super) fn note_of_cache(text: String) {
    NOTES.lock().unwrap_or_else(PoisonError::into_inner).add_of_cache(text);
}

/// Takes the notes about cards since this was called last: what was wrong first with what is kept from one process to the next,
/// and how products are made where that is not the usual way or is asked for.
pub fn take_notes() -> Vec<String> {
    std::mem::take(&mut NOTES.lock().unwrap_or_else(PoisonError::into_inner).open)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_said_once_and_of_the_cache_only_the_first() {
        let mut notes = Notes::new();
        for text in ["b", "a", "b"] {
            notes.add(text.to_owned());
        }
        notes.add_of_cache("first".to_owned());
        notes.add_of_cache("second".to_owned());
        assert_eq!(std::mem::take(&mut notes.open), ["b", "a", "first"]);
        notes.add("a".to_owned());
        assert!(notes.open.is_empty());
    }
}
