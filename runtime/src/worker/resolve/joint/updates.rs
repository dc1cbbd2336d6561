//! Updates of several variables in one launch, or casts: those of one rule, one list of element types, and the same scalars.

use graphc_ir::ids::RegisterId;
use graphc_ir::op::Op;
use graphc_ir::types::DType;
use graphc_plan::Action;

use super::super::ActorResolver;
use crate::device::DeviceLaunch;
use crate::error::RuntimeError;

impl ActorResolver<'_> {
    /// Groups of two or more updates by one rule, of the same element types and with the same scalars; each with its registers.
    pub(super) fn group_alike_updates(
        &self,
        run: &[u32],
    ) -> Result<Vec<Vec<Member>>, RuntimeError> {
        let mut groups: Vec<(SharedUpdateRule<'_>, Vec<Member>)> = Vec::new();
        for &index in run {
            let actor = &self.program.actors[index as usize];
            let Action::Compute { op, operands } = &actor.action else { continue };
            let registers = self.op_registers(actor, op, operands)?;
            let own = self.device.joinable_tensors(op).unwrap_or(0).min(registers[0].len());
            let types = self.ports_of(actor, &registers[0])?.iter().map(|p| p.dtype).collect();
            let rule = SharedUpdateRule { op, types, scalars: registers[0][own..].to_vec() };
            match groups.iter_mut().find(|(other, _)| *other == rule) {
                Some((_, members)) => members.push((index, registers)),
                None => groups.push((rule, vec![(index, registers)])),
            }
        }
        Ok(groups.into_iter().map(|(_, members)| members).filter(|m| m.len() > 1).collect())
    }

    pub(super) fn join_updates(&self, members: &[Member]) -> Result<DeviceLaunch, RuntimeError> {
        let first = &self.program.actors[members[0].0 as usize];
        let Action::Compute { op, .. } = &first.action else {
            return Err(self.actor_error(first, "is no update"));
        };
        let ports =
            |(_, [from, to]): &Member| Ok([self.ports_of(first, from)?, self.ports_of(first, to)?]);
        let ports = members.iter().map(ports).collect::<Result<_, RuntimeError>>()?;
        let launch = self.device.prepare_joint(&first.name, op, ports);
        launch.map_err(|reason| self.unprepared_error(first, reason))
    }
}

/// An update that is one of several: the actor, the registers of its operands and those of its results.
pub(super) type Member = (u32, [Vec<RegisterId>; 2]);

/// The rule that updates of one launch share.
#[derive(PartialEq)]
struct SharedUpdateRule<'a> {
    op: &'a Op,
    types: Vec<DType>,
    scalars: Vec<RegisterId>,
}
