//! Each form of attention is known and computed the same, results and gradients, and what is none is left as it is.

use std::collections::BTreeMap;

use graphc_ir::array::Array;
use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::evaluate::evaluate_graph;
use graphc_ir::graph::{Graph, Node};
use graphc_ir::op::{EvalContext, Op};
use graphc_ir::ops::{Attention, Init};
use graphc_ir::table::Table;
use graphc_ir::types::{DType, TensorType};
use graphc_ir::verify::verify_graph;
use graphc_plan::{CompileOptions, Loss, Optimizer, Pin};

use super::{Kept, find_sites, fuse_attention};
use crate::passes::autodiff::append_gradients;
use crate::passes::loss::attach_loss;
use crate::passes::training_mode::{keep_eval, set_mode};
use crate::passes::views::same::count_transposes;

mod biases;
mod dropped;
mod widths;

const BATCH: usize = 2;
const TIME: usize = 5;
const HEADS: usize = 4;
const WIDTH: usize = 3;
const SCALE: f64 = 0.7;

/// Queries, keys and values as models have them, `[batch, heads, time, width]`.
struct Parts {
    q: Tensor,
    k: Tensor,
    v: Tensor,
}

impl Parts {
    /// The scores.
    fn scores(&self) -> Tensor {
        self.q.matmul_transposed(&self.k, false, true)
    }
}

/// A model that trains what queries, keys and values are made by, with as many heads of keys.
fn model(shared: usize, form: impl FnOnce(&GraphBuilder, Parts) -> Tensor) -> Graph {
    let g = GraphBuilder::new("model");
    let x = g.input("x", DType::F32, [BATCH, TIME, 6]);
    let heads = |name: &str, heads: usize| {
        let init = Init::Normal { mean: 0.0.into(), std: 0.6.into() };
        let projected = x.matmul(&g.variable(name, DType::F32, [6, heads * WIDTH], init));
        projected.reshape(&[BATCH, TIME, heads, WIDTH]).transpose(&[0, 2, 1, 3])
    };
    let parts = Parts { q: heads("q", HEADS), k: heads("k", shared), v: heads("v", shared) };
    let y = form(&g, parts);
    let merged = y.transpose(&[0, 2, 1, 3]).reshape(&[BATCH, TIME, HEADS * WIDTH]);
    g.output("y", &merged.tanh());
    g.finish().expect("fits")
}

fn options() -> CompileOptions {
    let optimizer = Optimizer::Sgd { lr: 0.1, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let (loss, optimizer) = (Some(Loss::Sum), Some(optimizer));
    CompileOptions { loss, optimizer, ..CompileOptions::default() }
}

/// The graph as the pass sees it, and as it gives it.
fn both(graph: Graph) -> [Graph; 2] {
    let graph = attach_loss(graph, &options()).expect("has a loss");
    let graph = set_mode(graph, &options()).expect("fits");
    let rewritten = fuse_attention(graph.clone(), &options()).expect("fits");
    verify_graph(&rewritten).expect("holds together");
    [graph, rewritten]
}

fn ops(graph: &Graph) -> Vec<Attention> {
    let op = |op: &Op| if let Op::Attention(op) = op { Some(*op) } else { None };
    graph.nodes.iter().filter_map(|node| op(&node.op)).collect()
}

/// The loss and the gradients of all that is trained.
fn trained(graph: &Graph) -> Vec<Array> {
    let training = append_gradients(graph.clone(), &options(), false).expect("has gradients");
    let number = |i: usize| (1.3 + 1.7 * i as f64).sin();
    let fed = |node: &Node| match &node.op {
        Op::Input(input) => {
            let all = (0..input.ty.elements()).map(number);
            let all = all.map(|x| if input.ty.dtype.is_float() { x } else { x.floor() + 1.0 });
            Some((input.name.clone(), Array::new(&input.ty.shape[..], all.collect())))
        }
        _ => None,
    };
    let fed: BTreeMap<String, Array> = training.graph.nodes.iter().filter_map(fed).collect();
    let all = evaluate_graph(&training.graph, &fed, &EvalContext::default()).expect("is fed");
    let gradients = training.gradients.iter().map(|&(_, gradient)| gradient);
    gradients.chain(training.loss).map(|value| all[value.index()].clone()).collect()
}

/// Holds that a model is one attention that computes and learns the same, without a transpose.
fn is_one(name: &str, graph: Graph, causal: bool) {
    let [before, after] = both(graph);
    let found = ops(&after);
    let kept: Vec<_> =
        find_sites(&before, &options()).iter().map(|site| site.kept_reason()).collect();
    assert_eq!(found.len(), 1, "{name}: {kept:?}");
    assert!((found[0].scale.0 - SCALE).abs() < 1e-6, "{name}: {}", found[0].scale);
    assert_eq!(found[0].causal, causal, "{name}");
    assert!(after.nodes.iter().all(|node| !matches!(node.op, Op::Softmax(_))), "{name}");
    assert_eq!(count_transposes(&after), 0, "{name}");
    assert!(after.find("mask").is_none(), "{name}: nobody reads the table");
    are_equal(name, &before, &after);
}

/// Holds that results, losses and gradients are those of the parts.
fn are_equal(name: &str, before: &Graph, after: &Graph) {
    for (a, b) in trained(before).iter().zip(trained(after)) {
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-6 * (1.0 + a.abs());
        assert!(a.data.iter().all(|x| x.is_finite()), "{name}");
        assert!(a.data.iter().zip(&b.data).all(near), "{name}: {a:?} is not {b:?}");
    }
}

fn is_kept(name: &str, graph: Graph, reason: Kept) {
    let [before, after] = both(graph);
    let kept: Vec<_> =
        find_sites(&before, &options()).iter().map(|site| site.kept_reason()).collect();
    assert_eq!(kept, [Some(reason)], "{name}");
    assert_eq!(before, after, "{name}");
}

/// 1 where a key stands behind the query.
fn future(g: &GraphBuilder) -> Tensor {
    g.full(DType::F32, [TIME, TIME], 1.0).triu(1).greater(&g.full(DType::F32, [], 0.5))
}

fn number(g: &GraphBuilder, x: f64) -> Tensor {
    g.full(DType::F32, [], x)
}

#[test]
fn scores_may_be_scaled_anywhere() {
    type Form = fn(&GraphBuilder, Parts) -> Tensor;
    let forms: [(&str, Form); 8] = [
        ("scores", |_, p| p.scores().scale(SCALE).softmax(3).matmul(&p.v)),
        ("divided", |g, p| p.scores().div(&number(g, 1.0 / SCALE)).softmax(3).matmul(&p.v)),
        ("times a number", |g, p| {
            g.full(DType::F32, [1, 1], SCALE).mul(&p.scores()).softmax(3).matmul(&p.v)
        }),
        ("queries", |_, mut p| {
            p.q = p.q.scale(SCALE);
            p.scores().softmax(3).matmul(&p.v)
        }),
        ("both sides, keys turned", |_, p| {
            let turned = p.k.transpose(&[0, 1, 3, 2]).scale(SCALE.sqrt());
            p.q.scale(SCALE.sqrt()).matmul(&turned).softmax(3).matmul(&p.v)
        }),
        ("twice", |_, p| p.scores().scale(7.0).scale(0.1).softmax(3).matmul(&p.v)),
        ("in halves", |_, p| {
            let scores = p.scores().scale(SCALE).cast(DType::F32).softmax(3);
            scores.cast(DType::F32).dropout(0.0).matmul(&p.v)
        }),
        ("keys by way of merged heads", |_, p| {
            let merged = p.k.reshape(&[BATCH * HEADS, TIME, WIDTH]).transpose(&[0, 2, 1]);
            let turned = merged.reshape(&[BATCH, HEADS, WIDTH, TIME]);
            p.q.matmul(&turned).scale(SCALE).softmax(3).matmul(&p.v)
        }),
    ];
    for (name, form) in forms {
        is_one(name, model(HEADS, form), false);
    }
}

/// Scores with a causal mask in some form.
type Masking = fn(&GraphBuilder, Tensor) -> Tensor;

#[test]
fn causal_masks_are_known_by_their_elements() {
    let forms: [(&str, Masking); 9] = [
        ("chosen", |g, s| future(g).select(&number(g, f64::NEG_INFINITY), &s)),
        ("chosen otherwise", |g, s| future(g).not().select(&s, &number(g, -1e9))),
        ("added", |g, s| {
            let zeros = number(g, 0.0);
            s.add(&future(g).select(&number(g, f64::NEG_INFINITY), &zeros))
        }),
        ("added by a triangle of what is low", |g, s| {
            let mask = g.full(DType::F32, [TIME, TIME], -3.4e38).triu(1);
            mask.reshape(&[1, 1, TIME, TIME]).expand(&[BATCH, 1, TIME, TIME]).add(&s)
        }),
        ("subtracted", |g, s| s.sub(&g.full(DType::F32, [TIME, TIME], 1e10).triu(1))),
        ("of places that are compared", |g, s| {
            let key = g.iota(DType::I64, [1, TIME], 1);
            let seen = key.less_equal(&g.iota(DType::I64, [TIME, 1], 0));
            seen.reshape(&[1, 1, TIME, TIME]).select(&s, &number(g, -1e30))
        }),
        ("a table", |g, s| {
            let low = (0..TIME * TIME).map(|i| if i % TIME > i / TIME { -1e9f32 } else { 0.0 });
            let table = Table::new(low.flat_map(f32::to_le_bytes).collect::<Vec<u8>>());
            let ty = TensorType::new(DType::F32, [TIME, TIME]);
            s.add(&g.variable_of("mask", ty, Init::Table(table), false))
        }),
        ("twice, and one that hides nothing", |g, s| {
            let hidden = future(g).select(&number(g, f64::NEG_INFINITY), &s);
            let hidden = hidden.add(&g.full(DType::F32, [TIME, TIME], -1e12).triu(1));
            hidden.add(&g.full(DType::F32, [1, TIME], 0.0))
        }),
        ("merged with heads and back", |g, s| {
            let merged = s.reshape(&[BATCH * HEADS, TIME, TIME]);
            let merged = merged.add(&g.full(DType::F32, [TIME, TIME], -1e12).triu(1));
            merged.reshape(&[BATCH, HEADS, TIME, TIME])
        }),
    ];
    for (name, masked) in forms {
        let scaled_before =
            |g: &GraphBuilder, p: Parts| masked(g, p.scores().scale(SCALE)).softmax(3).matmul(&p.v);
        is_one(name, model(HEADS, scaled_before), true);
        let scaled_behind = |g: &GraphBuilder, p: Parts| {
            masked(g, p.scores().scale(1.4)).scale(0.5).softmax(3).matmul(&p.v)
        };
        let name = format!("{name}, scaled behind");
        // Half of the least number that hides is a number that might not.
        let [before, after] = both(model(HEADS, scaled_behind));
        match ops(&after).len() {
            1 => is_one(&name, model(HEADS, scaled_behind), true),
            _ => assert_eq!(before, after, "{name}"),
        }
    }
}

#[test]
fn a_mask_of_nothing_is_none() {
    let forms: [(&str, Masking); 4] = [
        ("a number that is added", |_, s| s.offset(0.0)),
        ("added", |g, s| s.add(&g.full(DType::F32, [BATCH, 1, 1, TIME], 0.0))),
        ("chosen", |g, s| {
            let all = g.full(DType::F32, [TIME], 1.0).greater(&number(g, 0.0));
            all.select(&s, &number(g, f64::NEG_INFINITY))
        }),
        ("never chosen", |g, s| {
            let none = g.full(DType::F32, [1, TIME], 1.0).less(&number(g, 0.0));
            none.select(&number(g, -1.0), &s)
        }),
    ];
    for (name, masked) in forms {
        let form =
            |g: &GraphBuilder, p: Parts| masked(g, p.scores().scale(SCALE)).softmax(3).matmul(&p.v);
        is_one(name, model(HEADS, form), false);
    }
}

#[test]
fn numbers_for_rows_without_keys_change_nothing_where_all_have_some() {
    let forms: [(&str, Masking); 4] = [
        ("weights that are no numbers", |g, s| {
            let weights = s.softmax(3);
            weights.not_equal(&weights).select(&number(g, 0.0), &weights)
        }),
        ("scores put aside as well", |g, s| {
            let weights = s.softmax(3);
            let none = weights.not_equal(&weights);
            let scores = none.select(&number(g, 0.0), &s);
            none.select(&number(g, 0.0), &scores.softmax(3))
        }),
        ("the greatest score", |g, s| {
            let none = s.max(&[3], true).equal(&g.full(DType::F32, [1], f64::NEG_INFINITY));
            let scores = none.select(&number(g, 0.0), &s);
            none.select(&number(g, 0.0), &scores.softmax(3))
        }),
        ("all scores", |g, s| {
            let each = s.equal(&number(g, f64::NEG_INFINITY)).cast(DType::I64);
            let none = each.min(&[3], true).cast(DType::Bool);
            none.select(&number(g, 0.0), &s.softmax(3))
        }),
    ];
    for (name, weights) in forms {
        let form = |g: &GraphBuilder, p: Parts| {
            let masked = future(g).select(&number(g, f64::NEG_INFINITY), &p.scores().scale(SCALE));
            weights(g, masked).matmul(&p.v)
        };
        is_one(name, model(HEADS, form), true);
    }
}

#[test]
fn heads_that_share_keys_read_them_as_they_are() {
    const SHARED: usize = 2;
    const GROUP: usize = HEADS / SHARED;
    type Form = fn(&GraphBuilder, Parts) -> Tensor;
    let repeated = |x: &Tensor| {
        let apart = x.reshape(&[BATCH, SHARED, 1, TIME, WIDTH]);
        apart.expand(&[BATCH, SHARED, GROUP, TIME, WIDTH]).reshape(&[BATCH, HEADS, TIME, WIDTH])
    };
    let repeat = |_: &GraphBuilder, p: Parts| {
        let (k, v) = (repeated(&p.k).scale(SCALE), repeated(&p.v));
        p.q.matmul(&k.transpose(&[0, 1, 3, 2])).softmax(3).matmul(&v)
    };
    let by_broadcasting = |_: &GraphBuilder, p: Parts| {
        let apart = [BATCH, SHARED, GROUP, TIME, WIDTH];
        let shared = [BATCH, SHARED, 1, TIME, WIDTH];
        let scores = p.q.reshape(&apart).matmul_transposed(&p.k.reshape(&shared), false, true);
        let means = scores.scale(SCALE).softmax(4).matmul(&p.v.reshape(&shared));
        means.reshape(&[BATCH, HEADS, TIME, WIDTH])
    };
    let one_for_all: Form = |_, p| p.scores().scale(SCALE).softmax(3).matmul(&p.v);
    let models = [
        ("repeated", SHARED, model(SHARED, repeat)),
        ("broadcast", SHARED, model(SHARED, by_broadcasting)),
        ("one for all", 1, model(1, one_for_all)),
    ];
    for (name, shared, graph) in models {
        let [before, after] = both(graph.clone());
        let node = after.nodes.iter().find(|node| matches!(node.op, Op::Attention(_)));
        let node = node.unwrap_or_else(|| {
            panic!("{name}: {:?}", find_sites(&before, &options())[0].kept_reason())
        });
        assert_eq!(after.value(node.operands[1]).ty.shape, [BATCH, TIME, shared, WIDTH], "{name}");
        assert!(after.nodes.iter().all(|node| !matches!(node.op, Op::Expand(_))), "{name}");
        if name == "broadcast" {
            // Its result is reshaped before it is moved.
            assert!(count_transposes(&after) <= 2);
            let [a, b] = [trained(&before), trained(&after)];
            let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-6 * (1.0 + a.abs());
            assert!(a.iter().zip(&b).all(|(a, b)| a.data.iter().zip(&b.data).all(near)));
            continue;
        }
        is_one(name, graph, false);
    }
}

#[test]
fn heads_may_be_a_part_of_the_batch() {
    let merged = |x: &Tensor| x.reshape(&[BATCH * HEADS, TIME, WIDTH]);
    let form = |g: &GraphBuilder, p: Parts| {
        let scores = merged(&p.q).scale(SCALE).matmul_transposed(&merged(&p.k), false, true);
        let masked = scores.add(&g.full(DType::F32, [1, TIME, TIME], f64::NEG_INFINITY).triu(1));
        masked.softmax(2).matmul(&merged(&p.v)).reshape(&[BATCH, HEADS, TIME, WIDTH])
    };
    let [before, after] = both(model(HEADS, form));
    assert_eq!(ops(&after), [Attention::new(true, SCALE.into())]);
    for (a, b) in trained(&before).iter().zip(trained(&after)) {
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-6 * (1.0 + a.abs());
        assert!(a.data.iter().zip(&b.data).all(near));
    }
}

#[test]
fn what_is_no_attention_is_left_as_it_is() {
    type Form = fn(&GraphBuilder, Parts) -> Tensor;
    let forms: [(&str, Form, Kept); 8] = [
        (
            "read",
            |g, p| {
                let weights = p.scores().softmax(3);
                g.output("weights", &weights);
                weights.matmul(&p.v)
            },
            Kept::Read,
        ),
        (
            "scores read",
            |g, p| {
                let scores = p.scores();
                g.output("mean", &scores.mean(&[3], false));
                scores.softmax(3).matmul(&p.v)
            },
            Kept::Read,
        ),
        (
            "scale that is learned",
            |g, p| {
                let scale = g.variable("s", DType::F32, [1], Init::Fill(0.5.into()));
                p.scores().mul(&scale).softmax(3).matmul(&p.v)
            },
            Kept::Other("binary"),
        ),
        ("another dim", |_, p| p.scores().softmax(2).matmul(&p.v), Kept::Axis),
        (
            "masked before it is bounded",
            |g, p| {
                let masked = p.scores().add(&g.full(DType::F32, [TIME, TIME], -1e9).triu(1));
                masked.tanh().softmax(3).matmul(&p.v)
            },
            Kept::SoftCap,
        ),
        (
            "dropped twice",
            |_, p| p.scores().softmax(3).dropout(0.5).dropout(0.2).matmul(&p.v),
            Kept::Dropout,
        ),
        (
            "pinned",
            |_, p| {
                let sbp = "S(1)".parse().expect("an SBP");
                p.scores().softmax(3).pin(sbp).matmul(&p.v)
            },
            Kept::Pinned,
        ),
        (
            "keys of the batch",
            |_, p| {
                let first = p.k.slice(0, 0..1);
                p.q.matmul_transposed(&first, false, true).softmax(3).matmul(&p.v)
            },
            Kept::Shared,
        ),
    ];
    for (name, form, reason) in forms {
        is_kept(name, model(HEADS, form), reason);
    }
}

#[test]
fn rows_that_have_other_numbers_than_where_they_have_no_key_are_kept() {
    // The condition looks at scores of another product.
    let form = |g: &GraphBuilder, p: Parts| {
        let (scores, others) = (p.scores(), p.v.matmul_transposed(&p.k, false, true).softmax(3));
        let chosen = others.not_equal(&others).select(&number(g, 0.0), &scores.softmax(3));
        chosen.matmul(&p.v)
    };
    is_kept("others", model(HEADS, form), Kept::Other("where"));
}

/// A layout that is asked for by name keeps what has the name, and no other place.
#[test]
fn attention_stays_in_parts_where_that_is_asked() {
    let form = |_: &GraphBuilder, p: Parts| p.scores().scale(SCALE).softmax(3).matmul(&p.v);
    let asked = CompileOptions { keep_attention: true, ..options() };
    let graph = model(HEADS, form);
    let counted = super::count_attentions(&graph, &asked);
    assert_eq!(counted.whole, 0);
    assert_eq!(counted.in_parts.into_keys().collect::<Vec<_>>(), [Kept::Asked]);
    assert_eq!(fuse_attention(graph.clone(), &asked).expect("fits"), graph);
    assert_eq!(super::count_attentions(&graph, &options()).whole, 1);
}

#[test]
fn what_is_pinned_by_name_stays() {
    let form = |_: &GraphBuilder, p: Parts| {
        let first = p.scores().softmax(3).named("p").matmul(&p.v);
        let q = first.add(&p.q);
        q.matmul_transposed(&p.k, false, true).softmax(3).matmul(&p.v).named("means")
    };
    let graph = set_mode(model(HEADS, form), &CompileOptions::default()).expect("fits");
    let pin = |pattern: &str| {
        let pin = Pin { pattern: pattern.into(), sbp: "S(1)".parse().expect("an SBP") };
        let options = CompileOptions { pins: vec![pin], ..CompileOptions::default() };
        fuse_attention(graph.clone(), &options).expect("fits")
    };
    assert_eq!(ops(&pin("p")).len(), 1);
    let after = pin("means");
    assert_eq!(ops(&after).len(), 2);
    let means = after.value(after.find("means").expect("is still there"));
    assert_eq!(means.ty.shape, [BATCH, HEADS, TIME, WIDTH]);
    assert_eq!(ops(&pin("none")).len(), 2);
}
