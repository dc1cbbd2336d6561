//! The time of an action as other streams know it.

/// The clock of an action of two streams: its number on its stream, and what it knows of the other.
#[derive(Clone, Copy, Default)]
pub(super) struct Clock {
    /// Its stream.
    pub stream: usize,
    /// Its number there.
    pub action: u32,
    /// The number of the other stream's actions that have ended when it begins.
    pub ended: u32,
}
