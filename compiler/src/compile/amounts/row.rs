//! Puts all ops that may be recomputed in one row, ordered by the cost of the bytes that they free.
//!
//! A plan in which everything is recomputed tells the seconds of each op and the bytes of each tensor. The row has the steps from each corner of a
//! block's [`frontier`](super::frontier) to the next, ordered by price. Steps of one price are ordered by block.
//!
//! In a pipeline each stage has an order of its own. The slowest stage decides how long a step takes, so if one stage recomputes something, the
//! others may too, at no cost. All stages go on together, by the seconds that each has spent. So stages with fewer microbatches under way keep memory
//! for a second stream.

use std::collections::{BTreeMap, BTreeSet};

use graphc_ir::graph::Node;
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::Op;
use graphc_plan::{RecomputedOp, RecomputedOps, Schedule};

use super::frontier::{Corner, FrontierBlock, FrontierTensor, UNITS, find_frontier};
use super::search::{Amounts, More};
use crate::boxing::shard_bytes;
use crate::decisions::{Decisions, Phase, ValueRate};
use crate::passes::error::PassError;
use crate::passes::recompute::{Blocks, Extent, OpPlace, recompute_with_origins};
use crate::planner::Planned;
use crate::schedule::under_way;

/// A plan in which everything is recomputed.
pub(crate) struct FullRecompute<'a> {
    /// The decisions that it was made from.
    pub decisions: &'a Decisions,
    /// The plan.
    pub planned: &'a Planned,
    /// The seconds of each of its nodes: see [`account_by_node`](crate::planner::account_by_node).
    pub seconds: Vec<f64>,
    /// The order of its microbatches.
    pub schedule: Schedule,
}

/// All steps, in order.
#[derive(Debug)]
pub(crate) struct Row {
    steps: Vec<RowStep>,
}

/// Ops of a block that are recomputed together.
#[derive(Clone, Debug)]
struct RowStep {
    ops: Vec<OpPlace>,
    more: More,
}

impl Row {
    /// Makes the row of a graph in which nothing is recomputed yet.
    ///
    /// # Errors
    /// Returns an error if an op does not take its operands.
    pub(crate) fn new(decisions: &Decisions, full: &FullRecompute<'_>) -> Result<Self, PassError> {
        let (_, origins) = recompute_with_origins(decisions.to_rated(), Extent::Full)?;
        let prices = RecomputePrices::new(decisions, full, &origins);
        let blocks = Blocks::new(&decisions.training, &decisions.rates);
        let mut known: BTreeMap<FrontierBlock, Vec<Corner>> = BTreeMap::new();
        let mut all = Vec::new();
        for (number, ops) in blocks.ops.iter().enumerate() {
            let (block, places) = prices.build_block(ops, &blocks.repeatable);
            let corners = known.entry(block.clone()).or_insert_with(|| find_frontier(&block));
            let place = |op: usize| OpPlace { block: number, place: places[op] };
            let stage = decisions.staging.stage[ops[0].index()];
            let everything = block.full_corner();
            all.extend(list_steps(stage, corners.iter().chain([&everything]), place));
        }
        Ok(Self { steps: by_spent(by_price(all)) })
    }

    /// Returns the amounts of the row, for ranks of `limit` bytes.
    pub(crate) fn amounts(&self, limit: u64) -> Amounts {
        Amounts::new(self.steps.iter().map(|step| step.more).collect(), limit)
    }

    /// Returns the ops that an amount recomputes.
    pub(crate) fn ops(&self, amount: usize) -> BTreeSet<OpPlace> {
        self.steps[..amount].iter().flat_map(|step| &step.ops).copied().collect()
    }
}

/// Lists the steps from each of these sets to the next.
fn list_steps<'a>(
    stage: usize,
    corners: impl Iterator<Item = &'a Corner>,
    place: impl Fn(usize) -> OpPlace,
) -> Vec<RowStep> {
    let corners: Vec<&Corner> = corners.collect();
    let step = |pair: &[&Corner]| {
        let (before, after) = (pair[0], pair[1]);
        let ops = (0..after.again.len()).filter(|&op| after.again[op] && !before.again[op]);
        let seconds = (after.units - before.units) as f64 / UNITS;
        let bytes = before.bytes.saturating_sub(after.bytes);
        RowStep { ops: ops.map(&place).collect(), more: More { seconds, stage, bytes } }
    };
    corners.windows(2).map(step).filter(|step| !step.ops.is_empty()).collect()
}

/// Orders the steps by price. Steps of equal price stay in the order of blocks.
fn by_price(mut steps: Vec<RowStep>) -> Vec<RowStep> {
    steps.sort_by(|one, other| one.seconds_per_byte().total_cmp(&other.seconds_per_byte()));
    steps
}

/// Orders the steps by the seconds that their stage has spent with each.
fn by_spent(steps: Vec<RowStep>) -> Vec<RowStep> {
    let mut spent: BTreeMap<usize, f64> = BTreeMap::new();
    let spent = |step: RowStep| {
        let spent = spent.entry(step.more.stage).or_default();
        *spent += step.more.seconds;
        (*spent, step)
    };
    let mut steps: Vec<(f64, RowStep)> = steps.into_iter().map(spent).collect();
    steps.sort_by(|one, other| one.0.total_cmp(&other.0));
    steps.into_iter().map(|(_, step)| step).collect()
}

impl RowStep {
    /// Returns the price: seconds for a byte.
    fn seconds_per_byte(&self) -> f64 {
        let More { seconds, bytes, .. } = self.more;
        if bytes == 0 { f64::INFINITY } else { seconds / bytes as f64 }
    }
}

/// The prices of ops and the bytes of tensors.
struct RecomputePrices<'a> {
    decisions: &'a Decisions,
    full: &'a FullRecompute<'a>,
    readers: Vec<Vec<NodeId>>,
    readers_of_full: Vec<Vec<NodeId>>,
    /// The node that recomputes each node in the plan.
    copies: Vec<Option<NodeId>>,
    /// The node that computes each node in the forward pass of the plan.
    firsts: Vec<Option<NodeId>>,
    under_way: Vec<Vec<usize>>,
}

impl<'a> RecomputePrices<'a> {
    /// Finds the copies of each node in the plan. `origins` has, for each node of the plan except for those that gather again, the node that it is or
    /// recomputes.
    fn new(decisions: &'a Decisions, full: &'a FullRecompute<'a>, origins: &[NodeId]) -> Self {
        let nodes = decisions.graph().nodes.len();
        let (mut copies, mut firsts) = (vec![None; nodes], vec![None; nodes]);
        let computes = |(_, node): &(NodeId, &Node)| !matches!(node.op, Op::Regather(_));
        let planned = full.decisions.graph().iter().filter(computes);
        for ((id, _), origin) in planned.zip(origins) {
            let phase = full.decisions.training.phases[id.index()];
            let is_copy = decisions.training.phases[origin.index()] != phase;
            let known = if is_copy { &mut copies } else { &mut firsts };
            known[origin.index()] = Some(id);
        }
        let (stages, microbatches) = (decisions.staging.stages, decisions.rates.microbatches);
        Self {
            decisions,
            full,
            readers: decisions.graph().list_consumers(),
            readers_of_full: full.decisions.graph().list_consumers(),
            copies,
            firsts,
            under_way: under_way(full.schedule, stages, microbatches),
        }
    }

    /// Makes a block with these ops as a problem of its own, and returns it with the index of each of its ops.
    fn build_block(&self, ops: &[NodeId], repeatable: &[bool]) -> (FrontierBlock, Vec<usize>) {
        let again = |place: &usize| self.copies[ops[*place].index()].is_some();
        let places: Vec<usize> = (0..ops.len()).filter(again).collect();
        let number: BTreeMap<NodeId, usize> =
            places.iter().enumerate().map(|(op, &place)| (ops[place], op)).collect();
        let mut tensors: BTreeSet<ValueId> = BTreeSet::new();
        for &op in number.keys() {
            let node = self.decisions.graph().node(op);
            tensors.extend(node.operands.iter().chain(&node.results));
        }
        let tensors = tensors.into_iter().filter_map(|value| {
            let maker = self.decisions.graph().value(value).producer;
            let maker = number.get(&maker).copied().filter(|_| repeatable[value.index()]);
            self.build_tensor(value, maker, &number)
        });
        let units = |place: &usize| self.units(ops[*place]);
        let block =
            FrontierBlock { ops: places.iter().map(units).collect(), tensors: tensors.collect() };
        (block, places)
    }

    fn units(&self, op: NodeId) -> u64 {
        let copy = self.copies[op.index()];
        let seconds = copy.map_or(0.0, |copy| self.full.seconds[copy.index()]);
        (seconds * UNITS) as u64
    }

    /// Makes a tensor of a problem, or returns `None` if it is always kept, or if nothing reads it.
    fn build_tensor(
        &self,
        value: ValueId,
        maker: Option<usize>,
        number: &BTreeMap<NodeId, usize>,
    ) -> Option<FrontierTensor> {
        let readers = &self.readers[value.index()];
        let phase = |node: &NodeId| self.decisions.training.phases[node.index()];
        let is_read = readers.iter().any(|node| phase(node) != Phase::Forward);
        let readers: BTreeSet<usize> =
            readers.iter().filter_map(|node| number.get(node).copied()).collect();
        if maker.is_none() && (is_read || self.lasts_whole_step(value))
            || readers.is_empty() && !is_read
        {
            return None;
        }
        let bytes = self.bytes(value, maker.is_some());
        Some(FrontierTensor { bytes, maker, readers: readers.into_iter().collect(), is_read })
    }

    /// Whether a value exists for all of a step.
    fn lasts_whole_step(&self, value: ValueId) -> bool {
        let rates = &self.decisions.rates;
        self.decisions.graph().producer(value).op.is_given()
            || rates.microbatches > 1 && rates.values[value.index()] == ValueRate::Step
    }

    /// Returns the bytes of a tensor in the layout in which it is made, in all microbatches that are under way; for partial sums in the layout in
    /// which they are read.
    fn bytes(&self, value: ValueId, is_again: bool) -> u64 {
        let made = self.decisions.graph().value(value);
        let known = if is_again { &self.copies } else { &self.firsts };
        let Some(node) = known[made.producer.index()] else { return 0 };
        let decisions = self.full.decisions;
        let sharding = &self.full.planned.sharding.nodes;
        let result = decisions.graph().node(node).results[made.index];
        let sbp = &sharding[node.index()].results[made.index];
        let mut layouts = vec![sbp];
        if sbp.0.iter().any(|one| one.is_partial()) {
            let readers = self.readers_of_full[result.index()].iter();
            let read = readers.flat_map(|reader| {
                let operands = &decisions.graph().node(*reader).operands;
                let taken = operands.iter().zip(&sharding[reader.index()].operands);
                taken.filter(|(operand, _)| **operand == result).map(|(_, sbp)| sbp)
            });
            layouts = read.collect();
        }
        let placement = decisions.placement(result);
        let shard = |sbp| {
            let layout = decisions.layout(result, placement, sbp);
            shard_bytes(&layout, decisions.rates.microbatches)
        };
        let bytes = layouts.into_iter().map(shard).max().unwrap_or(0);
        bytes * self.count_contents(made.producer) as u64
    }

    fn count_contents(&self, node: NodeId) -> usize {
        let staging = &self.decisions.staging;
        let (stage, chunk) = (staging.stage[node.index()], staging.chunk[node.index()]);
        self.under_way[stage][chunk]
    }
}

/// Names these ops. Blocks with the same ops are listed together.
pub(crate) fn with_names(decisions: &Decisions, ops: &BTreeSet<OpPlace>) -> Vec<RecomputedOps> {
    let blocks = Blocks::new(&decisions.training, &decisions.rates);
    let mut of_block: BTreeMap<usize, Vec<RecomputedOp>> = BTreeMap::new();
    for &OpPlace { block, place } in ops {
        let Some(&node) = blocks.ops.get(block).and_then(|ops| ops.get(place)) else { continue };
        let op = decisions.graph().node(node).op.name().to_owned();
        of_block.entry(block).or_default().push(RecomputedOp { place, op });
    }
    let mut all: Vec<RecomputedOps> = Vec::new();
    for (block, ops) in of_block {
        match all.iter_mut().find(|known| known.ops == ops) {
            Some(known) => known.blocks.push(block),
            None => all.push(RecomputedOps { blocks: vec![block], ops }),
        }
    }
    all
}

/// Finds the ops that have these names.
pub(crate) fn find_op_places(all: &[RecomputedOps]) -> BTreeSet<OpPlace> {
    let of = |of: &RecomputedOps, block: usize| {
        let place = |op: &RecomputedOp| OpPlace { block, place: op.place };
        of.ops.iter().map(place).collect::<Vec<_>>()
    };
    all.iter().flat_map(|some| some.blocks.iter().flat_map(move |&block| of(some, block))).collect()
}

#[cfg(test)]
mod tests {
    use graphc_ir::builder::GraphBuilder;
    use graphc_ir::ops::Init;
    use graphc_ir::types::DType;
    use graphc_plan::{CompileOptions, Loss};

    use super::*;
    use crate::pipeline::prepare_graph;

    fn step(block: usize, seconds: f64, bytes: u64) -> RowStep {
        of_stage(0, block, seconds, bytes)
    }

    fn of_stage(stage: usize, block: usize, seconds: f64, bytes: u64) -> RowStep {
        let ops = vec![OpPlace { block, place: 0 }];
        RowStep { ops, more: More { seconds, stage, bytes } }
    }

    fn blocks(steps: &[RowStep]) -> Vec<usize> {
        steps.iter().map(|step| step.ops[0].block).collect()
    }

    #[test]
    fn what_is_cheapest_for_its_bytes_comes_first_and_what_is_alike_by_blocks() {
        let steps = vec![
            step(0, 3.0, 10),
            step(1, 1.0, 10),
            step(2, 1.0, 0),
            step(3, 1.0, 10),
            step(4, 2.0, 20),
        ];
        assert_eq!(blocks(&by_price(steps)), [1, 3, 4, 0, 2]);
    }

    #[test]
    fn stages_go_on_together_by_what_each_has_spent() {
        let steps = vec![
            of_stage(1, 0, 1.0, 30),
            of_stage(0, 1, 1.0, 20),
            of_stage(0, 2, 1.0, 10),
            of_stage(1, 3, 4.0, 40),
            of_stage(0, 4, 2.0, 10),
        ];
        // Stage 0 has spent 1, 2 and 4 seconds behind its steps, and stage 1 has 1 and 5.
        assert_eq!(blocks(&by_spent(by_price(steps))), [0, 1, 2, 4, 3]);
    }

    #[test]
    fn ops_have_their_places_again_by_what_a_plan_says() {
        let g = GraphBuilder::new("blocks");
        let mut x = g.input("x", DType::F32, [8, 4]);
        for layer in 0..3 {
            let name = format!("w{layer}");
            let init = Init::Weights;
            let w = g.variable(&name, DType::F32, [4, 4], init);
            x = x.matmul(&w).tanh().exp();
        }
        g.output("y", &x);
        let options = CompileOptions { loss: Some(Loss::Sum), ..CompileOptions::default() };
        let decisions = prepare_graph(g.finish().expect("fits"), &options).expect("fits");
        let all = [(0, 1), (1, 0), (1, 1), (2, 1)];
        let all: BTreeSet<OpPlace> =
            all.into_iter().map(|(block, place)| OpPlace { block, place }).collect();
        let named = with_names(&decisions, &all);
        let of = |blocks: &[usize], ops: &[usize]| RecomputedOps {
            blocks: blocks.to_vec(),
            ops: ops
                .iter()
                .map(|&place| RecomputedOp { place, op: named[0].ops[0].op.clone() })
                .collect(),
        };
        assert_eq!(named[0], of(&[0, 2], &[1]));
        assert_eq!((named.len(), named[1].ops.len()), (2, 2));
        assert_eq!(find_op_places(&named), all);
    }
}
