//! Whether this machine has kernels for all that a plan computes: said before memory is taken and threads start.

use graphc_ir::plan::{Action, Plan};

use crate::error::RuntimeError;
use crate::worker::Call;

/// Prepares the call of every actor of every program that computes.
pub(super) fn check(plan: &Plan) -> Result<(), RuntimeError> {
    for program in &plan.programs {
        for actor in &program.actors {
            if !matches!(actor.action, Action::Compute { .. } | Action::Fused(_)) {
                continue;
            }
            let name = &actor.name;
            let call = Call::of(plan, program, actor);
            let call = call.map_err(|e| RuntimeError::plan(format!("actor `{name}` {e}")))?;
            call.prepare().map_err(|error| {
                let actor = name.clone();
                RuntimeError::NoKernel { actor, error: Box::new(error) }
            })?;
        }
    }
    Ok(())
}
