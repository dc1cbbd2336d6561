//! Loads, stores, copies that run beside the kernel, matrices in shared memory, windows of addresses.

use super::opcode::Opcode;
use super::{Decoded, Operands};
use crate::kernel::math::Type;
use crate::kernel::math::two;
use crate::kernel::program::{
    Action, Address, LOCAL_WINDOW, Load, Room, SHARED_WINDOW, Source, Store,
};
use crate::ptx::Operand;

pub fn action(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Option<Action>> {
    Ok(Some(match opcode.head {
        "ld" | "ldu" => Action::Load(load(opcode, operands)?),
        "st" => Action::Store(store(opcode, operands)?),
        "cvta" => window(opcode, operands)?,
        "isspacep" => Action::IsRoom {
            to: operands.predicate(0)?,
            of: operands.source(1)?,
            room: room(opcode),
        },
        "cp" => copy(opcode, operands)?,
        "ldmatrix" => Action::LoadMatrix {
            to: operands.registers(0)?,
            address: operands.address(1, Room::Shared)?,
            transposed: matrix(opcode)?,
        },
        "stmatrix" => Action::StoreMatrix {
            from: operands.sources(1)?,
            address: operands.address(0, Room::Shared)?,
            transposed: matrix(opcode)?,
        },
        _ => return Ok(None),
    }))
}

/// The memory that an opcode names.
pub fn room(opcode: &Opcode<'_>) -> Room {
    match () {
        () if opcode.has("global") || opcode.has("const") => Room::Global,
        () if opcode.has("shared") => Room::Shared,
        () if opcode.has("local") => Room::Local,
        () if opcode.has("param") => Room::Arguments,
        () => Room::Generic,
    }
}

impl<'a> Operands<'_, '_, 'a> {
    /// An address. A name tells which memory where the opcode does not, as for arguments of calls.
    pub fn address(&self, number: usize, room: Room) -> Decoded<Address> {
        let Operand::Address(base, offset) = self.get(number)? else {
            return Err(format!("operand {} is no address", number + 1));
        };
        if let Operand::Name(name) = &**base {
            let (place, at) = self.variable(name)?;
            return Ok(Address { room: place, base: Source::Number(at), offset: *offset });
        }
        let base = self.source_of(base)?;
        // A register with the address of a parameter of a device function, which is in the thread's memory.
        let own = room == Room::Arguments && !self.decoder.function.entry;
        Ok(Address { room: if own { Room::Local } else { room }, base, offset: *offset })
    }
}

fn load(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Load> {
    let group = operands.group(0)?;
    let to: Decoded<Vec<_>> =
        group.iter().map(|operand| operands.maybe_register(operand)).collect();
    let address = operands.address(1, room(opcode))?;
    Ok(Load { address, kind: wide_kind(opcode)?, to: to?, atomic: together(opcode) })
}

fn store(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Store> {
    let address = operands.address(0, room(opcode))?;
    let from = operands.sources(1)?;
    Ok(Store { address, kind: wide_kind(opcode)?, from, atomic: together(opcode) })
}

fn wide_kind(opcode: &Opcode<'_>) -> Decoded<Type> {
    match opcode.kind()? {
        Type::B128 => Err(String::from("values of 128 bits are not known to the GPU double")),
        kind => Ok(kind),
    }
}

/// Whether others may do the same at the same time.
fn together(opcode: &Opcode<'_>) -> bool {
    ["volatile", "relaxed", "acquire", "release", "mmio"].iter().any(|word| opcode.has(word))
}

/// Addresses of shared and local memory have windows among generic ones; global ones are the same.
fn window(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Action> {
    let (to, from) = (operands.register(0)?, operands.source(1)?);
    let base = match room(opcode) {
        Room::Shared => SHARED_WINDOW,
        Room::Local => LOCAL_WINDOW,
        _ => return Ok(Action::Move(to, from)),
    };
    let change = match opcode.has("to") {
        true => two(|address: u64, base: u64| address.wrapping_sub(base)),
        false => two(|address: u64, base: u64| address.wrapping_add(base)),
    };
    Ok(Action::Two(to, [from, Source::Number(base)], change))
}

fn copy(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Action> {
    let plain = opcode.has("async") && !opcode.has("bulk") && !opcode.has("mbarrier");
    match () {
        () if !plain => Err(String::from("this copy is not known to the GPU double")),
        () if opcode.has("commit_group") => Ok(Action::CopyCommit),
        () if opcode.has("wait_group") => Ok(Action::CopyWait(operands.number(0)? as usize)),
        () if opcode.has("wait_all") => Ok(Action::CopyWait(0)),
        () => {
            let to = operands.address(0, Room::Shared)?;
            let from = operands.address(1, Room::Global)?;
            let bytes = operands.number(2)? as usize;
            // A cache policy is an operand, too.
            let policy = usize::from(opcode.has("cache_hint"));
            let given = (operands.len() > 3 + policy).then(|| operands.source(3)).transpose()?;
            Ok(Action::CopyAsync { to, from, bytes, given })
        }
    }
}

fn matrix(opcode: &Opcode<'_>) -> Decoded<bool> {
    match opcode.has("m8n8") && opcode.has("b16") {
        true => Ok(opcode.has("trans")),
        false => Err(String::from("this shape is not known to the GPU double")),
    }
}
