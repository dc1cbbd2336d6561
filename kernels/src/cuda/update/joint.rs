//! Updates of several variables by one rule, in one launch.
//!
//! Of each the tensors and the extent stand in a table in the device's memory, and of each block which of them it is for, so that a block
//! reads one line of the table and goes on as the kernel of one variable does: the results have the same bits.

use graphc_ir::op::Op;

use super::super::Shard;
use super::super::call::{Argument, Call, Entry, Launch, Slot};
use super::{Rule, THREADS, Update, WIDTH, adam_rule, rmsprop_rule, sgd_rule};

/// How often a block goes on: blocks of 8192 elements keep the table short and still fill a card.
const STEPS: usize = 8;

/// How many of an update's operands are tensors of its own, if updates by its rule can be one launch; what is behind them are
/// scalars, which they have in common.
pub fn joins(op: &Op) -> Option<usize> {
    rule(op, 0).map(|rule| rule.tensors)
}

/// What updates of several variables are as one call: its operands are those of all of them, one after the other, and so are its
/// results. All have operands of the same element types, and the same scalars. `None` where [`joins`] says so.
pub fn join_updates(op: &Op, members: &[Vec<Shard>]) -> Option<Call> {
    let rule = rule(op, members.first()?.len())?;
    let joint = Joint { first: Update::new(&members[0], &rule), members };
    Some(joint.call(rule))
}

fn rule(op: &Op, operands: usize) -> Option<Rule> {
    match op {
        Op::SgdUpdate(op) => Some(sgd_rule(op)),
        Op::AdamUpdate(op) => Some(adam_rule(op, operands)),
        Op::RmspropUpdate(op) => Some(rmsprop_rule(op)),
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
        let blocks: Vec<usize> =
            extents.iter().map(|extent| extent.div_ceil(STEPS * THREADS * WIDTH)).collect();
        let count = blocks.iter().sum();
        if count == 0 {
            return Call::nothing();
        }
        let largest = extents.iter().max().copied().unwrap_or(0);
        let source = (self.first.source(rule.step.clone()))
            .define("PARTS", self.members.len())
            .define("STEPS", STEPS)
            .index(largest + STEPS * THREADS * WIDTH);
        let operands = self.first.operands.len();
        // Without a factor the parameter is not read.
        let factor = if self.first.has_factor { self.first.tensors } else { 0 };
        let arguments =
            vec![rule.numbers(), Argument::operand(factor), Argument::Registers, Argument::Table];
        let launch = Launch::kernel(source, "updates", count, THREADS, arguments);
        Call { table: self.table(&extents, &blocks), ..rule.call(launch, operands) }
    }

    /// The lines of all parts, then the part of each block.
    fn table(&self, extents: &[usize], blocks: &[usize]) -> Vec<Entry> {
        let (given, tensors) = (self.first.operands.len(), self.first.tensors);
        let mut table = Vec::new();
        let mut before = 0;
        for (member, (&extent, &blocks)) in extents.iter().zip(blocks).enumerate() {
            let operand = |index| Entry::Place(Slot::Operand(member * given + index));
            let result = |index| Entry::Place(Slot::Result(member * (tensors - 1) + index));
            table.extend((0..tensors).map(operand));
            table.extend((0..tensors - 1).map(result));
            table.extend([extent, before].map(|number| Entry::Number(number as u64)));
            before += blocks;
        }
        for (member, &blocks) in blocks.iter().enumerate() {
            table.extend(std::iter::repeat_n(Entry::Number(member as u64), blocks));
        }
        table
    }
}
