//! Steps of LAMB of several variables in one launch, each at its own rate.

use graphc_ir::op::Op;
use graphc_ir::ops::LambUpdate;

use super::super::Shard;
use super::super::call::{Argument, Call, Launch, Numbers, Slot};
use super::super::source::Source;
use super::several::Several;
use super::{THREADS, WIDTH, rates, type_of};

/// A variable, its direction, and the sums of squares of both.
pub(super) const OPERANDS: usize = 4;

/// The same op of several variables.
pub(super) fn steps(op: &LambUpdate, members: &[Vec<Shard>]) -> Call {
    let several = Several::of(members);
    if several.count() == 0 {
        return Call::nothing();
    }
    let source = Source::new(include_str!("../cu/steps.cu"))
        .define("WIDTH", WIDTH)
        .define("W", type_of(&members[0][0]))
        .define("FIND", rates::of_step().find());
    let table = several.table(|member| {
        let operands = (0..OPERANDS).map(move |index| Slot::Operand(member * OPERANDS + index));
        operands.chain([Slot::Result(member)])
    });
    let arguments = vec![Argument::Numbers, Argument::Registers, Argument::Table];
    let call = Call::of(vec![Launch::kernel(
        several.source(source),
        "steps",
        several.count(),
        THREADS,
        arguments,
    )]);
    Call { numbers: Numbers::Update(Box::new(Op::LambUpdate(op.clone()))), table, ..call }
}
