//! A chain prepared for evaluation: where each step's value goes, and from where it reads.

use graphc_ir::op::Op;
use graphc_ir::plan::FusedArg;
use graphc_ir::types::{DType, TensorType};

use super::StepRef;
use super::operand::Pattern;
use crate::error::KernelError;
use crate::view::{View, ViewMut};

/// From where a step reads an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A block of the operand where it lies.
    Direct(usize),
    /// A buffer.
    Buffer(usize),
}

/// Where a step writes its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A buffer.
    Buffer(usize),
    /// The result itself, which is no operand's memory and is read by no later step.
    Output(usize),
}

/// One step.
pub(super) struct Step<'a> {
    pub(super) op: &'a Op,
    pub(super) args: Vec<Source>,
    pub(super) place: Place,
}

/// A prepared chain.
pub(super) struct Program<'a> {
    /// In order of evaluation.
    pub(super) steps: Vec<Step<'a>>,
    /// The buffer of each operand that is not read where it lies.
    pub(super) gathered: Vec<Option<usize>>,
    /// Element type of each buffer.
    pub(super) buffers: Vec<DType>,
    /// Results (output, buffer) copied at the end of a block.
    pub(super) copies: Vec<(usize, usize)>,
}

impl<'a> Program<'a> {
    /// Prepares a chain; `patterns` say how the operands broadcast.
    pub(super) fn new(
        steps: &[StepRef<'a>],
        outputs: &[usize],
        operands: &[View<'_>],
        results: &[ViewMut<'_>],
        patterns: &[Pattern],
    ) -> Result<Self, KernelError> {
        let mut builder = Builder::new(steps, outputs, operands, patterns)?;
        for (index, step) in steps.iter().enumerate() {
            builder.step(index, step, outputs, operands, results)?;
        }
        let mut copies = Vec::new();
        for (output, &step) in outputs.iter().enumerate() {
            let dtype = *builder.dtypes.get(step).ok_or_else(dangling)?;
            if dtype != results[output].dtype {
                let reason = format!("a result of {dtype} for {}", results[output].dtype);
                return Err(KernelError::call("fused", reason));
            }
            if let Place::Buffer(place) = builder.places[step] {
                copies.push((output, place));
            }
        }
        let Builder { prepared, gathered, buffers, .. } = builder;
        Ok(Self { steps: prepared, gathered, buffers, copies })
    }
}

struct Builder<'a> {
    prepared: Vec<Step<'a>>,
    gathered: Vec<Option<usize>>,
    buffers: Vec<DType>,
    free: Vec<usize>,
    last_use: Vec<usize>,
    read_later: Vec<bool>,
    dtypes: Vec<DType>,
    places: Vec<Place>,
}

impl<'a> Builder<'a> {
    fn new(
        steps: &[StepRef<'a>],
        outputs: &[usize],
        operands: &[View<'_>],
        patterns: &[Pattern],
    ) -> Result<Self, KernelError> {
        let mut buffers = Vec::new();
        let mut gathered = Vec::with_capacity(operands.len());
        for (operand, pattern) in operands.iter().zip(patterns) {
            let place = (*pattern != Pattern::Same).then_some(buffers.len());
            buffers.extend(place.map(|_| operand.dtype));
            gathered.push(place);
        }
        let mut last_use = vec![0; steps.len()];
        for (index, step) in steps.iter().enumerate() {
            for arg in step.args {
                if let FusedArg::Step(earlier) = *arg {
                    if earlier >= index {
                        return Err(dangling());
                    }
                    last_use[earlier] = index;
                }
            }
        }
        let read_later = last_use.iter().map(|&last| last != 0).collect();
        for &output in outputs {
            *last_use.get_mut(output).ok_or_else(dangling)? = usize::MAX;
        }
        let count = steps.len();
        Ok(Self {
            prepared: Vec::with_capacity(count),
            gathered,
            buffers,
            free: Vec::new(),
            last_use,
            read_later,
            dtypes: Vec::with_capacity(count),
            places: Vec::with_capacity(count),
        })
    }

    fn step(
        &mut self,
        index: usize,
        step: &StepRef<'a>,
        outputs: &[usize],
        operands: &[View<'_>],
        results: &[ViewMut<'_>],
    ) -> Result<(), KernelError> {
        let mut args = Vec::with_capacity(step.args.len());
        let mut dtypes = Vec::with_capacity(step.args.len());
        for arg in step.args {
            let (source, dtype) = self.source(*arg, operands)?;
            args.push(source);
            dtypes.push(dtype);
        }
        let dtype = result_dtype(step.op, &dtypes)?;
        let direct = direct_output(index, self.read_later[index], outputs, operands, results);
        let place = match direct {
            Some(output) if results[output].dtype == dtype => Place::Output(output),
            _ => Place::Buffer(self.buffer(dtype)),
        };
        for arg in step.args {
            if let FusedArg::Step(earlier) = *arg
                && self.last_use[earlier] == index
                && let Place::Buffer(buffer) = self.places[earlier]
                && !self.free.contains(&buffer)
            {
                self.free.push(buffer);
            }
        }
        self.dtypes.push(dtype);
        self.places.push(place);
        self.prepared.push(Step { op: step.op, args, place });
        Ok(())
    }

    fn source(&self, arg: FusedArg, operands: &[View<'_>]) -> Result<(Source, DType), KernelError> {
        match arg {
            FusedArg::Operand(index) => {
                let operand = operands.get(index).ok_or_else(dangling)?;
                let source = self.gathered[index].map_or(Source::Direct(index), Source::Buffer);
                Ok((source, operand.dtype))
            }
            FusedArg::Step(earlier) => match self.places[earlier] {
                Place::Buffer(buffer) => Ok((Source::Buffer(buffer), self.dtypes[earlier])),
                Place::Output(_) => Err(dangling()),
            },
        }
    }

    fn buffer(&mut self, dtype: DType) -> usize {
        if let Some(at) = self.free.iter().position(|&free| self.buffers[free] == dtype) {
            return self.free.swap_remove(at);
        }
        self.buffers.push(dtype);
        self.buffers.len() - 1
    }
}

/// The result that a step may write at once: it is only this one, no later step reads it, and it is no operand's memory.
fn direct_output(
    index: usize,
    read_later: bool,
    outputs: &[usize],
    operands: &[View<'_>],
    results: &[ViewMut<'_>],
) -> Option<usize> {
    let mut of_step = (0..outputs.len()).filter(|&output| outputs[output] == index);
    let output = of_step.next()?;
    let shared = operands.iter().any(|operand| results[output].is_same(operand));
    (!read_later && of_step.next().is_none() && !shared).then_some(output)
}

fn dangling() -> KernelError {
    KernelError::call("fused", "a step refers to an operand or a step that is not there")
}

/// The element type of a step's value.
fn result_dtype(op: &Op, args: &[DType]) -> Result<DType, KernelError> {
    let operation = op.operation();
    let fail = || KernelError::call(op.name(), format!("no elementwise step of {args:?}"));
    let types: Vec<TensorType> = args.iter().map(|&dtype| TensorType::new(dtype, [])).collect();
    let dtypes = operation.dtypes(&types.iter().collect::<Vec<_>>()).ok();
    match dtypes.filter(|_| operation.is_elementwise()).as_deref() {
        Some(&[dtype]) => Ok(dtype),
        _ => Err(fail()),
    }
}
