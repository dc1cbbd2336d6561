//! How much is computed again: as little as the memory allows, as long as the memory that this takes is not dearer than computing.
//!
//! - [`frontier`]: what of a block is to be computed again at each price of memory, by minimum cuts.
//! - [`row`]: all that may be computed again in one row, what is cheapest for the bytes that it frees first. An *amount* is how many steps
//!   of this row are taken.
//! - [`search`]: the least amount that fits.
//!
//! Nothing here plans: the caller does for each amount that is asked for. Start reading with [`Row::new`].

mod frontier;
mod row;
mod search;

pub(super) use row::{Full, Row, places, with_names};
pub(super) use search::{Costs, Known, least};
