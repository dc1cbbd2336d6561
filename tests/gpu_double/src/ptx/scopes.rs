//! Names of registers: blocks in braces have names of their own, as inline assembler declares them.

use std::collections::HashMap;

use super::function::Operand;

/// Registers of a function: values of up to 64 bits, and predicates.
#[derive(Debug, Default)]
pub struct Registers {
    /// Number of registers.
    pub values: u32,
    /// Number of predicates.
    pub predicates: u32,
}

/// One declaration, e.g. `.reg .b32 %r<75>`.
struct Declared<'a> {
    prefix: &'a str,
    predicate: bool,
    first: u32,
    /// None for a single register of that name.
    count: Option<u32>,
}

/// Names that are visible, by blocks from the outermost.
#[derive(Default)]
pub struct Scopes<'a> {
    pub registers: Registers,
    open: Vec<u32>,
    parents: Vec<Option<u32>>,
    declared: Vec<Vec<Declared<'a>>>,
    labels: HashMap<(u32, &'a str), u32>,
}

impl<'a> Scopes<'a> {
    /// A block begins.
    pub fn enter(&mut self) {
        let number = self.parents.len() as u32;
        self.parents.push(self.open.last().copied());
        self.open.push(number);
        self.declared.push(Vec::new());
    }

    /// A block ends; whether it was not the last.
    pub fn leave(&mut self) -> bool {
        self.open.pop();
        self.declared.pop();
        !self.open.is_empty()
    }

    /// The innermost block.
    pub fn current(&self) -> u32 {
        self.open.last().copied().unwrap_or(0)
    }

    /// Declares a register, or `count` of them.
    pub fn declare(&mut self, prefix: &'a str, predicate: bool, count: Option<u32>) {
        let counter = match predicate {
            true => &mut self.registers.predicates,
            false => &mut self.registers.values,
        };
        let first = *counter;
        *counter += count.unwrap_or(1);
        if let Some(scope) = self.declared.last_mut() {
            scope.push(Declared { prefix, predicate, first, count });
        }
    }

    /// The register of a name.
    pub fn find(&self, name: &str) -> Option<Operand<'a>> {
        let mut declared = self.declared.iter().rev().flat_map(|scope| scope.iter().rev());
        declared.find_map(|declared| declared.register(name))
    }

    /// Notes where a label is.
    pub fn label(&mut self, name: &'a str, at: u32) {
        self.labels.insert((self.current(), name), at);
    }

    /// Returns the position of a label, seen from a block.
    pub fn target(&self, scope: u32, name: &str) -> Option<u32> {
        let mut scope = Some(scope);
        while let Some(number) = scope {
            if let Some(at) = self.labels.get(&(number, name)) {
                return Some(*at);
            }
            scope = self.parents[number as usize];
        }
        None
    }
}

impl<'a> Declared<'a> {
    fn register(&self, name: &str) -> Option<Operand<'a>> {
        let number = match self.count {
            None => (name == self.prefix).then_some(0)?,
            Some(count) => {
                let number = name.strip_prefix(self.prefix)?.parse::<u32>().ok()?;
                (number < count).then_some(number)?
            }
        };
        let number = (self.first + number) as u16;
        Some(match self.predicate {
            true => Operand::Predicate(number, false),
            false => Operand::Register(number),
        })
    }
}
