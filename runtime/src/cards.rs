//! What there is to compute on besides the processor: cards and the libraries that they need, for `graphc devices`; and kernels that
//! are compiled for cards of another machine, for `graphc kernels`.

pub use crate::device::cuda::{
    Card, Found, Library, NotFound, PrepareError, cards, take_note as take_cache_note,
};
pub use crate::session::{Prepared, prepare_kernels};
