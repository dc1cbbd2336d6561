//! Runs the kernels of CUDA devices on a card that this process pretends to have, and compares them with the ops' oracles.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::HashMap;

use gpu_double::{Argument, Card, Module, Refusal};
use graphc_ir::op::{EvalContext, InPlace, Region};
use graphc_ir::ops::UnaryFunction;
use graphc_ir::types::DType;
use graphc_kernels::KernelError;
use graphc_kernels::cuda::{
    self, Activation, Call, CallRegister, Entry, Kernel, Launch, LaunchMemory, Matrix,
    MatrixProduct, Shard, Summed,
};

use crate::cases::Example;
use crate::common::{Case, Memory, bytes, memory, other_ways, pairs, shard};

/// The options with which kernels are compiled, as devices compile them.
const OPTIONS: [&str; 4] = ["--fmad=false", "--std=c++17", "-default-device", "-minimal"];
/// The architecture of the card.
const ARCHITECTURE: &str = "sm_90";
/// The number of the call among those of the device.
const CALL: u32 = 7;
/// Bytes of an account of faults.
const ACCOUNT: usize = 32;

/// Tries examples, where the compiler is installed.
pub fn check(examples: &[Example]) {
    let Some(mut bench) = bench() else { return };
    for Example { case, tolerance } in examples {
        bench.check(case, *tolerance);
    }
}

/// A card, and the kernels that were compiled for it.
pub struct Bench {
    card: Card,
    modules: HashMap<String, Module>,
}

/// The fault that a kernel reports: the kind, the index and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub call: u32,
    pub kind: u32,
    pub index: i64,
    pub position: u64,
}

/// A call's memory on the card.
struct Addresses {
    operands: Vec<u64>,
    results: Vec<u64>,
    scratch: u64,
    numbers: u64,
    now: u64,
    account: u64,
    table: u64,
}

/// A card; `None`, and a line that says so, where there is no compiler.
pub fn bench() -> Option<Bench> {
    if !gpu_double::nvrtc::is_installed() {
        println!("skipped: NVRTC is not installed");
        return None;
    }
    Some(Bench { card: Card::new(1), modules: HashMap::new() })
}

/// Prepares the call of a case.
pub fn prepare(case: &Case) -> Result<Call, KernelError> {
    let operands: Vec<Shard> = case.operands.iter().map(|(region, _)| shard(region)).collect();
    let results: Vec<Shard> = case.results.iter().map(shard).collect();
    cuda::prepare_op(&case.op, &operands, &results)
}

impl Bench {
    /// Checks a kernel against the oracle, and with results in the memory of operands against itself.
    pub fn check(&mut self, case: &Case, tolerance: f64) {
        let cx = EvalContext { seed: 5, step: 3 };
        for other in prepare(case).iter().flat_map(other_ways) {
            let found = self.execute(&other, case, &[], &cx).expect("no fault");
            case.compare(&found, &cx, tolerance);
        }
        let found = self.run(case, &[], &cx).unwrap_or_else(|fault| panic!("{case:?}: {fault:?}"));
        case.compare(&found, &cx, tolerance);
        for pair in pairs(case) {
            let shared = self.run(case, &[pair], &cx).expect("no fault");
            assert!(bits(&shared) == bits(&found), "{:?} {pair:?}", case.op);
        }
    }

    /// The results of a case, some of which lie in the memory of operands.
    pub fn run(
        &mut self,
        case: &Case,
        pairs: &[InPlace],
        cx: &EvalContext,
    ) -> Result<Vec<Memory>, Fault> {
        let call = prepare(case).unwrap_or_else(|error| panic!("{:?}: {error}", case.op));
        self.execute(&call, case, pairs, cx)
    }

    /// Executes a call on the operands of a case, and returns the results.
    pub fn execute(
        &mut self,
        call: &Call,
        case: &Case,
        pairs: &[InPlace],
        cx: &EvalContext,
    ) -> Result<Vec<Memory>, Fault> {
        let addresses = self.addresses(case, call, pairs, cx);
        let origins = Origins(case);
        for launch in &call.launches {
            self.launch(launch, &addresses, &origins, case.op.name());
        }
        if let Some(fault) = self.fault(&addresses) {
            return Err(fault);
        }
        let read = |(region, &address): (&Region, &u64)| {
            let bytes = region.rect.elements() * region.dtype.size();
            memory(region.dtype, &self.read(address, bytes))
        };
        Ok(case.results.iter().zip(&addresses.results).map(read).collect())
    }

    fn read(&mut self, address: u64, bytes: usize) -> Vec<u8> {
        match bytes {
            0 => Vec::new(),
            _ => self.card.read(address, bytes).unwrap_or_else(|wrong| panic!("{wrong}")),
        }
    }

    /// Returns the fault that was put into an account, if there is one.
    fn fault(&mut self, addresses: &Addresses) -> Option<Fault> {
        let account = self.read(addresses.account, ACCOUNT);
        let word = |at: usize| u32::from_le_bytes(account[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(account[at..at + 8].try_into().expect("8 bytes"));
        assert_eq!(word(0), word(12), "an account is finished");
        (word(0) != 0).then(|| Fault {
            call: word(4),
            kind: word(8),
            index: long(16) as i64,
            position: long(24),
        })
    }

    fn addresses(
        &mut self,
        case: &Case,
        call: &Call,
        pairs: &[InPlace],
        cx: &EvalContext,
    ) -> Addresses {
        let card = &mut self.card;
        let operands: Vec<u64> =
            case.operands.iter().map(|(_, memory)| card.upload(&padded(bytes(memory)))).collect();
        let result = |(index, region): (usize, &Region)| {
            let shared = pairs.iter().find(|pair| pair.result == index);
            match shared {
                Some(pair) => operands[pair.operand],
                None => card.allocate((region.rect.elements() * region.dtype.size()).max(1)),
            }
        };
        let results: Vec<u64> = case.results.iter().enumerate().map(result).collect();
        let word = |entry: &Entry| match *entry {
            Entry::Place(CallRegister::Operand(index)) => operands[index],
            Entry::Place(CallRegister::Result(index)) => results[index],
            Entry::Number(number) => number,
        };
        let table: Vec<u8> =
            call.table.iter().flat_map(|entry| word(entry).to_le_bytes()).collect();
        let numbers: Vec<u8> = call
            .numbers
            .at_step(cx.step, None)
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        Addresses {
            results,
            scratch: card.allocate(call.scratch.max(1)),
            numbers: card.upload(&padded(numbers)),
            now: card.upload(&[cx.step.to_le_bytes(), cx.seed.to_le_bytes()].concat()),
            account: card.upload(&[0; ACCOUNT]),
            table: card.upload(&padded(table)),
            operands,
        }
    }

    fn launch(
        &mut self,
        launch: &Launch,
        addresses: &Addresses,
        origins: &Origins<'_>,
        name: &str,
    ) {
        match launch {
            Launch::Kernel(kernel) => self
                .kernel(kernel, addresses, origins)
                .unwrap_or_else(|refusal| panic!("{name}: {refusal}\n{}", kernel.source)),
            Launch::Product(product) => self.product(product, addresses),
            Launch::Clear { place, bytes } => {
                self.write(addresses.of(*place), &vec![0; *bytes]);
            }
            Launch::Copy { bytes } => {
                let (from, to) = (addresses.operands[0], addresses.results[0]);
                if from != to {
                    let bytes = self.read(from, *bytes);
                    self.write(to, &bytes);
                }
            }
        }
    }

    fn write(&mut self, address: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.card.write(address, bytes).unwrap_or_else(|wrong| panic!("{wrong}"));
        }
    }

    fn kernel(
        &mut self,
        kernel: &Kernel,
        addresses: &Addresses,
        origins: &Origins<'_>,
    ) -> Result<(), Refusal> {
        if !self.modules.contains_key(&kernel.source) {
            let ptx = gpu_double::compile(&kernel.source, ARCHITECTURE, &OPTIONS)
                .unwrap_or_else(|log| panic!("{log}\n{}", kernel.source));
            let module = self.card.load(&ptx).unwrap_or_else(|error| panic!("{error}"));
            self.modules.insert(kernel.source.clone(), module);
        }
        let argument = |argument: &cuda::Argument| match *argument {
            cuda::Argument::Address(place) => Argument::Pointer(addresses.of(place)),
            cuda::Argument::Origin(slot, dim) => Argument::I64(origins.of(slot, dim)),
            cuda::Argument::Now => Argument::Pointer(addresses.now),
            cuda::Argument::Numbers => Argument::Pointer(addresses.numbers),
            cuda::Argument::Fault => Argument::Pointer(addresses.account),
            cuda::Argument::Call => Argument::U32(CALL),
            cuda::Argument::Constant(number) => Argument::U32(number),
            // Places in the table are addresses.
            cuda::Argument::Registers => Argument::Pointer(0),
            cuda::Argument::Table => Argument::Pointer(addresses.table),
        };
        let arguments: Vec<Argument> = kernel.arguments.iter().map(argument).collect();
        let (module, size) = (&self.modules[&kernel.source], (kernel.grid, kernel.block));
        let shared = kernel.shared as usize;
        self.card.launch(module, &kernel.entry, size, shared, &arguments).map(drop)
    }

    /// Products of matrices, by plain loops.
    fn product(&mut self, product: &MatrixProduct, addresses: &Addresses) {
        let dtype = product.operands.dtype;
        for start in &product.starts {
            for batch in 0..product.batch {
                let [a, b] =
                    [(0, product.a, product.operands.a), (1, product.b, product.operands.b)].map(
                        |(factor, matrix, place)| {
                            let extents = match factor {
                                0 => [product.rows, product.inner],
                                _ => [product.inner, product.columns],
                            };
                            let first = start[factor] + batch * matrix.stride;
                            self.matrix(dtype, matrix, extents, addresses.of(place), first)
                        },
                    );
                let mut out = Vec::new();
                for row in 0..product.rows {
                    for column in 0..product.columns {
                        let inner = 0..product.inner;
                        let terms = inner
                            .map(|k| a[row * product.inner + k] * b[k * product.columns + column]);
                        out.push(f64::from(terms.sum::<f64>() as f32));
                    }
                }
                self.end(product, addresses, &mut out);
                self.sums(product, addresses, [&a, &b, &out]);
                let first = start[2] + batch * product.out.stride;
                let made = product.operands.made;
                let address = addresses.of(product.operands.out) + (first * made.size()) as u64;
                self.write(address, &bytes(&Memory::of(made, &out)));
            }
        }
    }

    /// Applies the epilogue of a product to its sums.
    fn end(&mut self, product: &MatrixProduct, addresses: &Addresses, sums: &mut [f64]) {
        let (dtype, columns) = (product.operands.dtype, product.columns);
        let epilogue = product.epilogue;
        let mut summand = |place: Option<LaunchMemory>, count: usize| {
            let place = place?;
            Some(memory(dtype, &self.read(addresses.of(place), count * dtype.size())).values())
        };
        let added = summand(epilogue.added, sums.len());
        let bias = summand(epilogue.bias, columns);
        for (at, sum) in sums.iter_mut().enumerate() {
            *sum += added.as_ref().map_or(0.0, |added| added[at]);
            *sum += bias.as_ref().map_or(0.0, |bias| bias[at % columns]);
        }
        match (epilogue.activation, epilogue.kept) {
            (Activation::None, _) => {}
            (Activation::Relu, _) => apply(UnaryFunction::Relu, sums),
            (Activation::GeluTanh, kept) => {
                if let Some(kept) = kept {
                    self.write(addresses.of(kept), &bytes(&Memory::of(dtype, sums)));
                }
                apply(UnaryFunction::GeluTanh, sums);
            }
            (Activation::GeluTanhGrad, kept) => {
                let at = summand(kept, sums.len()).expect("what the gradient is taken at");
                sums.iter_mut().zip(at).for_each(|(sum, x)| *sum *= slope(x));
            }
        }
    }

    /// Sums beside a product.
    fn sums(&mut self, product: &MatrixProduct, addresses: &Addresses, parts: [&[f64]; 3]) {
        let Some((summed, place)) = product.epilogue.sums else { return };
        let [a, b, out] = parts;
        let MatrixProduct { rows, inner, columns, .. } = *product;
        let sum = |count: usize, of: &dyn Fn(usize) -> f64| (0..count).map(of).sum::<f64>();
        let sums: Vec<f64> = match summed {
            Summed::Result => (0..columns).map(|c| sum(rows, &|r| out[r * columns + c])).collect(),
            Summed::First => (0..rows).map(|r| sum(inner, &|k| a[r * inner + k])).collect(),
            Summed::Second => (0..columns).map(|c| sum(inner, &|k| b[k * columns + c])).collect(),
        };
        self.write(addresses.of(place), &bytes(&Memory::of(product.operands.dtype, &sums)));
    }

    /// A factor's elements, row-major.
    fn matrix(
        &mut self,
        dtype: DType,
        matrix: Matrix,
        [rows, columns]: [usize; 2],
        address: u64,
        first: usize,
    ) -> Vec<f64> {
        let [lines, length] = if matrix.by_columns { [columns, rows] } else { [rows, columns] };
        let line = |line: usize| {
            let start = address + ((first + line * matrix.leading) * dtype.size()) as u64;
            memory(dtype, &self.read(start, length * dtype.size())).values()
        };
        let stored: Vec<f64> = (0..lines).flat_map(line).collect();
        let of_column = |at: usize| stored[at % columns * rows + at / columns];
        match matrix.by_columns {
            true => (0..rows * columns).map(of_column).collect(),
            false => stored,
        }
    }
}

fn apply(function: UnaryFunction, values: &mut [f64]) {
    values.iter_mut().for_each(|value| *value = function.apply(*value));
}

/// The slope of the tanh form of GELU.
fn slope(x: f64) -> f64 {
    let (c, a) = ((2.0 / std::f64::consts::PI).sqrt(), 0.044_715);
    let t = (c * (x + a * x * x * x)).tanh();
    0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * c * (1.0 + 3.0 * a * x * x)
}

impl Addresses {
    fn of(&self, place: LaunchMemory) -> u64 {
        match place {
            LaunchMemory::Slot(CallRegister::Operand(index)) => self.operands[index],
            LaunchMemory::Slot(CallRegister::Result(index)) => self.results[index],
            LaunchMemory::Scratch(byte) => self.scratch + byte as u64,
        }
    }
}

/// The indices in the whole tensors at which the shards of a case begin.
struct Origins<'a>(&'a Case);

impl Origins<'_> {
    fn of(&self, slot: CallRegister, dim: usize) -> i64 {
        let region = match slot {
            CallRegister::Operand(index) => &self.0.operands[index].0,
            CallRegister::Result(index) => &self.0.results[index],
        };
        region.rect.origin[dim] as i64
    }
}

fn bits(results: &[Memory]) -> Vec<Vec<u8>> {
    results.iter().map(bytes).collect()
}

/// No allocation is empty.
fn padded(bytes: Vec<u8>) -> Vec<u8> {
    if bytes.is_empty() { vec![0] } else { bytes }
}
