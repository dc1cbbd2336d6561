//! Opcodes with their modifiers.

use crate::kernel::math::Type;
use crate::kernel::math::floats::Rounding;

/// The parts of an opcode between its dots.
pub struct Opcode<'a> {
    /// The first.
    pub head: &'a str,
    /// All others.
    pub modifiers: Vec<&'a str>,
}

impl<'a> Opcode<'a> {
    /// Takes a text apart.
    pub fn of(text: &'a str) -> Opcode<'a> {
        let mut parts = text.split('.').flat_map(|part| part.split("::"));
        let head = parts.next().unwrap_or("");
        Opcode { head, modifiers: parts.collect() }
    }

    /// Whether it has a modifier.
    pub fn has(&self, modifier: &str) -> bool {
        self.modifiers.contains(&modifier)
    }

    /// Returns its types, in order.
    pub fn types(&self) -> Vec<Type> {
        self.modifiers.iter().filter_map(|modifier| Type::of(modifier)).collect()
    }

    /// Returns its last type, which is that of its operands.
    pub fn kind(&self) -> Result<Type, String> {
        self.types().last().copied().ok_or_else(|| String::from("the type is missing"))
    }

    /// Returns the rounding of the result to its type, if there is a modifier for it.
    pub fn rounding(&self) -> Option<Rounding> {
        self.modifiers.iter().find_map(|modifier| {
            Some(match *modifier {
                "rn" | "rni" => Rounding::Nearest,
                "rna" => Rounding::Away,
                "rz" | "rzi" => Rounding::Zero,
                "rm" | "rmi" => Rounding::Down,
                "rp" | "rpi" => Rounding::Up,
                _ => return None,
            })
        })
    }

    /// Whether the rounding is to an integer.
    pub fn to_integer(&self) -> bool {
        ["rni", "rzi", "rmi", "rpi"].iter().any(|modifier| self.has(modifier))
    }
}
