//! Cuts the step into segments: even ones run once a step, odd ones for every microbatch. A value that is accumulated
//! over all microbatches and read by microbatch-rate tasks (the number of labels that count, say) ends one odd segment
//! and is read in the next. Tasks stand as late as their readers allow, so that the way to such a value is short and
//! everything else stays in the last odd segment, the pipelined one.

use std::collections::BTreeMap;

use graphc_ir::plan::{Action, Rate};

use super::LowerError;
use super::job::{Job, TaskId};
use super::sort::{edges, order};
use crate::decisions::Phase;

/// Gives every task its segment.
///
/// # Errors
/// Where tasks wait for each other in a circle.
pub fn assign(job: &mut Job) -> Result<(), LowerError> {
    let edges = edges(job);
    let order = order(job, &edges, |task| (job.tasks[task].phase, job.tasks[task].anchor))?;
    let (mut before, mut after) = (vec![Vec::new(); order.len()], vec![Vec::new(); order.len()]);
    for edge in &edges {
        before[edge.to].push((edge.from, edge.segments));
        after[edge.from].push((edge.to, edge.segments));
    }
    let odd = |task: usize| usize::from(job.tasks[task].rate == Rate::Microbatch);
    let mut earliest = vec![0; order.len()];
    for &task in &order {
        let arrivals = before[task].iter().map(|&(from, distance)| earliest[from] + distance);
        earliest[task] = arrivals.fold(odd(task), usize::max);
    }
    let greatest = earliest.iter().copied().max().unwrap_or(0);
    let last = greatest + greatest % 2;
    let mut segments = earliest.clone();
    for &task in order.iter().rev() {
        let fixed = earliest[task] == 0 && job.tasks[task].phase != Phase::Update;
        if !fixed {
            let limits = after[task].iter().map(|&(to, distance)| segments[to] - distance);
            segments[task] = limits.fold(last - odd(task), usize::min);
        }
    }
    for (task, segment) in job.tasks.iter_mut().zip(segments) {
        task.segment = segment;
    }
    split_feeds(job);
    Ok(())
}

/// Feeds again in every segment what is read in several: cheaper than to keep all microbatches of it.
fn split_feeds(job: &mut Job) {
    let readers = job.readers();
    for index in 0..job.tasks.len() {
        let task = &job.tasks[index];
        if !matches!(task.action, Action::Feed { .. }) || task.rate != Rate::Microbatch {
            continue;
        }
        let buffer = task.outputs[0];
        let mut by_segment: BTreeMap<usize, Vec<TaskId>> = BTreeMap::new();
        for &reader in &readers[buffer.0] {
            by_segment.entry(job.tasks[reader.0].segment).or_default().push(reader);
        }
        for (&segment, readers) in by_segment.iter().skip(1) {
            feed_again(job, index, segment, readers);
        }
    }
}

fn feed_again(job: &mut Job, feed: usize, segment: usize, readers: &[TaskId]) {
    let mut task = job.tasks[feed].clone();
    let before = task.outputs[0];
    let copy = job.buffer(job.buffers[before.0].clone());
    (task.segment, task.outputs) = (segment, vec![copy]);
    for reader in readers {
        for input in &mut job.tasks[reader.0].inputs {
            if *input == before {
                *input = copy;
            }
        }
    }
    job.task(task);
}
