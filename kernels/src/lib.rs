//! The kernels of all ops, behind one lookup: [`lookup`] is the exhaustive match on (op, element type, device).
//!
//! A kernel reads and writes shards ([`View`], [`ViewMut`]) of known place in their tensors. It allocates nothing in
//! steady state (see [`Scratch`]), communicates with nobody, and gives the same bits whatever the number of threads:
//! reductions are partitioned by shape only. Start reading with [`lookup`], then `elementwise`.

mod accumulate;
mod attention;
mod context;
mod convolution;
mod elementwise;
mod embedding;
mod error;
mod experts;
mod indices;
mod lookup;
mod loss;
mod math;
mod matmul;
mod movement;
mod normalize;
mod parallel;
mod pool;
mod product;
mod reduce;
mod rotary;
mod rows;
mod scaling;
mod simd;
mod softmax;
mod source;
mod strided;
mod update;
mod view;

pub use accumulate::{accumulate, combine, sum_in_both, sum_of_two};
pub use context::{Kernel, KernelContext};
pub use elementwise::fused;
pub use error::KernelError;
pub use lookup::{in_place, lookup};
pub use view::{Element, Flat, Scratch, View, ViewMut};
