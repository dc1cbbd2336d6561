//! One card in this process, for tests of kernels: no driver, no streams; each call is done when it returns.

use thiserror::Error;

use crate::kernel::{self, Launch, Loaded, Report, Stats};
use crate::memory::{Access, Clock, Space};
use crate::nvrtc::Ptx;
use crate::ptx::Malformed;

/// The only stream.
const STREAM: u32 = 0;

/// See the module.
#[derive(Default)]
pub struct Card {
    space: Space,
    clock: Clock,
    tick: u32,
    seed: u64,
}

/// A module on a card.
pub struct Module(Loaded);

/// An argument of a kernel.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Argument {
    Pointer(u64),
    I32(i32),
    U32(u32),
    I64(i64),
    U64(u64),
    F32(f32),
    F64(f64),
    U16(u16),
    U8(u8),
    /// A structure.
    Bytes(Vec<u8>),
}

/// The reason that a launch was not done.
#[derive(Clone, Debug, Error, PartialEq)]
#[allow(missing_docs)]
pub enum Refusal {
    /// The module has no entry of that name.
    #[error("the module has no kernel `{0}`")]
    NoKernel(String),
    /// The kernel takes other arguments.
    #[error("kernel `{name}` takes arguments of {expected:?} bytes, but gets {given:?}")]
    Arguments { name: String, expected: Vec<usize>, given: Vec<usize> },
    /// Too many threads or too much shared memory, or none.
    #[error("kernel `{name}`: {what}")]
    Size { name: String, what: String },
    /// The kernel did something wrong.
    #[error("{0}")]
    Wrong(Box<Report>),
}

impl Card {
    /// A card without modules. The seed chooses the order in which warps and blocks go on.
    pub fn new(seed: u64) -> Card {
        Card { seed, ..Card::default() }
    }

    /// Loads a module.
    ///
    /// # Errors
    /// PTX that is not known, with its line.
    pub fn load(&mut self, ptx: &Ptx) -> Result<Module, Malformed> {
        kernel::load(&ptx.0, &mut self.space, 0).map(Module)
    }

    /// Fresh memory, which nothing has written.
    pub fn allocate(&mut self, bytes: usize) -> u64 {
        self.space.allocate(0, bytes as u64).expect("the system has memory")
    }

    /// Fresh memory with these bytes.
    pub fn upload(&mut self, bytes: &[u8]) -> u64 {
        let address = self.allocate(bytes.len());
        self.space.poke(address, bytes);
        address
    }

    /// Sets bytes.
    ///
    /// # Errors
    /// They are not all in one allocation.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), String> {
        self.operation("a write by the test");
        let mut access = self.access();
        access.write(address, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    /// Bytes that were written.
    ///
    /// # Errors
    /// They are not all in one allocation, or nothing has written them.
    pub fn read(&mut self, address: u64, bytes: usize) -> Result<Vec<u8>, String> {
        self.operation("a read by the test");
        let mut access = self.access();
        Ok(access.read(address, bytes)?.to_vec())
    }

    /// Executes a kernel.
    ///
    /// # Errors
    /// There is no such kernel, it takes other arguments, or it did something wrong.
    pub fn launch(
        &mut self,
        module: &Module,
        name: &str,
        (grid, block): ([u32; 3], [u32; 3]),
        shared: usize,
        arguments: &[Argument],
    ) -> Result<Stats, Refusal> {
        let program = module.0.program.clone();
        let entry = program.entries.get(name);
        let entry = entry.ok_or_else(|| Refusal::NoKernel(String::from(name)))?;
        let bytes: Vec<Vec<u8>> = arguments.iter().map(Argument::bytes).collect();
        let expected: Vec<usize> = entry.arguments.iter().map(|(_, bytes)| *bytes).collect();
        let given: Vec<usize> = bytes.iter().map(Vec::len).collect();
        if expected != given {
            return Err(Refusal::Arguments { name: String::from(name), expected, given });
        }
        entry.check(grid, block, shared).map_err(|what| {
            let name = String::from(name);
            Refusal::Size { name, what }
        })?;
        let arguments = entry.pack(bytes.iter().map(Vec::as_slice));
        let name = String::from(name);
        let launch = Launch { program, name, grid, block, shared, arguments };
        self.operation(&format!("kernel {}", launch.name));
        let number = self.seed.wrapping_add(u64::from(self.tick));
        let seed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        kernel::run(&launch, &mut self.access(), seed).map_err(Refusal::Wrong)
    }

    /// The next operation: all before it is done.
    fn operation(&mut self, name: &str) {
        self.clock.advance(STREAM, self.tick);
        self.tick += 1;
        self.space.operations().add(STREAM, self.tick, String::from(name));
    }

    fn access(&mut self) -> Access<'_> {
        let operation = self.space.operations().latest();
        Access { space: &mut self.space, operation, clock: &self.clock, device: Some(0) }
    }
}

impl Argument {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Argument::Pointer(value) | Argument::U64(value) => value.to_le_bytes().to_vec(),
            Argument::I32(value) => value.to_le_bytes().to_vec(),
            Argument::U32(value) => value.to_le_bytes().to_vec(),
            Argument::I64(value) => value.to_le_bytes().to_vec(),
            Argument::F32(value) => value.to_le_bytes().to_vec(),
            Argument::F64(value) => value.to_le_bytes().to_vec(),
            Argument::U16(value) => value.to_le_bytes().to_vec(),
            Argument::U8(value) => vec![*value],
            Argument::Bytes(bytes) => bytes.clone(),
        }
    }
}
