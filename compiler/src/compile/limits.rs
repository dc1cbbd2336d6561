//! How much work the search above the planner does, and the differences that are worth it. Each number has the measurement
//! beside it that it comes from, where there is one. The planner has limits of its own, in which its steps are counted.

use graphc_ir::graph::Graph;
use graphc_plan::CompileOptions;

/// The number of times that a plan is made again, each time with less memory for the planner.
pub(super) const LESS_MEMORY: usize = 2;

/// The number of limits between the planner's count and the memory that are tried while no plan fits, because the planner finds another plan at
/// another limit. (Four products on 2x2 in 22.4 KiB have a plan at the first of them, and none in less than is counted.)
pub(super) const OTHER_MEMORY: usize = 3;

/// Such limits are tried where at least this part of the memory, one of so many, lies above what the planner counts: nearer to each other they
/// lead to the same plan. (One layer on four ranks counts 319 of 323 bytes.)
pub(super) const OTHER_MEMORY_PARTS: u64 = 64;

/// The number of limits above the memory that are tried if nothing is found in it. (A GPT of two layers on four ranks in 280 KiB has a plan at the
/// first that is tried.)
pub(super) const BEYOND_MEMORY: usize = 3;

/// The number of times that a plan which leaves memory is made again with more memory for the planner.
pub(super) const MORE_MEMORY: usize = 3;

/// The most variables of the planner's problem for that: larger ones take seconds to plan.
pub(super) const MORE_MEMORY_VARIABLES: usize = 2_000;

/// The least share of the memory that the planner must count for more of it to make another plan.
pub(super) const COUNTED_SHARE: f64 = 0.9;

/// The least share by which a step must take longer than the planner says for another plan to be tried: with more memory for a second stream, or
/// with everything recomputed.
pub(super) const LOST_SHARE: f64 = 0.02;

/// The most nodes of the user's graph times ranks for which limits above and below the memory are tried, because a plan is quickly made.
const TINY: usize = 5_000;

/// The most nodes of the user's graph times ranks of a small graph. Whole plans of it are quickly made, and are more exact than the costs of its
/// layers.
const SMALL: usize = 50_000;

/// The seconds by its layers, in parts of those of the best choice, from which on no whole plan of a choice is made. Of 42 cases (14 exported
/// models, on 4 `cpu`, 2x2 `dgx-h100` and 8 `dgx-a100`) a step of a whole plan took between 0.73 and 1.16 of what its layers said of it beside the
/// choice that was best by its layers. The fastest step was never of a choice above 1.08.
pub(super) const MOST_BEHIND: f64 = 1.5;

/// The share by which a choice of stages must be better, by its layers, if these fit the memory only at a price. Whole plans of such choices are
/// found slowly and with a gap, and cost more than their layers say.
pub(super) const SHORT_MEMORY_MARGIN: f64 = 0.1;

/// The shares of the memory of the fastest plan with which layers are priced again if it does not fit. A share is passed over if the layers keep
/// too much even at its square: of `gpt3_175b` on 128x8 they keep 0.6 of it at 0.6, 0.22 to 0.33 at 0.35 and 0.10 at 0.2, because a short model
/// has other things than layers.
pub(super) const MEMORY_SHARES: [f64; 3] = [0.6, 0.35, 0.2];

/// The number of choices that are priced again in parallel, in the order in which they would be priced one after the other. It is the same on
/// every machine, so that the result never depends on the machine.
pub(super) const WAVE: usize = 2;

/// The most blocks of a model for which selective recomputation of the first blocks is planned as well, if memory is short although everything is
/// recomputed. Each amount then has other layouts, and what is cheapest for its bytes in one plan is not so in the next: without these plans the
/// GPT of the references on 2x2 takes 2 to 3 % longer in 260 and 280 KiB. With more blocks they would take too long.
pub(super) const FEW_BLOCKS: usize = 8;

/// A quarter of the share of a step by which the amount of recomputation is changed at first, if the likely one is not the least. A difference
/// below this share is not worth the first plan. For each further plan the difference must be larger by as much, because many small gains are not
/// worth as many plans.
pub(super) const RECOMPUTE_STRIDE: f64 = 3e-3;

/// The share of a step that counts as a little more computing.
pub(super) const LITTLE_RECOMPUTE: f64 = 1e-2;

/// The most sets of conflicting wishes, smaller than the one found, that are tried.
pub(super) const CONFLICT_SETS: usize = 32;

/// The number of times that the span between memory that is too little and memory that suffices is halved to explain a conflict.
pub(super) const CONFLICT_HALVINGS: usize = 3;

/// The number of plans that are made, to explain a conflict, with memory that should suffice.
pub(super) const CONFLICT_PLANS: usize = 3;

/// The factor by which the layers of a mesh may cost more than those of the best for it to be priced in less memory, for an advice.
pub(super) const ADVICE_WORSE: f64 = 1.5;

/// The number of plans that an advice tries for each one that is asked for, because some ways do not fit although their layers do.
pub(super) const ADVICE_PLANS: usize = 2;

/// Returns the most choices of stages and microbatches whose whole plan is made, and the most of those whose layers do not fit the memory. They are
/// fewer with less effort.
pub(super) fn whole_plans(options: &CompileOptions) -> usize {
    options.within_effort(3) as usize
}

/// Returns the most numbers of microbatches that are priced with each number of stages. They are fewer with less effort.
pub(super) fn microbatch_counts(options: &CompileOptions) -> usize {
    options.within_effort(8).max(3) as usize
}

/// Whether whole plans of several choices are made, whatever they cost by their layers.
pub(super) fn is_small(graph: &Graph, options: &CompileOptions) -> bool {
    count_work(graph, options) <= SMALL
}

/// Whether a plan is made so quickly that many may be tried.
pub(super) fn is_tiny(graph: &Graph, options: &CompileOptions) -> bool {
    count_work(graph, options) <= TINY
}

/// Returns the nodes of a graph times the ranks, to which the time of planning is roughly proportional.
fn count_work(graph: &Graph, options: &CompileOptions) -> usize {
    graph.nodes.len() * options.mesh.iter().product::<usize>()
}
