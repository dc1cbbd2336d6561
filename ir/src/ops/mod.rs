//! The ops, a file for each family: its payload and all that it means. Start with `matmul.rs`.

mod binary;
mod broadcast;
mod concat;
mod dropout;
mod embedding;
mod layout;
mod loss;
mod matmul;
mod movement;
mod normalize;
mod reduce;
mod reshape;
mod select;
pub(crate) mod shards;
mod slice;
mod softmax;
mod source;
mod unary;
mod update;

pub use binary::*;
pub use concat::*;
pub use dropout::*;
pub use embedding::*;
pub use layout::*;
pub use loss::*;
pub use matmul::*;
pub use movement::*;
pub use normalize::*;
pub use reduce::*;
pub use reshape::*;
pub use select::*;
pub use slice::*;
pub use softmax::*;
pub use source::*;
pub use unary::*;
pub use update::*;
