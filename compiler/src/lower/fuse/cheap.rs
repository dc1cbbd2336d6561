//! Computes again what is cheaper to compute than to keep: a cast, or a sum or product with a few numbers, e.g. of channels.
//!
//! If several chains of elementwise ops read such a value, it is a step of each of them instead of a tensor in memory. So neither
//! `x - mean` nor an f32 copy of a tensor of halves need be in memory.
//!
//! Such a task reads one tensor of the size of its result. Its readers read that tensor instead. That is then kept as long as the
//! result would have been and takes no more bytes, so the plan needs no more memory. A chain computes a step once, however many
//! of its steps read it.

use std::collections::BTreeMap;

use graphc_plan::Action;

use super::chains::{ChainKey, begins_chain, chain_key, shard_layout};
use crate::lower::tasks::task_graph::{BufferId, Task, TaskGraph, in_order};

/// The factor by which operands beside the one tensor must be smaller than the result.
const SMALL: u64 = 16;

/// Gives each reader of a cheap task's result a task of its own. Tasks are sorted, and stay so.
pub(in crate::lower) fn make_again(graph: &mut TaskGraph) {
    // What a chain may begin with reads tensors from memory.
    let step = |task: &Task| if begins_chain(task) { None } else { chain_key(graph, task) };
    let keys: Vec<Option<ChainKey>> = graph.tasks.iter().map(step).collect();
    let mut copies = Copies::new(graph);
    for task in (0..keys.len()).rev() {
        if let Some(key) = &keys[task]
            && copies.is_cheap(task, key)
            && let Some(readers) = copies.alike_readers(task, key, &keys)
        {
            // The first keeps what is there.
            for &reader in &readers[1..] {
                copies.copy_task(task, reader);
            }
        }
    }
    let tasks = copies.into_tasks();
    graph.replace_tasks(tasks);
}

struct Copies<'a> {
    graph: &'a mut TaskGraph,
    /// The tasks of the graph, and behind them the copies.
    tasks: Vec<Task>,
    /// For each task, the task of the graph before which it stands.
    host: Vec<usize>,
    /// The tasks that read each buffer, each once.
    readers: BTreeMap<BufferId, Vec<usize>>,
}

impl<'a> Copies<'a> {
    fn new(graph: &'a mut TaskGraph) -> Self {
        let tasks = std::mem::take(&mut graph.tasks);
        let mut copies =
            Self { host: (0..tasks.len()).collect(), graph, readers: BTreeMap::new(), tasks };
        for task in 0..copies.tasks.len() {
            copies.note_reads(task);
        }
        copies
    }

    /// Adds a task to the readers of its inputs.
    fn note_reads(&mut self, task: usize) {
        for input in &self.tasks[task].inputs {
            let readers = self.readers.entry(*input).or_default();
            if readers.last() != Some(&task) {
                readers.push(task);
            }
        }
    }

    /// Whether a task costs next to nothing beyond reading one tensor of its result's layout.
    fn is_cheap(&self, task: usize, key: &ChainKey) -> bool {
        let task = &self.tasks[task];
        let (Action::Compute { op, .. }, [output]) = (&task.action, task.outputs.as_slice()) else {
            return false;
        };
        let bytes = self.graph.bytes(*output);
        let (whole, small): (Vec<BufferId>, Vec<BufferId>) =
            task.inputs.iter().partition(|&&input| shard_layout(self.graph, input) == key.shards);
        let fits = |&input: &BufferId| self.graph.bytes(input) <= bytes;
        let few = |&input: &BufferId| self.graph.bytes(input) * SMALL <= bytes;
        op.operation().is_light()
            && whole.len() == 1
            && whole.iter().all(fits)
            && small.iter().all(few)
    }

    /// Returns all readers of a task's result, if they are several and all are steps of chains on shards of the same layout.
    fn alike_readers(
        &self,
        task: usize,
        key: &ChainKey,
        keys: &[Option<ChainKey>],
    ) -> Option<Vec<usize>> {
        let readers = self.readers.get(&self.tasks[task].outputs[0])?;
        let alike = |&reader: &usize| {
            keys[self.host[reader]].as_ref().is_some_and(|other| other.is_alike(key))
        };
        (readers.len() > 1 && readers.iter().all(alike)).then(|| readers.clone())
    }

    /// Gives a reader its own copy of a task, right before it.
    fn copy_task(&mut self, task: usize, reader: usize) {
        let output = self.tasks[task].outputs[0];
        let buffer = self.graph.add_buffer(self.graph.buffers[output.0].clone());
        let of = &self.tasks[reader];
        let (segment, phase, anchor) = (of.segment, of.phase, of.anchor);
        let original = self.tasks[task].clone();
        self.tasks.push(Task { segment, phase, anchor, outputs: vec![buffer], ..original });
        self.host.push(self.host[reader]);
        for input in self.tasks[reader].inputs.iter_mut().filter(|input| **input == output) {
            *input = buffer;
        }
        self.note_reads(self.tasks.len() - 1);
    }

    /// Returns all tasks. Copies come before the tasks for which they were made, the last made first, as earlier ones read later ones.
    fn into_tasks(self) -> Vec<Task> {
        let mut order: Vec<usize> = (0..self.tasks.len()).collect();
        order.sort_by_key(|&task| {
            let original = self.host[task] == task;
            (self.host[task], original, std::cmp::Reverse(task))
        });
        in_order(self.tasks, &order)
    }
}
