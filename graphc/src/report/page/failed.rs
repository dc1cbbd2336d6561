//! Explains on a page why there is no plan: what is wrong, and what was asked for that cannot be had together.

use graphc_compiler::error::{Asked, CompileError, Conflict};
use graphc_compiler::passes::pins::pin_matches_name;
use graphc_compiler::planner::PlannerError;
use graphc_ir::graph::Graph;
use graphc_ir::mesh::format_mesh;
use graphc_ir::sbp::NdSbp;
use graphc_ir::types::format_bytes_briefly;
use graphc_plan::{Cluster, CompileOptions, Strategy};
use serde::Serialize;
use serde_json::Value;

/// The reason why a model has no plan.
#[derive(Clone, Debug, Serialize)]
pub struct Failed {
    /// The graph's name.
    pub name: String,
    /// The file of the model.
    pub file: String,
    /// The machines.
    pub cluster: String,
    /// The error.
    pub error: String,
    /// The wishes that cannot be had together; empty where one thing alone cannot be had.
    pub(crate) conflict: Vec<FailedDemand>,
    /// Whether no fewer conflict.
    pub smallest: bool,
    /// Too little memory, where it is that.
    pub(crate) shortage: Option<Shortage>,
    /// The options that are not the usual ones, by name.
    pub options: Vec<(String, Value)>,
}

/// One of the things that cannot be had together.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FailedDemand {
    /// The wish.
    pub what: String,
    /// The demand of that.
    pub demands: String,
    /// The tensors that it lays: name, type, layout.
    pub tensors: Vec<(String, String, String)>,
    /// The advice what to ask for instead.
    pub advice: String,
}

/// Memory that does not suffice, in bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Shortage {
    /// The first rank that is over its memory.
    pub rank: usize,
    /// The bytes that it needs in the leanest plan found.
    pub needed: u64,
    /// The bytes that it may use.
    pub limit: u64,
    /// The bytes that no plan goes below, where that is proven.
    pub least: Option<u64>,
    /// The largest tensors at the peak.
    pub largest: Vec<(String, u64)>,
}

/// Reads off an error why there is no plan of a graph, whose file is named.
pub(super) fn explain_failure(
    (file, graph): (&str, &Graph),
    options: &CompileOptions,
    cluster: &Cluster,
    error: &CompileError,
) -> Failed {
    let (cause, conflict) = match error {
        CompileError::Conflict { conflict, cause } => (cause.as_ref(), Some(conflict)),
        other => (other, None),
    };
    let demands = |conflict: &Conflict| {
        conflict.members.iter().map(|one| describe_demand(one, graph, options)).collect()
    };
    Failed {
        name: graph.name.clone(),
        file: file.into(),
        cluster: cluster.name.clone(),
        error: cause.to_string(),
        conflict: conflict.map(demands).unwrap_or_default(),
        smallest: conflict.is_some_and(|conflict| conflict.smallest),
        shortage: memory_shortage(cause),
        options: unusual_options(options),
    }
}

fn describe_demand(asked: &Asked, graph: &Graph, options: &CompileOptions) -> FailedDemand {
    let (demands, tensors) = match asked {
        Asked::Pin(pin) => {
            let named = |name: &str| pin_matches_name(&pin.pattern, name);
            (describe_pin(&pin.sbp, options), matching_tensors(graph, named, &pin.sbp))
        }
        Asked::GraphPin { tensor, sbp, .. } => {
            (describe_pin(sbp, options), matching_tensors(graph, |name| name == tensor, sbp))
        }
        Asked::Strategy(strategy) => (strategy_rule(*strategy).into(), Vec::new()),
        Asked::Memory { limit, .. } => {
            let most = format_bytes_briefly(*limit);
            (format!("no rank holds more than {most} at any moment of a step"), Vec::new())
        }
    };
    FailedDemand { what: asked.describe_wish(), demands, tensors, advice: asked.advice() }
}

fn describe_pin(sbp: &NdSbp, options: &CompileOptions) -> String {
    let mesh = format_mesh(&options.mesh);
    format!("what makes or keeps these tensors lays them as ({sbp}) on the mesh {mesh}")
}

/// The demand of a strategy on every plan.
fn strategy_rule(strategy: Strategy) -> &'static str {
    match strategy {
        Strategy::Auto => "nothing: the planner chooses",
        Strategy::Context(_) => {
            "sequences are split over the innermost axis, samples over the others; the planner chooses the rest"
        }
        Strategy::Data => {
            "weights, gradients and states whole on every rank, the batch split over all ranks"
        }
        Strategy::Zero1 => {
            "weights whole on every rank, states of the optimizer split over all ranks"
        }
        Strategy::Zero2 => "weights whole on every rank, gradients and states split over all ranks",
        Strategy::Zero3 => {
            "weights, gradients and states split over all ranks, gathered where they are read"
        }
        Strategy::Megatron => {
            "the layers split over the innermost axis of the mesh, the batch over the others"
        }
        Strategy::MegatronSp => {
            "the layers split over the innermost axis of the mesh, and sequences between them, the batch over the others"
        }
        Strategy::Mixed(_) => "a strategy for each axis of the mesh, outermost first",
    }
}

/// Tensors of the model whose names are meant.
fn matching_tensors(
    graph: &Graph,
    named: impl Fn(&str) -> bool,
    sbp: &NdSbp,
) -> Vec<(String, String, String)> {
    let named = |name: &&str| named(name);
    let values = graph.values.iter();
    let values = values.filter_map(|one| Some((one.name.as_deref().filter(named)?, &one.ty)));
    values.map(|(name, ty)| (name.into(), ty.to_string(), sbp.to_string())).collect()
}

fn memory_shortage(cause: &CompileError) -> Option<Shortage> {
    let (rank, needed, limit, least, largest) = match cause {
        CompileError::Plan(PlannerError::Memory {
            rank, needed, limit, least, largest, ..
        }) => (*rank as usize, *needed, *limit, *least, largest),
        CompileError::Memory { rank, needed, limit, largest } => {
            (*rank, *needed, *limit, None, largest)
        }
        _ => return None,
    };
    Some(Shortage { rank, needed, limit, least, largest: largest.clone() })
}

/// Options that are not what they are where nothing is said, and the mesh.
fn unusual_options(options: &CompileOptions) -> Vec<(String, Value)> {
    let object = |options: &CompileOptions| match serde_json::to_value(options) {
        Ok(Value::Object(all)) => all,
        _ => serde_json::Map::new(),
    };
    let usual = object(&CompileOptions::default());
    let said = |(name, value): &(String, Value)| name == "mesh" || usual.get(name) != Some(value);
    object(options).into_iter().filter(said).collect()
}
