//! Instruction by instruction: what the double computes against the same of Rust.

mod support;

use gpu_double::Argument::{self, Bytes, I32, Pointer};
use support::{bytes, card, close, floats, numbers};

const SOURCE: &str = include_str!("instructions.cu");

/// Numbers with all kinds of bits.
fn words(count: usize, seed: u64) -> Vec<u32> {
    let some = [0, 1, u32::MAX, 1 << 31, 0x7FFF_FFFF, 0x0000_FF80];
    let rest =
        (0..).map(|i: u64| ((i + 1) * (seed * 2 + 1)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32);
    some.into_iter()
        .cycle()
        .skip(seed as usize)
        .take(6)
        .chain(rest.map(|x| x as u32))
        .take(count)
        .collect()
}

fn word_bytes(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn to_words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn wide_bytes(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

const ONE: ([u32; 3], [u32; 3]) = ([1, 1, 1], [64, 1, 1]);

#[test]
fn integers_of_32_bits() {
    let (x, y) = (words(60, 0), words(60, 3));
    for (mut card, module) in card(SOURCE) {
        let at = [card.upload(&word_bytes(&x)), card.upload(&word_bytes(&y))];
        let out = card.allocate(4 * 24 * 60);
        let arguments = [Pointer(at[0]), Pointer(at[1]), Pointer(out), I32(60)];
        card.launch(&module, "bits", ONE, 0, &arguments).unwrap();
        let got = to_words(&card.read(out, 4 * 24 * 60).unwrap());
        for (i, got) in got.chunks(24).enumerate() {
            assert_eq!(got, bits(x[i], y[i]), "of {:#x} and {:#x}", x[i], y[i]);
        }
    }
}

fn bits(a: u32, b: u32) -> [u32; 24] {
    let (sa, sb) = (a as i32, b as i32);
    let both = u64::from(b) << 32 | u64::from(a);
    let odd = sb | 1;
    [
        a.count_ones(),
        a.leading_zeros(),
        a.reverse_bits(),
        if a == 0 { 0 } else { a.trailing_zeros() + 1 },
        (a & 0xFF) | (b & 0xFF) << 8 | (a >> 8 & 0xFF) << 16 | (b >> 8 & 0xFF) << 24,
        (both << (b & 31) >> 32) as u32,
        (both >> (b & 31)) as u32,
        a >> (b & 15) & 0xFFF,
        (sa >> (b & 31)) as u32,
        a << (b & 31),
        (a & b) ^ !(a | b),
        ((u64::from(a) * u64::from(b)) >> 32) as u32,
        ((i64::from(sa) * i64::from(sb)) >> 32) as u32,
        a.checked_div(b).unwrap_or(7),
        a.checked_rem(b).unwrap_or(7),
        if b == 0 { 7 } else { sa.wrapping_div(odd) as u32 },
        sa.wrapping_rem(odd) as u32,
        sa.max(sb) as u32,
        a.min(b),
        sa.wrapping_abs() as u32,
        a as i8 as u32,
        b as i16 as u32,
        ((u64::from(a) * u64::from(b)) >> 20) as u32,
        ((i64::from(sa) - i64::from(sb)).unsigned_abs() as u32).wrapping_add(5),
    ]
}

#[test]
fn integers_of_64_bits() {
    let pair = |seed: usize| -> Vec<u64> {
        let halves = words(120, seed as u64);
        halves.chunks(2).map(|pair| u64::from(pair[0]) << 32 | u64::from(pair[1])).collect()
    };
    let (x, y) = (pair(1), pair(4));
    for (mut card, module) in card(SOURCE) {
        let at = [card.upload(&wide_bytes(&x)), card.upload(&wide_bytes(&y))];
        let out = card.allocate(8 * 10 * 60);
        let arguments = [Pointer(at[0]), Pointer(at[1]), Pointer(out), I32(60)];
        card.launch(&module, "wide", ONE, 0, &arguments).unwrap();
        let got = card.read(out, 8 * 10 * 60).unwrap();
        let got: Vec<u64> =
            got.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().unwrap())).collect();
        for (i, got) in got.chunks(10).enumerate() {
            assert_eq!(got, wide(x[i], y[i] | 1), "of {:#x} and {:#x}", x[i], y[i] | 1);
        }
    }
}

fn wide(a: u64, b: u64) -> [u64; 10] {
    let (sa, sb) = (a as i64, b as i64);
    [
        a / b,
        a % b,
        sa.wrapping_div(sb) as u64,
        sa.wrapping_rem(sb) as u64,
        ((u128::from(a) * u128::from(b)) >> 64) as u64,
        ((i128::from(sa) * i128::from(sb)) >> 64) as u64,
        u64::from(a.count_ones()),
        u64::from(a.leading_zeros()),
        a.reverse_bits(),
        a.wrapping_mul(b).wrapping_add(a >> 7),
    ]
}

#[test]
fn functions_of_floats() {
    let (x, y) = (numbers(60, 1), numbers(60, 2));
    for (mut card, module) in card(SOURCE) {
        let at = [card.upload(&bytes(&x)), card.upload(&bytes(&y))];
        let out = card.allocate(4 * 32 * 60);
        let arguments = [Pointer(at[0]), Pointer(at[1]), Pointer(out), I32(60)];
        card.launch(&module, "floats", ONE, 0, &arguments).unwrap();
        let got = floats(&card.read(out, 4 * 32 * 60).unwrap());
        let wanted: Vec<f32> = x.iter().zip(&y).flat_map(|(x, y)| functions(*x, *y)).collect();
        close(&got, &wanted, 2e-6);
        for (i, got) in got.chunks(32).enumerate() {
            let (a, b) = (f64::from(x[i]), f64::from(y[i]));
            let exact = [a * b + 1.0, a + b, a * b];
            assert!(f64::from(got[20]) <= exact[0] && exact[0] <= f64::from(got[20].next_up()));
            assert!(f64::from(got[21]) >= exact[1] && exact[1] >= f64::from(got[21].next_down()));
            assert!(f64::from(got[22]).abs() <= exact[2].abs());
        }
    }
}

fn functions(a: f32, b: f32) -> [f32; 32] {
    let wide = f64::from(a);
    let f = |value: f64| value as f32;
    [
        a / b,
        a.abs().sqrt(),
        f(1.0 / wide.abs().sqrt()),
        f(wide.exp()),
        f(wide.abs().ln()),
        f(wide.sin()),
        f(f64::from(a * 1e5).cos()),
        f(wide.tanh()),
        f(erf(wide)),
        f(wide.abs().powf(f64::from(b))),
        a.min(b),
        a.max(b),
        (a * 10.0).floor(),
        (a * 10.0).ceil(),
        (a * 10.0).round_ties_even(),
        (a * 10.0).trunc(),
        (a * 100.0).trunc(),
        (a * 100.0).abs().trunc(),
        a.copysign(b),
        a.mul_add(b, 1.0),
        a.mul_add(b, 1.0),
        a + b,
        a * b,
        0.0,
        f(wide.abs().ln_1p()),
        f(wide.exp_m1()),
        f(wide.exp2()),
        f(wide.cbrt()),
        (a * 10.0) % b,
        f(wide * f64::from(b)),
        f(wide.exp()),
        f(wide.exp()),
    ]
}

/// Taylor's series, which is exact enough up to 1.
fn erf(x: f64) -> f64 {
    let (mut sum, mut term) = (0.0, x);
    for n in 0..30 {
        sum += term / f64::from(2 * n + 1);
        term *= -x * x / f64::from(n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

#[test]
fn what_lanes_do_together() {
    for (mut card, module) in card(SOURCE) {
        let out = card.allocate(4 * 16 * 32);
        card.launch(&module, "lanes", ([1, 1, 1], [32, 1, 1]), 0, &[Pointer(out)]).unwrap();
        let got = to_words(&card.read(out, 4 * 16 * 32).unwrap());
        for (lane, got) in got.chunks(16).enumerate() {
            assert_eq!(got, lanes(lane as u32), "of lane {lane}");
        }
    }
}

fn lanes(l: u32) -> [u32; 16] {
    let ballot = |f: &dyn Fn(u32) -> bool| (0..32).fold(0, |bits, l| bits | u32::from(f(l)) << l);
    let steps = |l: u32| {
        let mut sum = 0;
        for i in (0..=l % 7).filter(|i| *i != 3) {
            sum += i * l;
            if sum > 100 {
                break;
            }
        }
        sum
    };
    let down = if l % 8 + 5 < 8 { l + 5 } else { l };
    let chosen = [5, l * l, l + 9, !l, l << 4, 1][(l % 6) as usize];
    let divided = if l % 2 == 1 { ballot(&|l| l % 2 == 1 && l > 10) } else { (l + 2) % 32 };
    [
        (l ^ 5) * 3,
        if l >= 3 { l - 3 } else { l },
        down,
        l ^ 9,
        ballot(&|l| l % 3 == 0),
        0,
        1,
        ballot(&|other| other / 5 == l / 5),
        496,
        31,
        divided,
        steps(l),
        u32::MAX,
        ballot(&|l| steps(l) & 1 == 1).count_ones(),
        chosen,
        l,
    ]
}

#[test]
fn memory_of_threads_constants_calls_and_atomics() {
    for (mut card, module) in card(SOURCE) {
        let (out, counts) = (card.allocate(4 * 64), card.upload(&[0; 32]));
        let pair = [7u32.to_le_bytes(), 1f32.to_le_bytes(), 2f32.to_le_bytes(), 3f32.to_le_bytes()];
        let arguments: [Argument; 3] = [Bytes(pair.concat()), Pointer(out), Pointer(counts)];
        card.launch(&module, "memory", ONE, 0, &arguments).unwrap();
        let wanted: Vec<f32> = (0..64).map(threads_sum).collect();
        assert_eq!(floats(&card.read(out, 4 * 64).unwrap()), wanted);
        let got = to_words(&card.read(counts, 32).unwrap());
        assert_eq!(got[..2], [63, -63i32 as u32]);
        assert!((1..=64).contains(&got[2]));
        assert_eq!(got[3..], [5, u32::MAX, 16, 1, 74]);
    }
}

fn threads_sum(t: i32) -> f32 {
    let own = |i: i32| if i == t % 8 { 100 } else { i * t };
    let sum: i32 = (0..8).map(own).sum();
    let (table, pair) = ([3, -1, 4, 1], [1.0, 2.0, 3.0]);
    let t32 = t as f32;
    let helper = if t & 1 == 1 { t32 * 2.0 + t32 } else { t32 + 0.5 - t32 };
    (sum + table[t as usize & 3] + 7) as f32 + pair[t as usize % 3] + helper
}

#[test]
fn shared_memory_whose_size_is_told_at_launch() {
    for (mut card, module) in card(SOURCE) {
        let x = numbers(64, 3);
        let (a, y) = (card.upload(&bytes(&x)), card.allocate(256));
        card.launch(&module, "dynamic", ONE, 256, &[Pointer(a), Pointer(y)]).unwrap();
        let wanted: Vec<f32> = x.iter().rev().copied().collect();
        assert_eq!(floats(&card.read(y, 256).unwrap()), wanted);
        let error = card.launch(&module, "dynamic", ONE, 128, &[Pointer(a), Pointer(y)]);
        assert!(error.unwrap_err().to_string().contains("of shared memory, which has 128"));
    }
}

#[test]
fn pairs_of_16_bits() {
    use half::{bf16, f16};
    let x = numbers(120, 5);
    let pack = |bits: &dyn Fn(f32) -> u16| -> Vec<u32> {
        x.chunks(2).map(|pair| u32::from(bits(pair[0])) | u32::from(bits(pair[1])) << 16).collect()
    };
    let halves = pack(&|x| f16::from_f32(x).to_bits());
    let f: Vec<f32> = numbers(60, 6);
    for (mut card, module) in card(SOURCE) {
        let a = card.upload(&word_bytes(&halves));
        let b = card.upload(&word_bytes(&halves.iter().rev().copied().collect::<Vec<_>>()));
        let (c, out) = (card.upload(&bytes(&f)), card.allocate(4 * 8 * 60));
        let arguments = [Pointer(a), Pointer(b), Pointer(c), Pointer(out), I32(60)];
        card.launch(&module, "pairs", ONE, 0, &arguments).unwrap();
        let got = to_words(&card.read(out, 4 * 8 * 60).unwrap());
        for (i, got) in got.chunks(8).enumerate() {
            let (a, b) = (halves[i], halves[59 - i]);
            let each = |op: &dyn Fn(f64, f64) -> f64| {
                both(a, b, |a, b| {
                    let (a, b) = (f16::from_bits(a).to_f64(), f16::from_bits(b).to_f64());
                    f16::from_f64(op(a, b)).to_bits()
                })
            };
            assert_eq!(got[0], each(&|a, b| a + b));
            assert_eq!(got[1], each(&|a, b| a * b));
            assert_eq!(got[2], each(&f64::max));
            assert_eq!(got[4], each(&|a, b| a * b + a));
            let least = both(a, b, |a, b| {
                let (a, b) = (bf16::from_bits(a), bf16::from_bits(b));
                if b < a { b.to_bits() } else { a.to_bits() }
            });
            assert_eq!(got[3], least);
            let narrow = |x: f32| u32::from(bf16::from_f32(x).to_bits());
            assert_eq!(got[6], narrow(f[i]) << 16 | narrow(f[i] * 3.0));
            let narrow = |x: f32| u32::from(f16::from_f32(x).to_bits());
            assert_eq!(got[7], narrow(f[i]) << 16 | narrow(f[i] * 3.0));
        }
    }
}

fn both(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(f(a as u16, b as u16)) | u32::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16
}
