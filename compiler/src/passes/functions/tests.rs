//! Functions in parts are known however they are written, and compute and learn the same as one op; what is another function stays.

use std::collections::BTreeMap;

use graphc_ir::array::Array;
use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::evaluate::evaluate_graph;
use graphc_ir::graph::{Graph, Node};
use graphc_ir::op::{EvalContext, Op};
use graphc_ir::ops::{ArgMax, Init, Pick};
use graphc_ir::types::DType;
use graphc_ir::verify::verify_graph;
use graphc_plan::{CompileOptions, Loss, Optimizer, Pin};

use super::{functions_in_parts, fuse_functions};
use crate::passes::autodiff::append_gradients;
use crate::passes::joined::Held;
use crate::passes::loss::attach_loss;

/// sqrt(2 / pi), as exports hold it, in f32.
const ROOT: f64 = 0.797_884_583_473_205_6;
const CUBIC: f64 = 0.044_714_998_453_855_515;

type Form = fn(&Tensor) -> Tensor;

/// A model that trains a bias before a function of its sum with the data.
fn model(form: impl FnOnce(&Tensor) -> Tensor) -> Graph {
    let g = GraphBuilder::new("model");
    let init = Init::Normal { mean: 0.0.into(), std: 0.6.into() };
    let x = g.input("x", DType::F32, [4, 5]).add(&g.variable("bias", DType::F32, [5], init));
    g.output("y", &form(&x).sin());
    g.finish().expect("fits")
}

fn options() -> CompileOptions {
    let optimizer = Optimizer::Sgd { lr: 0.1, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let (loss, optimizer) = (Some(Loss::Sum), Some(optimizer));
    CompileOptions { loss, optimizer, ..CompileOptions::default() }
}

/// The loss and the gradients of all that is trained.
fn trained(graph: &Graph) -> Vec<Array> {
    let graph = attach_loss(graph.clone(), &options()).expect("has a loss");
    let training = append_gradients(graph, &options(), false).expect("has gradients");
    let fed = |node: &Node| match &node.op {
        Op::Input(input) => {
            let number = |i: usize| match input.ty.dtype.is_float() {
                true => 4.0 * (1.3 + 1.7 * i as f64).sin(),
                false => (i * 3 % 5) as f64,
            };
            let data = (0..input.ty.elements()).map(number).collect();
            Some((input.name.clone(), Array::new(&input.ty.shape[..], data)))
        }
        _ => None,
    };
    let fed: BTreeMap<String, Array> = training.graph.nodes.iter().filter_map(fed).collect();
    let all = evaluate_graph(&training.graph, &fed, &EvalContext::default()).expect("is fed");
    let gradients = training.gradients.iter().map(|&(_, gradient)| gradient);
    gradients.chain(training.loss).map(|value| all[value.index()].clone()).collect()
}

/// Holds that a model has this function in parts, and that it computes and learns the same by one op.
fn is_one(form: &str, name: &'static str, graph: &Graph) {
    let after = fuse_functions(graph.clone(), &options()).expect("fits");
    verify_graph(&after).expect("holds together");
    let found = functions_in_parts(graph, &options());
    assert_eq!(found.whole, BTreeMap::from([(name, 1)]), "{form}");
    assert!(found.in_parts.is_empty(), "{form}: {found:?}");
    assert_eq!(functions_in_parts(&after, &options()), Default::default(), "{form}");
    for (a, b) in trained(graph).iter().zip(trained(&after)) {
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 2e-6 * (1.0 + a.abs());
        assert!(a.data.iter().all(|x| x.is_finite()), "{form}");
        assert!(a.data.iter().zip(&b.data).all(near), "{form}: {a:?} is not {b:?}");
    }
}

fn number(x: &Tensor, value: f64) -> Tensor {
    x.builder().full(DType::F32, [], value)
}

fn tanh_of(inner: &Tensor) -> Tensor {
    inner.scale(ROOT).tanh().offset(1.0)
}

fn inverse_root(x: &Tensor, epsilon: f64) -> Tensor {
    x.pow_scalar(2.0).mean(&[1], true).offset(epsilon).rsqrt()
}

#[test]
fn gelu_and_silu_are_known_however_they_are_written() {
    let forms: [(&str, &'static str, Form); 13] = [
        ("NewGELU", "gelu_tanh", |x| {
            x.scale(0.5).mul(&tanh_of(&x.add(&x.pow_scalar(3.0).scale(CUBIC))))
        }),
        ("products for the power", "gelu_tanh", |x| {
            tanh_of(&x.mul(x).mul(x).scale(CUBIC).add(x)).mul(x).scale(0.5)
        }),
        ("FastGELU", "gelu_tanh", |x| {
            let inner = x.mul(x).scale(CUBIC).offset(1.0).mul(&x.scale(ROOT));
            inner.tanh().offset(1.0).mul(&x.scale(0.5))
        }),
        ("numbers as tensors", "gelu_tanh", |x| {
            let cube = x.mul(&x.mul(x)).mul(&number(x, CUBIC));
            let bent = x.add(&cube).mul(&number(x, ROOT)).tanh();
            number(x, 1.0).add(&bent).mul(&x.div(&number(x, 2.0)))
        }),
        ("by a sigmoid", "gelu_tanh", |x| {
            x.mul(&x.add(&x.pow_scalar(3.0).scale(CUBIC)).scale(2.0 * ROOT).sigmoid())
        }),
        ("erf", "gelu", |x| x.scale(0.5).mul(&x.scale(0.5f64.sqrt()).erf().offset(1.0))),
        ("erf of a quotient", "gelu", |x| {
            x.div(&number(x, 2f64.sqrt())).erf().offset(1.0).scale(0.5).mul(x)
        }),
        ("half of it added", "gelu", |x| {
            x.mul(&x.scale(0.5f64.sqrt()).erf().scale(0.5).offset(0.5))
        }),
        ("sigmoid", "silu", |x| x.mul(&x.sigmoid())),
        ("sigmoid first", "silu", |x| x.sigmoid().mul(x)),
        ("exponential", "silu", |x| x.div(&x.neg().exp().offset(1.0))),
        ("reciprocal", "silu", |x| x.neg().exp().offset(1.0).reciprocal().mul(x)),
        ("tanh", "silu", |x| x.scale(0.5).mul(&x.scale(0.5).tanh().offset(1.0))),
    ];
    for (form, name, write) in forms {
        is_one(form, name, &model(write));
    }
}

#[test]
fn normalization_is_known_however_it_is_written() {
    let forms: [(&str, &'static str, Form); 8] = [
        ("LLaMA", "rms_norm", |x| x.mul(&inverse_root(x, 1e-6))),
        ("T5, turned", "rms_norm", |x| {
            x.mul(x).mean(&[1], true).offset(1e-6).sqrt().reciprocal().mul(x)
        }),
        ("quotient", "rms_norm", |x| {
            let squares = x.mul(x).sum(&[1], true).scale(0.2);
            x.div(&number(x, 1e-5).add(&squares).sqrt())
        }),
        ("powers", "rms_norm", |x| {
            x.mul(&x.pow_scalar(2.0).mean(&[1], true).offset(1e-5).pow_scalar(-0.5))
        }),
        ("1 over", "rms_norm", |x| {
            x.mul(&number(x, 1.0).div(&x.mul(x).mean(&[1], true).offset(1e-5).sqrt()))
        }),
        ("TorchScript", "layer_norm", |x| {
            let centered = x.sub(&x.mean(&[1], true));
            let variance = centered.pow_scalar(2.0).mean(&[1], true);
            centered.div(&variance.offset(1e-5).sqrt())
        }),
        ("centered twice", "layer_norm", |x| {
            let (mean, square) = (x.mean(&[1], true), |x: &Tensor| x.mul(x));
            let variance = square(&x.sub(&mean)).mean(&[1], true);
            x.sub(&mean).mul(&variance.offset(1e-5).rsqrt())
        }),
        ("of what is centered", "layer_norm", |x| {
            let centered = x.sub(&x.mean(&[1], true));
            centered.mul(&inverse_root(&centered, 1e-5))
        }),
    ];
    for (form, name, write) in forms {
        is_one(form, name, &model(write));
    }
}

#[test]
fn labels_looked_up_in_logarithms_are_cross_entropy() {
    let labels = |x: &Tensor| x.builder().input("labels", DType::I64, [4]);
    is_one(
        "gathered",
        "cross_entropy",
        &model(|x| x.log_softmax(1).gather(&labels(x).reshape(&[4, 1])).reshape(&[4]).neg()),
    );
    is_one(
        "picked",
        "cross_entropy",
        &model(|x| {
            let logarithms = x.log_softmax(1);
            x.builder().apply(Op::Pick(Pick::default()), &[&logarithms, &labels(x)])
        }),
    );
}

/// Vectors that are 1 at places `[.., 1]` of a last dim, as `OneHot` is imported.
fn one_hot(places: &Tensor, extent: usize) -> Tensor {
    let g = places.builder();
    let hits = places.equal(&g.iota(DType::I64, [1, extent], 1));
    hits.select(&g.full(DType::F32, [], 1.0), &g.full(DType::F32, [], 0.0))
}

#[test]
fn rows_looked_up_by_vectors_of_one_element_are_an_embedding() {
    let table = |g: &GraphBuilder, rows: usize| {
        let init = Init::Normal { mean: 0.0.into(), std: 0.6.into() };
        g.variable("table", DType::F32, [rows, 3], init)
    };
    // Fed with 0, 3, 1, 4: a table of three rows has but two of them, and the product is 0 for the others.
    for rows in [5, 3] {
        let g = GraphBuilder::new("one_hot");
        let ids = g.input("ids", DType::I64, [4]).reshape(&[4, 1]);
        g.output("y", &one_hot(&ids, rows).matmul(&table(&g, rows)).sin());
        is_one("chosen", "embedding", &g.finish().expect("fits"));
        let g = GraphBuilder::new("cast");
        let ids = g.input("ids", DType::I64, [2, 2]).reshape(&[2, 2, 1]);
        let hits = g.iota(DType::I64, [rows], 0).equal(&ids).cast(DType::F32);
        let product = hits.reshape(&[4, rows]).matmul(&table(&g, rows)).reshape(&[2, 2, 3]);
        g.output("y", &product.sin());
        is_one("cast", "embedding", &g.finish().expect("fits"));
    }
    // The nearest of a book of codes is one of its rows.
    let graph = model(|x| {
        let g = x.builder();
        let nearest = g.apply(Op::ArgMax(ArgMax { axis: 1, keep_dims: true }), &[x]);
        one_hot(&nearest, 5).matmul(&table(g, 5))
    });
    is_one("nearest", "embedding", &graph);
    let after = fuse_functions(graph, &options()).expect("fits");
    assert!(!after.nodes.iter().any(|node| matches!(node.op, Op::Where(_))), "{after:?}");
}

#[test]
fn other_functions_stay_in_parts() {
    let forms: [(&str, Form); 11] = [
        ("other number", |x| x.mul(&x.scale(1.702).sigmoid())),
        ("other cubic", |x| x.scale(0.5).mul(&tanh_of(&x.add(&x.pow_scalar(3.0).scale(0.0447))))),
        ("of two values", |x| x.scale(2.0).sin().mul(&x.sigmoid())),
        ("clipped", |x| x.mul(&x.clip(-6.0, 6.0).sigmoid())),
        ("other dim", |x| x.mul(&x.mul(x).mean(&[0], true).offset(1e-5).rsqrt())),
        ("of another value", |x| x.mul(&inverse_root(&x.scale(2.0), 1e-5))),
        ("more dims", |x| {
            let epsilon = x.builder().full(DType::F32, [2, 1, 1], 1e-5);
            x.div(&epsilon.add(&x.mul(x).mean(&[1], true)).sqrt())
        }),
        ("nothing added", |x| x.div(&x.mul(x).mean(&[1], true).sqrt())),
        ("two of each row", |x| {
            let labels = x.builder().input("labels", DType::I64, [4, 2]);
            x.log_softmax(1).gather(&labels)
        }),
        ("places along another dim", |x| {
            let count = x.builder().iota(DType::I64, [4, 1], 0);
            let ids = x.builder().input("ids", DType::I64, [1, 4]);
            count.equal(&ids).cast(DType::F32).matmul(x)
        }),
        ("twice one", |x| {
            let ids = x.builder().input("ids", DType::I64, [4, 1]);
            one_hot(&ids, 4).scale(2.0).matmul(x)
        }),
    ];
    for (form, write) in forms {
        let graph = model(write);
        let after = fuse_functions(graph.clone(), &options()).expect("fits");
        assert_eq!(after, graph, "{form}");
        assert_eq!(functions_in_parts(&graph, &options()), Default::default(), "{form}");
    }
}

/// Parts that are read or asked a layout of stay, and a report says so.
#[test]
fn what_somebody_reads_or_pins_is_left_in_parts() {
    let silu = |x: &Tensor| x.mul(&x.sigmoid().named("gate"));
    let read = model(|x| {
        let gate = x.sigmoid();
        x.builder().output("gate", &gate);
        x.mul(&gate)
    });
    let pinned = CompileOptions {
        pins: vec![Pin { pattern: "gate".into(), sbp: "B".parse().expect("a layout") }],
        ..options()
    };
    for (graph, options, held) in
        [(read, options(), Held::Read), (model(silu), pinned, Held::Pinned)]
    {
        let after = fuse_functions(graph.clone(), &options).expect("fits");
        assert_eq!(after, graph, "{held:?}");
        let found = functions_in_parts(&graph, &options);
        assert!(found.whole.is_empty(), "{held:?}");
        assert_eq!(found.in_parts.keys().collect::<Vec<_>>(), [&(held, "silu")]);
    }
}
