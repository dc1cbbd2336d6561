//! A matrix product and the chain of elementwise ops behind it, where a library computes both: a summand, a bias and a function of what
//! comes out.

use graphc_ir::op::Op;
use graphc_ir::ops::{BinaryFunction, MatMul, UnaryFunction};
use graphc_ir::plan::{FusedArg, FusedOp};

use super::Shard;
use super::call::{Activation, Call, Epilogue, Launch, Place, Slot};
use super::product::product;

/// A chain behind a product.
#[derive(Clone, Copy, Debug)]
pub struct Behind<'a> {
    /// The chain.
    pub chain: &'a FusedOp,
    /// Its operands.
    pub operands: &'a [Shard],
    /// Which of them is the product, which nobody else reads.
    pub product: usize,
}

/// What a product of `factors` and the chain behind it are as one call: its operands are the factors, then those of the chain; its
/// result is the chain's, `out`. `None` where the library computes no such chain. Sums are rounded once, not after each step.
pub fn join_chain(
    op: &MatMul,
    factors: &[Shard; 2],
    behind: Behind<'_>,
    out: &Shard,
) -> Option<Call> {
    let made = behind.operands.get(behind.product)?;
    let [a, b] = factors;
    let plain = product(op, a, b, made).ok()?;
    let one = plain.batch == 1 && plain.starts.len() == 1;
    let some = plain.inner > 0 && out.elements() > 0;
    if !one || !some || !out.dtype().is_float() || made.shape() != out.shape() {
        return None;
    }
    let epilogue = Reading { behind, out, columns: plain.columns }.epilogue()?;
    Some(Call::of(vec![Launch::Product(super::Product { epilogue, ..plain })]))
}

/// What a chain is made of, where each step goes on from the one before.
struct Reading<'a> {
    behind: Behind<'a>,
    out: &'a Shard,
    columns: usize,
}

impl Reading<'_> {
    fn epilogue(&self) -> Option<Epilogue> {
        let FusedOp { steps, outputs } = self.behind.chain;
        if *outputs != [steps.len().checked_sub(1)?] {
            return None;
        }
        let mut epilogue = Epilogue::default();
        let mut value = FusedArg::Operand(self.behind.product);
        for (index, step) in steps.iter().enumerate() {
            self.take(&mut epilogue, &step.op, &step.args, value)?;
            value = FusedArg::Step(index);
        }
        Some(epilogue)
    }

    /// Takes a step that goes on from a value.
    fn take(&self, to: &mut Epilogue, op: &Op, args: &[FusedArg], value: FusedArg) -> Option<()> {
        if to.activation != Activation::None {
            return None;
        }
        match (op, args) {
            (Op::Binary(op), &[a, b]) if op.function == BinaryFunction::Add => {
                let other = if a == value { b } else { a };
                if (a == value) == (b == value) {
                    return None;
                }
                self.add(to, other)
            }
            (Op::Unary(op), &[x]) if x == value => {
                to.activation = match op.function {
                    UnaryFunction::Relu => Activation::Relu,
                    UnaryFunction::GeluTanh => Activation::GeluTanh,
                    _ => return None,
                };
                Some(())
            }
            _ => None,
        }
    }

    fn add(&self, to: &mut Epilogue, other: FusedArg) -> Option<()> {
        let FusedArg::Operand(index) = other else { return None };
        let shard = self.behind.operands.get(index)?;
        // Behind the factors.
        let place = Place::Slot(Slot::Operand(2 + index));
        let is_row = shard.shape().last() == Some(&self.columns);
        let slot = match () {
            () if shard.dtype() != self.out.dtype() => return None,
            () if is_row && shard.elements() == self.columns => &mut to.bias,
            () if shard.shape() == self.out.shape() => &mut to.added,
            () => return None,
        };
        match slot {
            Some(_) => None,
            None => {
                *slot = Some(place);
                Some(())
            }
        }
    }
}
