//! Every rule, applied to terms that it is for: what it makes has the same leaves, the same type and, evaluated on
//! random tensors, the same elements.

use std::collections::{BTreeMap, BTreeSet};

use graphc_ir::array::Array;
use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::evaluate::evaluate_graph;
use graphc_ir::graph::{Graph, Source};
use graphc_ir::ids::ValueId;
use graphc_ir::op::EvalContext;
use graphc_ir::ops::{DropoutOp, Reduce, ReduceFunction};
use graphc_ir::types::DType;

use super::*;

/// Builds terms, each of which the rule must rewrite.
type Examples = fn(&GraphBuilder) -> Vec<Tensor>;

fn x(g: &GraphBuilder, name: &str, shape: &[usize]) -> Tensor {
    g.input(name, DType::F32, shape)
}

fn c(g: &GraphBuilder, shape: &[usize], value: f64) -> Tensor {
    g.full(DType::F32, shape, value)
}

fn reduce(x: &Tensor, function: ReduceFunction, axes: &[usize], keep_dims: bool) -> Tensor {
    let axes = axes.to_vec();
    x.builder().apply(Op::Reduce(Reduce { function, axes, keep_dims }), &[x])
}

const EXAMPLES: &[(&str, Examples)] = &[
    ("transpose of transpose", |g| {
        let a = x(g, "a", &[2, 3, 4]);
        vec![a.transpose(&[1, 2, 0]).transpose(&[2, 0, 1]), a.transpose(&[2, 0, 1]).t()]
    }),
    ("identity transpose", |g| vec![x(g, "a", &[2, 3]).transpose(&[0, 1])]),
    ("matmul of transpose", |g| {
        let (a, b) = (x(g, "a", &[2, 3, 4]), x(g, "b", &[2, 5, 4]));
        let (d, e) = (x(g, "d", &[3, 5]), x(g, "e", &[2, 3, 5]));
        vec![
            a.matmul(&b.t()),
            a.t().matmul(&d),
            a.t().matmul_transposed(&b.t(), true, false),
            d.t().matmul_transposed(&e.t(), false, true),
        ]
    }),
    ("reshape of reshape", |g| vec![x(g, "a", &[2, 6]).reshape(&[12]).reshape(&[3, 4])]),
    ("identity reshape", |g| vec![x(g, "a", &[2, 6]).reshape(&[2, 6])]),
    ("expand of expand", |g| vec![x(g, "a", &[2, 1]).expand(&[2, 3]).expand(&[4, 2, 3])]),
    ("identity expand", |g| vec![x(g, "a", &[2, 3]).expand(&[2, 3])]),
    ("expand of leading ones", |g| {
        let (a, b) = (x(g, "a", &[]), x(g, "b", &[3]));
        vec![a.reshape(&[1, 1]).expand(&[2, 3]), b.reshape(&[1, 3]).expand(&[2, 3])]
    }),
    ("expand where it broadcasts", |g| {
        let (a, b) = (x(g, "a", &[2, 1]), x(g, "b", &[4, 2, 3]));
        let condition = b.greater(&c(g, &[], 0.0));
        vec![
            a.expand(&[2, 3]).sub(&b),
            b.div(&a.expand(&[4, 2, 3])),
            condition.select(&a.expand(&[4, 2, 3]), &b),
            b.matmul(&x(g, "d", &[3, 5]).expand(&[4, 3, 5])),
        ]
    }),
    ("reduction of nothing", |g| {
        let a = x(g, "a", &[2, 1, 3]);
        vec![
            a.sum(&[0_usize; 0], false),
            reduce(&a, ReduceFunction::Mean, &[1], false),
            reduce(&a, ReduceFunction::Max, &[1], true),
        ]
    }),
    ("reshape of reduction", |g| {
        let a = x(g, "a", &[2, 4, 3]);
        vec![
            reduce(&a, ReduceFunction::Sum, &[1], true).reshape(&[2, 3]),
            reduce(&a, ReduceFunction::Mean, &[0, 2], false).reshape(&[1, 4, 1]),
        ]
    }),
    ("slice of everything", |g| vec![x(g, "a", &[2, 3]).slice(1, 0..3)]),
    ("pad of nothing", |g| vec![x(g, "a", &[2, 3]).pad(&[0, 0], &[0, 0], 1.0)]),
    ("sum of adjacent pads", |g| {
        let (a, b) = (x(g, "a", &[2, 3]), x(g, "b", &[2, 1]));
        vec![
            a.pad(&[0, 0], &[0, 1], 0.0).add(&b.pad(&[0, 3], &[0, 0], 0.0)),
            a.pad(&[0, 1], &[0, 2], 0.0).add(&b.pad(&[0, 0], &[0, 5], 0.0)),
            a.pad(&[1, 0], &[0, 2], 0.0).add(&b.pad(&[1, 3], &[0, 1], 0.0)),
        ]
    }),
    ("concat of concat", |g| {
        let [a, b, d] = [2, 1, 3].map(|n| x(g, &format!("a{n}"), &[n, 2]));
        let inner = g.concat(&[b.clone(), d.clone()], 0);
        vec![g.concat(&[a.clone(), inner.clone()], 0), g.concat(&[inner, a], 0)]
    }),
    ("concat of one", |g| vec![g.concat(&[x(g, "a", &[2, 3])], 1)]),
    ("cast to the same type", |g| {
        let a = x(g, "a", &[3]);
        vec![g.apply(Op::Cast(Cast { dtype: DType::F32 }), &[&a])]
    }),
    ("neutral operand", |g| {
        let (a, zero, one) = (x(g, "a", &[2, 3]), c(g, &[3], 0.0), c(g, &[], 1.0));
        let i = g.input("i", DType::I64, [2]);
        vec![
            a.add(&zero),
            zero.add(&a),
            a.sub(&zero),
            a.mul(&one),
            one.mul(&a),
            a.div(&one),
            i.mul(&g.full(DType::I64, [], 1.0)),
        ]
    }),
    ("neutral number", |g| {
        let a = x(g, "a", &[3]);
        vec![a.offset(0.0), a.scale(1.0), a.pow_scalar(1.0)]
    }),
    ("operand that is a number", |g| {
        let (a, n) = (x(g, "a", &[2, 3]), c(g, &[2, 3], 0.7));
        vec![a.add(&n), n.add(&a), a.sub(&n), a.mul(&n), n.mul(&a), a.div(&n)]
    }),
    ("scale of scale", |g| {
        let a = x(g, "a", &[3]);
        vec![a.scale(0.3).scale(-7.0), a.neg().scale(2.0), a.scale(2.0).neg()]
    }),
    ("negation of negation", |g| vec![x(g, "a", &[3]).neg().neg()]),
    ("sum with negation", |g| {
        let (a, b) = (x(g, "a", &[2, 3]), x(g, "b", &[3]));
        vec![a.add(&b.neg()), b.neg().add(&a), a.sub(&b.neg())]
    }),
    ("sum with itself", |g| {
        let a = x(g, "a", &[2, 3]);
        vec![a.add(&a)]
    }),
    ("product with reciprocal", |g| {
        let (a, b) = (x(g, "a", &[2, 3]), x(g, "b", &[3]));
        vec![a.mul(&b.reciprocal()), b.reciprocal().mul(&a)]
    }),
    ("dropout of nothing", |g| {
        let a = x(g, "a", &[2, 3]);
        let dropout = DropoutOp { probability: Scalar(0.5), key: 1, training: false };
        vec![a.dropout(0.0), g.apply(Op::Dropout(dropout), &[&a])]
    }),
    ("function of one number", |g| vec![c(g, &[2], 0.5).exp(), c(g, &[], 4.0).sqrt()]),
    ("function of two numbers", |g| vec![c(g, &[2, 1], 0.5).sub(&c(g, &[3], 2.0))]),
    ("movement of a number", |g| {
        let a = c(g, &[2, 1], 0.5);
        vec![a.reshape(&[2]), a.transpose(&[1, 0]), a.expand(&[2, 3]), a.slice(0, 1..2)]
    }),
];

/// Writes what a rule makes as nodes of the graph.
fn emit(graph: &mut Graph, of: &BTreeMap<Id, ValueId>, built: &Built) -> ValueId {
    match built {
        Built::Class(class) => of[class],
        Built::Node(op, operands) => {
            let operands = operands.iter().map(|built| emit(graph, of, built)).collect();
            let node = graph.push(op.clone(), operands, Source::Derived).expect("it fits");
            graph.node(node).results[0]
        }
    }
}

fn leaves(graph: &Graph, value: ValueId) -> BTreeSet<ValueId> {
    let node = graph.producer(value);
    match node.op {
        Op::Input(_) => [value].into(),
        _ => node.operands.iter().flat_map(|&operand| leaves(graph, operand)).collect(),
    }
}

fn check(rule: &RewriteRule, graph: &Graph, term: ValueId) {
    let mut region = EgraphRegion::new();
    let mut of: BTreeMap<Id, ValueId> = BTreeMap::new();
    let mut class = BTreeMap::new();
    for node in &graph.nodes {
        let (value, ty) = (node.results[0], &graph.value(node.results[0]).ty);
        let children = node.operands.iter().map(|operand| class[operand]).collect();
        let id = match node.op {
            Op::Input(_) => region.add_leaf(value, ty),
            _ => region.add_op(&node.op, children, ty),
        };
        class.insert(value, id);
        of.entry(id).or_insert(value);
    }
    let node = graph.producer(term);
    let operands: Vec<Id> = node.operands.iter().map(|operand| class[operand]).collect();
    let ty = &graph.value(term).ty;
    let all = (rule.apply)(&region, &node.op, &operands, ty);
    assert!(!all.is_empty(), "{} does not fire on {:?}", rule.name, node.op);
    for built in all {
        let mut both = graph.clone();
        let other = emit(&mut both, &of, &built);
        assert_eq!(both.value(other).ty, *ty, "{}", rule.name);
        assert_eq!(leaves(&both, other), leaves(graph, term), "{}", rule.name);
        equal(rule.name, &both, term, other);
    }
}

fn equal(name: &str, graph: &Graph, a: ValueId, b: ValueId) {
    let mut feeds = BTreeMap::new();
    for node in &graph.nodes {
        let Op::Input(input) = &node.op else { continue };
        let number = |i: usize| match input.ty.dtype.is_float() {
            true => {
                ((input.name.len() * 31 + i * 17) as f64 + f64::from(input.name.as_bytes()[0]))
                    .sin()
                    * 3.0
            }
            false => i as f64 - 1.0,
        };
        let data = (0..input.ty.elements()).map(number).collect();
        feeds.insert(input.name.clone(), Array::new(input.ty.shape.clone(), data));
    }
    let values = evaluate_graph(graph, &feeds, &EvalContext::default()).expect("all is fed");
    let (a, b) = (&values[a.index()], &values[b.index()]);
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-14 * (1.0 + a.abs());
    assert!(a.data.iter().zip(&b.data).all(near), "{name}: {a:?} is not {b:?}");
}

#[test]
fn each_rule_keeps_type_leaves_and_elements() {
    for rule in RULES {
        let (_, examples) = EXAMPLES
            .iter()
            .find(|(name, _)| *name == rule.name)
            .unwrap_or_else(|| panic!("no example of `{}`", rule.name));
        let g = GraphBuilder::new(rule.name);
        let terms: Vec<ValueId> =
            examples(&g).iter().map(|term| term.id().expect("fits")).collect();
        let graph = g.finish().expect("fits");
        terms.into_iter().for_each(|term| check(rule, &graph, term));
    }
    assert_eq!(EXAMPLES.len(), RULES.len(), "an example of no rule");
}
