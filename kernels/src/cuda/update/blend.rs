//! States that steps update.

use graphc_ir::op::Op;
use graphc_ir::ops::Blend;

use super::super::Shard;
use super::super::call::{Argument, Call, Launch, Numbers};
use super::super::source::Source;
use super::{THREADS, WIDTH, type_of, wide};

/// One op; of floating-point numbers, integers and truth values.
pub(in super::super) fn blend(op: &Blend, operands: &[Shard]) -> Call {
    let elements = operands[0].elements();
    if elements == 0 {
        return Call::nothing();
    }
    let source = Source::new(include_str!("../cu/blend.cu"))
        .define("ELEMENTS", elements)
        .define("WIDTH", WIDTH)
        .index(elements)
        .define("W", type_of(&operands[0]))
        .define("X", type_of(&operands[1]))
        .define("V", wide(operands[0].dtype()))
        .define("OPERANDS", operands.len())
        .flag("STARTS", op.starts)
        .number("DECAY", op.decay.0 as f32)
        .number("RATE", op.rate.0 as f32);
    let mut arguments = vec![Argument::Numbers];
    arguments.extend((0..operands.len()).map(Argument::operand));
    arguments.push(Argument::result(0));
    let blocks = elements.div_ceil(THREADS * WIDTH);
    let mut call = Call::of(vec![Launch::kernel(source, "blend", blocks, THREADS, arguments)]);
    call.numbers = Numbers::Update(Box::new(Op::Blend(*op)));
    call
}
