//! Eager global tensors: tensors that lie on the ranks of a group, one shard each, and operations that are executed when they are called. All ranks
//! run the same program, as processes or as threads.
//!
//! ```
//! use graphc_eager::Eager;
//! use graphc_ir::mesh::Placement;
//! use graphc_runtime::dist;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let sums = dist::spawn(2, |group| -> Result<_, Box<dyn std::error::Error>> {
//!     let (eager, pair) = (Eager::new(&group)?, Placement::mesh(&[2])?);
//!     let x = eager.ones([4, 4], &pair, &"S(0)".parse()?)?;
//!     let y = eager.ones([4, 4], &pair, &"S(1)".parse()?)?;
//!     Ok((&x + &y)?.to_host()?.to_f32()?)
//! })?;
//! assert_eq!(sums, [[2.0; 16]; 2]);
//! # Ok(())
//! # }
//! ```
//!
//! An operation is a graph of one op whose operands lie as they do: the compiler plans it, boxing included, and the runtime executes the plan on the
//! calling thread. Plans are kept by operation and layouts, so a loop plans once.
//!
//! This is a crate of its own, because the runtime must not depend on the compiler, and the root crate should hold nothing that a program needs.
//!
//! There are no gradients here: a network that learns is a graph. Start reading with [`Eager`] and [`GlobalTensor`], then `calls`, which does an
//! operation, and `planning`, which plans it.

#![warn(unreachable_pub)]

mod arithmetic;
mod calls;
mod context;
mod create;
mod error;
mod methods;
mod operation;
mod planning;
mod plans;
mod show;
mod spots;
mod tensor;

pub use context::Eager;
pub use error::EagerError;
pub use tensor::GlobalTensor;
