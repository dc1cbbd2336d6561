//! The results of collectives: what ranks get of what ranks give. Elements are reduced in the order of ranks, halves as
//! f32 that are rounded once.

use half::{bf16, f16};

use crate::nccl::call::{Call, Verb};
use crate::nccl::types::{Element, Reduction};

/// The result of each rank of a call that all have made, by what each gives.
pub fn combine(call: &Call, given: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let ranks = given.len();
    let block = (call.count * call.element.bytes()) as usize;
    match call.verb {
        Verb::AllReduce(reduction) => vec![reduce(call.element, reduction, given); ranks],
        Verb::ReduceScatter(reduction) => {
            let whole = reduce(call.element, reduction, given);
            (0..ranks).map(|rank| whole[rank * block..][..block].to_vec()).collect()
        }
        Verb::Reduce { reduction, root } => {
            only(root, ranks, reduce(call.element, reduction, given))
        }
        Verb::AllGather => vec![given.concat(); ranks],
        Verb::Gather { root } => only(root, ranks, given.concat()),
        Verb::Broadcast { root } => vec![given[root].clone(); ranks],
        Verb::Scatter { root } => {
            (0..ranks).map(|rank| given[root][rank * block..][..block].to_vec()).collect()
        }
        Verb::AllToAll => {
            let piece = |from: &Vec<u8>, to: usize| from[to * block..][..block].to_vec();
            let gets = |to| given.iter().flat_map(|from| piece(from, to)).collect();
            (0..ranks).map(gets).collect()
        }
        Verb::Send { .. } | Verb::Receive { .. } => unreachable!("pairs are matched as pairs"),
    }
}

/// Bytes for one rank, and none for the others.
fn only(root: usize, ranks: usize, bytes: Vec<u8>) -> Vec<Vec<u8>> {
    let mut all = vec![Vec::new(); ranks];
    all[root] = bytes;
    all
}

fn reduce(element: Element, reduction: Reduction, given: &[Vec<u8>]) -> Vec<u8> {
    match element {
        Element::I8 => fold::<i8>(reduction, given),
        Element::U8 => fold::<u8>(reduction, given),
        Element::I32 => fold::<i32>(reduction, given),
        Element::U32 => fold::<u32>(reduction, given),
        Element::I64 => fold::<i64>(reduction, given),
        Element::U64 => fold::<u64>(reduction, given),
        Element::F16 => fold::<f16>(reduction, given),
        Element::F32 => fold::<f32>(reduction, given),
        Element::F64 => fold::<f64>(reduction, given),
        Element::Bf16 => fold::<bf16>(reduction, given),
        Element::F8E4m3 | Element::F8E5m2 => unreachable!("refused where it is called"),
    }
}

fn fold<N: Number>(reduction: Reduction, given: &[Vec<u8>]) -> Vec<u8> {
    let size = size_of::<N>();
    let mut result = Vec::with_capacity(given[0].len());
    for at in (0..given[0].len()).step_by(size) {
        let mut values = given.iter().map(|bytes| N::widen(&bytes[at..at + size]));
        let first = values.next().expect("a communicator has a rank");
        let folded = values.fold(first, |folded, value| N::join(reduction, folded, value));
        let last = match reduction {
            Reduction::Average => N::divide(folded, given.len()),
            _ => folded,
        };
        N::narrow(last, &mut result);
    }
    result
}

/// A type that can be reduced, and the type in which it is.
trait Number {
    type Wide: Copy;
    fn widen(bytes: &[u8]) -> Self::Wide;
    fn narrow(value: Self::Wide, to: &mut Vec<u8>);
    fn join(reduction: Reduction, a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn divide(value: Self::Wide, ranks: usize) -> Self::Wide;
}

macro_rules! integers {
    ($($number:ty),*) => {$(
        impl Number for $number {
            type Wide = $number;
            fn widen(bytes: &[u8]) -> $number {
                <$number>::from_le_bytes(bytes.try_into().expect("one element"))
            }
            fn narrow(value: $number, to: &mut Vec<u8>) {
                to.extend(value.to_le_bytes());
            }
            fn join(reduction: Reduction, a: $number, b: $number) -> $number {
                match reduction {
                    Reduction::Sum | Reduction::Average => a.wrapping_add(b),
                    Reduction::Product => a.wrapping_mul(b),
                    Reduction::Max => a.max(b),
                    Reduction::Min => a.min(b),
                }
            }
            fn divide(value: $number, ranks: usize) -> $number {
                (i128::from(value) / ranks as i128) as $number
            }
        }
    )*};
}

integers!(i8, u8, i32, u32, i64, u64);

macro_rules! floats {
    ($($number:ty as $wide:ty, $widen:expr, $narrow:expr);*) => {$(
        impl Number for $number {
            type Wide = $wide;
            fn widen(bytes: &[u8]) -> $wide {
                $widen(<$number>::from_le_bytes(bytes.try_into().expect("one element")))
            }
            fn narrow(value: $wide, to: &mut Vec<u8>) {
                let value: $number = $narrow(value);
                to.extend(value.to_le_bytes());
            }
            fn join(reduction: Reduction, a: $wide, b: $wide) -> $wide {
                match reduction {
                    Reduction::Sum | Reduction::Average => a + b,
                    Reduction::Product => a * b,
                    Reduction::Max => a.max(b),
                    Reduction::Min => a.min(b),
                }
            }
            fn divide(value: $wide, ranks: usize) -> $wide {
                value / ranks as $wide
            }
        }
    )*};
}

floats!(
    f32 as f32, std::convert::identity, std::convert::identity;
    f64 as f64, std::convert::identity, std::convert::identity;
    f16 as f32, f16::to_f32, f16::from_f32;
    bf16 as f32, bf16::to_f32, bf16::from_f32
);
