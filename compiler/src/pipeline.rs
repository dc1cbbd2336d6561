//! From a user's graph to what the planner takes: every pass in order, with the verifier between them.

use graphc_ir::graph::Graph;
use graphc_ir::plan::CompileOptions;
use graphc_ir::verify::verify;

use crate::decisions::{Decisions, Rates, TrainingGraph};
use crate::error::CompileError;
use crate::passes::autodiff::autodiff;
use crate::passes::decompose::decompose_where_split;
use crate::passes::loss::attach_loss;
use crate::passes::optimizer::optimizer;
use crate::passes::pins::check_pins;
use crate::passes::rates::rates;
use crate::passes::simplify::simplify;
use crate::passes::staging::{assign_stages, staging};
use crate::passes::training_mode::set_mode;

/// The passes, in order: the names of `--emit after:PASS`.
pub const PASSES: &[&str] = &[
    // First of all: every other pass sees the loss as an output like any other.
    "loss",
    // Before autodiff: the gradient of dropout is a dropout with the same payload, and statistics of a batch have gradients.
    "training_mode",
    // Before autodiff, which puts each gradient in the stage of the op that it differentiates; after the loss,
    // which is a part of the last stage's work.
    "stages",
    // Of whole ops, such as softmax and cross entropy: their gradients are better than those of their parts.
    "autodiff",
    // After autodiff, and before simplification, so that what is not needed for an update is left out there.
    "optimizer",
    // After autodiff for the same reason, before simplification, which cleans up between the parts.
    "decompose",
    // When all that computes is there, and before rates, so that fewer sums are accumulated.
    "simplify",
    // Last: what is accumulated is no longer rewritten.
    "rates",
];

/// Runs every pass: a graph with gradients and updates, stages, placements and rates.
///
/// # Errors
/// What the graph or the options do not allow.
pub fn prepare(graph: Graph, options: &CompileOptions) -> Result<Decisions, CompileError> {
    let user = graph.clone();
    let (training, rates) = run(graph, options, &mut |_, _| ())?;
    check_pins(&[&user, &training.graph], options)?;
    // After all nodes exist: reads back as data what `stages` has written into them.
    let staging = staging(&training.graph, options)?;
    Ok(Decisions { training, staging, rates })
}

/// The graph as it is after a pass.
///
/// # Errors
/// What the graph or the options do not allow, and a name that no pass has.
pub fn prepare_until(
    graph: Graph,
    options: &CompileOptions,
    pass: &str,
) -> Result<Graph, CompileError> {
    if !PASSES.contains(&pass) {
        return Err(CompileError::UnknownPass { pass: pass.into(), passes: PASSES });
    }
    let mut found = None;
    let result = run(graph, options, &mut |name, graph| {
        if name == pass {
            found = Some(graph.clone());
        }
    });
    // A later pass may fail where the one that is asked for did not.
    found.map_or_else(|| result.map(|(training, _)| training.graph), Ok)
}

/// Runs the passes in the order of [`PASSES`]; `seen` is shown the graph after each, when it has been verified.
fn run(
    graph: Graph,
    options: &CompileOptions,
    seen: &mut dyn FnMut(&'static str, &Graph),
) -> Result<(TrainingGraph, Rates), CompileError> {
    let mut check = |pass: &'static str, graph: &Graph| {
        verify(graph).map_err(|errors| CompileError::Verify { pass, errors })?;
        seen(pass, graph);
        Ok(())
    };
    check("reading", &graph)?;
    let graph = attach_loss(graph, options)?;
    check("loss", &graph)?;
    let graph = set_mode(graph, options)?;
    check("training_mode", &graph)?;
    let graph = assign_stages(graph, options)?;
    check("stages", &graph)?;
    let training = autodiff(graph, options)?;
    check("autodiff", &training.graph)?;
    let training = optimizer(training, options.optimizer)?;
    check("optimizer", &training.graph)?;
    let training = decompose_where_split(training, options)?;
    check("decompose", &training.graph)?;
    let training = simplify(training)?;
    check("simplify", &training.graph)?;
    let (training, rates) = rates(training, options.microbatches)?;
    check("rates", &training.graph)?;
    Ok((training, rates))
}
