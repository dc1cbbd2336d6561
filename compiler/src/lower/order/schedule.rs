//! The order of blocks: the half of a segment that runs next, and its microbatch.

use std::collections::{BTreeMap, BTreeSet};

use graphc_plan::{Rate, Schedule as Kind};

use crate::lower::tasks::task_graph::TaskGraph;
use crate::schedule::{StagePass, order_passes};

/// A block: a segment, or for an odd segment the forward or backward half of one of its chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::lower) struct BlockKey {
    /// The segment.
    pub segment: usize,
    /// The chunk of the stage; 0 for tasks that act once a step.
    pub chunk: usize,
    /// Whether it is the backward half.
    pub backward: bool,
}

/// The facts about a job on which the order of blocks depends, besides the stage.
#[derive(Clone, Debug)]
pub(in crate::lower) struct BlockSchedule {
    kind: Kind,
    microbatches: usize,
    /// The number of stages.
    stages: usize,
    /// Whether stages share ranks, which then take one microbatch after the other.
    shared: bool,
    segments: usize,
    /// The segments that have a forward and a backward half.
    pipelined: BTreeSet<usize>,
}

impl BlockSchedule {
    /// Makes the schedule of a job.
    pub(in crate::lower) fn new(graph: &TaskGraph, kind: Kind, stages: usize) -> Self {
        let keys: BTreeSet<BlockKey> = graph.tasks.iter().map(block_key).collect();
        let halves: BTreeSet<(usize, bool)> =
            keys.iter().map(|key| (key.segment, key.backward)).collect();
        let both = |segment: &usize| {
            [false, true].iter().all(|&backward| halves.contains(&(*segment, backward)))
        };
        let segments = keys.last().map_or(0, |key| key.segment + 1);
        let pipelined = (0..segments).filter(both).collect();
        let shared = stages_share_ranks(graph);
        Self { kind, microbatches: graph.microbatches, stages, shared, segments, pipelined }
    }

    /// Returns the blocks of a step on ranks of a stage, each with its microbatch.
    pub(in crate::lower) fn order_blocks(&self, stage: usize) -> Vec<(BlockKey, u32)> {
        let mut order = Vec::new();
        for segment in 0..self.segments {
            let block = |pass: StagePass| {
                let StagePass { backward, chunk, microbatch } = pass;
                (BlockKey { segment, chunk, backward }, microbatch as u32)
            };
            if segment % 2 == 0 {
                order.push(block(StagePass { backward: false, chunk: 0, microbatch: 0 }));
            } else if self.pipelined.contains(&segment) && self.shared {
                order.extend(self.one_by_one().into_iter().map(block));
            } else if self.pipelined.contains(&segment) {
                let passes = order_passes(self.kind, self.stages, stage, self.microbatches);
                order.extend(passes.into_iter().map(block));
            } else {
                order.extend(self.half_passes(false).chain(self.half_passes(true)).map(block));
            }
        }
        order
    }

    /// Iterates over one half of all microbatches, chunk by chunk.
    fn half_passes(&self, backward: bool) -> impl Iterator<Item = StagePass> + '_ {
        let (chunks, microbatches) = (self.kind.chunks_per_stage(), self.microbatches);
        let chunk = move |index: usize| if backward { chunks - 1 - index } else { index };
        (0..chunks).flat_map(move |index| {
            (0..microbatches).map(move |microbatch| StagePass {
                backward,
                chunk: chunk(index),
                microbatch,
            })
        })
    }

    /// Returns forward and backward of one microbatch after the other; for GPipe, all forwards first.
    fn one_by_one(&self) -> Vec<StagePass> {
        let all = self.half_passes(false).chain(self.half_passes(true));
        let mut passes: Vec<StagePass> = all.collect();
        if self.kind != Kind::Gpipe {
            passes.sort_by_key(|pass| pass.microbatch);
        }
        passes
    }
}

/// Returns the block of a task.
pub(in crate::lower) fn block_key(task: &crate::lower::tasks::task_graph::Task) -> BlockKey {
    let repeated = task.rate == Rate::Microbatch;
    let chunk = if repeated { task.chunk } else { 0 };
    BlockKey { segment: task.segment, chunk, backward: repeated && task.is_backward() }
}

fn stages_share_ranks(graph: &TaskGraph) -> bool {
    let mut stage_of: BTreeMap<u32, usize> = BTreeMap::new();
    (graph.tasks.iter()).any(|task| {
        task.ranks.iter().any(|&rank| *stage_of.entry(rank).or_insert(task.stage) != task.stage)
    })
}
