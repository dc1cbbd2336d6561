//! Adds waits of streams for each other if memory is short, so that one may take memory that the other gives back.
//!
//! Otherwise memory is shared only where a stream knows anyway that the other has read what lies there. Nothing waits for
//! memory then, but what is not known keeps bytes apart, in a large training up to a quarter of the arena.
//!
//! Here places are given by the order of all actions alone, as if there were one stream. Something may then be written
//! over what the other stream touched before it in that order, and of which its stream does not know that it has ended.
//! Its actor then stands behind the last actor that touched it. Waits go back in one order of all actions, the same for
//! all ranks, so there is no circle. The proof of plans (`graphc_plan::check`) sees these waits as it sees all others.
//!
//! With several microbatches an actor cannot say which microbatch it stands behind, so streams there take only what they
//! know of ([`may_wait`]).

use graphc_ir::ids::ActorId;
use graphc_plan::{Actor, Rate};

use super::flow::Flow;
use super::lifetimes::{Life, StepAction};
use crate::lower::tasks::task_graph::{TaskGraph, TaskId};

/// A content with its place in the arena.
#[derive(Clone, Copy, Debug)]
pub(in crate::lower) struct Content {
    /// The first byte and the one past the last.
    pub lies: (u64, u64),
    /// The time for which it lives.
    pub life: Life,
}

/// The times when actions begin, by computing alone.
pub(in crate::lower) struct ReuseClock {
    /// The time at which each place in the order begins.
    begins: Vec<f64>,
    /// Seconds of the longest communication beside kernels.
    longest: f64,
}

impl ReuseClock {
    /// Makes the clock of actions, given by their tasks in order.
    pub(in crate::lower) fn new(order: impl Iterator<Item = TaskId>, graph: &TaskGraph) -> Self {
        let (mut now, mut clock) = (0.0, Self { begins: Vec::new(), longest: 0.0 });
        for task in order.map(|task| &graph.tasks[task.0]) {
            clock.begins.push(now);
            match task.background {
                None => now += task.seconds + task.expected,
                Some(_) => clock.longest = clock.longest.max(task.expected),
            }
        }
        clock
    }

    /// Returns the last place of a stream at which it may not take a content's memory. Later, it knows that the content is over, or the last action
    /// of the other stream that touches it has begun at least `margin` times the longest communication before.
    pub(in crate::lower) fn last_blocked(
        &self,
        flow: &Flow,
        life: &Life,
        stream: usize,
        margin: f64,
    ) -> usize {
        let known = flow.last_touch(life, stream);
        let Some(last) = life.touched[1 - stream].filter(|&last| last < known) else {
            return known;
        };
        let free = self.begins[last] + margin * self.longest;
        let before = self.begins.partition_point(|&begins| begins < free);
        let own = life.touched[stream].unwrap_or(life.made).max(life.made);
        known.min(own.max(last).max(before.saturating_sub(1)))
    }
}

/// Whether an actor can be told for which action of the other stream it waits. This is so if all actors act once a step. With several microbatches,
/// an actor waits for one actor in each of them, and what it overwrites may be of another microbatch.
pub(in crate::lower) fn may_wait(actors: &[Actor]) -> bool {
    actors.iter().all(|actor| actor.rate == Rate::Step)
}

/// Makes the actor of each content wait for all that the other stream did with the bytes before.
pub(in crate::lower) fn add_waits(
    mut contents: Vec<Content>,
    order: &[StepAction],
    flow: &Flow,
    actors: &mut [Actor],
) {
    contents.sort_by_key(|content| (content.life.made, content.lies));
    // By stream: the last place of the other for which it waits because of memory.
    let mut behind: [Option<usize>; 2] = [None; 2];
    for (index, content) in contents.iter().enumerate() {
        let place = content.life.made;
        let stream = flow.stream_at(place);
        let meets =
            |other: &&Content| other.lies.0 < content.lies.1 && content.lies.0 < other.lies.1;
        let before = contents[..index].iter().filter(meets);
        let Some(last) = before.filter_map(|other| other.life.touched[1 - stream]).max() else {
            continue;
        };
        if behind[stream] < Some(last) && !flow.is_known(place, last) {
            behind[stream] = Some(last);
            actors[order[place].actor].after = Some(ActorId::new(order[last].actor));
        }
    }
}
