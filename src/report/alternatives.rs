//! Why a tensor lies as it does: its alternatives, and what the best plan with each costs.

use graphc_compiler::decisions::{Decisions, Phase, Sharding};
use graphc_compiler::planner::{PlanError, Planned, alternatives};
use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;
use graphc_ir::plan::Plan;
use graphc_ir::sbp::NdSbp;

/// A layout that the tensor may have.
pub struct Alternative {
    /// The layout.
    pub sbp: NdSbp,
    /// Seconds of the best plan with it, and the names of other tensors that then lie in other ways; or why there is
    /// none.
    pub outcome: Result<(f64, Vec<String>), String>,
}

/// The layouts that a tensor may have, and that of the plan.
pub struct Choice {
    /// That of the plan.
    pub chosen: Option<NdSbp>,
    /// All of them.
    pub all: Vec<Alternative>,
}

/// What the backward pass reads where the tensor may lie otherwise for it.
pub struct Backward {
    /// The layout from which it is gathered again: all others are kept.
    pub rests: Option<NdSbp>,
    /// The layouts that it may have for it.
    pub choice: Choice,
}

/// What is known of why a tensor lies as it does.
pub struct Explained {
    /// The layouts in which it may be made.
    pub choice: Choice,
    /// What the backward pass reads, where that may lie otherwise.
    pub backward: Option<Backward>,
}

/// The alternatives of one tensor. Each is planned anew, which takes as long as planning did.
///
/// # Errors
/// [`ExplainError::Unknown`] of a tensor that the plan does not have, and where a pin cannot be fulfilled.
pub fn explain(
    plan: &Plan,
    decisions: &Decisions,
    tensor: &str,
) -> Result<Explained, ExplainError> {
    let value = find(decisions, tensor)?;
    let choice = choice(plan, decisions, value, tensor)?;
    let Some(again) = again(decisions, value) else {
        return Ok(Explained { choice, backward: None });
    };
    let operand = decisions.graph().producer(again).operands[0];
    let rests = laid(plan, &name_of(decisions, operand));
    let again = self::choice(plan, decisions, again, &name_of(decisions, again))?;
    Ok(Explained { choice, backward: Some(Backward { rests, choice: again }) })
}

/// Why nothing is known of a tensor.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ExplainError {
    /// There is none of that name.
    #[error("the plan has no tensor `{tensor}`{}", known(.similar))]
    Unknown {
        /// The name.
        tensor: String,
        /// Some names that contain it.
        similar: Vec<String>,
    },
    /// A pin cannot be fulfilled.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

fn known(similar: &[String]) -> String {
    match similar {
        [] => ": `graphc inspect` lists them".into(),
        some => format!("; there are {}, ..", some.join(", ")),
    }
}

/// How the plan lays a tensor.
fn laid(plan: &Plan, tensor: &str) -> Option<NdSbp> {
    plan.tensors.iter().find(|entry| entry.name == tensor).map(|entry| entry.sbp.clone())
}

/// What the backward pass reads for a value, cast or not, where that may lie otherwise.
fn again(decisions: &Decisions, value: ValueId) -> Option<ValueId> {
    let graph = decisions.graph();
    let is_of = |mut of: ValueId| {
        while of != value && matches!(graph.producer(of).op, Op::Regather(_) | Op::Cast(_)) {
            of = graph.producer(of).operands[0];
        }
        of == value
    };
    let found = graph.nodes.iter().zip(&decisions.training.phases).find(|(node, phase)| {
        matches!(node.op, Op::Regather(_)) && **phase == Phase::Backward && is_of(node.operands[0])
    });
    found.map(|(node, _)| node.results[0])
}

fn choice(
    plan: &Plan,
    decisions: &Decisions,
    value: ValueId,
    tensor: &str,
) -> Result<Choice, PlanError> {
    let chosen = laid(plan, tensor);
    let found = alternatives(decisions, &plan.options, &plan.cluster, value)?;
    let base = found.iter().find(|(sbp, _)| Some(sbp) == chosen.as_ref());
    let base = base.and_then(|(_, planned)| Some(planned.as_ref().ok()?.sharding.clone()));
    let alternative = |(sbp, planned): (NdSbp, Result<Planned, _>)| {
        let outcome = match planned {
            Ok(planned) => {
                let base = base.as_ref().unwrap_or(&planned.sharding);
                let changed = changed(decisions, base, &planned.sharding, value);
                Ok((planned.report.objective_seconds, changed))
            }
            Err(error) => Err(format!("{error}")),
        };
        Alternative { sbp, outcome }
    };
    let all = found.into_iter().map(alternative).collect();
    Ok(Choice { chosen, all })
}

/// The name under which plans list a value.
pub fn name_of(decisions: &Decisions, value: ValueId) -> String {
    let graph = decisions.graph();
    match &graph.producer(value).op {
        Op::Variable(variable) => variable.name.clone(),
        _ => graph.display_name(value),
    }
}

fn find(decisions: &Decisions, tensor: &str) -> Result<ValueId, ExplainError> {
    let all = || (0..decisions.graph().values.len()).map(ValueId::new);
    if let Some(value) = all().find(|&value| name_of(decisions, value) == tensor) {
        return Ok(value);
    }
    let names = all().map(|value| name_of(decisions, value));
    let similar = names.filter(|name| name.contains(tensor)).take(5).collect();
    Err(ExplainError::Unknown { tensor: tensor.into(), similar })
}

/// Names of tensors of which two plans make different layouts, this one left out.
fn changed(decisions: &Decisions, a: &Sharding, b: &Sharding, this: ValueId) -> Vec<String> {
    let graph = decisions.graph();
    let differs = |value: &ValueId| {
        let (node, index) = (graph.value(*value).producer.index(), graph.value(*value).index);
        *value != this && a.nodes[node].results[index] != b.nodes[node].results[index]
    };
    let values = (0..graph.values.len()).map(ValueId::new).filter(differs);
    values.map(|value| name_of(decisions, value)).collect()
}
