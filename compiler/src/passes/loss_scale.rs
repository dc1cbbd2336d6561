//! Dynamic loss scaling for f16, expressed as ops of the graph (Micikevicius et al., arXiv 1710.03740, section 3.2),
//! as `torch.amp.GradScaler` does it.
//!
//! The gradient of the loss starts from the scale, a variable, instead of from 1. The op `non_finite` counts the
//! elements that are not finite in the gradient of every trained variable, in the layout in which its update takes
//! it. These counts are added over ranks and stages like any other partial sum.
//!
//! The op `loss_scale` then gives the next scale, and a factor by which updates multiply their gradients in the same
//! pass over memory. The factor is 0 where the step is not made. It leaves variables and states as they are, so an
//! update can still work in place.
//!
//! Scale and counts are variables, so checkpoints save and restore them like others.

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::graph::Output;
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{Binary, BinaryFunction, Init, LossScale, NonFinite};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};
use graphc_plan::{Action, Plan, TensorKind};

use super::append::{push_node, push_state, push_value};
use super::skipping::StepGuard;
use crate::decisions::{Phase, TrainingGraph};

/// The output that says by what the loss of a step was scaled.
pub const LOSS_SCALE: &str = "loss_scale";

/// The output that is 1 where a step made no update, and else 0.
pub const SKIPPED: &str = "skipped";

/// The variable that holds the scale.
const SCALE: &str = "state.loss_scale";

/// The scale of the first step; it and the payload below are `GradScaler`'s, but for the floor, which is that of DeepSpeed and
/// Megatron.
const FIRST: f64 = 65536.0;

const SCALING: LossScale =
    LossScale { growth: Scalar(2.0), backoff: Scalar(0.5), interval: 2000, floor: Scalar(1.0) };

/// The scalars that updates take besides their tensors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scaled {
    /// The factor of gradients; 0 where no update is made.
    pub factor: ValueId,
    /// The number of the update, from 1.
    pub step: ValueId,
}

/// Whether a plan scales its loss: it then has the outputs [`LOSS_SCALE`] and [`SKIPPED`].
pub fn has_loss_scale(plan: &Plan) -> bool {
    let mut actors = plan.programs.iter().flat_map(|program| &program.actors);
    actors.any(|actor| matches!(actor.action, Action::Compute { op: Op::LossScale(_), .. }))
}

/// The scale, from which the gradient of the loss starts.
pub(super) fn add_scale_variable(builder: &GraphBuilder) -> Tensor {
    let ty = TensorType::new(DType::F32, []);
    builder.variable_of(SCALE, ty, Init::Fill(Scalar(FIRST)), false)
}

/// Appends the count of what is not finite in all gradients, and what follows from it. `None` where no loss is scaled.
/// With a guard a step that it leaves out leaves the scale too.
pub(super) fn check_gradients(
    training: &mut TrainingGraph,
    guard: Option<StepGuard>,
) -> Result<Option<Scaled>, OpError> {
    // A variable of that name in the user's graph belongs to the forward pass.
    let made = |&scale: &ValueId| {
        training.phases[training.graph.value(scale).producer.index()] == Phase::Backward
    };
    let Some(scale) = training.graph.find(SCALE).filter(made) else { return Ok(None) };
    let home = training.graph.value(scale).producer;
    let bad = over_gradients(training, &Op::NonFinite(NonFinite {}), home)?;
    let good = push_counter(training, "state.loss_scale.good_steps", home)?;
    let made = push_counter(training, "state.loss_scale.updates", home)?;
    use TensorKind::{Gradient, Output as Given, State};
    let kinds = [State, State, State, Gradient, Gradient, Given, Given];
    let guard = guard.map(|guard| guard.factor);
    let operands = [scale, good, made, bad].into_iter().chain(guard).collect();
    let node = push_node(training, Op::LossScale(SCALING), operands, home, &kinds)?;
    let [_, _, _, factor, step, used, skipped] = training.graph.node(node).results[..] else {
        unreachable!("loss_scale has seven results");
    };
    for (name, value) in [(LOSS_SCALE, used), (SKIPPED, skipped)] {
        training.graph.outputs.push(Output { name: name.into(), value });
    }
    Ok(Some(Scaled { factor, step }))
}

/// The sum of what an op says of each gradient, a number: by stage and placement first, so that one number of each
/// crosses to the stage of the loss.
pub(super) fn over_gradients(
    training: &mut TrainingGraph,
    op: &Op,
    home: NodeId,
) -> Result<ValueId, OpError> {
    let mut sums: Vec<(NodeId, ValueId)> = Vec::new();
    for (variable, gradient) in training.gradients.clone() {
        let beside = training.graph.value(variable).producer;
        let found = push_value(training, op.clone(), vec![gradient], beside)?;
        let graph = &training.graph;
        let place = |node: NodeId| (graph.node(node).part, &graph.node(node).placement);
        match sums.iter().position(|&(known, _)| place(known) == place(beside)) {
            Some(at) => sums[at].1 = push_add(training, sums[at].1, found, sums[at].0)?,
            None => sums.push((beside, found)),
        }
    }
    let mut sums = sums.into_iter().map(|(_, sum)| sum);
    let first = sums.next().expect("who trains has a gradient");
    sums.try_fold(first, |sum, other| push_add(training, sum, other, home))
}

fn push_add(
    training: &mut TrainingGraph,
    a: ValueId,
    b: ValueId,
    beside: NodeId,
) -> Result<ValueId, OpError> {
    push_value(training, Op::Binary(Binary { function: BinaryFunction::Add }), vec![a, b], beside)
}

/// A count that starts at 0.
fn push_counter(
    training: &mut TrainingGraph,
    name: &str,
    beside: NodeId,
) -> Result<ValueId, OpError> {
    push_state(training, name.into(), TensorType::new(DType::F32, []), beside)
}
