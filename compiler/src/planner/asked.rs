//! The layouts that strategies ask for: of inputs, parameters, states and updates.

use graphc_ir::graph::Node;
use graphc_ir::mesh::Placement;
use graphc_ir::op::Op;
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_plan::{AxisStrategy, Strategy, TensorKind};

use super::error::PlannerError;

/// Refuses a strategy that names more axes than a mesh has.
pub(super) fn check_axes(strategy: Strategy, placements: &[Placement]) -> Result<(), PlannerError> {
    let Strategy::Mixed(mixed) = strategy else { return Ok(()) };
    let short = |place: &&Placement| place.ranks.len() > 1 && place.hierarchy.len() < mixed.count();
    match placements.iter().find(short) {
        None => Ok(()),
        Some(place) => Err(PlannerError::Axes {
            strategy: strategy.to_string(),
            count: mixed.count(),
            mesh: place.hierarchy.clone(),
        }),
    }
}

/// Returns the layout over an axis that its strategy gives to the first result of a node, or `None` if it follows from the operands.
pub(super) fn wished_sbp(strategy: AxisStrategy, node: &Node, kind: TensorKind) -> Option<Sbp> {
    let shards_states = strategy.shards_states();
    match &node.op {
        Op::Input(input) => Some(strategy.lay_input(input)),
        Op::Variable(_) if kind == TensorKind::State && shards_states => Some(Sbp::Split(0)),
        Op::Variable(_) if kind == TensorKind::Parameter && strategy.shards_parameters() => {
            Some(Sbp::Split(0))
        }
        Op::Variable(_) => Some(Sbp::Broadcast),
        Op::Blend(_) => None,
        op if !op.operation().updates().is_empty() => {
            Some(if shards_states { Sbp::Split(0) } else { Sbp::Broadcast })
        }
        // Of the gradient as the update takes it: what is counted or summed in shards is a partial sum.
        Op::NonFinite(_) | Op::SquareSum(_) => {
            Some(if shards_states { Sbp::PARTIAL } else { Sbp::Broadcast })
        }
        _ => None,
    }
}

/// Returns the layout that a strategy with an axis of sequences asks for of the first result of a node: of inputs, parameters and states. All other
/// layouts are the planner's choice. Beside an axis that splits the model it asks for those of inputs alone, and the rest is a fixed plan.
pub(super) fn context_layout(
    strategy: Strategy,
    hierarchy: &[usize],
    node: &Node,
    kind: TensorKind,
    shape: &[usize],
) -> Option<NdSbp> {
    let asks = match node.op {
        Op::Input(_) => true,
        Op::Variable(_) => !strategy.splits_model(),
        _ => false,
    };
    if !asks || !strategy.splits_sequences() {
        return None;
    }
    let mut extents = shape.to_vec();
    let axes = strategy.over_axes(hierarchy.len()).into_iter().zip(hierarchy);
    let sbps = axes.map(|(axis, &ranks)| match wished_sbp(axis, node, kind)? {
        // What is too small for all ranks is whole.
        Sbp::Split(dim) => match extents.get_mut(dim).filter(|extent| **extent >= ranks) {
            Some(extent) => {
                *extent /= ranks;
                Some(Sbp::Split(dim))
            }
            None => Some(Sbp::Broadcast),
        },
        sbp => Some(sbp),
    });
    Some(NdSbp(sbps.collect::<Option<_>>()?))
}
