//! Small models, and numbers to feed them.

use std::collections::BTreeMap;

use graphc_ir::array::Array;
use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::graph::Graph;
use graphc_ir::op::Op;
use graphc_ir::ops::Init;
use graphc_ir::types::{DType, TensorType};
use graphc_plan::{CompileOptions, Loss, Optimizer};

/// Feeds by name.
pub type Feeds = BTreeMap<String, Array>;

fn weight(g: &GraphBuilder, name: &str, shape: &[usize]) -> Tensor {
    g.variable(name, DType::F32, shape, Init::Normal { mean: 0.0.into(), std: 0.5.into() })
}

/// Two layers with biases; `y [4, 3]`.
pub fn mlp() -> Graph {
    let g = GraphBuilder::new("mlp");
    let x = g.input("x", DType::F32, [4, 5]);
    let hidden = x.matmul(&weight(&g, "w1", &[5, 6])).add(&weight(&g, "b1", &[6])).gelu();
    let out = hidden.matmul_transposed(&weight(&g, "w2", &[3, 6]), false, true);
    g.output("y", &out.add(&weight(&g, "b2", &[3])).named("y"));
    g.finish().expect("fits")
}

/// Causal attention of two heads, with weights `p`, and a residual, normalized; `y [2, 4, 6]`.
pub fn attention() -> Graph {
    let g = GraphBuilder::new("attention");
    let x = g.input("x", DType::F32, [2, 4, 6]);
    let normed = x.layer_norm(&weight(&g, "scale", &[6]), &weight(&g, "shift", &[6]), 1e-5);
    let qkv = normed.matmul(&weight(&g, "qkv", &[6, 18])).reshape(&[2, 4, 3, 2, 3]);
    let part = |i: usize| qkv.slice(2, i..i + 1).reshape(&[2, 4, 2, 3]).transpose(&[0, 2, 1, 3]);
    let scores = part(0).matmul(&part(1).transpose(&[0, 1, 3, 2])).scale(3f64.powf(-0.5));
    let past = g.full(DType::F32, [4, 4], 1.0).tril(0).greater(&g.full(DType::F32, [], 0.5));
    let masked = past.select(&scores, &g.full(DType::F32, [], -1e9));
    let mixed =
        masked.softmax(3).named("p").matmul(&part(2)).transpose(&[0, 2, 1, 3]).reshape(&[2, 4, 6]);
    g.output("y", &mixed.matmul(&weight(&g, "proj", &[6, 6])).add(&x));
    g.finish().expect("fits")
}

/// Embeddings of tokens and positions, a hidden layer, and the table of tokens again for the scores: `y [2, 3, 7]`.
pub fn tied() -> Graph {
    let g = GraphBuilder::new("tied");
    let ids = g.input("ids", DType::I64, [2, 3]);
    let table = weight(&g, "table", &[7, 4]);
    let positions = weight(&g, "positions", &[3, 4]).embedding(&g.iota(DType::I64, [3], 0));
    let x = table.embedding(&ids).add(&positions);
    let hidden = x.matmul(&weight(&g, "w", &[4, 4])).silu().rms_norm(&weight(&g, "n", &[4]), 1e-5);
    g.output("y", &hidden.matmul_transposed(&table, false, true));
    g.finish().expect("fits")
}

/// Options of a training job on one rank.
pub fn training(loss: Option<Loss>) -> CompileOptions {
    let optimizer = Optimizer::Sgd { lr: 0.1, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    CompileOptions { loss, optimizer: Some(optimizer), ..CompileOptions::default() }
}

/// Makes numbers for every input and trained variable of a graph. Integers are in `0..3`, and one label is ignored.
pub fn feeds(graph: &Graph) -> Feeds {
    let mut feeds = Feeds::new();
    for node in &graph.nodes {
        let (name, ty) = match &node.op {
            Op::Input(input) => (&input.name, &input.ty),
            Op::Variable(v) if !v.name.starts_with("state.") => (&v.name, &v.ty),
            _ => continue,
        };
        feeds.insert(name.clone(), numbers(name, ty));
    }
    feeds
}

fn numbers(name: &str, ty: &TensorType) -> Array {
    let seed = name.bytes().map(f64::from).sum::<f64>();
    let number = |i: usize| match ty.dtype.is_float() {
        true => (seed + 1.7 * i as f64).sin() * 0.8,
        false if name == "labels" && i == 1 => -100.0,
        false => ((i * 7 + 1) % 3) as f64,
    };
    Array::new(ty.shape.clone(), (0..ty.elements()).map(number).collect())
}
