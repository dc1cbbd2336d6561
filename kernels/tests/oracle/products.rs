//! Products, attention and convolution of half precision compute what their ops' oracles compute from operands rounded to
//! the type, on random shards of random layouts, and the same bits on any number of threads.

use crate::common::{Case, Memory, Random, ordinary, pool};
use graphc_ir::op::{EvalContext, Op, Region};
use graphc_ir::ops::*;
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};

/// The types, and the distance from 1 to the next number of each.
const HALVES: [(DType, f64); 2] = [(DType::BF16, 1.0 / 128.0), (DType::F16, 1.0 / 1024.0)];

fn repeat(times: u64, mut check: impl FnMut(&mut Random, DType, f64)) {
    for seed in 0..times {
        for (dtype, epsilon) in HALVES {
            check(&mut Random::new(seed), dtype, epsilon);
        }
    }
}

/// Numbers about 0 that are small, so that sums stay about 1.
fn small(random: &mut Random, operand: usize, dtype: DType) -> f64 {
    ordinary(random, operand, dtype) * 0.25
}

#[test]
fn products_of_any_extents_are_rounded_once() {
    repeat(150, |random, dtype, epsilon| {
        let [i, j, k] = [(); 3].map(|()| random.extent());
        let (transpose_a, transpose_b) = (random.below(2) == 0, random.below(2) == 0);
        let batch = random.of(&[vec![], vec![1], vec![3], vec![2, 2]]);
        let last = |extents: [usize; 2], transposed: bool| match transposed {
            true => [extents[1], extents[0]],
            false => extents,
        };
        let a = [batch.as_slice(), &last([i, k], transpose_a)].concat();
        let shared = random.below(2) == 0;
        let b = [if shared { &[] } else { batch.as_slice() }, &last([k, j], transpose_b)].concat();
        let op = Op::MatMul(MatMul { transpose_a, transpose_b });
        let types = [TensorType::new(dtype, a), TensorType::new(dtype, b)];
        Case::random(op, &types, random, &mut ordinary).check(epsilon);
    });
}

/// The types of 8 bits.
const EIGHTS: [DType; 2] = [DType::F8E4M3, DType::F8E5M2];

/// Of factors of 8 bits the product is exact but for its sum in f32 and the rounding to bf16.
#[test]
fn products_of_numbers_of_8_bits_are_rounded_once() {
    for seed in 0..60 {
        let random = &mut Random::new(seed);
        let [i, j, k] = [(); 3].map(|()| random.extent() * (1 + random.below(40)));
        let (transpose_a, transpose_b) = (random.below(2) == 0, random.below(2) == 0);
        let a = if transpose_a { [k, i] } else { [i, k] };
        let b = if transpose_b { [j, k] } else { [k, j] };
        let op = Op::MatMul(MatMul { transpose_a, transpose_b });
        let types = [a, b].map(|shape| TensorType::new(random.of(&EIGHTS), shape));
        Case::random(op, &types, random, &mut small).check(1.0 / 128.0);
    }
}

/// The scales of rows and columns are powers of two, so nothing else is rounded.
#[test]
fn products_of_numbers_of_8_bits_are_divided_by_their_scales() {
    for seed in 0..80 {
        let random = &mut Random::new(seed);
        let [i, j, k] = [(); 3].map(|()| random.extent() * (1 + random.below(40)));
        let batch = random.of(&[vec![], vec![1], vec![3], vec![2, 2]]);
        let shared = random.below(2) == 0;
        let (transpose_a, transpose_b) = (random.below(2) == 0, random.below(2) == 0);
        let shape = |whole: bool, extents: [usize; 2], turned: bool| {
            let last = if turned { [extents[1], extents[0]] } else { extents };
            [if whole { batch.as_slice() } else { &[] }, &last].concat()
        };
        let each = |random: &mut Random, extent| if random.below(3) == 0 { 1 } else { extent };
        let (of_rows, of_columns) = (each(random, i), each(random, j));
        let types = [
            TensorType::new(random.of(&EIGHTS), shape(true, [i, k], transpose_a)),
            TensorType::new(random.of(&EIGHTS), shape(!shared, [k, j], transpose_b)),
            TensorType::new(DType::BF16, shape(true, [of_rows, 1], transpose_a)),
            TensorType::new(DType::F32, shape(!shared, [1, of_columns], transpose_b)),
        ];
        let op = Op::MatMul(MatMul { transpose_a, transpose_b });
        Case::random(op, &types, random, &mut small).check(1.0 / 128.0);
    }
}

#[test]
fn products_larger_than_a_block_are_right() {
    for (dtype, epsilon) in HALVES {
        let random = &mut Random::new(7);
        for ([i, k, j], transposed) in
            [([300, 700, 70], 0), ([40, 1100, 530], 1), ([550, 33, 90], 2)]
        {
            let (transpose_a, transpose_b) = (transposed == 2, transposed == 1);
            let a = if transpose_a { [k, i] } else { [i, k] };
            let b = if transpose_b { [j, k] } else { [k, j] };
            let op = Op::MatMul(MatMul { transpose_a, transpose_b });
            let types = [TensorType::new(dtype, a), TensorType::new(dtype, b)];
            Case::random(op, &types, random, &mut small).check(epsilon);
        }
    }
}

/// Checks attention and its gradient in an element type, within so much each.
pub fn check_attention(random: &mut Random, dtype: DType, [forward, backward]: [f64; 2]) {
    let (batch, queries) = (random.below(3), random.of(&[1, 2, 5, 17, 129, 145]));
    let causal = random.below(2) == 0;
    let keys = if causal { queries } else { random.of(&[1, 3, 64, 130]) };
    let (shared, group) = (1 + random.below(4), 1 + random.below(3));
    let width = random.of(&[1, 4, 7, 16, 33]);
    let query = TensorType::new(dtype, [batch, queries, shared * group, width]);
    let key = TensorType::new(dtype, [batch, keys, shared, width]);
    let row = TensorType::new(DType::F32, query.shape[..3].to_vec());
    let scale = Scalar(1.0 / (width as f64).sqrt());
    let op = Op::Attention(Attention::new(causal, scale));
    let types = [query.clone(), key.clone(), key.clone()];
    Case::random(op, &types, random, &mut ordinary).check(forward);
    let op = Op::AttentionGrad(AttentionGrad::new(causal, scale));
    let mut types = vec![query.clone(), key.clone(), key, query.clone(), row.clone(), query];
    types.extend((random.below(2) == 0).then_some(row));
    // The log-sum-exp is at least about the greatest score: weights are then at most about 1.
    let fill = &mut |random: &mut Random, i: usize, dtype: DType| {
        let x = ordinary(random, i, dtype) * 0.5;
        if i == 4 { x.abs() + 3.0 } else { x }
    };
    Case::random(op, &types, random, fill).check(backward);
}

#[test]
fn attention_of_groups_of_heads() {
    repeat(25, |random, dtype, epsilon| {
        check_attention(random, dtype, [2.0 * epsilon, 4.0 * epsilon]);
    });
}

#[test]
fn convolutions_and_their_gradients() {
    repeat(60, |random, dtype, epsilon| {
        let groups = random.of(&[1, 1, 2, 3]);
        let (batch, inputs, outputs) = (random.below(4), 1 + random.below(40), 1 + random.below(4));
        let [kernel, strides, dilations] =
            [(); 3].map(|()| [1 + random.below(3), 1 + random.below(3)]);
        let pads = [(); 4].map(|()| random.below(3));
        let window = Window { strides, pads, dilations };
        let image = [(); 2].map(|()| 7 + random.below(9));
        let channels_last = random.below(2) == 0;
        let [h, w] = image;
        let x = match channels_last {
            true => [batch, h, w, groups * inputs],
            false => [batch, groups * inputs, h, w],
        };
        let x = TensorType::new(dtype, x);
        let k = TensorType::new(dtype, [groups * outputs, inputs, kernel[0], kernel[1]]);
        let op = Op::Convolution(Convolution { window, groups, channels_last });
        let y = op.infer_types(&[&x, &k]).expect("it fits").swap_remove(0);
        Case::random(op, &[x.clone(), k.clone()], random, &mut ordinary).check(epsilon);
        let of_x = ConvolutionInputGrad { window, groups, extents: image, channels_last };
        let types = [k, y.clone()];
        Case::random(Op::ConvolutionInputGrad(of_x), &types, random, &mut ordinary).check(epsilon);
        let of_k = ConvolutionKernelGrad { window, groups, extents: kernel, channels_last };
        let op = Op::ConvolutionKernelGrad(of_k);
        Case::random(op, &[x, y], random, &mut ordinary).check(epsilon);
    });
}

#[test]
fn gradients_of_attention_without_keys_or_queries_are_zero() {
    let op = Op::AttentionGrad(AttentionGrad::new(false, Scalar(1.0)));
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for [queries, keys] in [[3, 0], [0, 3], [0, 0]] {
            let (query, key): (&[usize], &[usize]) = (&[2, queries, 2, 4], &[2, keys, 1, 4]);
            let row: &[usize] = &[2, queries, 2];
            whole(op.clone(), &[query, key, key, query, row, query], dtype).check(0.0);
        }
    }
}

/// An op on whole operands of one type; the log-sum-exp of attention is f32.
fn whole(op: Op, shapes: &[&[usize]], dtype: DType) -> Case {
    let random = &mut Random::new(4);
    let mut operands = Vec::new();
    for (index, shape) in shapes.iter().enumerate() {
        let row = index == 4;
        let dtype = if row { DType::F32 } else { dtype };
        let region = Region::whole(&TensorType::new(dtype, shape.to_vec()));
        let count = region.rect.elements();
        let more = if row { 6.0 } else { 0.0 };
        let data: Vec<f64> = (0..count).map(|_| small(random, index, dtype) + more).collect();
        operands.push((region, Memory::of(dtype, &data)));
    }
    let types: Vec<TensorType> = operands
        .iter()
        .map(|(region, _)| TensorType::new(region.dtype, region.global.clone()))
        .collect();
    let results = op.infer_types(&types.iter().collect::<Vec<_>>()).expect("the types fit");
    Case { op, operands, results: results.iter().map(Region::whole).collect() }
}

#[test]
fn bits_do_not_depend_on_threads() {
    let cx = EvalContext { seed: 1, step: 2 };
    let pools = [pool(1), pool(2), pool(3)];
    let (causal, scale) = (true, Scalar(0.3));
    let window = Window { strides: [2, 1], pads: [1; 4], dilations: [1; 2] };
    for (dtype, _) in HALVES {
        let product = |a: &[usize], b: &[usize], transpose_a, transpose_b| {
            whole(Op::MatMul(MatMul { transpose_a, transpose_b }), &[a, b], dtype)
        };
        let query: &[usize] = &[2, 150, 6, 8];
        let key: &[usize] = &[2, 150, 3, 8];
        let of_x =
            ConvolutionInputGrad { window, groups: 1, extents: [20, 21], channels_last: false };
        let of_k =
            ConvolutionKernelGrad { window, groups: 1, extents: [3, 3], channels_last: false };
        let (x, k, y): (&[usize], &[usize], &[usize]) =
            (&[3, 80, 20, 21], &[10, 80, 3, 3], &[3, 10, 10, 21]);
        let cases = [
            product(&[200, 300], &[300, 170], false, false),
            product(&[40, 900], &[500, 900], false, true),
            product(&[700, 130], &[700, 90], true, false),
            product(&[2, 3, 60, 70], &[2, 3, 70, 50], false, false),
            product(&[1, 900], &[900, 700], false, false),
            product(&[700, 900], &[900, 1], false, false),
            whole(Op::Attention(Attention::new(causal, scale)), &[query, key, key], dtype),
            whole(
                Op::AttentionGrad(AttentionGrad::new(causal, scale)),
                &[query, key, key, query, &[2, 150, 6], query],
                dtype,
            ),
            whole(
                Op::Convolution(Convolution { window, groups: 1, channels_last: false }),
                &[x, k],
                dtype,
            ),
            whole(Op::ConvolutionInputGrad(of_x), &[k, y], dtype),
            whole(Op::ConvolutionKernelGrad(of_k), &[x, y], dtype),
        ];
        for case in cases {
            let alone = case.kernel(&cx, None).unwrap();
            for pool in &pools {
                let shared = case.kernel(&cx, Some(pool)).unwrap();
                let threads = pool.threads();
                assert!(alone == shared, "{:?} of {dtype} on {threads} threads", case.op);
            }
        }
    }
}

#[test]
fn what_is_not_finite_passes_through() {
    for (dtype, epsilon) in HALVES {
        for special in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut place = 0;
            let mut fill = |random: &mut Random, operand: usize, dtype: DType| {
                place += 1;
                if place == 100 { special } else { ordinary(random, operand, dtype) * 0.5 + 2.0 }
            };
            let types = [[20, 40], [40, 35]].map(|shape| TensorType::new(dtype, shape));
            let op = Op::MatMul(MatMul { transpose_a: false, transpose_b: false });
            Case::random(op, &types, &mut Random::new(0), &mut fill).check(epsilon);
        }
    }
}
