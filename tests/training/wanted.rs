//! Gradients of the loss by inputs and by what is computed between, as outputs: those that a variable in the place has.

use std::collections::BTreeMap;

use crate::support::Scratch;
use graphc::compiler::error::CompileError;
use graphc::ir::ops::Init;
use graphc::prelude::*;
use graphc::runtime::data::{load_safetensors, save_safetensors};

const BATCH: usize = 8;

/// A small network of images, with channels that a pass puts last, whose input is fed or, for comparison, trained.
fn network(trains_input: bool, dropout: f64) -> Graph {
    let g = GraphBuilder::new("network");
    let shape = [BATCH, 2, 4, 4];
    let x = match trains_input {
        true => g.variable("x", DType::F32, shape, Init::Fill(0.0.into())),
        false => g.input("x", DType::F32, shape),
    };
    let config = nn::ConvConfig { padding: [1, 1], ..nn::ConvConfig::square(3) };
    let conv = nn::Conv2d::new(&g, "conv", [2, 6], config);
    let hidden = conv.forward(&x).tanh().named("hidden");
    let shift = g.variable("shift", DType::F32, [6, 4, 4], Init::Fill(0.1.into()));
    let features = hidden.add(&shift).mean(&[2, 3], false).dropout(dropout);
    g.output("scores", &nn::Linear::new(&g, "head", 6, 5).forward(&features));
    g.finish().expect("it fits")
}

fn feeds() -> BTreeMap<String, HostTensor> {
    let numbers: Vec<f32> =
        (0..BATCH * 32).map(|at| (0.3 + 1.7 * at as f64).sin() as f32).collect();
    let labels: Vec<i64> = (0..BATCH as i64).map(|at| at * 3 % 5).collect();
    let x = HostTensor::from_f32([BATCH, 2, 4, 4], &numbers).expect("it fits");
    let labels = HostTensor::from_i64([BATCH], &labels).expect("it fits");
    [("x".to_owned(), x), ("labels".to_owned(), labels)].into()
}

fn wanting(names: &[&str], options: CompileOptions) -> CompileOptions {
    let loss = Some(Loss::CrossEntropy);
    CompileOptions {
        loss,
        gradients_of: names.iter().map(ToString::to_string).collect(),
        ..options
    }
}

/// The outputs of a step, with `x` as a variable where the plan has one.
fn step(graph: Graph, options: &CompileOptions) -> BTreeMap<String, HostTensor> {
    let cluster = preset("cpu").expect("a preset");
    let plan = compile(graph, options, &cluster, None).expect("it compiles").plan;
    let mut session = Session::new(
        &plan,
        &BTreeMap::new(),
        SessionOptions { seed: 5, ..SessionOptions::default() },
    )
    .expect("a session");
    let mut feeds = feeds();
    if session.variables().contains_key("x") {
        session.set_variable("x", &feeds.remove("x").expect("it is there")).expect("it fits");
    }
    session.step(feeds).expect("it begins").wait().expect("it ends")
}

fn assert_near(found: &HostTensor, expected: &HostTensor, within: f64, what: &str) {
    let (found, expected) = (found.to_f64(), expected.to_f64());
    let most = expected.iter().fold(0.0f64, |most, value| most.max(value.abs()));
    assert!(most > 1e-4, "{what}: {most}");
    let near = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= within * most);
    assert!(near && found.len() == expected.len(), "{what}: {found:?} is not {expected:?}");
}

/// Sums over the batch and its samples are those of the mean over the whole batch, on any mesh and in parts.
#[test]
fn the_gradient_by_an_input_is_that_by_a_variable_in_its_place() {
    let of_variables = CompileOptions { gradients: true, ..CompileOptions::default() };
    let expected = step(network(true, 0.0), &wanting(&["hidden"], of_variables));
    for (mesh, stages, microbatches, precision, within) in [
        (vec![1], 1, 1, None, 1e-6),
        (vec![2], 1, 1, None, 1e-5),
        (vec![2, 2], 1, 2, None, 1e-5),
        (vec![2], 2, 2, None, 1e-5),
        (vec![2], 1, 1, Some(DType::BF16), 0.05),
    ] {
        let what = format!("{mesh:?}, {stages} stages, {microbatches} microbatches, {precision:?}");
        let base =
            CompileOptions { mesh, stages, microbatches, precision, ..CompileOptions::default() };
        let found = step(network(false, 0.0), &wanting(&["x", "hid*"], base));
        let names: Vec<&String> = found.keys().collect();
        assert_eq!(names, ["grad.hidden", "grad.x", "loss", "scores"]);
        for name in ["grad.x", "grad.hidden", "loss"] {
            assert_near(&found[name], &expected[name], within, &format!("{name} on {what}"));
        }
    }
}

/// A training gives gradients of the mode of training, where dropout drops, and of the loss itself, however that is scaled.
#[test]
fn a_training_gives_the_gradients_beside_its_updates() {
    let training = |precision| CompileOptions {
        precision,
        optimizer: Some(Optimizer::adamw(1e-3)),
        ..CompileOptions::default()
    };
    let whole = step(network(false, 0.5), &wanting(&["x", "head.weight"], training(None)));
    let names: Vec<&String> = whole.keys().collect();
    assert_eq!(names, ["grad.head.weight", "grad.x", "loss"]);
    let evaluated = step(network(false, 0.5), &wanting(&["x"], CompileOptions::default()));
    assert!(whole["grad.x"].to_f64() != evaluated["grad.x"].to_f64(), "dropout drops");
    let scaled =
        step(network(false, 0.5), &wanting(&["x", "head.weight"], training(Some(DType::F16))));
    for name in ["grad.x", "grad.head.weight"] {
        assert_near(&scaled[name], &whole[name], 0.01, name);
    }
}

/// A pattern takes what the loss depends on, and trained variables once, whose gradients are outputs where all are asked for.
#[test]
fn a_pattern_takes_what_there_is() {
    let all = CompileOptions { gradients: true, ..CompileOptions::default() };
    let found = step(network(false, 0.0), &wanting(&["*"], all.clone()));
    let own = step(network(false, 0.0), &wanting(&[], all));
    let variables = ["conv.bias", "conv.weight", "head.bias", "head.weight", "shift"];
    for name in variables.map(|name| format!("grad.{name}")) {
        assert_near(&found[&name], &own[&name], 1e-5, &name);
    }
    assert!(found.contains_key("grad.x") && !own.contains_key("grad.x"), "{:?}", found.keys());
    let g = GraphBuilder::new("beside");
    let [x, other] = ["x", "other"].map(|name| g.input(name, DType::F32, [BATCH, 2, 4, 4]));
    g.output("scores", &x.mean(&[2, 3], false));
    g.output("beside", &other.tanh());
    let graph = g.finish().expect("it fits");
    let options = wanting(&["*"], CompileOptions::default());
    let plan =
        compile(graph, &options, &preset("cpu").expect("a preset"), None).expect("it compiles");
    let given: Vec<&str> = plan.plan.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    assert!(!given.contains(&"grad.other"), "{given:?}");
}

#[test]
fn a_gradient_of_nothing_is_refused() {
    let refused = |name: &str| -> String {
        let g = GraphBuilder::new("two inputs");
        let x = g.input("image", DType::F32, [2, 3]);
        g.output("other", &g.input("other", DType::F32, [2, 3]).tanh());
        g.input("ids", DType::I64, [2]);
        let mut graph = {
            g.output(
                "scores",
                &x.matmul(&g.variable("w", DType::F32, [3, 4], Init::Fill(0.5.into()))),
            );
            g.finish().expect("it fits")
        };
        graph.outputs.rotate_right(1);
        let options = wanting(&[name], CompileOptions::default());
        let cluster = preset("cpu").expect("a preset");
        let error: CompileError = compile(graph, &options, &cluster, None).expect_err("refused");
        error.to_string()
    };
    assert!(refused("imag").contains("did you mean `image`?"), "{}", refused("imag"));
    assert!(refused("ids").contains("no tensor of floating-point numbers has a name like `ids`"));
    assert!(refused("other").contains("the loss `loss` does not depend on `other`"));
}

#[test]
fn the_command_writes_the_gradients_of_all_samples() {
    let scratch = Scratch::new();
    let [model, data, outputs] =
        ["network.gir", "data.safetensors", "outputs.safetensors"].map(|file| scratch.path(file));
    std::fs::write(&model, graphc::ir::text::print_graph(&network(false, 0.5))).expect("writable");
    save_safetensors(data.as_ref(), &feeds()).expect("writable");
    let run = ["run", &model, "--inputs", &data, "--outputs", &outputs, "--seed", "5"];
    let refused = crate::support::fails([&run[..], &["--loss", "cross_entropy"]].concat());
    assert!(refused.contains("--gradients-of"), "{refused}");
    crate::support::succeeds(
        [&run[..], &["--loss", "cross_entropy", "--gradients-of", "x"]].concat(),
    );
    let found = load_safetensors(outputs.as_ref()).expect("outputs");
    let expected = step(network(false, 0.5), &wanting(&["x"], CompileOptions::default()));
    assert_near(&found["grad.x"], &expected["grad.x"], 0.0, "grad.x");
}

#[test]
fn inference_with_weights_that_nobody_trained_says_so() {
    let scratch = Scratch::new();
    let [model, data, outputs, plan] =
        ["network.gir", "data.safetensors", "o.safetensors", "plan.json"]
            .map(|file| scratch.path(file));
    std::fs::write(&model, graphc::ir::text::print_graph(&network(false, 0.5))).expect("writable");
    save_safetensors(data.as_ref(), &feeds()).expect("writable");
    let said = crate::support::graphc(["run", &model, "--inputs", &data, "--outputs", &outputs]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(
        said.contains("note: no trained weights are given (--weights-from): random are"),
        "{said}"
    );
    // A plan of training makes steps of training.
    let training = ["--loss", "cross_entropy", "--optimizer", "sgd", "-o", &plan];
    crate::support::succeeds([&["compile", &model][..], &training].concat());
    let refused = crate::support::fails(["run", &plan, "--inputs", &data, "--outputs", &outputs]);
    assert!(refused.contains("is a plan of training: `graphc eval`"), "{refused}");
}
