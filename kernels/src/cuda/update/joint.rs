//! Updates of several variables by one rule, in one launch; and sums of squares, counts of what is not finite, directions and
//! steps of LAMB, blends and casts of several tensors.
//!
//! A table in the device's memory holds the tensors and the extent of each update, and for each block the update that it is for.
//! A block reads one line of the table and goes on as the kernel of one variable does, so the results have the same bits.

use graphc_ir::op::Op;

use super::super::Shard;
use super::super::call::{Argument, Call, CallRegister, Entry, Launch};
use super::super::names::name_kernels;
use super::super::scaling;
use super::several::Several;
use super::{
    CudaUpdateRule, THREADS, Update, adam_rule, blend, casts, direction_rule, rmsprop_rule,
    sgd_rule, steps,
};

/// Returns the number of an op's operands that are tensors of its own, if several such ops can be one launch. The operands behind them are
/// scalars, which the ops have in common.
pub fn joinable_tensors(op: &Op) -> Option<usize> {
    match op {
        Op::SquareSum(_) | Op::NonFinite(_) | Op::Cast(_) => Some(1),
        Op::Blend(_) => Some(2),
        Op::LambUpdate(_) => Some(steps::OPERANDS),
        _ => find_rule(op, 0).map(|rule| rule.tensors),
    }
}

/// Prepares several ops with these operands as one call: its operands are those of all of them, one after the other, and so are its
/// results. All have operands of the same element types, and the same scalars. `None` where [`joinable_tensors`] says so.
pub fn join_alike(op: &Op, members: &[Vec<Shard>]) -> Option<Call> {
    let first = members.first()?;
    let call = match op {
        Op::SquareSum(_) | Op::NonFinite(_) => scaling::prepare_folds(op, members)?,
        Op::Blend(op) => blend::prepare_blends(op, members),
        Op::LambUpdate(op) => steps::prepare_steps(op, members),
        Op::Cast(op) => casts::prepare_casts(op, members)?,
        _ => {
            let rule = find_rule(op, first.len())?;
            let joint = JointUpdate { first: Update::new(first, &rule), members };
            joint.prepare_call(rule)
        }
    };
    Some(name_kernels(call, op, first))
}

fn find_rule(op: &Op, operands: usize) -> Option<CudaUpdateRule> {
    match op {
        Op::SgdUpdate(op) => Some(sgd_rule(op, operands)),
        Op::AdamUpdate(op) => Some(adam_rule(op, operands)),
        Op::RmspropUpdate(op) => Some(rmsprop_rule(op)),
        Op::LambDirection(op) => Some(direction_rule(op, operands)),
        _ => None,
    }
}

struct JointUpdate<'a> {
    /// The first, which has what they have in common.
    first: Update<'a>,
    members: &'a [Vec<Shard>],
}

impl JointUpdate<'_> {
    fn prepare_call(&self, rule: CudaUpdateRule) -> Call {
        let several = Several::from_members(self.members);
        if several.count_blocks() == 0 {
            return Call::empty();
        }
        let source = several.define_macros(self.first.build_source(rule.step.clone()));
        let operands = self.first.operands.len();
        // Without a factor the parameter is not read.
        let factor = if self.first.has_factor { self.first.tensors } else { 0 };
        let arguments =
            vec![rule.numbers(), Argument::operand(factor), Argument::Registers, Argument::Table];
        let launch = Launch::kernel(source, "updates", several.count_blocks(), THREADS, arguments);
        Call { table: self.table(&several), ..rule.prepare_call(launch, operands) }
    }

    fn table(&self, several: &Several) -> Vec<Entry> {
        let (given, tensors) = (self.first.operands.len(), self.first.tensors);
        several.table(|member| {
            let operands =
                (0..tensors).map(move |index| CallRegister::Operand(member * given + index));
            operands.chain(
                (0..tensors - 1)
                    .map(move |index| CallRegister::Result(member * (tensors - 1) + index)),
            )
        })
    }
}
