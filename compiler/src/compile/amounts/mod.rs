//! How much is computed again: as little as the memory allows, as long as the memory that this takes is not dearer than computing.
//!
//! - [`frontier`]: what of a block is to be computed again at each price of memory, by minimum cuts.
//! - [`row`]: all that may be computed again in one row, what is cheapest for the bytes that it frees first. An *amount* is how many steps
//!   of this row are taken.
//! - [`depths`]: the same in a pipeline, by blocks.
//! - [`search`]: the least amount that fits.
//!
//! Nothing here plans: the caller does for each amount that is asked for. Start reading with [`Row::new`].

use std::collections::BTreeSet;

use crate::passes::recompute::OpPlace;

mod depths;
mod frontier;
mod row;
mod search;

pub(super) use depths::Depths;
pub(super) use row::{Full, Row, places, with_names};
use search::Amounts;
pub(super) use search::{Costs, least};

/// The order in which more and more is computed again.
pub(super) enum Order {
    /// Op by op.
    Ops(Row),
    /// By blocks, in a pipeline.
    Blocks(Depths),
}

impl Order {
    /// The ops of an amount.
    pub(super) fn ops(&self, amount: usize) -> BTreeSet<OpPlace> {
        match self {
            Self::Ops(row) => row.ops(amount),
            Self::Blocks(depths) => depths.ops(amount),
        }
    }

    /// The ops of the amount that is everything.
    pub(super) fn everything(&self) -> BTreeSet<OpPlace> {
        match self {
            Self::Ops(row) => row.ops(row.most()),
            Self::Blocks(depths) => depths.ops(depths.most()),
        }
    }

    /// The amounts, where memory is so much and a step with everything computed again takes so many seconds.
    pub(super) fn amounts(&self, limit: u64, step: f64) -> Amounts {
        match self {
            Self::Ops(row) => row.amounts(limit),
            Self::Blocks(depths) => depths.amounts(step),
        }
    }
}
