//! Numbers that are functions of a name: the same as in `record.py`.

use graphc::prelude::*;

fn hash(name: &str) -> u64 {
    let fold = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, fold)
}

/// Numbers in [0, 1).
pub fn numbers(name: &str, count: usize) -> Vec<f64> {
    let start = hash(name);
    let number = |at: u64| {
        let z = start.wrapping_add((at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f64 / f64::from(1 << 24)
    };
    (0..count as u64).map(number).collect()
}

fn signed(name: &str, shape: &[usize]) -> impl Iterator<Item = f64> {
    numbers(name, shape.iter().product()).into_iter().map(|x| 2.0 * x - 1.0)
}

fn tensor(shape: &[usize], data: impl Iterator<Item = f64>) -> HostTensor {
    let data: Vec<f32> = data.map(|x| x as f32).collect();
    HostTensor::from_f32(shape.to_vec(), &data).expect("as many as the shape says")
}

/// The first content of a variable.
pub fn weight(name: &str, shape: &[usize]) -> HostTensor {
    let signed = signed(name, shape);
    if shape.len() > 1 {
        let inputs: usize = shape[1..].iter().product();
        return tensor(shape, signed.map(|x| x * (3.0 / inputs as f64).sqrt()));
    }
    match name.ends_with("running_var") || name.ends_with("weight") {
        true => tensor(shape, signed.map(|x| 1.0 + 0.5 * x)),
        false => tensor(shape, signed.map(|x| 0.1 * x)),
    }
}

/// Data in [-1, 1), moved by `shift`.
pub fn floats(name: &str, shape: &[usize], shift: f64) -> HostTensor {
    tensor(shape, signed(name, shape).map(|x| x + shift))
}

/// Classes or tokens.
pub fn classes(name: &str, shape: &[usize], count: usize) -> HostTensor {
    let numbers = numbers(name, shape.iter().product());
    let data: Vec<i64> = numbers.iter().map(|x| (x * count as f64).floor() as i64).collect();
    HostTensor::from_i64(shape.to_vec(), &data).expect("as many as the shape says")
}
