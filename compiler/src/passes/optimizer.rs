//! Appends what the optimizer does once a step: for each gradient an update of its variable and of the states.

use graphc_ir::graph::Source;
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{AdamUpdate, Init, SgdUpdate, Variable};
use graphc_ir::plan::{AdamOptions, Optimizer, TensorKind};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};

use super::loss_scale::{Scaled, check_gradients};
use crate::decisions::{Phase, TrainingGraph};
use crate::error::CompileError;

const PASS: &str = "optimizer";

/// The training graph with updates. States are variables named `state.<what>.<variable>`, 0 at first, of f32 whatever
/// the precision of their variable, in its stage and on its placement. Where the loss is scaled updates are told by how much.
///
/// # Errors
/// Where an update does not take its variable: one that is not of floating-point numbers, say.
pub fn optimizer(
    mut training: TrainingGraph,
    optimizer: Option<Optimizer>,
) -> Result<TrainingGraph, CompileError> {
    let Some(optimizer) = optimizer else { return Ok(training) };
    append_all(&mut training, optimizer).map_err(|error| CompileError::Op { pass: PASS, error })?;
    Ok(training)
}

fn append_all(training: &mut TrainingGraph, optimizer: Optimizer) -> Result<(), OpError> {
    let (op, states) = update(optimizer);
    let scaled = check_gradients(training)?;
    let scaling = match (scaled, &op) {
        (None, _) => Vec::new(),
        (Some(Scaled { factor, step }), Op::AdamUpdate(_)) => vec![factor, step],
        (Some(Scaled { factor, .. }), _) => vec![factor],
    };
    for pair in training.gradients.clone() {
        append(training, &op, states, pair, &scaling)?;
    }
    Ok(())
}

/// The update of an optimizer, and what its states are called.
fn update(optimizer: Optimizer) -> (Op, &'static [&'static str]) {
    match optimizer {
        Optimizer::Sgd { lr, momentum, nesterov, weight_decay } => {
            let [lr, momentum, weight_decay] = [lr, momentum, weight_decay].map(Scalar);
            let states: &[&str] = if momentum.0 != 0.0 { &["momentum"] } else { &[] };
            (Op::SgdUpdate(SgdUpdate { lr, momentum, nesterov, weight_decay }), states)
        }
        Optimizer::Adam(options) => (adam(options, false), &["exp_avg", "exp_avg_sq"]),
        Optimizer::AdamW(options) => (adam(options, true), &["exp_avg", "exp_avg_sq"]),
    }
}

fn adam(options: AdamOptions, decoupled: bool) -> Op {
    Op::AdamUpdate(AdamUpdate {
        lr: Scalar(options.lr),
        beta1: Scalar(options.beta1),
        beta2: Scalar(options.beta2),
        epsilon: Scalar(options.eps),
        weight_decay: Scalar(options.weight_decay),
        decoupled,
    })
}

fn append(
    training: &mut TrainingGraph,
    op: &Op,
    states: &[&str],
    (variable, gradient): (ValueId, ValueId),
    scaling: &[ValueId],
) -> Result<(), OpError> {
    let home = training.graph.value(variable).producer;
    let name = training.graph.display_name(variable);
    let shape = training.graph.value(variable).ty.shape.clone();
    let ty = TensorType::new(DType::F32, shape);
    let mut operands = vec![variable, gradient];
    let mut kinds = vec![TensorKind::Parameter];
    for state in states {
        operands.push(push_state(training, format!("state.{state}.{name}"), ty.clone(), home)?);
        kinds.push(TensorKind::State);
    }
    operands.extend(scaling);
    push(training, op.clone(), operands, home, &kinds)?;
    Ok(())
}

/// Appends a state that is 0 at first, beside a node.
pub(super) fn push_state(
    training: &mut TrainingGraph,
    name: String,
    ty: TensorType,
    beside: NodeId,
) -> Result<ValueId, OpError> {
    let init = Init::Fill(Scalar(0.0));
    let variable = Variable { name: name.clone(), ty, init, trainable: false };
    let node = push(training, Op::Variable(variable), Vec::new(), beside, &[TensorKind::State])?;
    let value = training.graph.node(node).results[0];
    training.graph.values[value.index()].name = Some(name);
    Ok(value)
}

/// Appends a node of the update phase beside another.
pub(super) fn push(
    training: &mut TrainingGraph,
    op: Op,
    operands: Vec<ValueId>,
    beside: NodeId,
    kinds: &[TensorKind],
) -> Result<NodeId, OpError> {
    let graph = &mut training.graph;
    let id = graph.push(op, operands, Source::Derived)?;
    let (stage, placement) = (graph.node(beside).stage, graph.node(beside).placement.clone());
    let node = &mut graph.nodes[id.index()];
    (node.stage, node.placement) = (stage, placement);
    training.phases.push(Phase::Update);
    training.kinds.extend(kinds);
    Ok(id)
}
