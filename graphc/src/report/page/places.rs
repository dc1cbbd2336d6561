//! Lists what goes where: ranks and stages, and the model's tensors by layer.

use std::collections::BTreeMap;

use graphc_compiler::decisions::{Decisions, Phase};
use graphc_compiler::passes::pins::pin_matches_name;
use graphc_ir::graph::Node;
use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;
use graphc_plan::{Plan, Rate, TensorEntry};
use serde::Serialize;

use super::graph::{Ops, PageNumbers, list_ops};
use super::layers::{Layer, Tensor, by_layer};
use super::parts::Parts;
use super::table::InternTable;
use crate::report::alternatives::name_of;
use crate::report::home_of_stage;

/// The places of ranks, stages and tensors.
#[derive(Clone, Debug, Serialize)]
pub struct PlanPlaces {
    /// Extents of the mesh of all ranks.
    pub mesh: Vec<usize>,
    /// Ranks of a node; 0 where the cluster does not say.
    pub node: usize,
    /// The program of each rank, as runs (program, ranks).
    pub programs: Vec<(usize, usize)>,
    /// Stages, in order.
    pub stages: Vec<Stage>,
    /// Layouts that `tensors` and `boxing` refer to: one SBP for each axis.
    pub layouts: Vec<String>,
    /// Types that `tensors` refer to: element type, bytes of an element, shape.
    pub types: Vec<(String, usize, Vec<usize>)>,
    /// All tensors that the plan lists.
    pub tensors: Vec<Tensor>,
    /// Layers, in order, with the tensors that belong to none as the last.
    pub layers: Vec<Layer>,
    /// Inserted steps of communication.
    pub boxing: Vec<Boxing>,
}

/// Ranks of a stage.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stage {
    /// Extents of its mesh.
    pub hierarchy: Vec<usize>,
    /// Its ranks, row-major, as runs (first, how many, distance).
    pub ranks: Vec<RankRun>,
}

/// Ranks that are equally far from each other: the first, how many, their distance.
pub(crate) type RankRun = (u32, u32, u32);

/// An inserted step: tensor, kind, layout before and after, axis, bytes of the busiest rank, times a step.
pub(super) type Boxing = (usize, &'static str, usize, usize, Option<usize>, u64, usize);

/// Marks of a tensor: asked for by a pin; kept for the backward pass; gathered again there; computed again there.
pub(super) mod mark {
    /// The user asked for its layout.
    pub(crate) const PINNED: u8 = 1;
    /// It is kept from the forward to the backward pass.
    pub(crate) const KEPT: u8 = 2;
    /// It is gathered again for the backward pass.
    pub(crate) const GATHERED: u8 = 4;
    /// It is computed again for the backward pass.
    pub(crate) const RECOMPUTED: u8 = 8;
}

/// Reads the places of a plan off it, with the parts of the model that these name, and its ops.
pub(super) fn list_places(
    plan: &Plan,
    decisions: &Decisions,
    paths: &mut InternTable<String>,
) -> (PlanPlaces, Parts, Ops) {
    let values = values_by_name(decisions);
    let marks = mark_values(plan, decisions);
    let (mut layouts, mut types) = (InternTable::default(), InternTable::default());
    let tensor = |entry: &TensorEntry| -> Tensor {
        let value = values.get(&entry.name);
        let ty = (entry.dtype.to_string(), entry.dtype.size(), entry.shape.clone());
        (
            entry.name.clone(),
            entry.kind.name(),
            types.intern(ty),
            layouts.intern(entry.sbp.to_string()),
            entry.stage,
            value.map_or(0, |value| marks[value.index()]),
        )
    };
    let tensors: Vec<Tensor> = plan.tensors.iter().map(tensor).collect();
    let (layers, known) = by_layer(decisions, &values, &tensors);
    let boxing = list_boxing(plan, &mut layouts);
    let parts = Parts::new(decisions, &layers, &known);
    let named = tensors.iter().enumerate().rev();
    let numbers = named.map(|(number, tensor)| (tensor.0.as_str(), (number, tensor.3))).collect();
    let mut numbers = PageNumbers { tensors: numbers, layouts: &mut layouts, parts: paths };
    let ops = list_ops(plan, decisions, &parts, &mut numbers);
    let (layouts, types) = (layouts.all, types.all);
    let (mesh, node) = (plan.mesh.clone(), ranks_per_node(plan));
    let places = PlanPlaces {
        mesh,
        node,
        programs: program_runs(plan),
        stages: list_stages(plan),
        layouts,
        types,
        tensors,
        layers,
        boxing,
    };
    (places, parts, ops)
}

fn ranks_per_node(plan: &Plan) -> usize {
    plan.cluster.levels.first().map_or(0, |level| level.size)
}

fn program_runs(plan: &Plan) -> Vec<(usize, usize)> {
    let runs = plan.ranks.chunk_by(|a, b| a.program == b.program);
    runs.map(|run| (run[0].program.index(), run.len())).collect()
}

/// The ranks of each stage, where most of its tensors lie.
fn list_stages(plan: &Plan) -> Vec<Stage> {
    let of = |stage: usize| {
        let home = home_of_stage(plan, stage);
        home.map_or(Stage { hierarchy: Vec::new(), ranks: Vec::new() }, |tensor| Stage {
            hierarchy: tensor.hierarchy.clone(),
            ranks: rank_runs(&tensor.ranks),
        })
    };
    (0..plan.stages).map(of).collect()
}

/// Writes ranks as runs, in their order.
pub(super) fn rank_runs(ranks: &[u32]) -> Vec<RankRun> {
    let mut runs: Vec<RankRun> = Vec::new();
    for (place, &rank) in ranks.iter().enumerate() {
        let next = ranks.get(place + 1).and_then(|next| next.checked_sub(rank));
        let before = place.checked_sub(1).and_then(|before| rank.checked_sub(ranks[before]));
        match runs.last_mut() {
            Some((first, count, step)) if *first + *count * *step == rank => *count += 1,
            // Two ranks that are far from each other are a run where a third is as far.
            Some((_, count, step)) if *count == 1 && before > Some(1) && before == next => {
                (*count, *step) = (2, before.unwrap_or(1));
            }
            _ => runs.push((rank, 1, 1)),
        }
    }
    runs
}

/// The ranks of a run.
pub(super) fn ranks_of_run((first, count, step): RankRun) -> impl Iterator<Item = u32> {
    (0..count).map(move |at| first + at * step)
}

/// The ranks of one of some classes into which ranks are parted.
pub(super) fn ranks_of_class(class_of_rank: &[usize], class: usize) -> Vec<RankRun> {
    let of_class = class_of_rank.iter().enumerate().filter(|(_, other)| **other == class);
    let ranks: Vec<u32> = of_class.map(|(rank, _)| rank as u32).collect();
    rank_runs(&ranks)
}

/// Values by the names under which plans list them; of several of one name the first.
fn values_by_name(decisions: &Decisions) -> BTreeMap<String, ValueId> {
    let all = (0..decisions.graph().values.len()).rev().map(ValueId::new);
    all.map(|value| (name_of(decisions, value), value)).collect()
}

/// The marks of each value.
fn mark_values(plan: &Plan, decisions: &Decisions) -> Vec<u8> {
    let graph = decisions.graph();
    let mut marks = vec![0; graph.values.len()];
    for (node, original) in graph.nodes.iter().zip(&decisions.recomputed) {
        let Some(original) = original else { continue };
        let originals = &graph.nodes[original.index()].results;
        originals.iter().for_each(|value| marks[value.index()] |= mark::RECOMPUTED);
        debug_assert_eq!(originals.len(), node.results.len());
    }
    let layouts: BTreeMap<&str, String> =
        plan.tensors.iter().map(|entry| (entry.name.as_str(), entry.sbp.to_string())).collect();
    let laid = |value: ValueId| layouts.get(name_of(decisions, value).as_str());
    for (index, of) in marks.iter_mut().enumerate() {
        let value = ValueId::new(index);
        let name = name_of(decisions, value);
        if plan.options.pins.iter().any(|pin| pin_matches_name(&pin.pattern, &name)) {
            *of |= mark::PINNED;
        }
    }
    for node in regather_nodes(decisions) {
        let (operand, again) = (node.operands[0], node.results[0]);
        let how = if laid(operand) == laid(again) { mark::GATHERED } else { mark::KEPT };
        let mut value = operand;
        loop {
            marks[value.index()] |= how;
            let producer = graph.producer(value);
            if !matches!(producer.op, Op::Regather(_) | Op::Cast(_)) {
                break;
            }
            value = producer.operands[0];
        }
    }
    mark_crossing(decisions, &mut marks);
    marks
}

/// The nodes that stand for tensors that the backward pass reads as they were kept, or gathers again.
fn regather_nodes(decisions: &Decisions) -> impl Iterator<Item = &Node> {
    let nodes = decisions.graph().nodes.iter().zip(&decisions.training.phases);
    let backward = |(node, phase): &(&Node, &Phase)| {
        matches!(node.op, Op::Regather(_)) && **phase == Phase::Backward
    };
    nodes.filter(backward).map(|(node, _)| node)
}

/// Marks what the forward pass makes and the backward pass reads as kept, unless it comes again in another way.
fn mark_crossing(decisions: &Decisions, marks: &mut [u8]) {
    let graph = decisions.graph();
    let phase = |node: usize| decisions.training.phases[node];
    for (index, readers) in graph.list_consumers().iter().enumerate() {
        let producer = graph.value(ValueId::new(index)).producer.index();
        let made = phase(producer) == Phase::Forward && !graph.nodes[producer].op.is_given();
        let read = readers.iter().any(|reader| phase(reader.index()) == Phase::Backward);
        if made && read && marks[index] & (mark::GATHERED | mark::KEPT) == 0 {
            marks[index] |= mark::KEPT;
        }
    }
}

fn list_boxing(plan: &Plan, layouts: &mut InternTable<String>) -> Vec<Boxing> {
    let numbers: BTreeMap<&str, usize> = (plan.tensors.iter().enumerate().rev())
        .map(|(index, entry)| (entry.name.as_str(), index))
        .collect();
    let mut all = Vec::new();
    for entry in &plan.boxing {
        let Some(&tensor) = numbers.get(entry.tensor.as_str()) else { continue };
        let times = if entry.rate == Rate::Step { 1 } else { plan.microbatches };
        let (from, to) =
            (layouts.intern(entry.from.to_string()), layouts.intern(entry.to.to_string()));
        all.push((tensor, entry.kind.name(), from, to, entry.axis, entry.bytes, times));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{rank_runs, ranks_of_class};

    #[test]
    fn ranks_that_are_equally_far_apart_are_one_run() {
        assert_eq!(rank_runs(&[0, 1, 2, 3, 8]), [(0, 4, 1), (8, 1, 1)]);
        assert_eq!(rank_runs(&[0, 8, 16, 24]), [(0, 4, 8)]);
        assert_eq!(rank_runs(&[3, 5]), [(3, 1, 1), (5, 1, 1)]);
        assert_eq!(rank_runs(&[4, 2]), [(4, 1, 1), (2, 1, 1)]);
        assert_eq!(rank_runs(&[]), []);
        assert_eq!(ranks_of_class(&[0, 1, 0, 1, 0], 0), [(0, 3, 2)]);
        assert_eq!(ranks_of_class(&[0, 1, 0, 1, 0], 1), [(1, 1, 1), (3, 1, 1)]);
    }
}
