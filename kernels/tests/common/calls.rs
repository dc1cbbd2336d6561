//! Calls that are no single op: rectangles of boxing, accumulators, identities, chains that begin with a convolution.
#![allow(dead_code, reason = "each test binary uses a part")]

use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::{InPlace, Op, Region};
use graphc_ir::ops::*;
use graphc_ir::sbp::ReduceKind;
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};
use graphc_kernels::cuda::{self, Call};
use graphc_kernels::{KernelContext, Scratch, ThreadPool, View, ViewMut, prepare_fused};
use graphc_plan::FusedArg::{Operand as X, Step as S};
use graphc_plan::{FusedArg, FusedOp, FusedStep};

use crate::common::{Case, Memory, Random, ordinary, shard};
use crate::rectangles::{Part, join, joined};

/// A call, and what comes out of it.
pub struct Executed {
    pub call: Call,
    /// The op only names it.
    pub case: Case,
    /// Results that lie in the memory of operands.
    pub placed: Vec<InPlace>,
    pub right: Vec<Vec<f64>>,
}

/// Memory of whole tensors, which a call is tried on; the op only names it.
pub fn filled_case(operands: &[TensorType], results: &[TensorType], random: &mut Random) -> Case {
    let memory = |(index, ty): (usize, &TensorType)| {
        let data: Vec<f64> =
            (0..ty.elements()).map(|_| ordinary(random, index, ty.dtype)).collect();
        (Region::whole(ty), Memory::of(ty.dtype, &data))
    };
    Case {
        op: Op::Unary(Unary { function: UnaryFunction::Abs }),
        operands: operands.iter().enumerate().map(memory).collect(),
        results: results.iter().map(Region::whole).collect(),
    }
}

/// A rectangle that is copied to another place, or joined with what is there.
pub fn rectangle(
    dtype: DType,
    parts: [Part; 2],
    extent: [usize; 3],
    kind: Option<ReduceKind>,
) -> Executed {
    let [from, to] = parts.map(|(of, _)| TensorType::new(dtype, of));
    let case = filled_case(&[from, to.clone()], &[to], &mut Random::new(1));
    let [(of_from, from_start), (of_to, to_start)] = parts;
    let call = cuda::copy_rectangle(dtype, &of_from, &from_start, &of_to, &to_start, &extent, kind);
    let [from, to] = [0, 1].map(|operand: usize| case.operands[operand].1.values());
    let expected =
        joined([&from, &to], parts, extent, |there, comes| join(dtype, kind, there, comes));
    let right = vec![Memory::of(dtype, &expected).values()];
    Executed { call, case, placed: vec![InPlace::new(0, 1)], right }
}

/// Returns the calls by which microbatches fill an accumulator: the first overwrites it, later ones are added to it.
pub fn accumulations(of: &TensorType) -> [Executed; 2] {
    let case =
        filled_case(&[of.clone(), of.clone()], std::slice::from_ref(of), &mut Random::new(2));
    let [from, to] = [0, 1].map(|operand: usize| case.operands[operand].1.values());
    let sums: Vec<f64> = from.iter().zip(&to).map(|(a, b)| a + b).collect();
    let [first, later] = cuda::prepare_accumulation(&shard(&Region::whole(of)));
    let executed = |call, values| Executed {
        call,
        case: case.clone(),
        placed: vec![InPlace::new(0, 1)],
        right: vec![values],
    };
    [executed(first, from), executed(later, Memory::of(of.dtype, &sums).values())]
}

/// Values that memory is filled with before something is joined with it.
pub const IDENTITIES: [f64; 6] =
    [0.0, -0.0, f64::NEG_INFINITY, i64::MIN as f64, i64::MAX as f64, 1.0];

/// Memory that is filled with a value.
pub fn filling(dtype: DType, count: usize, value: f64) -> Executed {
    let case = filled_case(&[], &[TensorType::new(dtype, [count])], &mut Random::new(3));
    let right = match dtype {
        // Numbers that are out of range wrap around, as those of `Full` do.
        DType::I32 => f64::from(value as i64 as i32),
        DType::U8 => f64::from(value as i64 as u8),
        _ => Memory::of(dtype, &[value]).values()[0],
    };
    let call = cuda::prepare_fill(dtype, count, value);
    Executed { call, case, placed: vec![], right: vec![vec![right; count]] }
}

/// A convolution that is scaled, shifted and clipped for each of its channels, channels last; the plain one is maybe a result as well. Of
/// the kernels: how many, their step and how many rows and columns they have.
pub fn headed(
    dtype: DType,
    image: [usize; 4],
    [outputs, stride, extent]: [usize; 3],
    is_kept: bool,
) -> (FusedOp, Case) {
    let window = Window { strides: [stride; 2], pads: [extent / 2; 4], dilations: [1; 2] };
    let head = Op::Convolution(Convolution { window, groups: 1, channels_last: true });
    let clip = UnaryFunction::Clip { low: Scalar(0.0), high: Scalar(6.0) };
    let x = TensorType::new(dtype, image);
    let k = TensorType::new(dtype, [outputs, image[3], extent, extent]);
    let y = head.infer_types(&[&x, &k]).expect("it fits").remove(0);
    let row = TensorType::new(dtype, [outputs]);
    let fused = FusedOp {
        steps: vec![
            step(head, &[X(0), X(1)]),
            step(binary(BinaryFunction::Mul), &[S(0), X(2)]),
            step(binary(BinaryFunction::Add), &[S(1), X(3)]),
            step(Op::Unary(Unary { function: clip }), &[S(2)]),
        ],
        outputs: if is_kept { vec![3, 0] } else { vec![3] },
    };
    let results = vec![y; fused.outputs.len()];
    let case = filled_case(&[x, k, row.clone(), row], &results, &mut Random::new(4));
    (fused, case)
}

/// The call of a chain.
pub fn call_of(fused: &FusedOp, case: &Case) -> Call {
    let operands: Vec<_> = case.operands.iter().map(|operand| shard(&operand.0)).collect();
    let results: Vec<_> = case.results.iter().map(shard).collect();
    cuda::prepare_fused(fused, &operands, &results).expect("a chain")
}

/// The results of a chain on the processor.
pub fn on_processor(fused: &FusedOp, case: &Case, pool: Option<&ThreadPool>) -> Vec<Vec<f64>> {
    let ty = |region: &Region| TensorType::new(region.dtype, region.rect.extent.clone());
    let operands: Vec<TensorType> = case.operands.iter().map(|operand| ty(&operand.0)).collect();
    let results: Vec<TensorType> = case.results.iter().map(ty).collect();
    let prepared = prepare_fused(fused, &operands, &results, DeviceKind::Cpu).expect("a chain");
    let mut made: Vec<Memory> =
        results.iter().map(|of| Memory::of(of.dtype, &vec![0.0; of.elements()])).collect();
    let views: Vec<View<'_>> = case.operands.iter().map(|(r, memory)| memory.view(r)).collect();
    let mut out: Vec<ViewMut<'_>> = made
        .iter_mut()
        .zip(&case.results)
        .map(|(memory, region)| memory.view_mut(region))
        .collect();
    let mut scratch = Scratch::new();
    let threads = pool.map_or(1, ThreadPool::threads);
    let mut cx =
        KernelContext { seed: 0, step: 0, rate: None, threads, pool, scratch: &mut scratch };
    prepared.launch(&views, &mut out, &mut cx).expect("no fault");
    made.iter().map(Memory::values).collect()
}

pub fn step(op: Op, args: &[FusedArg]) -> FusedStep {
    FusedStep { op, args: args.to_vec() }
}

pub fn binary(function: BinaryFunction) -> Op {
    Op::Binary(Binary { function })
}
