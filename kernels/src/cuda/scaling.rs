//! Numbers of a step: norms of gradients and what clips them, what is not finite, the scale of the loss.

use graphc_ir::ops::{ClipFactor, LossScale};

use super::Shard;
use super::call::{Argument, Call, Launch};
use super::fill::cleared;
use super::source::{Source, width};

/// Threads of a block.
const THREADS: usize = 256;
/// Steps of a thread.
const STEPS: usize = 16;

/// One op.
pub(super) fn square_sum(operands: &[Shard], results: &[Shard]) -> Call {
    fold("((x) * (x))", &operands[0], &results[0])
}

/// One op.
pub(super) fn non_finite(operands: &[Shard], results: &[Shard]) -> Call {
    fold("((x) - (x) == 0.0f ? 0.0f : 1.0f)", &operands[0], &results[0])
}

/// The sum of a value of each element, an expression of `x`.
fn fold(value: &str, x: &Shard, result: &Shard) -> Call {
    let elements = x.elements();
    if elements == 0 {
        return Call::of(vec![cleared(0, result)]);
    }
    let width = width(x.dtype().size(), [elements]);
    let parts = elements.div_ceil(THREADS * STEPS * width);
    let source = Source::new(include_str!("cu/fold.cu"))
        .element("T", x.dtype())
        .define("ELEMENTS", elements)
        .define("WIDTH", width)
        .define("STEPS", STEPS)
        .define("PARTS", parts)
        .define("VALUE(x)", value)
        .index(elements + THREADS * STEPS * width);
    let partial = Argument::scratch(0);
    let fold = vec![Argument::operand(0), partial];
    let join = vec![partial, Argument::result(0)];
    let mut call = Call::of(vec![
        Launch::kernel(source.clone(), "fold", parts, THREADS, fold),
        Launch::kernel(source, "join", 1, THREADS, join),
    ]);
    call.scratch = 4 * parts;
    call
}

/// One op.
pub(super) fn clip_factor(op: &ClipFactor, operands: &[Shard]) -> Call {
    let source = Source::new(include_str!("cu/clip_factor.cu"))
        .double("MAX", op.max.0)
        .flag("HAS_FACTOR", operands.len() > 1);
    let mut arguments: Vec<Argument> = (0..operands.len()).map(Argument::operand).collect();
    arguments.extend((0..2).map(Argument::result));
    Call::of(vec![Launch::kernel(source, "clip_factor", 1, 1, arguments)])
}

/// One op.
pub(super) fn loss_scale(op: &LossScale, operands: &[Shard]) -> Call {
    let source = Source::new(include_str!("cu/loss_scale.cu"))
        .double("GROWTH", op.growth.0)
        .double("BACKOFF", op.backoff.0)
        .define("INTERVAL", op.interval)
        .flag("HAS_FACTOR", operands.len() > 4);
    let mut arguments: Vec<Argument> = (0..operands.len()).map(Argument::operand).collect();
    arguments.extend((0..7).map(Argument::result));
    Call::of(vec![Launch::kernel(source, "loss_scale", 1, 1, arguments)])
}

/// One op.
pub(super) fn skip_step() -> Call {
    let source = Source::new(include_str!("cu/skip_step.cu"));
    let mut arguments = vec![Argument::operand(0), Argument::operand(1), Argument::Now];
    arguments.extend((0..4).map(Argument::result));
    Call::of(vec![Launch::kernel(source, "skip_step", 1, 1, arguments)])
}
