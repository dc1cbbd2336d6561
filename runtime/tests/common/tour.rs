//! A plan that goes through every kind of boxing and ends with what it began with.

use std::collections::BTreeMap;

use graphc_ir::plan::{Action, BoxingKind, Layout, Plan, Rate};
use graphc_ir::types::DType;
use graphc_runtime::HostTensor;

use crate::common::{Builder, layout};

fn f32s(shape: &[usize], ranks: &[u32], sbp: &str) -> Layout {
    layout(shape, DType::F32, ranks, &[ranks.len()], sbp)
}

/// Feeds x in `layouts[0]`, goes through the others, and fetches it.
pub fn tour(layouts: &[Layout], steps: &[BoxingKind]) -> Plan {
    let ranks = layouts.iter().flat_map(|l| &l.ranks).max().expect("a rank") + 1;
    let mut builder = Builder::new(ranks as usize, 1);
    let mut at = builder.tensor(&layouts[0], Rate::Step, 1);
    builder.feed("x", at, Rate::Step);
    for (layout, &kind) in layouts[1..].iter().zip(steps) {
        let next = builder.tensor(layout, Rate::Step, 1);
        match kind {
            BoxingKind::Slice | BoxingKind::Mask => {
                builder.actor("local", Action::Local { kind }, Rate::Step, [&[at], &[next], &[]]);
            }
            BoxingKind::SendRecv => builder.channel(at, next, Rate::Step, 1),
            _ => builder.collective(kind, 0, &[at], &[next], Rate::Step),
        }
        at = next;
    }
    builder.fetch("y", at, Rate::Step);
    builder.plan
}

/// Through every kind of boxing, between all ranks and to the first and the last one.
pub fn grand_tour(world: u32, shape: [usize; 2]) -> Plan {
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
    tour(&layouts, &steps)
}

/// What goes on tour.
pub fn feeds(shape: [usize; 2]) -> BTreeMap<String, HostTensor> {
    let data: Vec<f32> = (0..shape[0] * shape[1]).map(|i| (i % 1009) as f32 * 0.25).collect();
    let x = HostTensor::from_f32(shape, &data).expect("as many as the shape has");
    BTreeMap::from([("x".to_owned(), x)])
}
