//! Lists what happens to tensors, whatever the candidates: the place and the time for which each is kept, the readers for which it is boxed, and the
//! updates that write it back.

use std::collections::BTreeMap;

use graphc_ir::graph::Node;
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::mesh::Placement;
use graphc_ir::op::Op;

use super::layouts::{Layouts, PlacementId};
use super::lifetimes::{Lifetimes, Span};
use super::{Demand, Made, WriteBack};
use crate::boxing::{Fusion, Hidden, HidingWindow, is_fused};
use crate::decisions::{Decisions, ValueRate};

/// Visits the tensors of a graph one by one.
pub(super) struct Tensors<'p, 'a> {
    decisions: &'a Decisions,
    layouts: &'p Layouts<'a>,
    lifetimes: &'p Lifetimes,
    hidden: &'p Hidden,
    /// The updates on each placement.
    fusions: Vec<Fusion>,
}

impl<'p, 'a> Tensors<'p, 'a> {
    /// Prepares the lists for these decisions.
    pub(super) fn new(
        decisions: &'a Decisions,
        layouts: &'p Layouts<'a>,
        lifetimes: &'p Lifetimes,
        hidden: &'p Hidden,
    ) -> Self {
        let of = |placement: &Placement| Fusion::for_placement(decisions, placement);
        let fusions = layouts.placements().iter().map(of).collect();
        Self { decisions, layouts, lifetimes, hidden, fusions }
    }

    /// Lists the tensors that take memory where they are made. A result of an update is in its variable's memory, unless others read it. If none
    /// does, the write-back counts it.
    pub(super) fn list_made(&self) -> Vec<Made> {
        let graph = self.decisions.graph();
        let readers = graph.list_consumers();
        let mut all = Vec::new();
        for (id, node) in graph.iter() {
            let in_place = node.op.operation().updates();
            for (index, &value) in node.results.iter().enumerate() {
                let is_update = in_place.iter().any(|&(result, _)| result == index);
                if !is_update || !readers[value.index()].is_empty() {
                    all.push(self.made_by(id, node, (index, value)));
                }
            }
        }
        all
    }

    fn made_by(&self, producer: NodeId, node: &Node, (index, value): (usize, ValueId)) -> Made {
        let placement = self.layouts.placement_of(producer);
        let class = self.layouts.class(value, placement);
        let (span, beside) = match node.op {
            Op::Regather(_) => self.regathered_span(producer, node),
            _ => (self.lifetimes.made_span(self.decisions, value), None),
        };
        Made { value, producer, index, class, placement, span, beside }
    }

    fn regathered_span(&self, id: NodeId, node: &Node) -> (Span, Option<(NodeId, usize)>) {
        let (span, is_kept) = self.lifetimes.regathered_span(self.decisions, id);
        let operand = self.decisions.graph().value(node.operands[0]);
        (span, is_kept.then_some((operand.producer, operand.index)))
    }

    /// Lists the tensors that are read, by nodes or by the user, on each placement of readers.
    pub(super) fn list_demands(&self) -> Vec<Demand> {
        let graph = self.decisions.graph();
        let mut readers: Vec<BTreeMap<PlacementId, BTreeMap<NodeId, Vec<usize>>>> =
            vec![BTreeMap::new(); graph.values.len()];
        for (id, node) in graph.iter() {
            let placement = self.layouts.placement_of(id);
            for (position, operand) in node.operands.iter().enumerate() {
                let of_value = readers[operand.index()].entry(placement).or_default();
                of_value.entry(id).or_default().push(position);
            }
        }
        for output in &graph.outputs {
            let producer = graph.value(output.value).producer;
            let placement = self.layouts.placement_of(producer);
            readers[output.value.index()].entry(placement).or_default();
        }
        let mut all = Vec::new();
        for (index, placements) in readers.into_iter().enumerate() {
            for (placement, nodes) in placements {
                let readers = nodes.into_iter().collect();
                all.push(self.build_demand(ValueId::new(index), placement, readers));
            }
        }
        all
    }

    fn build_demand(
        &self,
        value: ValueId,
        placement: PlacementId,
        readers: Vec<(NodeId, Vec<usize>)>,
    ) -> Demand {
        let (decisions, lifetimes) = (self.decisions, self.lifetimes);
        let graph = decisions.graph();
        let producer = graph.value(value).producer;
        let home = self.layouts.placement_of(producer);
        let is_output = graph.outputs.iter().any(|output| output.value == value);
        let per_step = decisions.rates.values[value.index()] == ValueRate::Step;
        let moved =
            |&(node, _): &(NodeId, Vec<usize>)| graph.node(node).op.operation().is_executed();
        let nodes: Vec<NodeId> = readers.iter().map(|reader| reader.0).collect();
        let stays = placement == home;
        let fused = stays && is_fused(decisions, per_step, &nodes);
        let hides = match stays {
            true => self.hidden.find_window(decisions, value, &nodes),
            false => HidingWindow::default(),
        };
        let is_scattered = lifetimes.is_scattered(decisions, value);
        Demand {
            value,
            producer,
            index: graph.value(value).index,
            from: self.layouts.class(value, home),
            to: self.layouts.class(value, placement),
            placement,
            fetched: is_output && stays,
            fusion: fused.then(|| self.fusion(placement)),
            hides,
            times: decisions.times_boxed(value) as f64,
            span: lifetimes.copy_span(decisions, value, &nodes),
            scattered: is_scattered.then(|| lifetimes.made_span(decisions, value)),
            counts: readers.is_empty() || readers.iter().any(moved),
            readers,
        }
    }

    /// Lists the results of updates that replace variables.
    pub(super) fn write_backs(&self) -> Vec<WriteBack> {
        let graph = self.decisions.graph();
        let readers = graph.list_consumers();
        let mut all = Vec::new();
        for (id, node) in graph.iter() {
            for &(result, operand) in node.op.operation().updates() {
                let placement = self.layouts.placement_of(id);
                let variable = graph.value(node.operands[operand]).producer;
                let home = self.layouts.placement_of(variable);
                let value = node.results[result];
                all.push(WriteBack {
                    update: id,
                    result,
                    from: self.layouts.class(value, placement),
                    variable,
                    to: self.layouts.class(value, home),
                    placement,
                    fusion: (placement == home).then(|| self.fusion(placement)),
                    span: self.lifetimes.node_span(id),
                    is_read: !readers[value.index()].is_empty(),
                });
            }
        }
        all
    }

    fn fusion(&self, placement: PlacementId) -> Fusion {
        self.fusions[placement.0 as usize]
    }
}
