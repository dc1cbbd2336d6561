//! Epilogues: a chain of elementwise ops behind a convolution, evaluated on each part of its result while the cache still has it.
//!
//! The convolution computes a few images at a time, or a band of rows. It writes them where one of the chain's results will be.
//! The chain reads them there and writes over them. So no operand may share the memory of such an actor's results
//! ([`graphc_plan::in_place`]).
//!
//! The convolution's result is never in memory as a whole, so this is done only where the chain alone reads it, as in inference,
//! and sums nothing.

use graphc_ir::op::Op;
use graphc_ir::types::TensorType;
use graphc_plan::{FusedArg, FusedOp, FusedStep};

use crate::context::KernelContext;
use crate::convolution;
use crate::elementwise::Chain;
use crate::error::KernelError;
use crate::sink::ResultSink;
use crate::view::{OutputParts, View, ViewMut};

/// A convolution and the chain behind it, worked out for operands and results of some types.
#[derive(Debug)]
pub(crate) struct Headed {
    head: Op,
    /// The operands of the convolution, among those of the call.
    head_operands: Vec<usize>,
    /// The chain, whose first operand is what the convolution gives.
    chain: Chain,
    /// Its other operands, and its results, among those of the call.
    operands: Vec<usize>,
    results: Vec<usize>,
    /// The result in whose place the convolution writes.
    place: usize,
}

impl Headed {
    /// `None` where no step is a convolution.
    ///
    /// # Errors
    /// Returns an error if the types do not fit the chain.
    pub(crate) fn from_chain(
        fused: &FusedOp,
        operands: &[TensorType],
        results: &[TensorType],
    ) -> Result<Option<Self>, KernelError> {
        let begins = |step: &FusedStep| step.op.operation().begins_chain();
        let Some(at) = fused.steps.iter().position(begins) else { return Ok(None) };
        let head = &fused.steps[at];
        let unfit = |reason: &str| KernelError::bad_call(head.op.name(), reason);
        let indices = head.args.iter().map(|arg| match *arg {
            FusedArg::Operand(operand) => Some(operand),
            FusedArg::Step(_) => None,
        });
        let head_operands: Vec<usize> =
            indices.collect::<Option<_>>().ok_or_else(|| unfit("reads another step"))?;
        let types =
            select_places(operands, &head_operands).ok_or_else(|| unfit("has no operand"))?;
        let given = head.op.operation().infer_dtypes(&types.iter().collect::<Vec<_>>());
        let Ok(&[dtype]) = given.as_deref() else { return Err(unfit("operands of other types")) };
        let place =
            place_of(fused, at, |output| results.get(output).is_some_and(|r| r.dtype == dtype))
                .ok_or_else(|| unfit("no result in whose place it could be written"))?;
        let (rest, own) = drop_head(fused, at);
        let written: Vec<usize> =
            (0..fused.outputs.len()).filter(|&output| fused.outputs[output] != at).collect();
        let mut types = vec![results[place].clone()];
        types.extend(select_places(operands, &own).ok_or_else(|| unfit("has no operand"))?);
        let made = select_places(results, &written).ok_or_else(|| unfit("has no result"))?;
        let chain = Chain::of(&rest, &types, &made)?;
        if chain.sums() {
            return Err(unfit("cannot be summed while it is made"));
        }
        let head = head.op.clone();
        Ok(Some(Self { head, head_operands, chain, operands: own, results: written, place }))
    }

    /// Evaluates the convolution and its chain.
    ///
    /// # Errors
    /// Returns an error if the views are not of the types that it was worked out for.
    pub(crate) fn evaluate(
        &self,
        operands: &[View<'_>],
        results: &mut [ViewMut<'_>],
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        let missing =
            || KernelError::bad_call(self.head.name(), "operands or results of other number");
        let head = select_places(operands, &self.head_operands).ok_or_else(missing)?;
        let others = select_places(operands, &self.operands).ok_or_else(missing)?;
        // SAFETY: who is given a part of a result reads it in that part alone, between writes.
        let results: Vec<(View<'_>, OutputParts<'_>)> =
            results.iter_mut().map(|result| unsafe { result.shared_parts() }).collect();
        let &(made, parts) = results.get(self.place).ok_or_else(missing)?;
        let written = self.results.iter().map(|&index| results.get(index).map(|result| result.1));
        let written = written.collect::<Option<Vec<OutputParts<'_>>>>().ok_or_else(missing)?;
        let operands: Vec<View<'_>> = [made].into_iter().chain(others).collect();
        let chain = self.chain.following(&operands, written)?;
        let to = ResultSink::followed_by(parts, &chain);
        convolution::to_sink(&self.head, &head, (made.shape, to), cx)
    }
}

/// Returns the elements at some places; `None` if one is missing.
fn select_places<T: Clone>(all: &[T], places: &[usize]) -> Option<Vec<T>> {
    places.iter().map(|&place| all.get(place).cloned()).collect()
}

/// The result in whose place a step's value is written: its own, or one that fits.
fn place_of(fused: &FusedOp, step: usize, fits: impl Fn(usize) -> bool) -> Option<usize> {
    let own = fused.outputs.iter().position(|&output| output == step);
    own.or_else(|| (0..fused.outputs.len()).find(|&output| fits(output))).filter(|&own| fits(own))
}

/// The chain without its head, which is its first operand, and which operands of the whole the others are.
pub(crate) fn drop_head(fused: &FusedOp, head: usize) -> (FusedOp, Vec<usize>) {
    let rest = || fused.steps.iter().enumerate().filter(|&(index, _)| index != head);
    let mut operands: Vec<usize> = Vec::new();
    for arg in rest().flat_map(|(_, step)| &step.args) {
        if let FusedArg::Operand(operand) = *arg
            && !operands.contains(&operand)
        {
            operands.push(operand);
        }
    }
    let moved = |step: usize| if step > head { step - 1 } else { step };
    let arg = |arg: &FusedArg| match *arg {
        FusedArg::Step(step) if step == head => FusedArg::Operand(0),
        FusedArg::Step(step) => FusedArg::Step(moved(step)),
        FusedArg::Operand(operand) => {
            let place = operands.iter().position(|&own| own == operand);
            FusedArg::Operand(place.map_or(0, |place| place + 1))
        }
    };
    let steps = rest().map(|(_, step)| FusedStep {
        op: step.op.clone(),
        args: step.args.iter().map(arg).collect(),
    });
    let outputs = fused.outputs.iter().filter(|&&output| output != head);
    let steps = steps.collect();
    (FusedOp { steps, outputs: outputs.map(|&output| moved(output)).collect() }, operands)
}
