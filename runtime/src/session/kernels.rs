//! Whether this machine has kernels for all that a plan computes: said before memory is taken and threads start.

use graphc_ir::mesh::DeviceKind;
use graphc_ir::plan::{Action, Actor, Plan, Program};
use graphc_ir::types::DType;
use graphc_kernels::lookup;

use crate::error::RuntimeError;

/// Checks every actor of every program.
pub(super) fn check(plan: &Plan) -> Result<(), RuntimeError> {
    for program in &plan.programs {
        for actor in &program.actors {
            if let Some((op, dtype)) = missing(plan, program, actor) {
                let (actor, op) = (actor.name.clone(), op.into());
                return Err(RuntimeError::NoKernel { actor, op, dtype });
            }
        }
    }
    Ok(())
}

/// The op and the element type that an actor has no kernel for.
fn missing<'a>(plan: &Plan, program: &Program, actor: &'a Actor) -> Option<(&'a str, DType)> {
    let registers = actor.inputs.iter().chain(&actor.outputs).chain(&actor.updates);
    let layout = |layout: u32| plan.layouts.get(layout as usize);
    let dtypes = registers.filter_map(|id| layout(program.registers.get(id.index())?.layout));
    let mut half = dtypes.map(|layout| layout.dtype).filter(|dtype| dtype.size() == 2);
    match &actor.action {
        Action::Compute { op, .. } => {
            let none = |dtype: &DType| lookup(op, *dtype, DeviceKind::Cpu).is_err();
            half.find(none).map(|dtype| (op.name(), dtype))
        }
        Action::Fused(fused) => {
            let first = fused.steps.first().map_or("an elementwise op", |step| step.op.name());
            half.next().map(|dtype| (first, dtype))
        }
        _ => None,
    }
}
