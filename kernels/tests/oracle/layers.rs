//! Every kernel of attention, images and experts computes what its op's oracle computes, on random shards of random
//! layouts.

use crate::common::{Case, Random, ordinary};
use crate::drawn::{f32s, repeat, ty};
use crate::products::check_attention;
use graphc_ir::op::{EvalContext, Op};
use graphc_ir::ops::*;
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};

/// The shape of an image, `[n, c, h, w]`, in the order of a layout.
fn ordered([n, c, h, w]: [usize; 4], channels_last: bool) -> [usize; 4] {
    if channels_last { [n, h, w, c] } else { [n, c, h, w] }
}

#[test]
fn attention_of_groups_of_heads() {
    repeat(40, |random| {
        check_attention(random, DType::F32, [1e-5, 3e-4]);
    });
}

/// Biases of all forms, windows and soft caps, of one rank and of several.
#[test]
fn attention_to_other_scores() {
    repeat(16, |random| check_other_scores(random, None));
}

/// Weights that are dropped by the places that they have in the whole.
#[test]
fn attention_whose_weights_are_dropped() {
    repeat(24, |random| {
        let key = random.below(1000) as u64;
        let dropout = DropoutOp { probability: Scalar(0.3), key, training: true };
        check_other_scores(random, Some(dropout));
    });
}

fn check_other_scores(random: &mut Random, dropout: Option<DropoutOp>) {
    let (batch, queries) = (1 + random.below(2), random.of(&[1, 5, 17, 129, 145]));
    let causal = random.below(2) == 0;
    let keys = if causal { queries } else { random.of(&[1, 64, 130]) };
    let (shared, group, width) = (1 + random.below(2), 1 + random.below(2), 4);
    let window = if causal { random.of(&[0, 1, 3, 100, 140]) as u32 } else { 0 };
    let soft_cap = (random.below(2) == 0).then_some(Scalar(0.8));
    let op = Attention {
        window: std::num::NonZeroU32::new(window),
        soft_cap,
        dropout,
        ..Attention::new(causal, Scalar(0.5))
    };
    let query = f32s(&[batch, queries, shared * group, width]);
    let key = f32s(&[batch, keys, shared, width]);
    let row = f32s(&query.shape[..3]);
    let mut one = |extent: usize| if random.below(2) == 0 { 1 } else { extent };
    let bias = [one(batch), one(shared * group), one(queries), one(keys)];
    let whole = [bias[0], bias[1], queries, keys];
    let (bias, whole) = (f32s(&bias), f32s(&whole));
    let types = [query.clone(), key.clone(), key.clone(), bias.clone()];
    Case::random(Op::Attention(op), &types, random, &mut ordinary).check(1e-5);
    let fill = &mut |random: &mut Random, i: usize, dtype: DType| {
        let x = ordinary(random, i, dtype) * 0.5;
        if i == 4 { x.abs() + 3.0 } else { x }
    };
    for (of_bias, bias) in [
        (AttentionBias::None, None),
        (AttentionBias::Added, Some(bias)),
        (AttentionBias::Learned, Some(whole)),
    ] {
        let grad = Op::AttentionGrad(AttentionGrad::from_attention(op, of_bias));
        let types = [&query, &key, &key, &query, &row, &query].map(Clone::clone);
        let types: Vec<_> = types.into_iter().chain(bias).collect();
        Case::random(grad, &types, random, fill).check(3e-4);
    }
}

/// Early and late chunks of a sequence lie beside each other, whole and in shards.
#[test]
fn attention_to_a_zigzag() {
    repeat(24, |random| {
        let (pairs, chunk) = (1 + random.below(3), random.of(&[1, 3, 40, 70]));
        let time = 2 * pairs * chunk;
        let window = random.of(&[0, 5, 100]) as u32;
        let op = Attention {
            window: std::num::NonZeroU32::new(window),
            zigzag: std::num::NonZeroU32::new(pairs as u32),
            ..Attention::new(true, Scalar(0.5))
        };
        let (shared, group) = (1 + random.below(2), 1 + random.below(2));
        let query = f32s(&[1, time, shared * group, 4]);
        let (key, row) = (f32s(&[1, time, shared, 4]), f32s(&query.shape[..3]));
        let types = [query.clone(), key.clone(), key.clone()];
        Case::random(Op::Attention(op), &types, random, &mut ordinary).check(1e-5);
        let fill = &mut |random: &mut Random, i: usize, dtype: DType| {
            let x = ordinary(random, i, dtype) * 0.5;
            if i == 4 { x.abs() + 3.0 } else { x }
        };
        let grad = Op::AttentionGrad(AttentionGrad::from_attention(op, AttentionBias::None));
        let types = [&query, &key, &key, &query, &row, &query].map(Clone::clone);
        Case::random(grad, &types, random, fill).check(3e-4);
    });
}

/// If all keys of a query are hidden, the result and the gradients are 0; if low numbers hide them, all keys weigh the same.
#[test]
fn queries_whose_keys_a_bias_hides() {
    const LENGTH: usize = 20;
    let (query, row) = (f32s(&[1, LENGTH, 1, 4]), f32s(&[1, LENGTH, 1]));
    let bias = f32s(&[1, 1, LENGTH, LENGTH]);
    let op = Attention::new(false, Scalar(0.5));
    let of_four = [&query, &query, &query, &bias].map(Clone::clone);
    let of_all = [&query, &query, &query, &query, &row, &query, &bias].map(Clone::clone);
    let grad = Op::AttentionGrad(AttentionGrad::from_attention(op, AttentionBias::Learned));
    for (low, of_row) in [(f64::NEG_INFINITY, f64::NEG_INFINITY), (f32::MIN.into(), FLOOR)] {
        for (op, types) in [(Op::Attention(op), &of_four[..]), (grad.clone(), &of_all[..])] {
            let mut places = [0; 7];
            let fill = &mut |random: &mut Random, operand: usize, dtype: DType| {
                let place = places[operand];
                places[operand] += 1;
                let (query, key) = (place / LENGTH, place % LENGTH);
                match operand {
                    _ if operand + 1 == types.len() && (query == 3 || key > query) => low,
                    4 if place == 3 => of_row,
                    4 => 3.0,
                    _ => ordinary(random, operand, dtype) * 0.5,
                }
            };
            let case = Case::on(&[1], op, types, &mut Random::new(1), fill);
            case.check(1e-4);
            let finite = case.kernel(&EvalContext::default(), None).expect("fits");
            assert!(finite.iter().take(1).all(|all| all.values().iter().all(|x| x.is_finite())));
        }
    }
}

/// Queries of one of two ranks that begin at no multiple of a strip: behind a block of keys that all see comes one that the mask cuts.
#[test]
fn gradients_of_attention_whose_mask_cuts_strips_anywhere() {
    let mut cut = 0;
    repeat(24, |random| {
        let query = f32s(&[1, 300, 1, 4]);
        let row = f32s(&query.shape[..3]);
        let op = Op::AttentionGrad(AttentionGrad::new(true, Scalar(0.5)));
        let types = [&query, &query, &query, &query, &row, &query].map(Clone::clone);
        let fill = &mut |random: &mut Random, i: usize, dtype: DType| {
            let x = ordinary(random, i, dtype) * 0.5;
            if i == 4 { x.abs() + 3.0 } else { x }
        };
        let case = Case::on(&[2], op, &types, random, fill);
        cut += usize::from(case.operands[0].0.rect.origin[1] == 150);
        case.check(3e-4);
    });
    assert!(cut > 0, "some queries begin at 150");
}

#[test]
fn attention_to_scores_far_apart_stays_finite() {
    let op = Op::Attention(Attention::new(true, Scalar(40.0)));
    let types = [f32s(&[1, 300, 2, 4]), f32s(&[1, 300, 1, 4]), f32s(&[1, 300, 1, 4])];
    Case::random(op, &types, &mut Random::new(0), &mut ordinary).check(2e-4);
}

/// A convolution and both its gradients, of images and kernels of these types; a tolerance for each.
fn convolutions(op: Convolution, [x, k]: [TensorType; 2], random: &mut Random, near: [f64; 3]) {
    let Convolution { window, groups, channels_last } = op;
    let (kernel, at) = ([k.shape[2], k.shape[3]], if channels_last { 1 } else { 2 });
    let extents = [x.shape[at], x.shape[at + 1]];
    let op = Op::Convolution(op);
    let y = op.infer_types(&[&x, &k]).expect("it fits").swap_remove(0);
    Case::random(op, &[x.clone(), k.clone()], random, &mut ordinary).check(near[0]);
    let of_x = ConvolutionInputGrad { window, groups, extents, channels_last };
    Case::random(Op::ConvolutionInputGrad(of_x), &[k, y.clone()], random, &mut ordinary)
        .check(near[1]);
    let of_k = ConvolutionKernelGrad { window, groups, extents: kernel, channels_last };
    Case::random(Op::ConvolutionKernelGrad(of_k), &[x, y], random, &mut ordinary).check(near[2]);
}

#[test]
fn convolutions_and_their_gradients() {
    repeat(80, |random| {
        let below = |random: &mut Random, most: usize| 1 + random.below(most);
        let groups = random.of(&[1, 1, 2, 3]);
        let (batch, inputs, outputs) = (random.below(4), below(random, 4), below(random, 4));
        let [kernel, strides, dilations] = [(); 3].map(|()| [below(random, 3), below(random, 3)]);
        let pads = [(); 4].map(|()| random.below(3));
        let window = Window { strides, pads, dilations };
        let image = [(); 2].map(|()| 7 + random.below(9));
        let channels_last = random.below(2) == 0;
        let x = f32s(&ordered([batch, groups * inputs, image[0], image[1]], channels_last));
        let k = f32s(&[groups * outputs, inputs, kernel[0], kernel[1]]);
        let op = Convolution { window, groups, channels_last };
        convolutions(op, [x, k], random, [2e-5, 4e-5, 1e-4]);
    });
}

#[test]
fn convolutions_of_groups_whose_channels_are_split() {
    repeat(200, |random| {
        let [groups, inputs, outputs] =
            [2 + random.below(2), 2 + random.below(3), 1 + random.below(4)];
        let channels_last = random.below(2) == 0;
        let x = f32s(&ordered([2, groups * inputs, 3, 2], channels_last));
        let k = f32s(&[groups * outputs, inputs, 1, 1]);
        let op = Convolution { window: Window::PLAIN, groups, channels_last };
        convolutions(op, [x, k], random, [2e-5, 4e-5, 1e-4]);
    });
}

/// Kernels of one element meet the place, or padding alone; only the first is a product of matrices.
#[test]
fn convolutions_of_images_of_one_place() {
    let padded = |stride| Window { strides: [stride; 2], pads: [1; 4], dilations: [1; 2] };
    repeat(24, |random| {
        let window = random.of(&[Window::PLAIN, padded(1), padded(2), padded(3)]);
        let channels_last = random.below(2) == 0;
        let [inputs, outputs] = [(); 2].map(|()| random.of(&[1, 5, 16, 40]));
        let x = f32s(&ordered([random.of(&[1, 9, 100]), inputs, 1, 1], channels_last));
        let k = f32s(&[outputs, inputs, 1, 1]);
        convolutions(Convolution { window, groups: 1, channels_last }, [x, k], random, [1e-4; 3]);
    });
}

#[test]
fn convolutions_of_many_channels() {
    repeat(24, |random| {
        let depthwise = random.below(3) == 0;
        let [inputs, outputs] =
            [(); 2].map(|()| random.of(&[1, 3, 15, 16, 17, 40, 64, 70, 81, 100]));
        let groups = if depthwise { inputs } else { random.of(&[1, 1, 1, 2]) };
        let outputs = if depthwise { inputs } else { outputs };
        let kernel = random.of(&[[1, 1], [3, 3], [3, 3], [5, 5], [1, 7]]);
        let stride = random.of(&[1, 1, 2]);
        let pads = [kernel[0] / 2, kernel[1] / 2, kernel[0] / 2, kernel[1] / 2];
        let window = Window { strides: [stride; 2], pads, dilations: [1; 2] };
        let image = random.of(&[[1, 1], [2, 2], [4, 5], [6, 3]]);
        let (batch, each) = (random.of(&[1, 2, 9]), if depthwise { 1 } else { groups });
        let x = f32s(&[batch, image[0], image[1], each * inputs]);
        let k = f32s(&[each * outputs, if depthwise { 1 } else { inputs }, kernel[0], kernel[1]]);
        let op = Convolution { window, groups, channels_last: true };
        convolutions(op, [x, k], random, [1e-4; 3]);
    });
}

#[test]
fn kernels_of_images_that_fit_no_cache() {
    let random = &mut Random::new(5);
    let window = Window { strides: [1; 2], pads: [1; 4], dilations: [1; 2] };
    for [batch, height, width] in [[1, 40, 41], [6, 16, 16]] {
        let x = f32s(&[batch, height, width, 150]);
        let y = f32s(&[batch, height, width, 3]);
        let op = ConvolutionKernelGrad { window, groups: 1, extents: [3; 2], channels_last: true };
        Case::random(Op::ConvolutionKernelGrad(op), &[x, y], random, &mut ordinary).check(1e-4);
    }
}

#[test]
fn pools_and_their_gradients() {
    repeat(60, |random| {
        let kernel = [(); 2].map(|()| 1 + random.below(3));
        let [strides, dilations] = [(); 2].map(|()| [(); 2].map(|()| 1 + random.below(3)));
        let pads = [0, 1, 2, 3].map(|side: usize| random.below(kernel[side % 2]));
        let window = Window { strides, pads, dilations };
        let extents = [(); 2].map(|()| 7 + random.below(6));
        let channels_last = random.below(2) == 0;
        let channels = random.of(&[1, 2, 3, 5, 17]);
        let shape = [random.below(4), channels, extents[0], extents[1]];
        let x = f32s(&ordered(shape, channels_last));
        let op = Op::MaxPool(MaxPool { kernel, window, channels_last });
        let y = op.infer_types(&[&x]).expect("it fits").swap_remove(0);
        // Many are equal: the first of them counts.
        let coarse = &mut |random: &mut Random, _: usize, _: DType| random.below(4) as f64;
        Case::random(op, std::slice::from_ref(&x), random, coarse).check(0.0);
        let op = Op::MaxPoolGrad(MaxPoolGrad { kernel, window, channels_last });
        Case::random(op, &[x.clone(), y.clone()], random, coarse).check(1e-6);
        let count_border = random.below(2) == 0;
        let op = Op::AveragePool(AveragePool { kernel, window, count_border, channels_last });
        Case::random(op, &[x], random, &mut ordinary).check(2e-6);
        let op = AveragePoolGrad { kernel, window, count_border, extents, channels_last };
        Case::random(Op::AveragePoolGrad(op), &[y], random, &mut ordinary).check(2e-6);
    });
}

#[test]
fn resizes_and_their_gradients() {
    repeat(120, |random| {
        let filters = [Filter::Floor, Filter::Ceil, Filter::NearestBefore, Filter::NearestBehind];
        let others = [Filter::Linear, Filter::Cubic(Scalar(-0.75)), Filter::Linear];
        let filter = random.of(&[&filters[..], &others].concat());
        let coordinates = random.of(&[
            Coordinates::Asymmetric,
            Coordinates::HalfPixel,
            Coordinates::HalfPixelOrFirst,
            Coordinates::HalfPixelSymmetric,
            Coordinates::AlignCorners,
        ]);
        let mut shape = random.shape(3);
        let axis = random.below(3);
        let (from, to) = (1 + random.below(20), 1 + random.below(30));
        let scale = Scalar(f64::from(to as f32 / from as f32));
        let (smooth, inside) = (random.below(2) == 0, random.below(2) == 0);
        let sampling = Sampling { filter, coordinates, scale, smooth, inside };
        shape[axis] = from;
        let op = Op::Resize(Resize { axis, extent: to, sampling });
        Case::random(op, &[f32s(&shape)], random, &mut ordinary).check(2e-5);
        shape[axis] = to;
        let op = Op::ResizeGrad(ResizeGrad { axis, extent: from, sampling });
        Case::random(op, &[f32s(&shape)], random, &mut ordinary).check(2e-5);
    });
}

#[test]
fn recurrent_cells_and_their_gradients() {
    repeat(80, |random| {
        let cell = random.of(&[Cell::Lstm, Cell::Gru, Cell::Tanh, Cell::Relu]);
        let [n, t] = [random.of(&[0, 1, 2, 5, 19]), 1 + random.below(5)];
        let (h, reverse) = (random.of(&[1, 3, 16, 33, 70]), random.below(2) == 0);
        let [gates, states] = [cell.count_gates() * h, h].map(|width| f32s(&[n, t, width]));
        let weight = f32s(&[cell.count_gates() * h, h]);
        let state = f32s(&[n, h]);
        let mut types =
            vec![gates.clone(), weight.clone(), f32s(&weight.shape[..1]), state.clone()];
        types.extend(cell.keeps_values().then(|| state.clone()));
        // Weights as small as they are in nets, so that states stay small.
        let fill = &mut move |random: &mut Random, operand: usize, dtype: DType| {
            ordinary(random, operand, dtype)
                * if operand < 2 { 1.0 / (h as f64).sqrt() } else { 1.0 }
        };
        let op = Op::Recurrence(Recurrence { cell, reverse });
        Case::random(op, &types, random, fill).check(2e-5);
        let types = match cell {
            Cell::Lstm => {
                let kept = states.clone();
                let mut types = vec![weight, gates, state, kept, states.clone()];
                types.extend((random.below(2) == 0).then_some(states));
                types
            }
            Cell::Gru => vec![weight, gates.clone(), gates, states.clone(), states],
            Cell::Tanh | Cell::Relu => vec![weight, states.clone(), states],
        };
        let op = Op::RecurrenceGrad(RecurrenceGrad { cell, reverse });
        Case::random(op, &types, random, fill).check(5e-5);
    });
}

#[test]
fn experts_and_back() {
    repeat(60, |random| {
        let [groups, tokens, width] = [random.below(4), 1 + random.below(20), random.extent()];
        let (choices, experts) = (1 + random.below(2), 1 + random.below(5));
        let capacity = 1 + random.below(6);
        let x = f32s(&[groups, tokens, width]);
        let chosen = ty(DType::I64, &[groups, tokens, choices]);
        let weights = f32s(&chosen.shape);
        let y = f32s(&[experts, groups, capacity, width]);
        let of = || {
            move |random: &mut Random, operand: usize, dtype: DType| match operand {
                1 => random.below(experts) as f64,
                _ => ordinary(random, operand, dtype),
            }
        };
        let weighted = random.below(2) == 0;
        let types = |first: &TensorType| {
            let mut types = vec![first.clone(), chosen.clone()];
            types.extend(weighted.then(|| weights.clone()));
            types
        };
        let op = Op::Dispatch(Dispatch { experts, capacity, blocks: None });
        Case::random(op, &types(&x), random, &mut of()).check(1e-6);
        Case::random(Op::Combine(Combine::default()), &types(&y), random, &mut of()).check(1e-6);
        let op = Op::CombineWeightsGrad(CombineWeightsGrad::default());
        Case::random(op, &[y, chosen.clone(), x], random, &mut of()).check(1e-5);
    });
}

#[test]
fn products_of_experts() {
    repeat(60, |random| {
        let [groups, tokens] = [random.below(4), 1 + random.below(20)];
        let [width, columns] = [random.extent(), random.extent()];
        let (choices, each, blocks) =
            (1 + random.below(2), 1 + random.below(3), 1 + random.below(3));
        let experts = each * blocks;
        let places = ExpertPlaces { experts, blocks, capacity: 1 + random.below(24) };
        let y = |width: usize| f32s(&[blocks, groups, places.capacity, width]);
        let x = f32s(&[groups, tokens, width]);
        let chosen = ty(DType::I64, &[groups, tokens, choices]);
        let of = |place: usize| {
            move |random: &mut Random, operand: usize, dtype: DType| match operand {
                _ if operand == place => random.below(experts) as f64,
                _ => ordinary(random, operand, dtype),
            }
        };
        let transpose_b = random.below(2) == 0;
        let of_matrix = if transpose_b { [columns, width] } else { [width, columns] };
        let matrices = f32s(&[experts, of_matrix[0], of_matrix[1]]);
        let op = Op::GroupedMatMul(GroupedMatMul { transpose_b });
        Case::random(op, &[y(width), matrices, chosen.clone()], random, &mut of(2)).check(2e-5);
        let op = Op::GroupedMatMulGrad(GroupedMatMulGrad { experts });
        Case::random(op, &[y(width), y(columns), chosen.clone()], random, &mut of(2)).check(2e-5);
        let op = Op::Dispatch(Dispatch::to_places(places));
        Case::random(op, &[x.clone(), chosen.clone()], random, &mut of(1)).check(1e-6);
        let op = Op::Combine(Combine::from_places(places));
        Case::random(op, &[y(width), chosen.clone()], random, &mut of(1)).check(1e-6);
        let op = Op::CombineWeightsGrad(CombineWeightsGrad::of_places(places));
        Case::random(op, &[y(width), chosen, x], random, &mut of(1)).check(1e-5);
    });
}

/// Of factors of 8 bits products are exact but for their sums in f32 and the rounding to bf16; scales are powers of two.
#[test]
fn products_of_experts_in_8_bits() {
    repeat(60, |random| {
        let (groups, tokens) = (1 + random.below(3), 1 + random.below(20));
        let (width, columns) = (1 + random.below(40), 1 + random.below(40));
        let (each, blocks) = (1 + random.below(3), 1 + random.below(3));
        let (experts, capacity) = (each * blocks, 1 + random.below(24));
        let eight = |random: &mut Random, shape: &[usize]| {
            ty(random.of(&[DType::F8E4M3, DType::F8E5M2]), shape)
        };
        let size =
            |random: &mut Random, shape: &[usize]| ty(random.of(&[DType::F32, DType::BF16]), shape);
        let chosen = ty(DType::I64, &[groups, tokens, 1]);
        let mut of = |random: &mut Random, operand: usize, dtype: DType| match operand {
            2 => random.below(experts) as f64,
            3.. => ordinary(random, operand, dtype).abs() + 0.1,
            _ => ordinary(random, operand, dtype),
        };
        let one_or = |random: &mut Random, extent| if random.below(2) == 0 { 1 } else { extent };
        let transpose_b = random.below(2) == 0;
        let turned = |[a, b]: [usize; 2]| if transpose_b { [b, a] } else { [a, b] };
        let [first, second] = turned([width, columns]);
        let y = |width: usize| [blocks, groups, capacity, width];
        let of_place = one_or(random, capacity);
        let [of_first, of_second] = turned([1, one_or(random, columns)]);
        let of_expert = one_or(random, experts);
        let mut types = vec![
            eight(random, &y(width)),
            eight(random, &[experts, first, second]),
            chosen.clone(),
            size(random, &[1, groups, of_place, 1]),
            size(random, &[of_expert, of_first, of_second]),
        ];
        types.truncate(random.of(&[3, 5]));
        let op = Op::GroupedMatMul(GroupedMatMul { transpose_b });
        Case::random(op, &types, random, &mut of).check(1.0 / 128.0);
        let (of_block, of_column) = (one_or(random, blocks), one_or(random, columns));
        let mut types = vec![
            eight(random, &y(width)),
            eight(random, &y(columns)),
            chosen,
            size(random, &[of_block, 1, 1, 1]),
            size(random, &[1, 1, 1, of_column]),
        ];
        types.truncate(random.of(&[3, 5]));
        let op = Op::GroupedMatMulGrad(GroupedMatMulGrad { experts });
        Case::random(op, &types, random, &mut of).check(1.0 / 128.0);
    });
}

#[test]
fn rotary_embeddings() {
    repeat(40, |random| {
        let (time, heads) = (random.extent(), 1 + random.below(4));
        let shape = [random.below(3), time, heads, 2 * (1 + random.below(9))];
        let (interleaved, inverse) = (random.below(2) == 0, random.below(2) == 0);
        let pairs = 1 + random.below(3);
        let zigzag =
            std::num::NonZeroU32::new(pairs as u32).filter(|_| time.is_multiple_of(2 * pairs));
        let op = Op::Rotary(Rotary { base: Scalar(1e4), interleaved, inverse, zigzag });
        Case::random(op, &[f32s(&shape)], random, &mut ordinary).check(2e-6);
    });
}
