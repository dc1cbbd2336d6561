//! Steps of LAMB of several variables in one launch, each at its own rate.

use graphc_ir::op::Op;
use graphc_ir::ops::LambUpdate;

use super::super::Shard;
use super::super::call::{Argument, Call, CallRegister, Launch, Numbers};
use super::super::source::KernelSource;
use super::several::Several;
use super::{THREADS, WIDTH, rates, type_of};

/// A variable, its direction, and the sums of squares of both.
pub(super) const OPERANDS: usize = 4;

/// Prepares the same op of several variables as one call.
pub(super) fn prepare_steps(op: &LambUpdate, members: &[Vec<Shard>]) -> Call {
    let several = Several::from_members(members);
    if several.count_blocks() == 0 {
        return Call::empty();
    }
    let source = KernelSource::new(include_str!("../cu/steps.cu"))
        .define("WIDTH", WIDTH)
        .define("W", type_of(&members[0][0]))
        .define("FIND", rates::of_step().statements());
    let table = several.table(|member| {
        let operands =
            (0..OPERANDS).map(move |index| CallRegister::Operand(member * OPERANDS + index));
        operands.chain([CallRegister::Result(member)])
    });
    let arguments = vec![Argument::Numbers, Argument::Registers, Argument::Table];
    let call = Call::from_launches(vec![Launch::kernel(
        several.define_macros(source),
        "steps",
        several.count_blocks(),
        THREADS,
        arguments,
    )]);
    Call { numbers: Numbers::Update(Box::new(Op::LambUpdate(op.clone()))), table, ..call }
}
