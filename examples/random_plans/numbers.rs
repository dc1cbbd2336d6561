//! Random numbers for engines that must draw the same: words, uniform and normal numbers, and what dropout drops.

use std::path::Path;

use graphc::ir::op::EvalContext;
use graphc::ir::ops::DropoutOp;
use graphc::ir::random::{RandomStream, key_of};
use graphc::prelude::*;
use graphc::runtime::data::save_safetensors;

const ELEMENTS: u64 = 4096;
const SEED: u64 = 0x1234_5678_9ABC_DEF0;
const STEP: u64 = (1 << 33) + 5;

/// Writes `random.safetensors`: of the key of the name `w`, from element 2^32 - 2048 on.
pub fn write(folder: &str) -> anyhow::Result<()> {
    let stream = RandomStream { seed: SEED, key: key_of("w"), step: STEP };
    let elements: Vec<u64> = (0..ELEMENTS).map(|i| (1 << 32) - ELEMENTS / 2 + i).collect();
    let words: Vec<f64> = elements.iter().flat_map(|&e| stream.words(e)).map(f64::from).collect();
    let numbers =
        |of: &dyn Fn(u64) -> f32| -> Vec<f32> { elements.iter().map(|&e| of(e)).collect() };
    let count = [ELEMENTS as usize];
    let tensors = [
        ("words", HostTensor::from_f64(DType::I64, [count[0], 4], &words)?),
        ("uniform", HostTensor::from_f32(count, &numbers(&|e| stream.uniform(e)))?),
        ("normal", HostTensor::from_f32(count, &numbers(&|e| stream.normal(e)))?),
        ("dropped", HostTensor::from_f64(DType::Bool, count, &dropped(&elements, stream.key))?),
    ];
    let tensors = tensors.map(|(name, tensor)| (name.to_owned(), tensor)).into();
    save_safetensors(&Path::new(folder).join("random.safetensors"), &tensors)?;
    Ok(())
}

fn dropped(elements: &[u64], key: u64) -> Vec<f64> {
    let op = DropoutOp { probability: 0.3.into(), key, training: true };
    let cx = EvalContext { seed: SEED, step: STEP };
    elements.iter().map(|&e| f64::from(u8::from(op.drops_element(&cx, e)))).collect()
}
