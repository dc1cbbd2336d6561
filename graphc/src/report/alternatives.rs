//! Explains why a tensor lies as it does, by its alternatives and the cost of the best plan with each.

use graphc_compiler::decisions::{Decisions, Sharding};
use graphc_compiler::planner::{
    self, Planned, PlannerError, Reading, Waiting, WaitingWay, layouts_of, plan_with_layout,
    price_waiting,
};
use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;
use graphc_ir::sbp::NdSbp;
use graphc_ir::text::nearest_name;
use graphc_plan::{Action, Actor, Plan, Program};

/// A layout that the tensor may have.
pub struct Alternative {
    /// The layout.
    pub sbp: NdSbp,
    /// Seconds of the best plan with it, and the names of other tensors that then lie in other ways; or why there is
    /// none.
    pub outcome: Result<(f64, Vec<String>), String>,
}

/// The layouts that a tensor may have, and that of the plan.
pub struct LayoutChoice {
    /// The layout of the plan.
    pub chosen: Option<NdSbp>,
    /// All that were planned.
    pub all: Vec<Alternative>,
    /// The number of layouts that were not planned, because there was no time left.
    pub unplanned: usize,
}

/// The reading of the backward pass where the tensor may lie otherwise for it.
pub struct Backward {
    /// The layout from which it is gathered again: all others are kept.
    pub rests: Option<NdSbp>,
    /// The layouts that it may have for it.
    pub choice: LayoutChoice,
}

/// The reasons why a tensor lies as it does, as far as they are known.
pub struct Explained {
    /// The layouts in which it may be made.
    pub choice: LayoutChoice,
    /// The way in which it waits for the backward pass, and about what else would cost; `None` where that does not
    /// read it.
    pub waiting: Option<Waiting>,
    /// The value that the backward pass reads, where that may lie otherwise.
    pub backward: Option<Backward>,
}

impl Explained {
    /// The meaning of a layout that the tensor may have for the backward pass. In that in which it was made it is
    /// gathered again, unless it is read so.
    pub fn for_backward(&self, sbp: &NdSbp) -> String {
        let rests = self.backward.as_ref().and_then(|backward| backward.rests.as_ref());
        let read = self.waiting.as_ref().is_some_and(|Waiting { chosen, .. }| {
            chosen.way == WaitingWay::Kept && chosen.sbp.as_ref() == Some(sbp)
        });
        match rests == Some(sbp) && !read {
            true => format!("again from {sbp}"),
            false => format!("kept as {sbp}"),
        }
    }
}

/// The alternatives of one tensor. Each is planned anew, which takes as long as planning did.
///
/// # Errors
/// [`ExplainError::Unknown`] of a tensor that the plan does not have, and where a pin cannot be fulfilled.
pub fn explain_tensor(
    plan: &Plan,
    decisions: &Decisions,
    tensor: &str,
) -> Result<Explained, ExplainError> {
    explain_while(plan, decisions, tensor, &|| true)
}

/// The alternatives of one tensor, of which none is begun once there is no time left; that of the plan is planned all the same.
///
/// # Errors
/// As [`explain_tensor`].
pub(super) fn explain_while(
    plan: &Plan,
    decisions: &Decisions,
    tensor: &str,
    has_time: &dyn Fn() -> bool,
) -> Result<Explained, ExplainError> {
    let value = find_tensor(decisions, tensor)?;
    let (choice, sharding) = choose_layout(plan, decisions, (value, tensor), has_time)?;
    let Some(reading) = Reading::from_value(decisions, value) else {
        return Ok(Explained { choice, waiting: None, backward: None });
    };
    let again = name_of(decisions, reading.read);
    let rests = chosen_layout(plan, &again);
    let waiting = find_waiting(plan, decisions, (&reading, rests.as_ref()), sharding)?;
    let backward = match decisions.graph().producer(reading.read).op {
        Op::Regather(_) if has_time() => {
            let rests = chosen_layout(plan, &name_of(decisions, reading.value));
            let (choice, _) =
                self::choose_layout(plan, decisions, (reading.read, &again), has_time)?;
            Some(Backward { rests, choice })
        }
        _ => None,
    };
    Ok(Explained { choice, waiting, backward })
}

/// Finds the ways of a tensor until the backward pass: with the signatures of the plan, which are those of the
/// planner's own with the tensor as the plan has it.
fn find_waiting(
    plan: &Plan,
    decisions: &Decisions,
    (reading, rests): (&Reading, Option<&NdSbp>),
    sharding: Option<Sharding>,
) -> Result<Option<Waiting>, PlannerError> {
    let machines = (&plan.options, &plan.cluster);
    let sharding = match sharding.filter(|_| plan.options.strategy.is_planned()) {
        Some(sharding) => sharding,
        None => planner::plan_signatures(decisions, machines.0, machines.1)?.sharding,
    };
    price_waiting(decisions, machines, reading, &sharding, rests)
}

/// The reason why nothing is known of a tensor.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ExplainError {
    /// There is none of that name.
    #[error("the plan has no tensor `{tensor}`{}", suggest_names(.nearest.as_deref(), .similar))]
    Unknown {
        /// The name.
        tensor: String,
        /// The name that was meant, if one is near.
        nearest: Option<String>,
        /// Some names that contain it.
        similar: Vec<String>,
    },
    /// A pin cannot be fulfilled.
    #[error(transparent)]
    Plan(#[from] PlannerError),
}

graphc_ir::readable_debug!(ExplainError);

fn suggest_names(nearest: Option<&str>, similar: &[String]) -> String {
    match (nearest, similar) {
        (Some(nearest), _) => format!(": did you mean `{nearest}`?"),
        (None, []) => ": `graphc inspect` lists them".into(),
        (None, some) => format!("; there are {}, ..", some.join(", ")),
    }
}

/// The layout of a tensor in the plan: of its table, or, as that leaves out gradients on the way to those of variables, of the register of the action
/// that makes it. `None` of a tensor of whose name there is no action: the action that reads it computes it, or makes it beside others.
fn chosen_layout(plan: &Plan, tensor: &str) -> Option<NdSbp> {
    let listed = plan.tensors.iter().find(|entry| entry.name == tensor);
    listed.map(|entry| entry.sbp.clone()).or_else(|| layout_of_register(plan, tensor))
}

fn layout_of_register(plan: &Plan, tensor: &str) -> Option<NdSbp> {
    let makes = |actor: &&Actor| {
        let computes = matches!(actor.action, Action::Compute { .. } | Action::Fused(_));
        computes && actor.name.split_once(' ').is_some_and(|(_, name)| name == tensor)
    };
    let made = |program: &Program| {
        let register = program.actors.iter().find(makes)?.outputs.first()?;
        Some(program.registers[register.index()].layout)
    };
    let layout = plan.programs.iter().find_map(made)?;
    Some(plan.layouts[layout.index()].sbp.clone())
}

/// The layouts that a tensor may have, and the signatures of the plan in which it lies as it does.
fn choose_layout(
    plan: &Plan,
    decisions: &Decisions,
    (value, tensor): (ValueId, &str),
    has_time: &dyn Fn() -> bool,
) -> Result<(LayoutChoice, Option<Sharding>), PlannerError> {
    let chosen = chosen_layout(plan, tensor);
    let (found, unplanned) =
        plan_alternatives(plan, decisions, (value, chosen.as_ref()), has_time)?;
    let base = found.iter().find(|(sbp, _)| Some(sbp) == chosen.as_ref());
    let base = base.and_then(|(_, planned)| Some(planned.as_ref().ok()?.sharding.clone()));
    let alternative = |(sbp, planned): (NdSbp, Result<Planned, _>)| {
        let outcome = match planned {
            Ok(planned) => {
                let base = base.as_ref().unwrap_or(&planned.sharding);
                let changed = changed_tensors(decisions, base, &planned.sharding, value);
                Ok((planned.report.objective_seconds, changed))
            }
            Err(error) => Err(format!("{error}")),
        };
        Alternative { sbp, outcome }
    };
    let all = found.into_iter().map(alternative).collect();
    Ok((LayoutChoice { chosen, all, unplanned }, base))
}

/// A layout, and the best plan with it.
type WithLayout = (NdSbp, Result<Planned, PlannerError>);

/// The best plan with a tensor in each layout that it may have, that of the plan first of all; and the number of those for which
/// there was no time.
fn plan_alternatives(
    plan: &Plan,
    decisions: &Decisions,
    (value, chosen): (ValueId, Option<&NdSbp>),
    has_time: &dyn Fn() -> bool,
) -> Result<(Vec<WithLayout>, usize), PlannerError> {
    let (options, cluster) = (&plan.options, &plan.cluster);
    let mut layouts = layouts_of(decisions, options, cluster, value)?;
    let count = layouts.len();
    layouts.sort_by_key(|layout| Some(layout) != chosen);
    let mut found: Vec<WithLayout> = Vec::new();
    for layout in layouts {
        if !found.is_empty() && !has_time() {
            break;
        }
        let planned = plan_with_layout(decisions, options, cluster, (value, &layout));
        found.push((layout, planned));
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    let unplanned = count - found.len();
    Ok((found, unplanned))
}

/// The name under which plans list a value.
pub(super) fn name_of(decisions: &Decisions, value: ValueId) -> String {
    let graph = decisions.graph();
    match &graph.producer(value).op {
        Op::Variable(variable) => variable.name.clone(),
        _ => graph.display_name(value),
    }
}

fn find_tensor(decisions: &Decisions, tensor: &str) -> Result<ValueId, ExplainError> {
    let all = || (0..decisions.graph().values.len()).map(ValueId::new);
    if let Some(value) = all().find(|&value| name_of(decisions, value) == tensor) {
        return Ok(value);
    }
    let names: Vec<String> = all().map(|value| name_of(decisions, value)).collect();
    let nearest = nearest_name(tensor, names.iter().map(String::as_str)).map(str::to_owned);
    let similar = names.into_iter().filter(|name| name.contains(tensor)).take(5).collect();
    Err(ExplainError::Unknown { tensor: tensor.into(), nearest, similar })
}

/// Names of tensors of which two plans make different layouts, this one left out.
fn changed_tensors(
    decisions: &Decisions,
    a: &Sharding,
    b: &Sharding,
    this: ValueId,
) -> Vec<String> {
    let graph = decisions.graph();
    let differs = |value: &ValueId| {
        let (node, index) = (graph.value(*value).producer.index(), graph.value(*value).index);
        *value != this && a.nodes[node].results[index] != b.nodes[node].results[index]
    };
    let values = (0..graph.values.len()).map(ValueId::new).filter(differs);
    values.map(|value| name_of(decisions, value)).collect()
}
