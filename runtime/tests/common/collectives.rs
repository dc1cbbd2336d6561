//! Collectives beside a serial reference.

use graphc_ir::random::RandomStream;
use graphc_ir::types::DType;
use graphc_runtime::HostTensor;
use graphc_runtime::dist::{Group, ReduceOp};

const OPS: [ReduceOp; 9] = [
    ReduceOp::Sum,
    ReduceOp::Product,
    ReduceOp::Max,
    ReduceOp::Min,
    ReduceOp::Avg,
    ReduceOp::And,
    ReduceOp::Or,
    ReduceOp::Xor,
    ReduceOp::PremulSum(3.0),
];

/// Small numbers that every type holds and no reduction of five rounds.
pub fn tensor(dtype: DType, elements: usize, rank: usize) -> HostTensor {
    let stream = RandomStream { seed: 5, key: rank as u64, step: elements as u64 };
    let top = if dtype == DType::Bool { 2 } else { 4 };
    let data: Vec<f64> =
        (0..elements).map(|i| f64::from(stream.words(i as u64)[0] % top)).collect();
    HostTensor::from_f64(dtype, [elements], &data).expect("as many as the shape has")
}

/// The reduction of all ranks' tensors, number by number.
pub fn reference(dtype: DType, all: &[HostTensor], op: ReduceOp) -> HostTensor {
    let data: Vec<Vec<f64>> = all.iter().map(HostTensor::to_f64).collect();
    let combine = |a: f64, b: f64| match op {
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PremulSum(_) => a + b,
        ReduceOp::Product => a * b,
        ReduceOp::Max => a.max(b),
        ReduceOp::Min => a.min(b),
        ReduceOp::And => (a as i64 & b as i64) as f64,
        ReduceOp::Or => (a as i64 | b as i64) as f64,
        ReduceOp::Xor => (a as i64 ^ b as i64) as f64,
    };
    let element = |i: usize| {
        let mine = |rank: &Vec<f64>| match op {
            ReduceOp::PremulSum(factor) => factor * rank[i],
            _ => rank[i],
        };
        let whole = data.iter().map(mine).reduce(combine).expect("a rank");
        match op {
            // As f32 divides, and as integers do.
            ReduceOp::Avg if dtype.is_float() => f64::from(whole as f32 / data.len() as f32),
            ReduceOp::Avg => (whole / data.len() as f64).trunc(),
            _ => whole,
        }
    };
    let reduced: Vec<f64> = (0..all[0].to_f64().len()).map(element).collect();
    HostTensor::from_f64(dtype, [reduced.len()], &reduced).expect("as many as before")
}

fn defined(op: ReduceOp, dtype: DType) -> bool {
    match op {
        ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => !dtype.is_float(),
        ReduceOp::Avg | ReduceOp::PremulSum(_) => dtype != DType::Bool,
        _ => true,
    }
}

/// Every reduction of one type and size, in one group.
pub fn check_reductions(group: &Group, dtype: DType, elements: usize) {
    let (n, me) = (group.world_size(), group.rank());
    let all: Vec<HostTensor> = (0..n).map(|rank| tensor(dtype, elements, rank)).collect();
    for op in OPS.into_iter().filter(|&op| defined(op, dtype)) {
        let expected = reference(dtype, &all, op);
        let label = format!("{op} of {dtype}[{elements}] on {n} ranks");
        let mut reduced = all[me].clone();
        group.all_reduce(&mut reduced, op).expect("all reduce");
        assert_eq!(reduced, expected, "all_reduce {label}");
        let root = elements % n;
        let mut reduced = all[me].clone();
        group.reduce(&mut reduced, root, op).expect("all reduce");
        assert!(me != root || reduced == expected, "reduce {label}");
        let counts = uneven(elements, n);
        let mut scattered = all[me].clone();
        let own = group.reduce_scatter_in_place(&mut scattered, Some(&counts), op);
        let own = own.expect("all reduce");
        assert_eq!(own.len(), counts[me] * dtype.size());
        assert_eq!(scattered.bytes()[own.clone()], expected.bytes()[own], "scatter {label}");
    }
}

/// A cut of so many elements into parts of different sizes.
fn uneven(elements: usize, n: usize) -> Vec<usize> {
    let mut counts: Vec<usize> = (0..n).map(|rank| elements * (rank % 3) / (2 * n)).collect();
    counts[n - 1] += elements - counts.iter().sum::<usize>();
    counts
}

/// Every collective that only moves data, of one type and size.
pub fn check_moves(group: &Group, dtype: DType, elements: usize) {
    let (n, me) = (group.world_size(), group.rank());
    let of = |rank: usize, part: usize| tensor(dtype, elements, rank * 7 + part);
    let joined = |parts: Vec<HostTensor>| {
        let bytes = parts.iter().flat_map(|part| part.bytes().to_vec()).collect();
        HostTensor::new(dtype, [elements * n], bytes).expect("as many as the shape has")
    };
    let label = format!("{dtype}[{elements}] on {n} ranks");
    for root in 0..n {
        let mut buffer = of(me, 0);
        group.broadcast(&mut buffer, root).expect("all come");
        assert_eq!(buffer, of(root, 0), "broadcast {label}");
    }
    let all = joined((0..n).map(|rank| of(rank, 0)).collect());
    let mut into = HostTensor::zeros(dtype, [elements * n]);
    group.all_gather_into(&of(me, 0), &mut into, None).expect("all come");
    assert_eq!(into, all, "all_gather_into {label}");
    let root = n - 1;
    let mut into = HostTensor::zeros(dtype, [elements * n]);
    group.gather_into(&of(me, 0), Some(&mut into), root).expect("all come");
    assert!(me != root || into == all, "gather_into {label}");
    let mut own = HostTensor::zeros(dtype, [elements]);
    group.scatter_into(Some(&all), &mut own, root).expect("all come");
    assert_eq!(own, of(me, 0), "scatter_into {label}");
    let outgoing = joined((0..n).map(|to| of(me, to)).collect());
    let mut incoming = HostTensor::zeros(dtype, [elements * n]);
    group.all_to_all_into(&outgoing, &mut incoming, None).expect("all come");
    let expected = joined((0..n).map(|from| of(from, me)).collect());
    assert_eq!(incoming, expected, "all_to_all_into {label}");
}
