//! Random graphs of the op set: four ranks compute what one rank does, the oracle agrees, the text form is exact.

use graphc::ir::array::Array;
use graphc::ir::evaluate::evaluate_graph;
use graphc::ir::op::{EvalContext, Op};
use graphc::ir::ops::Custom;
use graphc::ir::text;
use graphc::kernels::CustomKernels;
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
    let values =
        evaluate_graph(graph, &feeds, &EvalContext::default()).expect("the oracle evaluates");
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
    let printed = text::print_graph(&graph);
    assert_eq!(&text::parse_graph(&printed).expect("it parses"), &graph);
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

/// x^2 w, as an op of one's own or composed of others, and its mean error.
fn squares(own: bool) -> Graph {
    let g = GraphBuilder::new("squares");
    let x = g.input("x", DType::F32, [8, 6]).mul(&g.variable(
        "v",
        DType::F32,
        [6],
        Init::Fill(0.5.into()),
    ));
    let w = g.variable("w", DType::F32, [6], Init::Fill(0.25.into()));
    let op = Custom::new("scaled_square", "batch d, d -> batch d")
        .split(&["batch", "d"])
        .with_number("factor", 3.0)
        .differentiable();
    let y = match own {
        true => g.custom(&op, &[&x, &w]).swap_remove(0),
        false => x.mul(&x).mul(&w).scale(3.0),
    };
    g.output("loss", &y.tanh().mean(&[0, 1], false));
    g.finish().expect("a graph")
}

/// The kernels of its op: of the parts that a rank has.
fn kernels() -> CustomKernels {
    let forward = CustomKernels::default().with("scaled_square", |op, operands, results| {
        let factor = op.number("factor").ok_or("it has no factor")? as f32;
        let (x, w) = (operands[0].as_slice::<f32>()?, operands[1].as_slice::<f32>()?);
        let y = results[0].as_mut_slice::<f32>()?;
        (0..x.len()).for_each(|at| y[at] = factor * x[at] * x[at] * w[at % w.len()]);
        Ok(())
    });
    forward.with("scaled_square.backward", |op, operands, results| {
        let factor = op.number("factor").ok_or("it has no factor")? as f32;
        let (x, w) = (operands[0].as_slice::<f32>()?, operands[1].as_slice::<f32>()?);
        let g = operands[3].as_slice::<f32>()?;
        let [dx, dw] = results else { return Err("it gives two gradients".into()) };
        let (dx, dw) = (dx.as_mut_slice::<f32>()?, dw.as_mut_slice::<f32>()?);
        dw.fill(0.0);
        for at in 0..x.len() {
            let column = at % w.len();
            dx[at] = 2.0 * factor * x[at] * w[column] * g[at];
            dw[column] += factor * x[at] * x[at] * g[at];
        }
        Ok(())
    })
}

fn trains_on(mesh: &[usize], microbatches: usize) -> CompileOptions {
    let optimizer = Some(Optimizer::adam(0.05));
    CompileOptions { mesh: mesh.to_vec(), microbatches, optimizer, ..CompileOptions::default() }
}

/// The losses and variables of four steps.
fn train(
    graph: Graph,
    options: &CompileOptions,
    custom: CustomKernels,
) -> Result<Vec<f64>, graphc::runtime::RuntimeError> {
    let cluster = preset("cpu").expect("a preset");
    let plan = compile(graph, options, &cluster, None).expect("a plan").plan;
    // As a file has it.
    let read = graphc::plan::read_plan(&graphc::plan::write_plan(&plan));
    let plan = VerifiedPlan::check(read.expect("its own text")).expect("it is sound");
    let options = SessionOptions { custom, ..SessionOptions::default() };
    let mut session = Session::new(&plan, &BTreeMap::new(), options)?;
    let mut numbers = Vec::new();
    for step in 0..4 {
        let feeds = BTreeMap::from([("x".to_owned(), feed(&[8, 6], step as f32))]);
        numbers.extend(session.step(feeds)?.wait()?["loss"].to_f64());
    }
    for name in ["v", "w"] {
        numbers.extend(session.variable(name)?.to_f64());
    }
    Ok(numbers)
}

#[test]
fn an_op_of_ones_own_computes_and_learns_as_others_do() {
    let expected = train(squares(false), &trains_on(&[1], 1), CustomKernels::default());
    let expected = expected.expect("it trains");
    let text = text::print_graph(&squares(true));
    assert_eq!(text::parse_graph(&text).expect("it parses"), squares(true), "{text}");
    for (mesh, microbatches) in [(&[1][..], 1), (&[1], 2), (&[2], 1), (&[2, 2], 1), (&[3], 1)] {
        let found = train(squares(true), &trains_on(mesh, microbatches), kernels());
        for (found, expected) in found.expect("it trains").iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-6, "{found} is not {expected} on {mesh:?}");
        }
    }
    let parts = CompileOptions { strategy: graphc::plan::Strategy::Data, ..trains_on(&[2], 1) };
    let plan = compile(squares(true), &parts, &preset("cpu").expect("a preset"), None);
    let text = graphc::plan::write_plan(&plan.expect("a plan").plan);
    assert!(text.contains("scaled_square.backward"), "{text}");
    let whole = train(squares(true), &parts, kernels()).expect("it trains");
    assert!((whole[0] - expected[0]).abs() < 1e-6);
}

#[test]
fn an_op_of_ones_own_that_is_not_there_is_named() {
    let missing = train(squares(true), &trains_on(&[2], 1), CustomKernels::default());
    let error = missing.expect_err("there is no kernel").to_string();
    assert!(error.contains("`scaled_square` is an op of a program's own"), "{error}");
    assert!(error.contains("SessionOptions::custom"), "{error}");
    let failing = kernels().with("scaled_square", |_, _, _| Err("out of luck".into()));
    let error =
        train(squares(true), &trains_on(&[2], 1), failing).expect_err("it fails").to_string();
    assert!(error.contains("kernel of `scaled_square` fails: out of luck"), "{error}");
    let panics = kernels().with("scaled_square.backward", |_, _, _| panic!("no such index"));
    let error =
        train(squares(true), &trains_on(&[1], 1), panics).expect_err("it panics").to_string();
    assert!(
        error.contains("`scaled_square.backward` fails: it panicked: no such index"),
        "{error}"
    );
    let feeds = BTreeMap::from([("x".to_owned(), Array::new([8, 6], vec![1.0; 48]))]);
    let error =
        evaluate_graph(&squares(true), &feeds, &EvalContext::default()).expect_err("no rule");
    assert!(error.to_string().contains("custom `scaled_square`"), "{error}");
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
