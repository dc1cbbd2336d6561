//! A graph made anew with its values in other dims than a model has them: what the passes share that move transposes and
//! reshapes.
//!
//! A value is a view of another, its *base* (`view.rs`): transposes and reshapes are not computed where they stand, but remembered.
//! Ops are computed on what is viewed (`bases.rs`: which op how; `broadcast.rs`, `moves.rs`, `images.rs`), and views that
//! cancel leave nothing. Whoever needs the value as it is makes it (`rewrite.rs`, where to start reading). What is fed, given and
//! updated has the dims of the model always.

mod bases;
mod broadcast;
mod images;
mod moves;
mod rewrite;
#[cfg(test)]
pub(super) mod same;
mod view;

pub(super) use images::image_op;
pub(super) use rewrite::rewrite;
pub(super) use view::{View, ascending, reshaped};

/// What a graph is made anew for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Samples keep a dim of their own: no transpose or reshape of the model is computed that need not be.
    Samples,
    /// Images have their channels last. Views are of what convolution and pooling make and of what is computed of it; what the
    /// model moves otherwise is moved where it says so.
    Images,
}

impl Purpose {
    /// The pass: a tensor whose dims are not those of the model has its name and this one behind it.
    fn name(self) -> &'static str {
        match self {
            Self::Samples => "batch_first",
            Self::Images => "channels_last",
        }
    }
}
