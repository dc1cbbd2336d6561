//! A double of NVIDIA's cards for tests: CUDA's driver API on a CPU, strict about what a program may do.
//!
//! One shared library has the symbols of the driver, of NVRTC (handed on to NVIDIA's compiler), and of the doubles of
//! cuBLASLt and NCCL. A program that opens those libraries by name runs on it unchanged. Its kernels are the PTX that
//! NVRTC made of their sources, executed thread by thread.
//!
//! Mistakes that a card would make silently are errors here: reads of what nothing wrote, accesses outside of allocations, races between
//! threads, and operations of streams that no event orders. See docs/gpu.md.
//!
//! Unsafe code is here because the double is C's interface from end to end. Its libraries (`driver`, `nvrtc`, `nvtx`,
//! `cublaslt`, `nccl`) take pointers of the caller and call functions of NVIDIA's compiler, and `memory/storage` holds
//! memory that the host program writes, too.
//!
//! Start reading with `machine`, then `kernel`.

// C's names.
#![allow(non_snake_case)]

mod account;
mod card;
mod code;
pub mod cublaslt;
pub mod driver;
mod install;
mod kernel;
mod machine;
mod memory;
pub mod nccl;
pub mod nvrtc;
mod nvtx;
mod ptx;
pub mod settings;
pub mod work;

pub use card::{Argument, Card, Module, Refusal};
pub use install::{Env, install, library};
pub use kernel::{Report, Stats, Traffic, Wrong};
pub use memory::Trouble;
pub use nvrtc::{Ptx, compile};
pub use ptx::Malformed;
