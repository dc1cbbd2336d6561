//! The search for places in memory for the registers of a program.
//!
//! Where memory is short and there are two streams, one may take what the other gives back before it knows of it
//! ([`crate::lower::memory::reuse`]). The sooner it does, the less memory is needed and the more a stream waits. So the longest time
//! that the memory suffices for is taken, by the clock of computing.

use graphc_plan::{Register, RegisterKind};

use super::arena::{self, Arena, Item, Span};
use super::flow::Flow;
use super::in_place::RegisterGroup;
use super::lifetimes::Life;
use super::reuse::{Content, ReuseClock};

/// The times for which memory stays untouched at least, if it goes from one stream to the other without the other's knowing. They are multiples of
/// the longest communication: after it, the first stream has nearly always finished with the memory, and nobody waits.
const MARGINS: [f64; 5] = [4.0, 2.0, 1.0, 0.5, 0.0];

/// The input of the search for places.
pub(in crate::lower) struct Places<'a> {
    /// The registers.
    pub registers: &'a [Register],
    /// The knowledge of each stream about the other.
    pub flow: &'a Flow,
    /// The places in the order where blocks begin, the last one past all.
    pub starts: Vec<usize>,
    /// The bytes in which all should lie, if memory is short.
    pub within: Option<u64>,
    /// The times at which actions begin, if a stream may be told to wait for the other.
    pub clock: Option<ReuseClock>,
}

impl Places<'_> {
    /// Finds the arena of these groups.
    pub(in crate::lower) fn find_arena(&self, groups: &[RegisterGroup]) -> Arena {
        let mut arena =
            self.place_groups(groups, |life, stream| self.flow.last_touch(life, stream));
        let Some((clock, within)) = self.clock.as_ref().zip(self.within) else { return arena };
        for margin in MARGINS {
            if arena.bytes <= within {
                break;
            }
            let until = |life: &Life, stream| clock.last_blocked(self.flow, life, stream, margin);
            let next = self.place_groups(groups, until);
            arena = if next.bytes < arena.bytes { next } else { arena };
        }
        arena
    }

    fn place_groups(
        &self,
        groups: &[RegisterGroup],
        until: impl Fn(&Life, usize) -> usize,
    ) -> Arena {
        let items: Vec<Item> = groups.iter().map(|group| self.build_item(group, &until)).collect();
        arena::place_items(&items, &self.starts, self.within)
    }

    fn build_item(&self, group: &RegisterGroup, until: impl Fn(&Life, usize) -> usize) -> Item {
        let first = &self.registers[group.members[0]];
        let variable = matches!(first.kind, RegisterKind::Variable { .. });
        let of = |stream: usize| {
            join_spans(group.lives.iter().map(|life| (life.made, until(life, stream))))
        };
        Item {
            bytes: self.group_bytes(group),
            lives: (!variable)
                .then(|| join_spans(group.lives.iter().map(|life| (life.made, life.last)))),
            until: self.flow.is_double().then(|| [of(0), of(1)]),
            maker: group.lives.first().map_or(0, |life| self.flow.stream_at(life.made)),
        }
    }

    fn group_bytes(&self, group: &RegisterGroup) -> u64 {
        self.registers[group.members[0]].slot_bytes * u64::from(group.slots)
    }

    /// Lists the contents of groups that lie at these offsets.
    pub(in crate::lower) fn list_contents(
        &self,
        groups: &[RegisterGroup],
        offsets: &[u64],
    ) -> Vec<Content> {
        let of = |(group, &offset): (&RegisterGroup, &u64)| -> Vec<Content> {
            let lies = (offset, offset + self.group_bytes(group));
            group.lives.iter().map(|&life| Content { lies, life }).collect()
        };
        groups.iter().zip(offsets).flat_map(of).collect()
    }
}

/// Joins spans that overlap.
fn join_spans(spans: impl Iterator<Item = Span>) -> Vec<Span> {
    let mut spans: Vec<Span> = spans.collect();
    spans.sort_unstable();
    let mut joined: Vec<Span> = Vec::new();
    for (first, end) in spans {
        match joined.last_mut() {
            Some(last) if first <= last.1 => last.1 = last.1.max(end),
            _ => joined.push((first, end)),
        }
    }
    joined
}
