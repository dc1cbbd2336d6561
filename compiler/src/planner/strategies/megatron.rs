//! The fixed plan of Megatron-LM (Shoeybi et al., arXiv 1909.08053, section 3), found in any graph.
//!
//! The innermost mesh axis splits the model, and the others split the batch. The strategy goes through the graph
//! once, node by node:
//!
//! - A product with a weight splits the weight by columns where its other operand is whole. It splits the weight by
//!   rows where that operand is split along the contracted dim. So the products of a block alternate, and a block's
//!   two halves need one all-reduce each.
//! - A table that inputs look up is split along its rows (the vocabulary). So is its gradient where it is made: each
//!   rank sums the rows that it holds, of all indices. The head is a product split by columns, whose classes cross
//!   entropy, taken apart, reduces in parallel.
//! - Attention, a product of activations with two batch dims, is split along heads. Heads that the axis does not
//!   divide are an error.
//! - Partial sums are reduced as soon as something other than their own sum reads them, and to the whole: never in
//!   parts. A sum of several stays one where nothing else reads its summands, as the gradients of three products of one input.
//! - What comes from another stage is taken as it lies there, over all axes. So a weight that two stages read, as a
//!   tied embedding, is sent once a step and its gradients are added once a step, and samples stay where they are.
//! - Everything else takes its operands as they are, as [`super`] has it.
//!
//! With sequence parallelism (Korthikanti et al., arXiv 2205.05198, section 4.2.2) partial sums of activations
//! `[batch, sequence, ..]` are reduced in parts of the sequence instead. What follows stays in such parts up to the
//! next product, for which they are gathered: activations, never weights.
//!
//! A weight lies as the first op takes it that depends on an input. What is made of weights alone (a transposed
//! weight, say) waits for its reader too. Optimizer states lie as their weights, unless pins say otherwise: then updates
//! work where the states lie.

use graphc_ir::graph::Node;
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::{Movement, Op};
use graphc_ir::rule::{Choice, FactorKind, Rule};
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_ir::types::TensorType;

mod heads;

use super::experts::PinnedExperts;
use super::sequences::{SEQUENCE, SequenceAxes};
use super::{
    choose_as_original, choose_by_layout, choose_by_operand, choose_cheapest, is_local,
    moves_one_number, pinned_state, prefer,
};
use crate::decisions::Phase;
use crate::passes::float8::quantizing_nodes;
use crate::planner::error::PlannerError;
use crate::planner::problem::Problem;
use crate::planner::problem::candidates::Candidate;
use crate::planner::problem::layouts::SbpId;

/// Returns the signature of each node, as an index into its candidates.
///
/// # Errors
/// Returns an error if the ranks of the innermost axis do not divide the heads of attention.
pub(super) fn assign_megatron(
    problem: &Problem<'_>,
    sequences: bool,
) -> Result<Vec<usize>, PlannerError> {
    let graph = problem.decisions.graph();
    let nodes = graph.nodes.len();
    let mut splitter = Splitter {
        problem,
        sequences,
        chosen: vec![None; nodes],
        fed: vec![false; nodes],
        readers: graph.list_consumers(),
        of_weights: vec![false; nodes],
        rounding: quantizing_nodes(graph),
        experts: PinnedExperts::of_problem(problem),
        sequence_axes: SequenceAxes::of_problem(problem),
    };
    for (id, node) in graph.iter() {
        splitter.visit(id, node)?;
    }
    for (id, _) in graph.iter() {
        let whole = splitter.intern_layout(id, |_| Sbp::Broadcast);
        splitter.choose_layout(id, whole);
    }
    Ok(splitter.chosen.into_iter().map(Option::unwrap_or_default).collect())
}

struct Splitter<'p, 'a> {
    problem: &'p Problem<'a>,
    /// Whether partial sums are reduced in parts of the sequence.
    sequences: bool,
    chosen: Vec<Option<usize>>,
    /// Whether a node depends on an input.
    fed: Vec<bool>,
    /// The nodes that read each value.
    readers: Vec<Vec<NodeId>>,
    /// Whether a node is a variable, or made from one variable by moves, casts or maps.
    of_weights: Vec<bool>,
    /// Whether a node leads from a tensor to its numbers of 8 bits.
    rounding: Vec<bool>,
    experts: PinnedExperts,
    /// The axes beside that of the model over which sequences are split.
    sequence_axes: SequenceAxes,
}

/// The factors by which an op should be split.
struct Wish {
    factors: Vec<usize>,
    /// The number of heads, if the op is attention. Then only a split of the heads will do.
    heads: Option<usize>,
}

impl Wish {
    fn is_met_by(&self, candidate: &Candidate, axis: usize) -> bool {
        let choice = candidate.choices.get(axis);
        matches!(choice, Some(Choice::Factor(factor)) if self.factors.contains(factor))
    }
}

impl Splitter<'_, '_> {
    fn visit(&mut self, id: NodeId, node: &Node) -> Result<(), PlannerError> {
        let graph = self.problem.decisions.graph();
        let index = id.index();
        let producers = || node.operands.iter().map(|&v| graph.value(v).producer.index());
        self.fed[index] = matches!(node.op, Op::Input(_)) || producers().any(|p| self.fed[p]);
        let operation = node.op.operation();
        let moves = matches!(operation.movement(), Some(Movement::Rearranged | Movement::Part))
            || operation.is_elementwise() && node.operands.len() == 1
            || self.rounding[index];
        self.of_weights[index] = matches!(node.op, Op::Variable(_))
            || moves && producers().all(|producer| self.of_weights[producer]);
        if let Some(original) = self.problem.decisions.recomputed[index] {
            self.chosen[index] = self.chosen[original.index()]
                .map(|chosen| choose_as_original(self.problem, id, original, chosen));
        }
        match &node.op {
            _ if self.chosen[index].is_some() => {}
            Op::Input(input) => {
                let split = input.samples_dim().map_or(Sbp::Broadcast, Sbp::Split);
                let last = self.model_axis(id);
                let wished = self
                    .intern_layout(id, |axis| if axis == last { Sbp::Broadcast } else { split });
                self.choose_layout(id, wished);
            }
            Op::Variable(_) => {}
            op if !op.operation().updates().is_empty() => self.choose_update(id, node),
            _ if node.operands.is_empty() || self.fed[index] && moves_one_number(graph, node) => {
                let whole = self.intern_layout(id, |_| Sbp::Broadcast);
                self.choose_layout(id, whole);
            }
            _ if self.of_weights[index] && producers().any(|p| self.chosen[p].is_none()) => {}
            _ => self.choose(id, node)?,
        }
        Ok(())
    }

    /// Returns the axis that splits the model.
    fn model_axis(&self, node: NodeId) -> usize {
        self.problem.decisions.staging.placement[node.index()].hierarchy.len() - 1
    }

    fn model_ranks(&self, node: NodeId) -> usize {
        self.problem.decisions.staging.placement[node.index()].hierarchy[self.model_axis(node)]
    }

    fn intern_layout(&self, node: NodeId, sbp: impl Fn(usize) -> Sbp) -> SbpId {
        let axes = self.problem.decisions.staging.placement[node.index()].hierarchy.len();
        self.problem.layouts.intern_sbp(&NdSbp((0..axes).map(sbp).collect()))
    }

    /// Lets a node make a layout, and also the nodes that it is made of, as far as their layouts are open.
    fn choose_layout(&mut self, node: NodeId, wished: SbpId) {
        if self.chosen[node.index()].is_some() {
            return;
        }
        let graph = self.problem.decisions.graph();
        let label = match self.rounded_source(node) {
            Some(lies) => choose_by_operand(self.problem, node, lies),
            None => choose_by_layout(self.problem, node, wished),
        };
        self.chosen[node.index()] = Some(label);
        for (position, &operand) in graph.node(node).operands.iter().enumerate() {
            let taken = self.problem.candidates_of(node)[label].operands[position];
            self.choose_layout(graph.value(operand).producer, taken);
        }
    }

    /// Returns the layout of the weight whose greatest size a node seeks to round it to 8 bits: it is sought where it lies.
    fn rounded_source(&self, node: NodeId) -> Option<SbpId> {
        let graph = self.problem.decisions.graph();
        let reduces = self.rounding[node.index()] && matches!(graph.node(node).op, Op::Reduce(_));
        let source = graph.value(*graph.node(node).operands.first().filter(|_| reduces)?);
        let producer = source.producer;
        let label = self.chosen[producer.index()]?;
        Some(self.problem.candidates_of(producer)[label].results[source.index])
    }

    /// Chooses the layout of an update: that of its variable, which the states follow. A state that takes something in has the layout of that.
    fn choose_update(&mut self, id: NodeId, node: &Node) {
        let graph = self.problem.decisions.graph();
        let variable = graph.value(node.operands[0]).producer;
        let taken = match node.op {
            Op::Blend(_) => self.made_layout(node, 1),
            _ => None,
        };
        let first = taken.unwrap_or_else(|| self.intern_layout(variable, |_| Sbp::Broadcast));
        self.choose_layout(variable, first);
        let label = self.chosen[variable.index()].unwrap_or_default();
        let home = self.problem.candidates_of(variable)[label].results[0];
        self.choose_layout(id, pinned_state(self.problem, node).unwrap_or(home));
    }

    /// Returns the layout in which an operand has been made on the node's own mesh, if it is no partial sum.
    fn made_layout(&self, node: &Node, position: usize) -> Option<SbpId> {
        let decisions = self.problem.decisions;
        let value = decisions.graph().value(node.operands[position]);
        let producer = value.producer;
        let variable = decisions.graph().value(node.operands[0]).producer;
        let placement = &decisions.staging.placement;
        let label = self.chosen[producer.index()]
            .filter(|_| placement[producer.index()] == placement[variable.index()])?;
        let made = self.problem.candidates_of(producer)[label].results[value.index];
        let partial = self.problem.layouts.sbp(made).0.iter().any(|sbp| sbp.is_partial());
        (!partial).then_some(made)
    }

    /// Returns the layout in which an operand is made, or `None` if that is open.
    fn source_layout(
        &mut self,
        node: &Node,
        position: usize,
    ) -> Result<Option<SbpId>, PlannerError> {
        let graph = self.problem.decisions.graph();
        let value = graph.value(node.operands[position]);
        let producer = value.producer;
        if self.chosen[producer.index()].is_none() && !graph.node(producer).operands.is_empty() {
            // Made of a weight that has been settled meanwhile, by another reader.
            let of = graph.node(producer);
            if self.source_layout(of, 0)?.is_some() {
                self.choose(producer, of)?;
            }
        }
        let label = self.chosen[producer.index()];
        Ok(label.map(|label| self.problem.candidates_of(producer)[label].results[value.index]))
    }

    fn choose(&mut self, id: NodeId, node: &Node) -> Result<(), PlannerError> {
        let sources: Vec<Option<SbpId>> = (0..node.operands.len())
            .map(|position| self.source_layout(node, position))
            .collect::<Result<_, _>>()?;
        let wish = self.find_wish(id, node, &sources);
        let axis = self.model_axis(id);
        let fits: Vec<(usize, bool)> = self
            .problem
            .candidates_of(id)
            .iter()
            .map(|candidate| {
                let moved = !self.experts.are_left_by(self.problem, id, candidate);
                let broken = self.count_broken_rules(id, candidate, &sources, wish.as_ref());
                let broken = broken + if moved { sources.len() + 2 } else { 0 };
                (broken, wish.as_ref().is_some_and(|wish| !wish.is_met_by(candidate, axis)))
            })
            .collect();
        let least = fits.iter().min().copied();
        let all = (0..fits.len()).filter(|&label| Some(fits[label]) == least);
        let labels = self.worth_pricing(id, node, &sources, all.collect());
        let label =
            choose_cheapest(labels, |label| self.price_candidate(id, node, &sources, label));
        let is_unmet = least.is_some_and(|(_, is_unmet)| is_unmet);
        if let Some(wish) = wish.filter(|wish| wish.heads.is_some() && is_unmet) {
            return Err(self.indivisible_error(id, node, &wish, &sources));
        }
        self.chosen[id.index()] = Some(label);
        let taken = self.problem.candidates_of(id)[label].operands.clone();
        for (&operand, taken) in node.operands.iter().zip(taken) {
            let producer = self.problem.decisions.graph().value(operand).producer;
            self.choose_layout(producer, taken);
        }
        Ok(())
    }

    /// Returns the wish for the axis that splits the model, or `None` if any split will do.
    fn find_wish(&self, id: NodeId, node: &Node, sources: &[Option<SbpId>]) -> Option<Wish> {
        let graph = self.problem.decisions.graph();
        if self.model_ranks(id) == 1 || !self.fed[id.index()] {
            return None;
        }
        let rule = node.op.operation().rule(&graph.operand_types(node)).ok()?;
        let is_weight = |&value| self.of_weights[graph.value(value).producer.index()];
        let weight = node.operands.iter().position(is_weight);
        let factors = match (&node.op, weight) {
            (Op::Embedding(_), Some(0)) if sources[0].is_none() => {
                rule.factors_where(|factor| factor.kind == FactorKind::Indexed)
            }
            (Op::MatMul(_), Some(weight))
                if self.is_free(node.operands[weight], sources[weight], id) =>
            {
                self.product_factors(id, &rule, weight, sources[1 - weight])
            }
            (Op::EmbeddingGrad(_), _) => self.rows_of_table(id, node, &rule)?,
            (_, None) => {
                let wish = self.attention_wish(id, node, &rule)?;
                // One head is nobody's to share: as a whole it may lie as its operands do.
                let shared = wish.heads.is_none() || self.heads_of_queries(node, &wish) > 1;
                return Some(wish).filter(|_| shared);
            }
            (_, Some(_)) => return None,
        };
        Some(Wish { factors, heads: None })
    }

    /// Whether a product may split a weight as it likes: no reader has settled it yet, or it is cut from one that all ranks have whole, as queries,
    /// keys and values are of a packed weight.
    fn is_free(&self, weight: ValueId, source: Option<SbpId>, id: NodeId) -> bool {
        let Some(source) = source else { return true };
        let lies = self.problem.layouts.sbp(source);
        self.is_part(weight) && lies.0.get(self.model_axis(id)) == Some(&Sbp::Broadcast)
    }

    /// Whether a value is made of a part of a weight, in whatever order and element type.
    fn is_part(&self, weight: ValueId) -> bool {
        let graph = self.problem.decisions.graph();
        let mut made = graph.producer(weight);
        while !made.operands.is_empty() {
            if made.op.operation().movement() == Some(Movement::Part) {
                return true;
            }
            made = graph.producer(made.operands[0]);
        }
        false
    }

    /// Returns the factors by which a product with a weight may be split: the rows of the weight if the other operand is already split along them,
    /// and its columns otherwise.
    fn product_factors(
        &self,
        id: NodeId,
        rule: &Rule,
        weight: usize,
        other: Option<SbpId>,
    ) -> Vec<usize> {
        let of = |operand: usize, factor: usize| {
            rule.operands[operand].iter().any(|dim| dim.factors().contains(&factor))
        };
        let made =
            other.and_then(|sbp| self.problem.layouts.sbp(sbp).0.get(self.model_axis(id)).copied());
        let contracted = |factor: &usize| rule.factors[*factor].kind != FactorKind::Parallel;
        if let Some(Sbp::Split(dim)) = made {
            let rows: Vec<usize> = rule.operands[1 - weight][dim]
                .factors()
                .iter()
                .copied()
                .filter(contracted)
                .collect();
            if !rows.is_empty() {
                return rows;
            }
        }
        let columns = |factor: &usize| of(weight, *factor) && !of(1 - weight, *factor);
        (0..rule.factors.len()).filter(columns).collect()
    }

    /// Returns the factors by which the gradient of a table is split, which are those of the table. Each rank then sums the rows that it holds, over
    /// all indices.
    fn rows_of_table(&self, id: NodeId, node: &Node, rule: &Rule) -> Option<Vec<usize>> {
        let table = self.table_of(node.results[0])?;
        let label = self.chosen[table.index()]?;
        let lies = self.problem.layouts.sbp(self.problem.candidates_of(table)[label].results[0]);
        match lies.0.get(self.model_axis(id)) {
            Some(&Sbp::Split(dim)) => Some(rule.results[0][dim].factors().to_vec()),
            _ => None,
        }
    }

    /// Returns the node of the variable whose gradient a value is, or becomes by casts, sums over microbatches and additions.
    fn table_of(&self, value: ValueId) -> Option<NodeId> {
        let training = &self.problem.decisions.training;
        let graph = &training.graph;
        let mut value = value;
        loop {
            let found = training.gradients.iter().find(|&&(_, gradient)| gradient == value);
            if let Some(&(variable, _)) = found {
                return Some(graph.value(variable).producer);
            }
            let &[reader] = self.readers[value.index()].as_slice() else { return None };
            let reader = graph.node(reader);
            if !matches!(reader.op, Op::Cast(_) | Op::Accumulate(_) | Op::Binary(_)) {
                return None;
            }
            let shape = &graph.value(value).ty.shape;
            value = reader.results[0];
            if graph.value(value).ty.shape != *shape {
                return None;
            }
        }
    }

    /// Returns the wish for attention: a contraction of activations over more than one batch dim. All batch dims but the first are heads. In the backward
    /// pass heads that are apart stay apart, though ranks of another axis could share them for less communication.
    fn attention_wish(&self, id: NodeId, node: &Node, rule: &Rule) -> Option<Wish> {
        let forward = self.problem.decisions.training.phases[id.index()] == Phase::Forward;
        // To pick numbers by their places is no contraction of activations, though it has batch dims.
        let picks = matches!(node.op, Op::Gather(_));
        if picks || !rule.is_contraction() || rule.operands.len() < 2 {
            return None;
        }
        // What is added to the scores of attention may be the same for all samples, and follows.
        let batch = rule.shared_factors(3);
        let (_, heads) = batch.split_first().filter(|(_, heads)| !heads.is_empty())?;
        let size = |factor: &usize| rule.factors[*factor].size;
        let factors =
            heads.iter().copied().filter(|f| size(f).is_multiple_of(self.model_ranks(id)));
        let factors: Vec<usize> = factors.collect();
        if !forward {
            return Some(Wish { factors, heads: None }).filter(|wish| !wish.factors.is_empty());
        }
        Some(Wish { factors, heads: Some(heads.iter().map(size).product()) })
    }

    /// Counts the rules that a candidate breaks. One of them forbids to split what is whole, unless that is wished for.
    fn count_broken_rules(
        &self,
        id: NodeId,
        candidate: &Candidate,
        sources: &[Option<SbpId>],
        wish: Option<&Wish>,
    ) -> usize {
        let axis = self.model_axis(id);
        let sbp = |id: SbpId| self.problem.layouts.sbp(id);
        let split = |layout: &SbpId| matches!(sbp(*layout).0[axis], Sbp::Split(_));
        let from_nowhere = candidate.results.iter().any(split)
            && !candidate.operands.iter().any(split)
            && !wish.is_some_and(|wish| wish.is_met_by(candidate, axis));
        let breaks =
            |&position: &usize| self.breaks_rule(id, candidate, position, sources[position], wish);
        (0..sources.len()).filter(breaks).count() + usize::from(from_nowhere)
    }

    /// Whether a candidate breaks a rule by how it takes an operand.
    fn breaks_rule(
        &self,
        id: NodeId,
        candidate: &Candidate,
        position: usize,
        source: Option<SbpId>,
        wish: Option<&Wish>,
    ) -> bool {
        let axis = self.model_axis(id);
        let sbp = |id: SbpId| self.problem.layouts.sbp(id);
        let taken = sbp(candidate.operands[position]);
        let Some(source) = source else {
            let batch = taken.0[..axis].iter().all(|&sbp| sbp == Sbp::Broadcast);
            let here = taken.0[axis];
            return !batch || here.is_partial() || !self.fed[id.index()] && here != Sbp::Broadcast;
        };
        let source = sbp(source);
        let node = self.problem.decisions.graph().node(id);
        if self.sequence_axes.leaves_sum(self.problem, (node, position), &source, &taken) {
            return true;
        }
        // On another mesh, with other axes, any way is as good.
        let Some(&made) = source.0.get(axis) else { return false };
        if self.comes_from_elsewhere(id, position) && !made.is_partial() {
            // What is whole in one stage is whole in the next, though a part would be sent in less time. Over all axes: of a weight that
            // two stages share the other's ranks would else read less than a copy, and each microbatch's samples would be gathered.
            // But a product gathers parts of sequences as it does within a stage.
            let gathers = self.sequences && self.fed_by(id, position);
            let differs = |(at, (made, taken)): (usize, (&Sbp, &Sbp))| {
                let gathered = at == axis && gathers && *taken == Sbp::Broadcast;
                !made.is_partial() && made != taken && !gathered
            };
            return source.0.iter().zip(&taken.0).enumerate().any(differs);
        }
        match (made, taken.0[axis]) {
            (Sbp::Partial(_), Sbp::Split(dim)) => {
                dim != SEQUENCE || !self.has_sequences(id, position)
            }
            // Right behind a table a product reads the sums themselves: there is nothing between that could stay in parts of the sequence.
            (Sbp::Partial(_), Sbp::Broadcast) => {
                let gathers = wish.is_some_and(|wish| wish.is_met_by(candidate, axis));
                !gathers && self.has_sequences(id, position)
            }
            (Sbp::Split(_), Sbp::Broadcast) if self.sequences => !self.fed_by(id, position),
            (Sbp::Split(from), Sbp::Split(to)) => from != to,
            (made, Sbp::Partial(kind)) => {
                made != Sbp::Partial(kind) || !self.takes_partial_sums(id, candidate)
            }
            (_, Sbp::Broadcast | Sbp::Split(_)) => false,
        }
    }

    /// Whether a candidate takes only partial sums that no other node reads, of no more elements than it makes. A sum of fewer elements would be reduced
    /// in addition to what the others read. One that has other readers is reduced for these, as the residual stream is for the next norm, and
    /// would be added up whole on each rank; and before a cast to a wider type a sum moves fewer bytes.
    fn takes_partial_sums(&self, id: NodeId, candidate: &Candidate) -> bool {
        let graph = self.problem.decisions.graph();
        let most = |values: &[ValueId], size: fn(&TensorType) -> usize| {
            values.iter().map(|&value| size(&graph.value(value).ty)).max()
        };
        let axis = self.model_axis(id);
        let partial = |&taken: &SbpId| self.problem.layouts.sbp(taken).0[axis].is_partial();
        let node = graph.node(id);
        let [operands, results] = [&node.operands, &node.results];
        let mut readers = operands.iter().map(|value| &self.readers[value.index()]);
        candidate.operands.iter().all(partial)
            && readers.all(|readers| readers.iter().all(|&reader| reader == id))
            && most(operands, TensorType::elements) <= most(results, TensorType::elements)
            && most(operands, |ty| ty.dtype.size()) >= most(results, |ty| ty.dtype.size())
    }

    /// Whether an operand depends on an input.
    fn fed_by(&self, id: NodeId, position: usize) -> bool {
        let graph = self.problem.decisions.graph();
        self.fed[graph.value(graph.node(id).operands[position]).producer.index()]
    }

    /// Whether an operand is an activation, or the gradient of one, whose sequences ranks are to share.
    fn has_sequences(&self, id: NodeId, position: usize) -> bool {
        let graph = self.problem.decisions.graph();
        let shape = &graph.value(graph.node(id).operands[position]).ty.shape;
        self.sequences
            && self.fed_by(id, position)
            && shape.len() > SEQUENCE + 1
            && shape.last() != Some(&1)
            && shape[SEQUENCE].is_multiple_of(self.model_ranks(id))
    }

    /// Whether an operand is made on the mesh of another stage.
    fn comes_from_elsewhere(&self, id: NodeId, position: usize) -> bool {
        let decisions = self.problem.decisions;
        let value = decisions.graph().node(id).operands[position];
        let producer = decisions.graph().value(value).producer;
        decisions.staging.placement[producer.index()] != decisions.staging.placement[id.index()]
    }

    /// Returns the candidates that take all operands without communication, or all candidates if there are none.
    fn worth_pricing(
        &self,
        id: NodeId,
        node: &Node,
        sources: &[Option<SbpId>],
        labels: Vec<usize>,
    ) -> Vec<usize> {
        if self.experts.exchanges_tokens(id) {
            return labels;
        }
        let graph = self.problem.decisions.graph();
        prefer(labels, |&label| {
            let taken = &self.problem.candidates_of(id)[label].operands;
            let operands = node.operands.iter().zip(sources).zip(taken);
            operands.into_iter().all(|((&operand, source), &taken)| {
                let producer = graph.value(operand).producer;
                source.is_none_or(|source| is_local(self.problem, (producer, id), source, taken))
            })
        })
    }

    /// Returns the seconds of communication, of local boxing and of computing in a step.
    fn price_candidate(
        &mut self,
        id: NodeId,
        node: &Node,
        sources: &[Option<SbpId>],
        label: usize,
    ) -> [f64; 3] {
        let decisions = self.problem.decisions;
        let candidate = self.problem.candidates_of(id)[label].clone();
        let (mut moved, mut local) = (0.0, 0.0);
        for ((&value, source), &taken) in node.operands.iter().zip(sources).zip(&candidate.operands)
        {
            let Some(source) = *source else { continue };
            let producer = decisions.graph().value(value).producer;
            let places = [producer, id].map(|node| {
                let placement = self.problem.layouts.placement_of(node);
                self.problem.layouts.class(value, placement)
            });
            let seconds =
                self.problem.layouts.price((places[0], source), (places[1], taken)).seconds;
            let here = is_local(self.problem, (producer, id), source, taken);
            let all = seconds * decisions.times_boxed(value) as f64;
            *if here { &mut local } else { &mut moved } += all;
        }
        if self.experts.exchanges_tokens(id) {
            let left = self.experts.seconds_left(self.problem, id, &candidate, sources[1]);
            return [moved + local + left + candidate.seconds, 0.0, 0.0];
        }
        [moved, local, candidate.seconds]
    }
}
