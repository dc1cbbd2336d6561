//! Runs the passes that turn a user's graph into the training graph that the planner takes.
//!
//! The table [`PASSES`] gives each pass its name, its function and the reason for its place. It is the only place
//! that knows their order. Every other way through the passes is [`run_scopes`] with some rows left out.
//!
//! The verifier runs after each pass where assertions are on, as in tests. Without them it runs once, after the last
//! pass. [`Common`] holds the work that all forms of cross entropy share, so these passes run once.
//!
//! Some questions are answered by planning: the number of stages, the form of cross entropy, the extent of recomputation. [`compile`](crate::compile)
//! asks them, and gets the graph of each choice from here.

use graphc_ir::enter_span;
use graphc_ir::graph::{Graph, Part};
use graphc_ir::ids::LayerId;
use graphc_ir::verify::verify_graph;
use graphc_plan::{Cluster, CompileOptions, CrossEntropyForm};

use crate::decisions::{Decisions, Rated, TrainingGraph};
use crate::passes::attention::{Attentions, count_attentions, fuse_attention};
use crate::passes::autocast::{apply_autocast, scales_loss};
use crate::passes::autodiff::append_gradients;
use crate::passes::averages::append_averages;
use crate::passes::batch_first::batch_first;
use crate::passes::channels_last::channels_last;
use crate::passes::decompose::{decompose_where_split, form_unasked};
use crate::passes::error::PassError;
use crate::passes::float8::multiply_in_float8;
use crate::passes::functions::{Functions, functions_in_parts, fuse_functions};
use crate::passes::groups::check_groups;
use crate::passes::loss::attach_loss;
use crate::passes::optimizer::append_updates;
use crate::passes::padding::pad_classes;
use crate::passes::pins::check_pins;
use crate::passes::rates::assign_rates;
use crate::passes::recompute::{Extent, recompute_activations};
use crate::passes::regather::{Regathered, insert_regathers};
use crate::passes::rows::keep_leading_dims;
use crate::passes::simplify::simplify_graph;
use crate::passes::staging::{assign_stages, collect_staging, fill_from_neighbours, one_stage};
use crate::passes::statistics::check_kept;
use crate::passes::training_mode::set_mode;
use crate::passes::zigzag::order_sequences;

mod recompute_request;

use recompute_request::{RecomputeRequest, of_strategy};

/// A pass, and the reason for its position in the order.
pub struct Pass {
    /// The name in `--emit after:NAME`, and in errors.
    pub name: &'static str,
    /// The reason for its position in the order.
    pub why: &'static str,
    /// The graphs that it acts on.
    scope: PassScope,
    run: PassFunction,
}

/// The graphs that a pass acts on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PassScope {
    /// Only whole models.
    Model,
    /// Whole models, and layers that are priced by themselves.
    Layers,
    /// Models and layers, like `Layers`, with a result that also depends on the form of cross entropy that is planned.
    Forms,
}

/// The function of a pass, by the types that it takes and returns.
enum PassFunction {
    Forward(fn(Graph, &CompileOptions) -> Result<Graph, PassError>),
    Cast(fn(Graph, &CompileOptions) -> Result<CastGraph, PassError>),
    Machines(fn(Graph, &CompileOptions, &Cluster) -> Result<Graph, PassError>),
    Differentiate(fn(CastGraph, &CompileOptions) -> Result<TrainingGraph, PassError>),
    Training(fn(TrainingGraph, &CompileOptions) -> Result<TrainingGraph, PassError>),
    Rate(fn(TrainingGraph, &CompileOptions) -> Result<Rated, PassError>),
    Rated(fn(Rated, RecomputeRequest<'_>) -> Result<Rated, PassError>),
}

/// The input of a pass besides the graph.
#[derive(Clone, Copy)]
struct PassInput<'a> {
    options: &'a CompileOptions,
    /// The machines. Without them nothing is done that depends on them.
    cluster: Option<&'a Cluster>,
    again: RecomputeRequest<'a>,
}

/// A forward graph in its precision, and whether its loss is scaled.
#[derive(Clone)]
struct CastGraph {
    graph: Graph,
    scales: bool,
}

/// The passes, in order.
pub const PASSES: &[Pass] = &[
    Pass {
        name: "loss",
        why: "first of all: every other pass sees the loss as an output like any other",
        scope: PassScope::Model,
        run: PassFunction::Forward(attach_loss),
    },
    Pass {
        name: "training_mode",
        why: "before autodiff: the gradient of dropout is a dropout with the same payload, and statistics of a batch have gradients",
        scope: PassScope::Layers,
        run: PassFunction::Forward(set_mode),
    },
    Pass {
        name: "attention",
        why: "after training_mode, which says whether weights are dropped; before autodiff, and before all that moves or casts its parts",
        scope: PassScope::Layers,
        run: PassFunction::Forward(fuse_attention),
    },
    Pass {
        name: "functions",
        why: "beside attention and for the same reasons; after it, as what bounds scores is a part of attention",
        scope: PassScope::Layers,
        run: PassFunction::Forward(fuse_functions),
    },
    Pass {
        name: "batch_first",
        why: "before autodiff, so that gradients are cut along the batch where values are",
        scope: PassScope::Layers,
        run: PassFunction::Forward(batch_first),
    },
    Pass {
        name: "channels_last",
        why: "before autodiff, so that gradients have their channels last as well; before stages, which are cut where one tensor crosses",
        scope: PassScope::Layers,
        run: PassFunction::Forward(channels_last),
    },
    Pass {
        name: "rows",
        why: "after attention and functions, as they are recognised with the dims that exports have; before stages and zigzag, which read the dims of samples and of time",
        scope: PassScope::Layers,
        run: PassFunction::Forward(keep_leading_dims),
    },
    Pass {
        name: "stages",
        why: "before autodiff, which puts each gradient in the stage of the op that it differentiates; after the loss, which is a part of the last stage's work",
        scope: PassScope::Model,
        run: PassFunction::Forward(assign_stages),
    },
    Pass {
        name: "zigzag",
        why: "after attention and functions, whose ops it gives another order; before autodiff; after stages, whose ranks share sequences",
        scope: PassScope::Model,
        run: PassFunction::Forward(order_sequences),
    },
    Pass {
        name: "autocast",
        why: "before autodiff, so that what is cast has its gradient cast back; after stages, which are cut where one tensor crosses",
        scope: PassScope::Layers,
        run: PassFunction::Cast(|graph, options| {
            let scales = scales_loss(&graph, options);
            Ok(CastGraph { graph: apply_autocast(graph, options)?, scales })
        }),
    },
    Pass {
        name: "padding",
        why: "after autocast, as it is products of half precision that need it, and weights are padded where they are cast; before autodiff, which cuts gradients to what is no padding",
        scope: PassScope::Layers,
        run: PassFunction::Machines(pad_classes),
    },
    Pass {
        name: "autodiff",
        why: "of whole ops, such as softmax and cross entropy: their gradients are better than those of their parts",
        scope: PassScope::Layers,
        run: PassFunction::Differentiate(|cast, options| {
            append_gradients(cast.graph, options, cast.scales)
        }),
    },
    Pass {
        name: "optimizer",
        why: "after autodiff, and before simplification, so that what is not needed for an update is left out there",
        scope: PassScope::Layers,
        run: PassFunction::Training(append_updates),
    },
    Pass {
        name: "averages",
        why: "after the optimizer, whose results they take in",
        scope: PassScope::Layers,
        run: PassFunction::Training(|training, options| append_averages(training, options.ema)),
    },
    Pass {
        name: "float8",
        why: "after autodiff, as gradients are multiplied in 8 bits too, but not those of weights; before simplification, which joins what is rounded twice",
        scope: PassScope::Layers,
        run: PassFunction::Training(multiply_in_float8),
    },
    Pass {
        name: "decompose",
        why: "after autodiff for the same reason, before simplification, which cleans up between the parts",
        scope: PassScope::Forms,
        run: PassFunction::Training(decompose_where_split),
    },
    Pass {
        name: "simplify",
        why: "when all that computes is there, and before rates, so that fewer sums are accumulated",
        scope: PassScope::Forms,
        run: PassFunction::Training(|training, _| simplify_graph(training)),
    },
    Pass {
        name: "rates",
        why: "what is accumulated is no longer rewritten",
        scope: PassScope::Forms,
        run: PassFunction::Rate(|training, options| {
            assign_rates(training, options.microbatches, options.accumulation)
        }),
    },
    Pass {
        name: "recompute",
        why: "after what might find that what is computed twice is the same, and what has been summed over microbatches is kept",
        scope: PassScope::Forms,
        run: PassFunction::Rated(|rated, again| match again.extent {
            Some(extent) => recompute_activations(rated, extent),
            None => Ok(rated),
        }),
    },
    Pass {
        name: "regather",
        why: "last: of what is computed again the backward pass reads what is gathered again",
        scope: PassScope::Forms,
        run: PassFunction::Rated(|rated, again| match again.gathered {
            Regathered::Nothing => Ok(rated),
            which => insert_regathers(rated, which),
        }),
    },
];

/// Runs every pass, which makes a graph with gradients and updates, stages, placements and rates. If memory decides what is recomputed
/// ([`Auto`](graphc_plan::Recompute::Auto)), nothing is recomputed here: see [`decide_recomputed`].
///
/// # Errors
/// Returns an error if the graph or the options do not allow a pass.
pub fn prepare_graph(graph: Graph, options: &CompileOptions) -> Result<Decisions, PassError> {
    Common::new(graph, options, None)?.decide_form(options)
}

/// Runs every pass, like [`prepare_graph`], for machines by whose costs some passes decide.
///
/// # Errors
/// Returns an error if the graph or the options do not allow a pass.
pub(crate) fn prepare_for(
    graph: Graph,
    options: &CompileOptions,
    cluster: &Cluster,
) -> Result<Decisions, PassError> {
    Common::new(graph, options, Some(cluster))?.decide_form(options)
}

/// The graph that all forms of cross entropy share: the result of the passes before the first that depends on the form.
pub struct Common {
    user: Graph,
    work: PassGraph,
}

impl Common {
    /// Runs the passes that all forms share, for machines if these are known.
    ///
    /// # Errors
    /// Returns an error if the graph or the options do not allow a pass.
    pub fn new(
        graph: Graph,
        options: &CompileOptions,
        cluster: Option<&Cluster>,
    ) -> Result<Self, PassError> {
        verify_after_pass("reading", &graph)?;
        let user = graph.clone();
        let acts = |scope| scope != PassScope::Forms;
        let work = run_scopes(PassGraph::Forward(graph), (options, cluster), acts, &mut |_, _| ())?;
        Ok(Self { user, work })
    }

    /// Returns the graph that all forms share.
    pub fn graph(&self) -> &Graph {
        self.work.graph()
    }

    /// Returns the form that is used if the options ask for none, if it is the same in all of the graph.
    pub(crate) fn form_unasked(&self, options: &CompileOptions) -> Option<CrossEntropyForm> {
        form_unasked(self.work.graph(), options)
    }

    /// Runs the remaining passes. The options may name another form than those of [`Common::new`].
    ///
    /// # Errors
    /// Returns an error if the graph or the options do not allow a pass.
    pub(crate) fn decide_form(&self, options: &CompileOptions) -> Result<Decisions, PassError> {
        let acts = |scope| scope == PassScope::Forms;
        let rated =
            verify_rated(run_scopes(self.work.clone(), (options, None), acts, &mut |_, _| ())?)?;
        check_pins(&[&self.user, &rated.training.graph], options)?;
        check_groups(&rated.training, options)?;
        check_kept(&self.user, options)?;
        decide_staging(rated, options)
    }
}

/// Returns the graph after a pass.
///
/// # Errors
/// Returns an error if the graph or the options do not allow a pass, or if no pass has the name.
pub fn prepare_until(
    graph: Graph,
    options: &CompileOptions,
    pass: &str,
) -> Result<Graph, PassError> {
    run_until(graph, (options, None), pass)
}

/// Returns the graph after a pass, like [`prepare_until`], for machines by whose costs some passes decide.
///
/// # Errors
/// Returns an error if the graph or the options do not allow a pass, or if no pass has the name.
pub(crate) fn prepare_until_for(
    graph: Graph,
    options: &CompileOptions,
    cluster: &Cluster,
    pass: &str,
) -> Result<Graph, PassError> {
    run_until(graph, (options, Some(cluster)), pass)
}

fn run_until(
    graph: Graph,
    asked: (&CompileOptions, Option<&Cluster>),
    pass: &str,
) -> Result<Graph, PassError> {
    if PASSES.iter().all(|known| known.name != pass) {
        let passes = PASSES.iter().map(|pass| pass.name).collect();
        return Err(PassError::UnknownPass { pass: pass.into(), passes });
    }
    verify_after_pass("reading", &graph)?;
    let mut found = None;
    let result = run_scopes(PassGraph::Forward(graph), asked, |_| true, &mut |name, graph| {
        if name == pass {
            found = Some(graph.clone());
        }
    });
    // A later pass may fail where the one that is asked for did not.
    found.map_or_else(|| result.map(|work| work.graph().clone()), Ok)
}

/// Finds the attention of a graph: that which is computed by one op, and that which is left in parts, with the reasons.
///
/// # Errors
/// Returns an error if the graph or the options do not allow a pass.
pub fn attentions_of(graph: Graph, options: &CompileOptions) -> Result<Attentions, PassError> {
    Ok(count_attentions(&graph_before("attention", graph, options)?, options))
}

/// Finds the functions that a graph writes in parts: those that become one op, and those that stay in parts, with the reasons.
///
/// # Errors
/// Returns an error if the graph or the options do not allow a pass.
pub fn functions_of(graph: Graph, options: &CompileOptions) -> Result<Functions, PassError> {
    Ok(functions_in_parts(&graph_before("functions", graph, options)?, options))
}

/// Returns the forward graph that a pass is given.
fn graph_before(pass: &str, graph: Graph, options: &CompileOptions) -> Result<Graph, PassError> {
    verify_after_pass("reading", &graph)?;
    let asked =
        PassInput { options, cluster: None, again: RecomputeRequest::from_options(options) };
    let is_earlier = |earlier: &Pass| !comes_not_before(earlier.name, pass);
    let work = run_rows(PassGraph::Forward(graph), asked, is_earlier, &mut |_, _| ())?;
    Ok(work.graph().clone())
}

/// Whether the graph after this pass depends on the form of cross entropy.
pub(crate) fn depends_on_form(pass: &str) -> bool {
    PASSES.iter().any(|known| known.name == pass && known.scope == PassScope::Forms)
}

/// Whether a pass is `other` or comes after it.
pub(crate) fn comes_not_before(pass: &str, other: &str) -> bool {
    let place = |name: &str| PASSES.iter().position(|known| known.name == name);
    place(pass) >= place(other)
}

/// Prepares a graph that has its loss on one stage, which is the whole mesh, and returns the layer of each node. A node to which `layer_of` gives no
/// layer belongs to that of the values it reads, or else to that of its readers. If `is_short` says that memory is short, each tensor may have
/// another layout for the backward pass ([`decide_regathered`]).
///
/// # Errors
/// Returns an error if the graph or the options do not allow a pass.
pub(crate) fn prepare_layers(
    graph: Graph,
    layer_of: &[Option<LayerId>],
    (options, cluster): (&CompileOptions, &Cluster),
    is_short: bool,
) -> Result<(Decisions, Vec<LayerId>), PassError> {
    let mut graph = graph;
    let layers = fill_from_neighbours(&graph, layer_of.to_vec(), LayerId(0));
    graph.stages.clear();
    for (node, &layer) in graph.nodes.iter_mut().zip(&layers) {
        (node.part, node.placement) = (Some(Part::Layer(layer)), None);
    }
    verify_after_pass("reading", &graph)?;
    let asked = (options, Some(cluster));
    let work = run_scopes(
        PassGraph::Forward(graph),
        asked,
        |scope| scope != PassScope::Model,
        &mut |_, _| (),
    )?;
    let rated = verify_rated(work)?;
    let rated = if is_short { with_choice(rated, options)? } else { rated };
    let Rated { training, rates, recomputed } = rated;
    let nodes = &training.graph.nodes;
    let layers = nodes.iter().map(|node| node.layer().unwrap_or(LayerId(0))).collect();
    let staging = one_stage(nodes.len(), options)?;
    Ok((Decisions { training, staging, rates, recomputed }, layers))
}

/// Returns the decisions with recomputation to this extent in the backward pass. Nothing may be recomputed in them yet.
///
/// # Errors
/// Returns an error if an op does not take its operands.
pub fn decide_recomputed(
    decisions: &Decisions,
    options: &CompileOptions,
    extent: Extent<'_>,
) -> Result<Decisions, PassError> {
    let again = RecomputeRequest { extent: Some(extent), gathered: of_strategy(options) };
    let rated = once_more(decisions.to_rated(), options, again)?;
    decide_staging(rated, options)
}

/// Returns the decisions with a choice of another layout for each tensor that the backward pass reads again. `None` if that changes nothing, or if
/// the strategy has decided it.
///
/// # Errors
/// Returns an error if an op does not take its operands.
pub fn decide_regathered(
    decisions: &Decisions,
    options: &CompileOptions,
) -> Result<Option<Decisions>, PassError> {
    let again = with_choice(decisions.to_rated(), options)?;
    let is_other = again.training.graph.nodes.len() > decisions.graph().nodes.len();
    is_other.then(|| decide_staging(again, options)).transpose()
}

/// Adds the choice of another layout for the backward pass to each tensor, before nodes have stages.
fn with_choice(rated: Rated, options: &CompileOptions) -> Result<Rated, PassError> {
    // One rank has nothing to gather.
    if !options.strategy.is_planned() || count_ranks(options) < 2 {
        return Ok(rated);
    }
    once_more(rated, options, RecomputeRequest { extent: None, gathered: Regathered::All })
}

/// Runs the last passes again, on a graph that they have left as it was.
fn once_more(
    rated: Rated,
    options: &CompileOptions,
    again: RecomputeRequest<'_>,
) -> Result<Rated, PassError> {
    let last = |pass: &Pass| matches!(pass.run, PassFunction::Rated(_));
    let asked = PassInput { options, cluster: None, again };
    self::verify_rated(run_rows(PassGraph::Rated(rated), asked, last, &mut |_, _| ())?)
}

fn count_ranks(options: &CompileOptions) -> usize {
    options.mesh.iter().product()
}

fn decide_staging(rated: Rated, options: &CompileOptions) -> Result<Decisions, PassError> {
    let Rated { training, rates, recomputed } = rated;
    // After all nodes exist: reads back as data what `stages` has written into them.
    let staging = collect_staging(&training.graph, options)?;
    Ok(Decisions { training, staging, rates, recomputed })
}

/// The graph that passes work on, in the form of their stage of the work.
#[derive(Clone)]
enum PassGraph {
    Forward(Graph),
    Cast(CastGraph),
    Training(TrainingGraph),
    Rated(Rated),
}

impl PassGraph {
    fn graph(&self) -> &Graph {
        match self {
            Self::Forward(graph) => graph,
            Self::Cast(cast) => &cast.graph,
            Self::Training(training) => &training.graph,
            Self::Rated(rated) => &rated.training.graph,
        }
    }

    fn run_pass(self, pass: &Pass, asked: PassInput<'_>) -> Result<Self, PassError> {
        let PassInput { options, cluster, again } = asked;
        Ok(match (&pass.run, self) {
            (PassFunction::Forward(run), Self::Forward(graph)) => {
                Self::Forward(run(graph, options)?)
            }
            (PassFunction::Cast(run), Self::Forward(graph)) => Self::Cast(run(graph, options)?),
            (PassFunction::Machines(run), Self::Cast(CastGraph { graph, scales })) => {
                Self::Cast(match cluster {
                    Some(cluster) => CastGraph { graph: run(graph, options, cluster)?, scales },
                    None => CastGraph { graph, scales },
                })
            }
            (PassFunction::Differentiate(run), Self::Cast(cast)) => {
                Self::Training(run(cast, options)?)
            }
            (PassFunction::Training(run), Self::Training(graph)) => {
                Self::Training(run(graph, options)?)
            }
            (PassFunction::Rate(run), Self::Training(graph)) => Self::Rated(run(graph, options)?),
            (PassFunction::Rated(run), Self::Rated(rated)) => Self::Rated(run(rated, again)?),
            _ => unreachable!("`{}` stands in the table where its input is made", pass.name),
        })
    }
}

/// Runs the passes whose scope `acts` takes, like [`run_rows`].
fn run_scopes(
    work: PassGraph,
    (options, cluster): (&CompileOptions, Option<&Cluster>),
    acts: impl Fn(PassScope) -> bool,
    seen: &mut dyn FnMut(&'static str, &Graph),
) -> Result<PassGraph, PassError> {
    let asked = PassInput { options, cluster, again: RecomputeRequest::from_options(options) };
    run_rows(work, asked, |pass| acts(pass.scope), seen)
}

/// Runs the passes that `acts` takes, in order, and shows `seen` the graph after each. If assertions are on, as in tests, the result of each pass is
/// verified. Otherwise only the last result is ([`verify_rated`]), because verifying takes as long as the passes do.
fn run_rows(
    work: PassGraph,
    asked: PassInput<'_>,
    acts: impl Fn(&Pass) -> bool,
    seen: &mut dyn FnMut(&'static str, &Graph),
) -> Result<PassGraph, PassError> {
    let mut work = work;
    for pass in PASSES.iter().filter(|pass| acts(pass)) {
        let _span = enter_span!("pass", name = pass.name);
        work = work.run_pass(pass, asked)?;
        if cfg!(debug_assertions) {
            verify_after_pass(pass.name, work.graph())?;
        }
        seen(pass.name, work.graph());
    }
    Ok(work)
}

/// Verifies the result of the last pass and returns it.
fn verify_rated(work: PassGraph) -> Result<Rated, PassError> {
    match work {
        PassGraph::Rated(rated) => {
            verify_after_pass("the last pass", &rated.training.graph)?;
            Ok(rated)
        }
        _ => unreachable!("the last pass gives a graph with rates"),
    }
}

fn verify_after_pass(pass: &'static str, graph: &Graph) -> Result<(), PassError> {
    verify_graph(graph).map_err(|errors| PassError::Verify { pass, errors })
}

#[cfg(test)]
mod tests;
