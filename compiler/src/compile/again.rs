//! Restores the decisions of an existing plan, from its graph, its options and the choices that it names.

use graphc_ir::text;
use graphc_plan::{Plan, Recompute};

use super::amounts::find_op_places;
use super::choice::Choice;
use super::stages::apply_choice;
use crate::decisions::Decisions;
use crate::passes::error::PassError;
use crate::passes::recompute::Extent;
use crate::pipeline::{decide_recomputed, decide_regathered, prepare_for, prepare_graph};

/// Returns the decisions that a plan was made from.
///
/// # Errors
/// Returns an error if the plan's graph cannot be read, or if its options do not fit it.
pub fn prepare_again(plan: &Plan) -> Result<Decisions, PassError> {
    let graph = text::parse_graph(&plan.graph.join("\n"))
        .map_err(|error| PassError::PlanGraph { error: error.to_string() })?;
    let (graph, options) = match &plan.pipeline {
        Some(choice) => apply_choice(&graph, &plan.options, choice)?,
        None => (graph, plan.options.clone()),
    };
    let options = Choice::of_form(plan.cross_entropy).resolve(&options);
    let decisions = match plan.padded {
        true => prepare_for(graph, &options, &plan.cluster)?,
        false => prepare_graph(graph, &options)?,
    };
    let decisions = match options.recompute {
        Recompute::Auto => {
            decide_recomputed(&decisions, &options, Extent::Ops(&find_op_places(&plan.recomputed)))?
        }
        Recompute::None | Recompute::Selective | Recompute::Full => decisions,
    };
    match plan.regathered {
        true => Ok(decide_regathered(&decisions, &options)?.unwrap_or(decisions)),
        false => Ok(decisions),
    }
}
