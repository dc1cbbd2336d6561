//! Fuses elementwise ops that run side by side on equal shards into one actor, which goes through memory once.
//!
//! Sums and means of what such ops give, or read, are steps of the actor as well, where they reduce all dims around those that
//! stay. So the backward pass of normalization and ReLU reads `dy`, `y` and `x` once, for the gradient that passes and both of
//! its sums. If nothing is summed, a convolution whose result no others read is the first step, since its kernels have an
//! epilogue.
//!
//! An op joins the group of an operand's producer. Groups that meet in an op become one. The graph of groups must stay free of
//! circles: no way may lead out of a group and back into it. A sum is no operand of its own group: it is known when all elements
//! have been seen. A reduction also joins what reads the tensor that it reads.
//!
//! Groups are kept in a topological order, so only those between two need to be looked at (after Pearce and Kelly, "A dynamic
//! topological sort algorithm for directed acyclic graphs", 2007).

use std::collections::{BTreeMap, BTreeSet};

use graphc_ir::op::Op;
use graphc_plan::{Action, Cluster, FusedArg, FusedOp, FusedStep};

use super::chains::{ChainKey, begins_chain, chain_key};
use super::cheap::make_again;
use crate::cost::{NodeWork, chain_seconds};
use crate::lower::LowerError;
use crate::lower::tasks::task_graph::{BufferId, Task, TaskGraph, TaskId};

/// The most ops in one actor.
const MOST_STEPS: usize = 24;
/// The most operands of one actor.
const MOST_OPERANDS: usize = 12;

struct FusionGroups<'a> {
    graph: &'a TaskGraph,
    readers: Vec<Vec<TaskId>>,
    keys: Vec<Option<ChainKey>>,
    before: Vec<Vec<usize>>,
    /// The group of each task, named by its first member.
    of: Vec<usize>,
    members: Vec<Vec<usize>>,
    /// The groups, each after those that it waits for; `None` where groups have become one.
    order: Vec<Option<usize>>,
    /// The position of each group in this order.
    position: Vec<usize>,
}

/// Fuses elementwise ops into chains, and sorts the tasks again.
///
/// # Errors
/// Returns an error if tasks wait for each other in a circle.
pub(in crate::lower) fn fuse_elementwise(
    graph: &mut TaskGraph,
    cluster: &Cluster,
) -> Result<(), LowerError> {
    make_again(graph);
    let mut groups = FusionGroups::new(graph);
    for task in 0..graph.tasks.len() {
        groups.join_producers(task);
    }
    for task in 0..graph.tasks.len() {
        groups.join_reduction(task);
    }
    for task in 0..graph.tasks.len() {
        groups.join_chain_head(task);
    }
    let FusionGroups { members, readers, .. } = groups;
    let mut actors: Vec<Vec<usize>> = Vec::with_capacity(members.len());
    for members in members.into_iter().filter(|members| !members.is_empty()) {
        let (heads, rest): (Vec<usize>, Vec<usize>) =
            members.iter().partition(|&&member| begins_chain(&graph.tasks[member]));
        let whole = heads.iter().all(|&head| has_place(graph, head, &members, &readers));
        match whole {
            true => actors.push(members),
            false => actors.extend([heads, rest]),
        }
    }
    let several = actors.iter().filter(|members| members.len() > 1);
    let fused: Vec<Task> =
        several.map(|members| fuse_members(graph, cluster, members, &readers)).collect();
    let mut fused = fused.into_iter();
    let mut tasks: Vec<Option<Task>> =
        std::mem::take(&mut graph.tasks).into_iter().map(Some).collect();
    let task = |members: &Vec<usize>| match members.as_slice() {
        &[single] => tasks[single].take(),
        _ => fused.next(),
    };
    graph.replace_tasks(actors.iter().filter_map(task).collect());
    graph.sort_tasks()
}

impl<'a> FusionGroups<'a> {
    fn new(graph: &'a TaskGraph) -> Self {
        let mut before = vec![Vec::new(); graph.tasks.len()];
        for edge in graph.list_edges() {
            let (from, to) = (&graph.tasks[edge.from], &graph.tasks[edge.to]);
            // What lies in another part of the step can be on no way that leads back.
            if (from.segment, from.phase) == (to.segment, to.phase) {
                before[edge.to].push(edge.from);
            }
        }
        let count = graph.tasks.len();
        Self {
            graph,
            readers: graph.readers(),
            keys: graph.tasks.iter().map(|task| chain_key(graph, task)).collect(),
            before,
            of: (0..count).collect(),
            members: (0..count).map(|task| vec![task]).collect(),
            // Tasks are sorted.
            order: (0..count).map(Some).collect(),
            position: (0..count).collect(),
        }
    }

    /// Joins a task to the groups of its operands' producers.
    fn join_producers(&mut self, task: usize) {
        if self.keys[task].is_none() || begins_chain(&self.graph.tasks[task]) {
            return;
        }
        for input in &self.graph.tasks[task].inputs {
            if let Some(TaskId(producer)) = self.graph.buffers[input.0].producer
                && !begins_chain(&self.graph.tasks[producer])
            {
                self.join_groups(producer, task);
            }
        }
    }

    /// Joins a reduction to the groups that read the tensor that it reads.
    fn join_reduction(&mut self, task: usize) {
        if self.keys[task].is_none() || !is_reduction(&self.graph.tasks[task]) {
            return;
        }
        let input = self.graph.tasks[task].inputs[0];
        for reader in self.readers[input.0].clone() {
            self.join_groups(task, reader.0);
        }
    }

    /// Joins a task that may begin a chain to the group that reads it, if no other group does.
    fn join_chain_head(&mut self, task: usize) {
        if self.keys[task].is_none() || !begins_chain(&self.graph.tasks[task]) {
            return;
        }
        let readers = &self.readers[self.graph.tasks[task].outputs[0].0];
        let Some(&TaskId(first)) = readers.first() else { return };
        if readers.iter().all(|reader| self.of[reader.0] == self.of[first]) {
            self.join_groups(task, first);
        }
    }

    /// Merges the groups of two tasks, if they may be one.
    fn join_groups(&mut self, task: usize, other: usize) {
        let (a, b) = (self.of[task], self.of[other]);
        if a == b || self.keys[task] != self.keys[other] || !self.may_join(a, b) {
            return;
        }
        let (first, last) = if self.position[a] < self.position[b] { (a, b) } else { (b, a) };
        if let Some(between) = self.groups_between(first, last) {
            self.merge(first, last, &between);
        }
    }

    fn may_join(&self, a: usize, b: usize) -> bool {
        let members = [self.members[a].as_slice(), &self.members[b]].concat();
        let sums: Vec<BufferId> = members
            .iter()
            .map(|&member| &self.graph.tasks[member])
            .filter(|task| is_reduction(task))
            .map(|task| task.outputs[0])
            .collect();
        let mut inputs = members.iter().flat_map(|&member| &self.graph.tasks[member].inputs);
        members.len() <= MOST_STEPS
            && list_operands(self.graph, &members).len() <= MOST_OPERANDS
            && !inputs.any(|input| sums.contains(input))
            && self.may_begin(&members, &sums)
    }

    /// Whether these tasks have no head, or one head that reads none of their results, and no sums.
    fn may_begin(&self, members: &[usize], sums: &[BufferId]) -> bool {
        let tasks = &self.graph.tasks;
        let mut heads = members.iter().filter(|&&member| begins_chain(&tasks[member]));
        let Some(&head) = heads.next() else { return true };
        let made =
            |input: &BufferId| members.iter().any(|&member| tasks[member].outputs.contains(input));
        heads.next().is_none() && sums.is_empty() && !tasks[head].inputs.iter().any(made)
    }

    /// Returns the groups behind `first` that `last` waits for, directly or not; `None` if a path from `first` to `last` leads over other groups.
    fn groups_between(&self, first: usize, last: usize) -> Option<BTreeSet<usize>> {
        let mut found = BTreeSet::new();
        let mut pending = vec![last];
        while let Some(group) = pending.pop() {
            for &before in self.members[group].iter().flat_map(|&member| &self.before[member]) {
                let before = self.of[before];
                if before == first && group != last {
                    return None;
                }
                let after_first = self.position[before] > self.position[first];
                if after_first && before != group && found.insert(before) {
                    pending.push(before);
                }
            }
        }
        Some(found)
    }

    /// Merges two groups. The new group comes behind those that `last` waits for, and before all others between the two.
    fn merge(&mut self, first: usize, last: usize, between: &BTreeSet<usize>) {
        let (keep, drop) = (first.min(last), first.max(last));
        let moved = std::mem::take(&mut self.members[drop]);
        for &task in &moved {
            self.of[task] = keep;
        }
        self.members[keep].extend(moved);
        self.members[keep].sort_unstable();
        let span = self.position[first]..self.position[last] + 1;
        let others = self.order[span.clone()].iter().flatten().copied();
        let others = others.filter(|&group| group != first && group != last);
        let (before, after): (Vec<usize>, Vec<usize>) =
            others.partition(|group| between.contains(group));
        let mut groups = before.into_iter().chain([keep]).chain(after);
        for at in span {
            self.order[at] = groups.next();
            if let Some(group) = self.order[at] {
                self.position[group] = at;
            }
        }
    }
}

/// Whether the head's result can be computed in the memory of a result of its group, which must be of the same type.
fn has_place(graph: &TaskGraph, head: usize, members: &[usize], readers: &[Vec<TaskId>]) -> bool {
    let dtype = |member: usize| {
        graph.layouts[graph.buffers[graph.tasks[member].outputs[0].0].layout.index()].dtype
    };
    let given = |&&member: &&usize| is_read_outside(graph, member, members, readers);
    members.iter().filter(given).any(|&member| dtype(member) == dtype(head))
}

/// Whether any task outside of these reads a result of one of them, or none reads it at all.
fn is_read_outside(
    graph: &TaskGraph,
    member: usize,
    members: &[usize],
    readers: &[Vec<TaskId>],
) -> bool {
    let readers = &readers[graph.tasks[member].outputs[0].0];
    readers.is_empty() || readers.iter().any(|reader| !members.contains(&reader.0))
}

/// Whether a task is a reduction.
fn is_reduction(task: &Task) -> bool {
    matches!(&task.action, Action::Compute { op: Op::Reduce(_), .. })
}

/// Returns the buffers that these tasks read and none of them makes, each once, in order.
fn list_operands(graph: &TaskGraph, members: &[usize]) -> Vec<BufferId> {
    let mut operands = Vec::new();
    for input in members.iter().flat_map(|&member| &graph.tasks[member].inputs) {
        let inside = graph.buffers[input.0].producer.is_some_and(|p| members.contains(&p.0));
        if !inside && !operands.contains(input) {
            operands.push(*input);
        }
    }
    operands
}

/// Returns the steps of a chain, each once, and the step that each member is.
fn list_steps(
    graph: &TaskGraph,
    members: &[usize],
    inputs: &[BufferId],
) -> (Vec<FusedStep>, Vec<usize>) {
    let mut steps: Vec<FusedStep> = Vec::new();
    let mut step_of: BTreeMap<BufferId, usize> = BTreeMap::new();
    for &member in members {
        let task = &graph.tasks[member];
        let Action::Compute { op, operands } = &task.action else { continue };
        let argument = |input: usize| {
            let buffer = task.inputs[input];
            match step_of.get(&buffer) {
                Some(&step) => FusedArg::Step(step),
                None => {
                    FusedArg::Operand(inputs.iter().position(|&i| i == buffer).unwrap_or_default())
                }
            }
        };
        // No member of a chain updates anything.
        let args =
            operands.iter().filter_map(|operand| operand.input_index()).map(argument).collect();
        let step = FusedStep { op: op.clone(), args };
        // Every result is a step of its own, so only what is computed again for readers of one chain is one step.
        let known = steps.iter().position(|known| *known == step && !is_reduction(task));
        step_of.insert(task.outputs[0], known.unwrap_or(steps.len()));
        if known.is_none() {
            steps.push(step);
        }
    }
    let of_members =
        members.iter().map(|&member| step_of[&graph.tasks[member].outputs[0]]).collect();
    (steps, of_members)
}

fn fuse_members(
    graph: &TaskGraph,
    cluster: &Cluster,
    members: &[usize],
    readers: &[Vec<TaskId>],
) -> Task {
    let inputs = list_operands(graph, members);
    let (steps, of_members) = list_steps(graph, members, &inputs);
    let outside = |&member: &usize| is_read_outside(graph, members[member], members, readers);
    let given: Vec<usize> = (0..members.len()).filter(outside).collect();
    let outputs = given.iter().map(|&member| of_members[member]).collect();
    let last = &graph.tasks[members[members.len() - 1]];
    let tensor = &graph.buffers[last.outputs[0].0].name;
    let names: Vec<&str> = members.iter().map(|&member| op_name(&graph.tasks[member])).collect();
    let filled: Vec<BufferId> =
        given.iter().map(|&member| graph.tasks[members[member]].outputs[0]).collect();
    let bytes = inputs.iter().chain(&filled).map(|&buffer| graph.bytes(buffer)).sum::<u64>() as f64;
    let flops = members.iter().map(|&member| graph.tasks[member].flops).sum();
    let head = members.iter().map(|&member| &graph.tasks[member]).find(|task| begins_chain(task));
    let work = |flops, bytes| NodeWork { flops, bytes, unaligned: false };
    let head = head.map(|task| (work(task.flops, task.bytes), task.seconds));
    let seconds = chain_seconds(cluster, head, work(flops, bytes));
    Task {
        name: format!("{} {tensor}", names.join("+")),
        seconds,
        flops,
        bytes,
        outputs: filled,
        action: Action::Fused(FusedOp { steps, outputs }),
        inputs,
        anchor: members.iter().map(|&member| graph.tasks[member].anchor).max().unwrap_or_default(),
        ..last.clone()
    }
}

fn op_name(task: &Task) -> &'static str {
    match &task.action {
        Action::Compute { op, .. } => op.name(),
        _ => "op",
    }
}
