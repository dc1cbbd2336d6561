//! Memory of the cards and pinned memory of the host, with all that is known about each byte: whether it was written, and
//! which operation touched it last. Knows nothing of kernels or of the driver's API. Start reading with [`Space`].

mod clock;
mod page;
mod space;
mod storage;
mod touch;
mod trouble;

pub use clock::{Clock, Operations};
pub use space::{Home, Space};
pub use touch::{Access, Heard, Who};
pub use trouble::Trouble;

pub(crate) use page::Kind;
