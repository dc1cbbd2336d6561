//! The outputs of an actor that may take the memory of an input: [`graphc_ir::op::Operation::in_place`], for actors.

use graphc_ir::op::{InPlace, Op};

use crate::{Action, Actor, BoxingKind, FusedArg, FusedOp, OperandSource};

/// An output that may take an operand's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The output: index among the actor's outputs.
    pub output: usize,
    /// The input: index among the actor's inputs.
    pub input: usize,
    /// Whether the bytes stay as they are, so that both may be read later.
    pub same_bytes: bool,
}

/// The pairs of an actor.
pub fn in_place_pairs(actor: &Actor, microbatches: usize) -> Vec<Pair> {
    match &actor.action {
        // A part of a tensor is read on all ranks before it is written on any.
        Action::Collective { kind: BoxingKind::AllReduce, .. } => (0..actor.outputs.len())
            .map(|tensor| Pair { output: tensor, input: tensor, same_bytes: false })
            .collect(),
        Action::Compute { op, operands } => compute_pairs(op, operands),
        Action::Fused(fused) => fused_pairs(fused),
        Action::Accumulate if microbatches == 1 => {
            vec![Pair { output: 0, input: 0, same_bytes: true }]
        }
        Action::Accumulate
        | Action::Collective { .. }
        | Action::Local { .. }
        | Action::Send { .. }
        | Action::Receive { .. }
        | Action::Assign
        | Action::Feed { .. }
        | Action::Fetch { .. } => Vec::new(),
    }
}

fn compute_pairs(op: &Op, operands: &[OperandSource]) -> Vec<Pair> {
    let updates = op.operation().updates();
    // A result in the place of a variable is no output: the others move up.
    let at_rest = |update: &&(usize, usize)| operands.get(update.1).is_some_and(|o| o.is_update());
    let output = |result: usize| {
        result - updates.iter().filter(|update| update.0 < result).filter(at_rest).count()
    };
    let pair = |InPlace { result, operand, same_bytes }| {
        let input = operands.get(operand)?.input_index()?;
        Some(Pair { output: output(result), input, same_bytes })
    };
    op.operation().in_place().into_iter().filter_map(pair).collect()
}

/// Blocks of a fused result are written as its step is evaluated: no later step may read the operand. What a chain begins with is
/// written before the other operands are read, so then no memory is shared.
fn fused_pairs(fused: &FusedOp) -> Vec<Pair> {
    if fused.steps.iter().any(|step| step.op.operation().begins_chain()) {
        return Vec::new();
    }
    let mut pairs = Vec::new();
    for (output, &step) in fused.outputs.iter().enumerate() {
        let Some(head) = fused.steps.get(..=step) else { continue };
        let later = &fused.steps[step + 1..];
        let reads = |input: usize| later.iter().any(|s| s.args.contains(&FusedArg::Operand(input)));
        let mut inputs: Vec<usize> = head
            .iter()
            .flat_map(|step| &step.args)
            .filter_map(|arg| match arg {
                FusedArg::Operand(operand) => Some(*operand),
                FusedArg::Step(_) => None,
            })
            .filter(|&input| !reads(input))
            .collect();
        inputs.sort_unstable();
        inputs.dedup();
        pairs.extend(inputs.into_iter().map(|input| Pair { output, input, same_bytes: false }));
    }
    pairs
}
