//! Atomic changes of memory.

use super::memory::room;
use super::opcode::Opcode;
use super::{Decoded, Operands};
use crate::kernel::math::halves::Narrow;
use crate::kernel::math::{Brain, Half, Lane, Type};
use crate::kernel::program::{Action, Atomic, Source};

pub fn action(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Option<Action>> {
    let first = match opcode.head {
        "atom" => 1,
        "red" => 0,
        _ => return Ok(None),
    };
    if operands.group(first + 1)?.len() > 1 || opcode.has("v2") || opcode.has("v4") {
        return Err(String::from("vectors are not known to the GPU double here"));
    }
    let to = if first == 1 { operands.maybe_register(operands.get(0)?)? } else { None };
    let address = operands.address(first, room(opcode))?;
    let second =
        if operands.len() > first + 2 { operands.source(first + 2)? } else { Source::Number(0) };
    let values = [operands.source(first + 1)?, second];
    let (kind, change) = (opcode.kind()?, change(opcode)?);
    Ok(Some(Action::Atomic(Atomic { address, kind, to, operands: values, change })))
}

/// The new value from type, old value and operands.
type Change = fn(Type, u64, u64, u64) -> u64;

fn change(opcode: &Opcode<'_>) -> Decoded<Change> {
    let found: Option<(&str, Change)> = CHANGES.iter().copied().find(|(name, _)| opcode.has(name));
    found.map(|(_, change)| change).ok_or_else(|| String::from("this change is not known"))
}

const CHANGES: [(&str, Change); 10] = [
    ("add", add),
    ("min", |kind, old, value, _| extreme(kind, old, value, true)),
    ("max", |kind, old, value, _| extreme(kind, old, value, false)),
    ("and", |_, old, value, _| old & value),
    ("or", |_, old, value, _| old | value),
    ("xor", |_, old, value, _| old ^ value),
    ("exch", |_, _, value, _| value),
    ("cas", |kind, old, expected, value| if same(kind, old, expected) { value } else { old }),
    ("inc", |_, old, limit, _| if old as u32 >= limit as u32 { 0 } else { old + 1 }),
    (
        "dec",
        |_, old, limit, _| {
            if old as u32 == 0 || old as u32 > limit as u32 { limit } else { old - 1 }
        },
    ),
];

fn same(kind: Type, a: u64, b: u64) -> bool {
    let shift = 64 - 8 * kind.bytes() as u32;
    a << shift == b << shift
}

fn add(kind: Type, old: u64, value: u64, _: u64) -> u64 {
    match kind {
        Type::F32 => (f32::of(old) + f32::of(value)).bits(),
        Type::F64 => (f64::of(old) + f64::of(value)).bits(),
        Type::F16 => half_sum::<Half>(old, value),
        Type::Bf16 => half_sum::<Brain>(old, value),
        Type::F16x2 => pair_sum::<Half>(old, value),
        Type::Bf16x2 => pair_sum::<Brain>(old, value),
        _ => old.wrapping_add(value),
    }
}

fn half_sum<T: Narrow>(a: u64, b: u64) -> u64 {
    T::narrow(T::of(a).wide() + T::of(b).wide()).bits()
}

fn pair_sum<T: Narrow>(a: u64, b: u64) -> u64 {
    half_sum::<T>(a, b) & 0xFFFF | half_sum::<T>(a >> 16, b >> 16) << 16
}

fn extreme(kind: Type, old: u64, value: u64, least: bool) -> u64 {
    let less = match kind {
        Type::S32 => i32::of(value) < i32::of(old),
        Type::S64 => i64::of(value) < i64::of(old),
        Type::F32 => f32::of(value) < f32::of(old),
        Type::F64 => f64::of(value) < f64::of(old),
        Type::U64 => value < old,
        _ => (value as u32) < old as u32,
    };
    if less == least { value } else { old }
}
