//! The value that a joined launch keeps in a product's place for others: the product with its bias.
//!
//! In training the backward pass reads a product again and adds the bias again, as that is cheaper than to keep the sum. If all
//! readers of a product begin with the same summand, the launch leaves the product *with* it in the product's register
//! (cuBLASLt's auxiliary output). The other readers are prepared without that step. The gradient of GELU is then an epilogue that
//! reads this register, and the sum of its rows, the gradient of the bias, comes along if it stands near.

use graphc_ir::op::Op;
use graphc_ir::ops::BinaryFunction;
use graphc_plan::{FusedArg, FusedOp, FusedStep};

/// The way in which a chain reads one of its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperandRead {
    /// The product as it is.
    Alone,
    /// The product in one step, which adds another operand to it and is no result.
    With {
        /// The operand that is added.
        summand: usize,
        /// The step.
        step: usize,
    },
}

impl OperandRead {
    /// Returns how the chain reads an operand; `None` where it does not, or in several ways.
    pub(super) fn from_chain(chain: &FusedOp, operand: usize) -> Option<Self> {
        let own = FusedArg::Operand(operand);
        let reads = |step: &&(usize, &FusedStep)| step.1.args.contains(&own);
        let readers: Vec<(usize, &FusedStep)> =
            chain.steps.iter().enumerate().filter(|step| reads(&step)).collect();
        let added = |step: &FusedStep| match (&step.op, &step.args[..]) {
            (Op::Binary(op), &[a, b]) if op.function == BinaryFunction::Add && a != b => {
                match if a == own { b } else { a } {
                    FusedArg::Operand(summand) => Some(summand),
                    FusedArg::Step(_) => None,
                }
            }
            _ => None,
        };
        match readers[..] {
            [] => None,
            [(step, reader)] => Some(match added(reader) {
                Some(summand) if !chain.outputs.contains(&step) => Self::With { summand, step },
                _ => Self::Alone,
            }),
            _ => Some(Self::Alone),
        }
    }

    /// Returns the value of the chain that is kept.
    pub(super) fn kept_value(self, operand: usize) -> FusedArg {
        match self {
            Self::Alone => FusedArg::Operand(operand),
            Self::With { step, .. } => FusedArg::Step(step),
        }
    }

    /// Rewrites the chain to read what is kept.
    pub(super) fn rewrite_chain(self, chain: &FusedOp, operand: usize) -> FusedOp {
        match self {
            Self::Alone => chain.clone(),
            Self::With { step, .. } => remove_step(chain, step, operand),
        }
    }
}

/// Removes a step from a chain whose value is an operand now.
fn remove_step(chain: &FusedOp, gone: usize, operand: usize) -> FusedOp {
    let moved = |step: usize| step - usize::from(step > gone);
    let arg = |arg: &FusedArg| match *arg {
        FusedArg::Step(step) if step == gone => FusedArg::Operand(operand),
        FusedArg::Step(step) => FusedArg::Step(moved(step)),
        FusedArg::Operand(operand) => FusedArg::Operand(operand),
    };
    let rest = chain.steps.iter().enumerate().filter(|&(index, _)| index != gone);
    let steps = rest.map(|(_, step)| FusedStep {
        op: step.op.clone(),
        args: step.args.iter().map(arg).collect(),
    });
    let steps = steps.collect();
    FusedOp { steps, outputs: chain.outputs.iter().map(|&output| moved(output)).collect() }
}

#[cfg(test)]
mod tests {
    use graphc_ir::ops::{Binary, Unary, UnaryFunction};

    use super::*;

    fn binary(function: BinaryFunction, args: [FusedArg; 2]) -> FusedStep {
        FusedStep { op: Op::Binary(Binary { function }), args: args.to_vec() }
    }

    fn tanh(x: FusedArg) -> FusedStep {
        FusedStep { op: Op::Unary(Unary { function: UnaryFunction::Tanh }), args: vec![x] }
    }

    #[test]
    fn a_summand_is_found_and_left_out() {
        use BinaryFunction::{Add, Mul};
        use FusedArg::{Operand as X, Step as S};
        let steps = vec![
            tanh(X(2)),
            binary(Add, [X(1), X(0)]),
            tanh(S(1)),
            binary(Mul, [S(1), S(2)]),
            binary(Mul, [S(0), S(3)]),
        ];
        let chain = FusedOp { steps, outputs: vec![4] };
        let reads = OperandRead::from_chain(&chain, 0).expect("it is read");
        assert_eq!(reads, OperandRead::With { summand: 1, step: 1 });
        let left = FusedOp {
            steps: vec![
                tanh(X(2)),
                tanh(X(0)),
                binary(Mul, [X(0), S(1)]),
                binary(Mul, [S(0), S(2)]),
            ],
            outputs: vec![3],
        };
        assert_eq!(reads.rewrite_chain(&chain, 0), left);
        // A sum that others read is not left out.
        let given = FusedOp { outputs: vec![1, 4], ..chain.clone() };
        assert_eq!(OperandRead::from_chain(&given, 0), Some(OperandRead::Alone));
        assert_eq!(OperandRead::from_chain(&chain, 2), Some(OperandRead::Alone));
        assert_eq!(OperandRead::from_chain(&chain, 3), None);
    }
}
