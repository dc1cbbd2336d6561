//! The number of passes over memory that a plan takes between convolutions, which are chains of elementwise ops with the sums at their end.

use graphc_compiler::check::verify_invariants;
use graphc_compiler::cluster::preset;
use graphc_compiler::compile::compile;
use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::op::Op;
use graphc_ir::ops::Init;
use graphc_ir::types::DType;
use graphc_nn::{BatchNorm2d, Conv2d, ConvConfig, Module};
use graphc_plan::check::VerifiedPlan;
use graphc_plan::{Action, Actor, CompileOptions, Loss, Optimizer, Plan, RegisterKind};

/// The shape of an image tensor, with channels last.
const IMAGE: [usize; 4] = [8, 6, 6, 16];

/// A normalization between two convolutions, and what `activate` does behind it.
fn plan(precision: Option<DType>, activate: impl Fn(&Tensor) -> Tensor) -> VerifiedPlan {
    let g = GraphBuilder::new("images");
    let x = g.input("x", DType::F32, [8, 3, 6, 6]);
    let config = ConvConfig { padding: [1, 1], bias: false, ..ConvConfig::square(3) };
    let x = Conv2d::new(&g, "first", [3, 16], config).forward(&x);
    let y = activate(&BatchNorm2d::new(&g, "norm", 16).forward(&x));
    g.output("y", &Conv2d::new(&g, "second", [16, 4], config).forward(&y));
    let sgd = Optimizer::Sgd { lr: 0.1, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let options = CompileOptions {
        loss: Some(Loss::Sum),
        optimizer: Some(sgd),
        precision,
        ..CompileOptions::default()
    };
    let cluster = preset("cpu").expect("a preset");
    let plan = compile(g.finish().expect("fits"), &options, &cluster, None).expect("compiles").plan;
    assert_eq!(verify_invariants(&plan), Ok(()));
    plan
}

/// Returns, for each actor that is no convolution, the numbers of images that it reads and writes, and the number of sums that it makes.
fn passes(plan: &Plan) -> Vec<[usize; 3]> {
    let program = &plan.programs[0];
    let is_image =
        |register: &graphc_ir::ids::RegisterId| program.registers[register.index()].shape == IMAGE;
    let of = |actor: &Actor| {
        let sums = match &actor.action {
            Action::Fused(fused) => {
                fused.steps.iter().filter(|step| matches!(step.op, Op::Reduce(_))).count()
            }
            Action::Compute { op: Op::Reduce(_), .. } => 1,
            Action::Compute { op, .. } if op.name().starts_with("convolution") => return None,
            _ => 0,
        };
        let count = |registers: &[_]| registers.iter().filter(|r| is_image(r)).count();
        let moved = [count(&actor.inputs), count(&actor.outputs)];
        (moved != [0, 0]).then_some([moved[0], moved[1], sums])
    };
    program.actors.iter().filter_map(of).collect()
}

#[test]
fn normalization_takes_three_passes_forward_and_two_back() {
    let expected = [[1, 0, 1], [1, 0, 1], [1, 1, 0], [3, 1, 2], [2, 1, 0]];
    assert_eq!(passes(&plan(None, Tensor::relu)), expected);
}

#[test]
fn what_a_bounded_activation_was_made_of_is_not_kept() {
    let expected = [[1, 0, 1], [1, 0, 1], [1, 1, 0], [2, 1, 2], [2, 1, 0]];
    assert_eq!(passes(&plan(None, |x| x.clip(0.0, 6.0))), expected);
}

#[test]
fn sums_of_one_tensor_share_a_pass() {
    let expected = [[1, 0, 1], [1, 0, 1], [1, 1, 0], [2, 0, 2], [2, 1, 0]];
    assert_eq!(passes(&plan(None, Tensor::clone)), expected);
}

#[test]
fn images_that_are_made_in_half_are_not_kept_in_f32() {
    let plan = plan(Some(DType::BF16), Tensor::relu);
    let program = &plan.programs[0];
    let is_wide = |register: &&graphc_ir::ids::RegisterId| {
        let register = &program.registers[register.index()];
        let wide = plan.layouts[register.layout.index()].dtype == DType::F32;
        wide && register.shape == IMAGE && register.kind == RegisterKind::Activation
    };
    let made =
        program.actors.iter().flat_map(|actor| actor.outputs.iter().map(move |o| (actor, o)));
    let wide: Vec<&Actor> = made.filter(|(_, output)| is_wide(output)).map(|made| made.0).collect();
    // The gradient that ReLU passes on, with its sums.
    let [gradient] = wide[..] else { panic!("{wide:?}") };
    assert!(matches!(&gradient.action, Action::Fused(fused) if fused.outputs.len() == 3));
}

/// Returns the names of the ops that are fused behind each convolution, in an inference of two blocks, the second of which has a residual connection.
fn behind_convolutions(mesh: usize) -> Vec<Vec<&'static str>> {
    let g = GraphBuilder::new("images");
    let x = g.input("x", DType::F32, [8, 3, 6, 6]);
    let config = ConvConfig { padding: [1, 1], bias: false, ..ConvConfig::square(3) };
    let x = Conv2d::new(&g, "first", [3, 16], config).forward(&x);
    let x = BatchNorm2d::new(&g, "norm", 16).forward(&x).clip(0.0, 6.0);
    let y = Conv2d::new(&g, "second", [16, 16], config).forward(&x);
    let y = BatchNorm2d::new(&g, "norm_2", 16).forward(&y);
    g.output("y", &Conv2d::new(&g, "third", [16, 4], config).forward(&(y + x).relu()));
    let options = CompileOptions { mesh: vec![mesh], ..CompileOptions::default() };
    let cluster = preset("cpu").expect("a preset");
    let plan = compile(g.finish().expect("fits"), &options, &cluster, None).expect("compiles").plan;
    assert_eq!(verify_invariants(&plan), Ok(()));
    let names = |actor: &Actor| match &actor.action {
        Action::Fused(fused) if matches!(fused.steps[0].op, Op::Convolution(_)) => {
            Some(fused.steps[1..].iter().map(|step| step.op.name()).collect())
        }
        Action::Compute { op: Op::Convolution(_), .. } => Some(Vec::new()),
        _ => None,
    };
    plan.programs[0].actors.iter().filter_map(names).collect()
}

#[test]
fn in_inference_a_convolution_has_its_normalization_and_activation_behind_it() {
    let first = vec!["binary", "binary", "unary"];
    let second = vec!["binary", "binary", "binary", "unary"];
    for mesh in [1, 4] {
        let expected = [first.clone(), second.clone(), vec![]];
        assert_eq!(behind_convolutions(mesh), expected, "on {mesh} ranks");
    }
}

/// A layer of a transformer's kind, whose products are as `linear` writes them.
fn layer_of_rows(linear: impl Fn(&Tensor, &Tensor) -> Tensor) -> VerifiedPlan {
    let g = GraphBuilder::new("rows");
    let weight =
        |name: &str, shape: &[usize]| g.variable(name, DType::F32, shape, Init::Fill(0.5.into()));
    let x = g.input("x", DType::F32, [8, 16, 32]);
    let normed = x.layer_norm(&weight("scale", &[32]), &weight("shift", &[32]), 1e-5);
    let hidden = linear(&normed, &weight("up", &[32, 64])).add(&weight("bias", &[64])).tanh();
    g.output("y", &x.add(&linear(&hidden, &weight("down", &[64, 32]))));
    let sgd = Optimizer::Sgd { lr: 0.1, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let options = CompileOptions {
        mesh: vec![2],
        loss: Some(Loss::Sum),
        optimizer: Some(sgd),
        precision: Some(DType::BF16),
        strategy: "megatron:sp".parse().expect("a strategy"),
        ..CompileOptions::default()
    };
    let cluster = preset("dgx-h100").expect("a preset");
    compile(g.finish().expect("fits"), &options, &cluster, None).expect("compiles").plan
}

#[test]
fn rows_that_products_take_as_one_cost_nothing() {
    let as_one = |x: &Tensor, w: &Tensor| {
        let (rows, width) = (x.shape()[..2].to_vec(), x.shape()[2]);
        let product = x.reshape(&[rows[0] * rows[1], width]).matmul(w);
        product.reshape(&[rows[0], rows[1], w.shape()[1]])
    };
    let (views, plain) = (layer_of_rows(as_one), layer_of_rows(|x, w| x.matmul(w)));
    assert_eq!(views.planner.objective_seconds, plain.planner.objective_seconds);
    assert_eq!(views.boxing.len(), plain.boxing.len());
    assert_eq!(views.programs[0].actors.len(), plain.programs[0].actors.len());
}
