//! Elementwise ops: one engine evaluates a chain of them block by block, so that intermediate values stay in the
//! first-level cache. A single op is a chain of one step.
//!
//! A block is a range of about a thousand consecutive elements of the result. For each block: operands are found in
//! memory or gathered by broadcasting into a buffer (`operand`), steps are evaluated one after the other into
//! buffers (`step`), and the results are written. All of a block's operands are read before its results are written,
//! so a result may be the same memory as an operand of its shape.

mod float;
mod integer;
mod operand;
mod program;
mod step;

pub(crate) use integer::Integer;

use std::ops::Range;

use graphc_ir::op::Op;
use graphc_ir::plan::{FusedArg, FusedOp, FusedStep};

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel;
use crate::view::{Flat, View, ViewMut};

use operand::Pattern;
use program::{Place, Program};

/// Elements in a block, at most.
pub(crate) const BLOCK: usize = 1024;

/// Evaluates a chain of elementwise ops; operands broadcast to the shape of the results.
///
/// # Errors
/// Where the views do not fit the chain.
pub fn fused(
    op: &FusedOp,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let steps: Vec<StepRef<'_>> = op.steps.iter().map(StepRef::of).collect();
    run(&steps, &op.outputs, operands, results, cx)
}

/// The kernel of unary, binary, where and cast.
pub(crate) fn single(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    const ARGS: [FusedArg; 3] = [FusedArg::Operand(0), FusedArg::Operand(1), FusedArg::Operand(2)];
    let args = ARGS.get(..operands.len()).ok_or_else(|| too_many(op))?;
    run(&[StepRef { op, args }], &[0], operands, results, cx)
}

fn too_many(op: &Op) -> KernelError {
    KernelError::call(op.name(), "more than three operands")
}

/// A step by reference.
#[derive(Clone, Copy)]
pub(crate) struct StepRef<'a> {
    op: &'a Op,
    args: &'a [FusedArg],
}

impl<'a> StepRef<'a> {
    fn of(step: &'a FusedStep) -> Self {
        Self { op: &step.op, args: &step.args }
    }
}

fn run(
    steps: &[StepRef<'_>],
    outputs: &[usize],
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let shape = results.first().map_or(&[][..], |result| result.shape);
    if outputs.len() != results.len() || results.iter().any(|result| result.shape != shape) {
        return Err(KernelError::call("fused", "results of other number or shape"));
    }
    let patterns = operands
        .iter()
        .map(|operand| Pattern::of(operand.shape, shape))
        .collect::<Result<Vec<_>, _>>()?;
    let program = Program::new(steps, outputs, operands, results, &patterns)?;
    let len: usize = shape.iter().product();
    let block = operand::block_of(&patterns);
    let parts = parallel::parts(cx, len);
    let words = program.buffers.len() * BLOCK;
    let mut buffers = cx.scratch.take::<i64>(parts * words);
    let mut flats: Vec<Flat<'_>> = results.iter_mut().map(ViewMut::flat).collect();
    let mut pieces = Vec::with_capacity(parts);
    let mut start = 0;
    for part in 1..=parts {
        let end = (len.div_ceil(block) * part / parts * block).min(len);
        let (own, rest) = std::mem::take(&mut buffers).split_at_mut(words);
        buffers = rest;
        let (heads, tails) = flats.into_iter().map(|flat| flat.split_at(end - start)).unzip();
        flats = tails;
        let frame = Frame { program: &program, operands, patterns: &patterns, outputs: heads };
        pieces.push((frame, start..end, own));
        start = end;
    }
    parallel::run(cx.pool, pieces, |(frame, range, words)| frame.evaluate(range, block, words))
}

/// What one thread evaluates a part of the result with.
struct Frame<'a> {
    program: &'a Program<'a>,
    operands: &'a [View<'a>],
    patterns: &'a [Pattern],
    outputs: Vec<Flat<'a>>,
}

impl Frame<'_> {
    /// Evaluates the elements `whole`, block by block, with the memory `words` for buffers.
    fn evaluate(
        mut self,
        whole: Range<usize>,
        block: usize,
        words: &mut [i64],
    ) -> Result<(), KernelError> {
        let dtypes = self.program.buffers.iter();
        let chunks = words.chunks_exact_mut(BLOCK);
        let mut buffers: Vec<Flat<'_>> =
            dtypes.zip(chunks).map(|(&dtype, words)| Flat::of_words(dtype, words)).collect();
        self.gather(&mut buffers, whole.start..whole.end.min(whole.start + block), |pattern| {
            pattern.repeats(block)
        })?;
        for start in whole.clone().step_by(block) {
            let range = start..whole.end.min(start + block);
            self.gather(&mut buffers, range.clone(), |pattern| !pattern.repeats(block))?;
            self.block(&mut buffers, range, start - whole.start)?;
        }
        Ok(())
    }

    /// Gathers the operands of some patterns into their buffers.
    fn gather(
        &self,
        buffers: &mut [Flat<'_>],
        range: Range<usize>,
        which: impl Fn(&Pattern) -> bool,
    ) -> Result<(), KernelError> {
        for (index, pattern) in self.patterns.iter().enumerate() {
            if let Some(place) = self.program.gathered[index]
                && which(pattern)
            {
                pattern.gather(&self.operands[index], range.clone(), &mut buffers[place])?;
            }
        }
        Ok(())
    }

    /// Evaluates one block: elements `range`, which are those from `done` on in this part's outputs.
    fn block(
        &mut self,
        buffers: &mut [Flat<'_>],
        range: Range<usize>,
        done: usize,
    ) -> Result<(), KernelError> {
        let count = range.len();
        for step in &self.program.steps {
            match step.place {
                Place::Buffer(place) => {
                    let mut own = std::mem::take(&mut buffers[place]);
                    let result =
                        step::apply(step, self.operands, &range, buffers, &mut own, 0..count);
                    buffers[place] = own;
                    result?;
                }
                Place::Output(output) => {
                    let to = &mut self.outputs[output];
                    step::apply(step, self.operands, &range, buffers, to, done..done + count)?;
                }
            }
        }
        for &(output, place) in &self.program.copies {
            self.outputs[output].copy_from(done, &buffers[place], count)?;
        }
        Ok(())
    }
}
