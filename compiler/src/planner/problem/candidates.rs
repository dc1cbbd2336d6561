//! Lists the signatures that each node may have: those of its rule, less those that pins and the strategy forbid.
//!
//! Nodes with the same candidates share one list. By that list the planner knows which tensors are taken alike, and
//! what boxing between them costs (`boxed`).

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use graphc_ir::graph::Node;
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::Op;
use graphc_ir::ops::ToGlobal;
use graphc_ir::pattern::matches_pattern;
use graphc_ir::rule::{Choice, Rule};
use graphc_ir::sbp::{NdSbp, ReduceKind, Sbp};
use graphc_ir::types::{DType, TensorType};
use graphc_plan::{Cluster, CompileOptions};

use super::layouts::{Layouts, PlacementId, SbpId};
use super::tied::partner_axis;
use crate::cost::{node_work, roofline_seconds};
use crate::decisions::{Decisions, ValueRate};
use crate::planner::asked::context_layout;
use crate::planner::error::PlannerError;

/// A signature of a node with the cost of computing it.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// One choice per mesh axis.
    pub choices: Vec<Choice>,
    /// The layout of each operand.
    pub operands: Vec<SbpId>,
    /// The layout of each result.
    pub results: Vec<SbpId>,
    /// Seconds of computing, over the whole step.
    pub seconds: f64,
}

/// The candidates of a node. Nodes that are alike have the same list, so what is found for a list holds for all of them.
pub type CandidateList = Rc<[Candidate]>;

/// The properties that nodes with the same candidates share.
#[derive(PartialEq)]
struct CandidateKind {
    op: &'static str,
    flops: f64,
    rule: Rule,
    time: Option<Choice>,
    times: usize,
    placement: PlacementId,
    dtypes: Vec<DType>,
    every_name: bool,
    /// Whether each axis is chosen for by itself, whatever is tied.
    is_free: bool,
}

/// Makes candidates node by node, in topological order.
pub(crate) struct Candidates<'a> {
    decisions: &'a Decisions,
    options: &'a CompileOptions,
    cluster: &'a Cluster,
    /// The axes for which nodes choose as for the axis before.
    tied: &'a [usize],
    kinds: Vec<(CandidateKind, CandidateList)>,
    /// The lists that have some candidates of a list, by the indices of these.
    parts: HashMap<(*const Candidate, Vec<usize>), CandidateList>,
}

impl<'a> Candidates<'a> {
    /// Prepares the making of candidates that choose for the tied axes as for the axis before.
    pub(crate) fn new(
        decisions: &'a Decisions,
        options: &'a CompileOptions,
        cluster: &'a Cluster,
        tied: &'a [usize],
    ) -> Self {
        let (kinds, parts) = (Vec::new(), HashMap::new());
        Self { decisions, options, cluster, tied, kinds, parts }
    }

    /// Lists the candidates of every node.
    ///
    /// # Errors
    /// Returns an error if a pin cannot be fulfilled, or if a node has no signature left.
    pub(crate) fn list_candidates(
        &mut self,
        layouts: &Layouts<'_>,
    ) -> Result<Vec<CandidateList>, PlannerError> {
        let mut all: Vec<CandidateList> = Vec::new();
        for (id, node) in self.decisions.graph().iter() {
            let candidates = self.of_node(id, node, layouts, &all)?;
            all.push(candidates);
        }
        Ok(all)
    }

    fn of_node(
        &mut self,
        id: NodeId,
        node: &Node,
        layouts: &Layouts<'_>,
        before: &[CandidateList],
    ) -> Result<CandidateList, PlannerError> {
        let placement = layouts.placement_of(id);
        let all = match &node.op {
            Op::ToGlobal(op) => Rc::new([to_global(op, layouts)]),
            _ => self.of_rule(id, node, placement, layouts)?,
        };
        let mut kept = self.find_movable(node, &all, layouts, before);
        if matches!(node.op, Op::Regather(_)) {
            // A partial sum is as large as the whole: nobody keeps it for later.
            kept.retain(|&at| !layouts.sbp(all[at].results[0]).is_partial());
        }
        let mesh = &self.decisions.staging.placement[id.index()].hierarchy;
        for &value in &node.results {
            for pin in self.find_pins(value) {
                kept = self.keep_pinned(value, &pin, mesh, (&all, kept), layouts)?;
            }
        }
        if !self.is_pinned(node)
            && !matches!(node.op, Op::ToGlobal(_))
            && !self.every_name(id, node)
        {
            self.drop_empty(id, node, (&all, &mut kept), layouts);
        }
        if kept.is_empty() {
            let (op, place) = (node.op.name(), node.source.clone());
            return Err(PlannerError::NoSignature { op, place, mesh: mesh.clone() });
        }
        Ok(self.intern_part(all, kept))
    }

    /// Returns the candidates at these indices of a list: the list itself if these are all, or a list that is shared by nodes with the same
    /// candidates.
    fn intern_part(&mut self, all: CandidateList, kept: Vec<usize>) -> CandidateList {
        if kept.len() == all.len() {
            return all;
        }
        let pick = |kept: &Vec<usize>| kept.iter().map(|&at| all[at].clone()).collect();
        // Lists of kinds stay where they are; of a `to_global` there is one candidate, and so no part.
        let part = self.parts.entry((all.as_ptr(), kept));
        part.or_insert_with_key(|(_, kept)| pick(kept)).clone()
    }

    /// Lists the signatures of the rule. The choice for microbatches is already decided; it is like a mesh axis before all others, whose choice is
    /// fixed.
    fn of_rule(
        &mut self,
        id: NodeId,
        node: &Node,
        placement: PlacementId,
        layouts: &Layouts<'_>,
    ) -> Result<CandidateList, PlannerError> {
        let graph = self.decisions.graph();
        let hierarchy = &self.decisions.staging.placement[id.index()].hierarchy;
        let no_signature = || PlannerError::NoSignature {
            op: node.op.name(),
            place: node.source.clone(),
            mesh: hierarchy.clone(),
        };
        let operands = graph.operand_types(node);
        let results: Vec<&TensorType> =
            node.results.iter().map(|&value| &graph.value(value).ty).collect();
        let rule = node.op.operation().rule(&operands).map_err(|_| no_signature())?;
        let kind = CandidateKind {
            op: node.op.name(),
            flops: node.op.operation().flops(&rule),
            rule,
            time: self.decisions.rates.nodes[id.index()],
            times: self.decisions.count_actions(node),
            placement,
            dtypes: operands.iter().chain(&results).map(|ty| ty.dtype).collect(),
            every_name: self.every_name(id, node),
            is_free: self.tied.is_empty() || self.is_pinned(node),
        };
        if let Some((_, known)) = self.kinds.iter().find(|(known, _)| *known == kind) {
            return Ok(known.clone());
        }
        let microbatches = self.decisions.rates.microbatches;
        let cluster = self.cluster;
        let mut candidates: Vec<Candidate> = Vec::new();
        let mut seen = HashSet::new();
        let time: Vec<(Choice, usize)> = kind.time.iter().map(|&t| (t, microbatches)).collect();
        let tied = if kind.is_free { &[] } else { self.tied };
        let tuples = choice_tuples(&kind.rule, hierarchy, &time, (kind.every_name, tied));
        for choices in tuples.ok_or_else(|| PlannerError::Signatures {
            op: node.op.name(),
            place: node.source.clone(),
            mesh: hierarchy.clone(),
            most: MOST_SIGNATURES,
        })? {
            let axes: Vec<(Choice, usize)> =
                choices.iter().copied().zip(choice_extents(&time, hierarchy)).collect();
            let Some(signature) =
                kind.rule.choose_signature(&choices, &choice_extents(&time, hierarchy))
            else {
                continue;
            };
            let strip = |sbp: &NdSbp| NdSbp(sbp.0[time.len()..].to_vec());
            let operand_sbps: Vec<NdSbp> = signature.operands.iter().map(strip).collect();
            let result_sbps: Vec<NdSbp> = signature.results.iter().map(strip).collect();
            if operand_sbps.iter().chain(&result_sbps).any(mixes_reductions) {
                continue;
            }
            let seconds = match node.op.operation().is_executed() {
                false => 0.0,
                true => {
                    let work = node_work(&node.op, &kind.rule, &operands, &results, &axes);
                    let precision = node.op.compute_dtype(&operands, &results);
                    let arithmetic = node.op.operation().arithmetic(&operands);
                    kind.times as f64 * roofline_seconds(cluster, precision, arithmetic, work)
                }
            };
            let candidate = Candidate {
                choices: choices[time.len()..].to_vec(),
                operands: operand_sbps.iter().map(|sbp| layouts.intern_sbp(sbp)).collect(),
                results: result_sbps.iter().map(|sbp| layouts.intern_sbp(sbp)).collect(),
                seconds,
            };
            if seen.insert((candidate.operands.clone(), candidate.results.clone())) {
                candidates.push(candidate);
            }
        }
        let candidates = CandidateList::from(candidates);
        self.kinds.push((kind, candidates.clone()));
        Ok(candidates)
    }

    /// Whether splits on mesh axes of extent 1 keep their names, because the user or the strategy asks for a split.
    fn every_name(&self, id: NodeId, node: &Node) -> bool {
        let hierarchy = &self.decisions.staging.placement[id.index()].hierarchy;
        let source = node.op.is_given();
        let updates = !node.op.operation().updates().is_empty();
        let named = |pin: &NdSbp| {
            let axes = pin.0.iter().zip(hierarchy);
            axes.into_iter().any(|(&sbp, &extent)| extent == 1 && sbp != Sbp::Broadcast)
        };
        !self.options.strategy.is_planned() && (source || updates)
            || node.results.iter().any(|&value| self.find_pins(value).iter().any(named))
    }

    /// Returns the indices of the candidates whose operands can be made. Partial maxima and minima come from reductions alone: an op may pass them on
    /// only if its operand's producer can make them.
    fn find_movable(
        &self,
        node: &Node,
        all: &[Candidate],
        layouts: &Layouts<'_>,
        before: &[CandidateList],
    ) -> Vec<usize> {
        let graph = self.decisions.graph();
        let find = |axis: usize, kind: ReduceKind| {
            let value = graph.value(node.operands[0]);
            before[value.producer.index()].iter().any(|producer| {
                let sbp = layouts.sbp(producer.results[value.index]);
                sbp.0.get(axis) == Some(&Sbp::Partial(kind))
            })
        };
        let mut known: HashMap<(usize, ReduceKind), bool> = HashMap::new();
        let mut fits = |(axis, &choice): (usize, &Choice)| match choice {
            Choice::Move(kind) if !matches!(node.op, Op::ToGlobal(_)) => {
                *known.entry((axis, kind)).or_insert_with(|| find(axis, kind))
            }
            _ => true,
        };
        let places = 0..all.len();
        places.filter(|&at| all[at].choices.iter().enumerate().all(&mut fits)).collect()
    }

    fn is_pinned(&self, node: &Node) -> bool {
        node.results.iter().any(|&value| !self.find_pins(value).is_empty())
    }

    /// Returns the layouts that the user asks for.
    fn find_pins(&self, value: ValueId) -> Vec<NdSbp> {
        let id = value;
        let value = self.decisions.graph().value(value);
        let name = value.name.as_deref();
        let by_name = self
            .options
            .pins
            .iter()
            .filter(|pin| name.is_some_and(|name| matches_pattern(&pin.pattern, name)));
        let asked: Vec<NdSbp> =
            value.pin.iter().cloned().chain(by_name.map(|pin| pin.sbp.clone())).collect();
        if asked.is_empty() { self.strategy_pin(id).into_iter().collect() } else { asked }
    }

    /// Returns the layout that a strategy asks for which leaves the others to the planner.
    fn strategy_pin(&self, value: ValueId) -> Option<NdSbp> {
        let graph = self.decisions.graph();
        let producer = graph.value(value).producer;
        context_layout(
            self.options.strategy,
            &self.decisions.staging.placement[producer.index()].hierarchy,
            graph.node(producer),
            self.decisions.training.kinds[value.index()],
            &graph.value(value).ty.shape,
        )
    }

    fn keep_pinned(
        &self,
        value: ValueId,
        pin: &NdSbp,
        mesh: &[usize],
        (all, places): (&[Candidate], Vec<usize>),
        layouts: &Layouts<'_>,
    ) -> Result<Vec<usize>, PlannerError> {
        let index = self.decisions.graph().value(value).index;
        let sbp = |&at: &usize| layouts.sbp(all[at].results[index]);
        let (kept, dropped): (Vec<usize>, Vec<usize>) =
            places.into_iter().partition(|at| *sbp(at) == *pin);
        if !kept.is_empty() {
            return Ok(kept);
        }
        let mut possible: Vec<NdSbp> = dropped.iter().map(|at| NdSbp::clone(&sbp(at))).collect();
        possible.sort();
        possible.dedup();
        Err(PlannerError::Pin {
            tensor: self.decisions.graph().display_name(value),
            pin: pin.clone(),
            shape: self.decisions.graph().value(value).ty.shape.clone(),
            mesh: mesh.to_vec(),
            candidates: possible,
        })
    }

    /// Drops signatures in which a rank would hold nothing, unless no others are left.
    fn drop_empty(
        &self,
        id: NodeId,
        node: &Node,
        (all, kept): (&[Candidate], &mut Vec<usize>),
        layouts: &Layouts<'_>,
    ) {
        let hierarchy = &self.decisions.staging.placement[id.index()].hierarchy;
        // Many candidates have the same layouts.
        let mut known: HashMap<(ValueId, SbpId), bool> = HashMap::new();
        let mut is_full = |value: ValueId, sbp: SbpId| {
            let of = known.entry((value, sbp));
            *of.or_insert_with(|| self.is_full(value, &layouts.sbp(sbp), hierarchy))
        };
        let mut fits = |at: usize| {
            let operands = node.operands.iter().zip(&all[at].operands);
            let mut tensors = operands.chain(node.results.iter().zip(&all[at].results));
            tensors.all(|(&value, &sbp)| is_full(value, sbp))
        };
        let fitting: Vec<usize> = kept.iter().copied().filter(|&at| fits(at)).collect();
        if !fitting.is_empty() {
            *kept = fitting;
        }
    }

    /// Whether every rank holds something of a tensor.
    fn is_full(&self, value: ValueId, sbp: &NdSbp, hierarchy: &[usize]) -> bool {
        let mut extents = self.decisions.graph().value(value).ty.shape.clone();
        if let ValueRate::Microbatch { dim } = self.decisions.rates.values[value.index()] {
            extents[dim] /= self.decisions.rates.microbatches;
        }
        for (&sbp, &parts) in sbp.0.iter().zip(hierarchy) {
            if let Sbp::Split(dim) = sbp {
                if extents[dim] < parts {
                    return false;
                }
                extents[dim] /= parts;
            }
        }
        true
    }
}

fn choice_extents(time: &[(Choice, usize)], hierarchy: &[usize]) -> Vec<usize> {
    time.iter().map(|&(_, parts)| parts).chain(hierarchy.iter().copied()).collect()
}

/// The most signatures of a node. Their number grows with every axis by the same factor, and tables of costs with its square, so more would take
/// gigabytes.
const MOST_SIGNATURES: usize = 4096;

/// Lists the valid choices of time and of every mesh axis. On axes of extent 1 all choices mean the same, and a tied axis has the choice of the one
/// before it. `None` if they are too many.
fn choice_tuples(
    rule: &Rule,
    hierarchy: &[usize],
    time: &[(Choice, usize)],
    (every_name, tied): (bool, &[usize]),
) -> Option<Vec<Vec<Choice>>> {
    let all = rule.axis_choices();
    let mut tuples = vec![time.iter().map(|&(choice, _)| choice).collect::<Vec<_>>()];
    let extents = choice_extents(time, hierarchy);
    for (axis, &extent) in hierarchy.iter().enumerate() {
        let choices = if extent == 1 && !every_name { &all[..1] } else { &all[..] };
        let like = if tied.contains(&axis) { partner_axis(hierarchy, axis) } else { None };
        let longer = |tuple: &Vec<Choice>| -> Vec<Vec<Choice>> {
            let own = like.map(|before| [tuple[time.len() + before]]);
            let choices = own.as_ref().map_or(choices, |own| &own[..]);
            choices.iter().map(|&choice| [tuple.as_slice(), &[choice]].concat()).collect()
        };
        tuples = tuples.iter().flat_map(longer).collect();
        tuples.retain(|tuple| rule.choose_signature(tuple, &extents).is_some());
        if tuples.len() > MOST_SIGNATURES {
            return None;
        }
    }
    Some(tuples)
}

/// Whether an SBP mixes kinds of reductions. A sum of maxima would depend on the order in which axes are reduced.
fn mixes_reductions(sbp: &NdSbp) -> bool {
    let kind = |sbp: &Sbp| if let Sbp::Partial(kind) = sbp { Some(*kind) } else { None };
    let mut kinds = sbp.0.iter().filter_map(kind);
    let first = kinds.next();
    kinds.any(|kind| Some(kind) != first)
}

/// Makes the only signature of a `to_global`, which the user asks for.
fn to_global(op: &ToGlobal, layouts: &Layouts<'_>) -> Candidate {
    let sbp = layouts.intern_sbp(&op.sbp);
    let choice = |sbp: &Sbp| match *sbp {
        Sbp::Broadcast => Choice::Replicate,
        Sbp::Split(dim) => Choice::Factor(dim),
        Sbp::Partial(ReduceKind::Sum) => Choice::Linear(0),
        Sbp::Partial(kind) => Choice::Move(kind),
    };
    let choices = op.sbp.0.iter().map(choice).collect();
    Candidate { choices, operands: vec![sbp], results: vec![sbp], seconds: 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_maxima_do_not_mix() {
        let mixes = |sbp: &str| mixes_reductions(&sbp.parse().expect("an SBP"));
        assert!(mixes("P(sum), P(max)"));
        assert!(!mixes("P(max), B, P(max)"));
    }
}
