//! A double of cuBLASLt: products of matrices, for f32, f16 and bf16 with sums in f32.
//!
//! [`exports`] has the functions of C; [`descriptors`] is what they describe a product with, [`problem`] one such product
//! as a typed value, after all checks; [`heuristic`] says how it is computed, [`offer`] what a test has it say,
//! [`product`] computes it on a stream and [`epilogue`] what comes behind the sums. It never computes what NVIDIA's
//! library would refuse: each refusal has that library's status, and a sentence on standard error.

pub mod descriptors;
pub mod epilogue;
pub mod exports;
pub mod heuristic;
pub mod offer;
pub mod problem;
pub mod product;
pub mod settings;
pub mod types;
