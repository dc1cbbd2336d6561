//! Products of matrices by whole warps, and copies beside the kernel.

mod support;

use gpu_double::Argument::{I32, Pointer};
use gpu_double::{Card, Refusal, Wrong, compile, nvrtc};
use support::{bytes, card, close, floats, numbers};

const SOURCE: &str = include_str!("matrices.cu");

fn bf16(values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let halves: Vec<half::bf16> = values.iter().map(|x| half::bf16::from_f32(*x)).collect();
    let bytes = halves.iter().flat_map(|x| x.to_le_bytes()).collect();
    (bytes, halves.iter().map(|x| x.to_f32()).collect())
}

fn f16(values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let halves: Vec<half::f16> = values.iter().map(|x| half::f16::from_f32(*x)).collect();
    let bytes = halves.iter().flat_map(|x| x.to_le_bytes()).collect();
    (bytes, halves.iter().map(|x| x.to_f32()).collect())
}

#[test]
fn blocks_of_bf16_with_copies_beside_the_kernel() {
    for (mut card, module) in card(SOURCE) {
        let (m, n, k) = (64, 128, 96);
        let (a, wide_a) = bf16(&numbers(m * k, 1));
        let (b, wide_b) = bf16(&numbers(n * k, 2));
        let at = [card.upload(&a), card.upload(&b), card.allocate(4 * m * n)];
        let mut arguments: Vec<_> = at.map(Pointer).to_vec();
        arguments.extend([m, n, k].map(|extent| I32(extent as i32)));
        let shape = ([n as u32 / 64, m as u32 / 64, 1], [128, 1, 1]);
        card.launch(&module, "tensor_product", shape, 0, &arguments).unwrap();
        let dot = |i: usize, j: usize| (0..k).map(|q| wide_a[i * k + q] * wide_b[j * k + q]).sum();
        let wanted: Vec<f32> = (0..m * n).map(|at| dot(at / n, at % n)).collect();
        close(&floats(&card.read(at[2], 4 * m * n).unwrap()), &wanted, 1e-5);
    }
}

#[test]
fn copies_that_nobody_waits_for_are_found() {
    if !nvrtc::is_installed() {
        return println!("skipped: NVRTC is not installed");
    }
    let mut card = Card::new(0);
    let ptx = compile(SOURCE, "sm_90", &["--define-macro=NO_WAIT"]).unwrap();
    let module = card.load(&ptx).unwrap();
    let at = [card.upload(&[0; 4096]), card.upload(&[0; 4096]), card.allocate(4 * 64 * 64)];
    let mut arguments: Vec<_> = at.map(Pointer).to_vec();
    arguments.extend([I32(64), I32(64), I32(32)]);
    let shape = ([1, 1, 1], [128, 1, 1]);
    match card.launch(&module, "tensor_product", shape, 0, &arguments) {
        Err(Refusal::Wrong(report)) => {
            assert!(matches!(report.wrong, Wrong::InFlight { .. }), "{report}");
            assert!(report.text.starts_with("ldmatrix"), "{report}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_product_of_each_kind() {
    let kinds =
        [("product_f16_16", 16, true), ("product_bf16_16", 16, false), ("product_f16_8", 8, true)];
    for (mut card, module) in card(SOURCE) {
        for (name, k, is_f16) in kinds {
            let narrow = if is_f16 { f16 } else { bf16 };
            let (a, wide_a) = narrow(&numbers(16 * k, 3));
            let (b, wide_b) = narrow(&numbers(8 * k, 4));
            let at = [card.upload(&a), card.upload(&b), card.allocate(4 * 128)];
            let shape = ([1, 1, 1], [32, 1, 1]);
            card.launch(&module, name, shape, 0, &at.map(Pointer)).unwrap();
            let got = floats(&card.read(at[2], 512).unwrap());
            close(&got, &product(&wide_a, &wide_b, k, 1.0), 1e-5);
        }
    }
}

#[test]
fn a_product_of_tf32() {
    for (mut card, module) in card(SOURCE) {
        let (a, b) = (numbers(128, 5), numbers(64, 6));
        let at = [card.upload(&bytes(&a)), card.upload(&bytes(&b)), card.allocate(512)];
        card.launch(&module, "product_tf32", ([1, 1, 1], [32, 1, 1]), 0, &at.map(Pointer)).unwrap();
        let got = floats(&card.read(at[2], 512).unwrap());
        close(&got, &product(&a, &b, 8, 0.0), 2e-3);
        let narrow = |values: &[f32]| -> Vec<f32> {
            let round = |x: &f32| f32::from_bits((x.to_bits() + 0x1000) & !0x1FFF);
            values.iter().map(round).collect()
        };
        close(&got, &product(&narrow(&a), &narrow(&b), 8, 0.0), 1e-6);
    }
}

/// 16 x k times k x 8, on top of the same number everywhere.
fn product(a: &[f32], b: &[f32], k: usize, on: f32) -> Vec<f32> {
    let dot = |i: usize, j: usize| (0..k).map(|q| a[i * k + q] * b[q * 8 + j]).sum::<f32>();
    (0..128).map(|at| on + dot(at / 8, at % 8)).collect()
}
