//! Cards, and the libraries that they need, for `graphc devices`; kernels that are compiled for cards of another machine, for
//! `graphc kernels`; and a workbench, on which a card executes single calls.

pub use crate::device::cuda::{
    Card, Content, Found, Library, NotFound, PrepareError, Workbench, WorkbenchError, list_cards,
    take_notes,
};
pub use crate::session::{PreparedKernels, prepare_kernels};
