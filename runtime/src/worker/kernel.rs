//! The call of a kernel that an actor makes: its registers, and the kernel prepared for their types.

use graphc_ir::ids::RegisterId;
use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::Op;
use graphc_ir::plan::{Action, Actor, Plan, Program};
use graphc_ir::types::TensorType;
use graphc_kernels::{KernelError, Prepared, prepare, prepare_fused};

/// What an actor computes, and from and to which registers.
pub(crate) struct Call<'a> {
    action: &'a Action,
    pub(crate) operands: Vec<RegisterId>,
    pub(crate) results: Vec<RegisterId>,
    types: [Vec<TensorType>; 2],
}

impl<'a> Call<'a> {
    /// The call of an actor that computes.
    ///
    /// # Errors
    /// What is wrong with the actor, said of it.
    pub(crate) fn of(
        plan: &Plan,
        program: &Program,
        actor: &'a Actor,
    ) -> Result<Self, &'static str> {
        let (operands, results) = match &actor.action {
            Action::Compute { op, operands } => {
                let registers = registers(actor, operands)?;
                let results = results(actor, op, operands, &registers);
                (registers, results)
            }
            _ => (actor.inputs.clone(), actor.outputs.clone()),
        };
        if results.is_empty() {
            return Err("has no result");
        }
        let ty = |id: &RegisterId| {
            let register = program.registers.get(id.index())?;
            let layout = plan.layouts.get(register.layout as usize)?;
            Some(TensorType::new(layout.dtype, register.shape.clone()))
        };
        let types = |all: &[RegisterId]| all.iter().map(ty).collect::<Option<Vec<_>>>();
        let types = [types(&operands), types(&results)].map(|types| types.ok_or("lacks a layout"));
        let [of_operands, of_results] = types;
        let types = [of_operands?, of_results?];
        Ok(Self { action: &actor.action, operands, results, types })
    }

    /// The kernel of the processor, prepared for the registers' types.
    ///
    /// # Errors
    /// Where there is none.
    pub(crate) fn prepare(&self) -> Result<Prepared, KernelError> {
        let [operands, results] = &self.types;
        match self.action {
            Action::Compute { op, .. } => prepare(op, operands, results, DeviceKind::Cpu),
            Action::Fused(fused) => prepare_fused(fused, operands, results, DeviceKind::Cpu),
            _ => Err(KernelError::call("actor", "computes nothing")),
        }
    }
}

/// The registers of operands: inputs from 0 on, variables at rest from -1 down.
fn registers(actor: &Actor, operands: &[i32]) -> Result<Vec<RegisterId>, &'static str> {
    let register = |&operand: &i32| {
        let found = match usize::try_from(operand) {
            Ok(input) => actor.inputs.get(input),
            Err(_) => actor.updates.get((-1 - i64::from(operand)) as usize),
        };
        found.copied().ok_or("has an operand that it lacks")
    };
    operands.iter().map(register).collect()
}

/// The register of each result: a result that takes the place of a variable at rest is written there, the others
/// fill the outputs one after the other.
fn results(actor: &Actor, op: &Op, operands: &[i32], registers: &[RegisterId]) -> Vec<RegisterId> {
    let replaced = |result: usize| {
        let pair = op.operation().updates().iter().find(|pair| pair.0 == result)?;
        let at_rest = operands.get(pair.1).is_some_and(|&operand| operand < 0);
        at_rest.then(|| registers[pair.1])
    };
    let mut outputs = actor.outputs.iter().copied();
    let mut results = Vec::new();
    while let Some(register) = replaced(results.len()).or_else(|| outputs.next()) {
        results.push(register);
    }
    results
}
