//! A convolution and the chain of elementwise ops behind it, as launches one after the other.
//!
//! If the convolution is no result of its own, its elements lie in the memory to work in.

use graphc_ir::types::TensorType;
use graphc_plan::{FusedArg, FusedOp, FusedStep};

use super::call::{
    Argument, Call, CallRegister, Kernel, Launch, LaunchMemory, MatrixProduct, Operands,
};
use super::convolution::{align_bytes, prepare_convolution};
use super::names::name_kernels;
use super::{Shard, elementwise};
use crate::epilogue::drop_head;
use crate::error::KernelError;

/// The call of the chain; `None` where no step is a convolution.
pub(super) fn prepare_headed(
    fused: &FusedOp,
    operands: &[Shard],
    results: &[Shard],
) -> Result<Option<Call>, KernelError> {
    let begins = |step: &FusedStep| step.op.operation().begins_chain();
    let Some(at) = fused.steps.iter().position(begins) else { return Ok(None) };
    let head = &fused.steps[at];
    let misfit = |reason: &str| KernelError::bad_call(head.op.name(), reason);
    let indices: Option<Vec<usize>> = head.args.iter().map(operand_of).collect();
    let indices = indices.ok_or_else(|| misfit("reads another step"))?;
    let own = select_places(operands, &indices).ok_or_else(|| misfit("has no operand"))?;
    let made = convolution_result(fused, &own, at, results)
        .ok_or_else(|| misfit("no result has its shape"))?;
    let first = prepare_convolution(&head.op, &own, std::slice::from_ref(&made))?;
    let mut first = name_kernels(first, &head.op, &own);
    let bytes = align_bytes(made.elements() * made.dtype().size());
    let place = match fused.outputs.iter().position(|&output| output == at) {
        Some(output) => LaunchMemory::Slot(CallRegister::Result(output)),
        None => LaunchMemory::Scratch(0),
    };
    let of = |&index: &usize| LaunchMemory::Slot(CallRegister::Operand(index));
    let given: Vec<LaunchMemory> = indices.iter().map(of).collect();
    Renaming { operands: &given, results: &[place], scratch: bytes }.apply(&mut first)?;
    let (rest, others) = drop_head(fused, at);
    let written: Vec<usize> =
        (0..fused.outputs.len()).filter(|&output| fused.outputs[output] != at).collect();
    let mut types = vec![made];
    types.extend(select_places(operands, &others).ok_or_else(|| misfit("has no operand"))?);
    let of_results = select_places(results, &written).ok_or_else(|| misfit("has no result"))?;
    let mut second = elementwise::prepare_chain(&rest, &types, &of_results)?;
    let given: Vec<LaunchMemory> = std::iter::once(place).chain(others.iter().map(of)).collect();
    let written: Vec<LaunchMemory> =
        written.iter().map(|&index| LaunchMemory::Slot(CallRegister::Result(index))).collect();
    Renaming { operands: &given, results: &written, scratch: bytes }.apply(&mut second)?;
    first.launches.append(&mut second.launches);
    first.scratch = first.scratch.max(second.scratch);
    Ok(Some(first))
}

fn operand_of(arg: &FusedArg) -> Option<usize> {
    match *arg {
        FusedArg::Operand(operand) => Some(operand),
        FusedArg::Step(_) => None,
    }
}

/// The result of the convolution: all values of the chain have its shape, and so have those results that are no sums.
fn convolution_result(
    fused: &FusedOp,
    operands: &[Shard],
    head: usize,
    results: &[Shard],
) -> Option<Shard> {
    let types: Vec<&TensorType> = operands.iter().map(|operand| &operand.ty).collect();
    let given = fused.steps[head].op.operation().infer_dtypes(&types).ok()?;
    let sums = |step: usize| matches!(fused.steps[step].op, graphc_ir::op::Op::Reduce(_));
    let output = fused.outputs.iter().position(|&step| step < fused.steps.len() && !sums(step))?;
    let like = results.get(output)?;
    let ty = TensorType::new(*given.first()?, like.shape());
    Some(Shard { ty, global: like.global.clone() })
}

fn select_places(all: &[Shard], places: &[usize]) -> Option<Vec<Shard>> {
    places.iter().map(|&place| all.get(place).cloned()).collect()
}

/// The memory of another call that stands for the operands, results and scratch of a call.
pub(super) struct Renaming<'a> {
    pub(super) operands: &'a [LaunchMemory],
    pub(super) results: &'a [LaunchMemory],
    /// The byte at which the scratch memory begins.
    pub(super) scratch: usize,
}

impl Renaming<'_> {
    pub(super) fn apply(&self, call: &mut Call) -> Result<(), KernelError> {
        let misfit = || KernelError::bad_call("fused", "a launch of memory that the call has not");
        call.scratch += self.scratch;
        for launch in &mut call.launches {
            self.rename_launch(launch).ok_or_else(misfit)?;
        }
        Ok(())
    }

    fn rename_launch(&self, launch: &mut Launch) -> Option<()> {
        match launch {
            Launch::Kernel(Kernel { arguments, .. }) => {
                arguments.iter_mut().try_for_each(|argument| self.rename_argument(argument))
            }
            Launch::Clear { place, .. } => self.rename_place(place),
            Launch::Product(product) => self.rename_product(product),
            // Neither convolutions nor chains have such launches.
            Launch::Copy { .. } => None,
        }
    }

    /// A product without an end, as convolutions have them.
    fn rename_product(&self, product: &mut MatrixProduct) -> Option<()> {
        let Operands { a, b, out, .. } = &mut product.operands;
        [a, b, out].into_iter().try_for_each(|place| self.rename_place(place))?;
        product.instead.iter_mut().try_for_each(|launch| self.rename_launch(launch))
    }

    fn rename_argument(&self, argument: &mut Argument) -> Option<()> {
        match argument {
            Argument::Address(place) => self.rename_place(place),
            Argument::Origin(slot, _) => match self.rename_slot(*slot)? {
                LaunchMemory::Slot(other) => {
                    *slot = other;
                    Some(())
                }
                LaunchMemory::Scratch(_) => None,
            },
            Argument::Now
            | Argument::Numbers
            | Argument::Fault
            | Argument::Call
            | Argument::Constant(_) => Some(()),
            // Nor have they tables.
            Argument::Registers | Argument::Table => None,
        }
    }

    fn rename_place(&self, place: &mut LaunchMemory) -> Option<()> {
        *place = match *place {
            LaunchMemory::Slot(slot) => self.rename_slot(slot)?,
            LaunchMemory::Scratch(byte) => LaunchMemory::Scratch(self.scratch + byte),
        };
        Some(())
    }

    fn rename_slot(&self, slot: CallRegister) -> Option<LaunchMemory> {
        match slot {
            CallRegister::Operand(index) => self.operands.get(index).copied(),
            CallRegister::Result(index) => self.results.get(index).copied(),
        }
    }
}
