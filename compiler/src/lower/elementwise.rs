//! Fuses elementwise ops that run side by side on equal shards into one actor, which goes through memory once.
//!
//! An op joins the group of an operand's producer, and groups that meet in an op become one, where the graph of groups
//! stays free of circles: no way may lead out of a group and back into it. Groups are kept in a topological order, so
//! that only those between two need to be looked at (after Pearce and Kelly, "A dynamic topological sort algorithm for
//! directed acyclic graphs", 2007).

use std::collections::{BTreeMap, BTreeSet};

use graphc_ir::plan::{Action, Cluster, FusedArg, FusedOp, FusedStep, Layout, Rate};
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_ir::types::DType;

use super::LowerError;
use super::job::{BufferId, Job, Task, TaskId};
use super::sort::{edges, sort};
use crate::cost::{NodeWork, roofline};
use crate::decisions::Phase;

/// Ops in one actor, at most.
const MOST_STEPS: usize = 16;
/// Operands of one actor, at most.
const MOST_OPERANDS: usize = 12;

/// What ops of one group have in common.
#[derive(PartialEq, Eq)]
struct Key {
    segment: usize,
    phase: Phase,
    rate: Rate,
    stage: usize,
    chunk: usize,
    ranks: Vec<u32>,
    shards: Layout,
}

struct Groups<'a> {
    job: &'a Job,
    keys: Vec<Option<Key>>,
    before: Vec<Vec<usize>>,
    /// The group of each task, named by its first member.
    of: Vec<usize>,
    members: Vec<Vec<usize>>,
    /// Groups, each after those that it waits for; `None` where groups have become one.
    order: Vec<Option<usize>>,
    /// Where a group is in this order.
    position: Vec<usize>,
}

/// Fuses what may be fused and sorts the tasks again.
///
/// # Errors
/// Where tasks wait for each other in a circle.
pub fn fuse(job: &mut Job, cluster: &Cluster) -> Result<(), LowerError> {
    let mut groups = Groups::new(job);
    for task in 0..job.tasks.len() {
        groups.grow(task);
    }
    let readers = job.readers();
    let mut tasks = Vec::new();
    for members in groups.members.iter().filter(|members| !members.is_empty()) {
        match members.as_slice() {
            [single] => tasks.push(job.tasks[*single].clone()),
            members => tasks.push(fused(job, cluster, members, &readers)),
        }
    }
    job.replace_tasks(tasks);
    sort(job)
}

impl<'a> Groups<'a> {
    fn new(job: &'a Job) -> Self {
        let mut before = vec![Vec::new(); job.tasks.len()];
        for edge in edges(job) {
            let (from, to) = (&job.tasks[edge.from], &job.tasks[edge.to]);
            // What lies in another part of the step can be on no way that leads back.
            if (from.segment, from.phase) == (to.segment, to.phase) {
                before[edge.to].push(edge.from);
            }
        }
        let count = job.tasks.len();
        Self {
            job,
            keys: job.tasks.iter().map(|task| key(job, task)).collect(),
            before,
            of: (0..count).collect(),
            members: (0..count).map(|task| vec![task]).collect(),
            // Tasks are sorted.
            order: (0..count).map(Some).collect(),
            position: (0..count).collect(),
        }
    }

    /// Joins a task to the groups of its operands' producers.
    fn grow(&mut self, task: usize) {
        if self.keys[task].is_none() {
            return;
        }
        for input in &self.job.tasks[task].inputs {
            let Some(TaskId(producer)) = self.job.buffers[input.0].producer else { continue };
            let (a, b) = (self.of[producer], self.of[task]);
            if a != b && self.keys[producer] == self.keys[task] && self.fits(a, b) {
                let (first, last) =
                    if self.position[a] < self.position[b] { (a, b) } else { (b, a) };
                if let Some(between) = self.between(first, last) {
                    self.merge(first, last, &between);
                }
            }
        }
    }

    fn fits(&self, a: usize, b: usize) -> bool {
        let members = [self.members[a].as_slice(), &self.members[b]].concat();
        members.len() <= MOST_STEPS && operands(self.job, &members).len() <= MOST_OPERANDS
    }

    /// The groups after `first` that `last` waits for; `None` where a way leads over them from one to the other.
    fn between(&self, first: usize, last: usize) -> Option<BTreeSet<usize>> {
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

    /// Makes two groups one. It comes after those that `last` waits for, and before all others between the two.
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

/// The key of an elementwise task; `None` of others.
fn key(job: &Job, task: &Task) -> Option<Key> {
    let Action::Compute { op, .. } = &task.action else { return None };
    if !op.operation().is_elementwise() {
        return None;
    }
    let layout = &job.layouts[job.buffers[task.outputs[0].0].layout as usize];
    // Shards lie alike whatever their elements are and whether they are summands.
    let whole = |sbp: &Sbp| if sbp.is_partial() { Sbp::Broadcast } else { *sbp };
    let shards = Layout {
        sbp: NdSbp(layout.sbp.0.iter().map(whole).collect()),
        dtype: DType::F32,
        ..layout.clone()
    };
    Some(Key {
        segment: task.segment,
        phase: task.phase,
        rate: task.rate,
        stage: task.stage,
        chunk: task.chunk,
        ranks: task.ranks.clone(),
        shards,
    })
}

/// What these tasks read and none of them makes, each once, in order.
fn operands(job: &Job, members: &[usize]) -> Vec<BufferId> {
    let mut operands = Vec::new();
    for input in members.iter().flat_map(|&member| &job.tasks[member].inputs) {
        let inside = job.buffers[input.0].producer.is_some_and(|p| members.contains(&p.0));
        if !inside && !operands.contains(input) {
            operands.push(*input);
        }
    }
    operands
}

fn fused(job: &Job, cluster: &Cluster, members: &[usize], readers: &[Vec<TaskId>]) -> Task {
    let inputs = operands(job, members);
    let step_of: BTreeMap<BufferId, usize> =
        members.iter().enumerate().map(|(step, &m)| (job.tasks[m].outputs[0], step)).collect();
    let argument = |buffer: BufferId| match step_of.get(&buffer) {
        Some(&step) => FusedArg::Step(step),
        None => FusedArg::Operand(inputs.iter().position(|&i| i == buffer).unwrap_or_default()),
    };
    let steps = members.iter().filter_map(|&member| {
        let task = &job.tasks[member];
        let Action::Compute { op, operands } = &task.action else { return None };
        let args = operands.iter().map(|&operand| argument(task.inputs[operand as usize]));
        Some(FusedStep { op: op.clone(), args: args.collect() })
    });
    let outside = |&step: &usize| {
        let readers = &readers[job.tasks[members[step]].outputs[0].0];
        readers.is_empty() || readers.iter().any(|reader| !members.contains(&reader.0))
    };
    let outputs: Vec<usize> = (0..members.len()).filter(outside).collect();
    let last = &job.tasks[members[members.len() - 1]];
    let tensor = &job.buffers[last.outputs[0].0].name;
    let names: Vec<&str> = members.iter().map(|&member| op_name(&job.tasks[member])).collect();
    let filled: Vec<BufferId> =
        outputs.iter().map(|&step| job.tasks[members[step]].outputs[0]).collect();
    let bytes = inputs.iter().chain(&filled).map(|&buffer| job.bytes(buffer)).sum::<u64>() as f64;
    let flops = members.iter().map(|&member| job.tasks[member].flops).sum();
    Task {
        name: format!("{} {tensor}", names.join("+")),
        seconds: roofline(cluster, DType::F32, false, NodeWork { flops, bytes }),
        flops,
        bytes,
        outputs: filled,
        action: Action::Fused(FusedOp { steps: steps.collect(), outputs }),
        inputs,
        anchor: members.iter().map(|&member| job.tasks[member].anchor).max().unwrap_or_default(),
        ..last.clone()
    }
}

fn op_name(task: &Task) -> &'static str {
    match &task.action {
        Action::Compute { op, .. } => op.name(),
        _ => "op",
    }
}
