//! Decoding of what lanes of a warp do together: shuffles, votes, matches, sums, products of matrices.

use super::opcode::Opcode;
use super::{Decoded, Operands};
use crate::kernel::math::Type;
use crate::kernel::program::{
    Action, Answer, Product, Question, Reduction, Shuffle, Together, Way,
};
use crate::ptx::Operand;

pub fn action(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Option<Action>> {
    let together = match opcode.head {
        "shfl" => Together::Shuffle(shuffle(opcode, operands)?),
        "vote" => vote(opcode, operands)?,
        "match" => matching(opcode, operands)?,
        "redux" => Together::Reduce {
            how: reduction(opcode)?,
            kind: opcode.kind()?,
            to: operands.register(0)?,
            value: operands.source(1)?,
        },
        "elect" => elect(operands)?,
        "bar" | "barrier" => Together::Barrier,
        "activemask" => return Ok(Some(Action::ActiveLanes(operands.register(0)?))),
        "mma" => return Ok(Some(Action::Product(product(opcode, operands)?))),
        _ => return Ok(None),
    };
    if !opcode.has("sync") && opcode.head != "barrier" {
        return Err(String::from("without members it is not known to the GPU double"));
    }
    Ok(Some(Action::Together(together, operands.source(operands.len() - 1)?)))
}

fn shuffle(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Shuffle> {
    let way = match () {
        () if opcode.has("up") => Way::Up,
        () if opcode.has("down") => Way::Down,
        () if opcode.has("bfly") => Way::Butterfly,
        () if opcode.has("idx") => Way::Index,
        () => return Err(String::from("the way is missing")),
    };
    let to = match operands.get(0)? {
        Operand::Pair(to, ok) => (operands.register_of(to)?, operands.maybe_predicate(ok)?),
        to => (operands.register_of(to)?, None),
    };
    let source = |number| operands.source(number);
    Ok(Shuffle { way, to, operands: [source(1)?, source(2)?, source(3)?, source(4)?] })
}

fn vote(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Together> {
    let question = match () {
        () if opcode.has("all") => Question::All,
        () if opcode.has("any") => Question::Any,
        () if opcode.has("uni") => Question::Uniform,
        () => Question::Ballot,
    };
    let to = match question {
        Question::Ballot => Answer::Register(operands.register(0)?),
        _ => Answer::Predicate(operands.predicate(0)?),
    };
    Ok(Together::Vote { question, to, about: operands.truth(1)? })
}

fn matching(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Together> {
    let (to, same) = match operands.get(0)? {
        Operand::Pair(to, same) => (operands.register_of(to)?, operands.maybe_predicate(same)?),
        to => (operands.register_of(to)?, None),
    };
    let (all, kind) = (opcode.has("all"), opcode.kind()?);
    Ok(Together::Match { all, kind, to, same, value: operands.source(1)? })
}

fn reduction(opcode: &Opcode<'_>) -> Decoded<Reduction> {
    Ok(match () {
        () if opcode.has("add") => Reduction::Add,
        () if opcode.has("min") => Reduction::Least,
        () if opcode.has("max") => Reduction::Greatest,
        () if opcode.has("and") => Reduction::And,
        () if opcode.has("or") => Reduction::Or,
        () if opcode.has("xor") => Reduction::Xor,
        () => return Err(String::from("this reduction is not known")),
    })
}

fn elect(operands: &Operands<'_, '_, '_>) -> Decoded<Together> {
    let Operand::Pair(lane, to) = operands.get(0)? else {
        return Err(String::from("two results are expected"));
    };
    let to = operands.maybe_predicate(to)?.ok_or("a predicate is missing")?;
    Ok(Together::Elect { lane: operands.maybe_register(lane)?, to })
}

fn product(opcode: &Opcode<'_>, operands: &Operands<'_, '_, '_>) -> Decoded<Product> {
    let shapes = [("m16n8k4", 4), ("m16n8k8", 8), ("m16n8k16", 16), ("m16n8k32", 32)];
    let inner = shapes.iter().find(|(name, _)| opcode.has(name)).map(|(_, inner)| *inner);
    let inner = inner.ok_or("this shape is not known to the GPU double")?;
    let types = opcode.types();
    let [to, a, b, sum] = types[..] else { return Err(String::from("four types are expected")) };
    let floats = matches!(a, Type::F16 | Type::Bf16 | Type::Tf32) && a == b;
    let ordered = opcode.has("row") && opcode.has("col");
    if !floats || !ordered || !matches!((to, sum), (Type::F32, Type::F32) | (Type::F16, Type::F16))
    {
        return Err(String::from("these types are not known to the GPU double"));
    }
    let product = Product {
        to: operands.registers(0)?,
        a: operands.sources(1)?,
        b: operands.sources(2)?,
        c: operands.sources(3)?,
        inner,
        factors: a,
        sums: (sum, to),
    };
    let per = if a == Type::Tf32 { 1 } else { 2 };
    let counts = (product.a.len() * 32 * per, product.b.len() * 32 * per);
    let right = counts == (16 * inner, 8 * inner) && product.to.len() == product.c.len();
    if right {
        Ok(product)
    } else {
        Err(String::from("the operands have too many or too few parts"))
    }
}
