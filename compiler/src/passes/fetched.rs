//! Drops the outputs that nobody asks for.
//!
//! An output is held until its step ends, and then copied to the host in the element type of the model. A training
//! seldom needs this: the scores of a language model are its largest tensor. So a training on a loss keeps only the
//! outputs that the options ask for.
//!
//! The pass `loss` does this before any other pass sees the graph. Hence no cast to the model's element type is made
//! for a dropped output. Simplification removes the ops that led to it alone.

use graphc_ir::graph::Graph;
use graphc_ir::pattern::matches_pattern;
use graphc_plan::CompileOptions;

use super::LOSS;
use crate::passes::error::PassError;

/// The graph with the outputs that are asked for; `own` are those that its author named, the others the compiler has made.
///
/// # Errors
/// The first pattern that fits no output.
pub(super) fn keep_fetched(
    graph: Graph,
    own: &[String],
    options: &CompileOptions,
) -> Result<Graph, PassError> {
    let names = || graph.outputs.iter().map(|output| output.name.as_str());
    if let Some(pattern) =
        options.fetch.iter().find(|pattern| !names().any(|name| matches_pattern(pattern, name)))
    {
        let outputs = names().map(str::to_owned).collect();
        return Err(PassError::OutputUnknown { pattern: pattern.clone(), outputs });
    }
    let trains_on_loss = options.loss.is_some() && options.trains_variables();
    if options.fetch.is_empty() && !trains_on_loss {
        return Ok(graph);
    }
    let has_loss = options.loss.is_some() || options.differentiates_loss();
    let is_kept = |name: &str| {
        (has_loss && name == LOSS)
            || !own.iter().any(|own| own == name)
            || options.fetch.iter().any(|pattern| matches_pattern(pattern, name))
    };
    let mut graph = graph;
    graph.outputs.retain(|output| is_kept(&output.name));
    Ok(graph)
}
