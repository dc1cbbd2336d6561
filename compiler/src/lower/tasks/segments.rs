//! Segments, into which the step is cut: even ones run once a step, odd ones for every microbatch.
//!
//! A value that is accumulated over all microbatches may be read by microbatch-rate tasks, such as the number of labels
//! that count. It ends one odd segment and is read in the next. Tasks stand as late as their readers allow. So the way to
//! such a value is short, and everything else stays in the last odd segment, the pipelined one.

use std::collections::BTreeMap;

use graphc_plan::{Action, Rate};

use super::task_graph::{BufferId, TaskGraph, TaskId};
use crate::decisions::Phase;
use crate::lower::LowerError;

/// Assigns every task to its segment.
///
/// # Errors
/// Returns an error if tasks wait for each other in a circle.
pub(in crate::lower) fn assign_segments(graph: &mut TaskGraph) -> Result<(), LowerError> {
    let edges = graph.list_edges();
    let order = graph
        .topological_order(&edges, |task| (graph.tasks[task].phase, graph.tasks[task].anchor))?;
    let (mut before, mut after) = (vec![Vec::new(); order.len()], vec![Vec::new(); order.len()]);
    for edge in &edges {
        before[edge.to].push((edge.from, edge.segments));
        after[edge.from].push((edge.to, edge.segments));
    }
    let odd = |task: usize| usize::from(graph.tasks[task].rate == Rate::Microbatch);
    let mut earliest = vec![0; order.len()];
    for &task in &order {
        let arrivals = before[task].iter().map(|&(from, distance)| earliest[from] + distance);
        earliest[task] = arrivals.fold(odd(task), usize::max);
    }
    let greatest = earliest.iter().copied().max().unwrap_or(0);
    let last = greatest + greatest % 2;
    let mut segments = earliest.clone();
    for &task in order.iter().rev() {
        let fixed = earliest[task] == 0 && graph.tasks[task].phase != Phase::Update;
        if !fixed {
            let limits = after[task].iter().map(|&(to, distance)| segments[to] - distance);
            segments[task] = limits.fold(last - odd(task), usize::min);
        }
    }
    for (task, segment) in graph.tasks.iter_mut().zip(segments) {
        task.segment = segment;
    }
    make_again(graph);
    Ok(())
}

/// Makes copies of cheap tasks for a segment that reads microbatch-rate values of an earlier one. Otherwise the values of all microbatches would be
/// kept. For example, labels are fed, gathered and compared once for their number and once for the loss.
struct SegmentCopier<'a> {
    graph: &'a mut TaskGraph,
    /// The copies made so far, by the buffer that each copies and the segment.
    made: BTreeMap<(BufferId, usize), BufferId>,
}

/// The most tasks that are made again for one reader.
const MOST_TASKS: usize = 8;

fn make_again(graph: &mut TaskGraph) {
    let mut again = SegmentCopier { graph, made: BTreeMap::new() };
    for reader in 0..again.graph.tasks.len() {
        let segment = again.graph.tasks[reader].segment;
        for place in 0..again.graph.tasks[reader].inputs.len() {
            let input = again.graph.tasks[reader].inputs[place];
            if again.crosses_segment(input, segment)
                && again.count_copied_tasks(input, segment) <= MOST_TASKS
            {
                again.graph.tasks[reader].inputs[place] = again.copy_buffer(input, segment);
            }
        }
    }
}

impl SegmentCopier<'_> {
    /// Whether a buffer is filled for every microbatch of an earlier segment.
    fn crosses_segment(&self, buffer: BufferId, segment: usize) -> bool {
        let producer = self.graph.buffers[buffer.0].producer;
        let earlier = producer.is_some_and(|task| self.graph.tasks[task.0].segment < segment);
        earlier && self.graph.buffers[buffer.0].rate == Rate::Microbatch
    }

    /// Returns the number of tasks that it takes to make a buffer again; more than [`MOST_TASKS`] if one of them is not cheap.
    fn count_copied_tasks(&self, buffer: BufferId, segment: usize) -> usize {
        let Some(TaskId(task)) = self.graph.buffers[buffer.0].producer else { return 0 };
        let task = &self.graph.tasks[task];
        if !is_cheap(&task.action) {
            return MOST_TASKS + 1;
        }
        let inputs = task.inputs.iter().filter(|input| self.crosses_segment(**input, segment));
        inputs.fold(1, |sum, &input| {
            (sum + self.count_copied_tasks(input, segment)).min(MOST_TASKS + 1)
        })
    }

    /// Returns the copy of a buffer in a segment, which is made if there is none.
    fn copy_buffer(&mut self, buffer: BufferId, segment: usize) -> BufferId {
        if let Some(&known) = self.made.get(&(buffer, segment)) {
            return known;
        }
        let Some(TaskId(original)) = self.graph.buffers[buffer.0].producer else { return buffer };
        let mut task = self.graph.tasks[original].clone();
        task.segment = segment;
        for input in &mut task.inputs {
            if self.crosses_segment(*input, segment) {
                *input = self.copy_buffer(*input, segment);
            }
        }
        for output in &mut task.outputs {
            let copy = self.graph.add_buffer(self.graph.buffers[output.0].clone());
            self.made.insert((*output, segment), copy);
            *output = copy;
        }
        if let Some(entry) = task.boxing {
            task.boxing = Some(self.graph.boxing.len());
            self.graph.boxing.push(self.graph.boxing[entry].clone());
        }
        self.graph.add_task(task);
        self.made[&(buffer, segment)]
    }
}

/// Whether an action is cheap: a feed, boxing on one mesh, or an op that goes through memory once.
fn is_cheap(action: &Action) -> bool {
    match action {
        Action::Feed { .. } | Action::Local { .. } | Action::Collective { .. } => true,
        Action::Compute { op, .. } => {
            op.operation().is_elementwise() || op.operation().movement().is_some()
        }
        _ => false,
    }
}
