//! A matrix product and what reads it, what it updates, or what sums one of its factors, in one launch.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use graphc_ir::ids::RegisterId;
use graphc_ir::op::{InPlace, Op};
use graphc_ir::ops::MatMul;
use graphc_ir::plan::{Action, Actor, FusedArg, FusedOp, FusedStep, OperandSource};

use super::super::super::actor::Work;
use super::super::super::neighbours::{Beside, Pair, Pairs, overlap};
use super::super::Resolver;
use super::kept::Reads;
use crate::device::{self, Call, Launch, With};
use crate::error::RuntimeError;

/// The products of a program, as far as they are joined.
pub(super) struct Products<'a, 'b> {
    resolver: &'a Resolver<'b>,
    pairs: Pairs<'b>,
    works: HashMap<u32, Work>,
    /// Chains that read what is kept of a product.
    rewritten: BTreeMap<u32, FusedOp>,
}

/// A chain that reads a product.
struct Reader {
    actor: u32,
    chain: FusedOp,
    /// Which of its operands is the product.
    product: usize,
    reads: Reads,
}

impl Reader {
    /// The actor, and its chain where the product's place holds what it would compute of it first.
    fn rewritten(&self) -> (u32, FusedOp) {
        (self.actor, self.reads.rewritten(&self.chain, self.product))
    }
}

impl<'a, 'b> Products<'a, 'b> {
    pub(super) fn new(resolver: &'a Resolver<'b>, pairs: Pairs<'b>) -> Self {
        Self { resolver, pairs, works: HashMap::new(), rewritten: BTreeMap::new() }
    }

    /// Joins what may be joined: products with chains first.
    pub(super) fn join(&mut self) -> Result<(), RuntimeError> {
        let program = self.resolver.program;
        let actors = || (0..program.actors.len() as u32).zip(&program.actors);
        for (index, actor) in actors() {
            if let Some((op, _)) = product(actor) {
                self.behind(index, op)?;
            }
        }
        for (index, actor) in actors() {
            if let Action::Compute { op: Op::Reduce(_), .. } = &actor.action {
                self.beside(index)?;
            }
        }
        for (index, actor) in actors() {
            if let Action::Compute { op, operands } = &actor.action
                && !op.operation().updates().is_empty()
            {
                self.updating(index, op, operands)?;
            }
        }
        Ok(())
    }

    /// What becomes of actors, and those of them that are launched with others.
    pub(super) fn finish(mut self) -> Result<(HashMap<u32, Work>, BTreeSet<u32>), RuntimeError> {
        for (&index, chain) in &self.rewritten {
            if !self.works.contains_key(&index) {
                let actor = self.actor(index);
                let launch = self.resolver.launch(actor, Call::Fused(chain), &actor.outputs)?;
                self.works.insert(index, Work::Kernel(launch));
            }
        }
        let members = self.pairs.members();
        Ok((self.works, members))
    }

    /// Joins a product with a chain that reads it.
    fn behind(&mut self, first: u32, op: &MatMul) -> Result<(), RuntimeError> {
        let readers = self.pairs.readers(first).iter().map(|reader| self.reader(first, reader.0));
        let Some(readers) = readers.collect::<Option<Vec<Reader>>>() else { return Ok(()) };
        if readers.len() > 1 && !self.read_alike(&readers) {
            return Ok(());
        }
        for (at, second) in readers.iter().enumerate() {
            let keeps = (readers.len() > 1).then(|| second.reads.value(second.product));
            let Some(pair) = self.pairs.stand(first, second.actor, Beside::Behind) else {
                continue;
            };
            let Some((launch, along)) = self.ended(pair, op, second, keeps)? else { continue };
            self.take(pair, along, launch);
            let others = readers.iter().enumerate().filter(|&(other, _)| other != at);
            let changed = others.filter(|(_, other)| other.reads != Reads::Alone);
            self.rewritten.extend(changed.map(|(_, other)| other.rewritten()));
            return Ok(());
        }
        Ok(())
    }

    /// The launch of a product and a chain, and of the sum of what that gives if the launch gives it as well.
    fn ended(
        &self,
        pair: Pair,
        op: &MatMul,
        reader: &Reader,
        keeps: Option<FusedArg>,
    ) -> Result<Option<(Launch, Option<u32>)>, RuntimeError> {
        let given = &self.actor(pair.second).outputs;
        for sum in self.pairs.readers(pair.second).iter().map(|sum| sum.0) {
            if let Some(chain) = self.with_sum(&reader.chain, sum)
                && !self.works.contains_key(&sum)
                && self.pairs.goes_along(pair, sum)
            {
                let results = [&given[..], &self.actor(sum).outputs].concat();
                let launch = self.chain(pair, op, (reader, &chain, keeps), results)?;
                if let Some(launch) = launch {
                    return Ok(Some((launch, Some(sum))));
                }
            }
        }
        let launch = self.chain(pair, op, (reader, &reader.chain, keeps), given.clone())?;
        Ok(launch.map(|launch| (launch, None)))
    }

    /// A chain of one result that ends in what an actor does, where that is a reduction.
    fn with_sum(&self, chain: &FusedOp, actor: u32) -> Option<FusedOp> {
        let (Action::Compute { op, .. }, [last]) = (&self.actor(actor).action, &chain.outputs[..])
        else {
            return None;
        };
        let mut longer = chain.clone();
        longer.outputs.push(chain.steps.len());
        longer.steps.push(FusedStep { op: op.clone(), args: vec![FusedArg::Step(*last)] });
        matches!(op, Op::Reduce(_)).then_some(longer)
    }

    /// Joins a sum with a product of what is summed.
    fn beside(&mut self, sum: u32) -> Result<(), RuntimeError> {
        let [operand] = self.actor(sum).inputs[..] else { return Ok(()) };
        for (other, register) in self.pairs.readers_of(operand) {
            let Some((op, _)) = product(self.actor(other)) else { continue };
            let pair = [[sum, other], [other, sum]]
                .into_iter()
                .find_map(|[first, second]| self.pairs.stand(first, second, Beside::Sharing));
            if let Some(pair) = pair
                && let Some(launch) = self.sums(sum, (other, register), op)?
            {
                self.take(pair, None, launch);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Joins an update with the product that is its gradient.
    fn updating(
        &mut self,
        second: u32,
        op: &Op,
        operands: &[OperandSource],
    ) -> Result<(), RuntimeError> {
        let update = self.actor(second);
        let [operands, results] = self.resolver.registers(update, op, operands)?;
        let Some(first) = operands.get(1).and_then(|&gradient| self.pairs.writer(gradient)) else {
            return Ok(());
        };
        let given = self.actor(first);
        let is_alone = self.pairs.readers(first).len() == 1 && !self.works.contains_key(&first);
        let Some((product, factors)) = product(given).filter(|_| is_alone) else { return Ok(()) };
        let Some(pair) = self.pairs.stand(first, second, Beside::Updating) else { return Ok(()) };
        let [factors, gradient] = self.resolver.registers(given, &Op::MatMul(*product), factors)?;
        let factors = self.resolver.ports_of(given, &factors)?;
        let results = self.resolver.ports_of(update, &[gradient, results].concat())?;
        let operands = self.resolver.ports_of(update, &operands)?;
        let with = With::Update { update: op, operands };
        let joined = device::Pair { op: product, factors, with, results };
        if let Some(launch) = self.resolver.device.prepare_pair(&given.name, joined) {
            self.take(pair, None, launch);
        }
        Ok(())
    }

    fn take(&mut self, pair: Pair, along: Option<u32>, launch: Launch) {
        let [launched, other] = pair.launched();
        self.pairs.take(pair, along);
        self.works.insert(launched, Work::Kernel(launch));
        let others = [other].into_iter().chain(along);
        self.works.extend(others.map(|actor| (actor, Work::Joined(launched))));
    }

    /// The launch of a product and a chain, which is the reader's or a longer one and fills these registers.
    fn chain(
        &self,
        pair: Pair,
        op: &MatMul,
        (reader, chain, keeps): (&Reader, &FusedOp, Option<FusedArg>),
        mut results: Vec<RegisterId>,
    ) -> Result<Option<Launch>, RuntimeError> {
        let [first, second] = [pair.first, pair.second].map(|index| self.actor(index));
        let Some((_, operands)) = product(first) else { return Ok(None) };
        let [factors, _] = self.resolver.registers(first, &Op::MatMul(*op), operands)?;
        if keeps.is_some() {
            results.extend(&first.outputs);
        }
        let with = With::Chain {
            chain,
            operands: self.resolver.ports_of(second, &second.inputs)?,
            product: reader.product,
            keeps,
            shared: self.shared(second),
        };
        let factors = self.resolver.ports_of(first, &factors)?;
        let results = self.resolver.ports_of(second, &results)?;
        let pair = device::Pair { op, factors, with, results };
        Ok(self.resolver.device.prepare_pair(&first.name, pair))
    }

    /// The launch of a product and sums of one of its factors, which is a register.
    fn sums(
        &self,
        sum: u32,
        (other, register): (u32, RegisterId),
        op: &MatMul,
    ) -> Result<Option<Launch>, RuntimeError> {
        let [sum, other] = [sum, other].map(|index| self.actor(index));
        let (Action::Compute { op: Op::Reduce(reduce), .. }, Some((_, operands))) =
            (&sum.action, product(other))
        else {
            return Ok(None);
        };
        let [factors, _] = self.resolver.registers(other, &Op::MatMul(*op), operands)?;
        let Some(factor) = factors.iter().position(|&factor| factor == register) else {
            return Ok(None);
        };
        let factors = self.resolver.ports_of(other, &factors)?;
        let results = [&other.outputs[..], &sum.outputs].concat();
        let results = self.resolver.ports_of(other, &results)?;
        let operand = self.resolver.only(sum, &sum.inputs)?;
        let with = With::Sums { factor, operand, reduce };
        let pair = device::Pair { op, factors, with, results };
        Ok(self.resolver.device.prepare_pair(&other.name, pair))
    }

    /// How an actor reads a product, where it is a chain that is no part of a pair yet.
    fn reader(&self, first: u32, index: u32) -> Option<Reader> {
        let (made, actor) = (self.actor(first).outputs.first()?, self.actor(index));
        let product = actor.inputs.iter().position(|input| input == made)?;
        let known = self.rewritten.get(&index).cloned();
        let chain = known.or_else(|| chain(&actor.action))?;
        let reads = Reads::of(&chain, product)?;
        (!self.works.contains_key(&index)).then_some(Reader { actor: index, chain, product, reads })
    }

    /// Whether all of several chains read a product in the same way.
    fn read_alike(&self, readers: &[Reader]) -> bool {
        let summand = |reader: &Reader| match reader.reads {
            Reads::Alone => None,
            Reads::With { summand, .. } => Some(self.actor(reader.actor).inputs.get(summand)),
        };
        readers.windows(2).all(|pair| summand(&pair[0]) == summand(&pair[1]))
    }

    /// Results of an actor that lie in the memory of its operands.
    fn shared(&self, actor: &Actor) -> Vec<InPlace> {
        let results = actor.outputs.iter().enumerate();
        let pairs = results.flat_map(|result| {
            actor.inputs.iter().enumerate().map(move |operand| (result, operand))
        });
        pairs
            .filter(|&((_, result), (_, operand))| {
                overlap(self.resolver.program, *result, *operand)
            })
            .map(|((result, _), (operand, _))| InPlace::new(result, operand))
            .collect()
    }

    fn actor(&self, index: u32) -> &'b Actor {
        &self.resolver.program.actors[index as usize]
    }
}

/// The op and the operands of a matrix product.
fn product(actor: &Actor) -> Option<(&MatMul, &[OperandSource])> {
    match &actor.action {
        Action::Compute { op: Op::MatMul(op), operands } => Some((op, operands)),
        _ => None,
    }
}

/// What an actor does as a chain of elementwise ops, whose operands are its inputs.
fn chain(action: &Action) -> Option<FusedOp> {
    match action {
        Action::Fused(chain) => Some(chain.clone()),
        Action::Compute { op, operands } if op.operation().is_elementwise() => {
            let args = operands.iter().map(|operand| operand.input().map(FusedArg::Operand));
            let args = args.collect::<Option<_>>()?;
            let step = FusedStep { op: op.clone(), args };
            Some(FusedOp { steps: vec![step], outputs: vec![0] })
        }
        _ => None,
    }
}
