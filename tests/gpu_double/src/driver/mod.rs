//! The functions of CUDA's driver API, each a few lines over [`crate::machine`]. Arguments are checked as the driver checks
//! them; pointers are the caller's word.

pub mod context;
