//! Tests of conventions: functions behave as PyTorch's at a kink, a tie or a special value, and operands that do not fit are reported.

use std::collections::BTreeMap;

use graphc_ir::array::Array;
use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::evaluate::{EvaluateError, evaluate_graph, evaluate_outputs};
use graphc_ir::gradients::{GradientNode, write_gradients};
use graphc_ir::op::{EvalContext, Op, OpError};
use graphc_ir::ops::{Binary, BinaryFunction, Init, Reduce, ReduceFunction, Unary, UnaryFunction};
use graphc_ir::types::{DType, TensorType};

/// The gradients of the operands, vectors, for a gradient of ones.
fn gradients(op: Op, operands: &[&[f64]]) -> Vec<Vec<f64>> {
    let g = GraphBuilder::new("gradient");
    let inputs: Vec<Tensor> =
        operands.iter().map(|data| g.constant(DType::F32, [data.len()], data)).collect();
    let results = g.apply_all(op.clone(), &inputs.iter().collect::<Vec<_>>());
    let ones = results[0].full_like(1.0);
    let (gradients, wanted) = ([Some(ones)], vec![true; inputs.len()]);
    let node = GradientNode {
        operands: &inputs,
        results: &results,
        gradients: &gradients,
        wanted: &wanted,
    };
    for (i, gradient) in write_gradients(&op, &node).iter().enumerate() {
        g.output(&format!("g{i}"), gradient.as_ref().expect("has a gradient"));
    }
    let graph = g.finish().expect("fits");
    let values =
        evaluate_outputs(&graph, &BTreeMap::new(), &EvalContext::default()).expect("evaluates");
    values.into_values().map(|array| array.data).collect()
}

fn unary(function: UnaryFunction) -> Op {
    Op::Unary(Unary { function })
}

fn binary(function: BinaryFunction) -> Op {
    Op::Binary(Binary { function })
}

fn reduce(function: ReduceFunction, keep_dims: bool) -> Op {
    Op::Reduce(Reduce { function, axes: vec![0], keep_dims })
}

#[test]
fn kinks() {
    assert_eq!(gradients(unary(UnaryFunction::Relu), &[&[-1.0, 0.0, 2.0]]), [[0.0, 0.0, 1.0]]);
    assert_eq!(gradients(unary(UnaryFunction::Abs), &[&[-1.0, 0.0, 2.0]]), [[-1.0, 0.0, 1.0]]);
    let clip = unary(UnaryFunction::Clip { low: (-1.0).into(), high: 1.0.into() });
    assert_eq!(gradients(clip, &[&[-2.0, -1.0, 0.0, 1.0, 2.0]]), [[0.0, 1.0, 1.0, 1.0, 0.0]]);
}

#[test]
fn ties_share_the_gradient() {
    for keep_dims in [false, true] {
        let max = reduce(ReduceFunction::Max, keep_dims);
        assert_eq!(gradients(max, &[&[3.0, 1.0, 3.0]]), [[0.5, 0.0, 0.5]]);
        let min = reduce(ReduceFunction::Min, keep_dims);
        assert_eq!(gradients(min, &[&[1.0, 1.0, 1.0, 1.0]]), [[0.25; 4]]);
    }
    let operands: [&[f64]; 2] = [&[1.0, 2.0, 3.0], &[2.0, 2.0, 2.0]];
    let max = gradients(binary(BinaryFunction::Max), &operands);
    assert_eq!(max, [[0.0, 0.5, 1.0], [1.0, 0.5, 0.0]]);
    let min = gradients(binary(BinaryFunction::Min), &operands);
    assert_eq!(min, [[1.0, 0.5, 0.0], [0.0, 0.5, 1.0]]);
}

#[test]
fn powers_of_zero_have_finite_gradients() {
    let found = gradients(binary(BinaryFunction::Pow), &[&[0.0, 0.0, 2.0], &[0.0, 2.0, 0.0]]);
    assert_eq!(found, [vec![0.0, 0.0, 0.0], vec![0.0, 0.0, 2f64.ln()]]);
    let found = gradients(unary(UnaryFunction::PowScalar(2.0.into())), &[&[0.0, 3.0]]);
    assert_eq!(found, [[0.0, 6.0]]);
}

/// The value of a graph of constants.
fn value(body: impl Fn(&GraphBuilder) -> Tensor) -> Array {
    let g = GraphBuilder::new("value");
    g.output("value", &body(&g));
    let graph = g.finish().expect("fits");
    let values =
        evaluate_outputs(&graph, &BTreeMap::new(), &EvalContext::default()).expect("evaluates");
    values["value"].clone()
}

#[test]
fn reductions_of_nothing_are_the_identity() {
    let empty =
        |function| value(|g| g.full(DType::F32, [0, 2], 1.0).reduce(function, &[0], false)).data;
    assert_eq!(empty(ReduceFunction::Sum), [0.0; 2]);
    assert_eq!(empty(ReduceFunction::Max), [f64::NEG_INFINITY; 2]);
    assert_eq!(empty(ReduceFunction::Min), [f64::INFINITY; 2]);
    assert!(empty(ReduceFunction::Mean).iter().all(|mean| mean.is_nan()));
    let least = value(|g| g.full(DType::I32, [0], 1.0).max(&[0], false)).data;
    assert_eq!(least, [f64::from(i32::MIN)]);
}

#[test]
fn nan_is_kept() {
    let nan = |g: &GraphBuilder| g.constant(DType::F32, [3], &[1.0, f64::NAN, 3.0]);
    assert!(value(|g| nan(g).max(&[0], false)).data[0].is_nan());
    assert_eq!(value(|g| nan(g).argmax(0, false)).data, [1.0]);
    assert!(value(|g| nan(g).relu()).data[1].is_nan());
    assert!(value(|g| nan(g).clip(0.0, 1.0)).data[1].is_nan());
    assert!(value(|g| nan(g).maximum(&nan(g))).data[1].is_nan());
}

#[test]
fn integers_truncate_and_wrap() {
    let ints = |g: &GraphBuilder, data: &[f64]| g.constant(DType::I32, [data.len()], data);
    assert_eq!(
        value(|g| ints(g, &[7.0, -7.0, 7.0]).div(&ints(g, &[2.0, 2.0, 4.0]))).data,
        [3.0, -3.0, 1.0]
    );
    let wrapped = value(|g| ints(g, &[f64::from(i32::MAX)]).offset(1.0)).data;
    assert_eq!(wrapped, [f64::from(i32::MIN)]);
    let floats = |g: &GraphBuilder| g.constant(DType::F32, [3], &[-1.5, 0.0, 1.5]);
    assert_eq!(value(|g| floats(g).cast(DType::I64)).data, [-1.0, 0.0, 1.0]);
    assert_eq!(value(|g| floats(g).cast(DType::Bool)).data, [1.0, 0.0, 1.0]);
}

#[test]
fn an_integer_divided_by_0_is_an_error() {
    let g = GraphBuilder::new("value");
    let ints = |data: &[f64]| g.constant(DType::I64, [2], data);
    g.output("value", &ints(&[7.0, 1.0]).div(&ints(&[2.0, 0.0])));
    let graph = g.finish().expect("fits");
    let error = evaluate_outputs(&graph, &BTreeMap::new(), &EvalContext::default()).expect_err("0");
    assert!(error.to_string().contains("an integer is divided by 0"), "{error}");
}

#[test]
fn operators_are_the_methods() {
    let result = value(|g| {
        let x = g.constant(DType::F32, [2], &[1.0, 2.0]);
        let y = -(&x * 3.0) + &x / (&x - 4.0);
        (y + 1.0) / 2.0
    });
    assert_eq!(result.data, [(-3.0 - 1.0 / 3.0 + 1.0) / 2.0, -3.0]);
    let numbers_first = value(|g| {
        let x = g.constant(DType::F32, [2], &[1.0, 2.0]);
        (1.0 - &x) + 3.0 / &x + 2.0 * (5.0 + x)
    });
    assert_eq!(numbers_first.data, [0.0 + 3.0 + 12.0, -1.0 + 1.5 + 14.0]);
}

#[test]
fn an_output_whose_name_is_taken_is_told_with_its_place() {
    let g = GraphBuilder::new("twice");
    let x = g.constant(DType::F32, [2], &[1.0, 2.0]);
    g.output("y", &x);
    let line = line!() + 1;
    g.output("y", &x.neg());
    let error = g.finish().expect_err("two of one name").to_string();
    assert!(error.contains(&format!("conventions.rs:{line}")) && error.contains("`y`"), "{error}");
}

#[test]
fn variables_are_drawn_by_name_and_feeds_come_first() {
    let g = GraphBuilder::new("variables");
    let normal = Init::Normal { mean: 0.0.into(), std: 1.0.into() };
    for name in ["a", "b"] {
        g.output(name, &g.variable(name, DType::F32, [4], normal.clone()));
    }
    let graph = g.finish().expect("fits");
    let values = |feeds| evaluate_outputs(&graph, &feeds, &EvalContext { seed: 1, step: 5 });
    let drawn = values(BTreeMap::new()).expect("evaluates");
    assert_ne!(drawn["a"], drawn["b"]);
    let again = EvalContext { seed: 1, step: 6 };
    assert_eq!(drawn, evaluate_outputs(&graph, &BTreeMap::new(), &again).expect("evaluates"));
    let ones = BTreeMap::from([("a".to_string(), Array::full([4], 1.0))]);
    assert_eq!(values(ones).expect("evaluates")["a"].data, [1.0; 4]);
    let wrong = BTreeMap::from([("a".to_string(), Array::full([3], 1.0))]);
    assert!(matches!(values(wrong), Err(EvaluateError::FeedShape { .. })));
    let unknown = BTreeMap::from([("c".to_string(), Array::full([3], 1.0))]);
    assert!(matches!(values(unknown), Err(EvaluateError::UnknownFeed { .. })));
}

#[test]
fn what_is_not_fed_is_named() {
    let g = GraphBuilder::new("input");
    let _ = g.input("x", DType::F32, [4]);
    let graph = g.finish().expect("fits");
    let error =
        evaluate_graph(&graph, &BTreeMap::new(), &EvalContext::default()).expect_err("no feed");
    assert!(error.to_string().ends_with("input `x` has no value: it must be fed"), "{error}");
}

#[test]
fn errors_name_what_meets() {
    let ty = |dtype, shape: &[usize]| TensorType::new(dtype, shape);
    let message = |op: Op, operands: &[&TensorType]| -> String {
        let error: OpError = op.infer_types(operands).expect_err("does not fit");
        error.to_string()
    };
    let (float, int) = (ty(DType::F32, &[2, 3]), ty(DType::I64, &[3]));
    let add = binary(BinaryFunction::Add);
    assert_eq!(
        message(add.clone(), &[&float, &int]),
        "binary cannot take f32[2, 3], i64[3]: element types f32 and i64 differ"
    );
    assert_eq!(
        message(add, &[&float, &ty(DType::F32, &[2])]),
        "binary cannot take f32[2, 3], f32[2]: the shapes do not broadcast"
    );
    assert_eq!(
        message(unary(UnaryFunction::Exp), &[&int]),
        "unary cannot take i64[3]: Exp needs floating-point elements"
    );
}
