//! States that steps update, one by one or several in one launch.

use graphc_ir::op::Op;
use graphc_ir::ops::Blend;

use super::super::Shard;
use super::super::call::{Argument, Call, Launch, Numbers, Slot};
use super::super::source::Source;
use super::several::Several;
use super::{THREADS, WIDTH, type_of, wide};

/// One op; of floating-point numbers, integers and truth values.
pub(in super::super) fn blend(op: &Blend, operands: &[Shard]) -> Call {
    let elements = operands[0].elements();
    if elements == 0 {
        return Call::nothing();
    }
    let source = source(op, operands).define("ELEMENTS", elements).index(elements);
    let mut arguments = vec![Argument::Numbers];
    arguments.extend((0..operands.len()).map(Argument::operand));
    arguments.push(Argument::result(0));
    let blocks = elements.div_ceil(THREADS * WIDTH);
    let call = Call::of(vec![Launch::kernel(source, "blend", blocks, THREADS, arguments)]);
    Call { numbers: Numbers::Update(Box::new(Op::Blend(*op))), ..call }
}

/// The same op of several states, with the same scalars.
pub(super) fn blends(op: &Blend, members: &[Vec<Shard>]) -> Call {
    let several = Several::of(members);
    if several.count() == 0 {
        return Call::nothing();
    }
    let given = members[0].len();
    let source = several.source(source(op, &members[0]));
    let mut arguments = vec![Argument::Numbers];
    arguments.extend((2..given).map(Argument::operand));
    arguments.extend([Argument::Registers, Argument::Table]);
    let table = several.table(|member| {
        let operands = [0, 1].map(|index| Slot::Operand(member * given + index));
        operands.into_iter().chain([Slot::Result(member)])
    });
    let call =
        Call::of(vec![Launch::kernel(source, "blends", several.count(), THREADS, arguments)]);
    Call { numbers: Numbers::Update(Box::new(Op::Blend(*op))), table, ..call }
}

/// The kernels, but for where they find tensors.
fn source(op: &Blend, operands: &[Shard]) -> Source {
    Source::new(include_str!("../cu/blend.cu"))
        .define("WIDTH", WIDTH)
        .define("W", type_of(&operands[0]))
        .define("X", type_of(&operands[1]))
        .define("V", wide(operands[0].dtype()))
        .define("OPERANDS", operands.len())
        .flag("STARTS", op.starts)
        .number("DECAY", op.decay.0 as f32)
        .number("RATE", op.rate.0 as f32)
}
