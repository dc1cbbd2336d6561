//! A matrix product and what reads it, what it updates, or what sums one of its factors, in one launch.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use graphc_ir::ids::RegisterId;
use graphc_ir::op::{InPlace, Op};
use graphc_ir::ops::MatMul;
use graphc_plan::{Action, Actor, FusedArg, FusedOp, FusedStep, OperandSource};

use super::super::super::actor::PreparedWork;
use super::super::super::neighbours::{ActorPair, ActorPairs, PairRelation, registers_overlap};
use super::super::ActorResolver;
use super::kept::OperandRead;
use crate::device::{self, DeviceCall, DeviceLaunch, With};
use crate::error::RuntimeError;

/// The products of a program, as far as they are joined.
pub(super) struct JoinedProducts<'a, 'b> {
    resolver: &'a ActorResolver<'b>,
    pairs: ActorPairs<'b>,
    works: HashMap<u32, PreparedWork>,
    /// Chains that read what is kept of a product.
    rewritten: BTreeMap<u32, FusedOp>,
}

/// A chain that reads a product.
struct ProductReader {
    actor: u32,
    chain: FusedOp,
    /// The index of its operand that is the product.
    product: usize,
    reads: OperandRead,
}

impl ProductReader {
    /// Returns the actor and its chain, rewritten where the product's place holds what it would compute of it first.
    fn rewrite_chain(&self) -> (u32, FusedOp) {
        (self.actor, self.reads.rewrite_chain(&self.chain, self.product))
    }
}

impl<'a, 'b> JoinedProducts<'a, 'b> {
    pub(super) fn new(resolver: &'a ActorResolver<'b>, pairs: ActorPairs<'b>) -> Self {
        Self { resolver, pairs, works: HashMap::new(), rewritten: BTreeMap::new() }
    }

    /// Joins what may be joined: products with sums over microbatches first, then with chains.
    pub(super) fn join_all(&mut self) -> Result<(), RuntimeError> {
        let program = self.resolver.program;
        let actors = || (0..program.actors.len() as u32).zip(&program.actors);
        for (index, actor) in actors() {
            if let Some((op, _)) = as_product(actor)
                && !self.join_accumulation(index, op)?
            {
                self.join_chain(index, op)?;
            }
        }
        for (index, actor) in actors() {
            if let Action::Compute { op: Op::Reduce(_), .. } = &actor.action {
                self.join_sum(index)?;
            }
        }
        for (index, actor) in actors() {
            if let Action::Compute { op, operands } = &actor.action
                && !op.operation().updates().is_empty()
            {
                self.join_update(index, op, operands)?;
            }
        }
        Ok(())
    }

    /// Returns the work of the actors, and those of them that are launched with others.
    pub(super) fn finish(
        mut self,
    ) -> Result<(HashMap<u32, PreparedWork>, BTreeSet<u32>), RuntimeError> {
        for (&index, chain) in &self.rewritten {
            if !self.works.contains_key(&index) {
                let actor = self.actor(index);
                let launch =
                    self.resolver.prepare_actor(actor, DeviceCall::Fused(chain), &actor.outputs)?;
                self.works.insert(index, PreparedWork::Kernel(launch));
            }
        }
        let members = self.pairs.members();
        Ok((self.works, members))
    }

    /// Joins a product with the sum over microbatches to which nothing else adds, past a cast between them. Returns whether it did.
    fn join_accumulation(&mut self, first: u32, op: &MatMul) -> Result<bool, RuntimeError> {
        let Some((pair, along)) = self.find_accumulation(first) else { return Ok(false) };
        let (given, taken) = (self.actor(first), self.actor(along.unwrap_or(pair.second)));
        let Some((_, factors)) = as_product(given) else { return Ok(false) };
        let [factors, _] = self.resolver.op_registers(given, &Op::MatMul(*op), factors)?;
        let factors = self.resolver.ports_of(given, &factors)?;
        let results = self.resolver.ports_of(taken, &taken.outputs)?;
        let joined = device::ProductPair { op, factors, with: With::Accumulation, results };
        let Some(launch) = self.resolver.device.prepare_pair(&given.name, joined) else {
            return Ok(false);
        };
        self.take_pair(pair, along, launch);
        Ok(true)
    }

    /// Finds the sum over microbatches that alone reads a product, or the cast that alone does and that goes with the sum.
    fn find_accumulation(&self, first: u32) -> Option<(ActorPair, Option<u32>)> {
        let accumulates = |actor: u32| matches!(self.actor(actor).action, Action::Accumulate);
        let [second] = self.pairs.readers(first) else { return None };
        match &self.actor(second.0).action {
            Action::Accumulate => {
                let pair = self.pairs.find_pair(first, second.0, PairRelation::Behind)?;
                Some((pair, None))
            }
            Action::Compute { op: Op::Cast(_), .. } => {
                let pair = self.pairs.find_pair(first, second.0, PairRelation::Through)?;
                let [sum] = self.pairs.readers(pair.second) else { return None };
                let joins = accumulates(sum.0) && self.pairs.goes_along(pair, sum.0);
                joins.then_some((pair, Some(sum.0)))
            }
            _ => None,
        }
    }

    /// Joins a product with a chain that reads it.
    fn join_chain(&mut self, first: u32, op: &MatMul) -> Result<(), RuntimeError> {
        let readers =
            self.pairs.readers(first).iter().map(|reader| self.find_reader(first, reader.0));
        let Some(readers) = readers.collect::<Option<Vec<ProductReader>>>() else { return Ok(()) };
        if readers.len() > 1 && !self.read_alike(&readers) {
            return Ok(());
        }
        for (at, second) in readers.iter().enumerate() {
            let keeps = (readers.len() > 1).then(|| second.reads.kept_value(second.product));
            let Some(pair) = self.pairs.find_pair(first, second.actor, PairRelation::Behind) else {
                continue;
            };
            let Some((launch, along)) = self.prepare_chain_and_sum(pair, op, second, keeps)? else {
                continue;
            };
            self.take_pair(pair, along, launch);
            let others = readers.iter().enumerate().filter(|&(other, _)| other != at);
            let changed = others.filter(|(_, other)| other.reads != OperandRead::Alone);
            self.rewritten.extend(changed.map(|(_, other)| other.rewrite_chain()));
            return Ok(());
        }
        Ok(())
    }

    /// Prepares the launch of a product and a chain, and of the sum of what that gives if the launch gives it as well.
    fn prepare_chain_and_sum(
        &self,
        pair: ActorPair,
        op: &MatMul,
        reader: &ProductReader,
        keeps: Option<FusedArg>,
    ) -> Result<Option<(DeviceLaunch, Option<u32>)>, RuntimeError> {
        let given = &self.actor(pair.second).outputs;
        for sum in self.pairs.readers(pair.second).iter().map(|sum| sum.0) {
            if let Some(chain) = self.with_sum(&reader.chain, sum)
                && !self.works.contains_key(&sum)
                && self.pairs.goes_along(pair, sum)
            {
                let results = [&given[..], &self.actor(sum).outputs].concat();
                let launch = self.prepare_chain(pair, op, (reader, &chain, keeps), results)?;
                if let Some(launch) = launch {
                    return Ok(Some((launch, Some(sum))));
                }
            }
        }
        let launch = self.prepare_chain(pair, op, (reader, &reader.chain, keeps), given.clone())?;
        Ok(launch.map(|launch| (launch, None)))
    }

    /// Appends what an actor does to a chain of one result, where that is a reduction.
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
    fn join_sum(&mut self, sum: u32) -> Result<(), RuntimeError> {
        let [operand] = self.actor(sum).inputs[..] else { return Ok(()) };
        for (other, register) in self.pairs.readers_of(operand) {
            let Some((op, _)) = as_product(self.actor(other)) else { continue };
            let pair = [[sum, other], [other, sum]].into_iter().find_map(|[first, second]| {
                self.pairs.find_pair(first, second, PairRelation::Sharing)
            });
            if let Some(pair) = pair
                && let Some(launch) = self.prepare_sums(sum, (other, register), op)?
            {
                self.take_pair(pair, None, launch);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Joins an update with the product that is its gradient.
    fn join_update(
        &mut self,
        second: u32,
        op: &Op,
        operands: &[OperandSource],
    ) -> Result<(), RuntimeError> {
        let update = self.actor(second);
        let [operands, results] = self.resolver.op_registers(update, op, operands)?;
        let Some(first) = operands.get(1).and_then(|&gradient| self.pairs.sole_writer(gradient))
        else {
            return Ok(());
        };
        let given = self.actor(first);
        let is_alone = self.pairs.readers(first).len() == 1 && !self.works.contains_key(&first);
        let Some((product, factors)) = as_product(given).filter(|_| is_alone) else {
            return Ok(());
        };
        let Some(pair) = self.pairs.find_pair(first, second, PairRelation::Updating) else {
            return Ok(());
        };
        let [factors, gradient] =
            self.resolver.op_registers(given, &Op::MatMul(*product), factors)?;
        let factors = self.resolver.ports_of(given, &factors)?;
        let results = self.resolver.ports_of(update, &[gradient, results].concat())?;
        let operands = self.resolver.ports_of(update, &operands)?;
        let with = With::Update { update: op, operands };
        let joined = device::ProductPair { op: product, factors, with, results };
        if let Some(launch) = self.resolver.device.prepare_pair(&given.name, joined) {
            self.take_pair(pair, None, launch);
        }
        Ok(())
    }

    fn take_pair(&mut self, pair: ActorPair, along: Option<u32>, launch: DeviceLaunch) {
        let [launched, other] = pair.launch_order();
        self.pairs.take_pair(pair, along);
        self.works.insert(launched, PreparedWork::Kernel(launch));
        let others = [other].into_iter().chain(along);
        self.works.extend(others.map(|actor| (actor, PreparedWork::Joined(launched))));
    }

    /// Prepares the launch of a product and a chain, which is the reader's or a longer one and fills these registers.
    fn prepare_chain(
        &self,
        pair: ActorPair,
        op: &MatMul,
        (reader, chain, keeps): (&ProductReader, &FusedOp, Option<FusedArg>),
        mut results: Vec<RegisterId>,
    ) -> Result<Option<DeviceLaunch>, RuntimeError> {
        let [first, second] = [pair.first, pair.second].map(|index| self.actor(index));
        let Some((_, operands)) = as_product(first) else { return Ok(None) };
        let [factors, _] = self.resolver.op_registers(first, &Op::MatMul(*op), operands)?;
        if keeps.is_some() {
            results.extend(&first.outputs);
        }
        let with = With::Chain {
            chain,
            operands: self.resolver.ports_of(second, &second.inputs)?,
            product: reader.product,
            keeps,
            shared: self.in_place_results(second),
        };
        let factors = self.resolver.ports_of(first, &factors)?;
        let results = self.resolver.ports_of(second, &results)?;
        let pair = device::ProductPair { op, factors, with, results };
        Ok(self.resolver.device.prepare_pair(&first.name, pair))
    }

    /// Prepares the launch of a product and sums of one of its factors, which is a register.
    fn prepare_sums(
        &self,
        sum: u32,
        (other, register): (u32, RegisterId),
        op: &MatMul,
    ) -> Result<Option<DeviceLaunch>, RuntimeError> {
        let [sum, other] = [sum, other].map(|index| self.actor(index));
        let (Action::Compute { op: Op::Reduce(reduce), .. }, Some((_, operands))) =
            (&sum.action, as_product(other))
        else {
            return Ok(None);
        };
        let [factors, _] = self.resolver.op_registers(other, &Op::MatMul(*op), operands)?;
        let Some(factor) = factors.iter().position(|&factor| factor == register) else {
            return Ok(None);
        };
        let factors = self.resolver.ports_of(other, &factors)?;
        let results = [&other.outputs[..], &sum.outputs].concat();
        let results = self.resolver.ports_of(other, &results)?;
        let operand = self.resolver.only_port(sum, &sum.inputs)?;
        let with = With::Sums { factor, operand, reduce };
        let pair = device::ProductPair { op, factors, with, results };
        Ok(self.resolver.device.prepare_pair(&other.name, pair))
    }

    /// Finds how an actor reads a product, where it is a chain that is no part of a pair yet.
    fn find_reader(&self, first: u32, index: u32) -> Option<ProductReader> {
        let (made, actor) = (self.actor(first).outputs.first()?, self.actor(index));
        let product = actor.inputs.iter().position(|input| input == made)?;
        let known = self.rewritten.get(&index).cloned();
        let chain = known.or_else(|| as_chain(&actor.action))?;
        let reads = OperandRead::from_chain(&chain, product)?;
        (!self.works.contains_key(&index)).then_some(ProductReader {
            actor: index,
            chain,
            product,
            reads,
        })
    }

    /// Whether all of several chains read a product in the same way.
    fn read_alike(&self, readers: &[ProductReader]) -> bool {
        let summand = |reader: &ProductReader| match reader.reads {
            OperandRead::Alone => None,
            OperandRead::With { summand, .. } => Some(self.actor(reader.actor).inputs.get(summand)),
        };
        readers.windows(2).all(|pair| summand(&pair[0]) == summand(&pair[1]))
    }

    /// Results of an actor that lie in the memory of its operands.
    fn in_place_results(&self, actor: &Actor) -> Vec<InPlace> {
        let results = actor.outputs.iter().enumerate();
        let pairs = results.flat_map(|result| {
            actor.inputs.iter().enumerate().map(move |operand| (result, operand))
        });
        pairs
            .filter(|&((_, result), (_, operand))| {
                registers_overlap(self.resolver.program, *result, *operand)
            })
            .map(|((result, _), (operand, _))| InPlace::new(result, operand))
            .collect()
    }

    fn actor(&self, index: u32) -> &'b Actor {
        &self.resolver.program.actors[index as usize]
    }
}

/// Returns the op and the operands of a matrix product.
fn as_product(actor: &Actor) -> Option<(&MatMul, &[OperandSource])> {
    match &actor.action {
        // Numbers of 8 bits come with their sizes, and go alone.
        Action::Compute { op: Op::MatMul(op), operands } if operands.len() == 2 => {
            Some((op, operands))
        }
        _ => None,
    }
}

/// Returns an actor's work as a chain of elementwise ops, whose operands are its inputs.
fn as_chain(action: &Action) -> Option<FusedOp> {
    match action {
        Action::Fused(chain) => Some(chain.clone()),
        Action::Compute { op, operands } if op.operation().is_elementwise() => {
            let args = operands.iter().map(|operand| operand.input_index().map(FusedArg::Operand));
            let args = args.collect::<Option<_>>()?;
            let step = FusedStep { op: op.clone(), args };
            Some(FusedOp { steps: vec![step], outputs: vec![0] })
        }
        _ => None,
    }
}
