//! A chain worked out for evaluation: where each step reads, and where its value goes.

use graphc_ir::op::Op;
use graphc_ir::ops::Reduce;
use graphc_ir::types::{DType, TensorType};
use graphc_plan::FusedArg;

use super::StepRef;
use super::fold::StepFold;
use super::merge::{
    BoundedArithmetic, Framed, MergedStep, dangling_error, merge_steps, result_dtype,
};
use super::operand::{BroadcastPattern, long_row};
use crate::error::KernelError;

/// The place from which a step reads an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArgumentSource {
    /// A block of the operand where it lies.
    Direct(usize),
    /// A block of the long row that the operand is, where it lies.
    Row(usize),
    /// A buffer.
    Buffer(usize),
}

/// The target to which a step writes its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepPlace {
    /// A buffer.
    Buffer(usize),
    /// The result itself, which no later step reads; a buffer where [`ResultOverlap::Late`].
    Output {
        /// The result.
        output: usize,
        /// The buffer.
        buffer: usize,
    },
    /// Nowhere: it is added to the accumulators of this reduction.
    Sums(usize),
}

/// One step.
#[derive(Debug)]
pub(super) struct ChainStep {
    pub(super) op: Op,
    /// Its short arithmetic, of several steps, where it is such.
    pub(super) arithmetic: Option<BoundedArithmetic>,
    /// Its function with what is done before and behind it, where it is such.
    pub(super) framed: Option<Framed>,
    pub(super) args: Vec<ArgumentSource>,
    pub(super) place: StepPlace,
    /// The type of fewer than 32 bits to whose values the buffer is rounded before others read it.
    pub(super) round: Option<DType>,
}

/// A result that is copied out of a buffer at the end of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResultCopy {
    pub(super) output: usize,
    pub(super) buffer: usize,
    /// Whether the copy is made only where the overlap is [`ResultOverlap::Late`].
    pub(super) if_late: bool,
}

/// A chain worked out.
#[derive(Debug)]
pub(super) struct ChainProgram {
    /// The steps, in order of evaluation.
    pub(super) steps: Vec<ChainStep>,
    /// The buffer of each operand that is not read where it lies.
    pub(super) gathered: Vec<Option<usize>>,
    /// Element type of each buffer.
    pub(super) buffers: Vec<DType>,
    pub(super) copies: Vec<ResultCopy>,
    /// The operands that are read when each result is written.
    reads: Vec<OperandReads>,
    /// The reductions that it ends in.
    pub(super) folds: Vec<StepFold>,
    /// The number of their accumulators.
    pub(super) sums: usize,
}

impl ChainProgram {
    /// Works out a chain; `patterns` say how the operands broadcast to `shape`.
    pub(super) fn new(
        steps: &[StepRef<'_>],
        outputs: &[usize],
        operands: &[TensorType],
        results: &[TensorType],
        (patterns, shape): (&[BroadcastPattern], &[usize]),
    ) -> Result<Self, KernelError> {
        let (steps, outputs) = merge_steps(steps, outputs, operands)?;
        let mut builder = ChainBuilder::new(&steps, &outputs, operands, (patterns, shape))?;
        for (index, step) in steps.iter().enumerate() {
            builder.add_step(index, step, &outputs, operands)?;
        }
        let mut copies = Vec::new();
        for (output, &step) in outputs.iter().enumerate() {
            let dtype = *builder.dtypes.get(step).ok_or_else(dangling_error)?;
            if dtype != results[output].dtype {
                let reason = format!("a result of {dtype} for {}", results[output].dtype);
                return Err(KernelError::bad_call("fused", reason));
            }
            copies.extend(match builder.places[step] {
                StepPlace::Buffer(buffer) => Some(ResultCopy { output, buffer, if_late: false }),
                StepPlace::Output { buffer, .. } => {
                    Some(ResultCopy { output, buffer, if_late: true })
                }
                StepPlace::Sums(_) => None,
            });
        }
        let reads = outputs.iter().map(|&step| builder.reads(step)).collect();
        let ChainBuilder { prepared, gathered, buffers, folds, sums, .. } = builder;
        Ok(Self { steps: prepared, gathered, buffers, copies, reads, folds, sums })
    }
}

impl ChainProgram {
    /// Returns how a result overlaps the operands. `is_result` says of an operand whether it has the result's memory.
    pub(super) fn find_overlap(
        &self,
        output: usize,
        is_result: impl Fn(usize) -> bool,
    ) -> ResultOverlap {
        let OperandReads { late, first } = &self.reads[output];
        let mut met = late.iter().copied().filter(|&operand| is_result(operand));
        match (met.next(), met.next()) {
            (None, _) => ResultOverlap::Apart,
            (Some(met), None) => {
                let argument = first.iter().position(|&operand| operand == Some(met));
                argument.map_or(ResultOverlap::Late, ResultOverlap::Replaced)
            }
            _ => ResultOverlap::Late,
        }
    }
}

/// The overlap of a result with the operands that are read, where they lie, when the result is written or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResultOverlap {
    /// None of them is its memory.
    Apart,
    /// Its memory is read as this argument of the step that gives it, 0 or 1, and by nobody else: each element is replaced when it
    /// has been read.
    Replaced(usize),
    /// Its memory is read otherwise: it is written when all of a block has been.
    Late,
}

impl ResultOverlap {
    /// The argument that is replaced.
    pub(super) fn replaced_argument(self) -> Option<usize> {
        match self {
            Self::Replaced(argument) => Some(argument),
            Self::Apart | Self::Late => None,
        }
    }
}

/// The operands that are read, where they lie, when a result is written.
#[derive(Debug)]
struct OperandReads {
    /// The operands that its step reads, and those of later steps, each as often as it is read.
    late: Vec<usize>,
    /// The first two arguments of its step, where that is arithmetic, which may replace one of them.
    first: [Option<usize>; 2],
}

/// The shape of the values of all steps but reductions; `None` where results have others.
pub(super) fn common_shape(
    steps: &[StepRef<'_>],
    outputs: &[usize],
    operands: &[TensorType],
    results: &[TensorType],
) -> Option<Vec<usize>> {
    let sums = |step: usize| matches!(steps.get(step).map(|step| step.op), Some(Op::Reduce(_)));
    let mut whole = None;
    for (&step, result) in outputs.iter().zip(results) {
        let shape = match steps.get(step)?.op {
            Op::Reduce(_) => value_shape(steps, operands, *steps[step].args.first()?)?,
            _ => result.shape.clone(),
        };
        if whole.get_or_insert_with(|| shape.clone()) != &shape {
            return None;
        }
    }
    // Nothing reads what is a sum.
    let reads = |arg: &FusedArg| matches!(*arg, FusedArg::Step(step) if sums(step));
    let ends = !steps.iter().flat_map(|step| step.args).any(reads);
    (ends && outputs.len() == results.len()).then(|| whole.unwrap_or_default())
}

/// The shape to which the operands of a step's value broadcast.
fn value_shape(
    steps: &[StepRef<'_>],
    operands: &[TensorType],
    arg: FusedArg,
) -> Option<Vec<usize>> {
    let step = match arg {
        FusedArg::Operand(operand) => return Some(operands.get(operand)?.shape.clone()),
        FusedArg::Step(step) => step,
    };
    let mut whole = Vec::new();
    for &arg in steps.get(step)?.args {
        // Steps read earlier ones alone.
        if matches!(arg, FusedArg::Step(other) if other >= step) {
            return None;
        }
        let shape = value_shape(steps, operands, arg)?;
        let missing = shape.len().saturating_sub(whole.len());
        whole.splice(0..0, std::iter::repeat_n(1, missing));
        let skip = whole.len() - shape.len();
        for (extent, &own) in whole[skip..].iter_mut().zip(&shape) {
            *extent = if *extent == 1 { own } else { *extent };
        }
    }
    Some(whole)
}

struct ChainBuilder<'a> {
    patterns: &'a [BroadcastPattern],
    shape: &'a [usize],
    prepared: Vec<ChainStep>,
    folds: Vec<StepFold>,
    sums: usize,
    gathered: Vec<Option<usize>>,
    buffers: Vec<DType>,
    free: Vec<usize>,
    last_use: Vec<usize>,
    read_later: Vec<bool>,
    dtypes: Vec<DType>,
    places: Vec<StepPlace>,
}

impl<'a> ChainBuilder<'a> {
    fn new(
        steps: &[MergedStep<'_>],
        outputs: &[usize],
        operands: &[TensorType],
        (patterns, shape): (&'a [BroadcastPattern], &'a [usize]),
    ) -> Result<Self, KernelError> {
        let mut buffers = Vec::new();
        let mut gathered = Vec::with_capacity(operands.len());
        for (operand, pattern) in operands.iter().zip(patterns) {
            let in_place = *pattern == BroadcastPattern::Same || is_long_row(pattern, patterns);
            let lies_ready = in_place && kept_as(operand.dtype) == operand.dtype;
            let place = (!lies_ready).then_some(buffers.len());
            buffers.extend(place.map(|_| kept_as(operand.dtype)));
            gathered.push(place);
        }
        let mut last_use = vec![0; steps.len()];
        for (index, step) in steps.iter().enumerate() {
            for arg in &step.args {
                if let FusedArg::Step(earlier) = *arg {
                    if earlier >= index {
                        return Err(dangling_error());
                    }
                    last_use[earlier] = index;
                }
            }
        }
        let read_later = last_use.iter().map(|&last| last != 0).collect();
        for &output in outputs {
            *last_use.get_mut(output).ok_or_else(dangling_error)? = usize::MAX;
        }
        let count = steps.len();
        Ok(Self {
            patterns,
            shape,
            prepared: Vec::with_capacity(count),
            folds: Vec::new(),
            sums: 0,
            gathered,
            buffers,
            free: Vec::new(),
            last_use,
            read_later,
            dtypes: Vec::with_capacity(count),
            places: Vec::with_capacity(count),
        })
    }

    fn add_step(
        &mut self,
        index: usize,
        step: &MergedStep<'_>,
        outputs: &[usize],
        operands: &[TensorType],
    ) -> Result<(), KernelError> {
        let mut args = Vec::with_capacity(step.args.len());
        let mut dtypes = Vec::with_capacity(step.args.len());
        for arg in &step.args {
            let (source, dtype) = self.resolve_source(*arg, operands)?;
            args.push(source);
            dtypes.push(dtype);
        }
        if let Op::Reduce(op) = step.op {
            self.add_sum(op, (index, outputs), args, &dtypes)?;
            self.release(index, &step.args);
            return Ok(());
        }
        let dtype = match step.arithmetic {
            Some(_) => DType::F32,
            None => result_dtype(step.op, &dtypes)?,
        };
        let (kept, read_later) = (kept_as(dtype), self.read_later[index]);
        let buffer = self.take_buffer(kept);
        let place = match direct_output(index, outputs).filter(|_| !read_later && kept == dtype) {
            Some(output) => StepPlace::Output { output, buffer },
            None => StepPlace::Buffer(buffer),
        };
        self.release(index, &step.args);
        let round = (kept != dtype && read_later).then_some(dtype);
        self.dtypes.push(dtype);
        self.places.push(place);
        let (op, arithmetic, framed) = (step.op.clone(), step.arithmetic, step.framed);
        self.prepared.push(ChainStep { op, arithmetic, framed, args, place, round });
        Ok(())
    }

    /// The operands that a step that gives a result, and those after it, read where they lie.
    fn reads(&self, step: usize) -> OperandReads {
        let direct = |source: &ArgumentSource| match *source {
            ArgumentSource::Direct(operand) | ArgumentSource::Row(operand) => Some(operand),
            ArgumentSource::Buffer(_) => None,
        };
        let sources = self.prepared[step..].iter().flat_map(|step| &step.args);
        let ChainStep { arithmetic, args, .. } = &self.prepared[step];
        let argument = |index: usize| arithmetic.and_then(|_| direct(args.get(index)?));
        OperandReads { late: sources.filter_map(direct).collect(), first: [0, 1].map(argument) }
    }

    /// Gives back the buffers of values that no later step reads.
    fn release(&mut self, index: usize, args: &[FusedArg]) {
        for arg in args {
            if let FusedArg::Step(earlier) = *arg
                && self.last_use[earlier] == index
                && let StepPlace::Buffer(buffer) = self.places[earlier]
                && !self.free.contains(&buffer)
            {
                self.free.push(buffer);
            }
        }
    }

    /// A step that is a reduction: one of the results, which no step reads.
    fn add_sum(
        &mut self,
        op: &Reduce,
        (index, outputs): (usize, &[usize]),
        args: Vec<ArgumentSource>,
        dtypes: &[DType],
    ) -> Result<(), KernelError> {
        let unfit = || KernelError::bad_call("fused", "a reduction that no chain ends in");
        let dtype = *dtypes.first().ok_or_else(unfit)?;
        let operand = TensorType::new(dtype, self.shape);
        let output = direct_output(index, outputs).filter(|_| !self.read_later[index]);
        let axes = op.axes.iter().all(|&axis| axis < self.shape.len());
        let fold =
            output.filter(|_| axes).and_then(|output| StepFold::from_reduce(op, &operand, output));
        let mut fold = fold.ok_or_else(unfit)?;
        fold.offset = self.sums;
        self.sums += fold.width;
        let place = StepPlace::Sums(self.folds.len());
        self.folds.push(fold);
        self.dtypes.push(dtype);
        self.places.push(place);
        let (op, arithmetic, round) = (Op::Reduce(op.clone()), None, None);
        self.prepared.push(ChainStep { op, arithmetic, framed: None, args, place, round });
        Ok(())
    }

    fn resolve_source(
        &self,
        arg: FusedArg,
        operands: &[TensorType],
    ) -> Result<(ArgumentSource, DType), KernelError> {
        match arg {
            FusedArg::Operand(index) => {
                let operand = operands.get(index).ok_or_else(dangling_error)?;
                let in_place = match self.patterns[index] {
                    BroadcastPattern::Same => ArgumentSource::Direct(index),
                    _ => ArgumentSource::Row(index),
                };
                let source = self.gathered[index].map_or(in_place, ArgumentSource::Buffer);
                Ok((source, operand.dtype))
            }
            FusedArg::Step(earlier) => match self.places[earlier] {
                StepPlace::Buffer(buffer) => {
                    Ok((ArgumentSource::Buffer(buffer), self.dtypes[earlier]))
                }
                StepPlace::Output { .. } | StepPlace::Sums(_) => Err(dangling_error()),
            },
        }
    }

    fn take_buffer(&mut self, dtype: DType) -> usize {
        if let Some(at) = self.free.iter().position(|&free| self.buffers[free] == dtype) {
            return self.free.swap_remove(at);
        }
        self.buffers.push(dtype);
        self.buffers.len() - 1
    }
}

/// Whether an operand is a row that is read where it lies.
fn is_long_row(pattern: &BroadcastPattern, patterns: &[BroadcastPattern]) -> bool {
    matches!(pattern, BroadcastPattern::Row(_)) && long_row(patterns).is_some()
}

/// The only result that a step gives.
fn direct_output(index: usize, outputs: &[usize]) -> Option<usize> {
    let mut of_step = (0..outputs.len()).filter(|&output| outputs[output] == index);
    let output = of_step.next()?;
    of_step.next().is_none().then_some(output)
}

/// The type in which buffers hold elements.
fn kept_as(dtype: DType) -> DType {
    if dtype.holds_floats() { DType::F32 } else { dtype }
}
