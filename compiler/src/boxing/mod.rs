//! Boxing: routes from one layout of a tensor to another, and their prices.
//!
//! Any layout becomes any layout. On one mesh the cheapest route over single-axis steps is searched (Dijkstra over N-D SBPs). The
//! steps are all-reduce, reduce-scatter, all-gather, all-to-all, local slice and local mask (`steps`). Between meshes, and where
//! it is cheaper than several steps, ranks exchange the rectangles in which the layouts overlap, point to point. Partial
//! contributions are summed in rank order.
//! A tensor is boxed to one layout once, however many ops read it in that layout. The planner prices it so, and lowering does so (`lower/tasks/copies.rs`).
//! Nothing here moves data or knows actors. Start reading with [`find_route`].

mod apart;
mod exchange;
mod factored;
mod fusion;
mod hidden;
mod patterns;
mod same_mesh;
mod search;
mod space;
mod steps;
#[cfg(test)]
mod tests;

use graphc_ir::sbp::{NdSbp, ReduceKind, Sbp};
use graphc_plan::{BoxingKind, Cluster, Layout};

pub use exchange::{Senders, Traffic};
pub(crate) use fusion::{BUCKET_BYTES, Fusion, SCATTERED_BYTES, is_fused};
pub(crate) use hidden::{Hidden, HidingWindow, unhidden_seconds};
pub(crate) use search::SpaceId;
pub use search::{Router, find_route};

/// The number of an N-D SBP in a space of layouts.
pub type Code = u32;

/// One step of boxing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoxingStep {
    /// P to B over one axis.
    AllReduce {
        /// The mesh axis.
        axis: usize,
        /// The reduction of partial values.
        kind: ReduceKind,
    },
    /// P to S over one axis.
    ReduceScatter {
        /// The mesh axis.
        axis: usize,
        /// The reduction of partial values.
        kind: ReduceKind,
        /// The dim that is split.
        dim: usize,
    },
    /// S to B over one axis.
    AllGather {
        /// The mesh axis.
        axis: usize,
        /// The dim that was split.
        dim: usize,
    },
    /// S of one dim to S of another over one axis.
    AllToAll {
        /// The mesh axis.
        axis: usize,
        /// The dim that was split.
        from: usize,
        /// The dim that is split.
        to: usize,
    },
    /// B to S over one axis: local.
    Slice {
        /// The mesh axis.
        axis: usize,
        /// The dim that is split.
        dim: usize,
    },
    /// B to P over one axis, which is local: all ranks but the first take the identity.
    Mask {
        /// The mesh axis.
        axis: usize,
        /// The reduction whose identity they take.
        kind: ReduceKind,
    },
    /// Any layout to any layout, point to point.
    Exchange,
}

impl BoxingStep {
    /// Returns its name in plans.
    pub fn boxing_kind(&self) -> BoxingKind {
        match self {
            Self::AllReduce { .. } => BoxingKind::AllReduce,
            Self::ReduceScatter { .. } => BoxingKind::ReduceScatter,
            Self::AllGather { .. } => BoxingKind::AllGather,
            Self::AllToAll { .. } => BoxingKind::AllToAll,
            Self::Slice { .. } => BoxingKind::Slice,
            Self::Mask { .. } => BoxingKind::Mask,
            Self::Exchange => BoxingKind::SendRecv,
        }
    }

    /// Returns the mesh axis of a single-axis step.
    pub fn axis(&self) -> Option<usize> {
        match *self {
            Self::AllReduce { axis, .. }
            | Self::ReduceScatter { axis, .. }
            | Self::AllGather { axis, .. }
            | Self::AllToAll { axis, .. }
            | Self::Slice { axis, .. }
            | Self::Mask { axis, .. } => Some(axis),
            Self::Exchange => None,
        }
    }

    /// Returns the reduction of an all-reduce or a reduce-scatter, or the one whose identity a mask takes.
    pub fn reduce(&self) -> Option<ReduceKind> {
        match *self {
            Self::AllReduce { kind, .. }
            | Self::ReduceScatter { kind, .. }
            | Self::Mask { kind, .. } => Some(kind),
            _ => None,
        }
    }
}

/// A step of a route, with the layout after it and its cost.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteStep {
    /// The step.
    pub step: BoxingStep,
    /// The layout after the step.
    pub layout_after: Layout,
    /// The seconds of the step.
    pub seconds: f64,
    /// The part of these seconds that does not depend on the bytes; 0 except for collectives.
    pub latency: f64,
    /// The bytes that the busiest rank sends or copies.
    pub bytes: u64,
}

/// The route from one layout to another. It has no steps if every rank already holds what it needs; the two layouts may then still differ in name, on
/// mesh axes of extent 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Route {
    /// The steps, in order.
    pub steps: Vec<RouteStep>,
    /// The sum of the steps' seconds.
    pub seconds: f64,
}

impl Route {
    /// Returns the seconds that do not depend on the bytes, summed over the collectives.
    pub fn latency(&self) -> f64 {
        self.steps.iter().map(|step| step.latency).sum()
    }
}

/// Returns the layout in which an output is given to the user. Partial values are summed up first.
pub fn fetched(sbp: &NdSbp) -> NdSbp {
    let whole = |&sbp: &Sbp| if sbp.is_partial() { Sbp::Broadcast } else { sbp };
    NdSbp(sbp.0.iter().map(whole).collect())
}

/// Returns the bytes of a layout's shard on the rank that holds most, which is the first.
pub fn shard_bytes(layout: &Layout, microbatches: usize) -> u64 {
    let rect = layout.ranks.first().and_then(|&rank| layout.rect(rank, 0, microbatches));
    rect.map_or(0, |rect| (rect.elements() * layout.dtype.size()) as u64)
}

/// The cost model's view of a cluster with a number of microbatches; see [`Router`].
#[derive(Clone, Copy)]
pub(crate) struct Prices<'a> {
    pub cluster: &'a Cluster,
    pub microbatches: usize,
}
