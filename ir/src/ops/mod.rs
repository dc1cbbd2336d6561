//! The ops, a file for each family: its payload and all that it means. Start with `matmul.rs`.

mod binary;
mod dropout;
mod embedding;
mod layout;
mod loss;
mod matmul;
mod movement;
mod normalize;
mod reduce;
mod select;
mod softmax;
mod source;
mod unary;
mod update;

pub use binary::*;
pub use dropout::*;
pub use embedding::*;
pub use layout::*;
pub use loss::*;
pub use matmul::*;
pub use movement::*;
pub use normalize::*;
pub use reduce::*;
pub use select::*;
pub use softmax::*;
pub use source::*;
pub use unary::*;
pub use update::*;
