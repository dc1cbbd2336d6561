//! Independent results that plans are held against: the integer programme for a solver ([`ilp`]), and the cost and
//! memory of a finished sharding from the graph alone ([`recompute`](recompute::recompute)).
//!
//! Plans are made without either. The prices of layers also read the second ([`account`](recompute::account)).

mod account;
pub mod ilp;
mod recompute;

pub use account::Account;
pub use recompute::{Recomputed, account_by_node, reprice_sharding};
