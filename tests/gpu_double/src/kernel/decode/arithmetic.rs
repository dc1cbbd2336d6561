//! Arithmetic, comparisons, moves.

use super::opcode::Opcode;
use super::{Decoded, Operands};
use crate::kernel::math::compare::compare;
use crate::kernel::math::floats::{self, Rounding};
use crate::kernel::math::{Type, convert, halves, integers};
use crate::kernel::program::{Action, Join, Source, Truth};
use crate::ptx::Operand;

pub fn action(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Action> {
    let special = match opcode.head {
        "mov" => Some(movement(opcode, operands)?),
        "selp" => Some(Action::Select {
            to: operands.register(0)?,
            of: [operands.source(1)?, operands.source(2)?],
            by: operands.truth(3)?,
        }),
        "slct" => Some(chosen_by_sign(opcode, operands)?),
        "setp" => Some(comparison(opcode, operands)?),
        "set" => Some(set(opcode, operands)?),
        "testp" => Some(test(opcode, operands)?),
        "cvt" => Some(conversion(opcode, operands)?),
        "bfi" => Some(Action::Insert {
            to: operands.register(0)?,
            from: [
                operands.source(1)?,
                operands.source(2)?,
                operands.source(3)?,
                operands.source(4)?,
            ],
            bits: 8 * opcode.kind()?.bytes() as u32,
        }),
        "and" | "or" | "xor" | "not" if opcode.kind()? == Type::Pred => {
            Some(logic(opcode, operands)?)
        }
        _ => None,
    };
    match special {
        Some(action) => Ok(action),
        None => plain(opcode, operands),
    }
}

/// Operations on registers alone, by the number of their operands.
fn plain(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Action> {
    let unknown = || String::from("the instruction is not known to the GPU double");
    let to = operands.register(0).map_err(|_| unknown())?;
    let source = |number| operands.source(number);
    match operands.len() {
        2 => Ok(Action::One(to, source(1)?, unary(opcode).ok_or_else(unknown)?)),
        3 => {
            let f = binary(opcode).ok_or_else(unknown)?;
            Ok(Action::Two(to, [source(1)?, source(2)?], f))
        }
        4 => {
            let f = ternary(opcode).ok_or_else(unknown)?;
            Ok(Action::Three(to, [source(1)?, source(2)?, source(3)?], f))
        }
        5 if opcode.head == "lop3" => {
            let f = integers::logic(operands.number(4)? as u32);
            Ok(Action::Three(to, [source(1)?, source(2)?, source(3)?], f))
        }
        _ => Err(unknown()),
    }
}

fn manner(opcode: &Opcode<'_>) -> floats::Manner {
    floats::Manner {
        rounding: opcode.rounding().unwrap_or(Rounding::Nearest),
        flush: opcode.has("ftz"),
        saturate: opcode.has("sat"),
    }
}

fn unary(opcode: &Opcode<'_>) -> Option<crate::kernel::math::One> {
    let kind = opcode.kind().ok()?;
    let name = if opcode.has("shiftamt") { "bfind.shiftamt" } else { opcode.head };
    integers::unary(name, kind)
        .or_else(|| floats::unary(name, kind, manner(opcode)))
        .or_else(|| halves::unary(name, kind))
}

/// The name of an operation with what belongs to it.
fn full_name(opcode: &Opcode<'_>, kind: Type) -> String {
    let parts = ["lo", "hi", "wide", "NaN"];
    let mut name = String::from(opcode.head);
    for part in parts.iter().filter(|part| opcode.has(part)) {
        name.push('.');
        name.push_str(&part.to_lowercase());
    }
    if opcode.has("sat") && kind.integer() {
        name.push_str(".sat");
    }
    name
}

/// Modifiers that change what an operation does, and that are not known here.
fn carries(opcode: &Opcode<'_>) -> bool {
    ["cc", "xorsign", "abs"].iter().any(|word| opcode.has(word))
}

fn binary(opcode: &Opcode<'_>) -> Option<crate::kernel::math::Two> {
    let kind = opcode.kind().ok()?;
    let name = full_name(opcode, kind);
    if carries(opcode) {
        return None;
    }
    integers::binary(&name, kind)
        .or_else(|| floats::binary(&name, kind, manner(opcode)))
        .or_else(|| halves::binary(&name, kind, opcode.has("sat")))
}

fn ternary(opcode: &Opcode<'_>) -> Option<crate::kernel::math::Three> {
    let kind = opcode.kind().ok()?;
    if carries(opcode) {
        return None;
    }
    match opcode.head {
        "fma" => floats::fused(kind, manner(opcode))
            .or_else(|| halves::fused(kind, opcode.has("sat"), opcode.has("relu"))),
        "mad" if !kind.integer() => floats::fused(kind, manner(opcode)),
        "shf" => Some(integers::funnel(opcode.has("l"), opcode.has("clamp"))),
        "prmt" => {
            let modes = ["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"];
            let mode = modes.into_iter().find(|mode| opcode.has(mode));
            integers::permute(mode.unwrap_or(""))
        }
        _ => integers::ternary(&full_name(opcode, kind), kind),
    }
}

fn movement(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Action> {
    let kind = opcode.kind()?;
    if kind == Type::Pred {
        return logic(opcode, operands);
    }
    if let Operand::Group(parts) = operands.get(1)? {
        let bits = 8 * kind.bytes() as u32 / parts.len() as u32;
        return Ok(Action::Pack { to: operands.register(0)?, parts: operands.sources(1)?, bits });
    }
    if let Operand::Group(parts) = operands.get(0)? {
        let bits = 8 * kind.bytes() as u32 / parts.len() as u32;
        let to: Decoded<Vec<_>> = parts.iter().map(|part| operands.maybe_register(part)).collect();
        return Ok(Action::Unpack { to: to?, from: operands.source(1)?, bits });
    }
    Ok(Action::Move(operands.register(0)?, operands.source(1)?))
}

fn logic(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Action> {
    let join = match opcode.head {
        "and" => Join::And,
        "or" => Join::Or,
        "xor" => Join::Xor,
        _ => Join::First,
    };
    let first = operands.truth(1)?;
    let second = if join == Join::First { first } else { operands.truth(2)? };
    let (to, negate) = (operands.predicate(0)?, opcode.head == "not");
    Ok(Action::Logic { to, join, of: [first, second], negate })
}

fn chosen_by_sign(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Action> {
    let of = [operands.source(1)?, operands.source(2)?, operands.source(3)?];
    let f = match opcode.kind()? {
        Type::F32 => {
            crate::kernel::math::three(|a: u64, b: u64, c: f32| if c >= 0.0 { a } else { b })
        }
        _ => crate::kernel::math::three(|a: u64, b: u64, c: i32| if c >= 0 { a } else { b }),
    };
    Ok(Action::Three(operands.register(0)?, of, f))
}

/// Decodes how a comparison is joined with another truth value, which is the last operand; `None` if it is not.
fn joined(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Option<(Join, Truth)>> {
    let joins = [("and", Join::And), ("or", Join::Or), ("xor", Join::Xor)];
    match joins.iter().find(|(name, _)| opcode.has(name)) {
        Some((_, join)) => Ok(Some((*join, operands.truth(3)?))),
        None => Ok(None),
    }
}

fn compared(opcode: &Opcode<'_>) -> Decoded<crate::kernel::math::compare::Compare> {
    let name = opcode.modifiers.first().copied().unwrap_or("");
    let found = compare(name, opcode.kind()?, opcode.has("ftz"));
    found.ok_or_else(|| String::from("the comparison is not known to the GPU double"))
}

fn comparison(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Action> {
    let to = match operands.get(0)? {
        Operand::Pair(p, q) => [operands.maybe_predicate(p)?, operands.maybe_predicate(q)?],
        p => [operands.maybe_predicate(p)?, None],
    };
    let of = [operands.source(1)?, operands.source(2)?];
    let (compare, join) = (compared(opcode)?, joined(opcode, operands)?);
    Ok(Action::Compare { to, of, compare, join })
}

fn set(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Action> {
    let truth = match opcode.types().first() {
        Some(Type::F32) => u64::from(1f32.to_bits()),
        Some(Type::U32 | Type::S32) => u64::from(u32::MAX),
        _ => return Err(String::from("this result is not known to the GPU double")),
    };
    let of = [operands.source(1)?, operands.source(2)?];
    let (compare, join) = (compared(opcode)?, joined(opcode, operands)?);
    Ok(Action::Set { to: operands.register(0)?, of, compare, join, truth })
}

fn test(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Action> {
    let name = opcode.modifiers.first().copied().unwrap_or("");
    let test = floats::test(name, opcode.kind()?).ok_or("the test is not known")?;
    Ok(Action::Test { to: operands.predicate(0)?, of: operands.source(1)?, test })
}

fn conversion(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Action> {
    let unknown = || String::from("the conversion is not known to the GPU double");
    let types = opcode.types();
    let [to, from] = types[..] else { return Err(unknown()) };
    let manner = convert::Manner {
        rounding: opcode.rounding().unwrap_or(Rounding::Nearest),
        integer: opcode.to_integer(),
        flush: opcode.has("ftz"),
        saturate: opcode.has("sat"),
        relu: opcode.has("relu"),
    };
    let register = operands.register(0)?;
    if operands.len() == 3 {
        let f = convert::pair(to, manner).filter(|_| from == Type::F32).ok_or_else(unknown)?;
        let of: [Source; 2] = [operands.source(1)?, operands.source(2)?];
        return Ok(Action::Two(register, of, f));
    }
    let f = convert::convert(to, from, manner).ok_or_else(unknown)?;
    Ok(Action::One(register, operands.source(1)?, f))
}
