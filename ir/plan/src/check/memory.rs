//! Proves that memory is shared safely, by executing two steps of each stream on contents instead of numbers.
//!
//! Every write has a number, and the bytes that it covers bear that number until they are written again. Reading a
//! content whose bytes bear another number is an error.
//!
//! Of two streams one order is executed. A stream that touches bytes which the other has touched, one of them
//! writing, must know that the other has finished with them ([`crate::streams`]). Then every other order finds the
//! same contents, as in happens-before race detectors (Flanagan and Freund, "FastTrack", 2009). Where there are more
//! streams, registers that several of them touch may overlap nothing. So each stream can be followed by itself.
//!
//! Two steps show everything where contents lie in the same slots at each step. `fence` is for the others.

use std::collections::BTreeMap;

use graphc_ir::ids::RegisterId;

use super::ErrorCollector;
use super::clock::Clock;
use super::fence::Fences;
use crate::in_place::{Pair, in_place_pairs};
use crate::streams::Known;
use crate::{Action, Actor, Plan, Program, Rate, Register, RegisterKind};

/// Errors of one program that are reported.
const MOST_ERRORS: usize = 4;

/// Checks all programs.
pub(super) fn check_memory(plan: &Plan, errors: &mut ErrorCollector) {
    for (index, program) in plan.programs.iter().enumerate() {
        let mut found = ErrorCollector::default();
        let mut arena = ArenaState::new(plan, program);
        match Known::from_program(program) {
            Some(known) => arena.follow_both(&known, &mut found),
            None => {
                streams_apart(program, &mut found);
                for stream in 0..program.streams.len() {
                    arena.follow_stream(stream, &mut found);
                }
            }
        }
        arena.variables_last(&mut found);
        for error in found.0.into_iter().take(MOST_ERRORS) {
            errors.add(format!("programs[{index}].{}", error.place), error.message);
        }
    }
}

/// Checks that what several streams touch overlaps nothing, and what one stream touches nothing of another's.
fn streams_apart(program: &Program, errors: &mut ErrorCollector) {
    if program.streams.len() < 2 {
        return;
    }
    let touched = touched_by(program);
    let end = |r: usize| {
        let register = &program.registers[r];
        register.offset + register.slot_bytes * u64::from(register.slots)
    };
    let mut order: Vec<usize> =
        (0..touched.len()).filter(|&r| program.registers[r].slot_bytes > 0).collect();
    order.sort_by_key(|&r| (program.registers[r].offset, r));
    // By owner: the register that reaches furthest so far.
    let mut furthest: BTreeMap<Option<usize>, usize> = BTreeMap::new();
    for b in order {
        for (&owner, &a) in &furthest {
            let apart = owner.is_some() && owner == touched[b];
            let overlaps = end(a) > program.registers[b].offset;
            errors.require(apart || !overlaps, format!("registers[{a}]"), || {
                format!(
                    "`{}` and `{}` overlap, but are not of one stream alone",
                    program.registers[a].name, program.registers[b].name
                )
            });
        }
        let known = furthest.entry(touched[b]).or_insert(b);
        if end(b) > end(*known) {
            *known = b;
        }
    }
}

/// The only stream that touches each register; `None` where several do.
fn touched_by(program: &Program) -> Vec<Option<usize>> {
    let mut touched: Vec<Vec<usize>> = vec![Vec::new(); program.registers.len()];
    for (stream, actors) in program.streams.iter().enumerate() {
        for actor in actors.blocks.iter().flatten() {
            let actor = &program.actors[actor.index()];
            for register in actor.inputs.iter().chain(&actor.outputs).chain(&actor.updates) {
                touched[register.index()].push(stream);
            }
        }
    }
    let only = |streams: Vec<usize>| match streams.split_first() {
        Some((first, rest)) if rest.iter().all(|stream| stream == first) => Some(*first),
        _ => None,
    };
    touched.into_iter().map(only).collect()
}

/// The last touch of bytes, by stream: one past the number of its last action of this step; 0: none.
#[derive(Clone, Copy, Default, PartialEq)]
struct Touched {
    written: [u32; 2],
    read: [u32; 2],
}

struct ArenaState<'a> {
    plan: &'a Plan,
    program: &'a Program,
    /// For more than two streams: the registers of several streams, which overlap nothing.
    apart: Vec<bool>,
    /// The action at hand.
    clock: Clock,
    /// For two streams: the last accesses of each segment.
    touched: Vec<Touched>,
    /// The content in each slot of each register, and the number of the write that made it; `None`: not made yet.
    contents: Vec<Vec<Option<(u64, u64)>>>,
    /// The segments that each slot of each register covers: the arena is cut wherever a slot begins or ends.
    covers: Vec<Vec<(usize, usize)>>,
    /// The number that the bytes of each segment bear.
    bears: Vec<u64>,
    /// The first register of those that share each register's memory, one up.
    memories: Vec<u32>,
    /// The fences, where slots rotate.
    fences: Option<Fences>,
    /// Writes so far.
    writes: u64,
}

/// One action at a place in time.
#[derive(Clone, Copy)]
struct Now {
    step: u64,
    microbatch: u64,
}

impl<'a> ArenaState<'a> {
    fn new(plan: &'a Plan, program: &'a Program) -> Self {
        let (covers, segments) = cut_segments(program);
        let mut arena = Self {
            plan,
            program,
            apart: match program.streams.len() {
                0..=2 => vec![false; program.registers.len()],
                _ => touched_by(program).iter().map(Option::is_none).collect(),
            },
            clock: Clock::default(),
            touched: vec![
                Touched::default();
                if program.streams.len() == 2 { segments } else { 0 }
            ],
            contents: program.registers.iter().map(|r| vec![None; r.slots as usize]).collect(),
            covers,
            bears: vec![0; segments],
            memories: memory_of_registers(program),
            fences: (program.registers.iter().any(|register| rotates_slots(plan, register)))
                .then(|| Fences::new(segments, program.streams.len() == 2)),
            writes: 0,
        };
        for (index, register) in program.registers.iter().enumerate() {
            if matches!(register.kind, RegisterKind::Variable { .. }) {
                arena.write_content(index, 0, 0);
            }
        }
        arena
    }

    /// Writes a content: its bytes bear a new number.
    fn write_content(&mut self, register: usize, slot: usize, content: u64) {
        self.writes += 1;
        self.contents[register][slot] = Some((content, self.writes));
        let (begin, end) = self.covers[register][slot];
        self.bears[begin..end].fill(self.writes);
        let around = self.segments_around(register, slot);
        if let Some(fences) = &mut self.fences {
            fences.note_write(around, self.memories[register], self.writes);
        }
    }

    /// The segments in which a content may lie at some step.
    fn segments_around(&self, register: usize, slot: usize) -> (usize, usize) {
        let covers = &self.covers[register];
        match (rotates_slots(self.plan, &self.program.registers[register]), covers.last()) {
            (true, Some(last)) => (covers[0].0, last.1),
            _ => covers[slot],
        }
    }

    /// Whether nobody else has written where a content may lie, since the write of this number.
    fn is_fenced(&self, register: usize, slot: usize, number: u64) -> bool {
        let around = self.segments_around(register, slot);
        let keeps = |fences: &Fences| fences.keeps_write(around, self.memories[register], number);
        self.fences.as_ref().is_none_or(keeps)
    }

    /// Whether all bytes of a slot bear a number.
    fn bears_number(&self, register: usize, slot: usize, number: u64) -> bool {
        let (begin, end) = self.covers[register][slot];
        self.bears[begin..end].iter().all(|&other| other == number)
    }

    /// Executes two steps of a stream.
    fn follow_stream(&mut self, stream: usize, errors: &mut ErrorCollector) {
        let program = self.program;
        let stream = &program.streams[stream];
        for step in 0..2 {
            for item in &stream.order {
                let now = Now { step, microbatch: u64::from(item.microbatch) };
                for actor in &stream.blocks[item.block as usize] {
                    self.execute_action(&program.actors[actor.index()], now, errors);
                }
            }
        }
    }

    /// Executes two steps of two streams, in an order that what they know allows.
    fn follow_both(&mut self, known: &Known, errors: &mut ErrorCollector) {
        let program = self.program;
        for step in 0..2 {
            // All streams have ended the step before.
            self.touched.fill(Touched::default());
            self.fences.iter_mut().for_each(Fences::begin_step);
            let mut done = [0, 0];
            while let Some((stream, action)) = known.next_action(done) {
                let (actor, microbatch) = known.actions[stream][action];
                let ended = known.count_ended(stream, action);
                self.clock = Clock { stream, action: action as u32, ended };
                let now = Now { step, microbatch: u64::from(microbatch) };
                self.execute_action(&program.actors[actor.index()], now, errors);
                done[stream] += 1;
            }
            // Where streams wait for each other the plan hangs, as `progress` says.
        }
    }

    /// Notes that bytes are touched now; whether all that the other stream does with them has ended, as far as it matters.
    fn note_touch(&mut self, (begin, end): (usize, usize), writes: bool) -> bool {
        let Clock { stream, action, ended } = self.clock;
        let other = 1 - stream;
        let mut safe = true;
        // Of one stream nothing is kept.
        for touched in self.touched.get_mut(begin..end).into_iter().flatten() {
            safe &= touched.written[other] <= ended && (!writes || touched.read[other] <= ended);
            let list = if writes { &mut touched.written } else { &mut touched.read };
            list[stream] = action + 1;
        }
        safe
    }

    /// An error where bytes are touched that the other stream may be at.
    fn check_touch(
        &mut self,
        actor: &Actor,
        (register, slot): (RegisterId, usize),
        writes: bool,
        errors: &mut ErrorCollector,
    ) {
        let (around, memory) =
            (self.segments_around(register.index(), slot), self.memories[register.index()]);
        let mut safe = self.note_touch(self.covers[register.index()][slot], writes);
        if let Some(fences) = &mut self.fences {
            safe &= fences.note_touch(around, memory, self.clock, writes);
        }
        errors.require(safe, format_args!("actor `{}`", actor.name), || {
            let name = &self.program.registers[register.index()].name;
            format!("touches {register} `{name}`, whose bytes the other stream may still be at")
        });
    }

    fn execute_action(&mut self, actor: &Actor, now: Now, errors: &mut ErrorCollector) {
        for &read in actor.inputs.iter().chain(&actor.updates) {
            self.check_read(actor, read, now, errors);
            self.check_touch(actor, (read, self.content_at(read, now).0), false, errors);
        }
        let joins = matches!(actor.action, Action::Accumulate) && now.microbatch > 0;
        for &output in &actor.outputs {
            let (slot, content) = self.content_at(output, now);
            let kept = if joins { None } else { self.kept_bytes(actor, output, now, errors) };
            self.check_touch(actor, (output, slot), kept.is_none(), errors);
            if joins {
                self.check_read(actor, output, now, errors);
            } else if let Some(kept) = kept {
                self.contents[output.index()][slot] = Some((content, kept));
            } else {
                self.write_content(output.index(), slot, content);
            }
        }
        for &update in &actor.updates {
            let over = actor.inputs.iter().find(|&&input| self.slots_overlap(update, input, now));
            errors.require(over.is_none(), format_args!("actor `{}`", actor.name), || {
                format!("updates {update} over its input {}", over.map_or(0, |input| input.0))
            });
            self.check_touch(actor, (update, 0), true, errors);
            self.write_content(update.index(), 0, 0);
        }
        let kept = |&output: &RegisterId| {
            let (slot, content) = self.content_at(output, now);
            self.holds_content(output, slot, content)
        };
        errors.require(
            actor.outputs.iter().chain(&actor.updates).all(kept),
            format_args!("actor `{}`", actor.name),
            || "two of its outputs overlap".into(),
        );
    }

    /// Whether a slot holds a content whose bytes are as they were written.
    fn holds_content(&self, register: RegisterId, slot: usize, content: u64) -> bool {
        let found = self.contents[register.index()][slot];
        found.is_some_and(|(held, number)| {
            held == content
                && self.bears_number(register.index(), slot, number)
                && self.is_fenced(register.index(), slot, number)
        })
    }

    fn check_read(
        &self,
        actor: &Actor,
        register: RegisterId,
        now: Now,
        errors: &mut ErrorCollector,
    ) {
        let (slot, content) = self.content_at(register, now);
        let empty = self.program.registers[register.index()].slot_bytes == 0;
        let kept =
            empty || self.apart[register.index()] || self.holds_content(register, slot, content);
        errors.require(kept, format_args!("actor `{}`", actor.name), || {
            let name = &self.program.registers[register.index()].name;
            let Now { step, microbatch } = now;
            format!(
                "at microbatch {microbatch} of step {step} reads {register} `{name}`, whose bytes hold something else"
            )
        });
    }

    /// The number that an output's bytes keep, where the actor leaves them as its input has them. Where an output
    /// overlaps an input, that must be allowed in place.
    fn kept_bytes(
        &self,
        actor: &Actor,
        output: RegisterId,
        now: Now,
        errors: &mut ErrorCollector,
    ) -> Option<u64> {
        let shared = self.program.registers[output.index()].shares;
        let place = actor.outputs.iter().position(|&other| other == output);
        let mut allowed_pairs: Option<Vec<Pair>> = None;
        let mut kept = None;
        for (index, &input) in actor.inputs.iter().enumerate() {
            if !self.slots_overlap(output, input, now) {
                continue;
            }
            let pairs =
                allowed_pairs.get_or_insert_with(|| in_place_pairs(actor, self.plan.microbatches));
            let pair = pairs.iter().find(|pair| Some(pair.output) == place && pair.input == index);
            let memory = |register: RegisterId| self.memories[register.index()];
            let one = shared.is_some() && memory(output) == memory(input);
            let allowed = pair.filter(|_| one && self.hold_same_elements(input, output));
            errors.require(allowed.is_some(), format_args!("actor `{}`", actor.name), || {
                let name = |r: RegisterId| &self.program.registers[r.index()].name;
                format!("writes `{}` over its input `{}`", name(output), name(input))
            });
            if allowed.is_some_and(|pair| pair.same_bytes) {
                let (slot, _) = self.content_at(input, now);
                kept = self.contents[input.index()][slot].map(|(_, number)| number);
            }
        }
        kept
    }

    /// Whether two registers hold as many elements of one type. An operand of an elementwise op that has as many as the result
    /// is not spread, whatever dims of extent 1 it lacks: its elements are read where, and before, the result's are written.
    fn hold_same_elements(&self, input: RegisterId, output: RegisterId) -> bool {
        let [a, b] = [input, output].map(|register| &self.program.registers[register.index()]);
        let dtype = |register: &Register| self.plan.layouts[register.layout.index()].dtype;
        let elements = |register: &Register| register.shape.iter().product::<usize>();
        dtype(a) == dtype(b) && elements(a) == elements(b)
    }

    fn slots_overlap(&self, a: RegisterId, b: RegisterId, now: Now) -> bool {
        let range = |register: RegisterId| {
            self.slot_range(register.index(), self.content_at(register, now).0)
        };
        let (a, b) = (range(a), range(b));
        a.0 < b.1 && b.0 < a.1
    }

    /// First byte of a slot and one past its last.
    fn slot_range(&self, register: usize, slot: usize) -> (u64, u64) {
        slot_range(&self.program.registers[register], slot as u64)
    }

    /// Slot and number of the content of a register that is read or made now.
    fn content_at(&self, register: RegisterId, now: Now) -> (usize, u64) {
        let register = &self.program.registers[register.index()];
        if matches!(register.kind, RegisterKind::Variable { .. }) {
            return (0, 0);
        }
        let content = match register.rate {
            Rate::Step => now.step,
            Rate::Microbatch => now.step * self.plan.microbatches as u64 + now.microbatch,
        };
        ((content % u64::from(register.slots)) as usize, content)
    }

    /// Variables outlive the step.
    fn variables_last(&self, errors: &mut ErrorCollector) {
        for (index, register) in self.program.registers.iter().enumerate() {
            let variable = matches!(register.kind, RegisterKind::Variable { .. });
            let held = |&(_, number): &(u64, u64)| {
                self.bears_number(index, 0, number) && self.is_fenced(index, 0, number)
            };
            let lost = variable && !self.contents[index][0].as_ref().is_some_and(held);
            errors.require(!lost, format!("registers[{index}] `{}`", register.name), || {
                "is a variable, but something is written over it".into()
            });
        }
    }
}

/// The first of the registers that share a register's memory, one up, by register.
fn memory_of_registers(program: &Program) -> Vec<u32> {
    let mut memories: Vec<u32> = Vec::new();
    for (index, register) in program.registers.iter().enumerate() {
        // One that comes before, as is checked.
        let first = register.shares.and_then(|earlier| memories.get(earlier.index()));
        memories.push(first.copied().unwrap_or(index as u32 + 1));
    }
    memories
}

/// Whether contents lie in other slots at other steps.
fn rotates_slots(plan: &Plan, register: &Register) -> bool {
    register.slots > 1 && !plan.microbatches.is_multiple_of(register.slots as usize)
}

/// First byte of a slot and one past its last.
fn slot_range(register: &Register, slot: u64) -> (u64, u64) {
    let begin = register.offset + slot * register.slot_bytes;
    (begin, begin + register.slot_bytes)
}

/// The segments that each slot of each register covers, first and one past the last, and the number of all segments.
fn cut_segments(program: &Program) -> (Vec<Vec<(usize, usize)>>, usize) {
    let slots = |register: &Register| -> Vec<(u64, u64)> {
        (0..u64::from(register.slots)).map(|slot| slot_range(register, slot)).collect()
    };
    let ranges: Vec<Vec<(u64, u64)>> = program.registers.iter().map(slots).collect();
    let mut cuts: Vec<u64> = ranges.iter().flatten().flat_map(|&(a, b)| [a, b]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let place = |byte: u64| cuts.partition_point(|&cut| cut < byte);
    let cover = |ranges: &Vec<(u64, u64)>| {
        ranges.iter().map(|&(begin, end)| (place(begin), place(end))).collect()
    };
    (ranges.iter().map(cover).collect(), cuts.len())
}
