//! Leaves out the steps whose loss is not finite, where the options ask for it, by ops of the graph.
//!
//! `non_finite` looks at the loss of the whole step, which all ranks and microbatches have made together. The op
//! `skip_step` makes a factor of the count: 0 where the step is not made, else 1. All updates take that factor, so
//! all ranks do the same, and it costs nothing but the factor's way to them. The op also counts the updates that were
//! made, for bias corrections and for averages that start.
//!
//! The optimizer appends its updates later. Updates of the graph's own states (`blend`) may stand before the loss, so
//! this module moves them behind it. The number of skipped steps is a state too. A checkpoint need not have it.

use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{Constant, NonFinite, SkipStep};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};
use graphc_plan::{CompileOptions, SKIPPED_STEPS, TensorKind};

use super::append::{push_node, push_state, push_value};
use super::rebuild::Rebuild;
use crate::decisions::{Phase, TrainingGraph};

/// The scalars that updates take where steps may be left out.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepGuard {
    /// 0 where the step is not made, else 1.
    pub factor: ValueId,
    /// The number of the update, from 1, without those that were not made.
    pub step: ValueId,
    /// 1 where the step is not made.
    pub skipped: ValueId,
}

/// The guard of a graph that has one.
pub(super) fn guard_of(training: &TrainingGraph) -> Option<StepGuard> {
    let mut nodes = training.graph.iter().rev();
    let updates = |id: NodeId| training.phases[id.index()] == Phase::Update;
    let (_, guard) = nodes.find(|&(id, node)| matches!(node.op, Op::SkipStep(_)) && updates(id))?;
    let [_, factor, step, skipped] = guard.results[..] else { return None };
    Some(StepGuard { factor, step, skipped })
}

/// Appends the guard, if the options ask for one, and lets the graph's own states take it.
pub(super) fn push_guard(
    training: &mut TrainingGraph,
    options: &CompileOptions,
) -> Result<Option<StepGuard>, OpError> {
    let Some(loss) = training.loss.filter(|_| options.skip_non_finite) else { return Ok(None) };
    let home = training.graph.value(loss).producer;
    let bad = push_value(training, Op::NonFinite(NonFinite {}), vec![loss], home)?;
    let before = push_state(training, SKIPPED_STEPS.into(), TensorType::new(DType::F32, []), home)?;
    use TensorKind::{Gradient, Output, State};
    let kinds = [State, Gradient, Gradient, Output];
    push_node(training, Op::SkipStep(SkipStep {}), vec![before, bad], home, &kinds)?;
    *training = guarded_states(training)?;
    Ok(guard_of(training))
}

/// Appends the number of the step, from 1, where no step is left out.
pub(super) fn push_number(training: &mut TrainingGraph) -> Result<Option<ValueId>, OpError> {
    let first = training.gradients.first().map(|&(variable, _)| variable);
    let Some(beside) = training.loss.or(first) else { return Ok(None) };
    let home = training.graph.value(beside).producer;
    let ty = TensorType::new(DType::F32, []);
    let none = Op::Constant(Constant { ty: ty.clone(), data: vec![Scalar(0.0)] });
    let none = push_value(training, none, Vec::new(), home)?;
    let before = push_state(training, SKIPPED_STEPS.into(), ty, home)?;
    use TensorKind::{Gradient, State};
    let kinds = [State, Gradient, Gradient, Gradient];
    let node = push_node(training, Op::SkipStep(SkipStep {}), vec![before, none], home, &kinds)?;
    Ok(training.graph.node(node).results.get(2).copied())
}

/// The graph with its own states behind the guard, whose factor they take. What reads what they become follows them.
fn guarded_states(old: &TrainingGraph) -> Result<TrainingGraph, OpError> {
    let mut late = vec![false; old.graph.nodes.len()];
    for (id, node) in old.graph.iter() {
        let reads = |value: &ValueId| late[old.graph.value(*value).producer.index()];
        late[id.index()] = matches!(node.op, Op::Blend(_)) || node.operands.iter().any(reads);
    }
    let mut new = Rebuild::new(old);
    for (id, _) in old.graph.iter().filter(|(id, _)| !late[id.index()]) {
        new.copy_node(id)?;
    }
    let guard = guard_of(old);
    for (id, node) in old.graph.iter().filter(|(id, _)| late[id.index()]) {
        let (Op::Blend(blend), Some(guard)) = (&node.op, guard) else {
            new.copy_node(id)?;
            continue;
        };
        let step = blend.starts.then_some(guard.step);
        let scalars = [guard.factor].into_iter().chain(step);
        let operands = node.operands[..2].iter().copied().chain(scalars);
        let operands = operands.map(|value| new.new_of(value)).collect();
        let results = new.push(node.op.clone(), operands, id)?;
        new.replace_value(node.results[0], results[0]);
    }
    Ok(new.finish())
}
