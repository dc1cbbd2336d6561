//! Trained variables with numbers of their own, by patterns of their names.

use graphc_ir::graph::Graph;
use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;
use graphc_ir::pattern::{matches_pattern, nearest_pattern};
use graphc_plan::{CompileOptions, ParameterGroup};

use crate::decisions::TrainingGraph;
use crate::passes::error::PassError;

/// The group of a variable: the first whose pattern fits its name.
pub(super) fn group_of<'a>(
    graph: &Graph,
    variable: ValueId,
    options: &'a CompileOptions,
) -> Option<&'a ParameterGroup> {
    let name = name_of(graph, variable)?;
    options.groups.iter().find(|group| matches_pattern(&group.pattern, name))
}

fn name_of(graph: &Graph, variable: ValueId) -> Option<&str> {
    match &graph.producer(variable).op {
        Op::Variable(variable) => Some(&variable.name),
        _ => None,
    }
}

/// Checks that every pattern fits a variable that is trained.
///
/// # Errors
/// The first pattern that fits none.
pub fn check_groups(training: &TrainingGraph, options: &CompileOptions) -> Result<(), PassError> {
    if options.optimizer.is_none() {
        return Ok(());
    }
    let variables = training.gradients.iter().map(|&(variable, _)| variable);
    let names: Vec<&str> =
        variables.filter_map(|variable| name_of(&training.graph, variable)).collect();
    let unknown =
        |group: &&ParameterGroup| !names.iter().any(|name| matches_pattern(&group.pattern, name));
    match options.groups.iter().find(unknown) {
        None => Ok(()),
        Some(ParameterGroup { pattern, .. }) => Err(PassError::GroupUnknown {
            pattern: pattern.clone(),
            nearest: nearest_pattern(pattern, names),
        }),
    }
}
