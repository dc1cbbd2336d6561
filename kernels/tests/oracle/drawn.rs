//! Random cases for tests: types, and repetition over seeds.

use crate::common::Random;
use graphc_ir::types::{DType, TensorType};

pub fn ty(dtype: DType, shape: &[usize]) -> TensorType {
    TensorType::new(dtype, shape)
}

pub fn f32s(shape: &[usize]) -> TensorType {
    ty(DType::F32, shape)
}

/// Checks for each of so many seeds.
pub fn repeat(times: u64, mut check: impl FnMut(&mut Random)) {
    for seed in 0..times {
        check(&mut Random::new(seed));
    }
}
