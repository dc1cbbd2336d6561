//! The order in which a pipeline stage takes the forward and backward passes of its microbatches.
//!
//! Lowering takes it from here, and so do the memory of the planner and that of its check.
//!
//! - 1F1B (PipeDream-Flush, Narayanan et al., arXiv 2006.09503, section 3.2): stage `s` of `S` begins with `S-1-s`
//!   forward passes, then takes one forward and one backward in turn, then the backwards that remain.
//! - GPipe (Huang et al., arXiv 1811.06965): all forwards, then all backwards.
//! - Interleaved (Narayanan et al., arXiv 2104.04473, section 2.2): each stage has `V` chunks of layers, and chunk
//!   `c` of `S*V` lies on stage `c mod S`. Microbatches go in groups of `S`, each group through one chunk after the
//!   other. Stage `s` begins with `2 (S-1-s) + (V-1) S` forwards of chunks, then takes one forward and one backward
//!   in turn. The bubble is `(S-1) / (V M)` of the work, which is that of 1F1B divided by `V`.

use graphc_plan::Schedule;

/// The most microbatches of a step. Each is an entry in the order of every rank, and no step needs more.
pub(crate) const MOST_MICROBATCHES: usize = 1 << 16;

/// One pass of one microbatch through one chunk of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StagePass {
    /// Whether it is the backward pass.
    pub backward: bool,
    /// The chunk of the stage; 0 where stages have one.
    pub chunk: usize,
    /// The microbatch.
    pub microbatch: usize,
}

/// Returns the passes of stage `stage` of `stages`, in order.
pub(crate) fn order_passes(
    kind: Schedule,
    stages: usize,
    stage: usize,
    microbatches: usize,
) -> Vec<StagePass> {
    let chunks = kind.chunks_per_stage();
    let total = microbatches * chunks;
    let behind = (stages - 1).saturating_sub(stage);
    let ahead = match kind {
        Schedule::OneForwardOneBackward => behind,
        Schedule::Gpipe => total,
        Schedule::Interleaved { chunks } => 2 * behind + (chunks - 1) * stages,
    };
    let ahead = ahead.min(total);
    let pass = |index: usize, backward: bool| {
        let group = stages * chunks;
        let (chunk, microbatch) = match chunks {
            1 => (0, index),
            _ => (index % group / stages, index / group * stages + index % stages),
        };
        let chunk = if backward { chunks - 1 - chunk } else { chunk };
        StagePass { backward, chunk, microbatch }
    };
    let mut order: Vec<StagePass> = (0..ahead).map(|index| pass(index, false)).collect();
    for index in ahead..total {
        order.extend([pass(index, false), pass(index - ahead, true)]);
    }
    order.extend((total - ahead..total).map(|index| pass(index, true)));
    order
}

/// Returns the most microbatches that are between their forward and backward pass at once, by stage and chunk of the stage.
pub(crate) fn under_way(kind: Schedule, stages: usize, microbatches: usize) -> Vec<Vec<usize>> {
    let of_stage = |stage: usize| {
        let mut now = vec![0usize; kind.chunks_per_stage()];
        let mut most = now.clone();
        for pass in order_passes(kind, stages, stage, microbatches) {
            if pass.backward {
                now[pass.chunk] -= 1;
            } else {
                now[pass.chunk] += 1;
                most[pass.chunk] = most[pass.chunk].max(now[pass.chunk]);
            }
        }
        most
    };
    (0..stages).map(of_stage).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(kind: Schedule, stages: usize, stage: usize, microbatches: usize) -> String {
        let text = |pass: StagePass| {
            let chunk = if kind.chunks_per_stage() > 1 { ["a", "b", "c"][pass.chunk] } else { "" };
            format!("{}{}{chunk}", if pass.backward { "B" } else { "F" }, pass.microbatch)
        };
        let order = order_passes(kind, stages, stage, microbatches);
        order.into_iter().map(text).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn one_forward_one_backward_warms_up_by_the_stages_behind() {
        let kind = Schedule::OneForwardOneBackward;
        assert_eq!(text(kind, 3, 0, 4), "F0 F1 F2 B0 F3 B1 B2 B3");
        assert_eq!(text(kind, 3, 1, 4), "F0 F1 B0 F2 B1 F3 B2 B3");
        assert_eq!(text(kind, 3, 2, 4), "F0 B0 F1 B1 F2 B2 F3 B3");
        assert_eq!(text(kind, 4, 0, 2), "F0 F1 B0 B1", "fewer microbatches than stages");
        assert_eq!(under_way(kind, 3, 4), [[3], [2], [1]]);
    }

    #[test]
    fn gpipe_runs_all_forwards_first() {
        assert_eq!(text(Schedule::Gpipe, 2, 0, 2), "F0 F1 B0 B1");
        assert_eq!(under_way(Schedule::Gpipe, 2, 5), [[5], [5]]);
    }

    #[test]
    fn interleaved_takes_groups_of_microbatches_through_chunk_after_chunk() {
        let kind = Schedule::Interleaved { chunks: 2 };
        assert_eq!(
            text(kind, 2, 0, 4),
            "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a"
        );
        assert_eq!(
            text(kind, 2, 1, 4),
            "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a"
        );
        for (stages, chunks, microbatches) in [(2, 2, 2), (4, 2, 8), (3, 3, 6)] {
            let kind = Schedule::Interleaved { chunks };
            for stage in 0..stages {
                let order = order_passes(kind, stages, stage, microbatches);
                assert_eq!(order.len(), 2 * chunks * microbatches);
                for (at, pass) in order.iter().enumerate() {
                    assert!(!order[..at].contains(pass), "each pass once");
                    let forward = StagePass { backward: false, ..*pass };
                    assert!(!pass.backward || order[..at].contains(&forward), "forward first");
                }
            }
        }
    }
}
