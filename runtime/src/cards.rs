//! What there is to compute on besides the processor: cards and the libraries that they need, for `graphc devices`; and a workbench, on which
//! a card executes single calls.

pub use crate::device::cuda::{
    Card, Content, Found, Library, NotFound, Workbench, WorkbenchError, cards,
};
