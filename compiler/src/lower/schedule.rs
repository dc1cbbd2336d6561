//! The order of blocks: which half of which segment runs when, for which microbatch.

use std::collections::{BTreeMap, BTreeSet};

use graphc_ir::plan::{Rate, Schedule as Kind};

use super::job::Job;

/// A block: a segment, and of an odd one its forward or backward half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockKey {
    /// The segment.
    pub segment: usize,
    /// Whether it is the backward half.
    pub backward: bool,
}

/// What the order of blocks depends on besides the stage.
#[derive(Clone, Debug)]
pub struct Schedule {
    kind: Kind,
    microbatches: usize,
    /// One past the last stage that starts ahead of the others; 1 where stages share ranks, which then take one
    /// microbatch after the other.
    stages: usize,
    segments: usize,
    /// The segments that have a forward and a backward half.
    pipelined: BTreeSet<usize>,
}

impl Schedule {
    /// The schedule of a job.
    pub fn new(job: &Job, kind: Kind, stages: usize) -> Self {
        let keys: BTreeSet<BlockKey> = job.tasks.iter().map(key).collect();
        let both = |segment: &usize| {
            [false, true]
                .iter()
                .all(|&backward| keys.contains(&BlockKey { segment: *segment, backward }))
        };
        let segments = keys.last().map_or(0, |key| key.segment + 1);
        let pipelined = (0..segments).filter(both).collect();
        let stages = if stages_share_ranks(job) { 1 } else { stages };
        Self { kind, microbatches: job.microbatches, stages, segments, pipelined }
    }

    /// The blocks of a step on ranks of a stage, each with its microbatch.
    pub fn order(&self, stage: usize) -> Vec<(BlockKey, u32)> {
        let mut order = Vec::new();
        for segment in 0..self.segments {
            let block = |backward| move |m: usize| (BlockKey { segment, backward }, m as u32);
            if segment % 2 == 0 {
                order.push(block(false)(0));
            } else if self.pipelined.contains(&segment) {
                order.extend(self.pipeline(stage).into_iter().map(|(back, m)| block(back)(m)));
            } else {
                order.extend((0..self.microbatches).map(block(false)));
                order.extend((0..self.microbatches).map(block(true)));
            }
        }
        order
    }

    /// Forwards (`false`) and backwards of all microbatches. 1F1B: stage s of S begins with S-1-s forwards, then one
    /// forward and one backward in turn, and the backwards that remain.
    fn pipeline(&self, stage: usize) -> Vec<(bool, usize)> {
        let count = self.microbatches;
        let ahead = match self.kind {
            Kind::OneForwardOneBackward => (self.stages - 1).saturating_sub(stage).min(count),
            Kind::Gpipe => count,
        };
        let mut order: Vec<(bool, usize)> = (0..ahead).map(|m| (false, m)).collect();
        for m in ahead..count {
            order.extend([(false, m), (true, m - ahead)]);
        }
        order.extend((count - ahead..count).map(|m| (true, m)));
        order
    }
}

/// The block of a task.
pub fn key(task: &super::job::Task) -> BlockKey {
    let backward = task.rate == Rate::Microbatch && task.backward();
    BlockKey { segment: task.segment, backward }
}

fn stages_share_ranks(job: &Job) -> bool {
    let mut stage_of: BTreeMap<u32, usize> = BTreeMap::new();
    (job.tasks.iter()).any(|task| {
        task.ranks.iter().any(|&rank| *stage_of.entry(rank).or_insert(task.stage) != task.stage)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipeline(kind: Kind, stages: usize, stage: usize, microbatches: usize) -> String {
        let (segments, pipelined) = (2, BTreeSet::from([1]));
        let schedule = Schedule { kind, microbatches, stages, segments, pipelined };
        let text = |(back, m)| format!("{}{m}", if back { "B" } else { "F" });
        schedule.pipeline(stage).into_iter().map(text).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn one_forward_one_backward_warms_up_by_the_stages_behind() {
        let kind = Kind::OneForwardOneBackward;
        assert_eq!(pipeline(kind, 3, 0, 4), "F0 F1 F2 B0 F3 B1 B2 B3");
        assert_eq!(pipeline(kind, 3, 1, 4), "F0 F1 B0 F2 B1 F3 B2 B3");
        assert_eq!(pipeline(kind, 3, 2, 4), "F0 B0 F1 B1 F2 B2 F3 B3");
        assert_eq!(pipeline(kind, 4, 0, 2), "F0 F1 B0 B1", "fewer microbatches than stages");
    }

    #[test]
    fn gpipe_runs_all_forwards_first() {
        assert_eq!(pipeline(Kind::Gpipe, 2, 0, 2), "F0 F1 B0 B1");
    }
}
