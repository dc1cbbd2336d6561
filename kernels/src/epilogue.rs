//! Epilogues: a chain of elementwise ops behind a convolution, evaluated on each part of its result while the cache still has it.
//!
//! The convolution computes a few images at a time, or a band of rows. It writes them where one of the chain's results will be.
//! The chain reads them there and writes over them. So no operand may share the memory of such an actor's results
//! ([`graphc_ir::in_place`]).
//!
//! The convolution's result is never in memory as a whole, so this is done only where the chain alone reads it, as in inference,
//! and sums nothing.

use std::ops::Range;

use graphc_ir::op::Op;
use graphc_ir::plan::{FusedArg, FusedOp, FusedStep};
use graphc_ir::shard::split_range;
use graphc_ir::types::TensorType;

use crate::context::KernelContext;
use crate::convolution;
use crate::elementwise::{Chain, Following};
use crate::error::KernelError;
use crate::parallel::{self, with_rooms};
use crate::threads::ThreadPool;
use crate::view::{Element, OutputParts, View, ViewMut};

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
        let to = ResultSink { parts, chain: Some(&chain) };
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

/// A kernel's result, which is written part by part, and the chain of ops that follows each part when it has been written.
#[derive(Clone, Copy)]
pub(crate) struct ResultSink<'a> {
    parts: OutputParts<'a>,
    chain: Option<&'a Following<'a>>,
}

impl<'a> ResultSink<'a> {
    /// A result that nothing follows.
    pub(crate) fn from_parts(parts: OutputParts<'a>) -> Self {
        Self { parts, chain: None }
    }

    /// Returns the same result without the chain that follows.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn without_followers(self) -> Self {
        Self { chain: None, ..self }
    }

    /// Whether something is done with its parts.
    pub(crate) fn is_followed(&self) -> bool {
        self.chain.is_some()
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// The address of the first element.
    ///
    /// # Errors
    /// Returns an error if the element type is another.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn ptr<T: Element>(&self) -> Result<*mut T, KernelError> {
        self.parts.ptr()
    }

    /// Elements to be written.
    ///
    /// # Safety
    /// Nobody else reaches them while they are borrowed.
    pub(crate) unsafe fn part<T: Element>(
        &self,
        range: Range<usize>,
    ) -> Result<&'a mut [T], KernelError> {
        // SAFETY: as the caller says.
        unsafe { self.parts.part(range) }.into_slice()
    }

    /// Returns the number of words of memory that [`ResultSink::follow_part`] works in.
    pub(crate) fn scratch_words(&self) -> usize {
        self.chain.map_or(0, Following::words)
    }

    /// Does with a part, which is there, what is to be done.
    ///
    /// # Safety
    /// Applies the chain to a part of the result that has been written.
    pub(crate) unsafe fn follow_part(
        &self,
        range: Range<usize>,
        words: &mut [i64],
    ) -> Result<(), KernelError> {
        // SAFETY: as the caller says.
        self.chain.map_or(Ok(()), |chain| unsafe { chain.evaluate(range, words) })
    }

    /// Applies the chain to all elements, when they have all been written.
    pub(crate) fn finish(self, cx: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let parts = parallel::count_parts(cx, self.len());
        self.finish_in((cx.pool, parts), cx.scratch.take::<i64>(parts * self.scratch_words()))
    }

    /// Like [`ResultSink::finish`], on `parts` threads. `words` holds [`ResultSink::scratch_words`] for each of them.
    pub(crate) fn finish_in(
        self,
        (pool, parts): (Option<&ThreadPool>, usize),
        words: &mut [i64],
    ) -> Result<(), KernelError> {
        if !self.is_followed() {
            return Ok(());
        }
        let ranges = (0..parts).map(|part| split_range(self.len(), parts, part));
        let pieces = with_rooms(ranges, words, self.scratch_words());
        // SAFETY: the ranges do not overlap, and who wrote the elements is done.
        parallel::run_parts(pool, pieces, &|(range, words)| unsafe {
            self.follow_part(range, words)
        })
    }
}
