//! Simplification.

use super::rebuild::remove_dead;
use crate::decisions::TrainingGraph;
use crate::error::CompileError;

/// Without dead nodes.
///
/// # Errors
/// None.
pub fn simplify(training: TrainingGraph) -> Result<TrainingGraph, CompileError> {
    remove_dead(&training).map_err(|error| CompileError::Op { pass: "simplify", error })
}
