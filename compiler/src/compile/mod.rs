//! Compiles a user's graph to a plan; start reading with [`compile`].
//!
//! [`once`] makes one plan from decisions that are given. The modules around it search for what the options leave
//! open, by trying plans:
//!
//! - [`choice`]: the request of the user, and a choice of what it leaves open, which a plan is made for.
//! - [`search`]: the search over all choices, from top to bottom.
//! - `pipelines` and [`stages`]: numbers of stages and microbatches.
//! - `recompute_choice` and `amounts`: the ops that are computed again.
//! - [`forms`]: forms of cross entropy, and classes with or without padding.
//! - [`fit`]: other layouts for a plan that does not fit once it is lowered.
//! - [`limits`]: how much work all this may do.
//! - [`advise`]: the best meshes, and the fewest ranks.
//! - [`conflict`]: if there is no plan, the user's wishes that contradict each other.
//!
//! All of them share one error type (`error::CompileError`). Passes have an error of their own, which is one of its
//! variants.

use graphc_ir::enter_span;
use graphc_ir::graph::{Graph, Node};
use graphc_ir::op::Op;
use graphc_plan::check::VerifiedPlan;
use graphc_plan::{Cluster, CompileOptions, Plan, Recompute, WeightsSource};

use crate::decisions::{Decisions, Sharding};
use crate::error::CompileError;
use crate::lower::{LoweringOptions, RunAhead, Streams, lower};
use crate::null_device::{Simulation, assign_channel_slots, step_seconds};
use crate::passes::error::PassError;
use crate::pipeline::{comes_not_before, depends_on_form, prepare_until, prepare_until_for};
use crate::planner::{Planned, Purpose, UNLIMITED};
use choice::{Choice, CompileRequest};
use conflict::explain_conflict;
use forms::{Variant, best_form, form_decisions, prepare_variants};
use once::build_plan;

pub mod advise;
mod again;
mod amounts;
mod choice;
mod conflict;
mod fit;
mod forms;
mod limits;
mod once;
mod pipelines;
mod recompute_choice;
mod search;
pub mod stages;

pub use again::prepare_again;
pub use once::{Header, assemble_plan};

/// A plan and the decisions that it was made from.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The plan, proven sound: a session takes it as it is.
    pub plan: VerifiedPlan,
    /// The training graph with stages and rates.
    pub decisions: Decisions,
    /// The signature of every node.
    pub sharding: Sharding,
    /// The measurements of the null device.
    pub simulation: Simulation,
}

/// Returns the seconds of a step of a graph, by its [`sketch_plan`].
///
/// # Errors
/// Returns an error if the graph, the options or the machines do not allow a plan.
pub fn predict_step_seconds(
    graph: Graph,
    options: &CompileOptions,
    cluster: &Cluster,
) -> Result<f64, CompileError> {
    Ok(step_seconds(&sketch_plan(graph, options, cluster)?)?)
}

/// Makes a plan as far as the time of its steps needs it. The ranks do the same in the same order, but nothing is placed in memory, and no limit of
/// memory is kept. It takes a fraction of the time of [`compile`], and cannot run. If the options leave open what memory decides, this is a whole
/// compilation.
///
/// # Errors
/// Returns an error if the graph, the options or the machines do not allow a plan.
pub fn sketch_plan(
    graph: Graph,
    options: &CompileOptions,
    cluster: &Cluster,
) -> Result<Plan, CompileError> {
    // Memory may decide what is left open.
    let open = options.auto_stages || options.auto_microbatches;
    if open || options.recompute == Recompute::Auto {
        return Ok(compile(graph, options, cluster, None)?.plan.into_plan());
    }
    let options = Choice::of_memory(UNLIMITED).resolve(options);
    let cluster = &cluster.divide_among(options.mesh.iter().product());
    let mut best: Option<Result<(f64, Plan), CompileError>> = None;
    for variant in prepare_variants(&graph, &options, cluster)? {
        let timed = sketch_of(&graph, &variant, &options, cluster)
            .and_then(|plan| Ok((step_seconds(&plan)?, plan)));
        // A variant that cannot be planned does not keep the other from it.
        best = match (best, timed) {
            (Some(Ok(known)), Ok(found)) if found.0 < known.0 => Some(Ok(found)),
            (Some(known), Err(_)) | (Some(known @ Ok(_)), Ok(_)) => Some(known),
            (_, found) => Some(found),
        };
    }
    Ok(best.expect("there is a variant")?.1)
}

/// Makes the sketch of a variant.
fn sketch_of(
    graph: &Graph,
    variant: &Variant,
    options: &CompileOptions,
    cluster: &Cluster,
) -> Result<Plan, CompileError> {
    let Variant { padded, forms } = variant;
    let (at, planned) = best_form(&form_decisions(forms), options, cluster, Purpose::Plan)?;
    let (decisions, Planned { sharding, report: planner, .. }) = (&forms[at].decisions, planned);
    let how =
        LoweringOptions { placed: false, streams: Streams::best(cluster), ahead: RunAhead::Far };
    let lowered = lower(decisions, &sharding, options, cluster, how)?;
    let header = Header { graph, options, cluster, weights: None, planner };
    let mut plan = build_plan(header, decisions, lowered);
    (plan.cross_entropy, plan.padded) = (forms[at].cross_entropy, *padded);
    assign_channel_slots(&mut plan)?;
    Ok(plan)
}

/// Returns the graph after a pass, in the form that is planned: see [`prepare_until`].
///
/// # Errors
/// Returns an error if the graph or the options do not allow a pass, or if no pass has the name.
pub fn emit_after(
    graph: Graph,
    options: &CompileOptions,
    cluster: &Cluster,
    pass: &str,
) -> Result<Graph, CompileError> {
    let open = options.auto_stages || options.auto_microbatches;
    let cluster = &cluster.divide_among(options.mesh.iter().product());
    let is_padded = cluster.device.matmul_unaligned != 1.0 && comes_not_before(pass, "padding");
    let depends = depends_on_form(pass) || is_padded;
    let variants = match depends && !open {
        // Where these fail the pass may not.
        true => prepare_variants(&graph, options, cluster),
        false => Ok(Vec::new()),
    };
    let chosen = match variants.unwrap_or_default().as_slice() {
        [] => None,
        [one] if !depends_on_form(pass) || one.forms.len() == 1 => Some((one.padded, None)),
        [one] => {
            let best = best_form(&form_decisions(&one.forms), options, cluster, Purpose::Plan);
            Some((one.padded, best.ok().map(|(at, _)| one.forms[at].cross_entropy)))
        }
        _ => compile(graph.clone(), options, cluster, None).ok().map(|compiled| {
            let plan = &compiled.plan;
            (plan.padded, Some(plan.cross_entropy).filter(|form| !form.is_auto()))
        }),
    };
    let (padded, form) = chosen.unwrap_or((false, None));
    let options = Choice { cross_entropy: form, ..Choice::default() }.resolve(options);
    Ok(match padded {
        true => prepare_until_for(graph, &options, cluster, pass)?,
        false => prepare_until(graph, &options, pass)?,
    })
}

/// Compiles a graph for a mesh of machines. The same input gives the same plan, byte for byte.
///
/// Returns an error if the graph, the options or the machines do not allow a plan.
pub fn compile(
    graph: Graph,
    options: &CompileOptions,
    cluster: &Cluster,
    weights: Option<WeightsSource>,
) -> Result<Compiled, CompileError> {
    compile_observed(graph, options, cluster, weights, &mut |_| ())
}

/// A point that a compilation has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// All passes before the planner are done.
    Prepared,
    /// The planner has chosen every signature.
    Planned,
}

/// Compiles like [`compile`], and tells `reached` how far it is: the caller has the clock.
///
/// # Errors
/// Returns an error if the graph, the options or the machines do not allow a plan. If pins, the strategy and the memory conflict, it has a smallest
/// set of them that conflicts.
pub fn compile_observed(
    graph: Graph,
    options: &CompileOptions,
    cluster: &Cluster,
    weights: Option<WeightsSource>,
    reached: &mut dyn FnMut(Milestone),
) -> Result<Compiled, CompileError> {
    let _span = enter_span!("compile", graph = graph.name.as_str());
    if options.optimizer.is_none() && computes_nothing(&graph) {
        return Err(PassError::NothingComputed.into());
    }
    let cluster = &cluster.divide_among(options.mesh.iter().product());
    let request = CompileRequest { graph: &graph, options, cluster, weights };
    request
        .find_best_plan(reached)
        .map_err(|error| explain_conflict(&graph, options, cluster, error))
}

/// Whether a graph has no output and replaces no variable.
fn computes_nothing(graph: &Graph) -> bool {
    let replaces = |node: &Node| matches!(node.op, Op::Blend(_));
    graph.outputs.is_empty() && !graph.nodes.iter().any(replaces)
}
