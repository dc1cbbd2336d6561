//! Independent results with which plans are compared: the integer programme for a solver ([`ilp`]), and the cost and memory of a finished sharding
//! from the graph alone ([`reprice_sharding`]).
//!
//! Plans are made without either. The prices of layers also use the second ([`account_by_node`]).

mod account;
pub mod ilp;
mod reprice;

pub(crate) use reprice::account_by_node;
pub use reprice::{RepricedSharding, reprice_sharding};
