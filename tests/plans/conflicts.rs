//! Tests of pins, strategies and limits of memory that do not go together: the error names the fewest that conflict, and what to change.

use std::path::PathBuf;

use crate::support::{fails, reference, succeeds};
use graphc::prelude::*;

const CONFLICT: &str = "these cannot be had together";

/// A compilation of the reference mlp for training on four ranks.
fn mlp<'a>(model: &'a str, extra: &[&'a str]) -> Vec<&'a str> {
    let args = ["compile", model, "--batch", "32", "--loss", "cross_entropy"];
    let training = ["--optimizer", "adam", "--lr", "0.001", "--mesh", "4"];
    [args.as_slice(), &training, extra].concat()
}

fn model() -> String {
    reference("mlp").join("model.onnx").display().to_string()
}

/// The lines of an error that name what conflicts.
fn members(error: &str) -> Vec<&str> {
    assert!(error.contains(CONFLICT) && error.contains("no fewer conflict"), "{error}");
    error.lines().filter_map(|line| line.strip_prefix("  ")).collect()
}

/// The bytes that an error says would do.
fn enough(line: &str) -> &str {
    let (_, rest) = line.split_once("KiB: ").expect("a limit");
    rest.split_once(" bytes (").expect("what would do").0
}

#[test]
fn a_pin_that_nothing_fulfils_is_named_alone() {
    let (model, others) = (model(), ["--pin", "layers.2.weight=B", "--strategy", "data"]);
    let error = fails(mlp(&model, &[&["--pin", "layers.0.weight=S(2)"], &others[..]].concat()));
    assert!(error.contains("`layers.0.weight` of shape [64, 20] cannot be pinned to (S(2))"));
    assert!(!error.contains(CONFLICT) && !error.contains("layers.2"), "{error}");
}

#[test]
fn two_pins_of_one_tensor_conflict() {
    let model = model();
    let pins = ["--pin", "*.bias=B", "--pin", "*.weight=S(0)", "--pin", "layers.0.weight=B"];
    let error = fails(mlp(&model, &pins));
    let [first, second] = members(&error)[..] else { panic!("{error}") };
    assert!(first.starts_with("the pin `*.weight=S(0)`: leave it out"), "{error}");
    assert!(second.starts_with("the pin `layers.0.weight=B`: leave it out"), "{error}");
    for pin in [&pins[2..4], &pins[4..]] {
        succeeds(mlp(&model, pin));
    }
}

#[test]
fn of_many_pins_those_that_conflict_are_named() {
    let model = model();
    let biases = ["*.0.bias=B", "*.1.bias=B", "*.2.bias=B"];
    let weights = ["layers.1.weight=B", "layers.2.weight=S(0)", "*.0.weight=S(1)"];
    let pins = biases.into_iter().chain(weights).chain(["layers.0.*=B", "relu=S(0)"]);
    let pins: Vec<&str> = pins.flat_map(|pin| ["--pin", pin]).collect();
    let error = fails(mlp(&model, &pins));
    let [first, second] = members(&error)[..] else { panic!("{error}") };
    assert!(first.starts_with("the pin `*.0.weight=S(1)`"), "{error}");
    assert!(second.starts_with("the pin `layers.0.*=B`"), "{error}");
}

/// Maxima in parts are made by reductions alone: what passes them on needs a producer that makes them.
fn maxima(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("maxima.gir");
    let g = GraphBuilder::new("maxima");
    let most = g.input("x", DType::F32, [8, 16]).max(&[1], false).named("most");
    g.output("column", &most.reshape(&[8, 1]).named("column"));
    let text = graphc::ir::text::print_graph(&g.finish().expect("fits"));
    std::fs::write(&path, text).expect("a scratch file");
    path
}

#[test]
fn pins_of_a_producer_and_its_reader_conflict_where_nothing_is_boxed_between() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = maxima(&folder);
    let compile = |pins: &[&str]| {
        let args = ["compile", path.to_str().expect("UTF-8"), "--mesh", "2"];
        let pins = pins.iter().flat_map(|pin| ["--pin", pin]);
        args.into_iter().chain(pins).map(str::to_string).collect::<Vec<_>>()
    };
    let error = fails(compile(&["x=S(1)", "most=B", "column=P(max)"]));
    let [first, second] = members(&error)[..] else { panic!("{error}") };
    assert!(first.starts_with("the pin `most=B`"), "{error}");
    assert!(second.starts_with("the pin `column=P(max)`"), "{error}");
    succeeds(compile(&["x=S(1)", "column=P(max)"]));
    succeeds(compile(&["x=S(1)", "most=B"]));
}

#[test]
fn pins_that_take_too_much_memory_are_named_with_the_limit() {
    let model = model();
    let pins = ["--pin", "*.bias=B", "--pin", "*.weight=B", "--pin", "layers.1.weight=B"];
    let limit = ["--memory", "60KiB"];
    succeeds(mlp(&model, &limit));
    succeeds(mlp(&model, &pins));
    let error = fails(mlp(&model, &[&pins, &limit[..]].concat()));
    let [pin, memory] = members(&error)[..] else { panic!("{error}") };
    assert!(pin.starts_with("the pin `*.weight=B`: leave it out"), "{error}");
    assert!(memory.starts_with("the limit of memory of 60.00 KiB: "), "{error}");
    assert!(memory.contains(", less than ") && memory.ends_with(" KiB cannot"), "{error}");
    succeeds(mlp(&model, &[&pins, &["--memory", enough(memory)][..]].concat()));
}

#[test]
fn a_strategy_that_takes_too_much_memory_is_named_with_the_limit() {
    let model = model();
    for strategy in ["data", "zero1"] {
        let asked = ["--strategy", strategy, "--pin", "layers.2.bias=B", "--memory", "60KiB"];
        let error = fails(mlp(&model, &asked));
        let [named, memory] = members(&error)[..] else { panic!("{error}") };
        assert!(named.starts_with(&format!("the strategy {strategy}: take `auto`")), "{error}");
        assert!(memory.starts_with("the limit of memory of 60.00 KiB: "), "{error}");
        succeeds(mlp(&model, &[&asked[..4], &["--memory", enough(memory)]].concat()));
    }
}

#[test]
fn a_limit_that_nothing_fits_is_named_alone() {
    let model = model();
    let asked = ["--strategy", "data", "--pin", "layers.0.weight=B", "--memory", "20KiB"];
    let error = fails(mlp(&model, &asked));
    assert!(error.contains("no plan needs less than "), "{error}");
    assert!(!error.contains(CONFLICT) && error.lines().count() == 1, "{error}");
}

#[test]
fn graphs_are_printed_whatever_conflicts() {
    let (model, pins) = (model(), ["--pin", "layers.0.weight=B", "--pin", "*.weight=S(0)"]);
    let extra = [&pins[..], &["--memory", "1KiB", "--emit", "after:loss"]].concat();
    assert!(succeeds(mlp(&model, &extra)).starts_with("graph @"));
}
