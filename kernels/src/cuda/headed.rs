//! A convolution and the chain of elementwise ops behind it, as launches one after the other.
//!
//! If the convolution is no result of its own, its elements lie in the memory to work in.

use graphc_ir::plan::{FusedArg, FusedOp, FusedStep};
use graphc_ir::types::TensorType;

use super::call::{Argument, Call, Kernel, Launch, Operands, Place, Product, Slot};
use super::convolution::{aligned, convolution};
use super::names::named;
use super::{Shard, elementwise};
use crate::epilogue::without;
use crate::error::KernelError;

/// The call of the chain; `None` where no step is a convolution.
pub(super) fn headed(
    fused: &FusedOp,
    operands: &[Shard],
    results: &[Shard],
) -> Result<Option<Call>, KernelError> {
    let begins = |step: &FusedStep| step.op.operation().begins_chain();
    let Some(at) = fused.steps.iter().position(begins) else { return Ok(None) };
    let head = &fused.steps[at];
    let misfit = |reason: &str| KernelError::call(head.op.name(), reason);
    let indices: Option<Vec<usize>> = head.args.iter().map(operand_of).collect();
    let indices = indices.ok_or_else(|| misfit("reads another step"))?;
    let own = chosen(operands, &indices).ok_or_else(|| misfit("has no operand"))?;
    let made = made(fused, &own, at, results).ok_or_else(|| misfit("no result has its shape"))?;
    let first = convolution(&head.op, &own, std::slice::from_ref(&made))?;
    let mut first = named(first, &head.op, &own);
    let bytes = aligned(made.elements() * made.dtype().size());
    let place = match fused.outputs.iter().position(|&output| output == at) {
        Some(output) => Place::Slot(Slot::Result(output)),
        None => Place::Scratch(0),
    };
    let of = |&index: &usize| Place::Slot(Slot::Operand(index));
    let given: Vec<Place> = indices.iter().map(of).collect();
    Renaming { operands: &given, results: &[place], scratch: bytes }.apply(&mut first)?;
    let (rest, others) = without(fused, at);
    let written: Vec<usize> =
        (0..fused.outputs.len()).filter(|&output| fused.outputs[output] != at).collect();
    let mut types = vec![made];
    types.extend(chosen(operands, &others).ok_or_else(|| misfit("has no operand"))?);
    let of_results = chosen(results, &written).ok_or_else(|| misfit("has no result"))?;
    let mut second = elementwise::chain(&rest, &types, &of_results)?;
    let given: Vec<Place> = std::iter::once(place).chain(others.iter().map(of)).collect();
    let written: Vec<Place> =
        written.iter().map(|&index| Place::Slot(Slot::Result(index))).collect();
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
fn made(fused: &FusedOp, operands: &[Shard], head: usize, results: &[Shard]) -> Option<Shard> {
    let types: Vec<&TensorType> = operands.iter().map(|operand| &operand.ty).collect();
    let given = fused.steps[head].op.operation().dtypes(&types).ok()?;
    let sums = |step: usize| matches!(fused.steps[step].op, graphc_ir::op::Op::Reduce(_));
    let output = fused.outputs.iter().position(|&step| step < fused.steps.len() && !sums(step))?;
    let like = results.get(output)?;
    let ty = TensorType::new(*given.first()?, like.shape());
    Some(Shard { ty, global: like.global.clone() })
}

fn chosen(all: &[Shard], places: &[usize]) -> Option<Vec<Shard>> {
    places.iter().map(|&place| all.get(place).cloned()).collect()
}

/// Where the memory of a call is in another one's.
pub(super) struct Renaming<'a> {
    pub(super) operands: &'a [Place],
    pub(super) results: &'a [Place],
    /// Where the memory to work in begins.
    pub(super) scratch: usize,
}

impl Renaming<'_> {
    pub(super) fn apply(&self, call: &mut Call) -> Result<(), KernelError> {
        let misfit = || KernelError::call("fused", "a launch of memory that the call has not");
        call.scratch += self.scratch;
        for launch in &mut call.launches {
            self.launch(launch).ok_or_else(misfit)?;
        }
        Ok(())
    }

    fn launch(&self, launch: &mut Launch) -> Option<()> {
        match launch {
            Launch::Kernel(Kernel { arguments, .. }) => {
                arguments.iter_mut().try_for_each(|argument| self.argument(argument))
            }
            Launch::Clear { place, .. } => self.place(place),
            Launch::Product(product) => self.product(product),
            // Neither convolutions nor chains have such launches.
            Launch::Copy { .. } => None,
        }
    }

    /// A product without an end, as convolutions have them.
    fn product(&self, product: &mut Product) -> Option<()> {
        let Operands { a, b, out, .. } = &mut product.operands;
        [a, b, out].into_iter().try_for_each(|place| self.place(place))?;
        product.instead.iter_mut().try_for_each(|launch| self.launch(launch))
    }

    fn argument(&self, argument: &mut Argument) -> Option<()> {
        match argument {
            Argument::Address(place) => self.place(place),
            Argument::Origin(slot, _) => match self.slot(*slot)? {
                Place::Slot(other) => {
                    *slot = other;
                    Some(())
                }
                Place::Scratch(_) => None,
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

    fn place(&self, place: &mut Place) -> Option<()> {
        *place = match *place {
            Place::Slot(slot) => self.slot(slot)?,
            Place::Scratch(byte) => Place::Scratch(self.scratch + byte),
        };
        Some(())
    }

    fn slot(&self, slot: Slot) -> Option<Place> {
        match slot {
            Slot::Operand(index) => self.operands.get(index).copied(),
            Slot::Result(index) => self.results.get(index).copied(),
        }
    }
}
