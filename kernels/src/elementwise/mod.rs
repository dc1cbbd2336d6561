//! Elementwise ops: one engine evaluates a chain of them block by block, so that intermediate values stay in the
//! first-level cache. A single op is a chain of one step.
//!
//! A chain is worked out once ([`Chain::of`]), for the types of its operands and results, and then evaluated as often as
//! needed. A block is a range of about a thousand consecutive elements of the result. For each block: operands are found in
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
use graphc_ir::types::{DType, TensorType};
use half::{bf16, f16};

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel;
use crate::precision::Float;
use crate::view::{Flat, View, ViewMut, elements};

use operand::Pattern;
use program::{Copy, Place, Program};

/// Elements in a block, at most.
pub(crate) const BLOCK: usize = 1024;

/// A chain of elementwise ops, worked out for operands and results of some types.
#[derive(Debug)]
pub(crate) struct Chain {
    program: Program,
    patterns: Vec<Pattern>,
    operands: Vec<TensorType>,
    results: Vec<TensorType>,
    len: usize,
    block: usize,
}

impl Chain {
    /// A chain whose operands broadcast to the shape of the results.
    ///
    /// # Errors
    /// Where the types do not fit the chain.
    pub(crate) fn of(
        op: &FusedOp,
        operands: &[TensorType],
        results: &[TensorType],
    ) -> Result<Self, KernelError> {
        let steps: Vec<StepRef<'_>> = op.steps.iter().map(StepRef::of).collect();
        Self::new(&steps, &op.outputs, operands, results)
    }

    /// One unary, binary, where or cast.
    ///
    /// # Errors
    /// Where the types do not fit the op.
    pub(crate) fn single(
        op: &Op,
        operands: &[TensorType],
        results: &[TensorType],
    ) -> Result<Self, KernelError> {
        let args: Vec<FusedArg> = (0..operands.len()).map(FusedArg::Operand).collect();
        Self::new(&[StepRef { op, args: &args }], &[0], operands, results)
    }

    fn new(
        steps: &[StepRef<'_>],
        outputs: &[usize],
        operands: &[TensorType],
        results: &[TensorType],
    ) -> Result<Self, KernelError> {
        let shape = results.first().map_or(&[][..], |result| &result.shape);
        if outputs.len() != results.len() || results.iter().any(|result| result.shape != shape) {
            return Err(KernelError::call("fused", "results of other number or shape"));
        }
        let patterns = operands
            .iter()
            .map(|operand| Pattern::of(&operand.shape, shape))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            program: Program::new(steps, outputs, operands, results, &patterns)?,
            operands: operands.to_vec(),
            results: results.to_vec(),
            len: shape.iter().product(),
            block: operand::block_of(&patterns),
            patterns,
        })
    }

    /// Evaluates the chain.
    ///
    /// # Errors
    /// Where the views are not of the types that it was worked out for.
    pub(crate) fn evaluate(
        &self,
        operands: &[View<'_>],
        results: &mut [ViewMut<'_>],
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        self.check(operands, results)?;
        let parts = parallel::parts(cx, self.len);
        let words = self.program.buffers.len() * BLOCK;
        let buffers = cx.scratch.take::<i64>(parts * words);
        if parts == 1 {
            let frame = Frame { chain: self, operands, outputs: Outputs::Whole(results) };
            return frame.evaluate(0..self.len, buffers);
        }
        let whole = &mut *buffers;
        let shared: Vec<bool> = results.iter().map(|result| is_operand(result, operands)).collect();
        let mut flats: Vec<Flat<'_>> = results.iter_mut().map(ViewMut::flat).collect();
        let mut pieces = Vec::with_capacity(parts);
        let mut start = 0;
        for (part, own) in (1..=parts).zip(whole.chunks_mut(words.max(1))) {
            let end = (self.len.div_ceil(self.block) * part / parts * self.block).min(self.len);
            let (flats_of_part, tails) =
                flats.into_iter().map(|flat| flat.split_at(end - start)).unzip();
            flats = tails;
            let outputs = Outputs::Part { flats: flats_of_part, start, shared: &shared };
            pieces.push((Frame { chain: self, operands, outputs }, start..end, own));
            start = end;
        }
        parallel::run(cx.pool, pieces, |(frame, range, words)| frame.evaluate(range, words))
    }

    fn check(&self, operands: &[View<'_>], results: &[ViewMut<'_>]) -> Result<(), KernelError> {
        let fits = operands.len() == self.operands.len()
            && results.len() == self.results.len()
            && operands.iter().zip(&self.operands).all(|(a, b)| is_of(b, a.dtype, a.shape))
            && results.iter().zip(&self.results).all(|(a, b)| is_of(b, a.dtype, a.shape));
        match fits {
            true => Ok(()),
            false => Err(KernelError::call("fused", "operands or results of other types")),
        }
    }
}

fn is_of(ty: &TensorType, dtype: DType, shape: &[usize]) -> bool {
    ty.dtype == dtype && ty.shape == shape
}

/// Whether a result is an operand's memory.
fn is_operand(result: &ViewMut<'_>, operands: &[View<'_>]) -> bool {
    operands.iter().any(|operand| result.is_same(operand))
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

/// The results that one thread writes.
enum Outputs<'a, 'b> {
    /// All of them: nothing is allocated.
    Whole(&'a mut [ViewMut<'b>]),
    /// Their elements from `start` on.
    Part { flats: Vec<Flat<'a>>, start: usize, shared: &'a [bool] },
}

impl Outputs<'_, '_> {
    /// Elements of a result.
    fn block(&mut self, output: usize, range: &Range<usize>) -> Flat<'_> {
        match self {
            Self::Whole(results) => results[output].flat().within(range.clone()),
            Self::Part { flats, start, .. } => {
                flats[output].again().within(range.start - *start..range.end - *start)
            }
        }
    }

    /// Whether a result is an operand's memory, so that it is written when all of a block is read.
    fn shared(&self, output: usize, operands: &[View<'_>]) -> bool {
        match self {
            Self::Whole(results) => is_operand(&results[output], operands),
            Self::Part { shared, .. } => shared[output],
        }
    }
}

/// The buffers of one thread.
struct Buffers<'a> {
    words: &'a mut [i64],
    dtypes: &'a [DType],
}

impl Buffers<'_> {
    /// A buffer to be written, and all others.
    fn split(&mut self, buffer: usize) -> (Flat<'_>, Others<'_>) {
        let (before, rest) = self.words.split_at_mut(buffer * BLOCK);
        let (own, after) = rest.split_at_mut(BLOCK);
        let flat = Flat::of_words(self.dtypes[buffer], own);
        (flat, Others { before, after, dtypes: self.dtypes })
    }

    /// All buffers, to be read.
    fn all(&self) -> Others<'_> {
        Others { before: self.words, after: &[], dtypes: self.dtypes }
    }
}

/// Buffers that are read while another one is written.
struct Others<'a> {
    before: &'a [i64],
    after: &'a [i64],
    dtypes: &'a [DType],
}

impl<'a> Others<'a> {
    fn words(&self, buffer: usize) -> &'a [i64] {
        match self.before.get(buffer * BLOCK..(buffer + 1) * BLOCK) {
            Some(words) => words,
            None => &self.after[buffer * BLOCK - self.before.len() - BLOCK..][..BLOCK],
        }
    }
}

/// What one thread evaluates a part of the results with.
struct Frame<'a, 'b> {
    chain: &'a Chain,
    operands: &'a [View<'a>],
    outputs: Outputs<'a, 'b>,
}

impl Frame<'_, '_> {
    /// Evaluates the elements `whole`, block by block, with the memory `words` for buffers.
    fn evaluate(mut self, whole: Range<usize>, words: &mut [i64]) -> Result<(), KernelError> {
        let block = self.chain.block;
        let mut buffers = Buffers { words, dtypes: &self.chain.program.buffers };
        self.gather(&mut buffers, whole.start..whole.end.min(whole.start + block), |pattern| {
            pattern.repeats(block)
        })?;
        for start in whole.clone().step_by(block) {
            let range = start..whole.end.min(start + block);
            self.gather(&mut buffers, range.clone(), |pattern| !pattern.repeats(block))?;
            self.block(&mut buffers, range)?;
        }
        Ok(())
    }

    /// Gathers the operands of some patterns into their buffers.
    fn gather(
        &self,
        buffers: &mut Buffers<'_>,
        range: Range<usize>,
        which: impl Fn(&Pattern) -> bool,
    ) -> Result<(), KernelError> {
        for (index, pattern) in self.chain.patterns.iter().enumerate() {
            if let Some(place) = self.chain.program.gathered[index]
                && which(pattern)
            {
                let (mut buffer, _) = buffers.split(place);
                pattern.gather(&self.operands[index], range.clone(), &mut buffer)?;
            }
        }
        Ok(())
    }

    /// Evaluates one block.
    fn block(&mut self, buffers: &mut Buffers<'_>, range: Range<usize>) -> Result<(), KernelError> {
        let Program { steps, copies, .. } = &self.chain.program;
        for step in steps {
            match step.place {
                Place::Output { output, .. } if !self.outputs.shared(output, self.operands) => {
                    let to = self.outputs.block(output, &range);
                    step::apply(step, self.operands, &range, &buffers.all(), to)?;
                }
                Place::Output { buffer, .. } | Place::Buffer(buffer) => {
                    let (own, others) = buffers.split(buffer);
                    let own = own.within(0..range.len());
                    step::apply(step, self.operands, &range, &others, own)?;
                }
            }
        }
        for copy in copies {
            if !copy.if_shared || self.outputs.shared(copy.output, self.operands) {
                self.copy(copy, &buffers.all(), &range)?;
            }
        }
        Ok(())
    }

    /// Writes a block of a result out of its buffer.
    fn copy(
        &mut self,
        copy: &Copy,
        buffers: &Others<'_>,
        range: &Range<usize>,
    ) -> Result<(), KernelError> {
        let (words, count) = (buffers.words(copy.buffer), range.len());
        let mut to = self.outputs.block(copy.output, range);
        match to.dtype() {
            DType::F32 => to.write::<f32>(0, elements(words, count))?,
            DType::F16 => f16::narrow(elements(words, count), to.block(0..count)?),
            DType::BF16 => bf16::narrow(elements(words, count), to.block(0..count)?),
            DType::I64 => to.write::<i64>(0, elements(words, count))?,
            DType::I32 => to.write::<i32>(0, elements(words, count))?,
            DType::U8 | DType::Bool => to.write::<u8>(0, elements(words, count))?,
        }
        Ok(())
    }
}
