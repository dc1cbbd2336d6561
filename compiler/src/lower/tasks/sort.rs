//! The order in which every rank acts: a topological order of all tasks by segment, phase and place.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use graphc_ir::cycle::find_cycle;
use graphc_ir::ids::ChannelId;
use graphc_plan::{Action, Rate};

use super::task_graph::TaskGraph;
use crate::lower::LowerError;

/// A constraint on the order: one task must come after another.
#[derive(Clone, Copy, Debug)]
pub(in crate::lower) struct Edge {
    /// The earlier task.
    pub from: usize,
    /// The later task.
    pub to: usize,
    /// The least number of segments by which it is later.
    pub segments: usize,
}

impl TaskGraph {
    /// Lists all constraints: who fills a buffer comes before who reads it, a send before its receive, and who reads a variable before who overwrites it.
    pub(in crate::lower) fn list_edges(&self) -> Vec<Edge> {
        let readers = self.readers();
        let sends: BTreeMap<ChannelId, usize> = (self.tasks.iter().enumerate())
            .filter_map(|(index, task)| match task.action {
                Action::Send { channel } => Some((channel, index)),
                _ => None,
            })
            .collect();
        let mut edges = Vec::new();
        for (to, task) in self.tasks.iter().enumerate() {
            for input in &task.inputs {
                let Some(from) = self.buffers[input.0].producer else { continue };
                let buffer = self.buffers[input.0].rate;
                let segments = segment_distance(self.tasks[from.0].rate, buffer, task.rate);
                edges.push(Edge { from: from.0, to, segments });
            }
            if let Action::Receive { channel } = task.action {
                edges.extend(sends.get(&channel).map(|&from| Edge { from, to, segments: 0 }));
            }
            for reader in task.updates.iter().flat_map(|update| &readers[update.0]) {
                if reader.0 != to {
                    let segments = usize::from(self.tasks[reader.0].rate != task.rate);
                    edges.push(Edge { from: reader.0, to, segments });
                }
            }
        }
        edges
    }

    /// Returns a topological order of the tasks. Among those that may come next it takes the one with the least key.
    ///
    /// # Errors
    /// Returns an error if tasks wait for each other in a circle.
    pub(in crate::lower) fn topological_order<K: Ord + Copy>(
        &self,
        edges: &[Edge],
        key: impl Fn(usize) -> K,
    ) -> Result<Vec<usize>, LowerError> {
        let count = self.tasks.len();
        let (mut waits, mut successors) = (vec![0usize; count], vec![Vec::new(); count]);
        for edge in edges {
            waits[edge.to] += 1;
            successors[edge.from].push(edge.to);
        }
        let free = (0..count).filter(|&task| waits[task] == 0);
        let mut ready: BinaryHeap<_> = free.map(|task| Reverse((key(task), task))).collect();
        let mut order = Vec::with_capacity(count);
        while let Some(Reverse((_, task))) = ready.pop() {
            order.push(task);
            for &next in &successors[task] {
                waits[next] -= 1;
                if waits[next] == 0 {
                    ready.push(Reverse((key(next), next)));
                }
            }
        }
        if order.len() < count {
            let edges: Vec<(u32, u32)> =
                edges.iter().map(|edge| (edge.from as u32, edge.to as u32)).collect();
            let name = |task: &u32| self.tasks[*task as usize].name.clone();
            return Err(LowerError::Circle {
                tasks: find_cycle(&edges).iter().map(name).collect(),
            });
        }
        Ok(order)
    }

    /// Sorts the tasks into the order in which every rank acts.
    ///
    /// # Errors
    /// Returns an error if tasks wait for each other in a circle.
    pub(in crate::lower) fn sort_tasks(&mut self) -> Result<(), LowerError> {
        let key = |task: usize| {
            let task = &self.tasks[task];
            (task.segment, task.phase, task.anchor)
        };
        let order = self.topological_order(&self.list_edges(), key)?;
        self.put_in_order(&order);
        Ok(())
    }

    /// Numbers all communication in the order of the tasks.
    pub(in crate::lower) fn number_communication(&mut self) {
        let mut next = 0;
        for task in &mut self.tasks {
            match &mut task.action {
                Action::Collective { sequence, .. } => *sequence = next,
                Action::Send { channel } => self.channels[channel.index()].sequence = next,
                _ => continue,
            }
            next += 1;
        }
    }
}

/// Returns the number of segments between who fills a buffer and who reads it. An accumulated value is there in the step-rate segment after the
/// microbatches.
fn segment_distance(producer: Rate, buffer: Rate, reader: Rate) -> usize {
    let produced = usize::from(producer != buffer);
    produced + usize::from(buffer != reader)
}

#[cfg(test)]
mod tests {
    use graphc_plan::BoxingKind;

    use super::*;
    use crate::lower::tasks::task_graph::{BufferId, Task};

    fn task(graph: &mut TaskGraph, name: &str, input: BufferId, output: BufferId) {
        graph.add_task(Task {
            name: name.into(),
            inputs: vec![input],
            outputs: vec![output],
            ..Task::on_one_rank(Action::Local { kind: BoxingKind::Slice })
        });
    }

    #[test]
    fn of_tasks_that_wait_for_each_other_the_cycle_is_told() {
        let mut graph = TaskGraph::new(1);
        let [a, b, c] = [(); 3].map(|()| graph.numbers(1, false));
        task(&mut graph, "reads the cycle", a, c);
        task(&mut graph, "of b", b, a);
        task(&mut graph, "of a", a, b);
        let error = graph.sort_tasks().expect_err("there is no order").to_string();
        assert_eq!(error, "these wait for each other: of b -> of a -> of b");
    }
}
