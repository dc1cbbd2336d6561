//! Contexts: one for each card, and which of them a thread uses.

use std::cell::Cell;

/// Kind of the handles of contexts.
const CONTEXT: u64 = 0xD << 48;

thread_local! {
    static CURRENT: Cell<Option<i32>> = const { Cell::new(None) };
}

/// The card of the calling thread's context.
pub fn device() -> Option<i32> {
    CURRENT.get()
}

/// The handle of a card's context.
pub(super) fn handle(device: i32) -> u64 {
    CONTEXT | ((device as u64 + 1) << 4)
}

/// The card of a context, if it is one.
pub(super) fn device_of(context: u64) -> Option<i32> {
    let number = (context ^ CONTEXT) >> 4;
    (1..=1024).contains(&number).then(|| number as i32 - 1)
}

/// The calling thread uses the context of a card, or none.
pub(crate) fn set(device: Option<i32>) {
    CURRENT.set(device);
}
