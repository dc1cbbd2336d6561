//! Decides how often each value is computed, and where the contributions of microbatches are summed.
//!
//! Time is treated as one more mesh axis with as many parts as there are microbatches. The layouts on that axis are
//! forced by what the graph starts from: an input is cut along the dim of its samples, and a variable is whole. For
//! each op the one signature of its rule that takes its operands so says how its results lie. They are cut along a
//! dim, or they are partial sums. An `accumulate` node sums the latter, and readers read the sum.
//!
//! What depends on no input is computed once a step, unless a reader needs its part of it. Then the ops that made it
//! are made again part by part, as far as they depend on nothing.
//!
//! The greatest sizes by which numbers are rounded to 8 bits are not joined: each microbatch has its own.
//!
//! Sums of half precision are made in f32 (unless [`Accumulation::Half`] says so). Otherwise each addition would be
//! rounded, and the error would grow with the number of microbatches. Summands are cast before. The sum is cast back
//! once, unless all its readers take f32, as updates do.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::{Movement, Op, OpError};
use graphc_ir::ops::{Accumulate, Cast, Input, ReduceFunction};
use graphc_ir::rule::{Choice, Signature};
use graphc_ir::sbp::Sbp;
use graphc_ir::types::DType;
use graphc_plan::Accumulation;

use super::rebuild::{Rebuild, live_nodes};
use crate::decisions::{Rated, Rates, TrainingGraph, ValueRate};
use crate::passes::error::PassError;
use crate::schedule::MOST_MICROBATCHES;

const PASS: &str = "rates";

/// Adds `accumulate` nodes to the graph, and determines the rates of its values and nodes. With one microbatch all are computed once a step, and the
/// graph stays as it is.
///
/// # Errors
/// Returns an error if the number of microbatches is 0 or too large, they do not divide an input, or an op cannot be computed from microbatches.
pub(crate) fn assign_rates(
    training: TrainingGraph,
    microbatches: usize,
    accumulation: Accumulation,
) -> Result<Rated, PassError> {
    if microbatches == 0 {
        return Err(PassError::NoMicrobatches);
    }
    if microbatches > MOST_MICROBATCHES {
        return Err(PassError::ManyMicrobatches { microbatches });
    }
    if microbatches == 1 {
        let values = vec![ValueRate::Step; training.graph.values.len()];
        let nodes = vec![None; training.graph.nodes.len()];
        return Ok(rate_training(training, Rates { microbatches, values, nodes }));
    }
    let mut cutter = MicrobatchCutter {
        rebuild: Rebuild::new(&training),
        microbatches,
        accumulation,
        values: Vec::new(),
        nodes: Vec::new(),
        readers: find_readers(&training),
        parts: BTreeMap::new(),
    };
    for (id, _) in training.graph.iter() {
        cutter.visit_node(id)?;
    }
    let rates = Rates { microbatches, values: cutter.values, nodes: cutter.nodes };
    let (training, rates) = without_dead(&cutter.rebuild.finish(), rates)
        .map_err(|error| PassError::Op { pass: PASS, error })?;
    Ok(rate_training(training, rates))
}

fn rate_training(training: TrainingGraph, rates: Rates) -> Rated {
    let recomputed = vec![None; training.graph.nodes.len()];
    Rated { training, rates, recomputed }
}

/// Checks that an input can be cut evenly along the dim that counts samples, if it has one.
///
/// # Errors
/// Returns an error if the microbatches do not divide its samples.
pub(crate) fn check_input_divides(input: &Input, microbatches: usize) -> Result<(), PassError> {
    match input.samples_dim().map(|dim| (dim, input.ty.shape[dim])) {
        Some((dim, extent)) if microbatches > 0 && !extent.is_multiple_of(microbatches) => {
            let input = input.name.clone();
            Err(PassError::Microbatches { input, dim, extent, microbatches })
        }
        _ => Ok(()),
    }
}

/// Returns the readers of each value, or none if the value is observed: if it is an output, or a gradient that no update reads.
fn find_readers(training: &TrainingGraph) -> Vec<Vec<NodeId>> {
    let graph = &training.graph;
    let mut readers = graph.list_consumers();
    let outputs = graph.outputs.iter().map(|output| output.value);
    let updated = |gradient: &ValueId| {
        let mut readers = readers[gradient.index()].iter();
        readers.any(|&reader| graph.node(reader).op.operation().gradient_operand().is_some())
    };
    let gradients = training.gradients.iter().map(|&(_, gradient)| gradient);
    let alone = gradients.filter(|gradient| !updated(gradient));
    let observed: Vec<ValueId> = outputs.chain(alone).collect();
    for observed in observed {
        readers[observed.index()].clear();
    }
    readers
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::BF16 | DType::F16)
}

/// Removes nodes that were made again in parts and that nothing reads any more.
fn without_dead(training: &TrainingGraph, rates: Rates) -> Result<(TrainingGraph, Rates), OpError> {
    let live = live_nodes(training);
    let mut rebuild = Rebuild::new(training);
    let (mut values, mut nodes) = (Vec::new(), Vec::new());
    for (id, node) in training.graph.iter().filter(|(id, _)| live[id.index()]) {
        rebuild.copy_node(id)?;
        values.extend(node.results.iter().map(|result| rates.values[result.index()]));
        nodes.push(rates.nodes[id.index()]);
    }
    Ok((rebuild.finish(), Rates { microbatches: rates.microbatches, values, nodes }))
}

struct MicrobatchCutter<'a> {
    rebuild: Rebuild<'a>,
    microbatches: usize,
    accumulation: Accumulation,
    /// The rates of the new graph's values.
    values: Vec<ValueRate>,
    /// The choices of the new graph's nodes on the time axis.
    nodes: Vec<Option<Choice>>,
    /// The readers of each value of the old graph; none for values that are observed.
    readers: Vec<Vec<NodeId>>,
    /// The copies in parts along a dim of values that are computed once a step.
    parts: BTreeMap<(ValueId, usize), ValueId>,
}

/// A signature that an op may have over time, and the operands that it needs in parts which they do not have yet.
struct Fit {
    signature: Signature,
    parts: Vec<(usize, usize)>,
}

impl MicrobatchCutter<'_> {
    fn visit_node(&mut self, id: NodeId) -> Result<(), PassError> {
        let node = self.rebuild.old.graph.node(id);
        let operands: Vec<ValueId> =
            node.operands.iter().map(|&v| self.rebuild.new_of(v)).collect();
        if let Op::Input(input) = &node.op {
            let Some(dim) = input.samples_dim() else { return self.copy_once(id, operands) };
            check_input_divides(input, self.microbatches)?;
            let signatures = self.time_signatures(id)?;
            let along = signatures.into_iter().find(|s| s.results[0].0[0] == Sbp::Split(dim));
            let signature = along.ok_or_else(|| self.cannot_cut(id, &operands))?;
            return self.cut_by_signature(id, operands, &signature);
        }
        // A cast that has been made before its operand was summed.
        if let Op::Cast(cast) = &node.op
            && self.rebuild.graph.value(operands[0]).ty.dtype == cast.dtype
        {
            self.rebuild.replace_value(node.results[0], operands[0]);
            return Ok(());
        }
        if operands.iter().all(|operand| self.values[operand.index()] == ValueRate::Step) {
            return self.copy_once(id, operands);
        }
        self.cut_node(id, operands)
    }

    /// Makes a node act for every microbatch, by the signature that takes its operands.
    fn cut_node(&mut self, id: NodeId, operands: Vec<ValueId>) -> Result<(), PassError> {
        let fit = self.find_fit(id, &operands)?;
        let mut operands = operands;
        for (operand, dim) in fit.parts {
            operands[operand] = self.in_parts(operands[operand], dim)?;
        }
        self.cut_by_signature(id, operands, &fit.signature)
    }

    /// Whether all that read a value of half precision, at most moved before, take it as f32 as well.
    fn is_read_wide(&self, old: ValueId) -> bool {
        let readers = &self.readers[old.index()];
        !readers.is_empty() && readers.iter().all(|&reader| self.takes_wide(reader, old))
    }

    fn takes_wide(&self, reader: NodeId, operand: ValueId) -> bool {
        let graph = &self.rebuild.old.graph;
        let node = graph.node(reader);
        let movement = node.op.operation().movement();
        match &node.op {
            Op::Cast(cast) => cast.dtype == DType::F32,
            Op::SquareSum(_) | Op::NonFinite(_) => true,
            // A gradient that is to be summed in its own type reaches its update so.
            op if op.operation().gradient_operand().is_some() => {
                self.accumulation.is_f32() && node.operands[0] != operand
            }
            _ => {
                matches!(movement, Some(Movement::Rearranged | Movement::Part))
                    && self.is_read_wide(node.results[0])
            }
        }
    }

    /// Copies a node that acts once a step.
    fn copy_once(&mut self, id: NodeId, operands: Vec<ValueId>) -> Result<(), PassError> {
        let node = self.rebuild.old.graph.node(id);
        let results = self.push(node.op.clone(), operands, id, None)?;
        for (&old, &new) in node.results.iter().zip(&results) {
            self.rebuild.replace_value(old, new);
        }
        Ok(())
    }

    /// Makes a node act for every microbatch. Results that are summands are accumulated.
    fn cut_by_signature(
        &mut self,
        id: NodeId,
        operands: Vec<ValueId>,
        signature: &Signature,
    ) -> Result<(), PassError> {
        let node = self.rebuild.old.graph.node(id);
        let each = operands.iter().any(|v| self.values[v.index()] == ValueRate::Each);
        let results = self.push(node.op.clone(), operands, id, Some(signature.choices[0]))?;
        for (index, (&old, &new)) in node.results.iter().zip(&results).enumerate() {
            self.values[new.index()] = match rate_from_sbp(signature.results[index].0[0]) {
                ValueRate::Step if each => ValueRate::Each,
                rate => rate,
            };
            let mut stands = new;
            if self.values[new.index()] == ValueRate::Summand {
                stands = self.accumulate_summand(id, old, new)?;
            }
            self.rebuild.replace_value(old, stands);
        }
        Ok(())
    }

    /// Sums a result over microbatches, for the readers of the old value.
    fn accumulate_summand(
        &mut self,
        id: NodeId,
        old: ValueId,
        summand: ValueId,
    ) -> Result<ValueId, PassError> {
        let linear = Some(Choice::Linear(0));
        let dtype = self.rebuild.graph.value(summand).ty.dtype;
        let widens = is_half(dtype) && (self.accumulation.is_f32() || self.is_read_wide(old));
        let mut sum = summand;
        if widens {
            sum = self.push(Op::Cast(Cast { dtype: DType::F32 }), vec![sum], id, linear)?[0];
            self.values[sum.index()] = ValueRate::Summand;
        }
        sum = self.push(Op::Accumulate(Accumulate {}), vec![sum], id, linear)?[0];
        if widens && !self.is_read_wide(old) {
            sum = self.push(Op::Cast(Cast { dtype }), vec![sum], id, None)?[0];
        }
        Ok(sum)
    }

    /// Appends a node. The rates of its results are once a step unless the caller sets others.
    fn push(
        &mut self,
        op: Op,
        operands: Vec<ValueId>,
        like: NodeId,
        choice: Option<Choice>,
    ) -> Result<Vec<ValueId>, PassError> {
        let results = self.rebuild.push(op, operands, like);
        let results = results.map_err(|error| PassError::Op { pass: PASS, error })?;
        self.nodes.push(choice);
        self.values.resize(self.rebuild.graph.values.len(), ValueRate::Step);
        Ok(results)
    }

    /// The error of a node that cannot be cut. It names the op where samples meet: the node, or one that sums over them where only that keeps the
    /// node from being cut.
    fn cannot_cut(&self, id: NodeId, operands: &[ValueId]) -> PassError {
        let node = self.rebuild.old.graph.node(id);
        let layout = |(&old, new): (&ValueId, &ValueId)| {
            let name = self.rebuild.old.graph.display_name(old);
            let ty = &self.rebuild.graph.value(*new).ty;
            match self.values[new.index()] {
                ValueRate::Microbatch { dim } => format!("{name}, {ty}, is cut along dim {dim}"),
                _ => format!("{name}, {ty}, is whole"),
            }
        };
        let layouts: Vec<String> = node.operands.iter().zip(operands).map(layout).collect();
        let layouts = layouts.join("; ");
        let (meets, reason) = match self.find_sum_in_the_way(id, operands) {
            Some(sum) => {
                let (name, place) = (node.op.name(), &node.source);
                let reason = format!(
                    "it sums over samples, and {name} ({place}) takes what is made of the sum beside samples: {layouts}"
                );
                (self.rebuild.old.graph.node(sum), reason)
            }
            None => (node, layouts),
        };
        PassError::CannotCut {
            op: meets.op.name(),
            place: meets.source.clone(),
            microbatches: self.microbatches,
            reason,
        }
    }

    /// The node that sums over samples, if a node could be cut but for an operand that is made of the sum.
    fn find_sum_in_the_way(&self, id: NodeId, operands: &[ValueId]) -> Option<NodeId> {
        let sums: Vec<Option<NodeId>> =
            operands.iter().map(|&operand| self.find_sum(operand)).collect();
        let signatures = self.time_signatures(id).ok()?;
        signatures.iter().find_map(|signature| {
            let is_sum = |index: usize| {
                sums[index].filter(|_| matches!(signature.operands[index].0[0], Sbp::Split(_)))
            };
            let mut rest = operands.to_vec();
            let mut relaxed = signature.clone();
            for index in (0..operands.len()).rev().filter(|&index| is_sum(index).is_some()) {
                rest.remove(index);
                relaxed.operands.remove(index);
            }
            self.missing_parts(&rest, &relaxed)?;
            (0..operands.len()).find_map(is_sum)
        })
    }

    /// The node of the old graph whose sum over samples a value of the new one is made of, if it is.
    fn find_sum(&self, value: ValueId) -> Option<NodeId> {
        let graph = &self.rebuild.graph;
        let (mut seen, mut open) = (BTreeSet::from([value]), vec![value]);
        while let Some(value) = open.pop() {
            if self.values[value.index()] != ValueRate::Step {
                continue;
            }
            let producer = graph.value(value).producer;
            let node = graph.node(producer);
            if matches!(node.op, Op::Accumulate(_)) {
                return Some(self.rebuild.origin(producer));
            }
            open.extend(node.operands.iter().copied().filter(|&operand| seen.insert(operand)));
        }
        None
    }

    /// The signatures of a node of the old graph on the axis of time.
    fn time_signatures(&self, id: NodeId) -> Result<Vec<Signature>, PassError> {
        let graph = &self.rebuild.old.graph;
        let node = graph.node(id);
        let rule = node.op.operation().rule(&graph.operand_types(node));
        let rule = rule.map_err(|error| PassError::Op { pass: PASS, error })?;
        Ok(rule.signatures(&[self.microbatches]))
    }

    /// The signature that takes the operands as they are, with as few as possible of those that are computed once a
    /// step made again in parts.
    fn find_fit(&self, id: NodeId, operands: &[ValueId]) -> Result<Fit, PassError> {
        let own = self.has_own_sizes(id);
        let fits = self.time_signatures(id)?.into_iter().filter_map(|signature| {
            let parts = self.missing_parts(operands, &signature)?;
            let sums = |sbp: Sbp| !sbp.is_partial() || sbp == Sbp::PARTIAL || own;
            let all = signature.results.iter().all(|result| sums(result.0[0]));
            all.then_some(Fit { signature, parts })
        });
        fits.min_by_key(|fit| fit.parts.len()).ok_or_else(|| self.cannot_cut(id, operands))
    }

    /// Whether a node finds the greatest size of numbers only for rounding them to 8 bits. Then each microbatch has its own, instead of one of all.
    fn has_own_sizes(&self, id: NodeId) -> bool {
        let node = self.rebuild.old.graph.node(id);
        let greatest = matches!(&node.op, Op::Reduce(op) if op.function == ReduceFunction::MaxAbs);
        greatest && self.only_rounds(node.results[0])
    }

    /// Whether all that read a value take it as the greatest size of numbers of 8 bits, at most moved before.
    fn only_rounds(&self, old: ValueId) -> bool {
        let graph = &self.rebuild.old.graph;
        let takes_size = |reader: &NodeId| {
            let node = graph.node(*reader);
            let is_size = |sizes: Range<usize>| {
                let read = node.operands.iter().enumerate().filter(|&(_, &operand)| operand == old);
                read.map(|(place, _)| place).all(|place| sizes.contains(&place))
            };
            match &node.op {
                Op::Binary(op) => op.function.rounds_float8() && is_size(1..2),
                Op::MatMul(_) => is_size(2..4),
                Op::GroupedMatMul(_) | Op::GroupedMatMulGrad(_) => is_size(3..5),
                Op::Reshape(_) => self.only_rounds(node.results[0]),
                _ => false,
            }
        };
        let readers = &self.readers[old.index()];
        !readers.is_empty() && readers.iter().all(takes_size)
    }

    /// The operands that a signature needs in parts, with the dim, which they can be made in; `None` where it does
    /// not take the operands at all.
    fn missing_parts(
        &self,
        operands: &[ValueId],
        signature: &Signature,
    ) -> Option<Vec<(usize, usize)>> {
        let mut parts = Vec::new();
        for (index, &operand) in operands.iter().enumerate() {
            match (self.values[operand.index()], signature.operands[index].0[0]) {
                (ValueRate::Step | ValueRate::Each, Sbp::Broadcast) => {}
                (ValueRate::Microbatch { dim }, Sbp::Split(split)) if dim == split => {}
                (ValueRate::Step, Sbp::Split(dim)) if self.comes_in_parts(operand, dim) => {
                    parts.push((index, dim));
                }
                _ => return None,
            }
        }
        Some(parts)
    }

    /// Whether a value of the new graph that is computed once a step could be computed in parts along a dim.
    fn comes_in_parts(&self, value: ValueId, dim: usize) -> bool {
        self.parts.contains_key(&(value, dim)) || self.parts_of(value, dim).is_some()
    }

    /// The way in which the producer of such a value would make it in parts: its signature, and the dim of each
    /// operand that it needs in parts.
    fn parts_of(&self, value: ValueId, dim: usize) -> Option<(Signature, Vec<(usize, usize)>)> {
        let graph = &self.rebuild.graph;
        let (node, index) = (graph.producer(value), graph.value(value).index);
        let made = !node.operands.is_empty() && !matches!(node.op, Op::Accumulate(_));
        if !made && !node.op.is_generator() {
            return None;
        }
        let rule = node.op.operation().rule(&graph.operand_types(node)).ok()?;
        let cut = |signature: &Signature| {
            signature.results[index].0[0] == Sbp::Split(dim)
                && signature.results.iter().all(|result| !result.0[0].is_partial())
        };
        let signatures = rule.signatures(&[self.microbatches]);
        signatures.into_iter().filter(cut).find_map(|signature| {
            let parts = self.missing_parts(&node.operands, &signature)?;
            Some((signature, parts))
        })
    }

    /// Such a value in parts along a dim.
    fn in_parts(&mut self, value: ValueId, dim: usize) -> Result<ValueId, PassError> {
        if let Some(&part) = self.parts.get(&(value, dim)) {
            return Ok(part);
        }
        let (signature, parts) =
            self.parts_of(value, dim).expect("it has been found to come in parts");
        let (id, index) = {
            let value = self.rebuild.graph.value(value);
            (value.producer, value.index)
        };
        let mut node = self.rebuild.graph.node(id).clone();
        for (operand, dim) in parts {
            node.operands[operand] = self.in_parts(node.operands[operand], dim)?;
        }
        let like = self.rebuild.origin(id);
        let results = self.push(node.op, node.operands, like, Some(signature.choices[0]))?;
        for (result, &new) in results.iter().enumerate() {
            self.values[new.index()] = rate_from_sbp(signature.results[result].0[0]);
        }
        self.parts.insert((value, dim), results[index]);
        Ok(results[index])
    }
}

/// The rate of a result of this layout over time.
fn rate_from_sbp(sbp: Sbp) -> ValueRate {
    match sbp {
        Sbp::Broadcast => ValueRate::Step,
        Sbp::Split(dim) => ValueRate::Microbatch { dim },
        Sbp::PARTIAL => ValueRate::Summand,
        Sbp::Partial(_) => ValueRate::Each,
    }
}
