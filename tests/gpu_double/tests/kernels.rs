//! Kernels that NVRTC compiles and the double executes, against the same computed here.

mod support;

use gpu_double::Argument::{F32, I32, I64, Pointer, U64};
use gpu_double::{Card, compile, nvrtc};
use support::{bytes, card, close, floats, halves, numbers};

const SOURCE: &str = include_str!("kernels.cu");

#[test]
fn one_element_a_thread() {
    for (mut card, module) in card(SOURCE) {
        let (x, y) = (numbers(1000, 1), numbers(1000, 2));
        let (a, b) = (card.upload(&bytes(&x)), card.upload(&bytes(&y)));
        let c = card.allocate(4000);
        let arguments = [Pointer(a), Pointer(b), Pointer(c), I32(1000)];
        card.launch(&module, "axpy", ([4, 1, 1], [256, 1, 1]), 0, &arguments).unwrap();
        let wanted: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 2f32.mul_add(*x, *y)).collect();
        assert_eq!(floats(&card.read(c, 4000).unwrap()), wanted);
    }
}

#[test]
fn softmax_of_rows() {
    for (mut card, module) in card(SOURCE) {
        let (rows, width) = (5, 300);
        let x = numbers(rows * width, 3);
        let (a, y) = (card.upload(&bytes(&x)), card.allocate(4 * rows * width));
        let arguments = [Pointer(a), Pointer(y), I32(width as i32)];
        let shape = ([rows as u32, 1, 1], [128, 1, 1]);
        card.launch(&module, "softmax", shape, 0, &arguments).unwrap();
        let wanted: Vec<f32> = x
            .chunks(width)
            .flat_map(|row| {
                let powers: Vec<f64> = row.iter().map(|x| f64::from(*x).exp()).collect();
                let sum: f64 = powers.iter().sum();
                powers.into_iter().map(move |power| (power / sum) as f32)
            })
            .collect();
        close(&floats(&card.read(y, 4 * rows * width).unwrap()), &wanted, 1e-6);
    }
}

#[test]
fn fast_arithmetic_takes_subnormal_numbers_for_zero() {
    if !nvrtc::is_installed() {
        return println!("skipped: NVRTC is not installed");
    }
    let mut card = Card::new(0);
    let ptx = compile(SOURCE, "sm_90", &["--use_fast_math"]).unwrap();
    let module = card.load(&ptx).unwrap();
    let x = [1e-39, 1.0, -1e-40, 2.0];
    let (a, b) = (card.upload(&bytes(&x)), card.upload(&bytes(&[0.0; 4])));
    let (c, y) = (card.allocate(16), card.allocate(16));
    let arguments = [Pointer(a), Pointer(b), Pointer(c), I32(4)];
    card.launch(&module, "axpy", ([1, 1, 1], [32, 1, 1]), 0, &arguments).unwrap();
    assert_eq!(floats(&card.read(c, 16).unwrap()), [0.0, 2.0, 0.0, 4.0]);
    let arguments = [Pointer(a), Pointer(y), I32(4)];
    card.launch(&module, "softmax", ([1, 1, 1], [128, 1, 1]), 0, &arguments).unwrap();
    let sum = 2.0 + 1f32.exp() + 2f32.exp();
    let wanted = x.map(|x| x.exp() / sum);
    close(&floats(&card.read(y, 16).unwrap()), &wanted, 1e-6);
}

#[test]
fn a_product_by_tiles() {
    for (mut card, module) in card(SOURCE) {
        let (m, n, k) = (40, 50, 33);
        let (a, b) = (numbers(m * k, 4), numbers(k * n, 5));
        let (pa, pb) = (card.upload(&bytes(&a)), card.upload(&bytes(&b)));
        let c = card.allocate(4 * m * n);
        let arguments =
            [Pointer(pa), Pointer(pb), Pointer(c), I32(m as i32), I32(n as i32), I32(k as i32)];
        let shape = ([4, 3, 1], [16, 16, 1]);
        card.launch(&module, "product", shape, 0, &arguments).unwrap();
        let wanted: Vec<f32> = (0..m * n)
            .map(|at| (0..k).map(|q| a[at / n * k + q] * b[q * n + at % n]).sum())
            .collect();
        close(&floats(&card.read(c, 4 * m * n).unwrap()), &wanted, 1e-5);
    }
}

#[test]
fn a_step_of_adam() {
    for (mut card, module) in card(SOURCE) {
        let count = 777;
        let [p, g, m] = [6, 7, 8].map(|seed| numbers(count, seed));
        let v: Vec<f32> = numbers(count, 9).iter().map(|x| x * x).collect();
        let at = [&p, &g, &m, &v].map(|values| card.upload(&bytes(values)));
        let mut arguments: Vec<_> = at.iter().map(|at| Pointer(*at)).collect();
        arguments.extend([I64(count as i64), F32(1e-3), F32(0.9), F32(0.95), F32(1e-8)]);
        card.launch(&module, "adam", ([2, 1, 1], [128, 1, 1]), 0, &arguments).unwrap();
        let wanted: Vec<f32> = (0..count)
            .map(|i| {
                let mean = 0.9 * m[i] + (1.0 - 0.9) * g[i];
                let square = 0.95 * v[i] + (1.0 - 0.95) * g[i] * g[i];
                p[i] - 1e-3 * mean / (square.sqrt() + 1e-8)
            })
            .collect();
        close(&floats(&card.read(at[0], 4 * count).unwrap()), &wanted, 1e-6);
    }
}

#[test]
fn random_numbers_of_philox_have_their_bits() {
    for (mut card, module) in card(SOURCE) {
        let count = 500;
        let y = card.allocate(4 * count);
        let arguments = [Pointer(y), I32(count as i32), U64(0x1234_5678_9ABC_DEF0)];
        card.launch(&module, "philox", ([4, 1, 1], [128, 1, 1]), 0, &arguments).unwrap();
        let wanted: Vec<u32> =
            (0..count as u32).map(|i| philox(i, 0x1234_5678_9ABC_DEF0)).collect();
        let got = card.read(y, 4 * count).unwrap();
        let got: Vec<u32> = floats(&got).iter().map(|x| x.to_bits()).collect();
        assert_eq!(got, wanted);
    }
}

fn philox(counter: u32, seed: u64) -> u32 {
    let (mut key, mut c) = ([seed as u32, (seed >> 32) as u32], [counter, 0, 0, 0]);
    for _ in 0..10 {
        let (a, b) = (0xD251_1F53u64 * u64::from(c[0]), 0xCD9E_8D57u64 * u64::from(c[2]));
        c = [
            (b >> 32) as u32 ^ c[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ c[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    c[0]
}

#[test]
fn sums_by_atomics_and_by_the_last_block() {
    for (mut card, module) in card(SOURCE) {
        let x: Vec<f32> = (0..5000).map(|i| (i % 7) as f32).collect();
        let wanted: f32 = x.iter().sum();
        let a = card.upload(&bytes(&x));
        let (sum, parts) = (card.upload(&bytes(&[0.0])), card.allocate(4 * 10));
        let count = card.upload(&[0; 4]);
        let shape = ([10, 1, 1], [128, 1, 1]);
        card.launch(&module, "atomic_sum", shape, 0, &[Pointer(a), Pointer(sum), I32(5000)])
            .unwrap();
        assert_eq!(floats(&card.read(sum, 4).unwrap()), [wanted]);
        let out = card.allocate(4);
        let arguments = [Pointer(a), Pointer(parts), Pointer(count), Pointer(out), I32(5000)];
        card.launch(&module, "last_block_sum", shape, 0, &arguments).unwrap();
        assert_eq!(floats(&card.read(out, 4).unwrap()), [wanted]);
    }
}

#[test]
fn halves_by_inline_conversions() {
    for (mut card, module) in card(SOURCE) {
        let x = numbers(1000, 10);
        let a = card.upload(&bytes(&x));
        let (bf, hf) = (card.allocate(2000), card.allocate(2000));
        let back = card.allocate(4000);
        let arguments = [Pointer(a), Pointer(bf), Pointer(hf), Pointer(back), I32(1000)];
        card.launch(&module, "narrow", ([4, 1, 1], [256, 1, 1]), 0, &arguments).unwrap();
        let wanted: Vec<u16> = x.iter().map(|x| half::bf16::from_f32(*x).to_bits()).collect();
        assert_eq!(halves(&card.read(bf, 2000).unwrap()), wanted);
        let wanted: Vec<u16> = x.iter().map(|x| half::f16::from_f32(*x).to_bits()).collect();
        assert_eq!(halves(&card.read(hf, 2000).unwrap()), wanted);
        let wanted: Vec<f32> = x
            .iter()
            .map(|x| half::bf16::from_f32(*x).to_f32() + half::f16::from_f32(*x).to_f32())
            .collect();
        assert_eq!(floats(&card.read(back, 4000).unwrap()), wanted);
    }
}
