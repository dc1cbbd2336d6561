//! Lanes: the streams that the actions of one worker share.
//!
//! Where nothing that a rank does in a step needs its host but feeds and fetches, one worker launches on all of its
//! streams, in one order: communication as soon as it may. Which action waits for which of the other stream is known
//! beforehand ([`graphc_plan::streams`]). It becomes an event that is recorded behind the one and awaited before the other.
//! Otherwise each stream has a worker of its own, which tells the others what it is done with.

use graphc_ir::ids::ActorId;
use graphc_plan::Program;
use graphc_plan::streams::Known;

/// The streams of a worker's actions, by their places in the worker's order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lanes {
    /// The stream that each is on.
    of: Vec<u8>,
    /// The action of another stream that must have ended when each begins, where that is not known from one before.
    behind: Vec<Option<usize>>,
    /// Whether another stream waits for each.
    awaited: Vec<bool>,
}

impl Lanes {
    /// Puts so many actions on one stream.
    pub(crate) fn of_one_stream(actions: usize) -> Self {
        Self { of: vec![0; actions], behind: vec![None; actions], awaited: vec![false; actions] }
    }

    /// Puts the actions of both streams of a program into one order, actor and microbatch, with their streams; `None`
    /// where it has not two, or they wait for each other.
    pub(crate) fn of_both(program: &Program) -> Option<(Vec<(ActorId, u32)>, Self)> {
        let known = Known::from_program(program)?;
        let mut lanes = Self::default();
        let mut order = Vec::new();
        // By stream: the places of its actions so far, and how many of the other's its last one waited for.
        let (mut places, mut waited) = ([Vec::new(), Vec::new()], [0, 0]);
        while let Some((stream, action)) = known.next_action(places.each_ref().map(Vec::len)) {
            let (actor, microbatch) = known.actions[stream][action];
            let needed = known.count_ended(stream, action) as usize;
            let behind = (needed > waited[stream]).then(|| places[1 - stream][needed - 1]);
            waited[stream] = waited[stream].max(needed);
            places[stream].push(order.len());
            order.push((actor, microbatch));
            lanes.push(stream, behind);
        }
        let all = known.actions.iter().map(Vec::len).sum::<usize>();
        (order.len() == all).then_some((order, lanes))
    }

    fn push(&mut self, stream: usize, behind: Option<usize>) {
        self.of.push(stream as u8);
        self.behind.push(behind);
        self.awaited.push(false);
        if let Some(before) = behind {
            self.awaited[before] = true;
        }
    }

    /// Returns the stream of an action.
    #[inline]
    pub(crate) fn stream_of(&self, action: usize) -> usize {
        usize::from(self.of[action])
    }

    /// Returns the action of another stream that must have ended when an action begins.
    #[inline]
    pub(crate) fn awaited_by(&self, action: usize) -> Option<usize> {
        self.behind[action]
    }

    /// Whether an action of another stream waits for this one.
    #[inline]
    pub(crate) fn is_awaited(&self, action: usize) -> bool {
        self.awaited[action]
    }
}
