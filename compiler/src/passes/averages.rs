//! Keeps moving averages of trained variables, for `--ema` (Polyak and Juditsky, 1992), as
//! `torch.optim.swa_utils.AveragedModel` does with an exponential average.
//!
//! Each average takes in its variable as the optimizer leaves it, by a `blend`. After the first step it is the
//! variable itself.
//!
//! An update whose result others read does not work in place. Its variable is overwritten later, when all readers of
//! the variable are done. The planner counts the result beside the variable.

use graphc_ir::ids::ValueId;
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::Blend;
use graphc_ir::types::{DType, TensorType};
use graphc_plan::TensorKind;

use super::append::{push_node, push_state};
use super::skipping::guard_of;
use crate::decisions::TrainingGraph;
use crate::passes::error::PassError;

const PASS: &str = "averages";

/// The prefix of an average's name, before that of its variable.
pub const AVERAGE: &str = "state.ema.";

/// Appends a moving average, of this decay, of each variable that an optimizer changes.
///
/// # Errors
/// Returns an error if the decay is not at least 0 and less than 1.
pub(crate) fn append_averages(
    mut training: TrainingGraph,
    decay: Option<f64>,
) -> Result<TrainingGraph, PassError> {
    let Some(decay) = decay else { return Ok(training) };
    if !(0.0..1.0).contains(&decay) {
        return Err(PassError::Average { decay });
    }
    for (variable, _) in training.gradients.clone() {
        let failed = |error| PassError::Op { pass: PASS, error };
        append_average(&mut training, variable, decay).map_err(failed)?;
    }
    Ok(training)
}

fn append_average(
    training: &mut TrainingGraph,
    variable: ValueId,
    decay: f64,
) -> Result<(), OpError> {
    let Some(new) = find_updated_value(training, variable) else { return Ok(()) };
    let graph = &training.graph;
    let home = graph.value(variable).producer;
    let ty = TensorType::new(DType::F32, graph.value(variable).ty.shape.clone());
    let name = format!("{AVERAGE}{}", graph.display_name(variable));
    let average = push_state(training, name, ty, home)?;
    let blend = Op::Blend(Blend { starts: true, ..Blend::with_decay(decay, 1.0 - decay) });
    let guard = guard_of(training).map(|guard| [guard.factor, guard.step]);
    let operands = [average, new].into_iter().chain(guard.into_iter().flatten()).collect();
    push_node(training, blend, operands, home, &[TensorKind::State])?;
    Ok(())
}

/// Returns the value that a step leaves in a variable; `None` if nothing updates it.
fn find_updated_value(training: &TrainingGraph, variable: ValueId) -> Option<ValueId> {
    training.graph.nodes.iter().find_map(|node| {
        let pairs = node.op.operation().updates();
        let pair = pairs.iter().find(|pair| node.operands.get(pair.1) == Some(&variable))?;
        node.results.get(pair.0).copied()
    })
}
