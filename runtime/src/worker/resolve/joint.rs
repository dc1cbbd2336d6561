//! Actors that are one launch with their neighbours, where the rank's device has such launches.

use std::collections::HashMap;

use graphc_ir::ids::RegisterId;
use graphc_ir::op::Op;
use graphc_ir::plan::{Action, Actor, FusedArg, FusedOp, FusedStep};
use graphc_ir::types::DType;

use super::super::actor::Work;
use super::super::neighbours::{Orders, pairs, runs};
use super::Resolver;
use crate::device::{Launch, Pair};
use crate::error::RuntimeError;

impl Resolver<'_> {
    /// What becomes of actors that are one launch with others: of the first the launch of all.
    pub(super) fn joint(&self, orders: &Orders) -> Result<HashMap<u32, Work>, RuntimeError> {
        let mut works = HashMap::new();
        if !self.device.joins_actors() {
            return Ok(works);
        }
        for [first, second] in pairs(self.program) {
            if let Some(launch) = self.pair([first, second])? {
                works.insert(first, Work::Kernel(launch));
                works.insert(second, Work::Joined);
            }
        }
        let joins = |actor: &Actor| match &actor.action {
            Action::Compute { op, .. } => self.device.joins(op).is_some(),
            _ => false,
        };
        for stream in 0..orders.len() {
            for run in runs(self.program, orders, stream, joins) {
                for members in self.alike(&run)? {
                    works.insert(members[0].0, Work::Kernel(self.join(&members)?));
                    works.extend(members[1..].iter().map(|&(actor, _)| (actor, Work::Joined)));
                }
            }
        }
        Ok(works)
    }

    /// A product and the chain behind it, where the device computes both at once.
    fn pair(&self, pair: [u32; 2]) -> Result<Option<Launch>, RuntimeError> {
        let [first, second] = pair.map(|index| &self.program.actors[index as usize]);
        let Action::Compute { op: Op::MatMul(op), operands } = &first.action else {
            return Ok(None);
        };
        let Some(chain) = chain(&second.action) else { return Ok(None) };
        let [factors, _] = self.registers(first, &Op::MatMul(*op), operands)?;
        let product = second.inputs.iter().position(|input| first.outputs.contains(input));
        let pair = Pair {
            op,
            factors: self.ports_of(first, &factors)?,
            chain: &chain,
            operands: self.ports_of(second, &second.inputs)?,
            product: product.unwrap_or(0),
            out: self.only(second, &second.outputs)?,
        };
        Ok(self.device.prepare_pair(&first.name, pair))
    }

    /// Groups of two or more updates by one rule, of the same element types and with the same scalars; each with its registers.
    fn alike(&self, run: &[u32]) -> Result<Vec<Vec<Member>>, RuntimeError> {
        let mut groups: Vec<(Rule<'_>, Vec<Member>)> = Vec::new();
        for &index in run {
            let actor = &self.program.actors[index as usize];
            let Action::Compute { op, operands } = &actor.action else { continue };
            let registers = self.registers(actor, op, operands)?;
            let own = self.device.joins(op).unwrap_or(0).min(registers[0].len());
            let types = self.ports_of(actor, &registers[0])?.iter().map(|p| p.dtype).collect();
            let rule = Rule { op, types, scalars: registers[0][own..].to_vec() };
            match groups.iter_mut().find(|(other, _)| *other == rule) {
                Some((_, members)) => members.push((index, registers)),
                None => groups.push((rule, vec![(index, registers)])),
            }
        }
        Ok(groups.into_iter().map(|(_, members)| members).filter(|m| m.len() > 1).collect())
    }

    fn join(&self, members: &[Member]) -> Result<Launch, RuntimeError> {
        let first = &self.program.actors[members[0].0 as usize];
        let Action::Compute { op, .. } = &first.action else {
            return Err(self.fail(first, "is no update"));
        };
        let ports =
            |(_, [from, to]): &Member| Ok([self.ports_of(first, from)?, self.ports_of(first, to)?]);
        let ports = members.iter().map(ports).collect::<Result<_, RuntimeError>>()?;
        let launch = self.device.prepare_joint(&first.name, op, ports);
        launch.map_err(|reason| self.unprepared(first, reason))
    }
}

/// What an actor does as a chain of elementwise ops, whose operands are its inputs.
fn chain(action: &Action) -> Option<FusedOp> {
    match action {
        Action::Fused(chain) => Some(chain.clone()),
        Action::Compute { op, operands } if op.operation().is_elementwise() => {
            let args = operands.iter().map(|&operand| usize::try_from(operand).ok());
            let args = args.map(|operand| operand.map(FusedArg::Operand)).collect::<Option<_>>()?;
            let step = FusedStep { op: op.clone(), args };
            Some(FusedOp { steps: vec![step], outputs: vec![0] })
        }
        _ => None,
    }
}

/// An update that is one of several: the actor, the registers of its operands and those of its results.
type Member = (u32, [Vec<RegisterId>; 2]);

/// What updates of one launch have in common.
#[derive(PartialEq)]
struct Rule<'a> {
    op: &'a Op,
    types: Vec<DType>,
    scalars: Vec<RegisterId>,
}
