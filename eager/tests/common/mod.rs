//! What tests of eager tensors share.

#![allow(dead_code, reason = "each test uses some of it")]

use graphc_eager::{Eager, GlobalTensor};
use graphc_ir::sbp::NdSbp;
use graphc_runtime::HostTensor;
use graphc_runtime::dist;

pub type Failure = Box<dyn std::error::Error>;

pub fn sbp(text: &str) -> NdSbp {
    text.parse().expect("an SBP")
}

/// Runs a program on ranks that are threads, which all succeed.
pub fn on<T: Send>(ranks: u32, program: impl Fn(Eager) -> Result<T, Failure> + Sync) -> Vec<T> {
    let run = |group: dist::Group| program(Eager::new(&group)?);
    dist::spawn(ranks, run).expect("every rank succeeds")
}

pub fn wholes(tensors: &[GlobalTensor]) -> Result<Vec<HostTensor>, Failure> {
    Ok(tensors.iter().map(GlobalTensor::to_host).collect::<Result<_, _>>()?)
}

pub fn numbers(tensor: &HostTensor) -> Vec<f64> {
    tensor.to_f64()
}
