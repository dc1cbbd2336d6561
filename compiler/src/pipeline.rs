//! From a user's graph to what the planner takes: every pass in order, with the verifier between them.

use graphc_ir::graph::Graph;
use graphc_ir::ids::StageId;
use graphc_ir::plan::{CompileOptions, CrossEntropyForm, Plan, Recompute, Strategy};
use graphc_ir::text;
use graphc_ir::verify::verify;

use crate::decisions::Decisions;
use crate::error::CompileError;
use crate::passes::autocast::{autocast, scales_loss};
use crate::passes::autodiff::autodiff;
use crate::passes::averages::averages;
use crate::passes::batch_first::batch_first;
use crate::passes::channels_last::channels_last;
use crate::passes::decompose::decompose_where_split;
use crate::passes::groups::check_groups;
use crate::passes::loss::attach_loss;
use crate::passes::optimizer::optimizer;
use crate::passes::pins::check_pins;
use crate::passes::rates::rates;
use crate::passes::recompute::{Recomputing, recompute};
use crate::passes::regather::{Regathered, regather};
use crate::passes::simplify::simplify;
use crate::passes::staging::{assign_stages, follow, one_stage, staging};
use crate::passes::training_mode::set_mode;
use crate::stages::chosen;

/// The passes, in order: the names of `--emit after:PASS`.
pub const PASSES: &[&str] = &[
    // First of all: every other pass sees the loss as an output like any other.
    "loss",
    // Before autodiff: the gradient of dropout is a dropout with the same payload, and statistics of a batch have gradients.
    "training_mode",
    // Before autodiff, so that gradients are cut along the batch where values are.
    "batch_first",
    // Before autodiff, so that gradients have their channels last as well; before stages, which are cut where one tensor crosses.
    "channels_last",
    // Before autodiff, which puts each gradient in the stage of the op that it differentiates; after the loss,
    // which is a part of the last stage's work.
    "stages",
    // Before autodiff, so that what is cast has its gradient cast back; after stages, which are cut where one tensor crosses.
    "autocast",
    // Of whole ops, such as softmax and cross entropy: their gradients are better than those of their parts.
    "autodiff",
    // After autodiff, and before simplification, so that what is not needed for an update is left out there.
    "optimizer",
    // After the optimizer, whose results they take in.
    "averages",
    // After autodiff for the same reason, before simplification, which cleans up between the parts.
    "decompose",
    // When all that computes is there, and before rates, so that fewer sums are accumulated.
    "simplify",
    // What is accumulated is no longer rewritten.
    "rates",
    // After what might find that what is computed twice is the same, and what has been summed over microbatches is kept.
    "recompute",
    // Last: of what is computed again the backward pass reads what is gathered again.
    "regather",
];

/// Runs every pass: a graph with gradients and updates, stages, placements and rates. Where memory decides what is
/// computed again ([`Recompute::Auto`]) nothing is: see [`recompute_blocks`].
///
/// # Errors
/// What the graph or the options do not allow.
pub fn prepare(graph: Graph, options: &CompileOptions) -> Result<Decisions, CompileError> {
    let user = graph.clone();
    let recomputing = run(graph, options, &mut |_, _| ())?;
    check_pins(&[&user, &recomputing.training.graph], options)?;
    check_groups(&recomputing.training, options)?;
    decided(recomputing, options)
}

/// The decisions that a plan was made from.
///
/// # Errors
/// Where the plan's graph is none, or its options do not fit it.
pub fn prepare_again(plan: &Plan) -> Result<Decisions, CompileError> {
    let graph = text::parse(&plan.graph.join("\n"))
        .map_err(|error| CompileError::PlanGraph { error: error.to_string() })?;
    let (graph, options) = match &plan.pipeline {
        Some(choice) => chosen(&graph, &plan.options, choice)?,
        None => (graph, plan.options.clone()),
    };
    let options = match plan.cross_entropy {
        CrossEntropyForm::Auto => options,
        cross_entropy => CompileOptions { cross_entropy, ..options },
    };
    let decisions = prepare(graph, &options)?;
    let decisions = match options.recompute {
        Recompute::Auto => recompute_blocks(&decisions, &options, plan.recomputed_blocks)?,
        Recompute::None | Recompute::Full => decisions,
    };
    match plan.regathered {
        true => Ok(regathered(&decisions, &options)?.unwrap_or(decisions)),
        false => Ok(decisions),
    }
}

/// The same decisions with the first `blocks` blocks of every stage computed again in the backward pass; nothing may be
/// computed again in them yet.
///
/// # Errors
/// Where an op does not take its operands.
pub fn recompute_blocks(
    decisions: &Decisions,
    options: &CompileOptions,
    blocks: usize,
) -> Result<Decisions, CompileError> {
    let (training, rates) = (decisions.training.clone(), decisions.rates.clone());
    let recomputing = recompute(training, rates, blocks)?;
    let graph = &recomputing.training.graph;
    verify(graph).map_err(|errors| CompileError::Verify { pass: "recompute", errors })?;
    decided(again(recomputing, options, Regathered::of(options.strategy))?, options)
}

/// The same decisions where each tensor that the backward pass reads again may lie otherwise for it; `None` where that
/// changes nothing, or the strategy has decided it.
///
/// # Errors
/// Where an op does not take its operands.
pub fn regathered(
    decisions: &Decisions,
    options: &CompileOptions,
) -> Result<Option<Decisions>, CompileError> {
    if options.strategy != Strategy::Auto {
        return Ok(None);
    }
    let Decisions { training, rates, recomputed, .. } = decisions.clone();
    let recomputing = Recomputing { training, rates, recomputed };
    let again = again(recomputing, options, Regathered::All)?;
    if again.training.graph.nodes.len() == decisions.graph().nodes.len() {
        return Ok(None);
    }
    decided(again, options).map(Some)
}

fn again(
    recomputing: Recomputing,
    options: &CompileOptions,
    which: Regathered,
) -> Result<Recomputing, CompileError> {
    // One rank has nothing to gather.
    if which == Regathered::Nothing || options.mesh.iter().product::<usize>() < 2 {
        return Ok(recomputing);
    }
    let again = regather(recomputing, which)?;
    let graph = &again.training.graph;
    verify(graph).map_err(|errors| CompileError::Verify { pass: "regather", errors })?;
    Ok(again)
}

fn decided(recomputing: Recomputing, options: &CompileOptions) -> Result<Decisions, CompileError> {
    let Recomputing { training, rates, recomputed } = recomputing;
    // After all nodes exist: reads back as data what `stages` has written into them.
    let staging = staging(&training.graph, options)?;
    Ok(Decisions { training, staging, rates, recomputed })
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
    found.map_or_else(|| result.map(|found| found.training.graph), Ok)
}

/// The graph with its loss, if it is to have one.
///
/// # Errors
/// Where the first output does not fit the loss.
pub fn with_loss(graph: Graph, options: &CompileOptions) -> Result<Graph, CompileError> {
    attach_loss(graph, options)
}

/// Prepares a graph that has its loss on one stage, which is the whole mesh, and says of which layer each node is; those
/// that `layer_of` gives none are of that of what they read, or of their readers.
///
/// # Errors
/// What the graph or the options do not allow.
pub fn prepare_layers(
    graph: Graph,
    layer_of: &[Option<usize>],
    options: &CompileOptions,
) -> Result<(Decisions, Vec<usize>), CompileError> {
    let mut graph = graph;
    let layers = follow(&graph, layer_of.to_vec());
    let count = layers.iter().max().map_or(0, |last| last + 1);
    // Passes keep the stage of what they rewrite: it carries the layer through them.
    graph.stages = vec![None; count];
    for (node, &layer) in graph.nodes.iter_mut().zip(&layers) {
        (node.stage, node.placement) = (Some(StageId::new(layer)), None);
    }
    let graph = batch_first(set_mode(graph, options)?, options)?;
    let graph = channels_last(graph, options)?;
    let Recomputing { training, rates, recomputed } = train(graph, options, &mut |_, _| Ok(()))?;
    let nodes = &training.graph.nodes;
    let layers = nodes.iter().map(|node| node.stage.map_or(0, StageId::index)).collect();
    let staging = one_stage(nodes.len(), options)?;
    Ok((Decisions { training, staging, rates, recomputed }, layers))
}

/// Runs the passes in the order of [`PASSES`]; `seen` is shown the graph after each, when it has been verified.
fn run(
    graph: Graph,
    options: &CompileOptions,
    seen: &mut dyn FnMut(&'static str, &Graph),
) -> Result<Recomputing, CompileError> {
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
    let graph = batch_first(graph, options)?;
    check("batch_first", &graph)?;
    let graph = channels_last(graph, options)?;
    check("channels_last", &graph)?;
    let graph = assign_stages(graph, options)?;
    check("stages", &graph)?;
    train(graph, options, &mut check)
}

/// From the forward graph, in stages, to the last pass.
fn train(
    graph: Graph,
    options: &CompileOptions,
    check: &mut dyn FnMut(&'static str, &Graph) -> Result<(), CompileError>,
) -> Result<Recomputing, CompileError> {
    let scales = scales_loss(&graph, options);
    let graph = autocast(graph, options)?;
    check("autocast", &graph)?;
    let training = autodiff(graph, options, scales)?;
    check("autodiff", &training.graph)?;
    let training = optimizer(training, options)?;
    check("optimizer", &training.graph)?;
    let training = averages(training, options.ema)?;
    check("averages", &training.graph)?;
    let training = decompose_where_split(training, options)?;
    check("decompose", &training.graph)?;
    let training = simplify(training)?;
    check("simplify", &training.graph)?;
    let (training, rates) = rates(training, options.microbatches)?;
    check("rates", &training.graph)?;
    let blocks = if options.recompute == Recompute::Full { usize::MAX } else { 0 };
    let recomputing = recompute(training, rates, blocks)?;
    check("recompute", &recomputing.training.graph)?;
    // Where memory decides what is computed again, that has to be known first.
    let which = match options.recompute {
        Recompute::Auto => Regathered::Nothing,
        Recompute::None | Recompute::Full => Regathered::of(options.strategy),
    };
    let recomputing = again(recomputing, options, which)?;
    check("regather", &recomputing.training.graph)?;
    Ok(recomputing)
}
