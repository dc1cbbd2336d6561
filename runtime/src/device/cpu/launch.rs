//! Actors as the processor executes them.

use graphc_comm::memory::HostArena;
use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::Op;
use graphc_ir::sbp::ReduceKind;
use graphc_ir::shard::Rect;
use graphc_ir::types::TensorType;
use graphc_kernels::{
    KernelError, Prepared, prepare_custom, prepare_fused, prepare_op, prepare_summed,
    prepare_updated,
};

use super::super::call::{DeviceCall, ProductPair, Unprepared, With};
use super::super::local;
use super::super::port::{Port, Turn};
use super::{Cpu, CpuStream};
use crate::rectangles::{Move, combine_elements, fill_identity};

/// An actor's work on processors, and the registers of its operands and results.
pub(crate) struct CpuLaunch {
    routine: CpuRoutine,
    operands: Vec<Port>,
    results: Vec<Port>,
}

/// The kind of work.
enum CpuRoutine {
    Kernel(Prepared),
    /// A product that the first microbatch writes, and that later ones add.
    Sum(Box<[Prepared; 2]>),
    Accumulate,
    Copy,
    Local(LocalCopies),
}

/// The way of a slice or a mask.
struct LocalCopies {
    identity: Option<ReduceKind>,
    /// The copies, per microbatch or one for all.
    copies: Vec<Move>,
}

impl CpuLaunch {
    /// # Errors
    /// Where there is no kernel, or registers do not fit each other.
    pub(crate) fn prepare(
        cpu: &Cpu,
        call: DeviceCall<'_>,
        operands: Vec<Port>,
        results: Vec<Port>,
    ) -> Result<Self, Unprepared> {
        let routine = match call {
            DeviceCall::Op(Op::Custom(op)) => CpuRoutine::Kernel(prepare_custom(op, &cpu.custom)?),
            DeviceCall::Op(op) => {
                let (from, to) = (shard_types(&operands), shard_types(&results));
                CpuRoutine::Kernel(prepare_op(op, &from, &to, DeviceKind::Cpu)?)
            }
            DeviceCall::Fused(op) => {
                let (from, to) = (shard_types(&operands), shard_types(&results));
                CpuRoutine::Kernel(prepare_fused(op, &from, &to, DeviceKind::Cpu)?)
            }
            DeviceCall::Accumulate => {
                one_of_one_size(&operands, &results).map(|()| CpuRoutine::Accumulate)?
            }
            DeviceCall::Copy => one_of_one_size(&operands, &results).map(|()| CpuRoutine::Copy)?,
            DeviceCall::Local { rank, from, to } => {
                let local = local::LocalBoxing::new((&operands, &results), (from, to), rank)?;
                CpuRoutine::Local(LocalCopies::from_boxing(&local, &results[0]))
            }
        };
        Ok(Self { routine, operands, results })
    }

    /// Prepares a matrix product with the update of which it is the gradient, or with the sum over microbatches; `None` where they are
    /// not done together, or something else goes with the product.
    pub(crate) fn prepare_pair(pair: ProductPair<'_>) -> Option<Self> {
        let ProductPair { op, factors, with, results } = pair;
        let [a, b] = &shard_types(&factors)[..] else { return None };
        match with {
            With::Update { update, mut operands } => {
                let prepared = prepare_updated(op, [a, b], update, &shard_types(&operands))?;
                operands.remove(1);
                let operands = factors.iter().cloned().chain(operands).collect();
                Some(Self { routine: CpuRoutine::Kernel(prepared), operands, results })
            }
            With::Accumulation => {
                let [sum] = &shard_types(&results)[..] else { return None };
                let prepare = |is_first| prepare_summed(op, [a, b], sum, is_first);
                let routine = CpuRoutine::Sum(Box::new([prepare(true)?, prepare(false)?]));
                Some(Self { routine, operands: factors, results })
            }
            With::Chain { .. } | With::Sums { .. } => None,
        }
    }

    #[inline]
    pub(super) fn run(
        &self,
        stream: &mut CpuStream,
        arena: &HostArena,
        turn: Turn,
    ) -> Result<(), KernelError> {
        let ports = (self.operands.as_slice(), self.results.as_slice());
        match &self.routine {
            CpuRoutine::Kernel(prepared) => stream.call_kernel(arena, ports, turn, prepared)?,
            CpuRoutine::Sum(prepared) => {
                let prepared = &prepared[turn.microbatch.min(1)];
                stream.call_kernel(arena, ports, turn, prepared)?
            }
            CpuRoutine::Accumulate => copy_register(arena, ports, turn, turn.microbatch > 0),
            CpuRoutine::Copy => copy_register(arena, ports, turn, false),
            CpuRoutine::Local(local) => local.run(arena, ports, turn),
        }
        Ok(())
    }
}

/// Returns the types of the shards.
fn shard_types(ports: &[Port]) -> Vec<TensorType> {
    ports.iter().map(|port| TensorType::new(port.dtype, port.rect(0).extent.clone())).collect()
}

/// Checks for one operand and one result of as many elements of one type.
fn one_of_one_size(operands: &[Port], results: &[Port]) -> Result<(), Unprepared> {
    let size = |port: &Port| (port.dtype, port.rect(0).elements());
    match (operands, results) {
        ([operand], [result]) if size(operand) == size(result) => Ok(()),
        _ => Err(Unprepared::Registers("copies between registers of different sizes".into())),
    }
}

fn copy_register(
    arena: &HostArena,
    (operands, results): (&[Port], &[Port]),
    turn: Turn,
    add: bool,
) {
    let (from, to) = (operands[0].content_range(turn), results[0].content_range(turn));
    if from == to {
        return; // shared memory: it is there already
    }
    let (from, to) = (arena.read(from), arena.write(to));
    if add {
        combine_elements(results[0].dtype, ReduceKind::Sum, to, from);
    } else {
        to.copy_from_slice(from);
    }
}

impl LocalCopies {
    fn from_boxing(local: &local::LocalBoxing, result: &Port) -> Self {
        let copy = |(held, kept): &(Rect, Rect)| Move::new(result.dtype, kept, held, kept);
        Self { identity: local.identity, copies: local.rects.iter().map(copy).collect() }
    }

    fn run(&self, arena: &HostArena, (operands, results): (&[Port], &[Port]), turn: Turn) {
        let (operand, result) = (&operands[0], &results[0]);
        let target = arena.write(result.content_range(turn));
        match self.identity {
            Some(kind) => fill_identity(result.dtype, kind, target),
            None if target.is_empty() => {}
            None => {
                let copy = &self.copies[turn.microbatch % self.copies.len()];
                copy.copy(arena.read(operand.content_range(turn)), target);
            }
        }
    }
}
