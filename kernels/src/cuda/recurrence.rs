//! Recurrent cells over a sequence, a launch for each step: the product with the weights and the cell in one.
//!
//! Within a step every unit reads all units of the step before, and only launches order blocks.

use graphc_ir::ops::{Cell, Recurrence, RecurrenceGrad};

use super::Shard;
use super::call::{Argument, Call, Launch};
use super::convolution::align_bytes;
use super::source::KernelSource;
use crate::error::KernelError;

/// Threads of a block: 32 units of 8 samples.
const THREADS: usize = 256;
const UNITS: usize = 32;
const SAMPLES: usize = 8;
/// Samples from which a thread takes four.
const MANY: usize = 64;

/// Prepares the call of a `Recurrence` op.
pub(super) fn prepare_recurrence(
    op: &Recurrence,
    operands: &[Shard],
    results: &[Shard],
) -> Result<Call, KernelError> {
    let keeps = usize::from(op.cell.keeps_values());
    let [x, r, _, _, ..] = operands else { return Err(mismatch_error("takes 4 operands or more")) };
    if (operands.len(), results.len()) != (4 + keeps, 1 + keeps) {
        return Err(mismatch_error(
            "takes 5 operands where the cell keeps something, and gives what it keeps",
        ));
    }
    let space = CudaRecurrenceExtents::new(op.cell, op.reverse, &results[0])?;
    if x.shape() != space.gates() || r.shape() != space.weights() {
        return Err(mismatch_error("operands or results of other shapes"));
    }
    let states = align_bytes(2 * space.state_bytes());
    let scratch = [0, states];
    let source = space.build_source(include_str!("cu/recurrence.cu"));
    let mut call =
        space.prepare_call(source, "recurrence", (operands, results), &scratch, space.time);
    call.scratch = states + space.state_bytes();
    Ok(call)
}

/// The gradient.
pub(super) fn prepare_recurrence_grad(
    op: &RecurrenceGrad,
    operands: &[Shard],
    results: &[Shard],
) -> Result<Call, KernelError> {
    let least = op.gradient_at() + 1;
    let fits = operands.len() == least || op.cell.keeps_values() && operands.len() == least + 1;
    let count = if op.gradient_at() == 4 { 3 } else { 2 };
    if !fits || results.len() != count {
        return Err(mismatch_error("another number of operands or results"));
    }
    let space = CudaRecurrenceExtents::new(op.cell, op.reverse, &operands[op.gradient_at()])?;
    if operands[0].shape() != space.weights() || results[0].shape() != space.gates() {
        return Err(mismatch_error("operands or results of other shapes"));
    }
    let shares = align_bytes(2 * op.cell.count_gates() * space.state_bytes());
    let states = align_bytes(space.state_bytes());
    let source = space
        .build_source(include_str!("cu/recurrence_grad.cu"))
        .define("HAS_KEPT_GRADIENT", u8::from(operands.len() > least));
    let scratch = [0, shares, shares + states];
    let turns = space.time + 1;
    let mut call =
        space.prepare_call(source, "recurrence_grad", (operands, results), &scratch, turns);
    call.scratch = shares + 2 * states;
    Ok(call)
}

fn mismatch_error(reason: &str) -> KernelError {
    KernelError::bad_call("recurrence", reason)
}

/// Extents of the shards.
struct CudaRecurrenceExtents {
    cell: Cell,
    reverse: bool,
    batch: usize,
    time: usize,
    width: usize,
}

impl CudaRecurrenceExtents {
    fn new(cell: Cell, reverse: bool, states: &Shard) -> Result<Self, KernelError> {
        match states.shape() {
            &[batch, time, width] => Ok(Self { cell, reverse, batch, time, width }),
            _ => Err(mismatch_error("states of other rank than 3")),
        }
    }

    fn gates(&self) -> [usize; 3] {
        [self.batch, self.time, self.cell.count_gates() * self.width]
    }

    fn weights(&self) -> [usize; 2] {
        [self.cell.count_gates() * self.width, self.width]
    }

    /// Bytes of all samples' states at one step.
    fn state_bytes(&self) -> usize {
        self.batch * self.width * size_of::<f32>()
    }

    /// Samples of a thread.
    fn samples_per_thread(&self) -> usize {
        if self.batch >= MANY { 4 } else { 1 }
    }

    fn build_source(&self, body: &str) -> KernelSource {
        let cell = match self.cell {
            Cell::Lstm => "LSTM",
            Cell::Gru => "GRU",
            Cell::Tanh => "TANH",
            Cell::Relu => "RELU",
        };
        KernelSource::new(format!("{}\n{body}", include_str!("cu/recurrence.cuh")))
            .define("BATCH", self.batch)
            .define("TIME", self.time)
            .define("UNITS", self.width)
            .define("CELL", cell)
            .define("GATES", self.cell.count_gates())
            .define("REVERSE", u8::from(self.reverse))
            .define("EACH", self.samples_per_thread())
    }

    /// A launch for each turn, with all operands, results and the memory to work in.
    fn prepare_call(
        &self,
        source: KernelSource,
        entry: &'static str,
        (operands, results): (&[Shard], &[Shard]),
        scratch: &[usize],
        turns: usize,
    ) -> Call {
        if self.batch * self.width * self.time == 0 {
            return Call::empty();
        }
        let mut arguments: Vec<Argument> = (0..operands.len()).map(Argument::operand).collect();
        arguments.extend((0..results.len()).map(Argument::result));
        arguments.extend(scratch.iter().map(|&byte| Argument::scratch(byte)));
        let source = source.define_element("T", results[0].dtype());
        let blocks =
            self.width.div_ceil(UNITS) * self.batch.div_ceil(SAMPLES * self.samples_per_thread());
        let launch = |turn: usize| {
            let mut arguments = arguments.clone();
            arguments.push(Argument::Constant(turn as u32));
            Launch::kernel(source.clone(), entry, blocks, THREADS, arguments)
        };
        Call::from_launches((0..turns).map(launch).collect())
    }
}
