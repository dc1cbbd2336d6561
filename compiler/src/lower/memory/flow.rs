//! The order of all actions of a program, and what its streams know of each other at each place of it: when memory that
//! one stream has read may be written by the other ([`graphc_plan::streams`]).

use super::lifetimes::{Life, StepAction};
use graphc_plan::streams::Known;

/// The order of a program's actions as its streams see it.
pub(in crate::lower) struct Flow {
    /// The stream of each place in the order, and the number of its action on that stream.
    at: Vec<(usize, usize)>,
    /// The place of each action of each stream.
    places: [Vec<usize>; 2],
    /// The knowledge of two streams of each other.
    known: Option<Known>,
}

impl Flow {
    /// Makes the flow of an order. `stream_of` gives the stream of each actor.
    pub(in crate::lower) fn new(
        order: &[StepAction],
        stream_of: &[usize],
        known: Option<Known>,
    ) -> Self {
        let mut flow = Self { at: Vec::new(), places: [Vec::new(), Vec::new()], known };
        for (place, action) in order.iter().enumerate() {
            let stream = stream_of[action.actor];
            flow.at.push((stream, flow.places[stream].len()));
            flow.places[stream].push(place);
        }
        flow
    }

    /// Whether there are two streams.
    pub(in crate::lower) fn is_double(&self) -> bool {
        self.known.is_some()
    }

    /// Returns the stream of a place.
    pub(in crate::lower) fn stream_at(&self, place: usize) -> usize {
        self.at[place].0
    }

    /// Whether the action at a place begins when that at another has ended, as far as its stream knows.
    pub(in crate::lower) fn is_known(&self, place: usize, of: usize) -> bool {
        let ((stream, action), (other, before)) = (self.at[place], self.at[of]);
        let Some(known) = self.known.as_ref().filter(|_| stream != other) else {
            return of < place;
        };
        before < known.count_ended(stream, action) as usize
    }

    /// Whether all that touches a content has ended when the action at a place begins.
    pub(in crate::lower) fn is_over(&self, life: &Life, place: usize) -> bool {
        life.touched[self.at[place].0].is_none_or(|last| last < place)
            && self.other_is_over(life, place)
    }

    /// Whether all that touches a content, but the action at this place itself, has ended when that begins.
    pub(in crate::lower) fn is_last(&self, life: &Life, place: usize) -> bool {
        life.touched[self.at[place].0].is_none_or(|last| last <= place)
            && self.other_is_over(life, place)
    }

    fn other_is_over(&self, life: &Life, place: usize) -> bool {
        let (stream, action) = self.at[place];
        let (Some(known), Some(last)) = (&self.known, life.touched[1 - stream]) else {
            return true;
        };
        self.at[last].1 < known.count_ended(stream, action) as usize
    }

    /// Returns the last place of a stream at which something may still touch a content, as far as the stream knows.
    pub(in crate::lower) fn last_touch(&self, life: &Life, stream: usize) -> usize {
        let own = life.touched[stream].unwrap_or(life.made).max(life.made);
        let (Some(known), Some(last)) = (&self.known, life.touched[1 - stream]) else { return own };
        let needed = self.at[last].1 as u32 + 1;
        let unaware = known.of_other[stream].partition_point(|&ended| ended < needed);
        let place = unaware.checked_sub(1).map(|action| self.places[stream][action]);
        place.map_or(own, |place| own.max(place))
    }
}
