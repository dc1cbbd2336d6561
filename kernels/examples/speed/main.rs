//! Measures the speed of the main kernels on this machine, at the sizes of a small GPT and an MLP:
//! `cargo run --release -p graphc-kernels --example speed -- [THREADS] [half | norm | images | recurrence | attention | products]`. Bytes
//! count each operand and result once. With `norm` only the passes of batch normalization are timed. With `images` only convolution is,
//! beside a product of large matrices; with `recurrence` recurrent layers; with `attention` and `products` those. With `half` only
//! products, attention and convolution are timed, of f32, bf16 and f16 in turn: medians, and how many times as fast as f32 each is.

mod images;
mod normalization;
mod recurrence;

use std::slice::from_ref;
use std::time::Instant;

use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::Op;
use graphc_ir::ops::*;
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};
use graphc_kernels::{
    KernelContext, KernelError, Prepared, Scratch, ThreadPool, View, ViewMut, prepare_fused,
    prepare_op,
};
use graphc_plan::{FusedArg, FusedOp, FusedStep};
use half::{bf16, f16};

struct Bench {
    threads: usize,
    pool: ThreadPool,
    scratch: Scratch,
}

enum Memory {
    Floats(Vec<f32>),
    Brains(Vec<bf16>),
    Halves(Vec<f16>),
    Indices(Vec<i64>),
    Truths(Vec<u8>),
}

impl Memory {
    fn of(ty: &TensorType, salt: usize) -> Self {
        let count = ty.elements();
        let floats = (0..count).map(|i| ((i * 7919 + salt * 31) % 1000) as f32 * 2e-3);
        match ty.dtype {
            DType::I64 => Self::Indices((0..count).map(|i| (i * 37 % 1000) as i64).collect()),
            DType::Bool => Self::Truths((0..count).map(|i| (i % 3 == 0) as u8).collect()),
            DType::BF16 => Self::Brains(floats.map(bf16::from_f32).collect()),
            DType::F16 => Self::Halves(floats.map(f16::from_f32).collect()),
            _ => Self::Floats(floats.collect()),
        }
    }

    fn view<'a>(&'a self, ty: &'a TensorType) -> View<'a> {
        match self {
            Self::Floats(data) => View::whole(ty.dtype, &ty.shape, data),
            Self::Brains(data) => View::whole(ty.dtype, &ty.shape, data),
            Self::Halves(data) => View::whole(ty.dtype, &ty.shape, data),
            Self::Indices(data) => View::whole(ty.dtype, &ty.shape, data),
            Self::Truths(data) => View::whole(ty.dtype, &ty.shape, data),
        }
    }

    fn view_mut<'a>(&'a mut self, ty: &'a TensorType) -> ViewMut<'a> {
        match self {
            Self::Floats(data) => ViewMut::whole(ty.dtype, &ty.shape, data),
            Self::Brains(data) => ViewMut::whole(ty.dtype, &ty.shape, data),
            Self::Halves(data) => ViewMut::whole(ty.dtype, &ty.shape, data),
            Self::Indices(data) => ViewMut::whole(ty.dtype, &ty.shape, data),
            Self::Truths(data) => ViewMut::whole(ty.dtype, &ty.shape, data),
        }
    }
}

impl Bench {
    /// The least seconds of a call, which is repeated for so many seconds.
    fn least(
        &mut self,
        operands: &[TensorType],
        results: &[TensorType],
        during: f64,
        call: impl Fn(
            &[View<'_>],
            &mut [ViewMut<'_>],
            &mut KernelContext<'_>,
        ) -> Result<(), KernelError>,
    ) -> f64 {
        let inputs: Vec<Memory> =
            operands.iter().enumerate().map(|(i, ty)| Memory::of(ty, i)).collect();
        let mut outputs: Vec<Memory> = results.iter().map(|ty| Memory::of(ty, 9)).collect();
        let views: Vec<View<'_>> = inputs.iter().zip(operands).map(|(m, ty)| m.view(ty)).collect();
        let mut out: Vec<ViewMut<'_>> =
            outputs.iter_mut().zip(results).map(|(m, ty)| m.view_mut(ty)).collect();
        let pool = (self.threads > 1).then_some(&self.pool);
        let (mut best, start, mut count) = (f64::INFINITY, Instant::now(), 0);
        while count < 3 || start.elapsed().as_secs_f64() < during {
            let begin = Instant::now();
            let (threads, scratch) = (self.threads, &mut self.scratch);
            let mut cx = KernelContext { seed: 0, step: 0, rate: None, threads, pool, scratch };
            call(&views, &mut out, &mut cx).expect("the views fit");
            best = best.min(begin.elapsed().as_secs_f64());
            count += 1;
        }
        best
    }

    /// Times a call and prints it.
    fn time(
        &mut self,
        name: &str,
        operands: &[TensorType],
        results: &[TensorType],
        flops: f64,
        call: impl Fn(
            &[View<'_>],
            &mut [ViewMut<'_>],
            &mut KernelContext<'_>,
        ) -> Result<(), KernelError>,
    ) {
        let best = self.least(operands, results, 0.15, call);
        let bytes: usize = operands.iter().chain(results).map(TensorType::bytes).sum();
        print!("{name:34} {:9.1} us {:7.1} GB/s", best * 1e6, bytes as f64 / best * 1e-9);
        if flops > 0.0 { println!(" {:8.1} GFLOP/s", flops / best * 1e-9) } else { println!() }
    }

    fn op(&mut self, name: &str, op: Op, operands: &[TensorType]) {
        let results = op.infer_types(&operands.iter().collect::<Vec<_>>()).expect("the types fit");
        let call = prepare_op(&op, operands, &results, DeviceKind::Cpu).expect("a kernel");
        let flops = match &op {
            Op::MatMul(matmul) => {
                let rank = operands[0].shape.len();
                let inner = operands[0].shape[rank - if matmul.transpose_a { 2 } else { 1 }];
                2.0 * results[0].elements() as f64 * inner as f64
            }
            Op::Attention(_) | Op::AttentionGrad(_) | Op::Recurrence(_) | Op::RecurrenceGrad(_) => {
                let rule = op.operation().rule(&operands.iter().collect::<Vec<_>>());
                op.operation().flops(&rule.expect("the types fit"))
            }
            _ => 0.0,
        };
        self.time(name, operands, &results, flops, |x, y, cx| call.launch(x, y, cx));
    }
}

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn unary(function: UnaryFunction) -> Op {
    Op::Unary(Unary { function })
}

fn binary(function: BinaryFunction) -> Op {
    Op::Binary(Binary { function })
}

/// g * (Phi(x) + x phi(x)).
fn gelu_gradient() -> FusedOp {
    use BinaryFunction::{Add, Mul};
    use FusedArg::{Operand as X, Step as S};
    use UnaryFunction::{Erf, Exp, Offset, Scale};
    let scale = |value| unary(Scale(Scalar(value)));
    let steps = [
        (binary(Mul), vec![X(0), X(0)]),
        (scale(-0.5), vec![S(0)]),
        (unary(Exp), vec![S(1)]),
        (scale(0.398_942_280_4), vec![S(2)]),
        (scale(std::f64::consts::FRAC_1_SQRT_2), vec![X(0)]),
        (unary(Erf), vec![S(4)]),
        (unary(Offset(Scalar(1.0))), vec![S(5)]),
        (scale(0.5), vec![S(6)]),
        (binary(Mul), vec![X(0), S(3)]),
        (binary(Add), vec![S(7), S(8)]),
        (binary(Mul), vec![X(1), S(9)]),
    ];
    FusedOp {
        steps: steps.into_iter().map(|(op, args)| FusedStep { op, args }).collect(),
        outputs: vec![10],
    }
}

fn elementwise(bench: &mut Bench) {
    let wide = f32s(&[1024, 1024]);
    bench.op("relu [1024,1024]", unary(UnaryFunction::Relu), from_ref(&wide));
    bench.op("gelu", unary(UnaryFunction::Gelu), from_ref(&wide));
    bench.op("gelu_tanh", unary(UnaryFunction::GeluTanh), from_ref(&wide));
    bench.op("exp", unary(UnaryFunction::Exp), from_ref(&wide));
    bench.op("tanh", unary(UnaryFunction::Tanh), from_ref(&wide));
    bench.op("log", unary(UnaryFunction::Log), from_ref(&wide));
    let chain = gelu_gradient();
    let pair = [wide.clone(), wide.clone()];
    let call = prepare_fused(&chain, &pair, from_ref(&wide), DeviceKind::Cpu).expect("it fits");
    bench.time("gelu gradient, fused", &pair, from_ref(&wide), 0.0, |x, y, cx| {
        call.launch(x, y, cx)
    });
    bench.op("add", binary(BinaryFunction::Add), &pair);
    bench.op("add bias [1024]", binary(BinaryFunction::Add), &[wide.clone(), f32s(&[1024])]);
    bench.op("add column [1024,1]", binary(BinaryFunction::Add), &[wide.clone(), f32s(&[1024, 1])]);
    bench.op("greater", binary(BinaryFunction::Greater), &pair);
    let condition = TensorType::new(DType::Bool, [128, 128]);
    let scores = f32s(&[8, 8, 128, 128]);
    bench.op("where mask", Op::Where(Where {}), &[condition, scores, f32s(&[])]);
    let dropout = Op::Dropout(DropoutOp { probability: Scalar(0.1), key: 1, training: true });
    bench.op("dropout", dropout, &[wide]);
}

fn rows(bench: &mut Bench) {
    let scores = f32s(&[8, 8, 128, 128]);
    bench.op("softmax [8,8,128,128]", Op::Softmax(Softmax { axis: 3 }), from_ref(&scores));
    let grad = Op::SoftmaxGrad(SoftmaxGrad { axis: 3 });
    bench.op("softmax_grad", grad, &[scores.clone(), scores]);
    let x = f32s(&[1024, 256]);
    let norm = Op::Normalize(Normalize { center: true, epsilon: Scalar(1e-5) });
    bench.op("normalize [1024,256]", norm, from_ref(&x));
    let grad = Op::NormalizeGrad(NormalizeGrad { center: true });
    bench.op("normalize_grad", grad, &[x.clone(), f32s(&[1024, 1]), x.clone()]);
    let logits = f32s(&[1024, 8192]);
    let labels = TensorType::new(DType::I64, [1024]);
    let loss = Op::CrossEntropy(CrossEntropy::default());
    bench.op("cross_entropy [1024,8192]", loss, &[logits.clone(), labels.clone()]);
    let row = f32s(&[1024]);
    let grad = Op::CrossEntropyGrad(CrossEntropyGrad::default());
    bench.op("cross_entropy_grad", grad, &[logits.clone(), row.clone(), labels.clone(), row]);
    let reduce = |function, axes: &[usize]| {
        Op::Reduce(Reduce { function, axes: axes.to_vec(), keep_dims: false })
    };
    bench.op("sum [1024,8192] over 0", reduce(ReduceFunction::Sum, &[0]), from_ref(&logits));
    bench.op("sum over 1", reduce(ReduceFunction::Sum, &[1]), from_ref(&logits));
    bench.op("mean over all", reduce(ReduceFunction::Mean, &[0, 1]), from_ref(&logits));
    bench.op("sum [1024,256] over 0", reduce(ReduceFunction::Sum, &[0]), from_ref(&x));
    bench.op("argmax", Op::ArgMax(ArgMax { axis: 1, keep_dims: false }), &[logits]);
    bench.op("embedding", Op::Embedding(EmbeddingOp {}), &[f32s(&[8192, 256]), labels.clone()]);
    bench.op("embedding_grad", Op::EmbeddingGrad(EmbeddingGrad { rows: 8192 }), &[labels, x]);
}

fn movement(bench: &mut Bench) {
    let heads = f32s(&[8, 128, 8, 32]);
    let transpose = |dims: &[usize]| Op::Transpose(Transpose { permutation: dims.to_vec() });
    bench.op("[B,T,H,D] -> [B,H,T,D]", transpose(&[0, 2, 1, 3]), &[heads]);
    bench.op("transpose [1024,1024]", transpose(&[1, 0]), &[f32s(&[1024, 1024])]);
    let qkv = f32s(&[8, 128, 768]);
    bench.op("split qkv", Op::Split(Split { axis: 2, sizes: vec![256; 3] }), &[qkv]);
}

/// The pooling behind the first convolution of ResNet, of images of half their size.
fn pools(bench: &mut Bench) {
    let window = Window { strides: [2; 2], pads: [1; 4], dilations: [1; 2] };
    let (kernel, count_border, extents) = ([3; 2], true, [16; 2]);
    for (order, channels_last, x, y) in [
        ("[n,c,h,w]", false, [64, 64, 16, 16], [64, 64, 8, 8]),
        ("[n,h,w,c]", true, [64, 16, 16, 64], [64, 8, 8, 64]),
    ] {
        let (x, y) = (f32s(&x), f32s(&y));
        let max = Op::MaxPool(MaxPool { kernel, window, channels_last });
        bench.op(&format!("max pool 3/2, 64, 16x16 {order}"), max, std::slice::from_ref(&x));
        let of_max = Op::MaxPoolGrad(MaxPoolGrad { kernel, window, channels_last });
        bench.op("  gradient", of_max, &[x.clone(), y.clone()]);
        let mean = Op::AveragePool(AveragePool { kernel, window, count_border, channels_last });
        bench.op(&format!("mean pool 3/2, 64, 16x16 {order}"), mean, &[x]);
        let of_mean = AveragePoolGrad { kernel, window, count_border, extents, channels_last };
        bench.op("  gradient", Op::AveragePoolGrad(of_mean), &[y]);
    }
}

fn updates(bench: &mut Bench) {
    let w = f32s(&[7_500_000]);
    let adam = AdamUpdate {
        lr: 1e-3.into(),
        beta1: Scalar(0.9),
        beta2: Scalar(0.999),
        epsilon: Scalar(1e-8),
        weight_decay: Scalar(0.01),
        decoupled: true,
        clip: None,
    };
    bench.op("adamw 7.5M", Op::AdamUpdate(adam), &vec![w.clone(); 4]);
    let sgd = SgdUpdate {
        lr: 0.1.into(),
        momentum: Scalar(0.0),
        nesterov: false,
        weight_decay: Scalar(0.0),
        clip: None,
    };
    bench.op("sgd 7.5M", Op::SgdUpdate(sgd), &[w.clone(), w]);
}

type ProductShape = (&'static str, Vec<usize>, Vec<usize>, bool, bool);

fn product_shapes() -> Vec<ProductShape> {
    vec![
        ("mlp forward 128x784x2048", vec![128, 784], vec![784, 2048], false, false),
        ("mlp forward 128x2048x2048", vec![128, 2048], vec![2048, 2048], false, false),
        ("mlp forward, b transposed", vec![128, 2048], vec![2048, 2048], false, true),
        ("mlp weight gradient", vec![128, 2048], vec![128, 2048], true, false),
        ("gpt projection 1024x256x1024", vec![1024, 256], vec![256, 1024], false, false),
        ("gpt projection [8,128,256]", vec![8, 128, 256], vec![256, 1024], false, false),
        ("gpt logits 1024x256x8192", vec![1024, 256], vec![256, 8192], false, false),
        ("gpt logits, b transposed", vec![1024, 256], vec![8192, 256], false, true),
        ("gpt logits weight gradient", vec![1024, 256], vec![1024, 8192], true, false),
        ("gpt logits input gradient", vec![1024, 8192], vec![256, 8192], false, true),
        ("gpt projection gradient", vec![1024, 256], vec![1024, 1024], true, false),
        ("gpt head gradient 8192x1024x256", vec![1024, 8192], vec![1024, 256], true, false),
        ("gpt fc gradient 1024x1024x256", vec![1024, 1024], vec![1024, 256], true, false),
        ("gpt projection input gradient", vec![1024, 1024], vec![256, 1024], false, true),
        ("attention scores", vec![8, 8, 128, 32], vec![8, 8, 128, 32], false, true),
        ("attention values", vec![8, 8, 128, 128], vec![8, 8, 128, 32], false, false),
        ("square 1024", vec![1024, 1024], vec![1024, 1024], false, false),
    ]
}

fn products(bench: &mut Bench) {
    for (name, a, b, transpose_a, transpose_b) in product_shapes() {
        bench.op(name, Op::MatMul(MatMul { transpose_a, transpose_b }), &[f32s(&a), f32s(&b)]);
    }
}

/// Batch, time, heads, heads of keys, width.
const ATTENTIONS: [(&str, bool, [usize; 5]); 4] = [
    ("attention [8,128,8,32]", false, [8, 128, 8, 8, 32]),
    ("attention [8,128,8,32], causal", true, [8, 128, 8, 8, 32]),
    ("attention [1,1024,16,64], causal", true, [1, 1024, 16, 16, 64]),
    ("attention [1,2048,8/2,128], causal", true, [1, 2048, 8, 2, 128]),
];

fn attention(bench: &mut Bench) {
    let scale = Scalar(0.125);
    for (name, causal, [batch, time, heads, shared, width]) in ATTENTIONS {
        let query = f32s(&[batch, time, heads, width]);
        let key = f32s(&[batch, time, shared, width]);
        let types = [query.clone(), key.clone(), key.clone()];
        bench.op(name, Op::Attention(Attention::new(causal, scale)), &types);
        let row = f32s(&[batch, time, heads]);
        let types = [&query, &key, &key, &query, &row, &query].map(TensorType::clone);
        bench.op("  gradient", Op::AttentionGrad(AttentionGrad::new(causal, scale)), &types);
    }
    let rotary = Rotary { base: Scalar(1e4), interleaved: false, inverse: false, zigzag: None };
    bench.op("rotary [1,2048,8,128]", Op::Rotary(rotary), &[f32s(&[1, 2048, 8, 128])]);
}

/// An op on operands of one element type, whose calls are timed.
struct Timed {
    operands: Vec<(TensorType, Memory)>,
    results: Vec<(TensorType, Memory)>,
    call: Prepared,
    seconds: Vec<f64>,
}

impl Timed {
    /// Operands of which f32 stands for `dtype`, except the log-sum-exp of attention.
    fn new(op: &Op, operands: &[TensorType], dtype: DType) -> Self {
        let of = |(index, ty): (usize, &TensorType)| match (op, index) {
            (Op::AttentionGrad(_), 4) => ty.clone(),
            _ => TensorType::new(dtype, ty.shape.clone()),
        };
        let operands: Vec<TensorType> = operands.iter().enumerate().map(of).collect();
        let results = op.infer_types(&operands.iter().collect::<Vec<_>>()).expect("the types fit");
        let call = prepare_op(op, &operands, &results, DeviceKind::Cpu).expect("a kernel");
        let with_memory = |types: Vec<TensorType>| -> Vec<(TensorType, Memory)> {
            let memory = |(salt, ty): (usize, TensorType)| (ty.clone(), Memory::of(&ty, salt));
            types.into_iter().enumerate().map(memory).collect()
        };
        let (operands, results) = (with_memory(operands), with_memory(results));
        Self { operands, results, call, seconds: Vec::new() }
    }

    fn call(&mut self, bench: &mut Bench) {
        let views: Vec<View<'_>> = self.operands.iter().map(|(ty, m)| m.view(ty)).collect();
        let mut out: Vec<ViewMut<'_>> =
            self.results.iter_mut().map(|(ty, m)| m.view_mut(ty)).collect();
        let (threads, scratch) = (bench.threads, &mut bench.scratch);
        let pool = (threads > 1).then_some(&bench.pool);
        let mut cx = KernelContext { seed: 0, step: 0, rate: None, threads, pool, scratch };
        let begin = Instant::now();
        self.call.launch(&views, &mut out, &mut cx).expect("the views fit");
        self.seconds.push(begin.elapsed().as_secs_f64());
    }

    fn median(&mut self) -> f64 {
        self.seconds.sort_by(f64::total_cmp);
        self.seconds[self.seconds.len() / 2]
    }
}

/// Times an op on f32, bf16 and f16 in turn.
fn beside(bench: &mut Bench, name: &str, op: Op, operands: &[TensorType]) {
    let types = [DType::F32, DType::BF16, DType::F16];
    let mut all = types.map(|dtype| Timed::new(&op, operands, dtype));
    let start = Instant::now();
    while all[0].seconds.len() < 5 || start.elapsed().as_secs_f64() < 0.6 {
        all.iter_mut().for_each(|timed| timed.call(bench));
    }
    let [single, brain, half] = all.map(|mut timed| timed.median() * 1e6);
    println!(
        "{name:34} {single:9.1} us  bf16 {brain:9.1} us {:5.2}x  f16 {half:9.1} us {:5.2}x",
        single / brain,
        single / half,
    );
}

fn halves(bench: &mut Bench) {
    for (name, a, b, transpose_a, transpose_b) in product_shapes() {
        let op = Op::MatMul(MatMul { transpose_a, transpose_b });
        beside(bench, name, op, &[f32s(&a), f32s(&b)]);
    }
    let scale = Scalar(0.125);
    for (name, causal, [batch, time, heads, shared, width]) in ATTENTIONS {
        let query = f32s(&[batch, time, heads, width]);
        let key = f32s(&[batch, time, shared, width]);
        let types = [query.clone(), key.clone(), key.clone()];
        beside(bench, name, Op::Attention(Attention::new(causal, scale)), &types);
        let row = f32s(&[batch, time, heads]);
        let types = [&query, &key, &key, &query, &row, &query].map(TensorType::clone);
        beside(bench, "  gradient", Op::AttentionGrad(AttentionGrad::new(causal, scale)), &types);
    }
    let window = Window { strides: [1; 2], pads: [1; 4], dilations: [1; 2] };
    for (name, channels, extent) in [
        ("convolution 3x3, 64, [8,32,32]", 64, 32),
        ("convolution 3x3, 128, [8,16,16]", 128, 16),
        ("convolution 3x3, 256, [8,8,8]", 256, 8),
    ] {
        let x = f32s(&[8, channels, extent, extent]);
        let k = f32s(&[channels, channels, 3, 3]);
        let op = Op::Convolution(Convolution { window, groups: 1, channels_last: false });
        beside(bench, name, op, &[x.clone(), k.clone()]);
        let of_x =
            ConvolutionInputGrad { window, groups: 1, extents: [extent; 2], channels_last: false };
        beside(bench, "  input gradient", Op::ConvolutionInputGrad(of_x), &[k, x.clone()]);
        let of_k =
            ConvolutionKernelGrad { window, groups: 1, extents: [3; 2], channels_last: false };
        beside(bench, "  kernel gradient", Op::ConvolutionKernelGrad(of_k), &[x.clone(), x]);
    }
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1);
    let spin = std::time::Duration::from_micros(200);
    let name = |index| format!("thread {index}");
    let pool = ThreadPool::new(threads, spin, name).expect("threads start");
    let mut bench = Bench { threads, pool, scratch: Scratch::new() };
    match std::env::args().nth(2).as_deref() {
        Some("half") => return halves(&mut bench),
        Some("norm") => return normalization::all(&mut bench),
        Some("attention") => return attention(&mut bench),
        Some("products") => return products(&mut bench),
        Some("recurrence") => return recurrence::recurrence(&mut bench),
        Some("images") => return images::images(&mut bench),
        _ => {}
    }
    elementwise(&mut bench);
    rows(&mut bench);
    movement(&mut bench);
    pools(&mut bench);
    updates(&mut bench);
    products(&mut bench);
    attention(&mut bench);
    normalization::all(&mut bench);
}
