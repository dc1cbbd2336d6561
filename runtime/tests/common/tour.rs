//! A plan that goes through every kind of boxing and ends with what it began with.

use std::collections::BTreeMap;

use graphc_plan::BoxingKind;
use graphc_plan::check::VerifiedPlan;
use graphc_runtime::HostTensor;

use crate::common::{f32s, tour};

/// Through every kind of boxing, between all ranks and to the first and the last one.
pub fn grand_tour(world: u32, shape: [usize; 2]) -> VerifiedPlan {
    let all: Vec<u32> = (0..world).collect();
    let on = |ranks: &[u32], sbp: &str| f32s(&shape, ranks, sbp);
    let layouts = [
        on(&all, "S(0)"),
        on(&all, "S(1)"),
        on(&all, "B"),
        on(&all, "P"),
        on(&all, "B"),
        on(&[0], "B"),
        on(&[world - 1], "B"),
        on(&all, "P"),
        on(&all, "S(1)"),
    ];
    use BoxingKind::{AllGather, AllReduce, AllToAll, Mask, ReduceScatter, SendRecv};
    let steps = [AllToAll, AllGather, Mask, AllReduce, SendRecv, SendRecv, SendRecv, ReduceScatter];
    tour(&layouts, &steps).verified()
}

/// Makes the tensor that goes on tour.
pub fn feeds(shape: [usize; 2]) -> BTreeMap<String, HostTensor> {
    let data: Vec<f32> = (0..shape[0] * shape[1]).map(|i| (i % 1009) as f32 * 0.25).collect();
    let x = HostTensor::from_f32(shape, &data).expect("as many as the shape has");
    BTreeMap::from([("x".to_owned(), x)])
}
