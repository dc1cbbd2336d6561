//! Finds the least amount of recomputation with which a plan fits the memory, unless memory then costs more than computing.
//!
//! - [`frontier`]: the ops of a block that are best recomputed at each price of memory, by minimum cuts.
//! - [`row`]: all these ops in one row, ordered by the cost of the bytes that they free. An *amount* is the number of steps of this row that are
//!   taken.
//! - [`search`]: the least amount that fits.
//!
//! Nothing here plans: the caller makes a plan for each amount that is asked for. Start reading with [`Row::new`].

mod frontier;
mod row;
mod search;

pub(super) use row::{FullRecompute, Row, find_op_places, with_names};
pub(super) use search::{Costs, KnownPlans, plan_least_amount};
