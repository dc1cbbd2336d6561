//! Computes cost and memory of a finished sharding independently, only from the graph, the decisions and the machines.
//!
//! It shares the formulas of cost and the routes of boxing with the planner, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use graphc_ir::graph::Node;
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::mesh::Placement;
use graphc_ir::op::Op;
use graphc_ir::rule::Choice;
use graphc_ir::sbp::NdSbp;
use graphc_plan::{Cluster, CompileOptions, Layout, Schedule};

use super::account::{Account, KeepDuration, Ledger, Spans};
use crate::boxing::{
    Fusion, Hidden, Route, Router, SCATTERED_BYTES, fetched, is_fused, shard_bytes,
    unhidden_seconds,
};
use crate::cost::compute_work;
use crate::decisions::{Decisions, NodeSharding, Phase, Sharding, ValueRate};
use crate::schedule::under_way;

/// The cost and the memory of a sharding.
#[derive(Clone, Debug, PartialEq)]
pub struct RepricedSharding {
    /// The seconds of a step, summed over all stages: the objective.
    pub objective_seconds: f64,
    /// The bytes at the peak of the busiest rank of each stage.
    pub memory: Vec<u64>,
}

/// Computes the cost and the memory of a sharding.
pub fn reprice_sharding(
    decisions: &Decisions,
    sharding: &Sharding,
    cluster: &Cluster,
    options: &CompileOptions,
) -> RepricedSharding {
    let walk = walk_sharding(decisions, sharding, cluster, options);
    RepricedSharding { objective_seconds: walk.seconds, memory: walk.peaks() }
}

/// Computes the cost and the memory of a sharding, node by node.
pub(crate) fn account_by_node(
    decisions: &Decisions,
    sharding: &Sharding,
    cluster: &Cluster,
    options: &CompileOptions,
) -> Account {
    let walk = walk_sharding(decisions, sharding, cluster, options);
    walk.ledger.close(&walk.position)
}

fn walk_sharding<'a>(
    decisions: &'a Decisions,
    sharding: &'a Sharding,
    cluster: &'a Cluster,
    options: &CompileOptions,
) -> ShardingWalk<'a> {
    let mut walk = ShardingWalk::new(decisions, sharding, cluster, options);
    for (id, node) in decisions.graph().iter() {
        walk.price_node(id, node, cluster);
        walk.keep_results(id, node);
    }
    for value in 0..decisions.graph().values.len() {
        walk.box_copies(ValueId::new(value));
    }
    walk
}

struct ShardingWalk<'a> {
    decisions: &'a Decisions,
    sharding: &'a Sharding,
    schedule: Schedule,
    under_way: Vec<Vec<usize>>,
    router: Router<'a>,
    consumers: Vec<Vec<NodeId>>,
    /// The position of each node in the order of phases.
    position: Vec<usize>,
    /// Whether each node acts once for each of several microbatches.
    repeats: Vec<bool>,
    /// The first and the last position at which a node does so, or `None` if no node does.
    whole_loop: Option<(usize, usize)>,
    /// Whether a value is an output, by value.
    is_output: Vec<bool>,
    /// The position of the first update, or one past the last position if there is none.
    first_update: usize,
    seconds: f64,
    ledger: Ledger,
    /// The gradients of variables.
    gradients: BTreeSet<ValueId>,
    /// The bytes by position, for one rank of each group of ranks that are alike.
    kept: BTreeMap<u32, Spans>,
    stage_of_rank: BTreeMap<u32, usize>,
    /// The fusion on each mesh.
    fusions: Vec<(&'a Placement, Fusion)>,
    /// The seconds of computing under which boxing hides.
    hidden: Hidden,
}

impl<'a> ShardingWalk<'a> {
    fn new(
        decisions: &'a Decisions,
        sharding: &'a Sharding,
        cluster: &'a Cluster,
        options: &CompileOptions,
    ) -> Self {
        let graph = decisions.graph();
        let mut order: Vec<NodeId> = graph.iter().map(|(id, _)| id).collect();
        order.sort_by_key(|&node| (decisions.training.phases[node.index()], node));
        let mut position = vec![0; order.len()];
        order.iter().enumerate().for_each(|(at, &node)| position[node.index()] = at);
        // The first node on each mesh.
        let mut meshes: BTreeMap<&Placement, NodeId> = BTreeMap::new();
        for (node, placement) in decisions.staging.placement.iter().enumerate() {
            meshes.entry(placement).or_insert(NodeId::new(node));
        }
        let (mut kept, mut stage_of_rank) = (BTreeMap::new(), BTreeMap::new());
        for (rank, node) in unlike_ranks(&meshes) {
            kept.insert(rank, Spans::new(graph.nodes.len()));
            stage_of_rank.insert(rank, decisions.staging.stage[node.index()]);
        }
        let fusion = |&place: &&'a Placement| (place, Fusion::for_placement(decisions, place));
        let fusions = meshes.keys().map(fusion).collect();
        let repeats: Vec<bool> =
            graph.nodes.iter().map(|node| is_repeated(decisions, node)).collect();
        let looped =
            || (0..position.len()).filter(|&node| repeats[node]).map(|node| position[node]);
        let whole_loop = looped().min().zip(looped().max());
        let mut is_output = vec![false; graph.values.len()];
        graph.outputs.iter().for_each(|output| is_output[output.value.index()] = true);
        Self {
            decisions,
            sharding,
            schedule: options.schedule,
            under_way: under_way(
                options.schedule,
                decisions.staging.stages,
                decisions.rates.microbatches,
            ),
            router: Router::new(cluster, decisions.rates.microbatches),
            consumers: graph.list_consumers(),
            position,
            repeats,
            whole_loop,
            is_output,
            first_update: decisions
                .training
                .phases
                .iter()
                .filter(|&&phase| phase != Phase::Update)
                .count(),
            seconds: 0.0,
            ledger: Ledger::new(graph.nodes.len()),
            gradients: decisions.training.gradients.iter().map(|pair| pair.1).collect(),
            kept,
            stage_of_rank,
            fusions,
            hidden: Hidden::from_decisions(decisions, cluster),
        }
    }

    fn microbatches(&self) -> usize {
        self.decisions.rates.microbatches
    }

    fn per_step(&self, value: ValueId) -> bool {
        self.decisions.rates.values[value.index()] == ValueRate::Step
    }

    fn placement(&self, node: NodeId) -> &'a Placement {
        &self.decisions.staging.placement[node.index()]
    }

    fn position(&self, node: NodeId) -> usize {
        self.position[node.index()]
    }

    fn phase(&self, node: NodeId) -> Phase {
        self.decisions.training.phases[node.index()]
    }

    /// Whether a node acts once for each of several microbatches.
    fn repeats(&self, node: NodeId) -> bool {
        self.repeats[node.index()]
    }

    fn sharding_of(&self, node: NodeId) -> &'a NodeSharding {
        &self.sharding.nodes[node.index()]
    }

    fn layout(&self, value: ValueId, placement: &Placement, sbp: &NdSbp) -> Layout {
        self.decisions.layout(value, placement, sbp)
    }

    fn price_node(&mut self, id: NodeId, node: &Node, cluster: &Cluster) {
        let graph = self.decisions.graph();
        let time =
            self.decisions.rates.nodes[id.index()].map(|choice| (choice, self.microbatches()));
        let choices = self.sharding_of(id).choices.iter().copied();
        let axes: Vec<(Choice, usize)> = time
            .into_iter()
            .chain(choices.zip(self.placement(id).hierarchy.iter().copied()))
            .collect();
        let results: Vec<_> = node.results.iter().map(|&value| &graph.value(value).ty).collect();
        let (_, seconds) =
            compute_work(cluster, &node.op, &graph.operand_types(node), &results, &axes);
        let times = if self.repeats(id) { self.microbatches() } else { 1 };
        self.spend(id, times as f64 * seconds);
    }

    fn spend(&mut self, node: NodeId, seconds: f64) {
        self.seconds += seconds;
        self.ledger.spend(node, seconds);
    }

    /// Returns the time for which a tensor, or a copy of it, is kept for these nodes.
    fn kept_for(&self, value: ValueId, nodes: &[NodeId]) -> KeepDuration {
        let producer = self.decisions.graph().value(value).producer;
        let variable = matches!(self.decisions.graph().node(producer).op, Op::Variable(_));
        let made = nodes.contains(&producer);
        if variable && made || self.gradients.contains(&value) {
            return KeepDuration::Resident;
        }
        let forward = |&node: &NodeId| self.phase(node) == Phase::Forward;
        let crosses = nodes.iter().any(forward) && !nodes.iter().all(forward);
        let shared = self.microbatches() > 1
            && self.per_step(value)
            && nodes.iter().any(|&node| self.repeats(node));
        match (shared, crosses) {
            (true, _) => KeepDuration::Resident,
            (false, true) => KeepDuration::Stashed,
            (false, false) => KeepDuration::Transient,
        }
    }

    /// Counts the results of a node. Those that replace a variable are boxed back.
    fn keep_results(&mut self, id: NodeId, node: &Node) {
        let updates = node.op.operation().updates();
        for (index, &value) in node.results.iter().enumerate() {
            let placement = self.placement(id);
            let made = self.layout(value, placement, &self.sharding_of(id).results[index]);
            let bytes = shard_bytes(&made, self.microbatches());
            let replaced = updates.iter().find(|pair| pair.0 == index);
            // A variable is overwritten in its place, unless others read what it becomes.
            let is_read = !self.consumers[value.index()].is_empty();
            if matches!(node.op, Op::Regather(_)) {
                self.keep_regathered(id, node, bytes);
            } else if replaced.is_none() || is_read {
                self.keep_made(id, value, bytes);
            }
            let Some(&(_, operand)) = replaced else { continue };
            let variable = self.decisions.graph().value(node.operands[operand]).producer;
            let home = &self.sharding_of(variable).results[0];
            let home = self.layout(value, self.placement(variable), home);
            let route = self.router.find_route(&made, &home);
            let at_home = placement == self.placement(variable);
            self.spend(id, self.route_seconds(&route, &made, at_home));
            if let Some(copy) = self.copy_bytes(&route) {
                let at = self.position(id);
                let made = if is_read { 0 } else { bytes };
                let all = made + copy + self.scratch_bytes(&route);
                self.keep(placement, all, at, at);
                self.ledger.keep(id, KeepDuration::Transient, all, (at, at));
            }
        }
    }

    /// Returns the nodes that are not a `regather`.
    fn direct_readers(&self, nodes: &[NodeId]) -> Vec<NodeId> {
        let regathers =
            |node: NodeId| matches!(self.decisions.graph().node(node).op, Op::Regather(_));
        nodes.iter().copied().filter(|&node| !regathers(node)).collect()
    }

    /// Returns the readers for which copies are kept. The copy for a `regather` is its result, and updates take variables at rest.
    fn copy_readers(&self, nodes: &[NodeId]) -> Vec<NodeId> {
        let mut direct = self.direct_readers(nodes);
        let updates = |&node: &NodeId| self.phase(node) == Phase::Update;
        if !direct.iter().all(updates) {
            direct.retain(|node| !updates(node));
        }
        direct
    }

    /// Counts the result of a `regather`, which is its operand or a copy of it. It takes memory from the last time that others read that, or through
    /// all microbatches if the operand is the same for them. What is kept anyway takes no more memory.
    fn keep_regathered(&mut self, id: NodeId, node: &Node, bytes: u64) {
        let graph = self.decisions.graph();
        let (operand, result) = (node.operands[0], node.results[0]);
        let (producer, index) = {
            let value = graph.value(operand);
            (value.producer, value.index)
        };
        let through = self.per_step(operand) && !self.per_step(result);
        let anew = |value: ValueId| self.decisions.rates.values[value.index()] == ValueRate::Anew;
        let is_kept =
            through || matches!(graph.node(producer).op, Op::Variable(_)) || anew(operand);
        let beside = &self.sharding_of(producer).results[index];
        if is_kept && *beside == self.sharding_of(id).results[0] {
            return;
        }
        let before = self.copy_readers(&self.consumers[operand.index()]);
        let nodes: Vec<NodeId> =
            before.iter().chain(&self.consumers[result.index()]).copied().collect();
        let at = |nodes: &[NodeId]| nodes.iter().map(|&node| self.position(node)).max();
        let here = self.position(id);
        let mut span = at(&before).map_or(here, |last| here.min(last + 1));
        let mut end = at(&self.consumers[result.index()]).unwrap_or(here);
        if through && let Some((first, last)) = self.whole_loop {
            (span, end) = (first, last);
        }
        let placement = self.placement(id);
        let kept = if through { KeepDuration::Resident } else { self.kept_for(result, &nodes) };
        self.keep(placement, bytes, span, end);
        self.ledger.keep(id, kept, bytes, (span, end));
        if !through {
            self.keep_stashed(result, placement, bytes, &nodes);
        }
    }

    /// Counts a tensor from the time that it is made to its last reader.
    fn keep_made(&mut self, id: NodeId, value: ValueId, bytes: u64) {
        let placement = self.placement(id);
        let (start, end) = self.made_span(value, id);
        self.keep(placement, bytes, start, end);
        let mut nodes = self.direct_readers(&self.consumers[value.index()]);
        nodes.push(id);
        let kept = self.kept_for(value, &nodes);
        self.ledger.keep(id, kept, bytes, (start, end));
        self.keep_stashed(value, placement, bytes, &nodes);
    }

    /// Returns the seconds of a route, alone or fused with those of other variables of its mesh.
    fn route_seconds(&self, route: &Route, from: &Layout, fused: bool) -> f64 {
        if !fused {
            return route.seconds;
        }
        let here =
            |place: &&Placement| place.ranks == from.ranks && place.hierarchy == from.hierarchy;
        let known = self.fusions.iter().find(|(place, _)| here(place));
        let bytes = shard_bytes(from, self.microbatches());
        known.map_or(route.seconds, |(_, fusion)| {
            fusion.discount_latency(route.seconds, route.latency(), bytes)
        })
    }

    /// Returns the seconds of boxing a tensor once, without those that are hidden. It is fused if it stays on its mesh and only updates read it.
    fn copy_seconds(&self, value: ValueId, route: &Route, from: &Layout, to: &Layout) -> f64 {
        if (&from.ranks, &from.hierarchy) != (&to.ranks, &to.hierarchy) {
            return route.seconds;
        }
        let mut nodes = self.consumers[value.index()].clone();
        nodes.retain(|&node| {
            let placement = self.placement(node);
            placement.ranks == to.ranks && placement.hierarchy == to.hierarchy
        });
        let fused = is_fused(self.decisions, self.per_step(value), &nodes);
        let hides = self.hidden.find_window(self.decisions, value, &nodes);
        unhidden_seconds(self.route_seconds(route, from, fused), hides)
    }

    fn copy_bytes(&self, route: &Route) -> Option<u64> {
        route.steps.last().map(|step| shard_bytes(&step.layout_after, self.microbatches()))
    }

    fn scratch_bytes(&self, route: &Route) -> u64 {
        let before_last = route.steps.len().saturating_sub(1);
        let steps = route.steps[..before_last].iter();
        steps.map(|step| shard_bytes(&step.layout_after, self.microbatches())).max().unwrap_or(0)
    }

    /// Returns the first and the last position at which a tensor is kept where it is made.
    fn made_span(&self, value: ValueId, producer: NodeId) -> (usize, usize) {
        if matches!(self.decisions.graph().node(producer).op, Op::Variable(_)) {
            return (0, self.position.len() - 1);
        }
        let all = &self.consumers[value.index()];
        let mut nodes = self.direct_readers(all);
        if self.is_scattered(value, producer) {
            nodes.clear();
        }
        if self.per_step(value) && all.iter().any(|&node| self.repeats(node)) {
            nodes.clone_from(all);
        }
        nodes.push(producer);
        self.find_span(value, &nodes, self.repeats(producer))
    }

    /// Whether only updates read a large value of an earlier phase, where it is made. It is boxed for them at once if that makes it smaller.
    fn is_scattered(&self, value: ValueId, producer: NodeId) -> bool {
        let graph = self.decisions.graph();
        let readers = &self.consumers[value.index()];
        let updates = |&node: &NodeId| {
            self.phase(node) == Phase::Update && self.placement(node) == self.placement(producer)
        };
        let is_source = graph.node(producer).op.is_given();
        let is_output = self.is_output[value.index()];
        self.phase(producer) != Phase::Update
            && self.per_step(value)
            && !(is_source || is_output || readers.is_empty())
            && graph.value(value).ty.bytes() >= SCATTERED_BYTES
            && readers.iter().all(updates)
    }

    /// Counts a value that is boxed for updates at once if that makes it smaller, in the layout that they read.
    fn keep_scattered(&mut self, value: ValueId, producer: NodeId, made: &Layout, route: &Route) {
        let whole = shard_bytes(made, self.microbatches());
        let (_, from) = self.made_span(value, producer);
        let nodes = self.consumers[value.index()].clone();
        let positions = || nodes.iter().map(|&node| self.position(node));
        let (first, end) = (positions().min().unwrap_or(from), positions().max().unwrap_or(from));
        let placement = self.placement(producer);
        let kept = self.kept_for(value, &nodes);
        let (copy, scratch) = (self.copy_bytes(route), self.scratch_bytes(route));
        let mut keep = |kept: KeepDuration, bytes: u64, start: usize, end: usize| {
            self.keep(placement, bytes, start, end);
            self.ledger.keep(producer, kept, bytes, (start, end));
        };
        match (copy, scratch) {
            (Some(copy), scratch) if copy < whole => {
                keep(KeepDuration::Transient, scratch, from, from);
                keep(kept, copy, from, end);
            }
            (copy, scratch) => {
                keep(KeepDuration::Transient, scratch, first, first);
                keep(kept, copy.unwrap_or(0), first, end);
                keep(kept, whole, from + 1, end);
            }
        }
    }

    /// Returns the time from the first to the last of some nodes, or that of the whole loop if the nodes repeat and the tensor does not.
    fn find_span(&self, value: ValueId, nodes: &[NodeId], made_in_loop: bool) -> (usize, usize) {
        let positions = || nodes.iter().map(|&node| self.position(node));
        let start = positions().min().unwrap_or(0);
        let end = positions().max().unwrap_or(0);
        let in_loop = made_in_loop || nodes.iter().any(|&node| self.repeats(node));
        match self.whole_loop {
            Some((first, last)) if self.per_step(value) && in_loop => {
                (start.min(first), end.max(last))
            }
            _ => (start, end),
        }
    }

    fn keep(&mut self, placement: &Placement, bytes: u64, start: usize, end: usize) {
        for rank in &placement.ranks {
            if let Some(kept) = self.kept.get_mut(rank) {
                kept.add(bytes, (start, end));
            }
        }
    }

    /// Counts the contents of other microbatches that are under way between forward and backward pass.
    fn keep_stashed(
        &mut self,
        value: ValueId,
        placement: &Placement,
        bytes: u64,
        nodes: &[NodeId],
    ) {
        let forward = |&node: &NodeId| self.phase(node) == Phase::Forward;
        let crosses = nodes.iter().any(forward) && !nodes.iter().all(forward);
        let Some((first, last)) = self.whole_loop else { return };
        if !crosses || self.per_step(value) {
            return;
        }
        let staging = &self.decisions.staging;
        let chunk = nodes.iter().map(|&node| staging.chunk_of_all(node)).min().unwrap_or(0);
        let (stages, stage, chunk) =
            (staging.stages, chunk % staging.stages, chunk / staging.stages);
        let under_way = match self.schedule {
            Schedule::Gpipe => self.microbatches(),
            Schedule::OneForwardOneBackward => self.microbatches().min(stages - stage),
            Schedule::Interleaved { .. } => self.under_way[stage][chunk],
        };
        self.keep(placement, bytes * (under_way as u64 - 1), first, last);
    }

    /// Boxes a tensor to every layout in which it is read.
    fn box_copies(&mut self, value: ValueId) {
        let graph = self.decisions.graph();
        let (producer, index) = (graph.value(value).producer, graph.value(value).index);
        let home = self.placement(producer);
        let made = self.layout(value, home, &self.sharding_of(producer).results[index]);
        let mut wanted: BTreeSet<Layout> = BTreeSet::new();
        for &reader in &self.consumers[value.index()] {
            for (operand, sbp) in
                graph.node(reader).operands.iter().zip(&self.sharding_of(reader).operands)
            {
                if *operand == value {
                    wanted.insert(self.layout(value, self.placement(reader), sbp));
                }
            }
        }
        if self.is_output[value.index()] {
            wanted.insert(Layout { sbp: fetched(&made.sbp), ..made.clone() });
        }
        let times = if self.per_step(value) { 1 } else { self.microbatches() };
        for target in wanted {
            let route = self.router.find_route(&made, &target);
            let seconds = self.copy_seconds(value, &route, &made, &target);
            self.spend(producer, times as f64 * seconds);
            match self.is_scattered(value, producer) {
                true => self.keep_scattered(value, producer, &made, &route),
                false => self.keep_copy(value, producer, &target, &route),
            }
        }
    }

    fn keep_copy(&mut self, value: ValueId, producer: NodeId, target: &Layout, route: &Route) {
        let Some(bytes) = self.copy_bytes(route) else { return };
        let graph = self.decisions.graph();
        let there = |&node: &NodeId| {
            let placement = self.placement(node);
            placement.ranks == target.ranks && placement.hierarchy == target.hierarchy
        };
        let mut nodes = self.consumers[value.index()].clone();
        nodes.retain(there);
        let placement = match nodes.first() {
            Some(&node) => self.placement(node),
            None => self.placement(producer),
        };
        let moved = |&node: &NodeId| graph.node(node).op.operation().is_executed();
        let counts = nodes.is_empty() || nodes.iter().any(moved);
        let direct = self.copy_readers(&nodes);
        let first = nodes.iter().map(|&node| self.position(node)).min();
        let (start, end) = match (direct.is_empty(), first) {
            (false, _) => self.find_span(value, &direct, false),
            (true, Some(first)) => (first, first),
            (true, None) => (self.position(producer), self.position(producer)),
        };
        let nodes = direct;
        // What is small travels in one message with others before the first update.
        let small = graph.value(value).ty.bytes() < SCATTERED_BYTES;
        let shares = small && is_fused(self.decisions, self.per_step(value), &nodes);
        let start = if shares { start.min(self.first_update) } else { start };
        self.keep(placement, self.scratch_bytes(route), start, start);
        let scratch = self.scratch_bytes(route);
        self.ledger.keep(producer, KeepDuration::Transient, scratch, (start, start));
        if counts {
            self.keep(placement, bytes, start, end);
            let kept = self.kept_for(value, &nodes);
            self.ledger.keep(producer, kept, bytes, (start, end));
            self.keep_stashed(value, placement, bytes, &nodes);
        }
    }

    fn peaks(&self) -> Vec<u64> {
        let mut stages = vec![0; self.decisions.staging.stages];
        for (rank, kept) in &self.kept {
            let peak = kept.sums().max().unwrap_or(0);
            let stage = self.stage_of_rank[rank];
            stages[stage] = stages[stage].max(peak);
        }
        stages
    }
}

/// Whether a node acts once for each of several microbatches.
fn is_repeated(decisions: &Decisions, node: &Node) -> bool {
    let mut values = node.operands.iter().chain(&node.results);
    let rates = &decisions.rates;
    let varies = |value: &ValueId| rates.values[value.index()] != ValueRate::Step;
    rates.microbatches > 1 && values.any(varies)
}

/// Returns one of all ranks that are on the same meshes, and so keep the same bytes, with the first node on any of these. `meshes` has the first node
/// of each mesh.
fn unlike_ranks(meshes: &BTreeMap<&Placement, NodeId>) -> Vec<(u32, NodeId)> {
    let mut on: BTreeMap<u32, (Vec<usize>, NodeId)> = BTreeMap::new();
    for (mesh, (placement, &node)) in meshes.iter().enumerate() {
        for &rank in &placement.ranks {
            let (meshes, first) = on.entry(rank).or_insert((Vec::new(), node));
            meshes.push(mesh);
            *first = node.min(*first);
        }
    }
    let mut known: BTreeMap<Vec<usize>, (u32, NodeId)> = BTreeMap::new();
    for (rank, (meshes, node)) in on {
        known.entry(meshes).or_insert((rank, node));
    }
    known.into_values().collect()
}
