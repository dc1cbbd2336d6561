//! A chain worked out for evaluation: where each step's value goes, and from where it reads.
//!
//! Values of 16 bits are kept in buffers as `f32`, and rounded after each step, so that a chain gives the bits that its
//! steps give one by one.

use graphc_ir::op::Op;
use graphc_ir::plan::FusedArg;
use graphc_ir::types::{DType, TensorType};

use super::StepRef;
use super::operand::Pattern;
use crate::error::KernelError;

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
    /// The result itself, which no later step reads; a buffer where the result is an operand's memory.
    Output {
        /// The result.
        output: usize,
        /// The buffer.
        buffer: usize,
    },
}

/// One step.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) op: Op,
    pub(super) args: Vec<Source>,
    pub(super) place: Place,
    /// The type of 16 bits to whose values the buffer is rounded before others read it.
    pub(super) round: Option<DType>,
}

/// A result that is copied out of a buffer at the end of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    pub(super) output: usize,
    pub(super) buffer: usize,
    /// Only where the result is an operand's memory.
    pub(super) if_shared: bool,
}

/// A chain worked out.
#[derive(Debug)]
pub(super) struct Program {
    /// In order of evaluation.
    pub(super) steps: Vec<Step>,
    /// The buffer of each operand that is not read where it lies.
    pub(super) gathered: Vec<Option<usize>>,
    /// Element type of each buffer.
    pub(super) buffers: Vec<DType>,
    pub(super) copies: Vec<Copy>,
}

impl Program {
    /// Works out a chain; `patterns` say how the operands broadcast.
    pub(super) fn new(
        steps: &[StepRef<'_>],
        outputs: &[usize],
        operands: &[TensorType],
        results: &[TensorType],
        patterns: &[Pattern],
    ) -> Result<Self, KernelError> {
        let mut builder = Builder::new(steps, outputs, operands, patterns)?;
        for (index, step) in steps.iter().enumerate() {
            builder.step(index, step, outputs, operands)?;
        }
        let mut copies = Vec::new();
        for (output, &step) in outputs.iter().enumerate() {
            let dtype = *builder.dtypes.get(step).ok_or_else(dangling)?;
            if dtype != results[output].dtype {
                let reason = format!("a result of {dtype} for {}", results[output].dtype);
                return Err(KernelError::call("fused", reason));
            }
            copies.push(match builder.places[step] {
                Place::Buffer(buffer) => Copy { output, buffer, if_shared: false },
                Place::Output { buffer, .. } => Copy { output, buffer, if_shared: true },
            });
        }
        let Builder { prepared, gathered, buffers, .. } = builder;
        Ok(Self { steps: prepared, gathered, buffers, copies })
    }
}

struct Builder {
    prepared: Vec<Step>,
    gathered: Vec<Option<usize>>,
    buffers: Vec<DType>,
    free: Vec<usize>,
    last_use: Vec<usize>,
    read_later: Vec<bool>,
    dtypes: Vec<DType>,
    places: Vec<Place>,
}

impl Builder {
    fn new(
        steps: &[StepRef<'_>],
        outputs: &[usize],
        operands: &[TensorType],
        patterns: &[Pattern],
    ) -> Result<Self, KernelError> {
        let mut buffers = Vec::new();
        let mut gathered = Vec::with_capacity(operands.len());
        for (operand, pattern) in operands.iter().zip(patterns) {
            let lies_ready = *pattern == Pattern::Same && kept_as(operand.dtype) == operand.dtype;
            let place = (!lies_ready).then_some(buffers.len());
            buffers.extend(place.map(|_| kept_as(operand.dtype)));
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
        step: &StepRef<'_>,
        outputs: &[usize],
        operands: &[TensorType],
    ) -> Result<(), KernelError> {
        let mut args = Vec::with_capacity(step.args.len());
        let mut dtypes = Vec::with_capacity(step.args.len());
        for arg in step.args {
            let (source, dtype) = self.source(*arg, operands)?;
            args.push(source);
            dtypes.push(dtype);
        }
        let dtype = result_dtype(step.op, &dtypes)?;
        let (kept, read_later) = (kept_as(dtype), self.read_later[index]);
        let buffer = self.buffer(kept);
        let place = match direct_output(index, outputs).filter(|_| !read_later && kept == dtype) {
            Some(output) => Place::Output { output, buffer },
            None => Place::Buffer(buffer),
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
        let round = (kept != dtype && read_later).then_some(dtype);
        self.dtypes.push(dtype);
        self.places.push(place);
        self.prepared.push(Step { op: step.op.clone(), args, place, round });
        Ok(())
    }

    fn source(
        &self,
        arg: FusedArg,
        operands: &[TensorType],
    ) -> Result<(Source, DType), KernelError> {
        match arg {
            FusedArg::Operand(index) => {
                let operand = operands.get(index).ok_or_else(dangling)?;
                let source = self.gathered[index].map_or(Source::Direct(index), Source::Buffer);
                Ok((source, operand.dtype))
            }
            FusedArg::Step(earlier) => match self.places[earlier] {
                Place::Buffer(buffer) => Ok((Source::Buffer(buffer), self.dtypes[earlier])),
                Place::Output { .. } => Err(dangling()),
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

/// The only result that a step gives.
fn direct_output(index: usize, outputs: &[usize]) -> Option<usize> {
    let mut of_step = (0..outputs.len()).filter(|&output| outputs[output] == index);
    let output = of_step.next()?;
    of_step.next().is_none().then_some(output)
}

/// The type in which buffers hold elements.
fn kept_as(dtype: DType) -> DType {
    if dtype.is_float() { DType::F32 } else { dtype }
}

fn dangling() -> KernelError {
    KernelError::call("fused", "a step refers to an operand or a step that is not there")
}

/// The element type of a step's value.
fn result_dtype(op: &Op, args: &[DType]) -> Result<DType, KernelError> {
    match (op, args) {
        (Op::Unary(_), &[dtype]) => Ok(dtype),
        (Op::Binary(binary), &[a, b]) if a == b => {
            Ok(if binary.function.gives_bool() { DType::Bool } else { a })
        }
        (Op::Where(_), &[DType::Bool, a, b]) if a == b => Ok(a),
        (Op::Cast(cast), &[_]) => Ok(cast.dtype),
        _ => Err(KernelError::call(op.name(), format!("no elementwise step of {args:?}"))),
    }
}
