//! Collects the tasks of all nodes: one task for each node, and before it those that bring its operands into the layouts that it takes.

use std::collections::BTreeMap;

use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::{LayoutId, NodeId, ValueId};
use graphc_ir::mesh::Placement;
use graphc_ir::op::Op;
use graphc_ir::ops::Variable;
use graphc_ir::rule::Choice;
use graphc_ir::sbp::NdSbp;
use graphc_ir::types::{Samples, TensorType};
use graphc_plan::{Action, Cluster, OperandSource, Rate};

use super::task_graph::{Buffer, BufferId, Task, TaskGraph, VariableOf};
use crate::boxing::{Router, fetched};
use crate::cost::{NodeWork, compute_work, local_seconds};
use crate::decisions::{Decisions, Phase, Sharding, ValueRate};
use crate::lower::LowerError;
use crate::passes::samples::samples_of;

/// Turns the graph into tasks.
pub(in crate::lower) struct Collector<'a> {
    /// The decisions of the passes.
    pub decisions: &'a Decisions,
    /// The signatures.
    pub sharding: &'a Sharding,
    /// The machines.
    pub cluster: &'a Cluster,
    /// The routes between layouts.
    pub router: Router<'a>,
    /// The tasks so far.
    pub task_graph: TaskGraph,
    /// Where the next tasks stand: at the node at hand, or where [`Self::at_position`] puts them.
    pub here: TaskPosition,
    /// The home of each value: where it is made, and the value by which it is known. A `to_global` gives no value of its own.
    pub homes: Vec<Option<Home>>,
    /// Every layout in which a value exists.
    pub copies: BTreeMap<(ValueId, LayoutId), BufferId>,
    /// The ops that read each value.
    pub readers: Vec<Vec<NodeId>>,
    /// The place of each node.
    pub places: Vec<TaskPosition>,
}

/// Where a task stands.
#[derive(Clone, Copy)]
pub(in crate::lower) struct TaskPosition {
    /// Its place among all nodes.
    pub anchor: usize,
    /// Its phase.
    pub phase: Phase,
    /// Its stage.
    pub stage: usize,
    /// The chunk of the stage.
    pub chunk: usize,
}

/// The home of a value, where it is made.
#[derive(Clone)]
pub(in crate::lower) struct Home {
    /// The value by which it is known.
    pub root: ValueId,
    /// The buffer.
    pub buffer: BufferId,
    /// The mesh.
    pub placement: Placement,
    /// The layout.
    pub sbp: NdSbp,
    /// The place of the task that made it.
    pub made: TaskPosition,
}

/// Collects all tasks of a graph.
///
/// # Errors
/// Returns an error if decisions contradict each other.
pub(in crate::lower) fn collect_tasks(
    decisions: &Decisions,
    sharding: &Sharding,
    cluster: &Cluster,
) -> Result<TaskGraph, LowerError> {
    let graph = decisions.graph();
    let mut collector = Collector {
        decisions,
        sharding,
        cluster,
        router: Router::new(cluster, decisions.rates.microbatches),
        task_graph: TaskGraph::new(decisions.rates.microbatches),
        here: TaskPosition { anchor: 0, phase: Phase::Forward, stage: 0, chunk: 0 },
        homes: vec![None; graph.values.len()],
        copies: BTreeMap::new(),
        readers: graph.list_consumers(),
        places: place_nodes(decisions),
    };
    let mut order: Vec<usize> = (0..graph.nodes.len()).collect();
    order.sort_by_key(|&node| collector.places[node].anchor);
    for node in order {
        collector.here = collector.places[node];
        collector.collect_node(NodeId::new(node))?;
    }
    collector.add_fetches()?;
    Ok(collector.task_graph)
}

/// Returns the place of each node, in an order phase by phase.
fn place_nodes(decisions: &Decisions) -> Vec<TaskPosition> {
    let place = |node: usize| {
        let phase = decisions.training.phases[node];
        let (stage, chunk) = (decisions.staging.stage[node], decisions.staging.chunk[node]);
        TaskPosition { anchor: 0, phase, stage, chunk }
    };
    let mut places: Vec<TaskPosition> = (0..decisions.graph().nodes.len()).map(place).collect();
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by_key(|&node| places[node].phase);
    for (anchor, node) in order.into_iter().enumerate() {
        places[node].anchor = anchor;
    }
    places
}

impl<'a> Collector<'a> {
    fn graph(&self) -> &'a Graph {
        self.decisions.graph()
    }

    fn collect_node(&mut self, id: NodeId) -> Result<(), LowerError> {
        let node = self.graph().node(id);
        match &node.op {
            Op::Variable(variable) => {
                self.add_variable(id, node, variable);
                Ok(())
            }
            Op::Input(input) => {
                let output = self.new_result(id, node, 0);
                let action = Action::Feed { input: input.name.clone(), samples: input.samples };
                self.push_task(
                    id,
                    format!("feed {}", input.name),
                    action,
                    Vec::new(),
                    vec![output],
                    Vec::new(),
                )
            }
            Op::ToGlobal(_) => self.relayout_value(id, node),
            Op::Regather(_) => self.regather_value(id, node),
            Op::Accumulate(_) if self.rate(node.operands[0]) == Rate::Microbatch => {
                let input = self.require_operand(id, node, 0)?;
                let output = self.new_result(id, node, 0);
                let name = self.report_name("accumulate", node.results[0]);
                self.push_task(id, name, Action::Accumulate, vec![input], vec![output], Vec::new())
            }
            op if !op.operation().updates().is_empty() => self.add_update(id, node),
            _ => self.add_compute(id, node),
        }
    }

    fn add_variable(&mut self, id: NodeId, node: &Node, variable: &Variable) {
        let buffer = self.new_result(id, node, 0);
        self.task_graph.buffers[buffer.0].variable = Some(VariableOf {
            name: variable.name.clone(),
            init: variable.init.clone(),
            role: self.decisions.training.kinds[node.results[0].index()],
        });
    }

    /// Boxes a value for which the user asked for another layout. It goes on under its old name.
    fn relayout_value(&mut self, id: NodeId, node: &Node) -> Result<(), LowerError> {
        let placement = &self.decisions.staging.placement[id.index()];
        let sbp = &self.sharding.nodes[id.index()].results[0];
        let buffer = self.require_buffer(node.operands[0], placement, sbp)?;
        let root = self.home(node.operands[0])?.root;
        let made = self.here;
        let (placement, sbp) = (placement.clone(), sbp.clone());
        let home = Home { root, buffer, placement, sbp, made };
        self.homes[node.results[0].index()] = Some(home);
        Ok(())
    }

    /// Does work whose tasks stand at this position.
    fn at_position<R>(&mut self, position: TaskPosition, work: impl FnOnce(&mut Self) -> R) -> R {
        let here = std::mem::replace(&mut self.here, position);
        let done = work(self);
        self.here = here;
        done
    }

    /// Gathers a value again. Later readers read this copy or the value where it lies, and box it anew from there.
    fn regather_value(&mut self, id: NodeId, node: &Node) -> Result<(), LowerError> {
        let behind = self.behind_readers(id, node)?.unwrap_or(self.here);
        let buffer = self.at_position(behind, |all| all.require_operand(id, node, 0))?;
        let root = node.results[0];
        let placement = self.decisions.staging.placement[id.index()].clone();
        let sbp = self.sharding.nodes[id.index()].results[0].clone();
        let layout = self.task_graph.intern_layout(self.decisions.layout(root, &placement, &sbp));
        self.copies.insert((root, layout), buffer);
        let made = self.here;
        self.homes[root.index()] = Some(Home { root, buffer, placement, sbp, made });
        Ok(())
    }

    /// Returns the place at which an activation is boxed into smaller parts that are kept for the backward pass: behind its readers before, so that
    /// the whole is not kept. `None` if boxing makes the value larger or the value is there anyway. It then waits until it is needed.
    fn behind_readers(&self, id: NodeId, node: &Node) -> Result<Option<TaskPosition>, LowerError> {
        let value = node.operands[0];
        let home = self.home(value)?;
        let sbp = &self.sharding.nodes[id.index()].operands[0];
        let placement = &self.decisions.staging.placement[id.index()];
        let kept = self.decisions.layout(home.root, placement, sbp);
        let is_given = self.task_graph.buffers[home.buffer.0].variable.is_some();
        let is_smaller = self.task_graph.bytes_of(&kept) < self.task_graph.bytes(home.buffer);
        if is_given || !is_smaller || self.decisions.rates.values[value.index()] == ValueRate::Anew
        {
            return Ok(None);
        }
        let before = self.readers[value.index()].iter().map(|reader| self.places[reader.index()]);
        let before = before.filter(|place| place.anchor < self.here.anchor);
        let is_here =
            |place: &TaskPosition| [place.stage, place.chunk] == [home.made.stage, home.made.chunk];
        Ok(before.filter(is_here).max_by_key(|place| place.anchor))
    }

    fn add_compute(&mut self, id: NodeId, node: &Node) -> Result<(), LowerError> {
        let (mut inputs, mut operands) = (Vec::new(), Vec::new());
        for index in 0..node.operands.len() {
            let buffer = self.require_operand(id, node, index)?;
            operands.push(place_input(&mut inputs, buffer));
        }
        let outputs =
            (0..node.results.len()).map(|result| self.new_result(id, node, result)).collect();
        let name = self.report_name(node.op.name(), node.results[0]);
        let action = Action::Compute { op: node.op.clone(), operands };
        self.push_task(id, name, action, inputs, outputs, Vec::new())
    }

    /// Adds an update. It works in place on variables that lie in the layout that it takes. Results in another layout are boxed to that of their
    /// variable, and [`Action::Assign`] stores them there. So are results that other updates read, as a variable is overwritten only when all its
    /// readers are done.
    fn add_update(&mut self, id: NodeId, node: &Node) -> Result<(), LowerError> {
        let pairs = node.op.operation().updates();
        let (mut inputs, mut operands, mut updates) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..node.operands.len() {
            let buffer = self.require_operand(id, node, index)?;
            let updated = pairs.iter().any(|&(result, operand)| {
                operand == index && self.readers[node.results[result].index()].is_empty()
            });
            if updated && self.at_rest(node.operands[index], buffer)? {
                updates.push(buffer);
                operands.push(OperandSource::Update(updates.len() - 1));
            } else {
                operands.push(place_input(&mut inputs, buffer));
            }
        }
        let (mut outputs, mut ways_home) = (Vec::new(), Vec::new());
        for result in 0..node.results.len() {
            let replaced = pairs.iter().find(|pair| pair.0 == result).map(|pair| pair.1);
            match replaced.filter(|&operand| operands[operand].is_update()) {
                Some(operand) => self.alias_home(node.results[result], node.operands[operand])?,
                None => {
                    outputs.push(self.new_result(id, node, result));
                    let variable = replaced.map(|operand| node.operands[operand]);
                    ways_home.extend(variable.map(|variable| (node.results[result], variable)));
                }
            }
        }
        let name = self.report_name(node.op.name(), node.operands[0]);
        let action = Action::Compute { op: node.op.clone(), operands };
        self.push_task(id, name, action, inputs, outputs, updates)?;
        ways_home
            .into_iter()
            .try_for_each(|(result, variable)| self.add_assign(id, result, variable))
    }

    /// Whether a buffer is the variable itself, not a copy.
    fn at_rest(&self, value: ValueId, buffer: BufferId) -> Result<bool, LowerError> {
        let home = self.home(value)?;
        Ok(home.buffer == buffer && self.task_graph.buffers[buffer.0].variable.is_some())
    }

    fn alias_home(&mut self, value: ValueId, of: ValueId) -> Result<(), LowerError> {
        self.homes[value.index()] = Some(self.home(of)?.clone());
        Ok(())
    }

    fn add_assign(
        &mut self,
        id: NodeId,
        new: ValueId,
        variable: ValueId,
    ) -> Result<(), LowerError> {
        let home = self.home(variable)?.clone();
        let buffer = self.require_buffer(new, &home.placement, &home.sbp)?;
        let name = self.report_name("assign", variable);
        self.push_task(id, name, Action::Assign, vec![buffer], Vec::new(), vec![home.buffer])?;
        let task = self.task_graph.tasks.last_mut().expect("a task was just pushed");
        task.ranks = home.placement.ranks;
        Ok(())
    }

    /// Collects the outputs that the user takes. A partial value is made whole first.
    fn add_fetches(&mut self) -> Result<(), LowerError> {
        for (output, samples) in self.graph().outputs.iter().zip(self.samples_of_outputs()) {
            let home = self.home(output.value)?.clone();
            self.here = self.producer_place(home.buffer).unwrap_or(home.made);
            let optimizes = !self.decisions.training.gradients.is_empty();
            if optimizes && self.rate(output.value) == Rate::Step {
                // What is known once a step is fetched with the updates: the loss travels with the gradients. Where gradients
                // are outputs they are fetched as they come.
                self.here = self.first_update(self.here.stage).unwrap_or(self.here);
            }
            let buffer = self.require_buffer(output.value, &home.placement, &fetched(&home.sbp))?;
            self.here = self.producer_place(buffer).unwrap_or(self.here);
            let action = Action::Fetch { output: output.name.clone(), samples };
            let name = format!("fetch {}", output.name);
            let task =
                self.build_task(name, action, vec![buffer], Vec::new(), home.placement.ranks);
            self.task_graph.add_task(task);
        }
        Ok(())
    }

    /// Returns the dims of outputs that count samples. The outputs of a training are read one step at a time, so nobody asks for theirs.
    fn samples_of_outputs(&self) -> Vec<Samples> {
        let outputs: Vec<ValueId> =
            self.graph().outputs.iter().map(|output| output.value).collect();
        match self.decisions.training.loss {
            None => samples_of(self.graph(), &outputs),
            Some(_) => vec![Samples::First; outputs.len()],
        }
    }

    /// Returns the place at which the updates of a stage begin, if it has any.
    fn first_update(&self, stage: usize) -> Option<TaskPosition> {
        let updates =
            self.task_graph.tasks.iter().filter(|t| t.phase == Phase::Update && t.stage == stage);
        let anchor = updates.map(|task| task.anchor).min()?;
        Some(TaskPosition { anchor, phase: Phase::Update, stage, chunk: 0 })
    }

    /// Returns an operand in the layout that the node takes.
    fn require_operand(
        &mut self,
        id: NodeId,
        node: &Node,
        index: usize,
    ) -> Result<BufferId, LowerError> {
        let placement = &self.decisions.staging.placement[id.index()];
        let sbp = &self.sharding.nodes[id.index()].operands[index];
        self.require_buffer(node.operands[index], placement, sbp)
    }

    /// Makes a buffer for a result, which becomes its home.
    fn new_result(&mut self, id: NodeId, node: &Node, index: usize) -> BufferId {
        let value = node.results[index];
        let placement = self.decisions.staging.placement[id.index()].clone();
        let sbp = self.sharding.nodes[id.index()].results[index].clone();
        let layout = self.task_graph.intern_layout(self.decisions.layout(value, &placement, &sbp));
        let buffer = self.new_buffer(value, layout);
        let home = Home { root: value, buffer, placement, sbp, made: self.here };
        self.homes[value.index()] = Some(home);
        self.copies.insert((value, layout), buffer);
        buffer
    }

    /// Makes a buffer for a value in a layout.
    pub(in crate::lower) fn new_buffer(&mut self, value: ValueId, layout: LayoutId) -> BufferId {
        self.task_graph.add_buffer(Buffer {
            name: self.graph().display_name(value),
            layout,
            rate: self.rate(value),
            variable: None,
            producer: None,
        })
    }

    /// Returns the home of a value.
    pub(in crate::lower) fn home(&self, value: ValueId) -> Result<&Home, LowerError> {
        let missing =
            || LowerError::BeforeMade { value: self.decisions.graph().display_name(value) };
        self.homes[value.index()].as_ref().ok_or_else(missing)
    }

    /// Returns the rate at which a value is made.
    pub(in crate::lower) fn rate(&self, value: ValueId) -> Rate {
        match self.decisions.rates.values[value.index()] {
            ValueRate::Step => Rate::Step,
            ValueRate::Microbatch { .. }
            | ValueRate::Anew
            | ValueRate::Each
            | ValueRate::Summand => Rate::Microbatch,
        }
    }

    /// Returns a name such as `matmul %3`, for reports.
    pub(in crate::lower) fn report_name(&self, op: &str, value: ValueId) -> String {
        format!("{op} {}", self.graph().display_name(value))
    }

    /// Returns the place of the task that fills a buffer.
    pub(in crate::lower) fn producer_place(&self, buffer: BufferId) -> Option<TaskPosition> {
        let task = &self.task_graph.tasks[self.task_graph.buffers[buffer.0].producer?.0];
        let Task { anchor, phase, stage, chunk, .. } = *task;
        Some(TaskPosition { anchor, phase, stage, chunk })
    }

    /// Builds a task at the place of the node at hand, with the rate of the buffers that it reads and fills.
    pub(in crate::lower) fn build_task(
        &self,
        name: String,
        action: Action,
        inputs: Vec<BufferId>,
        outputs: Vec<BufferId>,
        ranks: Vec<u32>,
    ) -> Task {
        let moved = inputs.iter().chain(&outputs).map(|&buffer| self.task_graph.bytes(buffer));
        let bytes = moved.max().unwrap_or(0) as f64;
        let kernel = !matches!(action, Action::Send { .. } | Action::Receive { .. });
        let over = |id: &BufferId| self.task_graph.buffers[id.0].rate == Rate::Microbatch;
        let microbatch = inputs.iter().chain(&outputs).any(over);
        Task {
            name,
            action,
            inputs,
            outputs,
            updates: Vec::new(),
            rate: if microbatch { Rate::Microbatch } else { Rate::Step },
            phase: self.here.phase,
            stage: self.here.stage,
            chunk: self.here.chunk,
            ranks,
            anchor: self.here.anchor,
            segment: 0,
            flops: 0.0,
            bytes: if kernel { 2.0 * bytes } else { 0.0 },
            boxing: None,
            background: None,
            expected: 0.0,
            seconds: if kernel { local_seconds(self.cluster, bytes) } else { 0.0 },
        }
    }

    fn push_task(
        &mut self,
        id: NodeId,
        name: String,
        action: Action,
        inputs: Vec<BufferId>,
        outputs: Vec<BufferId>,
        updates: Vec<BufferId>,
    ) -> Result<(), LowerError> {
        let ranks = self.decisions.staging.placement[id.index()].ranks.clone();
        let mut task = self.build_task(name, action, inputs, outputs, ranks);
        task.updates = updates;
        if let Action::Compute { op, .. } = &task.action {
            let (work, seconds) = self.price_node(id, op);
            (task.flops, task.bytes, task.seconds) = (work.flops, work.bytes, seconds);
        }
        let accumulates = matches!(task.action, Action::Accumulate);
        let step = |id: &BufferId| self.task_graph.buffers[id.0].rate == Rate::Step;
        let fills_less_often = task.rate == Rate::Microbatch && task.outputs.iter().any(step);
        if fills_less_often && !accumulates
            || task.rate == Rate::Microbatch && !task.updates.is_empty()
        {
            return Err(LowerError::Rates { task: task.name });
        }
        self.task_graph.add_task(task);
        Ok(())
    }

    /// Returns the work of a node on the busiest rank, and its seconds.
    fn price_node(&self, id: NodeId, op: &Op) -> (NodeWork, f64) {
        let node = self.graph().node(id);
        let operands = self.graph().operand_types(node);
        let results: Vec<&TensorType> =
            node.results.iter().map(|&result| &self.graph().value(result).ty).collect();
        let time = self.decisions.rates.nodes[id.index()];
        let choices = &self.sharding.nodes[id.index()].choices;
        let extents = &self.decisions.staging.placement[id.index()].hierarchy;
        let axes: Vec<(Choice, usize)> = time
            .map(|choice| (choice, self.decisions.rates.microbatches))
            .into_iter()
            .chain(choices.iter().copied().zip(extents.iter().copied()))
            .collect();
        compute_work(self.cluster, op, &operands, &results, &axes)
    }
}

/// Returns the place of a buffer among the inputs. A new buffer is added to them.
fn place_input(inputs: &mut Vec<BufferId>, buffer: BufferId) -> OperandSource {
    let known = inputs.iter().position(|&input| input == buffer);
    let place = known.unwrap_or_else(|| {
        inputs.push(buffer);
        inputs.len() - 1
    });
    OperandSource::Input(place)
}
