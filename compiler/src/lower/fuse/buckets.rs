//! Fusion of the step-rate collectives of the update phase: gradients that are reduced alike travel in one message.
//!
//! Collectives of one kind, axis and group of ranks may join where none waits for another, that is where equally many
//! collectives come before them. A bucket takes about [`BUCKET_BYTES`] of each rank.
//!
//! Where gradients travel beside the backward pass, those that are made one after another share a bucket. No bucket takes
//! more than an eighth of all that are like it, nor less than [`LEAST_BYTES`] for that, so reductions start while the
//! backward pass goes on. What is left when it ends is the last bucket. A collective that follows another one begins when the other one's bucket has
//! ended.

use std::collections::BTreeMap;

use graphc_ir::sbp::ReduceKind;
use graphc_ir::types::DType;
use graphc_plan::{Action, BoxingKind, Rate};

use crate::boxing::BUCKET_BYTES;
use crate::decisions::Phase;
use crate::lower::LowerError;
use crate::lower::tasks::task_graph::{Background, Task, TaskGraph, TaskId};

/// The terms that collectives of one bucket have in common.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct BucketKey {
    depth: usize,
    kind: BoxingKind,
    reduce: Option<ReduceKind>,
    axis: usize,
    ranks: Vec<u32>,
    hierarchy: Vec<usize>,
    dtype: DType,
    background: Option<Background>,
}

/// The least number of buckets of gradients that are alike, if they travel beside the backward pass. [`LEAST_BYTES`] goes before it.
const LEAST_BUCKETS: usize = 8;

/// The least bytes of a bucket, even if buckets are fewer then.
const LEAST_BYTES: usize = 4 << 20;

/// Fuses collectives into buckets, and sorts the tasks again. `beside` says whether they run beside kernels: on one stream members are those that are made
/// one after another, which frees most memory.
///
/// # Errors
/// Returns an error if tasks wait for each other in a circle.
pub(in crate::lower) fn fuse_collectives(
    graph: &mut TaskGraph,
    beside: bool,
) -> Result<(), LowerError> {
    let buckets = find_buckets(graph, beside)?;
    let mut place = vec![None; graph.tasks.len()];
    for (bucket, members) in buckets.iter().enumerate() {
        for &member in members {
            place[member] = Some(bucket);
        }
    }
    let tasks = std::mem::take(&mut graph.tasks);
    let mut fused: Vec<Option<Task>> = vec![None; buckets.len()];
    let mut result = Vec::new();
    for (index, task) in tasks.into_iter().enumerate() {
        match place[index].map(|bucket| &mut fused[bucket]) {
            None => result.push(task),
            Some(Some(first)) => join_tasks(first, task),
            Some(empty) => *empty = Some(task),
        }
    }
    for (mut task, members) in fused.into_iter().flatten().zip(&buckets) {
        task.name = format!("{} and {} more", task.name, members.len() - 1);
        result.push(task);
    }
    graph.replace_tasks(result);
    graph.sort_tasks()
}

fn join_tasks(first: &mut Task, other: Task) {
    first.inputs.extend(other.inputs);
    first.outputs.extend(other.outputs);
    first.expected += other.expected;
    if first.background == Some(Background::Gradient) {
        (first.phase, first.anchor) = (first.phase, first.anchor).max((other.phase, other.anchor));
    } else {
        first.anchor = first.anchor.min(other.anchor);
    }
}

/// Lists the members of each bucket, at least two tasks each.
fn find_buckets(graph: &TaskGraph, beside: bool) -> Result<Vec<Vec<usize>>, LowerError> {
    let depths = count_depths(graph)?;
    let mut by_key: BTreeMap<BucketKey, Vec<(usize, usize)>> = BTreeMap::new();
    for (index, task) in graph.tasks.iter().enumerate() {
        if let Some(key) = bucket_key(graph, task, depths[index]) {
            by_key.entry(key).or_default().push((index, input_bytes(graph, task)));
        }
    }
    let mut buckets: Vec<Vec<usize>> = Vec::new();
    let mut begins = vec![None; graph.tasks.len()];
    // Keys are in the order of their depths: what a collective waits for has its bucket already.
    for (key, mut members) in by_key {
        let (mut most, first) = (BUCKET_BYTES, buckets.len());
        if key.background == Some(Background::Gradient) {
            members.sort_by_key(|&(index, _)| (find_beginning(graph, &begins, index), index));
            let all: usize = members.iter().map(|member| member.1).sum();
            most = (all / LEAST_BUCKETS).clamp(LEAST_BYTES, BUCKET_BYTES);
        }
        let mut full = usize::MAX;
        for (index, bytes) in members {
            if full.saturating_add(bytes) > most {
                buckets.push(Vec::new());
                full = 0;
            }
            full += bytes;
            buckets.last_mut().expect("the first member opens a bucket").push(index);
        }
        for bucket in buckets[first..].iter().filter(|_| beside) {
            let of_members = bucket.iter().map(|&index| find_beginning(graph, &begins, index));
            let begin = of_members.max().flatten();
            bucket.iter().for_each(|&index| begins[index] = begin);
        }
    }
    buckets.retain(|bucket: &Vec<usize>| bucket.len() > 1);
    Ok(buckets)
}

fn bucket_key(graph: &TaskGraph, task: &Task, depth: usize) -> Option<BucketKey> {
    let Action::Collective { kind, reduce, axis, .. } = task.action else { return None };
    let of_updates = task.phase == Phase::Update || task.background == Some(Background::Gradient);
    if !of_updates || task.rate != Rate::Step {
        return None;
    }
    let layout = &graph.layouts[graph.buffers[task.inputs[0].0].layout.index()];
    Some(BucketKey {
        depth,
        kind,
        reduce,
        axis,
        ranks: layout.ranks.clone(),
        hierarchy: layout.hierarchy.clone(),
        dtype: layout.dtype,
        background: task.background,
    })
}

/// Returns the last task of the backward pass for which a collective waits: that which makes what it reduces, or if its bucket is known, or that of a
/// collective before it, what makes the last member's. So a tensor that waits for many others is not put among those that wait for none.
fn find_beginning(graph: &TaskGraph, begins: &[Option<usize>], task: usize) -> Option<usize> {
    let before = graph.tasks[task].inputs.iter().filter_map(|input| {
        let TaskId(before) = graph.buffers[input.0].producer?;
        let gradient = graph.tasks[before].background == Some(Background::Gradient);
        if gradient { find_beginning(graph, begins, before) } else { Some(before) }
    });
    begins[task].or_else(|| before.max())
}

/// Returns the bytes of the task's input on its first rank, which holds the most.
fn input_bytes(graph: &TaskGraph, task: &Task) -> usize {
    let layout = &graph.layouts[graph.buffers[task.inputs[0].0].layout.index()];
    let rect = layout.ranks.first().and_then(|&rank| layout.rect(rank, 0, graph.microbatches));
    rect.map_or(0, |rect| rect.elements() * layout.dtype.size())
}

/// Returns, for each task, the most collectives of the update phase that come one after another before it.
fn count_depths(graph: &TaskGraph) -> Result<Vec<usize>, LowerError> {
    let edges = graph.list_edges();
    let mut before = vec![Vec::new(); graph.tasks.len()];
    for edge in &edges {
        before[edge.to].push(edge.from);
    }
    let counts = |task: &Task| bucket_key(graph, task, 0).is_some();
    let mut depths = vec![0; graph.tasks.len()];
    for task in graph.topological_order(&edges, |task| task)? {
        let deepest =
            before[task].iter().map(|&b| depths[b] + usize::from(counts(&graph.tasks[b])));
        depths[task] = deepest.max().unwrap_or(0);
    }
    Ok(depths)
}
