//! Casts of several tensors in one launch, e.g. of all variables to half precision.

use graphc_ir::ops::Cast;

use super::super::Shard;
use super::super::call::{Argument, Call, Launch, Slot};
use super::super::elementwise::cast_expression;
use super::super::source::Source;
use super::several::Several;
use super::{THREADS, WIDTH};

/// The same op of several tensors of one element type.
pub(super) fn casts(op: &Cast, members: &[Vec<Shard>]) -> Option<Call> {
    let several = Several::of(members);
    if several.count() == 0 {
        return Some(Call::nothing());
    }
    let from = members[0][0].dtype();
    let source = Source::new(include_str!("../cu/casts.cu"))
        .define("WIDTH", WIDTH)
        .element("FROM", from)
        .element("INTO", op.dtype)
        .define("CAST", cast_expression("x", from, op.dtype).ok()?);
    let table = several.table(|member| [Slot::Operand(member), Slot::Result(member)]);
    let arguments = vec![Argument::Registers, Argument::Table];
    let blocks = several.count();
    let launch = Launch::kernel(several.source(source), "casts", blocks, THREADS, arguments);
    Some(Call { table, ..Call::of(vec![launch]) })
}
