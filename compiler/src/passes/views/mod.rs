//! Rewrites a graph so that its values have other dims than in the model; `batch_first`, `channels_last` and `rows`
//! share this.
//!
//! A value is a view of another, its *base* (`view.rs`). Transposes and reshapes are not computed where they stand,
//! but remembered as views. Ops are computed on bases: `bases.rs` says how for each op, with `broadcast.rs`,
//! `moves.rs` and `images.rs`. Views that cancel leave nothing.
//!
//! A reader that needs the value as it is makes it (`rewrite.rs`; start reading there). Inputs, outputs and updated
//! variables always keep the dims of the model.

mod bases;
mod broadcast;
mod images;
mod moves;
mod rewrite;
#[cfg(test)]
pub(super) mod same;
mod view;

pub(super) use images::image_op;
pub(super) use rewrite::rewrite_views;
pub(super) use view::{BaseView, is_ascending, reshape_view};

/// The purpose for which a graph is made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Samples keep a dim of their own: no transpose or reshape of the model is computed that need not be.
    Samples,
    /// Images have their channels last. Views are of what convolution and pooling make and of what is computed of it; what the
    /// model moves otherwise is moved where it says so.
    Images,
    /// Leading dims that a product with a matrix takes as one stay apart. Views are of what is reshaped so and of what is computed of it.
    Rows,
}

impl Purpose {
    /// The pass: a tensor whose dims are not those of the model has its name and this one behind it.
    fn name(self) -> &'static str {
        match self {
            Self::Samples => "batch_first",
            Self::Images => "channels_last",
            Self::Rows => "rows",
        }
    }
}
