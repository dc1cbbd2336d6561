//! Rectangles in which layouts overlap, and their copies between the row-major memory of shards: which part of a tensor
//! goes where.
//!
//! No communication and no threads here: collectives, channels, sessions and global tensors all move data by what this
//! module works out. Start reading with [`list_contributions`], then [`Move`].

mod fold;
mod moves;
mod reduce;
mod route;
mod wide;

pub(crate) use fold::{FoldOp, divide_elements, fold_elements, fold_wide, scale_elements};
pub(crate) use moves::Move;
pub(crate) use reduce::{combine_elements, combine_into, fill_identity};
pub(crate) use route::{Contribution, along_axis, list_contributions, masked_kind, partial_kind};
pub(crate) use wide::{is_half, join_wide, sums_wide};
