//! Steps of optimizers, each in one pass over its tensors.

use graphc_ir::op::Op;
use graphc_ir::ops::SgdUpdate;

use super::Shard;
use super::call::{Argument, Call, Launch, Numbers};
use super::source::Source;

/// Threads of a block.
const THREADS: usize = 256;

/// One op.
pub(super) fn sgd(op: &SgdUpdate, operands: &[Shard]) -> Call {
    let momentum = op.momentum.0 != 0.0;
    let tensors = if momentum { 3 } else { 2 };
    let elements = operands[0].elements();
    if elements == 0 {
        return Call::nothing();
    }
    let has_factor = operands.len() > tensors;
    let mut source = Source::new(include_str!("cu/sgd.cu"))
        .define("ELEMENTS", elements)
        .element("W", operands[0].dtype())
        .element("G", operands[1].dtype())
        .define("HAS_MOMENTUM", u8::from(momentum))
        .define("NESTEROV", u8::from(op.nesterov))
        .define("HAS_FACTOR", u8::from(has_factor))
        .number("MOMENTUM", op.momentum.0 as f32)
        .number("DECAY", op.weight_decay.0 as f32);
    source = match op.clip {
        Some(clip) => source.number("CLIP", clip.0 as f32),
        None => source,
    };
    let mut arguments = vec![Argument::Numbers];
    arguments.extend((0..operands.len()).map(Argument::operand));
    arguments.push(Argument::result(0));
    if momentum {
        arguments.push(Argument::result(1));
    }
    let blocks = elements.div_ceil(THREADS);
    let mut call = Call::of(vec![Launch::kernel(source, "sgd", blocks, THREADS, arguments)]);
    call.numbers = Numbers::Update(Box::new(Op::SgdUpdate(op.clone())));
    call
}

/// What an update needs of a step, counted from 0.
pub(super) fn numbers(op: &Op, step: u64) -> Vec<f32> {
    match op {
        Op::SgdUpdate(op) => vec![op.lr.at(step) as f32],
        _ => Vec::new(),
    }
}
