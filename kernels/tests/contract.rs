//! The contract that callers rely on: fused chains, results in an operand's memory, the same bits on any number of threads,
//! errors.

mod common;

use common::{Case, Memory, Random, ordinary, pool};
use graphc_ir::array::Array;
use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::{EvalContext, Op, Operand, Region};
use graphc_ir::ops::*;
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};
use graphc_kernels::{
    KernelContext, KernelError, Prepared, Scratch, View, ViewMut, accumulate_into, prepare_fused,
    prepare_op,
};
use graphc_plan::{FusedArg, FusedOp, FusedStep};

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

/// A call for f32 tensors and whatever the op gives of them.
fn prepared(op: &Op, operands: &[TensorType]) -> Prepared {
    let results = op.infer_types(&operands.iter().collect::<Vec<_>>()).expect("the types fit");
    prepare_op(op, operands, &results, DeviceKind::Cpu).expect("a kernel")
}

fn context(scratch: &mut Scratch) -> KernelContext<'_> {
    KernelContext { seed: 0, step: 0, rate: None, threads: 1, pool: None, scratch }
}

/// Ops whose kernels share work among threads, at sizes at which they do.
fn large_cases() -> Vec<Case> {
    let random = &mut Random::new(2);
    let x = f32s(&[7, 131, 257]);
    let mut cases = Vec::new();
    let mut add = |op: Op, types: &[TensorType], random: &mut Random| {
        let mut operands = Vec::new();
        for (index, ty) in types.iter().enumerate() {
            let fill = |_| match ty.dtype {
                DType::I64 => random.below(100) as f64,
                // The log-sum-exp of attention is operand 4: weights are then at most about 1.
                dtype if index == 4 => ordinary(random, index, dtype).abs() + 6.0,
                // The second moment of Adam is operand 3.
                dtype if index == 3 => ordinary(random, index, dtype).abs(),
                dtype => ordinary(random, index, dtype),
            };
            let data: Vec<f64> = (0..ty.elements()).map(fill).collect();
            operands.push((Region::whole(ty), Memory::of(ty.dtype, &data)));
        }
        let results = op.infer_types(&types.iter().collect::<Vec<_>>()).expect("the types fit");
        cases.push(Case { op, operands, results: results.iter().map(Region::whole).collect() });
    };
    add(Op::Unary(Unary { function: UnaryFunction::Gelu }), std::slice::from_ref(&x), random);
    add(Op::Binary(Binary { function: BinaryFunction::Add }), &[x.clone(), f32s(&[257])], random);
    add(Op::Softmax(Softmax { axis: 2 }), std::slice::from_ref(&x), random);
    add(
        Op::Normalize(Normalize { center: true, epsilon: Scalar(1e-5) }),
        std::slice::from_ref(&x),
        random,
    );
    for axes in [vec![0], vec![2], vec![0, 1], vec![1], vec![0, 1, 2], vec![0, 2]] {
        for function in [ReduceFunction::Sum, ReduceFunction::Mean, ReduceFunction::Max] {
            let op = Op::Reduce(Reduce { function, axes: axes.clone(), keep_dims: false });
            add(op, std::slice::from_ref(&x), random);
        }
    }
    add(Op::Transpose(Transpose { permutation: vec![1, 0, 2] }), std::slice::from_ref(&x), random);
    add(Op::Transpose(Transpose { permutation: vec![2, 0, 1] }), std::slice::from_ref(&x), random);
    let ids = TensorType::new(DType::I64, [7, 131]);
    add(Op::EmbeddingGrad(EmbeddingGrad { rows: 300 }), &[ids.clone(), x.clone()], random);
    add(Op::CrossEntropy(CrossEntropy::default()), &[x.clone(), ids], random);
    add(
        Op::Dropout(DropoutOp { probability: Scalar(0.1), key: 1, training: true }),
        std::slice::from_ref(&x),
        random,
    );
    let adam = AdamUpdate {
        lr: 0.01.into(),
        beta1: Scalar(0.9),
        beta2: Scalar(0.999),
        epsilon: Scalar(1e-8),
        weight_decay: Scalar(0.01),
        decoupled: true,
        clip: None,
    };
    add(Op::AdamUpdate(adam), &vec![x.clone(); 4], random);
    add(Op::LambDirection(LambDirection::default()), &vec![x.clone(); 4], random);
    add(Op::SquareSum(SquareSum {}), std::slice::from_ref(&x), random);
    let (query, key, row) = (f32s(&[2, 150, 6, 8]), f32s(&[2, 150, 3, 8]), f32s(&[2, 150, 6]));
    let (causal, scale) = (true, Scalar(0.3));
    let types = [query.clone(), key.clone(), key.clone()];
    add(Op::Attention(Attention::new(causal, scale)), &types, random);
    let types = [&query, &key, &key, &query, &row, &query].map(TensorType::clone);
    add(Op::AttentionGrad(AttentionGrad::new(causal, scale)), &types, random);
    let rotary = Rotary { base: Scalar(1e4), interleaved: false, inverse: false, zigzag: None };
    add(Op::Rotary(rotary), &[f32s(&[2, 300, 8, 16])], random);
    for (cell, gates) in [(Cell::Lstm, 80), (Cell::Gru, 60)] {
        let [of_gates, states] = [gates, 20].map(|width| f32s(&[200, 3, width]));
        let (weight, bias, state) = (f32s(&[gates, 20]), f32s(&[gates]), f32s(&[200, 20]));
        let mut types = vec![of_gates.clone(), weight.clone(), bias, state.clone()];
        types.extend(cell.keeps_values().then(|| state.clone()));
        add(Op::Recurrence(Recurrence { cell, reverse: false }), &types, random);
        let third = if cell.keeps_values() { state } else { of_gates.clone() };
        let types = [weight, of_gates, third, states.clone(), states];
        add(Op::RecurrenceGrad(RecurrenceGrad { cell, reverse: true }), &types, random);
    }
    let window = Window { strides: [2, 1], pads: [1; 4], dilations: [1; 2] };
    let (x, k) = (f32s(&[3, 8, 20, 21]), f32s(&[10, 8, 3, 3]));
    let convolution = Op::Convolution(Convolution { window, groups: 1, channels_last: false });
    let y = convolution.infer_types(&[&x, &k]).expect("it fits").swap_remove(0);
    add(convolution, &[x.clone(), k.clone()], random);
    let of_x = ConvolutionInputGrad { window, groups: 1, extents: [20, 21], channels_last: false };
    add(Op::ConvolutionInputGrad(of_x), &[k, y.clone()], random);
    let of_k = ConvolutionKernelGrad { window, groups: 1, extents: [3, 3], channels_last: false };
    add(Op::ConvolutionKernelGrad(of_k), &[x, y], random);
    let pool = Window { strides: [2, 1], pads: [1; 4], dilations: [1; 2] };
    for (channels_last, x) in [(false, [3, 40, 20, 21]), (true, [3, 20, 21, 40])] {
        let (x, kernel) = (f32s(&x), [3, 3]);
        let max = Op::MaxPool(MaxPool { kernel, window: pool, channels_last });
        let y = max.infer_types(&[&x]).expect("it fits").swap_remove(0);
        add(max, std::slice::from_ref(&x), random);
        let of_max = Op::MaxPoolGrad(MaxPoolGrad { kernel, window: pool, channels_last });
        add(of_max, &[x.clone(), y.clone()], random);
        let count_border = false;
        let mean = AveragePool { kernel, window: pool, count_border, channels_last };
        add(Op::AveragePool(mean), std::slice::from_ref(&x), random);
        let extents = [20, 21];
        let of_mean =
            AveragePoolGrad { kernel, window: pool, count_border, extents, channels_last };
        add(Op::AveragePoolGrad(of_mean), &[y], random);
    }
    let kernels = [(1, 3, 70, 3), (1, 70, 70, 3), (1, 40, 70, 1), (96, 1, 1, 3), (2, 40, 24, 3)];
    for (groups, inputs, outputs, extent) in kernels {
        let x = f32s(&[5, 6, 7, groups * inputs]);
        let k = f32s(&[groups * outputs, inputs, extent, extent]);
        let op = Op::Convolution(Convolution { window, groups, channels_last: true });
        let y = op.infer_types(&[&x, &k]).expect("it fits").swap_remove(0);
        add(op, &[x.clone(), k.clone()], random);
        let of_x = ConvolutionInputGrad { window, groups, extents: [6, 7], channels_last: true };
        add(Op::ConvolutionInputGrad(of_x), &[k, y.clone()], random);
        let extents = [extent; 2];
        let of_k = ConvolutionKernelGrad { window, groups, extents, channels_last: true };
        add(Op::ConvolutionKernelGrad(of_k), &[x, y], random);
    }
    // Images that fit no cache.
    let (x, y) = (f32s(&[5, 40, 40, 4]), f32s(&[5, 40, 40, 136]));
    let window = Window { strides: [1; 2], pads: [1; 4], dilations: [1; 2] };
    let of_k = ConvolutionKernelGrad { window, groups: 1, extents: [3; 2], channels_last: true };
    add(Op::ConvolutionKernelGrad(of_k), &[x, y], random);
    let x = f32s(&[7, 131, 257]);
    for axes in [vec![0], vec![2], vec![0, 1], vec![1], vec![0, 1, 2]] {
        let sizes = Reduce { function: ReduceFunction::MaxAbs, axes, keep_dims: true };
        add(Op::Reduce(sizes), std::slice::from_ref(&x), random);
    }
    let tokens = [f32s(&[2, 300, 130]), TensorType::new(DType::I64, [2, 300, 2])];
    add(Op::Dispatch(Dispatch { experts: 100, capacity: 5, blocks: None }), &tokens, random);
    let [places, others] = [f32s(&[4, 2, 200, 33]), f32s(&[4, 2, 200, 70])];
    let (matrices, chosen) = (f32s(&[100, 33, 70]), TensorType::new(DType::I64, [2, 300, 2]));
    let op = Op::GroupedMatMul(GroupedMatMul { transpose_b: false });
    add(op, &[places.clone(), matrices, chosen.clone()], random);
    let op = Op::GroupedMatMulGrad(GroupedMatMulGrad { experts: 100 });
    add(op, &[places, others, chosen], random);
    // Attention whose weights are dropped.
    let dropout = Some(DropoutOp { probability: Scalar(0.2), key: 4, training: true });
    let op = Attention { dropout, ..Attention::new(causal, scale) };
    add(Op::Attention(op), &[query.clone(), key.clone(), key.clone()], random);
    let types = [&query, &key, &key, &query, &row, &query].map(TensorType::clone);
    add(Op::AttentionGrad(AttentionGrad::from_attention(op, AttentionBias::None)), &types, random);
    cases
}

/// Returns the case with elements of a 16-bit type wherever the op takes them; `None` if it has no kernel for them.
fn in_half(case: &Case, half: DType) -> Option<Case> {
    let floats = |mask: usize| {
        let ty = |(index, (region, _)): (usize, &(Region, Memory))| {
            let narrow = region.dtype == DType::F32 && mask >> index & 1 == 1;
            let dtype = if narrow { half } else { region.dtype };
            TensorType::new(dtype, region.global.clone())
        };
        case.operands.iter().enumerate().map(ty).collect::<Vec<_>>()
    };
    let infer = |types: &[TensorType]| case.op.infer_types(&types.iter().collect::<Vec<_>>());
    let count = case.operands.len();
    // The most of them that the op takes.
    let masks = (1..1usize << count).filter(|&mask| infer(&floats(mask)).is_ok());
    let types = floats(masks.max_by_key(|mask| mask.count_ones())?);
    let results = infer(&types).ok()?;
    let narrow = |(ty, (_, memory)): (&TensorType, &(Region, Memory))| {
        (Region::whole(ty), Memory::of(ty.dtype, &memory.values()))
    };
    let operands = types.iter().zip(&case.operands).map(narrow).collect();
    let results = results.iter().map(Region::whole).collect();
    let half = Case { op: case.op.clone(), operands, results };
    half.prepare().is_ok().then_some(half)
}

fn product(a: &[usize], b: &[usize], transpose_a: bool, transpose_b: bool) -> Case {
    let random = &mut Random::new(9);
    let op = Op::MatMul(MatMul { transpose_a, transpose_b });
    let types = [f32s(a), f32s(b)];
    let operand = |ty: &TensorType, random: &mut Random| {
        let data: Vec<f64> = (0..ty.elements()).map(|_| ordinary(random, 0, DType::F32)).collect();
        (Region::whole(ty), Memory::of(DType::F32, &data))
    };
    let results = op.infer_types(&[&types[0], &types[1]]).expect("the types fit");
    let operands = types.iter().map(|ty| operand(ty, random)).collect();
    Case { op, operands, results: results.iter().map(Region::whole).collect() }
}

/// Products of many shapes: tall, wide, deep, thin, batched, transposed.
fn products() -> Vec<Case> {
    let mut cases = Vec::new();
    for [i, j, k] in [
        [128, 512, 784],
        [128, 10, 512],
        [784, 300, 128],
        [65, 1023, 257],
        [1000, 3, 300],
        [1, 700, 900],
        [700, 1, 900],
        [33, 2049, 40],
        [513, 129, 1000],
    ] {
        cases.push(product(&[i, k], &[k, j], false, false));
        cases.push(product(&[k, i], &[k, j], true, false));
        cases.push(product(&[i, k], &[j, k], false, true));
    }
    cases.push(product(&[2, 3, 60, 70], &[2, 3, 70, 50], false, false));
    cases.push(product(&[2, 128, 64], &[64, 100], false, false));
    cases.push(product(&[2, 200, 64], &[2, 200, 100], true, false));
    cases
}

#[test]
fn results_are_the_same_on_any_number_of_threads() {
    let cx = EvalContext { seed: 1, step: 2 };
    let pools = [pool(1), pool(2), pool(3), pool(5)];
    let cases = large_cases();
    let halves: Vec<Case> = [DType::BF16, DType::F16]
        .iter()
        .flat_map(|&half| cases.iter().filter_map(move |case| in_half(case, half)))
        .collect();
    for case in cases.into_iter().chain(products()).chain(halves) {
        let alone = case.kernel(&cx, None).unwrap();
        for pool in &pools {
            let shared = case.kernel(&cx, Some(pool)).unwrap();
            let threads = pool.threads();
            assert!(alone == shared, "{:?} on {threads} threads: {:?}", case.op, case.results);
        }
    }
}

#[test]
fn large_results_are_right() {
    for case in large_cases() {
        // A convolution sums up to 630 terms of about 1: each addition rounds what has been summed up so far, about 25, by half a unit in
        // the last place, so results differ by 1e-4 where a processor adds in another order.
        let sums = matches!(
            case.op,
            Op::Convolution(_) | Op::ConvolutionInputGrad(_) | Op::ConvolutionKernelGrad(_)
        );
        case.check(if sums { 2e-4 } else { 5e-5 });
    }
    product(&[65, 129], &[129, 100], false, false).check(2e-5);
}

/// A chain with every kind of step and of operand: gelu'(x + bias) * g, masked, and a comparison.
fn chain() -> FusedOp {
    let unary = |function| Op::Unary(Unary { function });
    let binary = |function| Op::Binary(Binary { function });
    let step = |op: Op, args: &[FusedArg]| FusedStep { op, args: args.to_vec() };
    use FusedArg::{Operand as X, Step as S};
    FusedOp {
        steps: vec![
            step(binary(BinaryFunction::Add), &[X(0), X(1)]),
            step(unary(UnaryFunction::Scale(Scalar(std::f64::consts::FRAC_1_SQRT_2))), &[S(0)]),
            step(unary(UnaryFunction::Erf), &[S(1)]),
            step(unary(UnaryFunction::Offset(Scalar(1.0))), &[S(2)]),
            step(binary(BinaryFunction::Mul), &[S(3), X(2)]),
            step(binary(BinaryFunction::Greater), &[S(4), X(3)]),
            step(Op::Where(Where {}), &[S(5), S(4), X(2)]),
            step(Op::Cast(Cast { dtype: DType::F32 }), &[S(5)]),
            step(binary(BinaryFunction::Add), &[S(7), S(0)]),
        ],
        outputs: vec![6, 8],
    }
}

/// The results of a chain by the oracle of each op.
fn chain_by_oracle(op: &FusedOp, operands: &[(Region, Memory)], shape: &[usize]) -> Vec<Array> {
    let arrays: Vec<Array> = operands
        .iter()
        .map(|(region, memory)| Array::new(region.rect.extent.clone(), memory.values()))
        .collect();
    let mut steps: Vec<(Region, Array)> = Vec::new();
    for step in &op.steps {
        let args: Vec<(&Region, &Array)> = step
            .args
            .iter()
            .map(|arg| match *arg {
                FusedArg::Operand(index) => (&operands[index].0, &arrays[index]),
                FusedArg::Step(index) => (&steps[index].0, &steps[index].1),
            })
            .collect();
        let types: Vec<TensorType> =
            args.iter().map(|arg| TensorType::new(arg.0.dtype, arg.0.global.clone())).collect();
        let dtype = step.op.infer_types(&types.iter().collect::<Vec<_>>()).unwrap()[0].dtype;
        let region = Region::whole(&TensorType::new(dtype, shape));
        let args: Vec<Operand<'_>> =
            args.iter().map(|&(region, array)| Operand { array, region }).collect();
        let cx = EvalContext::default();
        let value = step.op.operation().evaluate(&args, std::slice::from_ref(&region), &cx);
        steps.push((region, value.unwrap().remove(0)));
    }
    op.outputs.iter().map(|&output| steps[output].1.clone()).collect()
}

#[test]
fn chains_compute_what_their_steps_do() {
    let op = chain();
    let two = pool(2);
    for (shape, bias) in [
        (vec![3, 5], vec![5]),
        (vec![0, 5], vec![5]),
        (vec![], vec![]),
        (vec![40, 50, 17], vec![17]),
        (vec![40, 50, 17], vec![50, 1]),
        (vec![40, 50, 17], vec![40, 1, 17]),
        (vec![300, 1500], vec![1500]),
        (vec![300, 1500], vec![300, 1]),
        (vec![2, 1, 40_000], vec![1]),
    ] {
        let random = &mut Random::new(4);
        let types = [f32s(&shape), f32s(&bias), f32s(&shape), f32s(&[])];
        let operands: Vec<(Region, Memory)> = types
            .iter()
            .map(|ty| {
                let data: Vec<f64> =
                    (0..ty.elements()).map(|_| ordinary(random, 0, DType::F32)).collect();
                (Region::whole(ty), Memory::of(DType::F32, &data))
            })
            .collect();
        let expected = chain_by_oracle(&op, &operands, &shape);
        let of_results = [f32s(&shape), f32s(&shape)];
        let prepared = prepare_fused(&op, &types, &of_results, DeviceKind::Cpu).unwrap();
        for pool in [None, Some(&two)] {
            let region = Region::whole(&f32s(&shape));
            let count = region.rect.elements();
            let mut results = vec![Memory::of(DType::F32, &vec![7.0; count]); 2];
            let views: Vec<View<'_>> =
                operands.iter().map(|(region, memory)| memory.view(region)).collect();
            let mut out: Vec<ViewMut<'_>> =
                results.iter_mut().map(|memory| memory.view_mut(&region)).collect();
            let mut scratch = Scratch::new();
            let mut cx = KernelContext { threads: 2, pool, ..context(&mut scratch) };
            prepared.launch(&views, &mut out, &mut cx).unwrap();
            for (found, expected) in results.iter().zip(&expected) {
                for (found, expected) in found.values().iter().zip(&expected.data) {
                    assert!((found - expected).abs() < 1e-5 * (1.0 + expected.abs()), "{shape:?}");
                }
            }
        }
    }
}

#[test]
fn results_may_be_an_operands_memory() {
    let random = &mut Random::new(6);
    let x = f32s(&[3, 1100]);
    let condition = TensorType::new(DType::Bool, [3, 1]);
    let counts = TensorType::new(DType::I64, [3, 1100]);
    let momentum = SgdUpdate {
        lr: 0.1.into(),
        momentum: Scalar(0.9),
        nesterov: true,
        weight_decay: Scalar(0.1),
        clip: None,
    };
    for (op, types) in [
        (Op::Unary(Unary { function: UnaryFunction::Exp }), vec![x.clone()]),
        (Op::Binary(Binary { function: BinaryFunction::Sub }), vec![x.clone(), x.clone()]),
        (Op::Where(Where {}), vec![condition, x.clone(), x.clone()]),
        (Op::Cast(Cast { dtype: DType::F32 }), vec![x.clone()]),
        (
            Op::Dropout(DropoutOp { probability: Scalar(0.5), key: 2, training: true }),
            vec![x.clone()],
        ),
        (Op::Reshape(Reshape { shape: vec![3300] }), vec![x.clone()]),
        (Op::Accumulate(Accumulate {}), vec![x.clone()]),
        (Op::SgdUpdate(momentum), vec![x.clone(); 3]),
        (Op::Blend(Blend::with_decay(0.9, 0.1)), vec![x.clone(); 2]),
        (Op::Blend(Blend::with_decay(1.0, 1.0)), vec![counts; 2]),
    ] {
        let results = op.infer_types(&types.iter().collect::<Vec<_>>()).unwrap();
        let operands = types
            .iter()
            .map(|ty| {
                let data: Vec<f64> =
                    (0..ty.elements()).map(|_| ordinary(random, 0, ty.dtype)).collect();
                (Region::whole(ty), Memory::of(ty.dtype, &data))
            })
            .collect();
        let case = Case { op, operands, results: results.iter().map(Region::whole).collect() };
        let narrow = [DType::BF16, DType::F16].map(|half| in_half(&case, half));
        assert!(case.check_in_place() > 0, "{:?} may work in place", case.op);
        for case in narrow.into_iter().flatten() {
            // Where a result has another type than its operand, there is no way.
            let alike = case.results[0].dtype == case.operands.last().expect("one").0.dtype;
            assert!(case.check_in_place() > 0 || !alike, "{:?} may work in place", case.op);
        }
    }
}

/// A chain in which values of 16 bits are read and written, cast to `f32` and back, and compared.
fn chain_of(half: DType) -> FusedOp {
    let binary = |function| Op::Binary(Binary { function });
    let step = |op: Op, args: &[FusedArg]| FusedStep { op, args: args.to_vec() };
    use FusedArg::{Operand as X, Step as S};
    FusedOp {
        steps: vec![
            step(binary(BinaryFunction::Add), &[X(0), X(1)]),
            step(Op::Unary(Unary { function: UnaryFunction::Gelu }), &[S(0)]),
            step(Op::Cast(Cast { dtype: DType::F32 }), &[S(1)]),
            step(binary(BinaryFunction::Mul), &[S(2), X(2)]),
            step(Op::Cast(Cast { dtype: half }), &[S(3)]),
            step(binary(BinaryFunction::Greater), &[S(4), S(0)]),
            step(Op::Where(Where {}), &[S(5), S(4), X(0)]),
            step(binary(BinaryFunction::Sub), &[S(6), S(1)]),
        ],
        outputs: vec![3, 5, 6, 7],
    }
}

/// The values of all steps, each by its own kernel.
fn step_by_step(op: &FusedOp, operands: &[(Region, Memory)]) -> Vec<(Region, Memory)> {
    let mut steps: Vec<(Region, Memory)> = Vec::new();
    for step in &op.steps {
        let arg = |arg: &FusedArg| match *arg {
            FusedArg::Operand(index) => operands[index].clone(),
            FusedArg::Step(index) => steps[index].clone(),
        };
        let operands: Vec<(Region, Memory)> = step.args.iter().map(arg).collect();
        let types = operands.iter().map(|(r, _)| TensorType::new(r.dtype, r.global.clone()));
        let types: Vec<TensorType> = types.collect();
        let results = step.op.infer_types(&types.iter().collect::<Vec<_>>()).unwrap();
        let results: Vec<Region> = results.iter().map(Region::whole).collect();
        let case = Case { op: step.op.clone(), operands, results };
        let value = case.kernel(&EvalContext::default(), None).unwrap().remove(0);
        steps.push((case.results[0].clone(), value));
    }
    steps
}

#[test]
fn chains_of_halves_give_the_bits_of_their_steps() {
    let random = &mut Random::new(8);
    for half in [DType::BF16, DType::F16] {
        let op = chain_of(half);
        for (shape, bias) in [(vec![3, 5], vec![5]), (vec![300, 700], vec![300, 1])] {
            let types =
                [TensorType::new(half, shape.clone()), TensorType::new(half, bias), f32s(&shape)];
            let operand = |ty: &TensorType| {
                let data: Vec<f64> =
                    (0..ty.elements()).map(|_| ordinary(random, 0, ty.dtype)).collect();
                (Region::whole(ty), Memory::of(ty.dtype, &data))
            };
            let operands: Vec<(Region, Memory)> = types.iter().map(operand).collect();
            let steps = step_by_step(&op, &operands);
            let expected = op.outputs.iter().map(|&output| &steps[output]);
            let mut found: Vec<(Region, Memory)> = expected
                .clone()
                .map(|(region, _)| {
                    let blank = vec![0.0; region.rect.elements()];
                    (region.clone(), Memory::of(region.dtype, &blank))
                })
                .collect();
            let results: Vec<TensorType> =
                found.iter().map(|(r, _)| TensorType::new(r.dtype, r.global.clone())).collect();
            let call = prepare_fused(&op, &types, &results, DeviceKind::Cpu).unwrap();
            let views: Vec<View<'_>> = operands.iter().map(|(r, m)| m.view(r)).collect();
            let mut out: Vec<ViewMut<'_>> = found.iter_mut().map(|(r, m)| m.view_mut(r)).collect();
            call.launch(&views, &mut out, &mut context(&mut Scratch::new())).unwrap();
            assert!(expected.zip(&found).all(|(a, b)| a.1 == b.1), "{half} {shape:?}");
        }
    }
}

#[test]
fn indices_out_of_range_are_named_by_their_place_in_the_whole() {
    let (x, labels) = ([0.5f32; 12], [0i64, 4, -100]);
    let shape = [3];
    let views = [
        View::whole(DType::F32, &[3, 4], &x),
        View::from_slice(DType::I64, &shape, &[8], &[5], &labels),
    ];
    let mut losses = ([0.0f32; 3], [0.0f32; 3]);
    let mut results = [
        ViewMut::whole(DType::F32, &shape, &mut losses.0),
        ViewMut::whole(DType::F32, &shape, &mut losses.1),
    ];
    let op = Op::CrossEntropy(CrossEntropy::default());
    let types = [f32s(&[3, 4]), TensorType::new(DType::I64, [3])];
    let call = prepared(&op, &types);
    let error = call.launch(&views, &mut results, &mut context(&mut Scratch::new())).unwrap_err();
    let expected = KernelError::Index { what: "label", index: 4, range: 4, position: vec![6] };
    assert_eq!(error, expected);
    assert_eq!(
        error.to_string(),
        "label 4 at position [6] is out of range: it must be from 0 to 3"
    );
}

#[test]
fn what_has_no_kernel_is_said() {
    let (op, x) = (Op::Softmax(Softmax { axis: 0 }), f32s(&[3]));
    let one = std::slice::from_ref(&x);
    let error = prepare_op(&op, one, one, DeviceKind::Cuda).unwrap_err();
    assert_eq!(error.to_string(), "no kernel for softmax of (f32) -> (f32) on cuda");
    let half = TensorType::new(DType::BF16, [3]);
    let error = prepare_op(&op, one, std::slice::from_ref(&half), DeviceKind::Cpu).unwrap_err();
    assert_eq!(error.to_string(), "no kernel for softmax of (f32) -> (bf16) on cpu");
    let add = Op::Binary(Binary { function: BinaryFunction::Add });
    let error = prepare_op(&add, &[x.clone(), half], one, DeviceKind::Cpu).unwrap_err();
    assert_eq!(error.to_string(), "no kernel for binary of (f32, bf16) -> (f32) on cpu");
}

#[test]
fn views_that_do_not_fit_are_errors() {
    let data = [1.0f32; 6];
    let mut out = [0.0f32; 6];
    let views = [View::whole(DType::F32, &[2, 3], &data), View::whole(DType::F32, &[2, 3], &data)];
    for op in [
        Op::MatMul(MatMul { transpose_a: false, transpose_b: false }),
        Op::Softmax(Softmax { axis: 5 }),
        Op::Transpose(Transpose { permutation: vec![1, 0] }),
        Op::Reduce(Reduce { function: ReduceFunction::Sum, axes: vec![0], keep_dims: false }),
        Op::Concat(Concat { axis: 0 }),
        Op::Embedding(EmbeddingOp {}),
        Op::AdamUpdate(AdamUpdate {
            lr: 0.0.into(),
            beta1: Scalar(0.0),
            beta2: Scalar(0.0),
            epsilon: Scalar(0.0),
            weight_decay: Scalar(0.0),
            decoupled: false,
            clip: None,
        }),
    ] {
        let mut results = [ViewMut::whole(DType::F32, &[2, 3], &mut out)];
        let types = [f32s(&[2, 3]), f32s(&[2, 3])];
        let refused = match prepare_op(&op, &types, &types[..1], DeviceKind::Cpu) {
            Ok(call) => {
                let mut scratch = Scratch::new();
                call.launch(&views, &mut results, &mut context(&mut scratch)).is_err()
            }
            Err(_) => true,
        };
        assert!(refused, "{op:?}");
    }
}

#[test]
fn accumulation_adds() {
    let mut into = [1.0f32, 2.0];
    let mut view = ViewMut::whole(DType::F32, &[2], &mut into);
    accumulate_into(&mut view, &View::whole(DType::F32, &[2], &[0.5, -1.0f32])).unwrap();
    assert_eq!(into, [1.5, 1.0]);
}
