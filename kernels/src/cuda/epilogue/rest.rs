//! The steps of a chain besides the one that a product ends in.

use graphc_plan::{FusedArg, FusedOp, FusedStep};

use super::super::Shard;
use super::super::call::{Call, CallRegister, LaunchMemory};
use super::super::elementwise;
use super::super::headed::Renaming;

/// A chain that gives nothing.
pub(super) fn empty_chain() -> FusedOp {
    FusedOp { steps: Vec::new(), outputs: Vec::new() }
}

/// Returns all other results of a chain, as a chain of the value of one of its steps, which is then its only operand. `None` where they
/// need something else.
pub(super) fn rest_of_chain(chain: &FusedOp, step: usize) -> Option<FusedOp> {
    let outputs = chain.outputs.iter().copied().filter(|&output| output != step);
    let outputs: Vec<usize> = outputs.collect();
    let mut open = outputs.clone();
    let mut needed = Vec::new();
    while let Some(next) = open.pop() {
        if !needed.contains(&next) {
            needed.push(next);
            for arg in &chain.steps.get(next)?.args {
                match *arg {
                    FusedArg::Step(before) if before == step => {}
                    FusedArg::Step(before) => open.push(before),
                    FusedArg::Operand(_) => return None,
                }
            }
        }
    }
    needed.sort_unstable();
    let moved = |step: usize| needed.iter().position(|&own| own == step);
    let arg = |arg: &FusedArg| match *arg {
        FusedArg::Step(before) => moved(before).map_or(FusedArg::Operand(0), FusedArg::Step),
        FusedArg::Operand(operand) => FusedArg::Operand(operand),
    };
    let steps = needed.iter().map(|&step| FusedStep {
        op: chain.steps[step].op.clone(),
        args: chain.steps[step].args.iter().map(arg).collect(),
    });
    let steps = steps.collect();
    Some(FusedOp { steps, outputs: outputs.into_iter().map(moved).collect::<Option<_>>()? })
}

/// The launches of such a chain of `operand`, whose results are those at some places of all.
pub(super) fn prepare_rest(
    rest: &FusedOp,
    (operand, place): (&Shard, LaunchMemory),
    (results, own): (&[Shard], &[usize]),
) -> Option<Call> {
    let types: Vec<Shard> =
        own.iter().map(|&index| results.get(index).cloned()).collect::<Option<_>>()?;
    let mut call = elementwise::prepare_chain(rest, std::slice::from_ref(operand), &types).ok()?;
    let written: Vec<LaunchMemory> =
        own.iter().map(|&index| LaunchMemory::Slot(CallRegister::Result(index))).collect();
    Renaming { operands: &[place], results: &written, scratch: 0 }.apply(&mut call).ok()?;
    Some(call)
}
