//! Support that tests of kernels share, each a part of it.

#![allow(dead_code, reason = "each test binary uses a part")]

use gpu_double::{Card, Module, compile, nvrtc};

/// A card with the kernels of a source, for each architecture; none where the compiler is not installed.
pub fn card(source: &str) -> Vec<(Card, Module)> {
    if !nvrtc::is_installed() {
        println!("skipped: NVRTC is not installed");
        return Vec::new();
    }
    let architectures = ["sm_80", "sm_90"];
    let cards = architectures.iter().enumerate().map(|(seed, architecture)| {
        let ptx = compile(source, architecture, &[]).unwrap_or_else(|log| panic!("{log}"));
        let mut card = Card::new(seed as u64);
        let module = card.load(&ptx).unwrap_or_else(|malformed| panic!("{malformed}"));
        (card, module)
    });
    cards.collect()
}

/// Numbers between -1 and 1.
pub fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    next();
    (0..count).map(|_| next()).collect()
}

pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

pub fn halves(bytes: &[u8]) -> Vec<u16> {
    bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect()
}

/// Checks that all numbers agree but for a share of what they are.
pub fn close(got: &[f32], wanted: &[f32], share: f32) {
    assert_eq!(got.len(), wanted.len());
    for (at, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        let error = (got - wanted).abs() / (1.0 + wanted.abs());
        assert!(error <= share, "element {at} is {got} instead of {wanted}");
    }
}
