//! Plan files: options that contradict one, devices that are not there, and files edited by hand.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support;
use crate::support::{fails, graphc, reference, succeeds};
use graphc::ir::array::Array;
use graphc::ir::evaluate::evaluate_graph;
use graphc::ir::op::EvalContext;
use graphc::ir::text::print_graph;
use graphc::nn::Module;
use graphc::prelude::*;
use graphc::runtime::data::{load_safetensors, save_safetensors};
use serde_json::Value;

/// Compiles the reference `mlp` into a folder; `extra` are further options.
fn compiled(folder: &Path, extra: &[&str]) -> String {
    let plan = folder.join("plan.json").display().to_string();
    let model = reference("mlp").join("model.onnx").display().to_string();
    let options = ["--batch", "16", "--loss", "cross_entropy", "--optimizer", "sgd", "--lr", "0.1"];
    let head = ["compile", &model, "-o", &plan, "--mesh", "2", "--microbatches", "2"];
    succeeds(head.iter().chain(&options).chain(extra));
    plan
}

fn training<'a>(plan: &'a str, data: &'a str, extra: &[&'a str]) -> Vec<&'a str> {
    [&["train", plan, "--data", data, "--steps", "1"], extra].concat()
}

/// Returns all that a run that must succeed says.
fn said<const N: usize>(args: [&str; N]) -> String {
    let output = graphc(args);
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).expect("UTF-8");
    assert!(output.status.success(), "{text}");
    text
}

fn data() -> String {
    reference("mlp").join("data.safetensors").display().to_string()
}

#[test]
fn what_is_verified_can_be_read_by_programs() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let plan = compiled(folder.path(), &[]);
    let model = reference("mlp").join("model.onnx").display().to_string();
    let json = |args: &[&str]| -> Value {
        let own = ["verify", &plan, "--format", "json"];
        serde_json::from_str(&succeeds(own.iter().chain(args))).expect("JSON")
    };
    let found = json(&[]);
    assert_eq!((&found["valid"], &found["ranks"]), (&Value::Bool(true), &Value::from(2)));
    assert!(found["difference"].is_null() && found["sealed"] == false, "{found}");
    assert!(json(&[&model])["difference"].as_f64().is_some_and(|difference| difference < 1e-4));
}

#[test]
fn a_plan_that_is_carried_away_takes_the_model_that_lies_beside_it() {
    let [made, there] = [(); 2].map(|()| tempfile::tempdir().expect("a scratch folder"));
    let at =
        |folder: &tempfile::TempDir, name: &str| folder.path().join(name).display().to_string();
    let (model, plan) = (at(&made, "model.onnx"), at(&made, "plan.json"));
    std::fs::copy(reference("mlp").join("model.onnx"), &model).expect("a copy");
    let options = ["--batch", "16", "--loss", "cross_entropy", "--optimizer", "sgd", "--lr", "0.1"];
    succeeds(["compile", &model, "-o", &plan].iter().chain(&options));
    let (moved, data) = (at(&there, "plan.json"), data());
    std::fs::rename(plan, &moved).expect("the plan is moved");
    let alone = {
        let aside = at(&there, "aside.onnx");
        std::fs::rename(&model, &aside).expect("the model is moved");
        let alone = fails(training(&moved, &data, &[]));
        std::fs::rename(aside, at(&there, "model.onnx")).expect("the model is moved");
        alone
    };
    assert!(alone.contains("put that file there, or beside the plan"), "{alone}");
    succeeds(training(&moved, &data, &[]));
}

#[test]
fn an_option_that_a_plan_contradicts_is_named_with_what_the_plan_has() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let (plan, data) = (compiled(folder.path(), &[]), data());
    let cases: [(&[&str], &str); 14] = [
        (&["--lr", "0.5"], "with 0.1"),
        (&["--momentum", "0.5"], "with 0"),
        (&["--beta1", "0.9"], "without such an option"),
        (&["--optimizer", "adam"], "with sgd"),
        (&["--loss", "mse"], "with cross_entropy"),
        (&["--mesh", "4"], "with 2:"),
        (&["--microbatches", "1"], "with 2"),
        (&["--stages", "auto"], "with 1"),
        (&["--strategy", "zero3"], "with auto"),
        (&["--strategy", "megatron:sp"], "with auto"),
        (&["--schedule", "gpipe"], "with 1f1b"),
        (&["--batch", "32"], "with 16"),
        (&["--cluster", "dgx-a100"], "for `cpu`"),
        (&["--pin", "*=B"], "without this pin"),
    ];
    for (option, own) in cases {
        let error = fails(training(&plan, &data, option));
        for part in [option[0], option[1], own, "contradicts", "leave the option out"] {
            assert!(error.contains(part), "`{part}` is not in: {error}");
        }
    }
    let same = ["--lr", "0.1", "--mesh", "2", "--microbatches", "2", "--strategy", "auto"];
    succeeds(training(&plan, &data, &[&same[..], &["--seed", "3", "--threads", "1"]].concat()));
}

#[test]
fn a_plan_for_gpus_runs_on_the_processor_where_that_is_asked_for() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let (plan, data) = (compiled(folder.path(), &["--cluster", "dgx-a100"]), data());
    let error = fails(training(&plan, &data, &[]));
    assert!(error.contains("cuda") && error.contains("--device cpu"), "{error}");
    let model = reference("mlp").join("model.onnx").display().to_string();
    succeeds(training(&plan, &data, &["--device", "cpu"]));
    succeeds(["verify", &plan, &model]);
}

#[test]
fn a_plan_runs_as_it_is_and_is_not_planned_again() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let (plan, data) = (compiled(folder.path(), &[]), data());
    let mut file: Value =
        serde_json::from_str(&std::fs::read_to_string(&plan).expect("the plan")).expect("JSON");
    // The rate of every update is another one than that of which the options speak: planning again would give the options'.
    let actors = file["programs"].as_array_mut().expect("programs").iter_mut();
    let actors = actors.flat_map(|program| program["actors"].as_array_mut().expect("actors"));
    let rates = actors.filter_map(|actor| actor.pointer_mut("/action/compute/op/lr"));
    assert!(rates.map(|lr| *lr = 0.into()).count() > 0, "there are updates");
    std::fs::write(&plan, file.to_string()).expect("written");
    let error = fails(["verify", &plan]);
    assert!(error.contains("edited by hand"), "{error}");
    let metrics = folder.path().join("m").display().to_string();
    let longer = ["--steps", "5", "--metrics", &metrics];
    succeeds([&["train", &plan, "--data", &data][..], &longer, &["--eval-data", &data]].concat());
    let lines = std::fs::read_to_string(&metrics).expect("metrics");
    let lines = support::json_lines(&lines);
    // The data has four batches: the fifth step sees what the first has seen, with the weights as they were.
    assert_eq!(lines[0]["loss"], lines[4]["loss"]);
    assert!(lines[4]["eval"]["loss"].is_number(), "an evaluation may be planned");
}

#[test]
fn an_edited_plan_is_refused_with_the_place_of_the_edit() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let (plan, data) = (compiled(folder.path(), &[]), data());
    let text = std::fs::read_to_string(&plan).expect("the plan");
    let edits: [(&str, Value, &str); 6] = [
        ("/programs/0/registers/1/offset", 0.into(), "programs[0]"),
        ("/programs/0/registers/1/offset", (1u64 << 40).into(), "registers[1]"),
        ("/programs/0/arena_bytes", (1u64 << 62).into(), "programs[0]"),
        ("/programs/0/registers/0/slots", u32::MAX.into(), "registers[0]"),
        ("/microbatches", (1u64 << 32).into(), "microbatches"),
        ("/layouts/0/ranks", serde_json::json!([[0, 16_000_000, 1]]), "layouts[0]"),
    ];
    for (place, value, named) in edits {
        let mut file: Value = serde_json::from_str(&text).expect("JSON");
        *file.pointer_mut(place).unwrap_or_else(|| panic!("{place}")) = value;
        std::fs::write(&plan, file.to_string()).expect("written");
        for error in [fails(["verify", &plan]), fails(training(&plan, &data, &[]))] {
            assert!(error.contains(named), "{place}: `{named}` is not in: {error}");
        }
    }
}

#[test]
fn a_broken_seal_is_told_and_a_valid_plan_is_sealed_again() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let plan = compiled(folder.path(), &[]);
    let sealed = std::fs::read_to_string(&plan).expect("the plan");
    let told = said(["verify", &plan]);
    assert!(!told.contains("seal"), "{told}");
    std::fs::write(&plan, sealed.replacen("\n ", "\n  ", 1)).expect("written");
    let told = said(["verify", &plan, "--seal"]);
    assert!(
        told.contains("was changed after it was sealed") && told.contains("; sealed"),
        "{told}"
    );
    assert_eq!(std::fs::read_to_string(&plan).expect("the plan"), sealed);
    // What is not valid is not sealed.
    let wrong = sealed.replacen("\"arena_bytes\": ", "\"arena_bytes\": 1", 1);
    assert!(wrong != sealed);
    std::fs::write(&plan, &wrong).expect("written");
    fails(["verify", &plan, "--seal"]);
    assert_eq!(std::fs::read_to_string(&plan).expect("the plan"), wrong);
}

/// Layers of products and batch norms over so few samples that the last bits of the first layers are large in the last: of 32 layers
/// sums in another order change the loss by more than the tolerance, of 128 by a tenth of itself.
#[test]
fn a_plan_is_compared_with_its_model_as_closely_as_that_bears_rounding() {
    let deep = |layers: usize, samples: usize| {
        let g = GraphBuilder::new("deep");
        let x = g.input("x", DType::F32, [samples, 16]);
        let normal = Init::Normal { mean: 0.0.into(), std: 0.3.into() };
        let layer = |x: Tensor, i: usize| {
            let w = g.variable(&format!("w{i}"), DType::F32, [16, 16], normal.clone());
            nn::BatchNorm1d::new(&g, &format!("bn{i}"), 16).forward(&x.matmul(&w)).relu()
        };
        g.output("y", &(0..layers).fold(x, layer));
        print_graph(&g.finish().expect("fits"))
    };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (model, plan) = (path("deep.gir"), path("plan.json"));
    let compiled = |layers: usize, samples: usize, extra: &[&str]| {
        std::fs::write(&model, deep(layers, samples)).expect("a scratch file");
        let training = ["--loss", "mse", "--optimizer", "sgd", "--lr", "0.1"];
        let options = ["compile", &model, "-o", &plan, "--strategy", "data"];
        succeeds(options.iter().chain(&training).chain(extra));
    };
    compiled(32, 4, &["--mesh", "2x2"]);
    succeeds(["verify", &plan, &model]);
    // Each microbatch has statistics of its own, on one rank, too.
    compiled(2, 8, &["--mesh", "2", "--microbatches", "2"]);
    succeeds(["verify", &plan, &model]);
    compiled(128, 4, &["--mesh", "2x2"]);
    let error = fails(["verify", &plan, &model]);
    assert!(error.contains("`loss` cannot be compared: rounding its inputs alone"), "{error}");
}

/// Computes all values of a small model, as its ops are defined.
fn values(text: &str) -> BTreeMap<String, Array> {
    let graph = graphc::ir::text::parse_graph(text).expect("a graph");
    let x = Array::new([2, 4], (0..8).map(|i| (1.3 + 1.7 * f64::from(i)).sin()).collect());
    let feeds = BTreeMap::from([("x".to_string(), x)]);
    let arrays = evaluate_graph(&graph, &feeds, &EvalContext::default()).expect("is fed");
    let named = graph.values.iter().zip(arrays);
    named.filter_map(|(value, array)| Some((value.name.clone()?, array))).collect()
}

#[test]
fn check_names_the_first_value_that_another_program_has_otherwise() {
    let text = "graph @gated {
  %x = input \"x\" : f32[2, 4]
  %fc.weight = variable \"fc.weight\" {init={\"fill\": 0.5}, trainable=true} : f32[4, 3]
  %h = matmul %x, %fc.weight
  %gate = unary %h {function=\"sigmoid\"}
  %y = binary %h, %gate {function=\"mul\"}
  return \"y\" = %y
}
";
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (model, file) = (path("gated.gir"), path("values"));
    std::fs::write(&model, text).expect("writable");
    let check = |values: &BTreeMap<String, Array>, more: &[&str]| {
        let tensor = |(name, array): (&String, &Array)| {
            let tensor = HostTensor::from_f64(DType::F32, array.shape.clone(), &array.data);
            (name.clone(), tensor.expect("as many elements"))
        };
        save_safetensors(file.as_ref(), &values.iter().map(tensor).collect()).expect("writable");
        let output = graphc([&["check", &model, "--against", &file][..], more].concat());
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let mut found = values(text);
    let (status, said, _) = check(&found, &[]);
    assert!(status == Some(0) && said.contains("4 values compared, 0 differ"), "{said}");
    // What is behind it differs as well, had the other program computed it of that.
    found.get_mut("gate").expect("is there").data[1] += 0.01;
    found.insert("other".into(), Array::new([1], vec![0.0]));
    let (status, said, error) = check(&found, &[]);
    assert!(status == Some(1) && said.contains("4 values compared, 1 differ"), "{said}");
    let first = "the first value that differs is `gate`: unary (line 5, column 3), behind the weight `fc.weight`, by 1.0e-2";
    assert!(error.contains(first), "{error}");
    let (status, said, _) = check(&found, &["--format", "json"]);
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((status, &said["first_difference"]), (Some(1), &"gate".into()));
    assert_eq!(said["not_compared"], serde_json::json!(["other"]));
    assert_eq!(check(&found, &["--tolerance", "0.1"]).0, Some(0));
    found.insert("h".into(), Array::new([3, 2], vec![0.0; 6]));
    let (status, _, error) = check(&found, &["--mesh", "2"]);
    assert_eq!(status, Some(1));
    assert!(error.contains("`h`: matmul") && error.contains("the file has f32[3, 2]"), "{error}");
    found.retain(|name, _| ["x", "other"].contains(&name.as_str()));
    let (status, _, error) = check(&found, &[]);
    assert!(status == Some(1) && error.contains("has no value of"), "{error}");
}

/// The module of a value is found in both exports: PyTorch's newer exporter writes it beside each node, and the older one into the value's
/// name.
#[test]
fn check_names_the_module_of_the_value_that_differs() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let exports = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exports");
    let file = folder.path().join("values");
    for (name, value, shape, module) in [
        ("padded_table", "y", vec![4, 3, 5], "in the module `head` (Linear), behind"),
        (
            "two_batch_norms_plain",
            "/b2/BatchNormalization_output_0",
            vec![16, 8, 8, 8],
            "in the module `b2`, behind",
        ),
    ] {
        let data = exports.join(format!("{name}.safetensors"));
        let mut values = load_safetensors(&data).expect("there");
        let nothing = vec![0.0; shape.iter().product()];
        let nothing = HostTensor::from_f64(DType::F32, shape, &nothing).expect("as many elements");
        values.insert(value.into(), nothing);
        save_safetensors(&file, &values).expect("writable");
        let model = exports.join(format!("{name}.onnx")).display().to_string();
        let output = graphc(["check", &model, "--against", &file.display().to_string()]);
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(&format!("`{value}`")) && error.contains(module), "{error}");
    }
}
