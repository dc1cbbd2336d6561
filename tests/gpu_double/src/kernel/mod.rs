//! Kernels: PTX that is decoded once and executed warp by warp, with all lanes of a warp at a time.
//!
//! Whether threads may touch the same bytes does not follow from the order in which they happen to be executed here:
//! barriers, fences and atomic accesses say what a thread knows of others. Start reading with [`load`] and [`run`], then
//! `block` and `step`.

mod access;
mod block;
mod decode;
mod lanes;
mod math;
mod matrix;
mod program;
mod report;
mod shared;
mod step;
mod told;
mod traffic;
mod warp;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::memory::{Access, Heard, Space};
use crate::ptx::{self, Malformed, Place};

pub use program::{Entry, MOST_SHARED, Program};
pub use report::{Report, Wrong};
pub use traffic::Traffic;

use block::Block;
use told::Told;
use warp::{Here, Warp};

/// A module on a card.
#[derive(Clone)]
pub struct Loaded {
    /// The program of its kernels.
    pub program: Arc<Program>,
    /// Its variables: address and bytes.
    pub variables: BTreeMap<String, (u64, usize)>,
}

/// A kernel with its arguments.
#[derive(Clone)]
pub struct Launch {
    /// The program that holds it.
    pub program: Arc<Program>,
    /// Its name.
    pub name: String,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of shared memory beside what the kernel declares.
    pub shared: usize,
    /// Arguments, each where its entry says.
    pub arguments: Vec<u8>,
}

/// The costs of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Instructions of all threads.
    pub instructions: u64,
    /// Loads of card memory, but for atomic ones.
    pub loads: Traffic,
    /// Stores.
    pub stores: Traffic,
}

/// Reads PTX and puts its variables into a card's memory.
///
/// # Errors
/// PTX that is not known, with its line.
pub fn load(text: &str, space: &mut Space, device: i32) -> Result<Loaded, Malformed> {
    let module = ptx::parse(text)?;
    let mut variables = BTreeMap::new();
    let mut at = decode::Addresses::new();
    let in_memory = |place| matches!(place, Place::Global | Place::Constant);
    for variable in module.variables.iter().filter(|variable| in_memory(variable.place)) {
        let what = String::from("the card has no memory for the module's variables");
        let address = space.allocate(device, variable.bytes.max(1) as u64);
        let address = address.ok_or(Malformed { line: 0, what })?;
        at.insert(String::from(variable.name), address);
        variables.insert(String::from(variable.name), (address, variable.bytes));
    }
    for variable in module.variables.iter().filter(|variable| in_memory(variable.place)) {
        let mut data = variable.data.clone().unwrap_or_else(|| vec![0; variable.bytes]);
        for (offset, name) in &variable.addresses {
            let offset = *offset..*offset + 8;
            let mut word = [0; 8];
            word.copy_from_slice(&data[offset.clone()]);
            let address = at.get(*name).copied().unwrap_or(0);
            let sum = u64::from_le_bytes(word).wrapping_add(address);
            data[offset].copy_from_slice(&sum.to_le_bytes());
        }
        space.poke(at[variable.name], &data);
    }
    let program = Arc::new(decode::program(&module, text, &at)?);
    Ok(Loaded { program, variables })
}

/// Executes all blocks of a launch, one after the other, in an order that the seed chooses.
pub fn run(launch: &Launch, memory: &mut Access<'_>, seed: u64) -> Result<Stats, Box<Report>> {
    let entry = &launch.program.entries[&launch.name];
    let blocks = launch.grid.iter().product::<u32>();
    let mut told = Told::of(blocks);
    let mut warps = Vec::new();
    let threads = launch.block.iter().product::<u32>();
    warps.resize_with(threads.div_ceil(32) as usize, Warp::default);
    let here = Here {
        threads: launch.block,
        blocks: launch.grid,
        shared: [entry.shared, launch.shared],
        ..Here::default()
    };
    let mut block = Block {
        program: &launch.program,
        arguments: &launch.arguments,
        argument: Vec::new(),
        memory,
        shared: shared::Shared::default(),
        here,
        local: entry.local,
        epoch: 0,
        known: Vec::new(),
        heard: Heard::default(),
        fenced: false,
        told: &mut told,
        random: seed,
        operands: [[0; 32]; 3],
    };
    for number in order(blocks, seed) {
        block.begin(number, entry, &mut warps);
        block.run(&mut warps).map_err(|fault| Box::new(block.report(&launch.name, fault)))?;
    }
    let Here { instructions, loads, stores, .. } = block.here;
    Ok(Stats { instructions, loads, stores })
}

/// Returns all numbers below a limit, in steps that the seed chooses.
fn order(blocks: u32, seed: u64) -> impl Iterator<Item = u32> {
    let count = u64::from(blocks);
    let start = seed % count.max(1);
    let step = (seed >> 32..).find(|step| divisor(*step, count) == 1).unwrap_or(1);
    (0..count).map(move |number| ((start + number * (step % count.max(1))) % count) as u32)
}

fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

impl Block<'_, '_> {
    /// Forgets the last block and prepares the next.
    fn begin(&mut self, number: u32, entry: &Entry, warps: &mut [Warp]) {
        let [x, y, _] = self.here.blocks;
        self.here.number = number;
        self.here.block = [number % x, number / x % y, number / x / y];
        let dynamic = if self.here.shared[1] > 0 { entry.dynamic } else { entry.shared };
        self.shared.reset(dynamic + self.here.shared[1]);
        self.epoch = 1;
        self.known.clear();
        self.known.resize(warps.len(), [0; 32]);
        self.heard = Heard::default();
        self.fenced = false;
        let threads = self.here.threads.iter().product::<u32>();
        for (number, warp) in (0..).zip(warps) {
            let live = (threads - 32 * number).min(32);
            let lanes = u32::MAX >> (32 - live);
            warp.reset(number, lanes, entry.start, [entry.values, entry.predicates, entry.local]);
            let [x, y, _] = self.here.threads;
            let linear = |lane: usize| 32 * number + lane as u32;
            let axis =
                |f: &dyn Fn(u32) -> u32| std::array::from_fn(|lane| u64::from(f(linear(lane))));
            warp.threads = [axis(&|t| t % x), axis(&|t| t / x % y), axis(&|t| t / x / y)];
        }
    }
}
