//! The time of an action as other streams know it.

/// When an action of two streams acts: its number on its stream, and what it knows of the other.
#[derive(Clone, Copy, Default)]
pub struct Clock {
    /// Its stream.
    pub stream: usize,
    /// Its number there.
    pub action: u32,
    /// How many of the other stream's actions have ended when it begins.
    pub ended: u32,
}
