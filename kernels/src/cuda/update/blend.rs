//! States that steps update, one by one or several in one launch.

use graphc_ir::op::Op;
use graphc_ir::ops::Blend;

use super::super::Shard;
use super::super::call::{Argument, Call, CallRegister, Launch, Numbers};
use super::super::source::KernelSource;
use super::several::Several;
use super::{THREADS, WIDTH, blend_type, type_of};

/// One op; of floating-point numbers, integers and truth values.
pub(in super::super) fn prepare_blend(op: &Blend, operands: &[Shard]) -> Call {
    let elements = operands[0].elements();
    if elements == 0 {
        return Call::empty();
    }
    let source = build_source(op, operands).define("ELEMENTS", elements).define_index(elements);
    let mut arguments = vec![Argument::Numbers];
    arguments.extend((0..operands.len()).map(Argument::operand));
    arguments.push(Argument::result(0));
    let blocks = elements.div_ceil(THREADS * WIDTH);
    let call =
        Call::from_launches(vec![Launch::kernel(source, "blend", blocks, THREADS, arguments)]);
    Call { numbers: Numbers::Update(Box::new(Op::Blend(*op))), ..call }
}

/// Prepares the same op of several states, with the same scalars, as one call.
pub(super) fn prepare_blends(op: &Blend, members: &[Vec<Shard>]) -> Call {
    let several = Several::from_members(members);
    if several.count_blocks() == 0 {
        return Call::empty();
    }
    let given = members[0].len();
    let source = several.define_macros(build_source(op, &members[0]));
    let mut arguments = vec![Argument::Numbers];
    arguments.extend((2..given).map(Argument::operand));
    arguments.extend([Argument::Registers, Argument::Table]);
    let table = several.table(|member| {
        let operands = [0, 1].map(|index| CallRegister::Operand(member * given + index));
        operands.into_iter().chain([CallRegister::Result(member)])
    });
    let call = Call::from_launches(vec![Launch::kernel(
        source,
        "blends",
        several.count_blocks(),
        THREADS,
        arguments,
    )]);
    Call { numbers: Numbers::Update(Box::new(Op::Blend(*op))), table, ..call }
}

/// The kernels, but for where they find tensors.
fn build_source(op: &Blend, operands: &[Shard]) -> KernelSource {
    KernelSource::new(include_str!("../cu/blend.cu"))
        .define("WIDTH", WIDTH)
        .define("W", type_of(&operands[0]))
        .define("X", type_of(&operands[1]))
        .define("V", blend_type(operands[0].dtype()))
        .define("OPERANDS", operands.len())
        .define_flag("STARTS", op.starts)
        .define_number("DECAY", op.decay.0 as f32)
        .define_number("RATE", op.rate.0 as f32)
}
