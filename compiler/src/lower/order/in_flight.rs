//! Bounds the bytes that one stream of a block makes ahead of the other, where memory is short.
//!
//! By time alone, a gather begins early enough to be there when computing comes to its reader. That bounds memory while
//! kernels take longer than communication. Where communication takes longer, no gather is early enough: all would begin at
//! once, and gradients would wait behind them, whole, until the backward pass ends. So the tensors that are gathered and
//! not yet read are bounded by their bytes, and so are the gradients that are made and not yet scattered. FSDP bounds the
//! number of gathers for the same reason (Zhao et al., arXiv 2304.11277, section 3.4.2).

use std::collections::BTreeMap;

use graphc_plan::{Action, BoxingKind};

use super::block_clock::{BlockActors, BlockClock};
use crate::lower::tasks::task_graph::{Background, BufferId, Task};

/// The bytes that are in flight at most, as a multiple of the largest tensor: one is made while another is used.
const MOST_IN_FLIGHT: u64 = 2;

/// A collective that scatters a gradient, and the place of the first stream that waits for it.
pub(in crate::lower) struct Hold {
    /// The collective.
    pub scatter: usize,
    /// The first place of the first stream that may not begin before the collective has ended.
    pub held: usize,
}

impl BlockActors<'_> {
    /// Returns for each gather, given with its first reader in the order of readers, the reader behind which it may begin.
    pub(in crate::lower) fn readers_to_end(
        &self,
        gathers: &[(usize, usize)],
    ) -> Vec<Option<usize>> {
        let bytes = |&(gather, _): &(usize, usize)| self.sum_bytes(&self.tasks[gather].outputs);
        let gone = find_last_gone(&gathers.iter().map(bytes).collect::<Vec<u64>>());
        gone.into_iter().map(|gone| gone.map(|index| gathers[index].1)).collect()
    }

    /// Returns the collectives that scatter gradients of this block, each with the place that waits for it, so that few whole gradients live at a
    /// time. None waits for a collective whose operands are made behind it.
    pub(in crate::lower) fn bytes_holds(&self, clock: &BlockClock) -> Vec<Hold> {
        let origins = self.find_origins();
        let mut scatters: Vec<(usize, usize, u64)> = Vec::new();
        for (place, task) in
            self.tasks.iter().enumerate().filter(|(_, task)| scatters_gradient(task))
        {
            if let Some(origin) = origins[place] {
                scatters.push((origin, place, self.sum_bytes(&task.inputs)));
            }
        }
        scatters.sort_unstable();
        let bytes: Vec<u64> = scatters.iter().map(|&(.., bytes)| bytes).collect();
        let (mut holds, mut held_back) = (Vec::new(), 0);
        for (next, gone) in find_last_gone(&bytes).into_iter().enumerate() {
            let until = gone.map_or(0, |gone| gone + 1);
            let held = clock.first_from(f64::NEG_INFINITY, scatters[next].0);
            for &(_, scatter, _) in scatters.get(held_back..until).unwrap_or_default() {
                holds.extend(held.map(|held| Hold { scatter, held }));
            }
            held_back = held_back.max(until);
        }
        holds
    }

    /// Returns for each place the last place of the first stream that it needs: its own, or for a collective the last one of its operands' makers.
    /// `None` if its operands come from other blocks.
    fn find_origins(&self) -> Vec<Option<usize>> {
        let mut origin_of: BTreeMap<BufferId, usize> = BTreeMap::new();
        let mut origins = Vec::with_capacity(self.tasks.len());
        for (place, task) in self.tasks.iter().enumerate() {
            let made = task.inputs.iter().filter_map(|input| origin_of.get(input).copied()).max();
            let origin = if task.background.is_none() { Some(place) } else { made };
            origin_of
                .extend(task.outputs.iter().zip(origin).map(|(&output, origin)| (output, origin)));
            origins.push(origin);
        }
        origins
    }

    fn sum_bytes(&self, buffers: &[BufferId]) -> u64 {
        buffers.iter().map(|&buffer| self.graph.bytes(buffer)).sum()
    }
}

/// Whether a task of the second stream scatters a gradient, which frees the memory of its operand.
pub(in crate::lower) fn scatters_gradient(task: &Task) -> bool {
    let scatters =
        matches!(task.action, Action::Collective { kind: BoxingKind::ReduceScatter, .. });
    scatters && task.background == Some(Background::Gradient)
}

/// Returns for each of several tensors, in the order in which they are made, the last one before it that must be gone before there is memory for it.
fn find_last_gone(bytes: &[u64]) -> Vec<Option<usize>> {
    let most = MOST_IN_FLIGHT * bytes.iter().copied().max().unwrap_or(0);
    let (mut first, mut in_flight) = (0, 0);
    let last_gone = bytes.iter().map(|own| {
        in_flight += own;
        while in_flight > most {
            in_flight -= bytes[first];
            first += 1;
        }
        first.checked_sub(1)
    });
    last_gone.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_twice_the_largest_is_in_flight() {
        assert_eq!(find_last_gone(&[4, 4, 4, 4]), [None, None, Some(0), Some(1)]);
        assert_eq!(find_last_gone(&[1, 1, 4, 3, 4]), [None, None, None, Some(0), Some(2)]);
        assert_eq!(find_last_gone(&[0, 0]), [None, None]);
        assert_eq!(find_last_gone(&[]), []);
    }
}
