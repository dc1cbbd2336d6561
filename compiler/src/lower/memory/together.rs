//! Keeps apart the memory of actors that a device may run by one launch.
//!
//! Such actors are a matrix product, a chain behind it that becomes its epilogue, and sums beside both. If a result
//! lies in memory that another of them reads, or that is used between them, the device does one after the other. So
//! the registers of these actors are to live as if all acted at one time.
//!
//! That is a wish. It is granted as far as the arena grows by at most 1/128 and still fits the device.

use std::collections::BTreeSet;

use graphc_ir::ids::RegisterId;
use graphc_ir::op::Op;
use graphc_plan::{Action, Actor, Rate, Register};

use super::in_place::RegisterGroup;
use super::lifetimes::{Life, StepAction as Step};

/// The most other actions between two actors that go together.
const PASSED: usize = 16;

/// The input of the search for actors that go together.
pub(in crate::lower) struct Together<'a> {
    /// The registers.
    pub registers: &'a [Register],
    /// The actors.
    pub actors: &'a [Actor],
    /// The actions of a step.
    pub order: &'a [Step],
    /// The stream of each actor.
    pub stream_of: &'a [usize],
}

impl Together<'_> {
    /// Lengthens the lives of groups as far as no more than `most` bytes live at a time, so that more actors can go together. `None` if no actors do.
    pub(in crate::lower) fn lengthen_lives(
        &self,
        groups: &[RegisterGroup],
        most: u64,
    ) -> Option<Vec<RegisterGroup>> {
        let mut group_of = vec![0; self.registers.len()];
        for (index, group) in groups.iter().enumerate() {
            group.members.iter().for_each(|&member| group_of[member] = index);
        }
        let mut wished = groups.to_vec();
        let mut live = self.live_bytes(groups);
        let mut granted = false;
        for pair in self.find_pairs(&group_of) {
            let longer = self.list_longer_lives(pair, &group_of, &wished);
            let more = |place: usize| -> u64 {
                let begun = longer
                    .iter()
                    .filter(|(_, _, new, old)| is_within(new, place) && !is_within(old, place));
                begun.map(|&(group, ..)| self.slot_bytes(&groups[group])).sum()
            };
            let [first, last] = pair;
            if (first..=last).any(|place| live[place] + more(place) > most) {
                continue;
            }
            (first..=last).for_each(|place| live[place] += more(place));
            for (group, content, life, _) in longer {
                wished[group].lives[content] = life;
            }
            granted = true;
        }
        granted.then_some(wished)
    }

    /// Returns the bytes that live at each place in the order.
    fn live_bytes(&self, groups: &[RegisterGroup]) -> Vec<u64> {
        let always = groups.iter().filter(|group| group.lives.is_empty());
        let mut live: u64 = always.map(|group| self.slot_bytes(group)).sum();
        let mut change = vec![(0, 0); self.order.len() + 1];
        for group in groups {
            for life in group.lives.iter().filter(|life| life.made <= life.last) {
                change[life.made].0 += self.slot_bytes(group);
                change[life.last + 1].1 += self.slot_bytes(group);
            }
        }
        let next = |&(begins, ends): &(u64, u64)| {
            live = live + begins - ends;
            live
        };
        change.iter().map(next).collect()
    }

    fn slot_bytes(&self, group: &RegisterGroup) -> u64 {
        self.registers[group.members[0]].slot_bytes
    }

    /// Lists the contents that live longer if two actions are one, each with its group, its index, its new life and its old one. If all that the
    /// second action reads is there before the first, the second acts at the place of the first, and writes its results then. Otherwise the first
    /// acts at the place of the second, and reads its operands until then.
    fn list_longer_lives(
        &self,
        [first, last]: [usize; 2],
        group_of: &[usize],
        groups: &[RegisterGroup],
    ) -> Vec<(usize, usize, Life, Life)> {
        let actor = |place: usize| &self.actors[self.order[place].actor];
        let content = |place: usize, register: &RegisterId| {
            let content = match self.registers[register.index()].rate {
                Rate::Step => 0,
                Rate::Microbatch => self.order[place].microbatch,
            };
            (group_of[register.index()], content)
        };
        let life = |(group, content): (usize, usize)| groups[group].lives.get(content).copied();
        let is_there =
            |register| life(content(last, register)).is_none_or(|life| life.made <= first);
        let earlier = actor(last).inputs.iter().all(is_there);
        let contents: BTreeSet<(usize, usize)> = if earlier {
            actor(last).outputs.iter().map(|register| content(last, register)).collect()
        } else {
            actor(first).inputs.iter().map(|register| content(first, register)).collect()
        };
        let stream = self.stream_of[self.order[last].actor];
        let longer = contents.into_iter().filter_map(|(group, content)| {
            let old = life((group, content))?;
            let mut new = old;
            if earlier {
                new.made = old.made.min(first);
            } else {
                new.last = old.last.max(last);
                new.touched[stream] = old.touched[stream].max(Some(last));
            }
            Some((group, content, new, old))
        });
        longer.collect()
    }

    /// Returns the places of products and of actions that may go with them, as pairs with the earlier place first.
    fn find_pairs(&self, group_of: &[usize]) -> Vec<[usize; 2]> {
        let mut pairs = Vec::new();
        for (place, action) in self.order.iter().enumerate() {
            let product = &self.actors[action.actor];
            if !matches!(&product.action, Action::Compute { op: Op::MatMul(_), .. }) {
                continue;
            }
            let made = |actor: &Actor| actor.outputs.first().map(|r| group_of[r.index()]);
            let reads = |actor: &Actor, group: Option<usize>| {
                actor.inputs.iter().any(|input| Some(group_of[input.index()]) == group)
            };
            let mut given = vec![made(product)];
            for other in self.nearby_places(place) {
                let actor = &self.actors[self.order[other].actor];
                let sums = matches!(&actor.action, Action::Compute { op: Op::Reduce(_), .. });
                let behind = other > place && given.iter().any(|&group| reads(actor, group));
                let beside =
                    || product.inputs.iter().any(|f| reads(actor, Some(group_of[f.index()])));
                if behind && (sums || is_chain(actor)) || sums && beside() {
                    pairs.push([place.min(other), place.max(other)]);
                    given.extend((behind && !sums).then(|| made(actor)));
                }
            }
        }
        pairs
    }

    /// Returns places near one at which the same stream acts for the same microbatch, in order.
    fn nearby_places(&self, place: usize) -> impl Iterator<Item = usize> {
        let kind = move |place: usize| {
            let action = self.order[place];
            (self.stream_of[action.actor], action.microbatch)
        };
        let all = place.saturating_sub(PASSED)..(place + PASSED + 1).min(self.order.len());
        all.filter(move |&other| other != place && kind(other) == kind(place))
    }
}

fn is_within(life: &Life, place: usize) -> bool {
    (life.made..=life.last).contains(&place)
}

fn is_chain(actor: &Actor) -> bool {
    match &actor.action {
        Action::Fused(_) => true,
        Action::Compute { op, .. } => op.operation().is_elementwise(),
        _ => false,
    }
}
