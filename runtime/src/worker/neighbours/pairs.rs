//! Pairs of actors of one block that a device may do by one launch.
//!
//! Both may be launched where the first stands or where the second stands. So an actor that must stand between them, e.g. the
//! gather of a bias under `zero3`, is often no obstacle.

use std::collections::BTreeSet;

use graphc_ir::ids::{ActorId, RegisterId};
use graphc_ir::op::Op;
use graphc_plan::streams::Known;
use graphc_plan::{Action, Actor, Program};

use super::{Users, are_apart};

/// Others that stand between two actors at most.
const PASSED: usize = 16;

/// The place at which both are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Stand {
    /// The place of the first: the second acts earlier than the plan says.
    First,
    /// The place of the second: the first acts later.
    Second,
}

/// Two actors, the first before the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct ActorPair {
    pub(in super::super) first: u32,
    pub(in super::super) second: u32,
    pub(in super::super) stand: Stand,
}

impl ActorPair {
    /// Returns the actor at whose place both are launched, and the other.
    pub(in super::super) fn launch_order(&self) -> [u32; 2] {
        match self.stand {
            Stand::First => [self.first, self.second],
            Stand::Second => [self.second, self.first],
        }
    }
}

/// The relation of two actors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum PairRelation {
    /// The second reads what the first gives.
    Behind,
    /// Both read the same memory, and none what the other gives.
    Sharing,
    /// The second reads what the first gives, and updates variables by it.
    Updating,
    /// The second reads what the first gives, and a third goes along that reads what the second gives: the launch writes neither.
    Through,
}

/// The places of actors, and which of them are parts of pairs.
pub(in super::super) struct ActorPairs<'a> {
    program: &'a Program,
    users: Users,
    /// The stream of each actor, its block and its place in that.
    places: Vec<Option<[usize; 3]>>,
    known: Option<Known>,
    /// Actors that are launched together, with those that stand between them.
    taken: Vec<(Vec<u32>, BTreeSet<u32>)>,
}

impl<'a> ActorPairs<'a> {
    pub(in super::super) fn new(program: &'a Program) -> Self {
        let mut places = vec![None; program.actors.len()];
        for (index, stream) in program.streams.iter().enumerate() {
            for (block, actors) in stream.blocks.iter().enumerate() {
                for (place, actor) in actors.iter().enumerate() {
                    places[actor.index()] = Some([index, block, place]);
                }
            }
        }
        let (users, known) = (Users::from_program(program), Known::from_program(program));
        Self { program, users, places, known, taken: Vec::new() }
    }

    /// Returns the actors that read what an actor gives, where that is one register.
    pub(in super::super) fn readers(&self, actor: u32) -> &[ActorId] {
        match self.actor(actor).outputs[..] {
            [register] => &self.users.readers[register.index()],
            _ => &[],
        }
    }

    /// Returns the actor that gives what a register holds, where that is one, and gives nothing else.
    pub(in super::super) fn sole_writer(&self, register: RegisterId) -> Option<u32> {
        let [writer] = self.users.writers[register.index()][..] else { return None };
        (self.actor(writer.0).outputs == [register]).then_some(writer.0)
    }

    /// Returns the actors that read a register, each with the register as which they read it: that one, or another
    /// shape of the same memory.
    pub(in super::super) fn readers_of(&self, register: RegisterId) -> Vec<(u32, RegisterId)> {
        let readers = &self.users.readers[register.index()];
        let of = |reader: &ActorId| match self.reshape_result(reader.0) {
            Some(other) => self.readers_of(other),
            None => vec![(reader.0, register)],
        };
        readers.iter().flat_map(of).collect()
    }

    /// Returns the register that an actor fills by doing nothing, as another shape of the same memory.
    fn reshape_result(&self, actor: u32) -> Option<RegisterId> {
        let actor = self.actor(actor);
        let is_reshape = matches!(&actor.action, Action::Compute { op: Op::Reshape(_), .. });
        let ([from], [to], true) = (&actor.inputs[..], &actor.outputs[..], is_reshape) else {
            return None;
        };
        let same =
            super::register_span(self.program, *from) == super::register_span(self.program, *to);
        same.then_some(*to)
    }

    /// Finds where two actors that stand in this relation may be launched together, if they may.
    pub(in super::super) fn find_pair(
        &self,
        first: u32,
        second: u32,
        beside: PairRelation,
    ) -> Option<ActorPair> {
        let between = self.actors_between(first, second)?;
        let [one, two] = [first, second].map(|index| self.actor(index));
        let plain = |actor: &Actor| actor.updates.is_empty();
        let updates = beside == PairRelation::Updating;
        let plain = plain(one) && (plain(two) || updates);
        let alike = one.rate == two.rate && plain && two.after.is_none();
        let apart = match beside {
            PairRelation::Behind | PairRelation::Updating => self.writes_apart(two, one),
            PairRelation::Sharing => are_apart(self.program, one, two),
            PairRelation::Through => true,
        };
        if !alike || !apart || self.crosses_taken(&[first, second], &between) {
            return None;
        }
        let moves = |index: u32| self.goes_past(index, &between);
        let stand = match () {
            () if moves(second) && self.waits_alike(first, second) => Stand::First,
            () if moves(first) && self.nobody_waits(first, second) => Stand::Second,
            () => return None,
        };
        Some(ActorPair { first, second, stand })
    }

    /// Whether an actor that reads what the second of a pair gives may be launched with them, where they are.
    pub(in super::super) fn goes_along(&self, pair: ActorPair, third: u32) -> bool {
        let [place, _] = pair.launch_order();
        let Some(mut between) = self.actors_between(place, third) else { return false };
        between.retain(|actor| ![pair.first, pair.second].contains(actor));
        let [one, two, actor] = [pair.first, pair.second, third].map(|index| self.actor(index));
        let plain = actor.updates.is_empty() && actor.after.is_none() && actor.rate == one.rate;
        let apart = [one, two].iter().all(|other| self.writes_apart(actor, other));
        let moves = self.goes_past(third, &between) && self.waits_alike(place, third);
        let others: BTreeSet<u32> = self.actors_between(pair.first, third).unwrap_or_default();
        let others = others.into_iter().filter(|&other| other != pair.second).collect();
        plain && apart && moves && !self.crosses_taken(&[pair.first, pair.second, third], &others)
    }

    /// Takes a pair whose launch there is, and who goes along.
    pub(in super::super) fn take_pair(&mut self, pair: ActorPair, along: Option<u32>) {
        let last = along.unwrap_or(pair.second);
        let mut between = self.actors_between(pair.first, last).unwrap_or_default();
        between.remove(&pair.second);
        let members = [pair.first, pair.second].into_iter().chain(along).collect();
        self.taken.push((members, between));
    }

    /// Returns the actors of all pairs that were taken, and who goes along.
    pub(in super::super) fn members(&self) -> BTreeSet<u32> {
        self.taken.iter().flat_map(|(members, _)| members).copied().collect()
    }

    /// Whether an actor may change places with all of some others.
    fn goes_past(&self, index: u32, others: &BTreeSet<u32>) -> bool {
        let actor = self.actor(index);
        others.iter().all(|&other| are_apart(self.program, self.actor(other), actor))
    }

    fn actor(&self, index: u32) -> &'a Actor {
        &self.program.actors[index as usize]
    }

    /// Returns the actors that do something between two of one block, if they are not many and the first comes first.
    fn actors_between(&self, first: u32, second: u32) -> Option<BTreeSet<u32>> {
        let [one, two] = [first, second].map(|index| self.places[index as usize]);
        let ([stream, block, from], [other, other_block, to]) = (one?, two?);
        if (stream, block) != (other, other_block) || from >= to || to - from - 1 > PASSED {
            return None;
        }
        let between = self.program.streams[stream].blocks[block][from + 1..to].iter();
        let acts = |actor: &u32| self.reshape_result(*actor).is_none();
        Some(between.map(|actor| actor.0).filter(acts).collect())
    }

    /// Whether an actor writes nothing that another reads.
    fn writes_apart(&self, writer: &Actor, reader: &Actor) -> bool {
        let span = |register| super::register_span(self.program, register);
        let written = writer.outputs.iter().chain(&writer.updates);
        let mut pairs = written.flat_map(|w| reader.inputs.iter().map(move |r| (w, r)));
        pairs.all(|(&written, &read)| super::are_disjoint(&span(written), &span(read)))
    }

    /// Whether these actors and some that were taken would go past parts of each other.
    fn crosses_taken(&self, members: &[u32], between: &BTreeSet<u32>) -> bool {
        let parts = |of: &[u32], among: &BTreeSet<u32>| {
            let inside = of.iter().filter(|actor| among.contains(actor)).count();
            inside > 0 && inside < of.len()
        };
        self.taken.iter().any(|(others, passed)| {
            let meets = members.iter().any(|actor| others.contains(actor));
            meets || parts(others, between) || parts(members, passed)
        })
    }

    /// Whether the second waits for nothing of another stream for which the first has not waited.
    fn waits_alike(&self, first: u32, second: u32) -> bool {
        self.paired_actions([first, second]).is_some_and(|(stream, actions)| {
            let waited =
                |action| self.known.as_ref().map_or(0, |known| known.count_ended(stream, action));
            actions.iter().all(|&[one, two]| waited(two) <= waited(one))
        })
    }

    /// Whether nobody of another stream waits for the first who does not wait for the second.
    fn nobody_waits(&self, first: u32, second: u32) -> bool {
        self.paired_actions([first, second]).is_some_and(|(stream, actions)| {
            let others = self.known.as_ref().map_or(&[][..], |known| &known.of_other[1 - stream]);
            actions.iter().all(|&[one, two]| {
                let first_alone = one as u32 + 1..two as u32 + 1;
                others.iter().all(|ended| !first_alone.contains(ended))
            })
        })
    }

    /// Returns the stream of two actors, and the places of their actions of each microbatch in its order; `None` where
    /// it is not known what streams know of each other.
    fn paired_actions(&self, pair: [u32; 2]) -> Option<(usize, Vec<[usize; 2]>)> {
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

#[cfg(test)]
mod tests {
    use graphc_ir::ops::Reshape;
    use graphc_plan::{OperandSource, Stream, StreamItem};

    use super::super::tests::{actor, program};
    use super::*;

    /// A program with registers of 64 bytes, whose streams have these actors.
    fn with_streams(offsets: &[u64], actors: Vec<Actor>, streams: &[&[u32]]) -> Program {
        let stream = |actors: &&[u32]| Stream {
            blocks: vec![actors.iter().map(|&actor| ActorId(actor)).collect()],
            order: vec![StreamItem { block: 0, microbatch: 0 }],
        };
        let streams = streams.iter().map(stream).collect();
        Program { streams, ..program(offsets, actors) }
    }

    fn stand(program: &Program, first: u32, second: u32) -> Option<Stand> {
        let pair = ActorPairs::new(program).find_pair(first, second, PairRelation::Behind);
        pair.map(|pair| pair.stand)
    }

    /// A product of register 0 to 1, what fills 3, and a chain of both to 4.
    fn gathered() -> Vec<Actor> {
        vec![actor(&[0], &[1], &[]), actor(&[2], &[3], &[]), actor(&[1, 3], &[4], &[])]
    }

    const APART: [u64; 5] = [0, 64, 128, 192, 256];

    #[test]
    fn a_product_waits_for_what_a_chain_needs_besides() {
        let plain = with_streams(&APART, gathered(), &[&[1, 0, 2]]);
        assert_eq!(stand(&plain, 0, 2), Some(Stand::First));
        let between = with_streams(&APART, gathered(), &[&[0, 1, 2]]);
        assert_eq!(stand(&between, 0, 2), Some(Stand::Second));
        // What stands between them takes the place of a factor, or the chain does.
        let reused = with_streams(&[0, 64, 128, 0, 256], gathered(), &[&[0, 1, 2]]);
        assert_eq!(stand(&reused, 0, 2), None);
        let over = with_streams(&[0, 64, 128, 192, 0], gathered(), &[&[1, 0, 2]]);
        assert_eq!(stand(&over, 0, 2), None);
        assert_eq!(stand(&plain, 2, 0), None);
    }

    #[test]
    fn what_another_stream_does_decides_where_a_pair_stands() {
        let other = with_streams(&APART, gathered(), &[&[0, 2], &[1]]);
        assert_eq!(stand(&other, 0, 2), Some(Stand::Second));
        // The other stream waits for the product before it makes what the chain needs.
        let mut actors = gathered();
        actors[1].after = Some(ActorId(0));
        let waiting = with_streams(&APART, actors, &[&[0, 2], &[1]]);
        assert_eq!(stand(&waiting, 0, 2), None);
        // The product needs it too, so it was waited for.
        let mut actors = gathered();
        actors[0].inputs.push(RegisterId(3));
        let known = with_streams(&APART, actors, &[&[0, 2], &[1]]);
        assert_eq!(stand(&known, 0, 2), Some(Stand::First));
    }

    #[test]
    fn an_update_stands_where_its_gradient_is_made_unless_its_variable_is_read_between() {
        let stand = |between: Actor| {
            let actors = vec![actor(&[0], &[1], &[]), between, actor(&[1], &[], &[2])];
            let program = with_streams(&APART, actors, &[&[0, 1, 2]]);
            let pairs = ActorPairs::new(&program);
            assert_eq!(pairs.find_pair(0, 2, PairRelation::Behind), None);
            assert_eq!(pairs.sole_writer(RegisterId(1)), Some(0));
            pairs.find_pair(0, 2, PairRelation::Updating).map(|pair| pair.stand)
        };
        assert_eq!(stand(actor(&[0], &[3], &[])), Some(Stand::First));
        // Another product reads the variable: that of the gradient waits for it.
        assert_eq!(stand(actor(&[2], &[3], &[])), Some(Stand::Second));
        // What stands between them takes the factor's place.
        assert_eq!(stand(actor(&[2], &[0], &[])), None);
        // The update would overwrite the factor.
        let own = vec![actor(&[2], &[1], &[]), actor(&[1], &[], &[2])];
        let own = with_streams(&APART, own, &[&[0, 1]]);
        assert_eq!(ActorPairs::new(&own).find_pair(0, 1, PairRelation::Updating), None);
    }

    #[test]
    fn pairs_do_not_go_past_parts_of_each_other() {
        let actors = || {
            vec![
                actor(&[0], &[1], &[]),
                actor(&[0], &[2], &[]),
                actor(&[1], &[3], &[]),
                actor(&[2], &[4], &[]),
            ]
        };
        let crossed = with_streams(&APART, actors(), &[&[0, 1, 2, 3]]);
        let mut pairs = ActorPairs::new(&crossed);
        let pair = pairs.find_pair(0, 2, PairRelation::Behind).expect("a pair");
        pairs.take_pair(pair, None);
        assert_eq!(pairs.find_pair(1, 3, PairRelation::Behind), None);
        assert_eq!(pairs.members(), BTreeSet::from([0, 2]));
        let nested = with_streams(&APART, actors(), &[&[0, 1, 3, 2]]);
        let mut pairs = ActorPairs::new(&nested);
        let pair = pairs.find_pair(0, 2, PairRelation::Behind).expect("a pair");
        pairs.take_pair(pair, None);
        assert!(pairs.find_pair(1, 3, PairRelation::Behind).is_some());
    }

    #[test]
    fn a_sum_goes_along_if_nothing_stands_in_its_way() {
        let actors = || {
            vec![
                actor(&[0], &[1], &[]),
                actor(&[1], &[2], &[]),
                actor(&[0], &[3], &[]),
                actor(&[2], &[4], &[]),
            ]
        };
        let goes = |offsets: &[u64]| {
            let program = with_streams(offsets, actors(), &[&[0, 1, 2, 3]]);
            let pairs = ActorPairs::new(&program);
            let pair = pairs.find_pair(0, 1, PairRelation::Behind).expect("a pair");
            pairs.goes_along(pair, 3)
        };
        assert!(goes(&APART));
        // The sum lies where the product's factor was, or what stands between them writes there.
        assert!(!goes(&[0, 64, 128, 192, 0]));
        assert!(!goes(&[0, 64, 128, 192, 192]));
    }

    #[test]
    fn what_a_launch_does_not_write_may_lie_where_its_factors_do() {
        // A product of register 0, a cast of it that lies where the factor lay, and a sum.
        let through = |sum: u64| {
            let actors =
                vec![actor(&[0], &[1], &[]), actor(&[1], &[2], &[]), actor(&[2], &[3], &[])];
            let program = with_streams(&[0, 64, 0, sum], actors, &[&[0, 1, 2]]);
            let pairs = ActorPairs::new(&program);
            assert_eq!(pairs.find_pair(0, 1, PairRelation::Behind), None);
            let pair = pairs.find_pair(0, 1, PairRelation::Through).expect("a pair");
            pairs.goes_along(pair, 2)
        };
        assert!(through(128));
        // The sum itself is written.
        assert!(!through(0));
    }

    #[test]
    fn another_shape_of_the_same_memory_is_read_through() {
        let reshape = |from: u32, to: u32| {
            let op = Op::Reshape(Reshape { shape: vec![16] });
            let action = Action::Compute { op, operands: vec![OperandSource::Input(0)] };
            Actor { action, ..actor(&[from], &[to], &[]) }
        };
        let actors =
            vec![actor(&[0], &[3], &[]), reshape(0, 1), reshape(0, 2), actor(&[1], &[4], &[])];
        let program = with_streams(&[0, 0, 64, 128, 192], actors, &[&[0, 1, 2, 3]]);
        let pairs = ActorPairs::new(&program);
        let found = pairs.readers_of(RegisterId(0));
        // Register 2 is a copy.
        assert_eq!(found, [(0, RegisterId(0)), (3, RegisterId(1)), (2, RegisterId(0))]);
        assert_eq!(
            pairs.find_pair(0, 3, PairRelation::Sharing).map(|pair| pair.stand),
            Some(Stand::First)
        );
    }
}
