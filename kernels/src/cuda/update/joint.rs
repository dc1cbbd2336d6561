//! Updates of several variables by one rule, in one launch; and sums of squares, counts of what is not finite, directions and
//! steps of LAMB, blends and casts of several tensors.
//!
//! A table in the device's memory holds the tensors and the extent of each update, and for each block the update that it is for.
//! A block reads one line of the table and goes on as the kernel of one variable does, so the results have the same bits.

use graphc_ir::op::Op;

use super::super::Shard;
use super::super::call::{Argument, Call, Entry, Launch, Slot};
use super::super::names::named;
use super::super::scaling;
use super::several::Several;
use super::{
    Rule, THREADS, Update, adam_rule, blend, casts, direction_rule, rmsprop_rule, sgd_rule, steps,
};

/// How many of an op's operands are tensors of its own, if several such ops can be one launch; what is behind them are scalars, which
/// they have in common.
pub fn joins(op: &Op) -> Option<usize> {
    match op {
        Op::SquareSum(_) | Op::NonFinite(_) | Op::Cast(_) => Some(1),
        Op::Blend(_) => Some(2),
        Op::LambUpdate(_) => Some(steps::OPERANDS),
        _ => rule(op, 0).map(|rule| rule.tensors),
    }
}

/// Several ops with these operands as one call: its operands are those of all of them, one after the other, and so are its
/// results. All have operands of the same element types, and the same scalars. `None` where [`joins`] says so.
pub fn join_alike(op: &Op, members: &[Vec<Shard>]) -> Option<Call> {
    let first = members.first()?;
    let call = match op {
        Op::SquareSum(_) | Op::NonFinite(_) => scaling::folds(op, members)?,
        Op::Blend(op) => blend::blends(op, members),
        Op::LambUpdate(op) => steps::steps(op, members),
        Op::Cast(op) => casts::casts(op, members)?,
        _ => {
            let rule = rule(op, first.len())?;
            let joint = Joint { first: Update::new(first, &rule), members };
            joint.call(rule)
        }
    };
    Some(named(call, op, first))
}

fn rule(op: &Op, operands: usize) -> Option<Rule> {
    match op {
        Op::SgdUpdate(op) => Some(sgd_rule(op)),
        Op::AdamUpdate(op) => Some(adam_rule(op, operands)),
        Op::RmspropUpdate(op) => Some(rmsprop_rule(op)),
        Op::LambDirection(op) => Some(direction_rule(op, operands)),
        _ => None,
    }
}

struct Joint<'a> {
    /// The first, which has what they have in common.
    first: Update<'a>,
    members: &'a [Vec<Shard>],
}

impl Joint<'_> {
    fn call(&self, rule: Rule) -> Call {
        let several = Several::of(self.members);
        if several.count() == 0 {
            return Call::nothing();
        }
        let source = several.source(self.first.source(rule.step.clone()));
        let operands = self.first.operands.len();
        // Without a factor the parameter is not read.
        let factor = if self.first.has_factor { self.first.tensors } else { 0 };
        let arguments =
            vec![rule.numbers(), Argument::operand(factor), Argument::Registers, Argument::Table];
        let launch = Launch::kernel(source, "updates", several.count(), THREADS, arguments);
        Call { table: self.table(&several), ..rule.call(launch, operands) }
    }

    fn table(&self, several: &Several) -> Vec<Entry> {
        let (given, tensors) = (self.first.operands.len(), self.first.tensors);
        several.table(|member| {
            let operands = (0..tensors).map(move |index| Slot::Operand(member * given + index));
            operands.chain(
                (0..tensors - 1).map(move |index| Slot::Result(member * (tensors - 1) + index)),
            )
        })
    }
}
