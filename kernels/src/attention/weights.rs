//! Attention's weights from its scores, and the running maximum and sum of each query.
//!
//! Scores of one key lie together, so 16 queries are one vector. Each lane is a query's own, and nothing is summed across a
//! vector.

use crate::math;
use crate::simd::vectorized;

/// Queries whose scores are weighed together.
pub(super) const LANES: usize = 16;

/// Scores of [`LANES`] queries and some keys.
#[derive(Clone, Copy)]
pub(super) struct LaneGroup {
    /// Keys that any of the strip's queries sees, and all of the block.
    pub keys: usize,
    pub all: usize,
    /// The distance from the scores of one key to those of the next.
    pub apart: usize,
    /// The number of keys that the first query sees. Each later query sees one more. It is below 0 where the first queries see none.
    pub seen: isize,
    /// The most keys that a query sees: the last ones of those that `seen` lets it see.
    pub window: Option<usize>,
}

impl LaneGroup {
    /// Returns for each query the number of keys up to which it sees, which may be more than there are.
    #[inline(always)]
    fn seen_keys(self) -> [i32; LANES] {
        let seen = self.seen.clamp(-(LANES as isize), self.keys as isize) as i32;
        std::array::from_fn(|lane| seen + lane as i32)
    }

    /// Returns for each query the number of first keys that it does not see, because they lie before its window.
    #[inline(always)]
    fn passed_keys(self) -> [i32; LANES] {
        let passed = self.window.map_or(isize::MIN, |window| self.seen - window as isize);
        let passed = passed.clamp(-(LANES as isize), self.keys as isize) as i32;
        std::array::from_fn(|lane| passed + lane as i32)
    }
}

/// The running state of [`LANES`] queries.
pub(super) struct SoftmaxState<'a> {
    /// The greatest score so far, -inf before the first.
    pub greatest: &'a mut [f32],
    /// The sum of exp(score - greatest).
    pub total: &'a mut [f32],
    /// The factor of sums of the keys before.
    pub shrink: &'a mut [f32],
}

vectorized! {
    /// Turns scores into weights: exp(score - greatest), 0 of keys that a query does not see. What has been summed before is to be
    /// brought to the new greatest score.
    pub(super) fn absorb_scores(scores: &mut [f32], group: LaneGroup, state: SoftmaxState<'_>) {
        let (limits, passed) = (group.seen_keys(), group.passed_keys());
        let SoftmaxState { greatest, total, shrink } = state;
        let [greatest, total, shrink] = [greatest, total, shrink].map(lanes_mut);
        let mut new = *greatest;
        for (key, row) in scores.chunks(group.apart).take(group.keys).enumerate() {
            let row = lanes_ref(row);
            for lane in 0..LANES {
                // Without `&&`, which would be a branch for each lane.
                let is_seen = ((key as i32) < limits[lane]) & (key as i32 >= passed[lane]);
                let is_greater = (row[lane] > new[lane]) & is_seen;
                new[lane] = if is_greater { row[lane] } else { new[lane] };
            }
        }
        for lane in 0..LANES {
            // Of a query that has seen nothing both are -inf.
            let same = greatest[lane] == new[lane];
            let shift = if same { 0.0 } else { greatest[lane] - new[lane] };
            shrink[lane] = math::exp_below(shift);
        }
        *greatest = new;
        // Of a query whose keys so far are all hidden by a bias, these weigh nothing.
        let base = new.map(|new| if new == f32::NEG_INFINITY { 0.0 } else { new });
        let mut sum = [0.0; LANES];
        for (key, row) in scores.chunks_mut(group.apart).take(group.keys).enumerate() {
            let row = lanes_mut(row);
            for lane in 0..LANES {
                let weight = math::exp_below(row[lane] - base[lane]);
                let is_seen = ((key as i32) < limits[lane]) & (key as i32 >= passed[lane]);
                let weight = if is_seen { weight } else { 0.0 };
                row[lane] = weight;
                sum[lane] += weight;
            }
        }
        for lane in 0..LANES {
            total[lane] = total[lane] * shrink[lane] + sum[lane];
        }
    }
}

vectorized! {
    /// Turns scores into weights, exp(score - l), and do v into the gradient of the scores: both 0 of keys that a query does not see.
    pub(super) fn weigh_scores(scores: &mut [f32], of_scores: &mut [f32], group: LaneGroup, rows: [&[f32]; 2]) {
        let (limits, passed) = (group.seen_keys(), group.passed_keys());
        let [l, shifts] = rows.map(lanes_ref);
        let all = scores.chunks_mut(group.apart).zip(of_scores.chunks_mut(group.apart));
        for (key, (scores, of_scores)) in all.take(group.keys).enumerate() {
            let (scores, of_scores) = (lanes_mut(scores), lanes_mut(of_scores));
            for lane in 0..LANES {
                let is_seen = ((key as i32) < limits[lane]) & (key as i32 >= passed[lane]);
                let weight = math::exp_below(scores[lane] - l[lane]);
                let of_score = weight * (of_scores[lane] - shifts[lane]);
                scores[lane] = if is_seen { weight } else { 0.0 };
                of_scores[lane] = if is_seen { of_score } else { 0.0 };
            }
        }
        // Strips of keys read on: what lies there is of another block.
        for values in [scores, of_scores] {
            for row in values.chunks_mut(group.apart).take(group.all).skip(group.keys) {
                *lanes_mut(row) = [0.0; LANES];
            }
        }
    }
}

/// The first lanes, of which there are as many.
#[inline(always)]
fn lanes_ref(values: &[f32]) -> &[f32; LANES] {
    values.first_chunk().expect("a vector of queries")
}

#[inline(always)]
pub(super) fn lanes_mut(values: &mut [f32]) -> &mut [f32; LANES] {
    values.first_chunk_mut().expect("a vector of queries")
}
