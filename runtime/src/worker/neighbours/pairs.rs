//! Two actors of one block that a device may do by one launch, where the first of them stands or where the second does.

use std::collections::BTreeSet;

use graphc_ir::ids::ActorId;
use graphc_ir::plan::{Actor, Program};
use graphc_ir::streams::Known;

use super::{Users, are_apart};

/// Others that stand between two actors at most.
const PASSED: usize = 16;

/// Where both are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Stand {
    /// Where the first stands: the second acts earlier than the plan says.
    First,
    /// Where the second stands: the first acts later.
    Second,
}

/// Two actors, the first before the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Pair {
    pub(in super::super) first: u32,
    pub(in super::super) second: u32,
    pub(in super::super) stand: Stand,
}

impl Pair {
    /// The one at whose place both are launched, and the other.
    pub(in super::super) fn launched(&self) -> [u32; 2] {
        match self.stand {
            Stand::First => [self.first, self.second],
            Stand::Second => [self.second, self.first],
        }
    }
}

/// What two actors have to do with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Beside {
    /// The second reads what the first gives.
    Behind,
    /// Both read one register, and none what the other gives.
    Sharing,
}

/// Where actors stand, and which of them are parts of pairs.
pub(in super::super) struct Pairs<'a> {
    program: &'a Program,
    users: Users,
    /// Of each actor its stream, block and place in that.
    places: Vec<Option<[usize; 3]>>,
    known: Option<Known>,
    /// The actors of pairs, with those that stand between them.
    taken: Vec<(Pair, BTreeSet<u32>)>,
}

impl<'a> Pairs<'a> {
    pub(in super::super) fn new(program: &'a Program) -> Self {
        let mut places = vec![None; program.actors.len()];
        for (index, stream) in program.streams.iter().enumerate() {
            for (block, actors) in stream.blocks.iter().enumerate() {
                for (place, actor) in actors.iter().enumerate() {
                    places[actor.index()] = Some([index, block, place]);
                }
            }
        }
        let (users, known) = (Users::of(program), Known::of(program));
        Self { program, users, places, known, taken: Vec::new() }
    }

    /// The actors that read what an actor gives, where that is one register.
    pub(in super::super) fn readers(&self, actor: u32) -> &[ActorId] {
        match self.actor(actor).outputs[..] {
            [register] => &self.users.readers[register.index()],
            _ => &[],
        }
    }

    /// The actors that read one of an actor's inputs.
    pub(in super::super) fn readers_beside(&self, actor: u32) -> impl Iterator<Item = u32> + '_ {
        let inputs = self.actor(actor).inputs.iter();
        inputs.flat_map(|input| &self.users.readers[input.index()]).map(|reader| reader.0)
    }

    /// Whether two actors that stand in this relation may be launched together, and where.
    pub(in super::super) fn stand(&self, first: u32, second: u32, beside: Beside) -> Option<Pair> {
        let between = self.between(first, second)?;
        let [one, two] = [first, second].map(|index| self.actor(index));
        let plain = |actor: &Actor| actor.updates.is_empty();
        let alike = one.rate == two.rate && plain(one) && plain(two) && two.after.is_none();
        let apart = match beside {
            Beside::Behind => self.writes_apart(two, one),
            Beside::Sharing => are_apart(self.program, one, two),
        };
        if !alike || !apart || self.crosses([first, second], &between) {
            return None;
        }
        let moves = |index: u32| {
            let actor = self.actor(index);
            between.iter().all(|&other| are_apart(self.program, self.actor(other), actor))
        };
        let stand = match () {
            () if moves(second) && self.waits_alike(first, second) => Stand::First,
            () if moves(first) && self.nobody_waits(first, second) => Stand::Second,
            () => return None,
        };
        Some(Pair { first, second, stand })
    }

    /// Takes a pair whose launch there is.
    pub(in super::super) fn take(&mut self, pair: Pair) {
        let between = self.between(pair.first, pair.second).unwrap_or_default();
        self.taken.push((pair, between));
    }

    /// The actors of all pairs that were taken.
    pub(in super::super) fn members(&self) -> BTreeSet<u32> {
        self.taken.iter().flat_map(|(pair, _)| [pair.first, pair.second]).collect()
    }

    fn actor(&self, index: u32) -> &'a Actor {
        &self.program.actors[index as usize]
    }

    /// The actors between two of one block, if they are not many and the first comes first.
    fn between(&self, first: u32, second: u32) -> Option<BTreeSet<u32>> {
        let [one, two] = [first, second].map(|index| self.places[index as usize]);
        let ([stream, block, from], [other, other_block, to]) = (one?, two?);
        if (stream, block) != (other, other_block) || from >= to || to - from - 1 > PASSED {
            return None;
        }
        let block = &self.program.streams[stream].blocks[block];
        Some(block[from + 1..to].iter().map(|actor| actor.0).collect())
    }

    /// Whether an actor writes nothing that another reads.
    fn writes_apart(&self, writer: &Actor, reader: &Actor) -> bool {
        let span = |register| super::span(self.program, register);
        let mut pairs = writer.outputs.iter().flat_map(|w| reader.inputs.iter().map(move |r| (w, r)));
        pairs.all(|(&written, &read)| super::disjoint(&span(written), &span(read)))
    }

    /// Whether a pair and one that was taken would go past parts of each other.
    fn crosses(&self, pair: [u32; 2], between: &BTreeSet<u32>) -> bool {
        self.taken.iter().any(|(other, passed)| {
            let own = [other.first, other.second];
            let one_of = |of: [u32; 2], among: &BTreeSet<u32>| {
                among.contains(&of[0]) != among.contains(&of[1])
            };
            pair.iter().any(|actor| own.contains(actor)) || one_of(own, between) || one_of(pair, passed)
        })
    }

    /// Whether the second waits for nothing of another stream for which the first has not waited.
    fn waits_alike(&self, first: u32, second: u32) -> bool {
        self.actions([first, second]).is_some_and(|(stream, actions)| {
            let waited = |action| self.known.as_ref().map_or(0, |known| known.ended(stream, action));
            actions.iter().all(|&[one, two]| waited(two) <= waited(one))
        })
    }

    /// Whether nobody of another stream waits for the first who does not wait for the second.
    fn nobody_waits(&self, first: u32, second: u32) -> bool {
        self.actions([first, second]).is_some_and(|(stream, actions)| {
            let others = self.known.as_ref().map_or(&[][..], |known| &known.of_other[1 - stream]);
            actions.iter().all(|&[one, two]| {
                let first_alone = one as u32 + 1..two as u32 + 1;
                others.iter().all(|ended| !first_alone.contains(ended))
            })
        })
    }

    /// The stream of two actors, and the places of their actions of each microbatch in its order; `None` where it is not known what
    /// streams know of each other.
    fn actions(&self, pair: [u32; 2]) -> Option<(usize, Vec<[usize; 2]>)> {
        let [stream, ..] = self.places[pair[0] as usize]?;
        let Some(known) = &self.known else {
            return (self.program.streams.len() == 1).then_some((0, Vec::new()));
        };
        let of = |actor: u32| {
            let actions = known.actions[stream].iter().enumerate();
            actions.filter(move |(_, action)| action.0.0 == actor).map(|(place, _)| place)
        };
        Some((stream, of(pair[0]).zip(of(pair[1])).map(|(one, two)| [one, two]).collect()))
    }
}
