//! Elementwise ops: one engine evaluates a chain of them block by block, so that intermediate values stay in the first-level
//! cache. A single op is a chain of one step.
//!
//! A chain is worked out once ([`Chain::of`]), for the types of its operands and results, and then evaluated as often as needed.
//! A block is a range of about a thousand consecutive elements of the result. For each block the engine finds the operands in
//! memory or gathers them into a buffer by broadcasting (`operand`). It evaluates the steps one after the other into buffers
//! (`step`), and writes the results. Short arithmetic of several steps is one loop (`merge`).
//!
//! A result may be the same memory as an operand of its shape (`program::ResultOverlap`). If the loop that gives it reads that memory
//! as its first or second argument alone, it replaces each element as soon as it is read. If a later step reads that memory, the
//! result waits in a buffer until all of the block is read.
//!
//! Elements of 16 bits are `f32` in buffers, and rounded after each step. So a chain, or a step that is computed again, has the
//! bits of single ops.
//!
//! A chain may end in sums and means of its steps' values (`fold`). Each block adds to their accumulators as it is computed. So
//! they cost no pass over memory of their own, and a value that is only summed is never written.

mod float;
mod fold;
mod integer;
mod merge;
mod operand;
mod program;
mod step;
mod values;

#[cfg(test)]
mod tests;

pub(crate) use integer::Integer;

use std::ops::Range;

use graphc_ir::float8::{E4M3, E5M2};
use graphc_ir::op::Op;
use graphc_ir::shard::split_range;
use graphc_ir::types::{DType, TensorType};
use graphc_plan::{FusedArg, FusedOp, FusedStep};
use half::{bf16, f16};

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel;
use crate::precision::{Float, narrow_float8};
use crate::view::{Flat, OutputParts, View, ViewMut, read_elements};

use operand::BroadcastPattern;
use program::{ChainProgram, ResultCopy, ResultOverlap, StepPlace};

/// Elements in a block, at most.
pub(crate) const BLOCK: usize = 1024;
/// Steps of a chain, at least, that gains when the next block's elements are asked for meanwhile: of a shorter one the processor
/// finds out by itself what is read next.
const LONG: usize = 4;

/// A chain of elementwise ops, worked out for operands and results of some types.
#[derive(Debug)]
pub(crate) struct Chain {
    program: ChainProgram,
    patterns: Vec<BroadcastPattern>,
    operands: Vec<TensorType>,
    results: Vec<TensorType>,
    /// The shape of the steps' values.
    shape: Vec<usize>,
    len: usize,
    /// Elements in a block, at most; it ends where `row` elements do, if there are long rows.
    block: usize,
    row: Option<usize>,
    /// Elements in a piece, whose sums are joined with those of others.
    piece: usize,
}

impl Chain {
    /// A chain whose operands broadcast to the shape of the results that are no sums.
    ///
    /// # Errors
    /// Returns an error if the types do not fit the chain.
    pub(crate) fn of(
        op: &FusedOp,
        operands: &[TensorType],
        results: &[TensorType],
    ) -> Result<Self, KernelError> {
        let steps: Vec<StepRef<'_>> = op.steps.iter().map(StepRef::of).collect();
        Self::new(&steps, &op.outputs, operands, results)
    }

    /// Prepares one unary, binary, where or cast.
    ///
    /// # Errors
    /// Returns an error if the types do not fit the op.
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
        let misfit = || KernelError::bad_call("fused", "results of other number or shape");
        let shape = program::common_shape(steps, outputs, operands, results).ok_or_else(misfit)?;
        let patterns = operands
            .iter()
            .map(|operand| BroadcastPattern::from_shapes(&operand.shape, &shape))
            .collect::<Result<Vec<_>, _>>()?;
        let program = ChainProgram::new(steps, outputs, operands, results, (&patterns, &shape))?;
        let row = operand::long_row(&patterns);
        let block = match row {
            Some(row) => row.div_ceil(row.div_ceil(BLOCK)),
            None if program.folds.is_empty() => operand::block_of(&patterns),
            None => fold::block_of(&program.folds),
        };
        Ok(Self {
            piece: fold::piece_of(&program.folds, row.unwrap_or(block)),
            operands: operands.to_vec(),
            results: results.to_vec(),
            len: shape.iter().product(),
            program,
            patterns,
            shape,
            block,
            row,
        })
    }

    /// Evaluates the chain.
    ///
    /// # Errors
    /// Returns an error if the views are not of the types that it was worked out for.
    pub(crate) fn evaluate(
        &self,
        operands: &[View<'_>],
        results: &mut [ViewMut<'_>],
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        self.check(operands, results)?;
        let pieces = self.len.div_ceil(self.piece);
        let parts = parallel::count_parts(cx, self.len).min(pieces.max(1));
        let (words, sums) = (self.program.buffers.len() * BLOCK, self.program.sums);
        let (buffers, partial) = cx.scratch.take_both::<i64, f32>([parts * words, pieces * sums]);
        if parts == 1 {
            let frame = Frame { chain: self, operands, outputs: Outputs::Whole(results) };
            frame.evaluate(0..self.len, buffers, partial)?;
        } else {
            let rooms = buffers.chunks_mut(words.max(1));
            let work = self.cut(operands, results, parts, (rooms, &mut *partial));
            parallel::run_parts(cx.pool, work, &|ThreadPart { frame, range, words, partial }| {
                frame.evaluate(range, words, partial)
            })?;
        }
        for fold in &self.program.folds {
            fold.join(partial, sums, self.shape.len(), operands, &mut results[fold.output])?;
        }
        Ok(())
    }

    /// The work of each thread: as many whole pieces as that of others, and their part of the results.
    fn cut<'a, 'b: 'a>(
        &'a self,
        operands: &'a [View<'a>],
        results: &'a mut [ViewMut<'b>],
        parts: usize,
        (rooms, mut partial): (impl Iterator<Item = &'a mut [i64]>, &'a mut [f32]),
    ) -> Vec<ThreadPart<'a, 'b>> {
        let meeting = |(output, result): (usize, &ViewMut<'_>)| {
            self.program.find_overlap(output, |operand| result.is_same(&operands[operand]))
        };
        let meetings: Vec<ResultOverlap> = results.iter().enumerate().map(meeting).collect();
        let mut flats: Vec<Flat<'a>> = results.iter_mut().map(ViewMut::flat).collect();
        let is_sum = |output| self.program.folds.iter().any(|fold| fold.output == output);
        let pieces = self.len.div_ceil(self.piece);
        let (mut work, mut done) = (Vec::with_capacity(parts), 0);
        for (part, words) in (1..=parts).zip(rooms) {
            let range = done * self.piece..(pieces * part / parts * self.piece).min(self.len);
            let count = |output| if is_sum(output) { 0 } else { range.len() };
            let cut = flats.into_iter().enumerate();
            let (own, rest) = cut.map(|(output, flat)| flat.split_at(count(output))).unzip();
            flats = rest;
            let sums = (pieces * part / parts - done) * self.program.sums;
            let (own_partial, others) = std::mem::take(&mut partial).split_at_mut(sums);
            (partial, done) = (others, pieces * part / parts);
            let meetings = meetings.clone();
            let outputs = Outputs::Part { flats: own, start: range.start, meetings };
            let frame = Frame { chain: self, operands, outputs };
            work.push(ThreadPart { frame, range, words, partial: own_partial });
        }
        work
    }

    fn check(&self, operands: &[View<'_>], results: &[ViewMut<'_>]) -> Result<(), KernelError> {
        let fits = self.takes(operands)
            && results.len() == self.results.len()
            && results.iter().zip(&self.results).all(|(a, b)| is_of(b, a.dtype, a.shape));
        if fits { Ok(()) } else { Err(other_types()) }
    }

    fn takes(&self, operands: &[View<'_>]) -> bool {
        operands.len() == self.operands.len()
            && operands.iter().zip(&self.operands).all(|(a, b)| is_of(b, a.dtype, a.shape))
    }

    /// Whether it ends in sums.
    pub(crate) fn sums(&self) -> bool {
        !self.program.folds.is_empty()
    }

    /// The chain for some operands, of which one is being made where a result will be.
    ///
    /// # Errors
    /// Returns an error if the operands are not of the types that it was worked out for, or there are other results.
    pub(crate) fn following<'a>(
        &'a self,
        operands: &'a [View<'a>],
        results: Vec<OutputParts<'a>>,
    ) -> Result<Following<'a>, KernelError> {
        let whole =
            |(part, ty): (&OutputParts<'_>, &TensorType)| part.is_of(ty.dtype, ty.elements());
        let fits = self.takes(operands)
            && results.len() == self.results.len()
            && results.iter().zip(&self.results).all(whole);
        if fits { Ok(Following { chain: self, operands, results }) } else { Err(other_types()) }
    }
}

/// A chain without sums behind a kernel that makes one of its operands: it is evaluated on each part as soon as that is there.
pub(crate) struct Following<'a> {
    chain: &'a Chain,
    operands: &'a [View<'a>],
    results: Vec<OutputParts<'a>>,
}

impl<'a> Following<'a> {
    /// Words of memory that [`Following::evaluate`] works in.
    pub(crate) fn words(&self) -> usize {
        self.chain.program.buffers.len() * BLOCK
    }

    /// Evaluates the elements `range`.
    ///
    /// # Safety
    /// Nobody else reaches these elements of the results meanwhile.
    pub(crate) unsafe fn evaluate(
        &self,
        range: Range<usize>,
        words: &mut [i64],
    ) -> Result<(), KernelError> {
        let program = &self.chain.program;
        let meeting = |(output, result): (usize, &OutputParts<'_>)| {
            program.find_overlap(output, |operand| result.is_same(&self.operands[operand]))
        };
        let meetings = self.results.iter().enumerate().map(meeting).collect();
        // SAFETY: as the caller says.
        let part = |result: &OutputParts<'a>| unsafe { result.part(range.clone()) };
        let flats = self.results.iter().map(part).collect();
        let outputs = Outputs::Part { flats, start: range.start, meetings };
        let frame = Frame { chain: self.chain, operands: self.operands, outputs };
        frame.evaluate(range, words, &mut [])
    }
}

fn other_types() -> KernelError {
    KernelError::bad_call("fused", "operands or results of other types")
}

fn is_of(ty: &TensorType, dtype: DType, shape: &[usize]) -> bool {
    ty.dtype == dtype && ty.shape == shape
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

/// The work of one thread.
struct ThreadPart<'a, 'b> {
    frame: Frame<'a, 'b>,
    /// The elements.
    range: Range<usize>,
    /// Memory for buffers.
    words: &'a mut [i64],
    /// The accumulators of its pieces.
    partial: &'a mut [f32],
}

/// The results that one thread writes.
enum Outputs<'a, 'b> {
    /// All of them: nothing is allocated.
    Whole(&'a mut [ViewMut<'b>]),
    /// Their elements from `start` on.
    Part { flats: Vec<Flat<'a>>, start: usize, meetings: Vec<ResultOverlap> },
}

impl Outputs<'_, '_> {
    /// Elements of a result.
    fn block(&mut self, output: usize, range: &Range<usize>) -> Flat<'_> {
        match self {
            Self::Whole(results) => results[output].flat().cut_range(range.clone()),
            Self::Part { flats, start, .. } => {
                flats[output].reborrow().cut_range(range.start - *start..range.end - *start)
            }
        }
    }

    /// Returns how the memory of a result overlaps that of the operands.
    fn meeting(
        &self,
        output: usize,
        program: &ChainProgram,
        operands: &[View<'_>],
    ) -> ResultOverlap {
        match self {
            Self::Whole(results) => {
                program.find_overlap(output, |operand| results[output].is_same(&operands[operand]))
            }
            Self::Part { meetings, .. } => meetings[output],
        }
    }
}

/// The buffers of one thread.
struct ThreadBuffers<'a> {
    words: &'a mut [i64],
    dtypes: &'a [DType],
}

impl ThreadBuffers<'_> {
    /// A buffer to be written, and all others.
    fn split(&mut self, buffer: usize) -> (Flat<'_>, Others<'_>) {
        let (before, rest) = self.words.split_at_mut(buffer * BLOCK);
        let (own, after) = rest.split_at_mut(BLOCK);
        let flat = Flat::of_words(self.dtypes[buffer], own);
        (flat, Others { before, after, dtypes: self.dtypes })
    }

    /// Returns all buffers, to be read.
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

/// The means by which one thread evaluates a part of the results.
struct Frame<'a, 'b> {
    chain: &'a Chain,
    operands: &'a [View<'a>],
    outputs: Outputs<'a, 'b>,
}

impl Frame<'_, '_> {
    /// Evaluates the elements `whole`, block by block, with the memory `words` for buffers, and leaves the sums of each piece in
    /// `partial`.
    fn evaluate(
        mut self,
        whole: Range<usize>,
        words: &mut [i64],
        partial: &mut [f32],
    ) -> Result<(), KernelError> {
        let Chain { block, piece, program, .. } = self.chain;
        let mut buffers = ThreadBuffers { words, dtypes: &program.buffers };
        self.gather(&mut buffers, whole.start..whole.end.min(whole.start + block), |pattern| {
            pattern.repeats(*block)
        })?;
        let mut sums = partial.chunks_mut(program.sums.max(1));
        for start in whole.clone().step_by(*piece) {
            let sums = sums.next().unwrap_or_default();
            sums.fill(0.0);
            let piece = start..whole.end.min(start + piece);
            self.piece(&mut buffers, (piece, whole.end), sums)?;
        }
        Ok(())
    }

    /// Evaluates a piece and adds up its sums; all that is evaluated ends at `last`.
    fn piece(
        &mut self,
        buffers: &mut ThreadBuffers<'_>,
        (piece, last): (Range<usize>, usize),
        sums: &mut [f32],
    ) -> Result<(), KernelError> {
        let mut start = piece.start;
        while start < piece.end {
            let row = self.chain.row.map_or(usize::MAX, |row| (start / row + 1) * row);
            let end = piece.end.min(start + self.chain.block).min(row);
            self.gather(buffers, start..end, |pattern| !pattern.repeats(self.chain.block))?;
            let next = end..last.min(end + self.chain.block);
            self.block(buffers, (start..end, next), sums)?;
            start = end;
        }
        Ok(())
    }

    /// Gathers the operands of some patterns into their buffers.
    fn gather(
        &self,
        buffers: &mut ThreadBuffers<'_>,
        range: Range<usize>,
        which: impl Fn(&BroadcastPattern) -> bool,
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

    fn meeting(&self, output: usize) -> ResultOverlap {
        self.outputs.meeting(output, &self.chain.program, self.operands)
    }

    /// Asks for a share of what a block reads.
    fn ask(&self, block: &Range<usize>, share: usize, shares: usize) {
        let part = split_range(block.len(), shares, share);
        let part = block.start + part.start..block.start + part.end;
        for (operand, pattern) in self.operands.iter().zip(&self.chain.patterns) {
            if *pattern == BroadcastPattern::Same {
                operand.prefetch_range(part.clone());
            }
        }
    }

    /// Evaluates one block. What the next one reads comes nearer meanwhile, a share at each step.
    fn block(
        &mut self,
        buffers: &mut ThreadBuffers<'_>,
        (range, next): (Range<usize>, Range<usize>),
        sums: &mut [f32],
    ) -> Result<(), KernelError> {
        let ChainProgram { steps, copies, folds, .. } = &self.chain.program;
        for (index, step) in steps.iter().enumerate() {
            if steps.len() >= LONG {
                self.ask(&next, index, steps.len());
            }
            let buffer = match step.place {
                StepPlace::Sums(fold) => {
                    let x = step::read_summed(step, self.operands, &range, &buffers.all())?;
                    folds[fold].add(range.start, x, sums);
                    continue;
                }
                StepPlace::Output { output, buffer } => match self.meeting(output) {
                    ResultOverlap::Late => buffer,
                    meeting => {
                        let (to, others) = (self.outputs.block(output, &range), buffers.all());
                        step::evaluate_step(
                            step,
                            meeting.replaced_argument(),
                            self.operands,
                            &range,
                            &others,
                            to,
                        )?;
                        continue;
                    }
                },
                StepPlace::Buffer(buffer) => buffer,
            };
            let (own, others) = buffers.split(buffer);
            let own = own.cut_range(0..range.len());
            step::evaluate_step(step, None, self.operands, &range, &others, own)?;
        }
        for copy in copies {
            if !copy.if_late || self.meeting(copy.output) == ResultOverlap::Late {
                self.copy(copy, &buffers.all(), &range)?;
            }
        }
        Ok(())
    }

    /// Writes a block of a result out of its buffer.
    fn copy(
        &mut self,
        copy: &ResultCopy,
        buffers: &Others<'_>,
        range: &Range<usize>,
    ) -> Result<(), KernelError> {
        let (words, count) = (buffers.words(copy.buffer), range.len());
        let mut to = self.outputs.block(copy.output, range);
        match to.dtype() {
            DType::F32 => to.write::<f32>(0, read_elements(words, count))?,
            DType::F16 => f16::narrow(read_elements(words, count), to.block(0..count)?),
            DType::BF16 => bf16::narrow(read_elements(words, count), to.block(0..count)?),
            DType::I64 => to.write::<i64>(0, read_elements(words, count))?,
            DType::I32 => to.write::<i32>(0, read_elements(words, count))?,
            DType::U8 | DType::Bool => to.write::<u8>(0, read_elements(words, count))?,
            DType::F8E4M3 => narrow_float8(E4M3, read_elements(words, count), to.block(0..count)?),
            DType::F8E5M2 => narrow_float8(E5M2, read_elements(words, count), to.block(0..count)?),
        }
        Ok(())
    }
}
