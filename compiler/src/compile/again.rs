//! Makes the decisions of an existing plan again, by its graph, its options and the choices that it names.

use graphc_ir::plan::{CompileOptions, CrossEntropyForm, Plan, Recompute};
use graphc_ir::text;

use super::amounts::places;
use super::stages::chosen;
use crate::decisions::Decisions;
use crate::passes::error::PassError;
use crate::passes::recompute::Extent;
use crate::pipeline::{prepare, prepare_for, recomputed, regathered};

/// The decisions that a plan was made from.
///
/// # Errors
/// Where the plan's graph is none, or its options do not fit it.
pub fn prepare_again(plan: &Plan) -> Result<Decisions, PassError> {
    let graph = text::parse(&plan.graph.join("\n"))
        .map_err(|error| PassError::PlanGraph { error: error.to_string() })?;
    let (graph, options) = match &plan.pipeline {
        Some(choice) => chosen(&graph, &plan.options, choice)?,
        None => (graph, plan.options.clone()),
    };
    let options = match plan.cross_entropy {
        CrossEntropyForm::Auto => options,
        cross_entropy => CompileOptions { cross_entropy, ..options },
    };
    let decisions = match plan.padded {
        true => prepare_for(graph, &options, &plan.cluster)?,
        false => prepare(graph, &options)?,
    };
    let decisions = match options.recompute {
        Recompute::Auto => {
            recomputed(&decisions, &options, Extent::Ops(&places(&plan.recomputed)))?
        }
        Recompute::None | Recompute::Selective | Recompute::Full => decisions,
    };
    match plan.regathered {
        true => Ok(regathered(&decisions, &options)?.unwrap_or(decisions)),
        false => Ok(decisions),
    }
}
