//! `graphc simulate` judges a plan on its own and on other machines, and the example `training_table` holds predictions
//! against measured training steps.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::explain::{self, read};
use crate::support;
use crate::support::{fails, reference, succeeds};
use graphc::prelude::*;
use graphc_compiler::cluster::PRESETS;
use graphc_compiler::compile::prepare_again;
use graphc_compiler::cost::{model_flops_utilization, on_cluster};
use graphc_compiler::null_device::step_seconds;
use graphc_plan::read_plan;
use serde_json::Value;

fn plan(folder: &Path, extra: &[&str]) -> PathBuf {
    explain::plan(folder, "plan.json", extra)
}

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_else(|| panic!("{name} in {value}"))
}

#[test]
fn a_plan_is_judged_on_its_machines_and_on_others() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = plan(folder.path(), &["--mesh", "2x2", "--stages", "2", "--microbatches", "4"]);
    let path = path.to_str().expect("UTF-8");
    let written = read(&std::fs::read_to_string(path).expect("the plan"));
    let own = read(&succeeds(["simulate", path, "--format", "json"]));
    assert_eq!(own["step_seconds"], written["predicted"]["step_seconds"]);
    let same = read(&succeeds(["simulate", path, "--cluster", "cpu", "--format", "json"]));
    assert_eq!(own, same, "the cluster that it was compiled for");
    let fast = read(&succeeds(["simulate", path, "--cluster", "dgx-h100", "--format", "json"]));
    assert_eq!(fast["cluster"], "dgx-h100");
    // A launch is 4 us there and 1 us here, and there is little else to such a small model.
    assert!(number(&fast, "step_seconds") > number(&own, "step_seconds"));
    for value in [&own, &fast] {
        let parts = ["compute_fraction", "communication_fraction", "waiting_fraction"];
        let sum: f64 = parts.iter().map(|part| number(value, part)).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{value}");
        let mfu = number(value, "mfu");
        assert!(mfu > 0.0 && mfu < 1.0, "{value}");
        let stages = value["stages"].as_array().expect("stages");
        assert_eq!(stages.len(), 2);
        for stage in stages {
            assert_eq!(stage["ranks"], 2);
            let busy = number(stage, "busy_seconds");
            assert!(busy > 0.0 && busy <= number(value, "step_seconds"));
        }
    }
    let text = succeeds(["simulate", path]);
    for word in ["step", "compute", "communication", "waiting", "mfu", "stage 1"] {
        assert!(text.contains(word), "`{word}` in {text}");
    }
    assert!(fails(["simulate", path, "--cluster", "toaster"]).contains("toaster"));
}

/// Machines that lose nothing beside computing, where each element type has a peak of its own: utilization is there what it can be at
/// the most.
const IDEAL: &str = "name = \"ideal\"
[device]
kind = \"cuda\"
memory = \"1TiB\"
flops = { f32 = 1e9, bf16 = 8e9, f16 = 4e9 }
bandwidth = 1e25
launch = 0
[[level]]
latency = 0
bandwidth = 1e25
";

/// A network whose weights are of this element type.
fn written_in(dtype: DType) -> String {
    let g = GraphBuilder::new("written");
    let weight = |name: &str, shape: [usize; 2]| {
        let init = Init::Normal { mean: 0.0.into(), std: 0.02.into() };
        g.variable(name, dtype, shape, init)
    };
    let hidden = g.input("x", dtype, [64, 256]).matmul(&weight("a", [256, 512])).relu();
    g.output("y", &hidden.matmul(&weight("b", [512, 128])));
    graphc_ir::text::print_graph(&g.finish().expect("a graph"))
}

#[test]
fn machines_known_by_name_are_listed() {
    let text = succeeds(["clusters"]);
    let listed: Vec<&str> =
        text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(listed, PRESETS);
    let rack = text.lines().find(|line| line.starts_with("gb200-nvl72")).expect("it is listed");
    assert!(
        rack.contains("173 GiB at 8000 GB/s") && rack.contains("740.0 GB/s between 72"),
        "{rack}"
    );
    let values = read(&succeeds(["clusters", "--format", "json"]));
    assert_eq!(values.as_array().map(Vec::len), Some(PRESETS.len()));
    assert_eq!(number(&values[1]["device"], "bandwidth"), 9e11);
    let model = reference("gpt").join("model.onnx").display().to_string();
    let unknown = fails(["compile", &model, "--batch", "8", "--cluster", "abacus"]);
    assert!(unknown.contains("presets are cpu,") && unknown.contains("mi325x"), "{unknown}");
}

/// The utilization that is printed for the machines that a plan is made for, and what it is on all presets.
fn utilizations(path: &str) -> Vec<(String, f64)> {
    let own = number(&read(&succeeds(["simulate", path, "--format", "json"])), "mfu");
    let plan = read_plan(&std::fs::read_to_string(path).expect("the plan")).expect("a plan");
    let decisions = prepare_again(&plan).expect("its graph");
    let on = |name: &str| {
        let moved = on_cluster(&plan, &preset(name).expect("a preset"));
        let seconds = step_seconds(&moved).expect("it runs");
        (
            name.to_owned(),
            model_flops_utilization(&moved, &decisions, seconds).expect("it takes time"),
        )
    };
    [("its own".to_owned(), own)].into_iter().chain(PRESETS.map(on)).collect()
}

#[test]
fn no_model_takes_more_than_all_of_the_peak_of_its_precision() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let cluster = file("ideal.toml", IDEAL);
    let out = folder.path().join("plan.json").display().to_string();
    let export = |name: &str| reference(name).join("model.onnx").display().to_string();
    let train = ["--loss", "cross_entropy", "--optimizer", "adamw"];
    let again = ["--recompute", "full"];
    let pipeline = ["--mesh", "2x2", "--stages", "2", "--microbatches", "2"];
    let halves = ["--precision", "bf16"];
    let mut cases = vec![
        (file("bf16.gir", &written_in(DType::BF16)), vec![]),
        (file("f16.gir", &written_in(DType::F16)), vec![]),
        (export("gpt"), [&train[..], &again, &halves].concat()),
        (export("resnet"), [&train[..], &pipeline, &halves].concat()),
    ];
    for model in ["gpt", "experts", "lstm", "resnet"].map(export) {
        for precision in ["f32", "bf16", "f16"] {
            cases.push((model.clone(), vec!["--precision", precision]));
            cases.push((model.clone(), [&train[..], &["--precision", precision]].concat()));
        }
    }
    for (model, options) in cases {
        let mut args = vec!["compile", &model, "--cluster", &cluster, "-o", &out];
        args.extend(model.ends_with("onnx").then_some(["--batch", "8"]).into_iter().flatten());
        args.extend(&options);
        succeeds(&args);
        for (machines, mfu) in utilizations(&out) {
            assert!(mfu > 0.0 && mfu <= 1.0, "{mfu} of {model} {options:?} on {machines}");
        }
    }
}

#[test]
fn slower_links_make_a_slower_step() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = plan(folder.path(), &["--mesh", "4", "--strategy", "data"]);
    let path = path.to_str().expect("UTF-8");
    let step = |bandwidth: &str| {
        let file = folder.path().join("cluster.toml");
        let text = format!(
            "name = \"x\"\n[device]\nkind = \"cpu\"\nmemory = \"4GiB\"\nflops = {{ f32 = 1e11 }}\n\
             bandwidth = 1e10\nlaunch = 1e-6\n[[level]]\nsize = 0\nlatency = 1e-6\n\
             bandwidth = {bandwidth}\n"
        );
        std::fs::write(&file, text).expect("written");
        let file = file.to_str().expect("UTF-8");
        let args = ["simulate", path, "--cluster", file, "--format", "json"];
        number(&read(&succeeds(args)), "step_seconds")
    };
    let (slow, fast) = (step("1e8"), step("1e10"));
    // Every gradient is sent and received once: 2 (n - 1) / n of its bytes.
    let parameters: f64 = read(&std::fs::read_to_string(path).expect("the plan"))["tensors"]
        .as_array()
        .expect("tensors")
        .iter()
        .filter(|tensor| tensor["kind"] == "parameter")
        .map(|tensor| {
            let shape = tensor["shape"].as_array().expect("a shape");
            shape.iter().filter_map(Value::as_f64).product::<f64>()
        })
        .sum();
    let bytes = 2.0 * 3.0 / 4.0 * 4.0 * parameters;
    let expected = bytes / 1e8 - bytes / 1e10;
    assert!(
        (slow - fast) / expected > 0.95 && (slow - fast) / expected < 1.2,
        "{slow} {fast} {expected}"
    );
}

#[test]
fn a_trace_has_a_row_for_each_stage_and_stream() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = plan(folder.path(), &["--mesh", "4", "--stages", "2", "--microbatches", "2"]);
    let trace = folder.path().join("trace.json");
    let trace_path = trace.to_str().expect("UTF-8");
    succeeds(["simulate", path.to_str().expect("UTF-8"), "--trace", trace_path]);
    let value = read(&std::fs::read_to_string(&trace).expect("a trace"));
    let events = value["traceEvents"].as_array().expect("events");
    let named = |what: &str| -> Vec<&str> {
        let of = events.iter().filter(|event| event["name"] == what);
        of.map(|event| event["args"]["name"].as_str().expect("a name")).collect()
    };
    let processes = named("process_name");
    assert!(processes.iter().any(|name| name.starts_with("stage 0: rank 0")), "{processes:?}");
    assert!(processes.iter().any(|name| name.starts_with("stage 1: rank 2")), "{processes:?}");
    assert!(named("thread_name").contains(&"compute"));
    let kinds = |kind: &str| events.iter().filter(|event| event["cat"] == kind).count();
    assert!(kinds("compute") > 0 && kinds("send") > 0 && kinds("receive") > 0);
    // On one row nothing overlaps.
    let mut ends: std::collections::BTreeMap<(u64, u64), f64> = Default::default();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let row = (event["pid"].as_u64().expect("pid"), event["tid"].as_u64().expect("tid"));
        let (start, end) = (number(event, "ts"), number(event, "ts") + number(event, "dur"));
        let before = ends.insert(row, end).unwrap_or(0.0);
        assert!(start >= before - 1e-6 * before.max(1.0), "{event}");
    }
}

/// Figures of two ranks at once are twice those that each of four has, who share the cores and the memory.
#[test]
fn more_ranks_than_were_measured_take_turns() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = folder.path().join("two.toml");
    let cluster = r#"
        name = "two"
        [device]
        kind = "cpu"
        memory = "8GiB"
        flops = { f32 = 1e11 }
        bandwidth = 1e10
        launch = 1e-6
        shared_by = 2
        [[level]]
        latency = 1e-6
        bandwidth = 4e9
    "#;
    std::fs::write(&file, cluster).expect("a scratch file");
    let file = file.to_str().expect("UTF-8");
    let of = |ranks: &str| {
        let path = folder.path().join("plan.json");
        let model = support::reference("mlp").join("model.onnx");
        let model = model.to_str().expect("UTF-8");
        let to = path.to_str().expect("UTF-8");
        let mesh = ["--batch", "8", "--mesh", ranks, "--strategy", "data", "--cluster", file];
        let output = support::graphc([&["compile", model, "-o", to][..], &mesh].concat());
        assert!(output.status.success());
        let plan = read(&std::fs::read_to_string(path).expect("a plan"));
        (plan, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (two, silent) = of("2");
    let (four, note) = of("4");
    assert!(!silent.contains("at once"), "{silent}");
    assert!(note.contains("are of 2 ranks at once, and 4 share a machine here"), "{note}");
    let device = |plan: &Value, field: &str| plan["cluster"]["device"][field].as_f64();
    assert_eq!(device(&two, "launch"), Some(1e-6));
    assert_eq!((device(&four, "launch"), device(&four, "shared_by")), (Some(2e-6), Some(4.0)));
    let seconds = |plan: &Value| plan["predicted"]["step_seconds"].as_f64().expect("a number");
    assert!(seconds(&four) > seconds(&two), "half the batch at half the speed, and more messages");
}

/// The program of an example. `cargo test` builds examples beside the test binaries.
fn example(name: &str) -> PathBuf {
    let mut path: PathBuf = std::env::current_exe().expect("a path");
    path.pop();
    path.pop();
    path.join("examples").join(name)
}

/// Seconds that were measured and seconds that the example predicts, row by row.
fn predicted(rows: &Path, options: &[&str]) -> Vec<(f64, f64)> {
    let output = Command::new(example("training_table"))
        .arg(rows)
        .arg("--csv")
        .args(options)
        .output()
        .expect("the example starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().expect("a header").split(',').collect();
    assert_eq!(header.last(), Some(&"predicted_s"));
    let column = |wanted: &str| header.iter().position(|&name| name == wanted);
    let milliseconds = column("iteration_ms").map(|at| (at, 1e-3));
    let (measured, unit) =
        milliseconds.or(column("iteration_s").map(|at| (at, 1.0))).expect("a column");
    let cells = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        assert_eq!(cells.len(), header.len());
        let value = |index: usize| cells[index].parse::<f64>().expect("a number");
        (value(measured) * unit, value(header.len() - 1))
    };
    lines.map(cells).collect()
}

fn mean_error(rows: &[(f64, f64)]) -> f64 {
    let errors = rows.iter().map(|(measured, predicted)| (predicted / measured - 1.0).abs());
    errors.sum::<f64>() / rows.len() as f64
}

fn measured() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/measured")
}

#[test]
fn predictions_are_near_measured_steps() {
    for (rows, options, bound) in [
        ("one_node.csv", &["--cluster", "dgx-a100"][..], 0.13),
        ("four_cards.csv", &["--cluster", "dgx-a100-4hdr"], 0.10),
        ("fsdp.csv", &[], 0.10),
    ] {
        let found = predicted(&measured().join(rows), options);
        assert!(found.len() >= 6);
        let mean = mean_error(&found);
        assert!(mean < bound, "{rows}: mean error {mean}: {found:?}");
    }
}

#[test]
fn published_trainings_are_predicted_as_they_were_measured() {
    let output = Command::new(example("training_table"))
        .arg(measured().join("published.csv"))
        .output()
        .expect("the example starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    for (rows, wanted) in [("as they are", 9), ("without scales of blocks", 1)] {
        let of = text.lines().filter(|line| line.starts_with("  ") && line.contains(rows));
        let counts = of.filter_map(|line| line.split_whitespace().next()?.parse::<usize>().ok());
        assert_eq!(counts.sum::<usize>(), wanted, "{rows} in {text}");
    }
    let errors: Vec<f64> = text
        .lines()
        .filter_map(|line| line.split_once("as they are: mean error ")?.1.split(' ').next())
        .map(|error| error.parse().expect("a number"))
        .collect();
    assert_eq!(errors.len(), 3, "{text}");
    assert!(errors.iter().all(|error| *error < 10.0), "{text}");
}

#[test]
fn experts_that_a_row_describes_in_other_words_are_not_guessed() {
    let rows = std::fs::read_to_string(measured().join("published.csv")).expect("a table");
    let header = rows.lines().next().expect("a header");
    let row = rows.lines().find(|row| row.contains("MoE 128 experts")).expect("one has experts");
    for (known, other, told) in [
        ("head width 128", "head width 128; 2 dense layers", "`2 dense layers`"),
        ("experts top-8", "experts some", "`MoE 128 experts some`"),
        ("MoE 128 experts top-8;", "", "ep is 8, and no remark says `MoE N experts`"),
    ] {
        assert!(row.contains(known), "{row}");
        let text = said_of(header, &[row.replace(known, other)]);
        assert!(text.contains(told) && text.contains("cannot be said"), "{text}");
    }
}

/// Returns what is said of a table of published trainings.
fn said_of(header: &str, rows: &[String]) -> String {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("rows.csv");
    std::fs::write(&path, format!("{header}\n{}\n", rows.join("\n"))).expect("a file");
    let output = Command::new(example("training_table")).arg(&path).output();
    String::from_utf8(output.expect("the example starts").stdout).expect("UTF-8")
}

/// Since release 26.04.01 the host of Megatron-Bridge has nothing to do for each expert.
#[test]
fn an_older_release_has_a_host_that_is_busy_with_experts() {
    let rows = std::fs::read_to_string(measured().join("published.csv")).expect("a table");
    let header = rows.lines().next().expect("a header");
    let row = rows.lines().find(|row| row.contains("MoE 128 experts")).expect("one has experts");
    let releases = ["25.11", "26.04", "26.04.01"];
    let table: Vec<String> =
        releases.iter().map(|release| row.replace(" 25.11,", &format!(" {release},"))).collect();
    let text = said_of(header, &table);
    let seconds: Vec<f64> = text
        .lines()
        .filter_map(|line| line.split_once(" s, measured")?.0.split_whitespace().last())
        .map(|seconds| seconds.parse().expect("a number"))
        .collect();
    assert_eq!(seconds.len(), releases.len(), "{text}");
    assert!(seconds[0] == seconds[1] && seconds[1] > 1.1 * seconds[2], "{text}");
}

#[test]
fn graphc_loses_nothing_of_what_a_framework_loses() {
    let rows = measured().join("fsdp.csv");
    let by = |framework: &str| predicted(&rows, &["--framework", framework]);
    for ((_, eager), (_, own)) in by("torch-eager").into_iter().zip(by("graphc")) {
        assert!(own < eager, "{own} of graphc, {eager} of PyTorch");
    }
}

#[test]
fn a_plan_is_judged_as_a_framework_would_run_it() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = plan(folder.path(), &["--mesh", "2", "--cluster", "dgx-h100"]);
    let path = path.to_str().expect("UTF-8");
    let own = read(&succeeds(["simulate", path, "--format", "json"]));
    assert_eq!(own["framework"], "graphc");
    let eager =
        read(&succeeds(["simulate", path, "--framework", "torch-eager", "--format", "json"]));
    assert_eq!(eager["framework"], "torch-eager");
    assert!(number(&eager, "step_seconds") > number(&own, "step_seconds"));
}

/// Measurements of a plan as another engine would write them: every kernel takes twice what the plan says.
fn measured_of(plan: &Value) -> Value {
    let actor = |(number, actor): (usize, &Value)| {
        let (action, does) =
            actor["action"].as_object().map_or(("accumulate", &Value::Null), |action| {
                let (name, does) = action.iter().next().expect("an action has a name");
                (name.as_str(), does)
            });
        let kind = match action {
            "compute" => does["op"]["op"].as_str().expect("an op"),
            "collective" => does["kind"].as_str().expect("a kind"),
            other => other,
        };
        let collective = action == "collective";
        let seconds = if collective { 1e-4 } else { 2.0 * number_of(actor, "seconds") };
        serde_json::json!({
            "actor": number, "name": actor["name"], "kind": kind, "seconds": seconds,
            "flops": number_of(actor, "flops"), "dtype": "f32",
            "bytes": if collective { 4096.0 } else { number_of(actor, "bytes") },
            "ranks": if collective { 2 } else { 1 },
        })
    };
    let actors = plan["programs"][0]["actors"].as_array().expect("actors");
    let actors: Vec<Value> = actors.iter().enumerate().map(actor).collect();
    serde_json::json!({
        "format": "graphc measured", "version": 1, "plan": plan["name"], "device": "cpu", "memory": 1 << 30,
        "engine": "torch", "ranks": 2, "step_seconds": 0.25,
        "programs": [{ "program": 0, "actors": actors }],
    })
}

fn number_of(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_default()
}

#[test]
fn measurements_stand_beside_the_prediction_and_become_a_cluster() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = plan(folder.path(), &["--mesh", "2", "--strategy", "data"]);
    let path = path.to_str().expect("UTF-8");
    let written = read(&std::fs::read_to_string(path).expect("the plan"));
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (measured, cluster) = (file("measured.json"), file("cluster.toml"));
    let store = |value: &Value| std::fs::write(&measured, value.to_string()).expect("writable");
    store(&measured_of(&written));
    let found = read(&succeeds(["simulate", path, "--measured", &measured, "--format", "json"]));
    assert_eq!(found["measured"]["step_seconds"], 0.25);
    let kinds = found["measured"]["kinds"].as_array().expect("kinds");
    let products = kinds.iter().find(|kind| kind["kind"] == "matmul").expect("products");
    let [predicted, twice] = ["predicted_seconds", "measured_seconds"].map(|n| number(products, n));
    assert!(predicted > 0.0 && (twice / predicted - 2.0).abs() < 0.01, "{products}");
    assert_eq!(products["limit"], "peak");
    let shares = ["predicted_share", "measured_share"];
    for kind in kinds.iter().filter(|kind| !kind["predicted_share"].is_null()) {
        let [predicted, measured] = shares.map(|share| number(kind, share));
        assert!(0.0 < predicted && predicted <= 1.0, "{kind}");
        assert!((predicted / measured - 2.0).abs() < 0.01, "half of it was reached: {kind}");
    }
    let chains = kinds.iter().find(|kind| kind["kind"] == "fused").expect("chains");
    assert!(chains["limit"] == "memory" && number(chains, "predicted_share") > 0.0, "{chains}");
    let links = kinds.iter().find(|kind| kind["kind"] == "all_reduce").expect("gradients travel");
    assert!(shares.iter().all(|share| links[share].is_null()), "{links}");
    let text = succeeds(["simulate", path, "--measured", &measured]);
    assert!(text.contains("by torch on cpu") && text.contains("all_reduce"), "{text}");
    // Of a machine that is faster than the cluster says no share is told.
    let mut quick = measured_of(&written);
    for actor in quick["programs"][0]["actors"].as_array_mut().expect("actors") {
        actor["seconds"] = (number_of(actor, "seconds") * 1e-6).into();
    }
    store(&quick);
    let found = read(&succeeds(["simulate", path, "--measured", &measured, "--format", "json"]));
    let products = found["measured"]["kinds"].as_array().expect("kinds").iter();
    let products = products.clone().find(|kind| kind["kind"] == "matmul").expect("products");
    assert!(products["measured_share"].is_null() && products["faster_than_cluster"] == true);
    let text = succeeds(["simulate", path, "--measured", &measured]);
    assert!(text.contains("faster: in less time than cluster"), "{text}");
    store(&measured_of(&written));
    succeeds(["calibrate", "--from", &measured, "-o", &cluster]);
    let there = read(&succeeds(["simulate", path, "--cluster", &cluster, "--format", "json"]));
    assert!(number(&there, "step_seconds") > number(&found, "step_seconds"), "twice as slow");
    let mut other = measured_of(&written);
    other["programs"][0]["actors"][3]["name"] = "teleport".into();
    store(&other);
    let error = fails(["simulate", path, "--measured", &measured]);
    assert!(error.contains("actor 3 of program 0 is not `teleport`"), "{error}");
    store(&serde_json::json!({ "format": "graphc measured" }));
    let error = fails(["calibrate", "--from", &measured]);
    assert!(error.contains("holds no measurements that can be read"), "{error}");
}
