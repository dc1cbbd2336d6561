//! What there is to compute on besides the processor: cards and the libraries that they need, for `graphc devices`.

pub use crate::device::cuda::{Card, Found, Library, NotFound, cards};
