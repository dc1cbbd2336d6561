//! Numbers of a step: norms of gradients and what clips them, what is not finite, the scale of the loss.

use graphc_ir::op::Op;
use graphc_ir::ops::{ClipFactor, LossScale};
use graphc_ir::types::DType;

use super::Shard;
use super::call::{Argument, Call, CallRegister, Entry, Launch, build_table};
use super::fill::launch_clear;
use super::source::KernelSource;

/// Threads of a block.
const THREADS: usize = 256;
/// Steps of a thread.
const STEPS: usize = 16;

const SQUARE: &str = "((x) * (x))";
const NON_FINITE: &str = "((x) - (x) == 0.0f ? 0.0f : 1.0f)";

/// Prepares the call of a `SquareSum` op.
pub(super) fn square_sum(operands: &[Shard], results: &[Shard]) -> Call {
    prepare_fold(SQUARE, &operands[0], &results[0])
}

/// Prepares the call of a `NonFinite` op.
pub(super) fn non_finite(operands: &[Shard], results: &[Shard]) -> Call {
    prepare_fold(NON_FINITE, &operands[0], &results[0])
}

/// Prepares the same op of several tensors of one element type as one call; `None` if the op has no such call.
pub(super) fn prepare_folds(op: &Op, members: &[Vec<Shard>]) -> Option<Call> {
    let value = match op {
        Op::SquareSum(_) => SQUARE,
        Op::NonFinite(_) => NON_FINITE,
        _ => return None,
    };
    let extents: Vec<usize> = members.iter().map(|member| member[0].elements()).collect();
    let dtype = members.first()?[0].dtype();
    let blocks: Vec<usize> = extents.iter().map(|&extent| count_blocks(dtype, extent)).collect();
    let largest = extents.iter().max().copied().unwrap_or(0);
    let source = build_source(value, dtype, largest).define("MEMBERS", members.len());
    let partial = Argument::scratch(0);
    let arguments = vec![Argument::Registers, Argument::Table, partial];
    let count: usize = blocks.iter().sum();
    let fold = (count > 0)
        .then(|| Launch::kernel(source.clone(), "folds", count, THREADS, arguments.clone()));
    let join = Launch::kernel(source, "joins", members.len(), THREADS, arguments);
    let mut before = 0;
    let line = |(member, (&extent, &blocks)): (usize, (&usize, &usize))| {
        let places =
            [CallRegister::Operand(member), CallRegister::Result(member)].map(Entry::Place);
        let numbers = [extent, before, blocks].map(|number| Entry::Number(number as u64));
        before += blocks;
        [&places[..], &numbers].concat()
    };
    let lines = extents.iter().zip(&blocks).enumerate().map(line).collect();
    let table = build_table(lines, &blocks);
    let launches = fold.into_iter().chain([join]).collect();
    Some(Call { scratch: size_of::<f32>() * count, table, ..Call::from_launches(launches) })
}

/// The sum of a value of each element, an expression of `x`.
fn prepare_fold(value: &str, x: &Shard, result: &Shard) -> Call {
    let elements = x.elements();
    if elements == 0 {
        return Call::from_launches(vec![launch_clear(0, result)]);
    }
    let parts = count_blocks(x.dtype(), elements);
    let source = build_source(value, x.dtype(), elements)
        .define("ELEMENTS", elements)
        .define("PARTS", parts);
    let partial = Argument::scratch(0);
    let fold = vec![Argument::operand(0), partial];
    let join = vec![partial, Argument::result(0)];
    let mut call = Call::from_launches(vec![
        Launch::kernel(source.clone(), "fold", parts, THREADS, fold),
        Launch::kernel(source, "join", 1, THREADS, join),
    ]);
    call.scratch = size_of::<f32>() * parts;
    call
}

/// Elements that a thread takes at once: 16 bytes.
fn access_width(dtype: DType) -> usize {
    16 / dtype.size()
}

/// Blocks for so many elements.
fn count_blocks(dtype: DType, elements: usize) -> usize {
    elements.div_ceil(THREADS * STEPS * access_width(dtype))
}

/// The kernels for tensors of at most so many elements, but for where they find these.
fn build_source(value: &str, dtype: DType, elements: usize) -> KernelSource {
    let width = access_width(dtype);
    KernelSource::new(include_str!("cu/fold.cu"))
        .define_element("T", dtype)
        .define("WIDTH", width)
        .define("STEPS", STEPS)
        .define("VALUE(x)", value)
        .define_index(elements + THREADS * STEPS * width)
}

/// Prepares the call of a `ClipFactor` op.
pub(super) fn clip_factor(op: &ClipFactor, operands: &[Shard]) -> Call {
    let source = KernelSource::new(include_str!("cu/clip_factor.cu"))
        .define_double("MAX", op.max.0)
        .define_flag("HAS_FACTOR", operands.len() > 1);
    let mut arguments: Vec<Argument> = (0..operands.len()).map(Argument::operand).collect();
    arguments.extend((0..2).map(Argument::result));
    Call::from_launches(vec![Launch::kernel(source, "clip_factor", 1, 1, arguments)])
}

/// Prepares the call of a `LossScale` op.
pub(super) fn loss_scale(op: &LossScale, operands: &[Shard]) -> Call {
    let source = KernelSource::new(include_str!("cu/loss_scale.cu"))
        .define_double("GROWTH", op.growth.0)
        .define_double("BACKOFF", op.backoff.0)
        .define("INTERVAL", op.interval)
        .define_double("FLOOR", op.floor.0)
        .define_flag("HAS_FACTOR", operands.len() > 4);
    let mut arguments: Vec<Argument> = (0..operands.len()).map(Argument::operand).collect();
    arguments.extend((0..7).map(Argument::result));
    Call::from_launches(vec![Launch::kernel(source, "loss_scale", 1, 1, arguments)])
}

/// Prepares the call of a `SkipStep` op.
pub(super) fn skip_step() -> Call {
    let source = KernelSource::new(include_str!("cu/skip_step.cu"));
    let mut arguments = vec![Argument::operand(0), Argument::operand(1), Argument::Now];
    arguments.extend((0..4).map(Argument::result));
    Call::from_launches(vec![Launch::kernel(source, "skip_step", 1, 1, arguments)])
}
