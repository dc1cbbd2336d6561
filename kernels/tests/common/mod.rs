//! Runs kernels and the ops' oracles on the same shards.
#![allow(dead_code, reason = "each test binary uses a part")]

mod in_place;

use graphc_ir::array::Array;
use graphc_ir::float8::{E4M3, E5M2, Float8Format};
use graphc_ir::mesh::{DeviceKind, unravel_position};
use graphc_ir::op::{EvalContext, InPlace, Op, Operand, Region};
use graphc_ir::random::RandomStream;
use graphc_ir::shard;
use graphc_ir::types::{DType, TensorType};
use graphc_kernels::cuda::{Call, Launch, Shard, own_product, product_end};
use graphc_kernels::{
    KernelContext, KernelError, Prepared, Scratch, ThreadPool, View, ViewMut, prepare_op,
};
use half::{bf16, f16};

/// A deterministic source of choices.
pub struct Random {
    stream: RandomStream,
    count: u64,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self { stream: RandomStream { seed, key: 1, step: 0 }, count: 0 }
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.count += 1;
        self.stream.words(self.count)[0] as usize % end.max(1)
    }

    pub fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    pub fn normal(&mut self) -> f64 {
        self.count += 1;
        f64::from(self.stream.normal(self.count))
    }

    pub fn extent(&mut self) -> usize {
        self.of(&[1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 33, 64, 67, 0])
    }

    pub fn shape(&mut self, rank: usize) -> Vec<usize> {
        (0..rank).map(|_| self.extent()).collect()
    }
}

/// Memory of any element type.
#[derive(Clone, Debug, PartialEq)]
pub enum Memory {
    F32(Vec<f32>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
    I64(Vec<i64>),
    I32(Vec<i32>),
    U8(Vec<u8>),
    /// The bits of numbers of 8 bits.
    F8(Float8Format, Vec<u8>),
}

impl Memory {
    pub fn of(dtype: DType, data: &[f64]) -> Self {
        let data = data.iter();
        match dtype {
            DType::F32 => Self::F32(data.map(|&x| x as f32).collect()),
            DType::I64 => Self::I64(data.map(|&x| x as i64).collect()),
            DType::I32 => Self::I32(data.map(|&x| x as i32).collect()),
            DType::U8 | DType::Bool => Self::U8(data.map(|&x| x as u8).collect()),
            DType::F8E4M3 => Self::F8(E4M3, data.map(|&x| E4M3.encode(x as f32)).collect()),
            DType::F8E5M2 => Self::F8(E5M2, data.map(|&x| E5M2.encode(x as f32)).collect()),
            DType::F16 => Self::F16(data.map(|&x| f16::from_f64(x)).collect()),
            DType::BF16 => Self::BF16(data.map(|&x| bf16::from_f64(x)).collect()),
        }
    }

    pub fn values(&self) -> Vec<f64> {
        match self {
            Self::F32(data) => data.iter().map(|&x| f64::from(x)).collect(),
            Self::F16(data) => data.iter().map(|&x| f64::from(x)).collect(),
            Self::BF16(data) => data.iter().map(|&x| f64::from(x)).collect(),
            Self::I64(data) => data.iter().map(|&x| x as f64).collect(),
            Self::I32(data) => data.iter().map(|&x| f64::from(x)).collect(),
            Self::U8(data) => data.iter().map(|&x| f64::from(x)).collect(),
            Self::F8(format, data) => data.iter().map(|&x| format.decode(x).into()).collect(),
        }
    }

    pub fn view<'a>(&'a self, region: &'a Region) -> View<'a> {
        let (dtype, rect, global) = (region.dtype, &region.rect, &region.global);
        match self {
            Self::F32(data) => View::from_slice(dtype, &rect.extent, global, &rect.origin, data),
            Self::F16(data) => View::from_slice(dtype, &rect.extent, global, &rect.origin, data),
            Self::BF16(data) => View::from_slice(dtype, &rect.extent, global, &rect.origin, data),
            Self::I64(data) => View::from_slice(dtype, &rect.extent, global, &rect.origin, data),
            Self::I32(data) => View::from_slice(dtype, &rect.extent, global, &rect.origin, data),
            Self::U8(data) | Self::F8(_, data) => {
                View::from_slice(dtype, &rect.extent, global, &rect.origin, data)
            }
        }
    }

    pub fn view_mut<'a>(&'a mut self, region: &'a Region) -> ViewMut<'a> {
        let (dtype, rect, global) = (region.dtype, &region.rect, &region.global);
        match self {
            Self::F32(data) => ViewMut::from_slice(dtype, &rect.extent, global, &rect.origin, data),
            Self::F16(data) => ViewMut::from_slice(dtype, &rect.extent, global, &rect.origin, data),
            Self::BF16(data) => {
                ViewMut::from_slice(dtype, &rect.extent, global, &rect.origin, data)
            }
            Self::I64(data) => ViewMut::from_slice(dtype, &rect.extent, global, &rect.origin, data),
            Self::I32(data) => ViewMut::from_slice(dtype, &rect.extent, global, &rect.origin, data),
            Self::U8(data) | Self::F8(_, data) => {
                ViewMut::from_slice(dtype, &rect.extent, global, &rect.origin, data)
            }
        }
    }
}

/// One application of an op to shards.
#[derive(Clone, Debug)]
pub struct Case {
    pub op: Op,
    pub operands: Vec<(Region, Memory)>,
    pub results: Vec<Region>,
}

/// The elements of a whole operand.
pub type Fill<'a> = &'a mut dyn FnMut(&mut Random, usize, DType) -> f64;

/// Numbers that suit an element type.
pub fn ordinary(random: &mut Random, _operand: usize, dtype: DType) -> f64 {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2 => {
            f64::from((random.normal() * 1.5) as f32)
        }
        DType::I64 | DType::I32 => random.below(19) as f64 - 9.0,
        DType::U8 => random.below(9) as f64,
        DType::Bool => random.below(2) as f64,
    }
}

impl Case {
    /// The op on one rank of a random mesh under a random signature of its rule.
    pub fn random(op: Op, types: &[TensorType], random: &mut Random, fill: Fill<'_>) -> Case {
        let hierarchy = random.of(&[vec![1], vec![2], vec![3], vec![2, 2]]);
        Self::on(&hierarchy, op, types, random, fill)
    }

    /// The op on one rank of a mesh under a random signature of its rule.
    pub fn on(
        hierarchy: &[usize],
        op: Op,
        types: &[TensorType],
        random: &mut Random,
        fill: Fill<'_>,
    ) -> Case {
        let references: Vec<&TensorType> = types.iter().collect();
        let results = op.infer_types(&references).unwrap_or_else(|error| panic!("{op:?}: {error}"));
        let rule = op.operation().rule(&references).expect("the types fit");
        let signature = random.of(&rule.signatures(hierarchy));
        let position = random.below(hierarchy.iter().product());
        let coordinates = unravel_position(position, hierarchy);
        let region = |ty: &TensorType, sbp| Region {
            dtype: ty.dtype,
            global: ty.shape.clone(),
            rect: shard::shard_rect(&ty.shape, hierarchy, sbp, &coordinates),
        };
        let operands = types
            .iter()
            .zip(&signature.operands)
            .enumerate()
            .map(|(index, (ty, sbp))| {
                let region = region(ty, sbp);
                let count = region.rect.elements();
                let data: Vec<f64> = (0..count).map(|_| fill(random, index, ty.dtype)).collect();
                (region, Memory::of(ty.dtype, &data))
            })
            .collect();
        let results =
            results.iter().zip(&signature.results).map(|(ty, sbp)| region(ty, sbp)).collect();
        Case { op, operands, results }
    }

    pub fn oracle(&self, cx: &EvalContext) -> Result<Vec<Array>, graphc_ir::op::OpError> {
        let arrays: Vec<Array> = self
            .operands
            .iter()
            .map(|(region, memory)| Array::new(region.rect.extent.clone(), memory.values()))
            .collect();
        let operands: Vec<Operand<'_>> = arrays
            .iter()
            .zip(&self.operands)
            .map(|(array, (region, _))| Operand { array, region })
            .collect();
        self.op.operation().evaluate(&operands, &self.results, cx)
    }

    /// The call of the kernel.
    pub fn prepare(&self) -> Result<Prepared, KernelError> {
        let types = |regions: &mut dyn Iterator<Item = &Region>| -> Vec<TensorType> {
            regions
                .map(|region| TensorType::new(region.dtype, region.rect.extent.clone()))
                .collect()
        };
        let operands = types(&mut self.operands.iter().map(|operand| &operand.0));
        prepare_op(&self.op, &operands, &types(&mut self.results.iter()), DeviceKind::Cpu)
    }

    /// The results of the kernel, in memory that held something else.
    pub fn kernel(
        &self,
        cx: &EvalContext,
        pool: Option<&ThreadPool>,
    ) -> Result<Vec<Memory>, KernelError> {
        let prepared = self.prepare()?;
        let mut results: Vec<Memory> = self
            .results
            .iter()
            .map(|region| Memory::of(region.dtype, &vec![1.0; region.rect.elements()]))
            .collect();
        let operands: Vec<View<'_>> =
            self.operands.iter().map(|(region, memory)| memory.view(region)).collect();
        let mut views: Vec<ViewMut<'_>> = results
            .iter_mut()
            .zip(&self.results)
            .map(|(memory, region)| memory.view_mut(region))
            .collect();
        let mut scratch = Scratch::new();
        let threads = pool.map_or(1, ThreadPool::threads);
        let mut context = KernelContext {
            seed: cx.seed,
            step: cx.step,
            rate: None,
            threads,
            pool,
            scratch: &mut scratch,
        };
        prepared.launch(&operands, &mut views, &mut context)?;
        Ok(results)
    }

    /// Checks the kernel against the oracle, and in place against itself.
    pub fn check(&self, tolerance: f64) {
        self.check_in_place();
        let cx = EvalContext { seed: 5, step: 3 };
        let expected = self.oracle(&cx).unwrap_or_else(|error| panic!("{:?}: {error}", self.op));
        let found = self.kernel(&cx, None).unwrap_or_else(|error| panic!("{self:?}: {error}"));
        for (index, (expected, found)) in expected.iter().zip(&found).enumerate() {
            let exact = !self.results[index].dtype.is_float();
            for (place, (found, expected)) in found.values().iter().zip(&expected.data).enumerate()
            {
                let (found, expected) =
                    if exact { (*found, *expected) } else { (*found, f64::from(*expected as f32)) };
                let same = found == expected || found.is_nan() && expected.is_nan();
                let near = !exact && (found - expected).abs() <= tolerance * (1.0 + expected.abs());
                let regions: Vec<_> = self.operands.iter().map(|operand| &operand.0).collect();
                assert!(
                    same || near,
                    "{:?} result {index} element {place}: {found} instead of {expected}\n{regions:?}\n{:?}",
                    self.op,
                    self.results,
                );
            }
        }
    }
}

impl Case {
    /// Checks a kernel of 16-bit elements: what it computes in `f32` is within `tolerance`, and rounded once.
    pub fn check_rounded(&self, tolerance: f64) {
        let cx = EvalContext { seed: 5, step: 3 };
        let found = self.kernel(&cx, None).unwrap_or_else(|error| panic!("{self:?}: {error}"));
        self.compare(&found, &cx, tolerance);
    }

    /// Checks results of any element types against the oracle: what was computed in `f32` is within `tolerance`, and rounded once.
    pub fn compare(&self, found: &[Memory], cx: &EvalContext, tolerance: f64) {
        let expected = self.oracle(cx).unwrap_or_else(|error| panic!("{:?}: {error}", self.op));
        for (index, (expected, found)) in expected.iter().zip(found).enumerate() {
            let dtype = self.results[index].dtype;
            for (place, (&found, &exact)) in found.values().iter().zip(&expected.data).enumerate() {
                let rounded = Memory::of(dtype, &[exact]).values()[0];
                let same = found == rounded || found.is_nan() && exact.is_nan();
                let room = rounded_room(dtype, tolerance, found, exact);
                let near = dtype.is_float() && (found - exact).abs() <= room;
                let regions: Vec<_> = self.operands.iter().map(|operand| &operand.0).collect();
                assert!(
                    same || near,
                    "{:?} result {index} element {place}: {found} instead of {exact}\n{regions:?}\n{:?}",
                    self.op,
                    self.results,
                );
            }
        }
    }
}

/// Returns the error that a result may have that was computed in `f32` within `tolerance` and rounded once.
pub fn rounded_room(dtype: DType, tolerance: f64, found: f64, exact: f64) -> f64 {
    // Half the distance of neighbours, about a number or below the least normal one.
    let (ulp, least) = match dtype {
        DType::F16 => (f64::powi(2.0, -11), f64::powi(2.0, -25)),
        DType::BF16 => (f64::powi(2.0, -8), f64::powi(2.0, -134)),
        _ => (0.0, 0.0),
    };
    tolerance * (1.0 + exact.abs()) + ulp * found.abs() + least
}

/// A pool of this many threads.
pub fn pool(threads: usize) -> ThreadPool {
    let spin = std::time::Duration::from_micros(20);
    ThreadPool::new(threads, spin, |index| format!("helper {index}")).expect("threads start")
}

/// The pairs of results and operands of a case that may share memory.
pub fn pairs(case: &Case) -> Vec<InPlace> {
    let fits = |pair: &InPlace| {
        let (result, operand) = (&case.results[pair.result], &case.operands[pair.operand].0);
        result.dtype == operand.dtype && result.rect == operand.rect
    };
    case.op.operation().in_place().into_iter().filter(fits).collect()
}

/// A register as kernels know it.
pub fn shard(region: &Region) -> Shard {
    let ty = TensorType::new(region.dtype, region.rect.extent.clone());
    Shard { ty, global: region.global.clone() }
}

/// The bytes of memory.
pub fn bytes(memory: &Memory) -> Vec<u8> {
    match memory {
        Memory::F32(data) => data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Memory::F16(data) => data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Memory::BF16(data) => data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Memory::I64(data) => data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Memory::I32(data) => data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Memory::U8(data) | Memory::F8(_, data) => data.clone(),
    }
}

/// Memory with these bytes.
pub fn memory(dtype: DType, bytes: &[u8]) -> Memory {
    match dtype {
        DType::F32 => Memory::F32(words(bytes).map(f32::from_le_bytes).collect()),
        DType::F16 => Memory::F16(words(bytes).map(half::f16::from_le_bytes).collect()),
        DType::BF16 => Memory::BF16(words(bytes).map(half::bf16::from_le_bytes).collect()),
        DType::I64 => Memory::I64(words(bytes).map(i64::from_le_bytes).collect()),
        DType::I32 => Memory::I32(words(bytes).map(i32::from_le_bytes).collect()),
        DType::U8 | DType::Bool => Memory::U8(bytes.to_vec()),
        DType::F8E4M3 => Memory::F8(E4M3, bytes.to_vec()),
        DType::F8E5M2 => Memory::F8(E5M2, bytes.to_vec()),
    }
}

fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks::<N>().0.iter().copied()
}

/// The call of a library's product as it is where the library does not compute it: by kernels of our own, or with the product's end as
/// kernels of their own behind it.
pub fn other_ways(call: &Call) -> Vec<Call> {
    let own = |launch: &Launch| match launch {
        Launch::Product(product) => own_product(product),
        other => vec![other.clone()],
    };
    let ended = |launch: &Launch| match launch {
        Launch::Product(product) => {
            let plain = Launch::Product(product.without_epilogue());
            std::iter::once(plain).chain(product_end(product)).collect()
        }
        other => vec![other.clone()],
    };
    let ways: [fn(&Launch) -> Vec<Launch>; 2] = [own, ended];
    let other = |way: fn(&Launch) -> Vec<Launch>| Call {
        launches: call.launches.iter().flat_map(way).collect(),
        ..call.clone()
    };
    ways.into_iter().map(other).filter(|other| other.launches != call.launches).collect()
}
