//! The plan's tables for readers: the layouts of tensors, and the number of boxing steps of each kind.

use std::collections::{BTreeMap, BTreeSet};

use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;
use graphc_plan::{Action, BoxingKind, Plan, Rate, TensorEntry, TensorKind};

use crate::decisions::{Decisions, Sharding};

/// Returns the layouts of all tensors of the graph for which a user may ask. Results of updates, gradients on the way to those of variables, and
/// values that are computed again are not among them.
pub(in crate::lower) fn tensor_entries(
    decisions: &Decisions,
    sharding: &Sharding,
) -> Vec<TensorEntry> {
    let training = &decisions.training;
    let gradients: BTreeSet<ValueId> = training.gradients.iter().map(|pair| pair.1).collect();
    let updates = |value: &ValueId| {
        let op = &training.graph.producer(*value).op;
        !op.operation().updates().is_empty()
    };
    (0..training.graph.values.len())
        .map(ValueId::new)
        .filter(|value| {
            let gradient = training.kinds[value.index()] == TensorKind::Gradient;
            let producer = training.graph.value(*value).producer;
            let again = decisions.recomputed[producer.index()].is_some();
            !updates(value) && !again && (!gradient || gradients.contains(value))
        })
        .map(|value| tensor_entry(decisions, sharding, value))
        .collect()
}

fn tensor_entry(decisions: &Decisions, sharding: &Sharding, id: ValueId) -> TensorEntry {
    let graph = decisions.graph();
    let value = graph.value(id);
    let node = value.producer.index();
    let placement = &decisions.staging.placement[node];
    let name = match &graph.nodes[node].op {
        Op::Variable(variable) => variable.name.clone(),
        _ => graph.display_name(id),
    };
    TensorEntry {
        name,
        kind: decisions.training.kinds[id.index()],
        shape: value.ty.shape.clone(),
        dtype: value.ty.dtype,
        ranks: placement.ranks.clone(),
        hierarchy: placement.hierarchy.clone(),
        sbp: sharding.nodes[node].results[value.index].clone(),
        stage: decisions.staging.stage[node],
    }
}

/// Counts the boxing steps of each kind in a step, over all microbatches. Tensors that travel in one message count once.
pub fn collective_counts(plan: &Plan) -> BTreeMap<BoxingKind, usize> {
    let mut counts = BTreeMap::new();
    let times = |rate: Rate| if rate == Rate::Step { 1 } else { plan.microbatches };
    let mut seen = BTreeSet::new();
    for actor in plan.programs.iter().flat_map(|program| &program.actors) {
        if let Action::Collective { kind, sequence, .. } = actor.action
            && seen.insert(sequence)
        {
            *counts.entry(kind).or_default() += times(actor.rate);
        }
    }
    let others = [BoxingKind::Slice, BoxingKind::Mask, BoxingKind::SendRecv];
    for entry in plan.boxing.iter().filter(|entry| others.contains(&entry.kind)) {
        *counts.entry(entry.kind).or_default() += times(entry.rate);
    }
    counts
}
