//! Casts of several tensors in one launch, e.g. of all variables to half precision.

use graphc_ir::ops::Cast;

use super::super::Shard;
use super::super::call::{Argument, Call, CallRegister, Launch};
use super::super::elementwise::cast_expression;
use super::super::source::KernelSource;
use super::several::Several;
use super::{THREADS, WIDTH};

/// Prepares the same cast of several tensors of one element type as one call.
pub(super) fn prepare_casts(op: &Cast, members: &[Vec<Shard>]) -> Option<Call> {
    let several = Several::from_members(members);
    if several.count_blocks() == 0 {
        return Some(Call::empty());
    }
    let from = members[0][0].dtype();
    let source = KernelSource::new(include_str!("../cu/casts.cu"))
        .define("WIDTH", WIDTH)
        .define_element("FROM", from)
        .define_element("INTO", op.dtype)
        .define("CAST", cast_expression("x", from, op.dtype).ok()?);
    let table =
        several.table(|member| [CallRegister::Operand(member), CallRegister::Result(member)]);
    let arguments = vec![Argument::Registers, Argument::Table];
    let blocks = several.count_blocks();
    let launch = Launch::kernel(several.define_macros(source), "casts", blocks, THREADS, arguments);
    Some(Call { table, ..Call::from_launches(vec![launch]) })
}
