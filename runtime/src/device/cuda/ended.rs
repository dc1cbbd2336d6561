//! The question whether the job has ended elsewhere, for whoever waits for a card.

use std::sync::Arc;

/// Asks whether the job has ended on another rank.
pub(crate) type Ended = Arc<dyn Fn() -> bool + Send + Sync>;
