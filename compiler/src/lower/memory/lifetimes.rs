//! Determines when each content of each register lives, in the order of a program's actions over one step.
//!
//! Every content that is made in a step is read for the last time in the same step. So steps follow each other
//! without overlap. A register has as many slots as contents of it are alive at once. Under 1F1B, stage `s` of `S`
//! holds at most `S - s` contents of a microbatch-rate register.

use graphc_plan::{Actor, Rate, Register, RegisterKind};

/// One action of a step.
#[derive(Clone, Copy, Debug)]
pub(in crate::lower) struct StepAction {
    /// Index of the actor.
    pub actor: usize,
    /// The microbatch; 0 for step-rate actors.
    pub microbatch: usize,
}

/// The life of one content, as first and last place in the order (both included).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lower) struct Life {
    /// The place where it is made.
    pub made: usize,
    /// The place where it is read for the last time.
    pub last: usize,
    /// For each stream, the place where it touches the content for the last time.
    pub touched: [Option<usize>; 2],
}

impl Life {
    /// Returns the life of memory that holds both contents one after the other.
    pub(in crate::lower) fn followed_by(&self, next: &Self) -> Self {
        let touched = [0, 1].map(|stream| self.touched[stream].max(next.touched[stream]));
        Self { made: self.made, last: self.last.max(next.last), touched }
    }
}

/// Finds the lives of the contents of each register in one step. Variables have none. `stream_of` gives the stream of each actor.
pub(in crate::lower) fn find_lives(
    registers: &[Register],
    actors: &[Actor],
    order: &[StepAction],
    stream_of: &[usize],
    microbatches: usize,
) -> Vec<Vec<Life>> {
    let unmade = Life { made: usize::MAX, last: 0, touched: [None; 2] };
    let contents = |register: &Register| match (&register.kind, register.rate) {
        (RegisterKind::Variable { .. }, _) => 0,
        (_, Rate::Step) => 1,
        (_, Rate::Microbatch) => microbatches,
    };
    let mut lives: Vec<Vec<Life>> = registers.iter().map(|r| vec![unmade; contents(r)]).collect();
    for (place, action) in order.iter().enumerate() {
        let actor = &actors[action.actor];
        for register in actor.inputs.iter().chain(&actor.outputs) {
            let content = match registers[register.index()].rate {
                Rate::Step => 0,
                Rate::Microbatch => action.microbatch,
            };
            let Some(life) = lives[register.index()].get_mut(content) else { continue };
            life.made = life.made.min(place);
            life.last = life.last.max(place);
            life.touched[stream_of[action.actor]] = Some(place);
        }
    }
    lives
}

/// Counts the contents that exist at once: the slots that the order asks for.
pub(in crate::lower) fn count_slots(lives: &[Life]) -> u32 {
    let mut oldest = 0;
    let mut slots = 1;
    for (content, life) in lives.iter().enumerate() {
        while lives[oldest].last < life.made {
            oldest += 1;
        }
        slots = slots.max(content + 1 - oldest.min(content));
    }
    slots as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_count_contents_that_exist_at_once() {
        let life = |made, last| Life { made, last, touched: [Some(last), None] };
        assert_eq!(count_slots(&[life(0, 1), life(2, 3), life(4, 5)]), 1);
        assert_eq!(count_slots(&[life(0, 5), life(1, 7), life(6, 8)]), 2);
        assert_eq!(count_slots(&[life(0, 9), life(1, 9), life(2, 9)]), 3);
        assert_eq!(count_slots(&[]), 1);
    }
}
