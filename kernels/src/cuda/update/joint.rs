//! Updates of several variables by one rule, in one launch, and other small things that are done to each of several tensors.
//!
//! Of each the tensors and the extent stand in a table in the device's memory, and of each block which of them it is for, so that a block
//! reads one line of the table and goes on as the kernel of one variable does: the results have the same bits.

use graphc_ir::op::Op;

use super::super::Shard;
use super::super::call::{Argument, Call, Entry, Launch, Slot, table};
use super::super::scaling;
use super::several::{blocks_of, of_several};
use super::{Rule, THREADS, Update, adam_rule, blend, direction_rule, rmsprop_rule, sgd_rule};

/// How many of an op's operands are tensors of its own, if several such ops can be one launch; what is behind them are scalars, which
/// they have in common.
pub fn joins(op: &Op) -> Option<usize> {
    match op {
        Op::SquareSum(_) | Op::NonFinite(_) => Some(1),
        Op::Blend(_) => Some(2),
        _ => rule(op, 0).map(|rule| rule.tensors),
    }
}

/// What several ops with these operands are as one call: its operands are those of all of them, one after the other, and so are its
/// results. All have operands of the same element types, and the same scalars. `None` where [`joins`] says so.
pub fn join_alike(op: &Op, members: &[Vec<Shard>]) -> Option<Call> {
    let first = members.first()?;
    match op {
        Op::SquareSum(_) | Op::NonFinite(_) => scaling::folds(op, members),
        Op::Blend(op) => Some(blend::blends(op, members)),
        _ => {
            let rule = rule(op, first.len())?;
            let joint = Joint { first: Update::new(first, &rule), members };
            Some(joint.call(rule))
        }
    }
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
        let extents: Vec<usize> = self.members.iter().map(|member| member[0].elements()).collect();
        let blocks: Vec<usize> = extents.iter().map(|&extent| blocks_of(extent)).collect();
        let count = blocks.iter().sum();
        if count == 0 {
            return Call::nothing();
        }
        let largest = extents.iter().max().copied().unwrap_or(0);
        let source = of_several(self.first.source(rule.step.clone()), self.members.len(), largest);
        let operands = self.first.operands.len();
        // Without a factor the parameter is not read.
        let factor = if self.first.has_factor { self.first.tensors } else { 0 };
        let arguments =
            vec![rule.numbers(), Argument::operand(factor), Argument::Registers, Argument::Table];
        let launch = Launch::kernel(source, "updates", count, THREADS, arguments);
        Call { table: self.table(&extents, &blocks), ..rule.call(launch, operands) }
    }

    fn table(&self, extents: &[usize], blocks: &[usize]) -> Vec<Entry> {
        let (given, tensors) = (self.first.operands.len(), self.first.tensors);
        let mut before = 0;
        let line = |(member, (&extent, &blocks)): (usize, (&usize, &usize))| {
            let operand = |index| Entry::Place(Slot::Operand(member * given + index));
            let result = |index| Entry::Place(Slot::Result(member * (tensors - 1) + index));
            let numbers = [extent, before].map(|number| Entry::Number(number as u64));
            before += blocks;
            let places = (0..tensors).map(operand).chain((0..tensors - 1).map(result));
            places.chain(numbers).collect()
        };
        let lines = extents.iter().zip(blocks).enumerate().map(line).collect();
        table(lines, blocks)
    }
}
