//! A matrix product and what stands behind it, as one call of a library that computes both (cuBLASLt's epilogues).
//!
//! The library's epilogue is: a matrix that is added, a bias, then ReLU, the tanh form of GELU, or the product of the gradient of
//! GELU with the result. A cast of a product of halves to f32 is one as well. The result is rounded once instead of after each
//! step.
//!
//! Conditions of the library:
//!
//! - A matrix that is kept for the gradient of GELU has rows of a multiple of [`Epilogue::KEPT`] elements.
//! - Sums have the type of the result.
//! - Nothing that is written shares memory with what is read, except the result with the matrix that is added.
//!
//! A chain that does not fit becomes a shorter epilogue with launches behind it, or two calls. The exact form of GELU and the gradient of
//! ReLU are no epilogues: the library takes the latter at a mask of bits that it kept, and graphc takes it at the result, which it has
//! anyway.
//!
//! Start reading with [`join_chain`], which follows a chain's steps from the product on as far as the library goes. What is left
//! may be sums of the result, which are launches behind the product. [`join_sums`] is the other case: a product, and the sums of
//! one of its factors over rows or columns, e.g. the gradient of a bias beside that of the weight.

mod gelu;
mod rest;

use graphc_ir::op::{InPlace, Op};
use graphc_ir::ops::{BinaryFunction, MatMul, Reduce, ReduceFunction, UnaryFunction};
use graphc_ir::types::DType;
use graphc_plan::{FusedArg, FusedOp};

use super::Shard;
use super::call::{
    Activation, Call, CallRegister, Epilogue, Launch, LaunchMemory, MatrixProduct, Summed,
};
use super::product::build_product;

/// A chain behind a product.
#[derive(Clone, Copy, Debug)]
pub struct Behind<'a> {
    /// The chain.
    pub chain: &'a FusedOp,
    /// Its operands.
    pub operands: &'a [Shard],
    /// The operand that is the product.
    pub product: usize,
    /// A value of the chain that others read later, in the product's place. Without one nobody else reads the product.
    pub keeps: Option<FusedArg>,
    /// Results of the chain that lie in the memory of its operands.
    pub shared: &'a [InPlace],
}

/// A product of `factors` and the chain behind it as one call. Its operands are the factors, then those of the chain; its
/// results are the chain's, and behind them the product's place where that keeps a value. `None` where the library computes no such
/// chain. Sums are rounded once, not after each step.
pub fn join_chain(
    op: &MatMul,
    factors: &[Shard; 2],
    behind: Behind<'_>,
    results: &[Shard],
) -> Option<Call> {
    let made = behind.operands.get(behind.product)?;
    let [a, b] = factors;
    let plain = single_product(op, [a, b], made)?;
    let reading = ChainReading { behind, made, results, columns: plain.columns };
    let ProductEnd { epilogue, step, rest } = reading.read_end()?;
    let out = results.get(reading.output(step)?)?;
    let place = reading.place(step)?;
    let alike = out.dtype() == made.dtype() || reading.is_cast(&epilogue, step);
    if !alike || out.shape() != made.shape() || !reading.is_apart(&epilogue) {
        return None;
    }
    let mut call = Call::empty();
    if !rest.outputs.is_empty() {
        call = reading.prepare_behind(out, step, &rest)?;
    }
    let operands = super::Operands { out: place, made: out.dtype(), ..plain.operands };
    call.launches.insert(0, Launch::Product(MatrixProduct { epilogue, operands, ..plain }));
    Some(call)
}

/// Sums of a factor of a product.
#[derive(Clone, Copy, Debug)]
pub struct Sums<'a> {
    /// The number of the factor.
    pub factor: usize,
    /// The elements of the factor as the reduction takes them, which may be in other rows.
    pub operand: &'a Shard,
    /// The reduction.
    pub reduce: &'a Reduce,
}

/// A product and sums of one of its factors as one call. Its operands are the factors, its results the product and the
/// sums. `None` where the library computes no such sums.
pub fn join_sums(
    op: &MatMul,
    factors: &[Shard; 2],
    Sums { factor, operand, reduce }: Sums<'_>,
    [made, sums]: [&Shard; 2],
) -> Option<Call> {
    let [a, b] = factors;
    let plain = single_product(op, [a, b], made)?;
    let x = factors.get(factor)?;
    let (which, turned, count) = match factor {
        0 => (Summed::First, op.transpose_a, plain.rows),
        _ => (Summed::Second, !op.transpose_b, plain.columns),
    };
    // A product sums over the columns of its first factor, and over the rows of its second.
    let last = operand.shape().len().checked_sub(1)?;
    let along = match turned {
        true => x.shape().len() == 2 && reduce.axes.iter().copied().eq(0..last),
        false => reduce.axes == [last],
    };
    let same = x.elements() == operand.elements() && x.shape().last() == operand.shape().last();
    let alike = [made, sums, operand].iter().all(|shard| shard.dtype() == x.dtype());
    let is_sum = reduce.function == ReduceFunction::Sum && sums.elements() == count;
    if !(along && same && alike && is_sum) {
        return None;
    }
    let place = LaunchMemory::Slot(CallRegister::Result(1));
    let epilogue = Epilogue { sums: Some((which, place)), ..Epilogue::default() };
    Some(Call::from_launches(vec![Launch::Product(MatrixProduct { epilogue, ..plain })]))
}

/// A product that the first microbatch writes into a sum, and that later ones add to it, as one call each. `None` where it is a batch of
/// products, or the sum is not `f32`.
pub fn join_accumulation(op: &MatMul, factors: &[Shard; 2], sum: &Shard) -> Option<[Call; 2]> {
    let [a, b] = factors;
    let plain = single_product(op, [a, b], sum)?;
    if sum.dtype() != DType::F32 || a.dtype() != b.dtype() || a.dtype().is_float8() {
        return None;
    }
    let operands = super::Operands { dtype: a.dtype(), ..plain.operands };
    let added = [None, Some(operands.out)];
    Some(added.map(|added| {
        let epilogue = Epilogue { added, ..Epilogue::default() };
        let product = MatrixProduct { epilogue, operands, ..plain.clone() };
        Call::from_launches(vec![Launch::Product(product)])
    }))
}

/// Prepares one product of floating-point numbers, not a batch of them, and not an empty one.
fn single_product(op: &MatMul, [a, b]: [&Shard; 2], out: &Shard) -> Option<MatrixProduct> {
    let plain = build_product(op, a, b, out).ok()?;
    let one = plain.batch == 1 && plain.starts.len() == 1;
    let some = plain.inner > 0 && out.elements() > 0;
    let floats = out.dtype().is_float() && a.dtype().is_float();
    (one && some && floats).then_some(plain)
}

/// A chain as it is read, each step going on from the one before.
struct ChainReading<'a> {
    behind: Behind<'a>,
    /// The product.
    made: &'a Shard,
    results: &'a [Shard],
    columns: usize,
}

/// The end of a product.
struct ProductEnd {
    epilogue: Epilogue,
    /// The chain's step that is the product's result.
    step: usize,
    /// The other values that the chain gives, of that step alone.
    rest: FusedOp,
}

impl ChainReading<'_> {
    fn read_end(&self) -> Option<ProductEnd> {
        let mut epilogue = Epilogue::default();
        let mut value = FusedArg::Operand(self.behind.product);
        while !self.is_result(value)
            && self.behind.keeps != Some(value)
            && let Some(step) = self.only_reader(value)
            && self.take_addition(&mut epilogue, step, value).is_some()
        {
            value = FusedArg::Step(step);
        }
        match self.behind.keeps.is_some() || self.is_result(value) {
            true if self.readers(value).next().is_none() => self.plain_end(epilogue, value),
            true => self.kept_end(epilogue, value),
            false => {
                self.applied_end(epilogue, value).or_else(|| self.gradient_end(epilogue, value))
            }
        }
    }

    /// Sums alone.
    fn plain_end(&self, epilogue: Epilogue, value: FusedArg) -> Option<ProductEnd> {
        match value {
            FusedArg::Step(step) if self.behind.chain.outputs == [step] => {
                Some(ProductEnd { epilogue, step, rest: rest::empty_chain() })
            }
            _ => None,
        }
    }

    /// A function of sums, or the product in f32.
    fn applied_end(&self, epilogue: Epilogue, value: FusedArg) -> Option<ProductEnd> {
        let [output] = self.behind.chain.outputs[..] else { return None };
        let last = self.behind.chain.steps.get(output)?;
        let is_relu = matches!(&last.op, Op::Unary(op) if op.function == UnaryFunction::Relu);
        let activation = match () {
            () if is_relu && last.args == [value] => Activation::Relu,
            () if last.args == [value] && self.is_cast(&epilogue, output) => Activation::None,
            () if gelu::is_gelu(self.behind.chain, value, output) => Activation::GeluTanh,
            () => return None,
        };
        let epilogue = Epilogue { activation, ..epilogue };
        Some(ProductEnd { epilogue, step: output, rest: rest::empty_chain() })
    }

    /// Whether a step makes a product of halves one of f32, which nothing else is done to: the library does not round it then.
    fn is_cast(&self, epilogue: &Epilogue, step: usize) -> bool {
        let plain = *epilogue == Epilogue::default();
        plain && matches!(&self.behind.chain.steps[step].op, Op::Cast(op) if op.dtype == DType::F32)
    }

    /// GELU of sums, which are kept.
    fn kept_end(&self, epilogue: Epilogue, value: FusedArg) -> Option<ProductEnd> {
        let outputs = &self.behind.chain.outputs;
        let (place, mut others) = match (self.behind.keeps, value) {
            (Some(keeps), value) if keeps == value => {
                (CallRegister::Result(outputs.len()), outputs.iter().collect::<Vec<_>>())
            }
            (None, FusedArg::Step(step)) => {
                let others = outputs.iter().filter(|&&output| output != step);
                (CallRegister::Result(self.output(step)?), others.collect())
            }
            _ => return None,
        };
        let output = *others.pop()?;
        let is_gelu = others.is_empty() && gelu::is_gelu(self.behind.chain, value, output);
        let CallRegister::Result(index) = place else { return None };
        let kept = self.results.get(index).is_some_and(|kept| self.can_be_kept(kept));
        (is_gelu && kept).then(|| {
            let kept = Some(LaunchMemory::Slot(place));
            let epilogue = Epilogue { activation: Activation::GeluTanh, kept, ..epilogue };
            ProductEnd { epilogue, step: output, rest: rest::empty_chain() }
        })
    }

    /// The gradient of GELU, and maybe sums of that.
    fn gradient_end(&self, epilogue: Epilogue, value: FusedArg) -> Option<ProductEnd> {
        let chain = self.behind.chain;
        if epilogue.bias.is_some() {
            return None;
        }
        let sums = |&&step: &&usize| matches!(chain.steps[step].op, Op::Reduce(_));
        let mut made = chain.outputs.iter().filter(|step| !sums(step));
        let (Some(&step), None) = (made.next(), made.next()) else { return None };
        let operand = gelu::is_gradient(chain, value, step)?;
        if !self.behind.operands.get(operand).is_some_and(|kept| self.can_be_kept(kept)) {
            return None;
        }
        let kept = Some(LaunchMemory::Slot(CallRegister::Operand(2 + operand)));
        let epilogue = Epilogue { activation: Activation::GeluTanhGrad, kept, ..epilogue };
        match self.sums_of(step) {
            Some(place) => {
                let sums = Some((Summed::Result, place));
                Some(ProductEnd {
                    epilogue: Epilogue { sums, ..epilogue },
                    step,
                    rest: rest::empty_chain(),
                })
            }
            None => Some(ProductEnd { epilogue, step, rest: rest::rest_of_chain(chain, step)? }),
        }
    }

    /// Returns the memory of the result that takes the sums of a step's rows; `None` unless that is the chain's only other result.
    fn sums_of(&self, step: usize) -> Option<LaunchMemory> {
        let chain = self.behind.chain;
        let mut others = (0..chain.outputs.len()).filter(|&at| chain.outputs[at] != step);
        let (Some(index), None) = (others.next(), others.next()) else { return None };
        let summed = &chain.steps[chain.outputs[index]];
        let Op::Reduce(reduce) = &summed.op else { return None };
        let rows = self.made.shape().len() - 1;
        let of_rows = reduce.axes.iter().copied().eq(0..rows);
        let fits = reduce.function == ReduceFunction::Sum && of_rows;
        let result = self.results.get(index)?;
        let alike = result.dtype() == self.made.dtype() && summed.args == [FusedArg::Step(step)];
        (fits && alike).then_some(LaunchMemory::Slot(CallRegister::Result(index)))
    }

    /// Whether the library can keep what a function is taken of in a matrix, or read it there.
    fn can_be_kept(&self, kept: &Shard) -> bool {
        let alike = kept.dtype() == self.made.dtype() && kept.shape() == self.made.shape();
        alike && self.columns.is_multiple_of(Epilogue::KEPT)
    }

    /// The steps that read a value.
    fn readers(&self, value: FusedArg) -> impl Iterator<Item = usize> {
        let steps = self.behind.chain.steps.iter().enumerate();
        steps.filter(move |(_, step)| step.args.contains(&value)).map(|(index, _)| index)
    }

    /// The only step that reads a value.
    fn only_reader(&self, value: FusedArg) -> Option<usize> {
        let mut readers = self.readers(value);
        readers.next().filter(|_| readers.next().is_none())
    }

    fn is_result(&self, value: FusedArg) -> bool {
        matches!(value, FusedArg::Step(step) if self.behind.chain.outputs.contains(&step))
    }

    /// Returns the number of the result that a step gives.
    fn output(&self, step: usize) -> Option<usize> {
        self.behind.chain.outputs.iter().position(|&output| output == step)
    }

    fn place(&self, step: usize) -> Option<LaunchMemory> {
        self.output(step).map(|index| LaunchMemory::Slot(CallRegister::Result(index)))
    }

    /// Takes a step that adds something to a value.
    fn take_addition(&self, to: &mut Epilogue, step: usize, value: FusedArg) -> Option<()> {
        let step = &self.behind.chain.steps[step];
        match (&step.op, &step.args[..]) {
            (Op::Binary(op), &[a, b]) if op.function == BinaryFunction::Add && a != b => {
                self.take_summand(to, if a == value { b } else { a })
            }
            _ => None,
        }
    }

    fn take_summand(&self, to: &mut Epilogue, other: FusedArg) -> Option<()> {
        let FusedArg::Operand(index) = other else { return None };
        let shard = self.behind.operands.get(index)?;
        // Behind the factors.
        let place = LaunchMemory::Slot(CallRegister::Operand(2 + index));
        let is_row = shard.shape().last() == Some(&self.columns);
        let slot = match () {
            () if shard.dtype() != self.made.dtype() => return None,
            () if is_row && shard.elements() == self.columns => &mut to.bias,
            () if shard.shape() == self.made.shape() => &mut to.added,
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

    /// Whether nothing is written over what is read, but the result over what is added to it.
    fn is_apart(&self, epilogue: &Epilogue) -> bool {
        self.behind.shared.iter().all(|pair| {
            let [operand, result] =
                [CallRegister::Operand(2 + pair.operand), CallRegister::Result(pair.result)];
            let [operand, result] = [operand, result].map(|slot| Some(LaunchMemory::Slot(slot)));
            let is_gone = pair.operand == self.behind.product && self.behind.keeps.is_none();
            let only_added = epilogue.kept != result && epilogue.bias != operand;
            is_gone || only_added && epilogue.kept != operand
        })
    }

    /// The launches behind the product, of which `out` is step `step`.
    fn prepare_behind(&self, out: &Shard, step: usize, rest: &FusedOp) -> Option<Call> {
        let others: Vec<usize> = (0..self.behind.chain.outputs.len())
            .filter(|&at| self.behind.chain.outputs[at] != step)
            .collect();
        rest::prepare_rest(rest, (out, self.place(step)?), (self.results, &others))
    }
}
