//! The kernels of all ops for the processor, behind one entry point: [`prepare`] is the exhaustive match on op, element types and
//! device. Kernels of CUDA devices are sources, in [`cuda`].
//!
//! A call is prepared once, for the types of all its operands and results, and launched as often as needed. A kernel reads and
//! writes shards ([`View`], [`ViewMut`]) whose places in their tensors are known. It allocates nothing in steady state (see
//! [`Scratch`]) and communicates with nobody. It gives the same bits whatever the number of threads: the shape alone partitions
//! reductions.
//!
//! Kernels compute in `f32`. Elements of 16 bits are widened, and results rounded once. Start reading with [`prepare`], then
//! `elementwise`.

#![warn(unreachable_pub)]

mod accumulate;
mod attention;
mod clipping;
mod context;
mod convolution;
pub mod cuda;
mod cumulative;
mod custom;
mod elementwise;
mod embedding;
mod epilogue;
mod error;
mod experts;
mod explore;
mod float8;
mod gather;
mod grouped;
mod indices;
mod lookup;
mod loss;
mod math;
mod matmul;
mod movement;
mod normalize;
#[cfg(target_arch = "x86_64")]
mod panels;
mod parallel;
mod pool;
mod precision;
mod prepare;
mod product;
mod recurrence;
mod reduce;
mod resize;
mod rotary;
mod rows;
mod scaling;
mod scatter;
mod simd;
mod sink;
mod softmax;
mod source;
mod strided;
mod summed;
mod threads;
mod top_k;
mod update;
mod updated;
#[cfg(target_arch = "x86_64")]
mod vectors;
mod view;

pub use accumulate::{accumulate_into, combine_into, sum_in_both, sum_of_two};
pub use context::KernelContext;
pub use custom::{CustomError, CustomKernels};
pub use error::KernelError;
pub use precision::{narrow_to_halves, widen_halves};
pub use prepare::{
    Prepared, prepare_custom, prepare_fused, prepare_op, prepare_summed, prepare_updated,
};
pub use threads::ThreadPool;
pub use view::{Element, Flat, Scratch, View, ViewMut};
