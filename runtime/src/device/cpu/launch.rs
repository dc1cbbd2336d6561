//! Actors as the processor executes them.

use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::Op;
use graphc_ir::sbp::ReduceKind;
use graphc_ir::shard::Rect;
use graphc_ir::types::TensorType;
use graphc_kernels::{
    KernelError, Prepared, prepare, prepare_custom, prepare_fused, prepare_updated,
};

use super::super::call::{Call, Pair, Unprepared, With};
use super::super::local;
use super::super::port::{Port, Turn};
use super::{Cpu, Stream};
use crate::memory::Arena;
use crate::rectangles::{Move, combine, fill_identity};

/// What an actor does, and the registers of its operands and results.
pub(crate) struct Launch {
    routine: Routine,
    operands: Vec<Port>,
    results: Vec<Port>,
}

/// What is done.
enum Routine {
    Kernel(Prepared),
    Accumulate,
    Copy,
    Local(Local),
}

/// The way of a slice or a mask.
struct Local {
    identity: Option<ReduceKind>,
    /// Per microbatch, or one for all.
    copies: Vec<Move>,
}

impl Launch {
    /// # Errors
    /// Where there is no kernel, or registers do not fit each other.
    pub(crate) fn prepare(
        cpu: &Cpu,
        call: Call<'_>,
        operands: Vec<Port>,
        results: Vec<Port>,
    ) -> Result<Self, Unprepared> {
        let routine = match call {
            Call::Op(Op::Custom(op)) => Routine::Kernel(prepare_custom(op, &cpu.custom)?),
            Call::Op(op) => {
                let (from, to) = (types(&operands), types(&results));
                Routine::Kernel(prepare(op, &from, &to, DeviceKind::Cpu)?)
            }
            Call::Fused(op) => {
                let (from, to) = (types(&operands), types(&results));
                Routine::Kernel(prepare_fused(op, &from, &to, DeviceKind::Cpu)?)
            }
            Call::Accumulate => {
                one_of_one_size(&operands, &results).map(|()| Routine::Accumulate)?
            }
            Call::Copy => one_of_one_size(&operands, &results).map(|()| Routine::Copy)?,
            Call::Local { rank, from, to } => {
                let local = local::Local::new((&operands, &results), (from, to), rank)?;
                Routine::Local(Local::of(&local, &results[0]))
            }
        };
        Ok(Self { routine, operands, results })
    }

    /// A matrix product and the update of which it is the gradient; `None` where they are not done together, or something else
    /// goes with the product.
    pub(crate) fn prepare_pair(pair: Pair<'_>) -> Option<Self> {
        let Pair { op, factors, with, results } = pair;
        let With::Update { update, mut operands } = with else { return None };
        let [a, b] = &types(&factors)[..] else { return None };
        let prepared = prepare_updated(op, [a, b], update, &types(&operands))?;
        operands.remove(1);
        let operands = factors.iter().cloned().chain(operands).collect();
        Some(Self { routine: Routine::Kernel(prepared), operands, results })
    }

    #[inline]
    pub(super) fn run(
        &self,
        stream: &mut Stream,
        arena: &Arena,
        turn: Turn,
    ) -> Result<(), KernelError> {
        let ports = (self.operands.as_slice(), self.results.as_slice());
        match &self.routine {
            Routine::Kernel(prepared) => stream.call(arena, ports, turn, prepared)?,
            Routine::Accumulate => copy(arena, ports, turn, turn.microbatch > 0),
            Routine::Copy => copy(arena, ports, turn, false),
            Routine::Local(local) => local.run(arena, ports, turn),
        }
        Ok(())
    }
}

/// The types of the shards.
fn types(ports: &[Port]) -> Vec<TensorType> {
    ports.iter().map(|port| TensorType::new(port.dtype, port.rect(0).extent.clone())).collect()
}

/// One operand and one result of as many elements of one type.
fn one_of_one_size(operands: &[Port], results: &[Port]) -> Result<(), Unprepared> {
    let size = |port: &Port| (port.dtype, port.rect(0).elements());
    match (operands, results) {
        ([operand], [result]) if size(operand) == size(result) => Ok(()),
        _ => Err(Unprepared::Registers("copies between registers of different sizes".into())),
    }
}

fn copy(arena: &Arena, (operands, results): (&[Port], &[Port]), turn: Turn, add: bool) {
    let (from, to) = (operands[0].place(turn), results[0].place(turn));
    if from == to {
        return; // shared memory: it is there already
    }
    let (from, to) = (arena.read(from), arena.write(to));
    if add {
        combine(results[0].dtype, ReduceKind::Sum, to, from);
    } else {
        to.copy_from_slice(from);
    }
}

impl Local {
    fn of(local: &local::Local, result: &Port) -> Self {
        let copy = |(held, kept): &(Rect, Rect)| Move::new(result.dtype, kept, held, kept);
        Self { identity: local.identity, copies: local.rects.iter().map(copy).collect() }
    }

    fn run(&self, arena: &Arena, (operands, results): (&[Port], &[Port]), turn: Turn) {
        let (operand, result) = (&operands[0], &results[0]);
        let target = arena.write(result.place(turn));
        match self.identity {
            Some(kind) => fill_identity(result.dtype, kind, target),
            None if target.is_empty() => {}
            None => {
                let copy = &self.copies[turn.microbatch % self.copies.len()];
                copy.copy(arena.read(operand.place(turn)), target);
            }
        }
    }
}
