//! From a user's graph to what the planner takes: every pass in order, with the verifier between them.

use graphc_ir::graph::Graph;
use graphc_ir::plan::CompileOptions;

use crate::decisions::Decisions;
use crate::error::CompileError;

/// The passes, in order: the names of `--emit after:PASS`.
pub const PASSES: &[&str] =
    &["loss", "training_mode", "stages", "autodiff", "optimizer", "decompose", "simplify", "rates"];

/// Runs every pass: a graph with gradients and updates, stages, placements and rates.
///
/// # Errors
/// What the graph or the options do not allow.
pub fn prepare(_graph: Graph, _options: &CompileOptions) -> Result<Decisions, CompileError> {
    todo!()
}

/// The graph as it is after a pass.
///
/// # Errors
/// What the graph or the options do not allow, and a name that no pass has.
pub fn prepare_until(
    _graph: Graph,
    _options: &CompileOptions,
    _pass: &str,
) -> Result<Graph, CompileError> {
    todo!()
}
