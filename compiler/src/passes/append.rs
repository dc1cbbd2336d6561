//! Nodes of the update phase that passes append to a training graph.

use graphc_ir::graph::Source;
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{Init, Variable};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::TensorType;
use graphc_plan::TensorKind;

use crate::decisions::{Phase, TrainingGraph};

/// The scalars that updates take besides their tensors.
#[derive(Clone, Copy)]
pub(super) struct Scalars {
    /// The factor of gradients; 0 where no update is made.
    pub factor: Option<ValueId>,
    /// A number that is 0 where no update is made, and above it otherwise; `None` where all are made.
    pub made: Option<ValueId>,
    /// The number of the update, from 1, where it is not the step's.
    pub step: Option<ValueId>,
    /// The number of the update, from 1, where ops of the graph ask for it.
    pub number: Option<ValueId>,
}

impl Scalars {
    /// The scalars that an op takes.
    pub(super) fn operands_for(self, op: &Op) -> impl Iterator<Item = ValueId> {
        let corrects = matches!(op, Op::AdamUpdate(_) | Op::LambDirection(_));
        self.factor.into_iter().chain(self.step.filter(|_| corrects))
    }
}

/// Appends a state that is 0 at first, beside a node.
pub(super) fn push_state(
    training: &mut TrainingGraph,
    name: String,
    ty: TensorType,
    beside: NodeId,
) -> Result<ValueId, OpError> {
    push_filled_state(training, name, ty, Init::Fill(Scalar(0.0)), beside)
}

/// Appends a state with a first content, beside a node.
pub(super) fn push_filled_state(
    training: &mut TrainingGraph,
    name: String,
    ty: TensorType,
    init: Init,
    beside: NodeId,
) -> Result<ValueId, OpError> {
    let variable = Variable { name: name.clone(), ty, init, trainable: false };
    let node =
        push_node(training, Op::Variable(variable), Vec::new(), beside, &[TensorKind::State])?;
    let value = training.graph.node(node).results[0];
    training.graph.values[value.index()].name = Some(name);
    Ok(value)
}

/// Appends a node of the update phase beside another.
pub(super) fn push_node(
    training: &mut TrainingGraph,
    op: Op,
    operands: Vec<ValueId>,
    beside: NodeId,
    kinds: &[TensorKind],
) -> Result<NodeId, OpError> {
    let graph = &mut training.graph;
    let id = graph.push(op, operands, Source::Derived)?;
    let (part, placement) = (graph.node(beside).part, graph.node(beside).placement.clone());
    let node = &mut graph.nodes[id.index()];
    (node.part, node.placement) = (part, placement);
    training.phases.push(Phase::Update);
    training.kinds.extend(kinds);
    Ok(id)
}

/// Appends a node of one result, which is of the kind of gradients, beside another.
pub(super) fn push_value(
    training: &mut TrainingGraph,
    op: Op,
    operands: Vec<ValueId>,
    beside: NodeId,
) -> Result<ValueId, OpError> {
    let node = push_node(training, op, operands, beside, &[TensorKind::Gradient])?;
    Ok(training.graph.node(node).results[0])
}
