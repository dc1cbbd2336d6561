//! PTX as text: what NVRTC makes is read into functions of instructions whose registers and labels are resolved. What
//! instructions mean is not known here. Start reading with [`parse`].

mod declarations;
mod function;
mod lexer;
mod scopes;

use thiserror::Error;

pub use function::{Function, Guard, Instruction, Operand};

/// A module: functions and variables.
#[derive(Debug, Default)]
pub struct Module<'a> {
    /// `sm_90` and the like.
    pub target: &'a str,
    /// Variables outside of functions.
    pub variables: Vec<Variable<'a>>,
    /// Entries and device functions that have a body.
    pub functions: Vec<Function<'a>>,
}

/// The memory of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Memory of the card.
    Global,
    /// Memory of the card that kernels only read.
    Constant,
    /// Memory of a block.
    Shared,
    /// Memory of a thread.
    Local,
    /// Arguments and results.
    Param,
}

/// A variable with what it holds at first.
#[derive(Clone, Debug)]
pub struct Variable<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its memory.
    pub place: Place,
    /// Bytes that its address is a multiple of.
    pub align: usize,
    /// Size; 0 for shared memory whose size is told at launch.
    pub bytes: usize,
    /// The first bytes, for variables with an initializer.
    pub data: Option<Vec<u8>>,
    /// Addresses of other variables in it: where, and whose.
    pub addresses: Vec<(usize, &'a str)>,
}

/// Text that is not PTX as it is known here.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("PTX line {line}: {what}")]
pub struct Malformed {
    /// The line, from 1.
    pub line: u32,
    /// The text of the error.
    pub what: String,
}

/// Reads a module.
///
/// # Errors
/// The first line that cannot be read, and why.
pub fn parse(text: &str) -> Result<Module<'_>, Malformed> {
    declarations::module(&mut lexer::Tokens::new(text)?)
}
