//! Decoded kernels: what each instruction does, ready to be done.

use std::collections::BTreeMap;

use super::math::compare::Compare;
use super::math::{One, Three, Two, Type};
use crate::ptx::Guard;

/// A register of the machine that lanes can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Special {
    Thread(usize),
    Threads(usize),
    Block(usize),
    Blocks(usize),
    Lane,
    Warp,
    Warps,
    LanesEqual,
    LanesLess,
    LanesUpTo,
    LanesGreater,
    LanesFrom,
    Clock,
    Multiprocessor,
    Multiprocessors,
    DynamicShared,
    TotalShared,
    Zero,
}

/// The source of an operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    /// A register.
    Register(u16),
    /// A constant.
    Number(u64),
    /// A register of the machine.
    Special(Special),
}

/// The source of a truth value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Truth {
    /// A predicate, and whether it is negated.
    Predicate(u16, bool),
    /// Always the same.
    Constant(bool),
}

/// The operation that joins two truth values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Join {
    And,
    Or,
    Xor,
    First,
}

/// Memory that an address is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Memory of a card, or pinned memory of the host.
    Global,
    /// Memory of a block.
    Shared,
    /// Memory of a thread.
    Local,
    /// The kernel's arguments.
    Arguments,
    /// Any but arguments, by the address.
    Generic,
}

/// An address: base and offset.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Address {
    /// The memory.
    pub room: Room,
    /// The source of the base.
    pub base: Source,
    /// The offset, which is added to the base.
    pub offset: i64,
}

/// A load of one value or of several that follow each other.
#[derive(Debug)]
pub struct Load {
    /// The address to read from.
    pub address: Address,
    /// The type of each value in memory.
    pub kind: Type,
    /// The registers to write to; `None` for a value that is not kept.
    pub to: Vec<Option<u16>>,
    /// Whether others may write at the same time.
    pub atomic: bool,
}

/// A store of one value or of several that follow each other.
#[derive(Debug)]
pub struct Store {
    /// The address to write to.
    pub address: Address,
    /// The type of each value in memory.
    pub kind: Type,
    /// The sources of the values.
    pub from: Vec<Source>,
    /// Whether others may read at the same time.
    pub atomic: bool,
}

/// A change that nothing comes between: the new value from the old and one or two operands.
pub struct Atomic {
    /// The address of the value.
    pub address: Address,
    /// The type of the value in memory.
    pub kind: Type,
    /// The register for the old value.
    pub to: Option<u16>,
    /// Operands.
    pub operands: [Source; 2],
    /// The new value.
    pub change: fn(Type, u64, u64, u64) -> u64,
}

/// The way in which a shuffle chooses lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Way {
    Up,
    Down,
    Butterfly,
    Index,
}

/// An exchange between lanes.
#[derive(Debug)]
pub struct Shuffle {
    /// The choice of the lanes.
    pub way: Way,
    /// The register for the value, and the predicate for whether the lane was in range.
    pub to: (u16, Option<u16>),
    /// Value, lane or distance, clamp and segment, members.
    pub operands: [Source; 4],
}

/// A question to all members of a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Question {
    All,
    Any,
    Uniform,
    Ballot,
}

/// The operation that joins values of lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Reduction {
    Add,
    Least,
    Greatest,
    And,
    Or,
    Xor,
}

/// Something that members of a warp do together.
pub enum Together {
    /// Waits for all members.
    Barrier,
    /// An exchange.
    Shuffle(Shuffle),
    /// A question about a truth value; the answer is a predicate or a register.
    Vote { question: Question, to: Answer, about: Truth },
    /// Finds the members that have the same value.
    Match { all: bool, kind: Type, to: u16, same: Option<u16>, value: Source },
    /// One value of all.
    Reduce { how: Reduction, kind: Type, to: u16, value: Source },
    /// One of the members.
    Elect { lane: Option<u16>, to: u16 },
}

/// The target of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Answer {
    Predicate(u16),
    Register(u16),
}

/// A barrier of a block.
#[derive(Debug)]
pub struct Barrier {
    /// Its number.
    pub number: Source,
    /// The number of threads that it waits for; all of the block if it does not say.
    pub threads: Option<Source>,
    /// The result about a truth value of all threads that it tells them.
    pub tell: Option<(Tell, Truth)>,
}

/// The result that a barrier tells, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Tell {
    All(u16),
    Any(u16),
    Count(u16),
}

/// A call of a device function: bytes of the thread's memory that are copied there and back.
#[derive(Debug)]
pub struct Call {
    /// First instruction.
    pub target: u32,
    /// The arguments: from, to, bytes.
    pub arguments: Vec<(usize, usize, usize)>,
    /// The results: from, to, bytes.
    pub results: Vec<(usize, usize, usize)>,
}

/// A product of small matrices by a warp: rows of the result are 16, columns 8.
pub struct Product {
    /// Registers of the result, and of its operands.
    pub to: Vec<u16>,
    /// First factor.
    pub a: Vec<Source>,
    /// Second factor.
    pub b: Vec<Source>,
    /// The summand.
    pub c: Vec<Source>,
    /// Inner extent.
    pub inner: usize,
    /// Type of the factors.
    pub factors: Type,
    /// Types of what is added and of the result.
    pub sums: (Type, Type),
}

/// The effect of an instruction.
#[allow(missing_docs)]
pub enum Action {
    Nothing,
    One(u16, Source, One),
    Two(u16, [Source; 2], Two),
    Three(u16, [Source; 3], Three),
    Insert { to: u16, from: [Source; 4], bits: u32 },
    Move(u16, Source),
    Compare { to: [Option<u16>; 2], of: [Source; 2], compare: Compare, join: Option<(Join, Truth)> },
    Set { to: u16, of: [Source; 2], compare: Compare, join: Option<(Join, Truth)>, truth: u64 },
    Test { to: u16, of: Source, test: One },
    Select { to: u16, of: [Source; 2], by: Truth },
    Logic { to: u16, join: Join, of: [Truth; 2], negate: bool },
    Pack { to: u16, parts: Vec<Source>, bits: u32 },
    Unpack { to: Vec<Option<u16>>, from: Source, bits: u32 },
    Branch(u32),
    BranchTable(Source, Vec<u32>),
    Call(Call),
    Return,
    Exit,
    Trap,
    Load(Load),
    Store(Store),
    Atomic(Atomic),
    Barrier(Barrier),
    Together(Together, Source),
    ActiveLanes(u16),
    Fence,
    CopyAsync { to: Address, from: Address, bytes: usize, given: Option<Source> },
    CopyCommit,
    CopyWait(usize),
    LoadMatrix { to: Vec<u16>, address: Address, transposed: bool },
    StoreMatrix { from: Vec<Source>, address: Address, transposed: bool },
    Product(Product),
    IsRoom { to: u16, of: Source, room: Room },
}

/// One instruction.
pub struct Step {
    /// The predicate under which it is executed; always if there is none.
    pub guard: Option<Guard>,
    /// The effect.
    pub action: Action,
    /// Line in the PTX.
    pub line: u32,
}

/// An entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// First instruction.
    pub start: u32,
    /// Offset and size of each argument.
    pub arguments: Vec<(usize, usize)>,
    /// Registers of its threads, with those of functions that it may call.
    pub values: usize,
    /// Predicates, likewise.
    pub predicates: usize,
    /// Bytes of a thread's own memory.
    pub local: usize,
    /// Bytes of shared memory that the kernel declares.
    pub shared: usize,
    /// Most threads of a block.
    pub most_threads: u32,
    /// The position of the shared memory whose size is told at launch.
    pub dynamic: usize,
}

/// Most bytes of shared memory of a block, as on an H100.
pub const MOST_SHARED: usize = 227 << 10;

impl Entry {
    /// Whether a launch may have this many blocks and threads, and so much shared memory beside the kernel's own.
    ///
    /// # Errors
    /// Returns the limit that is exceeded.
    pub fn check(&self, grid: [u32; 3], block: [u32; 3], shared: usize) -> Result<(), String> {
        let threads = block.iter().map(|extent| u64::from(*extent)).product::<u64>();
        if threads == 0 || block[2] > 64 || threads > u64::from(self.most_threads) {
            return Err(format!(
                "a block of {block:?} threads, where {} may be",
                self.most_threads
            ));
        }
        let blocks = grid.iter().map(|extent| u64::from(*extent)).product::<u64>();
        if blocks == 0 || grid[1] > 65535 || grid[2] > 65535 || blocks > 1 << 31 {
            return Err(format!("a grid of {grid:?} blocks"));
        }
        let all = self.dynamic.max(self.shared) + shared;
        if all > MOST_SHARED {
            return Err(format!("{all} bytes of shared memory, where {MOST_SHARED} may be"));
        }
        Ok(())
    }

    /// Arguments where the kernel looks for them. There must be as many as it takes, of those sizes.
    pub fn pack<'a>(&self, arguments: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
        let size = self.arguments.last().map_or(0, |(at, bytes)| at + bytes);
        let mut packed = vec![0; size];
        for ((at, bytes), argument) in self.arguments.iter().zip(arguments) {
            packed[*at..at + bytes].copy_from_slice(argument);
        }
        packed
    }
}

/// A decoded module.
pub struct Program {
    /// All instructions of all functions.
    pub code: Vec<Step>,
    /// Entries by name.
    pub entries: BTreeMap<String, Entry>,
    /// The PTX, for messages.
    pub text: String,
}

impl Program {
    /// A line of the PTX, without spaces around it.
    pub fn line(&self, number: u32) -> &str {
        self.text.lines().nth(number.saturating_sub(1) as usize).unwrap_or("").trim()
    }
}

/// The first address of shared memory among generic ones.
pub const SHARED_WINDOW: u64 = 1 << 60;
/// The first address of a thread's memory among generic ones.
pub const LOCAL_WINDOW: u64 = 1 << 61;
