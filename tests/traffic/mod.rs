//! Measures the cost of kernels in sectors of card memory. The double executes the launches of an actor on arbitrary numbers, and counts
//! what each warp touches.

use std::collections::BTreeMap;

use gpu_double::{Argument, Card, Traffic};
use graphc::prelude::DType;
use graphc_ir::float8::{E4M3, E5M2};
use graphc_kernels::cuda::{
    self, Call, CallRegister, Entry, Kernel, Launch, LaunchMemory, MatrixProduct, Shard,
};

/// The architecture of the double's card.
const ARCHITECTURE: &str = "sm_90";

/// Sectors of loads and of stores.
pub type Sectors = [Traffic; 2];

/// Executes the kernels of a call; by their names what they touched.
pub fn sectors(
    call: &Call,
    operands: &[Shard],
    results: &[Shard],
    options: &[&str],
) -> BTreeMap<String, Sectors> {
    let mut memory = Memory::of(call, operands, results);
    let mut found: BTreeMap<String, Sectors> = BTreeMap::new();
    for launch in &call.launches {
        match launch {
            Launch::Kernel(kernel) => {
                let touched = memory.launch(kernel, options);
                let sum = found.entry(kernel.entry.clone()).or_default();
                for (sum, one) in sum.iter_mut().zip(touched) {
                    sum.sectors += one.sectors;
                    sum.least += one.least;
                }
            }
            Launch::Clear { place, bytes } => memory.clear(*place, *bytes),
            // A library's, for what stands behind it zeros.
            Launch::Product(MatrixProduct { rows, columns, batch, starts, operands, .. }) => {
                let elements = rows * columns * batch * starts.len();
                memory.clear(operands.out, elements * operands.made.size());
            }
            // Nothing of an actor stands behind one.
            Launch::Copy { .. } => {}
        }
    }
    found
}

/// The memory of a call.
struct Memory {
    card: Card,
    operands: Vec<u64>,
    results: Vec<u64>,
    scratch: u64,
    /// Numbers of the step, the step and the seed, the account of faults, the table.
    others: [u64; 4],
}

impl Memory {
    fn of(call: &Call, operands: &[Shard], results: &[Shard]) -> Self {
        let mut card = Card::new(1);
        let operands: Vec<u64> =
            operands.iter().map(|operand| card.upload(&content(operand))).collect();
        let results: Vec<u64> =
            results.iter().map(|result| card.allocate(content(result).len())).collect();
        let word = |entry: &Entry| match *entry {
            Entry::Place(CallRegister::Operand(index)) => operands[index],
            Entry::Place(CallRegister::Result(index)) => results[index],
            Entry::Number(number) => number,
        };
        let table = call.table.iter().flat_map(|entry| word(entry).to_le_bytes());
        let numbers = call.numbers.at_step(0, None).into_iter().flat_map(f32::to_le_bytes);
        let others = [numbers.collect(), vec![0; 16], vec![0; 32], table.collect::<Vec<u8>>()];
        let others = others.map(|bytes| card.upload(&padded(bytes)));
        let scratch = card.allocate(call.scratch.max(1));
        Self { card, operands, results, scratch, others }
    }

    fn address(&self, place: LaunchMemory) -> u64 {
        match place {
            LaunchMemory::Slot(CallRegister::Operand(index)) => self.operands[index],
            LaunchMemory::Slot(CallRegister::Result(index)) => self.results[index],
            LaunchMemory::Scratch(byte) => self.scratch + byte as u64,
        }
    }

    fn clear(&mut self, place: LaunchMemory, bytes: usize) {
        let address = self.address(place);
        self.card.write(address, &vec![0; bytes]).unwrap_or_else(|wrong| panic!("{wrong}"));
    }

    fn launch(&mut self, kernel: &Kernel, options: &[&str]) -> Sectors {
        let ptx = gpu_double::compile(&kernel.source, ARCHITECTURE, options)
            .unwrap_or_else(|log| panic!("{log}\n{}", kernel.source));
        let module = self.card.load(&ptx).unwrap_or_else(|error| panic!("{error}"));
        let [numbers, now, account, table] = self.others;
        let argument = |argument: &cuda::Argument| match *argument {
            cuda::Argument::Address(place) => Argument::Pointer(self.address(place)),
            cuda::Argument::Origin(..) => Argument::I64(0),
            cuda::Argument::Now => Argument::Pointer(now),
            cuda::Argument::Numbers => Argument::Pointer(numbers),
            cuda::Argument::Fault => Argument::Pointer(account),
            cuda::Argument::Call => Argument::U32(0),
            cuda::Argument::Constant(number) => Argument::U32(number),
            cuda::Argument::Registers => Argument::Pointer(0),
            cuda::Argument::Table => Argument::Pointer(table),
        };
        let arguments: Vec<Argument> = kernel.arguments.iter().map(argument).collect();
        let (size, shared) = ((kernel.grid, kernel.block), kernel.shared as usize);
        let done = self.card.launch(&module, &kernel.entry, size, shared, &arguments);
        let stats = done.unwrap_or_else(|refusal| panic!("{}: {refusal}", kernel.entry));
        [stats.loads, stats.stores]
    }
}

/// Small numbers, which are in range as indices, too.
fn content(shard: &Shard) -> Vec<u8> {
    let element = |index: usize| -> Vec<u8> {
        let (integer, float) = ((index % 7) as i64, (index % 13) as f32 / 16.0);
        match shard.ty.dtype {
            DType::F32 => float.to_le_bytes().to_vec(),
            // The upper half of a float, and of one of 16 bits between 1 and 2.
            DType::BF16 => float.to_le_bytes()[2..].to_vec(),
            DType::F16 => (0x3C00 + (index % 13) as u16).to_le_bytes().to_vec(),
            DType::I64 => integer.to_le_bytes().to_vec(),
            DType::I32 => (integer as i32).to_le_bytes().to_vec(),
            DType::U8 => vec![integer as u8],
            DType::F8E4M3 => vec![E4M3.encode(float)],
            DType::F8E5M2 => vec![E5M2.encode(float)],
            DType::Bool => vec![(index % 2) as u8],
        }
    };
    padded((0..shard.ty.elements()).flat_map(element).collect())
}

/// No allocation is empty.
fn padded(bytes: Vec<u8>) -> Vec<u8> {
    if bytes.is_empty() { vec![0] } else { bytes }
}
