//! Proves that memory is shared safely: executes two steps of each stream on contents instead of numbers. Writing a
//! content destroys every other content whose bytes overlap; reading one that was destroyed is an error. Registers
//! that several streams touch may overlap nothing, so each stream can be followed by itself.

use graphc_ir::ids::RegisterId;
use graphc_ir::plan::{Action, Actor, Plan, Program, Rate, Register, RegisterKind};

use super::Errors;
use crate::lower::in_place::pairs;
use crate::lower::touched_by;

/// Errors of one program that are reported.
const MOST_ERRORS: usize = 4;

/// Checks all programs.
pub fn check(plan: &Plan, errors: &mut Errors) {
    for (index, program) in plan.programs.iter().enumerate() {
        let mut found = Errors::default();
        let mut arena = Arena::new(plan, program);
        streams_apart(program, &arena.overlaps, &mut found);
        for stream in 0..program.streams.len() {
            arena.follow(stream, &mut found);
        }
        arena.variables_last(&mut found);
        for error in found.0.into_iter().take(MOST_ERRORS) {
            errors.add(format!("programs[{index}].{}", error.place), error.message);
        }
    }
}

fn streams_apart(program: &Program, overlaps: &[Vec<usize>], errors: &mut Errors) {
    let touched = touched_by(program);
    for (a, others) in overlaps.iter().enumerate() {
        for &b in others.iter().filter(|&&b| a < b) {
            let apart = touched[a].is_some() && touched[a] == touched[b];
            errors.require(apart, format!("registers[{a}]"), || {
                format!(
                    "`{}` and `{}` overlap, but are not of one stream alone",
                    program.registers[a].name, program.registers[b].name
                )
            });
        }
    }
}

struct Arena<'a> {
    plan: &'a Plan,
    program: &'a Program,
    /// The registers whose bytes overlap those of each.
    overlaps: Vec<Vec<usize>>,
    /// Registers of several streams, which overlap nothing.
    apart: Vec<bool>,
    /// The content in each slot of each register; `None`: destroyed or not made yet.
    contents: Vec<Vec<Option<u64>>>,
}

/// One action at a place in time.
#[derive(Clone, Copy)]
struct Now {
    step: u64,
    microbatch: u64,
}

impl<'a> Arena<'a> {
    fn new(plan: &'a Plan, program: &'a Program) -> Self {
        let contents = |register: &Register| {
            let variable = matches!(register.kind, RegisterKind::Variable { .. });
            vec![variable.then_some(0); register.slots as usize]
        };
        Self {
            plan,
            program,
            overlaps: overlaps(&program.registers),
            apart: touched_by(program).iter().map(Option::is_none).collect(),
            contents: program.registers.iter().map(contents).collect(),
        }
    }

    /// Executes two steps of a stream.
    fn follow(&mut self, stream: usize, errors: &mut Errors) {
        let program = self.program;
        let stream = &program.streams[stream];
        for step in 0..2 {
            for item in &stream.order {
                let now = Now { step, microbatch: u64::from(item.microbatch) };
                for actor in &stream.blocks[item.block as usize] {
                    self.act(&program.actors[actor.index()], now, errors);
                }
            }
        }
    }

    fn act(&mut self, actor: &Actor, now: Now, errors: &mut Errors) {
        for &read in actor.inputs.iter().chain(&actor.updates) {
            self.read(actor, read, now, errors);
        }
        let joins = matches!(actor.action, Action::Accumulate) && now.microbatch > 0;
        for &output in &actor.outputs {
            if joins {
                self.read(actor, output, now, errors);
            } else if self.may_write(actor, output, now, errors) {
                self.destroy(output, now);
            }
            let (slot, content) = self.content(output, now);
            self.contents[output.index()][slot] = Some(content);
        }
        for &update in &actor.updates {
            self.destroy(update, now);
            self.contents[update.index()][0] = Some(0);
        }
        let kept = |&output: &RegisterId| {
            let (slot, content) = self.content(output, now);
            self.contents[output.index()][slot] == Some(content)
        };
        errors.require(actor.outputs.iter().all(kept), format!("actor `{}`", actor.name), || {
            "two of its outputs overlap".into()
        });
    }

    fn read(&self, actor: &Actor, register: RegisterId, now: Now, errors: &mut Errors) {
        let (slot, content) = self.content(register, now);
        let found = self.contents[register.index()][slot];
        let empty = self.program.registers[register.index()].slot_bytes == 0;
        let kept = found == Some(content) || empty || self.apart[register.index()];
        errors.require(kept, format!("actor `{}`", actor.name), || {
            let name = &self.program.registers[register.index()].name;
            let Now { step, microbatch } = now;
            format!(
                "at microbatch {microbatch} of step {step} reads {register} `{name}`, whose bytes hold something else"
            )
        });
    }

    /// The first register of those that share one memory.
    fn memory_of(&self, mut register: RegisterId) -> RegisterId {
        // As many steps as there are registers suffice, whatever an edited plan says.
        for _ in &self.program.registers {
            match self.program.registers[register.index()].shares {
                Some(first) => register = first,
                None => break,
            }
        }
        register
    }

    /// Whether writing changes bytes; where an output overlaps an input, that must be allowed in place.
    fn may_write(&self, actor: &Actor, output: RegisterId, now: Now, errors: &mut Errors) -> bool {
        let shared = self.program.registers[output.index()].shares;
        let place = actor.outputs.iter().position(|&other| other == output);
        let pairs = pairs(actor, self.plan.microbatches);
        let mut changes = true;
        for (index, &input) in actor.inputs.iter().enumerate() {
            if !self.slots_overlap(output, input, now) {
                continue;
            }
            let pair = pairs.iter().find(|pair| Some(pair.output) == place && pair.input == index);
            let one = |other: RegisterId| self.memory_of(other) == self.memory_of(input);
            let allowed = pair.filter(|_| shared.is_some_and(one));
            errors.require(allowed.is_some(), format!("actor `{}`", actor.name), || {
                let name = |r: RegisterId| &self.program.registers[r.index()].name;
                format!("writes `{}` over its input `{}`", name(output), name(input))
            });
            changes &= !allowed.is_some_and(|pair| pair.same_bytes);
        }
        changes
    }

    fn slots_overlap(&self, a: RegisterId, b: RegisterId, now: Now) -> bool {
        let range =
            |register: RegisterId| self.range(register.index(), self.content(register, now).0);
        let (a, b) = (range(a), range(b));
        a.0 < b.1 && b.0 < a.1
    }

    /// Destroys everything that overlaps the slot that is written.
    fn destroy(&mut self, register: RegisterId, now: Now) {
        let (begin, end) = self.range(register.index(), self.content(register, now).0);
        for &other in &self.overlaps[register.index()] {
            for slot in 0..self.contents[other].len() {
                let (from, to) = self.range(other, slot);
                if from < end && begin < to {
                    self.contents[other][slot] = None;
                }
            }
        }
    }

    /// First byte of a slot and one past its last.
    fn range(&self, register: usize, slot: usize) -> (u64, u64) {
        let register = &self.program.registers[register];
        let begin = register.offset + slot as u64 * register.slot_bytes;
        (begin, begin + register.slot_bytes)
    }

    /// Slot and number of the content of a register that is read or made now.
    fn content(&self, register: RegisterId, now: Now) -> (usize, u64) {
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
    fn variables_last(&self, errors: &mut Errors) {
        for (index, register) in self.program.registers.iter().enumerate() {
            let variable = matches!(register.kind, RegisterKind::Variable { .. });
            let lost = variable && self.contents[index][0].is_none() && register.slot_bytes > 0;
            errors.require(!lost, format!("registers[{index}] `{}`", register.name), || {
                "is a variable, but something is written over it".into()
            });
        }
    }
}

/// For each register those whose bytes overlap its own.
fn overlaps(registers: &[Register]) -> Vec<Vec<usize>> {
    let end = |r: &Register| r.offset + r.slot_bytes * u64::from(r.slots);
    let mut order: Vec<usize> =
        (0..registers.len()).filter(|&r| registers[r].slot_bytes > 0).collect();
    order.sort_by_key(|&r| (registers[r].offset, r));
    let mut overlaps = vec![Vec::new(); registers.len()];
    for (place, &a) in order.iter().enumerate() {
        let behind = order[place + 1..].iter();
        for &b in behind.take_while(|&&b| registers[b].offset < end(&registers[a])) {
            overlaps[a].push(b);
            overlaps[b].push(a);
        }
    }
    overlaps
}
