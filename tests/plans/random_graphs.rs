//! Random graphs of the op set: four ranks compute what one rank does, the oracle agrees, the text form is exact.

use graphc::ir::array::Array;
use graphc::ir::evaluate::evaluate;
use graphc::ir::op::{EvalContext, Op};
use graphc::ir::text;
use graphc::prelude::*;
use proptest::prelude::*;

/// One random step: which op, on which earlier tensors.
#[derive(Clone, Debug)]
struct Step {
    op: u8,
    first: usize,
    second: usize,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0u8..20, 0usize..100, 0usize..100);
    prop::collection::vec(step.prop_map(|(op, first, second)| Step { op, first, second }), 1..12)
}

use proptest::strategy::Strategy;

fn graph(extents: (usize, usize), steps: &[Step]) -> Graph {
    let (rows, columns) = extents;
    let g = GraphBuilder::new("random");
    let normal = |std: f64| Init::Normal { mean: 0.0.into(), std: std.into() };
    let mut tensors = vec![
        g.input("x", DType::F32, [rows, columns]),
        g.input("y", DType::F32, [columns, rows]),
        g.variable("w", DType::F32, [columns, columns], normal(0.5)),
        g.variable("b", DType::F32, [columns], normal(0.5)),
    ];
    for step in steps {
        let a = tensors[step.first % tensors.len()].clone();
        let b = tensors[step.second % tensors.len()].clone();
        if let Some(result) = apply(&g, step.op, &a, &b) {
            tensors.push(result);
        }
    }
    for (index, tensor) in tensors.iter().enumerate().skip(4).rev().take(3) {
        g.output(&format!("out{index}"), tensor);
    }
    g.output("x", &tensors[0].relu());
    g.finish().expect("only ops that fit are applied")
}

/// The op's result; `None` where the operands do not fit.
fn apply(g: &GraphBuilder, op: u8, a: &Tensor, b: &Tensor) -> Option<Tensor> {
    let (sa, sb) = (a.shape(), b.shape());
    let rank2 = sa.len() == 2;
    Some(match op {
        0 | 1 if rank2 && sb.len() == 2 && sa[1] == sb[0] => a.matmul(b),
        2 if broadcasts(&sa, &sb) => a + b,
        3 if broadcasts(&sa, &sb) => a * b,
        4 if broadcasts(&sa, &sb) => a - b,
        5 => a.relu(),
        6 => a.tanh(),
        7 => a.gelu(),
        8 if rank2 => a.softmax(1),
        9 if rank2 => a.t(),
        10 if rank2 => a.sum(&[0], true),
        11 if rank2 => a.mean(&[1], true),
        12 if rank2 => a.max(&[1], true),
        13 if rank2 => a.reshape(&[sa[0] * sa[1]]),
        14 if rank2 && sa[1] > 1 => a.slice(1, 1..sa[1]),
        15 if sa == sb && rank2 => g.concat(&[a.clone(), b.clone()], 1),
        16 if rank2 => a.normalize(true, 1e-3),
        17 if rank2 => a.tril(0),
        18 if sa == sb => a.greater(b).select(a, b),
        19 if rank2 && sa[1] % 2 == 0 => {
            a.reshape(&[sa[0], sa[1] / 2, 2]).transpose(&[1, 0, 2]).sum(&[2], false)
        }
        _ => return None,
    })
}

fn broadcasts(a: &[usize], b: &[usize]) -> bool {
    a.iter().rev().zip(b.iter().rev()).all(|(x, y)| x == y || *x == 1 || *y == 1)
}

fn feed(shape: &[usize], phase: f32) -> HostTensor {
    let n = shape.iter().product::<usize>();
    let data: Vec<f32> = (0..n).map(|i| (i as f32 * 0.7 + phase).sin()).collect();
    HostTensor::from_f32(shape, &data).expect("a tensor")
}

fn run(
    graph: &Graph,
    mesh: &[usize],
    feeds: &BTreeMap<String, HostTensor>,
) -> BTreeMap<String, HostTensor> {
    let options = CompileOptions { mesh: mesh.to_vec(), ..CompileOptions::default() };
    let plan = compile(graph.clone(), &options, &preset("cpu").expect("a preset"), None)
        .expect("a plan")
        .plan;
    let mut session =
        Session::new(&plan, &BTreeMap::new(), SessionOptions::default()).expect("a session");
    session.step(feeds.clone()).expect("a step").wait().expect("outputs")
}

fn oracle(graph: &Graph, feeds: &BTreeMap<String, HostTensor>) -> BTreeMap<String, Vec<f64>> {
    let array = |tensor: &HostTensor| {
        let data = tensor.to_f32().expect("f32").iter().map(|&x| f64::from(x)).collect();
        Array::new(tensor.shape(), data)
    };
    let feeds = feeds.iter().map(|(name, tensor)| (name.clone(), array(tensor))).collect();
    let values = evaluate(graph, &feeds, &EvalContext::default()).expect("the oracle evaluates");
    let outputs = graph.outputs.iter();
    outputs.map(|o| (o.name.clone(), values[o.value.index()].data.clone())).collect()
}

fn same(found: &[f32], expected: &[f64]) -> bool {
    let scale = expected.iter().fold(1.0f64, |scale, x| scale.max(x.abs()));
    found.iter().zip(expected).all(|(&f, &e)| (f64::from(f) - e).abs() <= 2e-4 * scale)
}

/// Checks one graph on one rank, on four and on two by two.
fn check(extents: (usize, usize), steps: &[Step]) {
    let graph = graph(extents, steps);
    let printed = text::print(&graph);
    assert_eq!(&text::parse(&printed).expect("it parses"), &graph);
    let inputs = graph.nodes.iter().filter_map(|node| match &node.op {
        Op::Input(input) => Some(input),
        _ => None,
    });
    let feeds: BTreeMap<String, HostTensor> =
        inputs.map(|i| (i.name.clone(), feed(&i.ty.shape, i.name.len() as f32))).collect();
    let expected = oracle(&graph, &feeds);
    for mesh in [&[1][..], &[4], &[2, 2]] {
        let outputs = run(&graph, mesh, &feeds);
        for (name, expected) in &expected {
            let found = outputs[name].to_f32().expect("f32");
            assert!(
                same(&found, expected),
                "{} on {:?}: {:?} {:?}\n{}",
                name,
                mesh,
                found,
                expected,
                printed
            );
        }
    }
}

#[test]
fn operands_in_one_memory_are_overwritten_together() {
    // A tensor and its reshaped self, which share memory, are operands of one op.
    let steps =
        [(5, 20, 0), (2, 0, 0), (0, 2, 37), (0, 2, 92), (0, 46, 52), (13, 13, 0), (2, 24, 89)];
    check((1, 2), &steps.map(|(op, first, second)| Step { op, first, second }));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn four_ranks_compute_what_one_does(
        rows in 1usize..7, columns in 1usize..9, steps in steps(),
    ) {
        check((rows, columns), &steps);
    }
}
