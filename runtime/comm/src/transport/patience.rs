//! The time for which ranks wait for each other.

use std::time::Duration;

/// The limits of waiting between ranks of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The time after which a wait is an error.
    pub timeout: Duration,
    /// The time for which a wait keeps the core before it yields: worth it where every rank has a core.
    pub spin: Duration,
}
