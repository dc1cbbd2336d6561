//! Decoding, from PTX to [`Program`]: operands become registers, names become addresses, opcodes become functions. What
//! is not known is refused with its line, before anything runs.

mod arithmetic;
mod atomics;
mod control;
mod layout;
mod memory;
mod opcode;
mod together;

use std::collections::HashMap;

use super::program::{Action, Program, Room, Source, Special, Step, Truth};
use crate::ptx::{Function, Instruction, Malformed, Module, Operand};
use layout::Layout;
use opcode::Opcode;

/// Addresses of a module's variables in global memory, by name.
pub type Addresses = HashMap<String, u64>;

/// Decodes all functions of a module.
///
/// # Errors
/// The first instruction that is not known, or whose operands are not as expected.
pub fn program(module: &Module<'_>, text: &str, at: &Addresses) -> Result<Program, Malformed> {
    let layout = Layout::of(module)?;
    let mut code = Vec::new();
    for (function, frame) in module.functions.iter().zip(&layout.frames) {
        let decoder = Decoder { function, frame, layout: &layout, at };
        for instruction in &function.body {
            code.push(decoder.step(instruction)?);
        }
        // A body may end without a return.
        code.push(Step { guard: None, action: Action::Return, line: 0 });
    }
    Ok(Program { code, entries: layout.entries, text: String::from(text) })
}

/// The decoder of the instructions of one function.
struct Decoder<'m, 'a> {
    function: &'m Function<'a>,
    frame: &'m layout::Frame<'a>,
    layout: &'m Layout<'a>,
    at: &'m Addresses,
}

/// Decoding of one instruction: a text says what is wrong.
type Decoded<T> = Result<T, String>;

impl<'a> Decoder<'_, 'a> {
    fn step(&self, instruction: &Instruction<'a>) -> Result<Step, Malformed> {
        let line = instruction.line;
        let operands = Operands { decoder: self, list: &instruction.operands };
        let action = self.action(&Opcode::of(instruction.opcode), &operands);
        let guard = instruction.guard.map(|mut guard| {
            guard.predicate += self.frame.predicates;
            guard
        });
        let opcode = instruction.opcode;
        let action =
            action.map_err(|what| Malformed { line, what: format!("{opcode}: {what}") })?;
        Ok(Step { guard, action, line })
    }

    fn action(&self, opcode: &Opcode<'_>, operands: &Operands<'_, '_, 'a>) -> Decoded<Action> {
        for known in [control::action, memory::action, atomics::action, together::action] {
            if let Some(action) = known(opcode, operands)? {
                return Ok(action);
            }
        }
        arithmetic::action(opcode, operands)
    }
}

/// Operands of one instruction.
struct Operands<'d, 'm, 'a> {
    decoder: &'d Decoder<'m, 'a>,
    list: &'d [Operand<'a>],
}

impl<'a> Operands<'_, '_, 'a> {
    fn get(&self, number: usize) -> Decoded<&Operand<'a>> {
        self.list.get(number).ok_or_else(|| format!("operand {} is missing", number + 1))
    }

    fn len(&self) -> usize {
        self.list.len()
    }

    /// A register that is written.
    fn register(&self, number: usize) -> Decoded<u16> {
        self.register_of(self.get(number)?)
    }

    fn register_of(&self, operand: &Operand<'a>) -> Decoded<u16> {
        match operand {
            Operand::Register(register) => Ok(register + self.decoder.frame.values),
            other => Err(format!("{other:?} is no register")),
        }
    }

    /// A register that is written, or `_`.
    fn maybe_register(&self, operand: &Operand<'a>) -> Decoded<Option<u16>> {
        if *operand == Operand::Name("_") { Ok(None) } else { self.register_of(operand).map(Some) }
    }

    /// A predicate that is written.
    fn predicate(&self, number: usize) -> Decoded<u16> {
        self.maybe_predicate(self.get(number)?)?
            .ok_or_else(|| String::from("a predicate is missing"))
    }

    fn maybe_predicate(&self, operand: &Operand<'a>) -> Decoded<Option<u16>> {
        match operand {
            Operand::Predicate(number, _) => Ok(Some(number + self.decoder.frame.predicates)),
            Operand::Name("_") => Ok(None),
            other => Err(format!("{other:?} is no predicate")),
        }
    }

    /// A truth value that is read.
    fn truth(&self, number: usize) -> Decoded<Truth> {
        match self.get(number)? {
            Operand::Predicate(number, negated) => {
                Ok(Truth::Predicate(number + self.decoder.frame.predicates, *negated))
            }
            Operand::Number(value) => Ok(Truth::Constant(*value != 0)),
            other => Err(format!("{other:?} is no predicate")),
        }
    }

    /// A value that is read.
    fn source(&self, number: usize) -> Decoded<Source> {
        self.source_of(self.get(number)?)
    }

    fn source_of(&self, operand: &Operand<'a>) -> Decoded<Source> {
        match operand {
            Operand::Register(register) => {
                Ok(Source::Register(register + self.decoder.frame.values))
            }
            Operand::Number(value) => Ok(Source::Number(*value)),
            Operand::Name(name) => match special(name) {
                Some(special) => Ok(Source::Special(special)),
                None => Ok(Source::Number(self.variable(name)?.1)),
            },
            other => Err(format!("{other:?} is no value")),
        }
    }

    /// Operands in braces, or the one without them.
    fn group(&self, number: usize) -> Decoded<&[Operand<'a>]> {
        Ok(match self.get(number)? {
            Operand::Group(group) => group,
            other => std::slice::from_ref(other),
        })
    }

    fn sources(&self, number: usize) -> Decoded<Vec<Source>> {
        self.group(number)?.iter().map(|operand| self.source_of(operand)).collect()
    }

    fn registers(&self, number: usize) -> Decoded<Vec<u16>> {
        self.group(number)?.iter().map(|operand| self.register_of(operand)).collect()
    }

    /// A constant.
    fn number(&self, number: usize) -> Decoded<u64> {
        match self.get(number)? {
            Operand::Number(value) => Ok(*value),
            other => Err(format!("{other:?} is no constant")),
        }
    }

    /// Returns the memory of a variable, and its address there.
    fn variable(&self, name: &str) -> Decoded<(Room, u64)> {
        let decoder = self.decoder;
        let here = decoder.frame.names.get(name);
        let global = || decoder.at.get(name).map(|address| (Room::Global, *address));
        here.copied().or_else(global).ok_or_else(|| format!("`{name}` is not known"))
    }
}

fn special(name: &str) -> Option<Special> {
    let axis = |name: &str| match name.rsplit_once('.').map(|(_, axis)| axis) {
        Some("x") => 0,
        Some("y") => 1,
        _ => 2,
    };
    Some(match name.split('.').next()? {
        "%tid" => Special::Thread(axis(name)),
        "%ntid" => Special::Threads(axis(name)),
        "%ctaid" => Special::Block(axis(name)),
        "%nctaid" => Special::Blocks(axis(name)),
        "%laneid" => Special::Lane,
        "%warpid" => Special::Warp,
        "%nwarpid" => Special::Warps,
        "%lanemask_eq" => Special::LanesEqual,
        "%lanemask_lt" => Special::LanesLess,
        "%lanemask_le" => Special::LanesUpTo,
        "%lanemask_gt" => Special::LanesGreater,
        "%lanemask_ge" => Special::LanesFrom,
        "%clock" | "%clock64" | "%clock_hi" | "%globaltimer" | "%globaltimer_lo" => Special::Clock,
        "%smid" => Special::Multiprocessor,
        "%nsmid" => Special::Multiprocessors,
        "%dynamic_smem_size" => Special::DynamicShared,
        "%total_smem_size" => Special::TotalShared,
        "%gridid" | "%globaltimer_hi" => Special::Zero,
        _ => return None,
    })
}
