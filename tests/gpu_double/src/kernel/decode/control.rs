//! Branches, calls, returns, barriers of blocks, fences.

use super::opcode::Opcode;
use super::{Decoded, Operands};
use crate::kernel::program::{Action, Barrier, Call, Source, Tell};
use crate::ptx::Operand;

pub fn action(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Option<Action>> {
    Ok(Some(match opcode.head {
        "bra" => Action::Branch(target(operands, 0)?),
        "brx" => Action::BranchTable(operands.source(0)?, table(operands)?),
        "" => Action::Nothing,
        "call" => call(operands)?,
        "ret" => Action::Return,
        "exit" => Action::Exit,
        "trap" | "brkpt" => Action::Trap,
        "bar" | "barrier" if opcode.has("warp") => return Ok(None),
        "bar" | "barrier" => Action::Barrier(barrier(opcode, operands)?),
        "membar" | "fence" => Action::Fence,
        "nanosleep" | "prefetch" | "prefetchu" | "pmevent" | "griddepcontrol" | "discard"
        | "applypriority" | "setmaxnreg" => Action::Nothing,
        _ => return Ok(None),
    }))
}

fn target(operands: &Operands<'_, '_, '_>, number: usize) -> Decoded<u32> {
    match operands.get(number)? {
        Operand::Target(at) => Ok(at + operands.decoder.frame.start),
        other => Err(format!("{other:?} is no label")),
    }
}

fn table(operands: &Operands<'_, '_, '_>) -> Decoded<Vec<u32>> {
    let Operand::Target(at) = operands.get(1)? else {
        return Err(String::from("the table of labels is missing"));
    };
    let table = &operands.decoder.function.body[*at as usize];
    let list = Operands { decoder: operands.decoder, list: &table.operands };
    (0..table.operands.len()).map(|number| target(&list, number)).collect()
}

fn call(operands: &Operands<'_, '_, '_>) -> Decoded<Action> {
    let name = operands.list.iter().position(|operand| matches!(operand, Operand::Name(_)));
    let at = name.ok_or("calls through pointers are not known to the GPU double")?;
    let Operand::Name(name) = operands.get(at)? else { return Err(String::from("no function")) };
    let layout = operands.decoder.layout;
    let unknown = || format!("the function `{name}` is not known to the GPU double");
    let frame = layout.frame(name).ok_or_else(unknown)?;
    let arguments = match operands.list.get(at + 1) {
        Some(Operand::Group(list)) => copies(operands, list, &frame.parameters, true)?,
        _ => Vec::new(),
    };
    let results = match at.checked_sub(1).and_then(|before| operands.list.get(before)) {
        Some(Operand::Group(list)) => copies(operands, list, &frame.returns, false)?,
        _ => Vec::new(),
    };
    Ok(Action::Call(Call { target: frame.start, arguments, results }))
}

/// Pairs what the caller names with what the function has.
fn copies(
    operands: &Operands<'_, '_, '_>,
    list: &[Operand<'_>],
    places: &[(usize, usize)],
    there: bool,
) -> Decoded<Vec<(usize, usize, usize)>> {
    let pairs = list.iter().zip(places).map(|(operand, (at, bytes))| {
        let Operand::Name(name) = operand else {
            return Err(format!("{operand:?} is no argument in memory"));
        };
        let own = operands.variable(name)?.1 as usize;
        Ok(if there { (own, *at, *bytes) } else { (*at, own, *bytes) })
    });
    pairs.collect()
}

fn barrier(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Barrier> {
    if opcode.has("arrive") {
        return Err(String::from("barriers without a wait are not known to the GPU double"));
    }
    let reduces = opcode.has("red");
    // A reduction has its result before, and its truth value behind.
    let first = usize::from(reduces);
    let has_threads = operands.len() > 2 * first + 1;
    let number = if operands.len() > first { operands.source(first)? } else { Source::Number(0) };
    let threads = if has_threads { Some(operands.source(first + 1)?) } else { None };
    let tell = match reduces {
        true => Some((tell(opcode, operands)?, operands.truth(operands.len() - 1)?)),
        false => None,
    };
    Ok(Barrier { number, threads, tell })
}

fn tell(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Tell> {
    Ok(match () {
        () if opcode.has("and") => Tell::All(operands.predicate(0)?),
        () if opcode.has("or") => Tell::Any(operands.predicate(0)?),
        () => Tell::Count(operands.register(0)?),
    })
}
