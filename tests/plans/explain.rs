//! `graphc explain`, `graphc diff`, `graphc advise` and `compile --compare`: plans that say why.

use std::path::{Path, PathBuf};

use crate::support::{fails, graphc, reference, succeeds};
use serde_json::Value;

/// A plan of the reference gpt, in a folder.
pub fn plan(folder: &Path, name: &str, extra: &[&str]) -> PathBuf {
    let path = folder.join(name);
    let model = reference("gpt").join("model.onnx");
    let mut args = vec!["compile", model.to_str().expect("UTF-8"), "--batch", "8"];
    args.extend(["--loss", "cross_entropy", "--optimizer", "adamw", "-o"]);
    args.push(path.to_str().expect("UTF-8"));
    args.extend(extra);
    succeeds(args);
    path
}

pub fn read(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn the_chosen_layout_is_the_cheapest_alternative() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let plan = plan(folder.path(), "plan.json", &["--mesh", "4"]);
    let plan = plan.to_str().expect("UTF-8");
    for tensor in ["blocks.0.attn.qkv.weight", "tok.weight", "embedding"] {
        let value = read(&succeeds(["explain", plan, tensor, "--format", "json"]));
        let objective = value["objective_seconds"].as_f64().expect("a number");
        let all = value["alternatives"].as_array().expect("a list");
        assert!(all.len() > 1, "{value}");
        let costs = all.iter().filter_map(|one| one["objective_seconds"].as_f64());
        let least = costs.fold(f64::INFINITY, f64::min);
        assert!((least / objective - 1.0).abs() < 1e-6, "{tensor}: {least} and {objective}");
    }
    let text = succeeds(["explain", plan, "tok.weight"]);
    assert!(text.contains("\n* ") && text.contains('%'), "{text}");
}

#[test]
fn a_gradient_that_the_table_leaves_out_is_explained_by_its_register() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = plan(folder.path(), "plan.json", &["--mesh", "4"]);
    let plan = read(&std::fs::read_to_string(&path).expect("a plan"));
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let listed: Vec<Value> = list(&plan["tensors"]).iter().map(|one| one["name"].clone()).collect();
    let program = &plan["programs"][0];
    let is_left_out = |actor: &Value| {
        let tensor = actor["name"].as_str()?.split_once(' ')?.1.to_owned();
        let alone = list(&actor["outputs"]).len() == 1 && actor["action"].get("compute").is_some();
        (alone && !listed.contains(&Value::from(tensor.as_str()))).then_some(tensor)
    };
    let actors = list(&program["actors"]);
    let found = actors.iter().find_map(|actor| Some((is_left_out(actor)?, &actor["outputs"][0])));
    let (tensor, register) = found.expect("a gradient on the way to that of a variable");
    let layout = &program["registers"][register.as_u64().expect("an index") as usize]["layout"];
    let layout = &plan["layouts"][layout.as_u64().expect("an index") as usize];
    let sbp: Vec<String> =
        list(&layout["sbp"]).iter().map(|one| one.as_str().expect("an SBP").to_owned()).collect();
    let text = succeeds(["explain", path.to_str().expect("UTF-8"), &tensor]);
    let begin = format!("`{tensor}` is ({}) in a plan of ", sbp.join(", "));
    assert!(text.starts_with(&begin) && text.contains("\n* "), "{begin}: {text}");
}

#[test]
fn what_waits_for_the_backward_pass_is_explained() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    for (name, extra) in [
        ("zero3.json", ["--mesh", "2", "--strategy", "zero3"].as_slice()),
        ("short.json", &["--mesh", "2", "--memory", "585KiB"]),
    ] {
        let plan = plan(folder.path(), name, extra);
        let plan = plan.to_str().expect("UTF-8");
        let tensor = "blocks.0.attn.qkv.weight";
        let text = succeeds(["explain", plan, tensor]);
        let backward = text.split_once("for the backward pass it is ").expect("a choice").1;
        for word in ["\n* ", "again from ", "kept as "] {
            assert!(backward.contains(word), "{word}: {text}");
        }
        // What is read as it was made is kept: its line says so too.
        let text = succeeds(["explain", plan, "layer_norm"]);
        let kept = text.split_once("for the backward pass it is kept as ").expect("kept").1;
        assert!(!kept.contains("* again from "), "{text}");
        let value = read(&succeeds(["explain", plan, tensor, "--format", "json"]));
        let all = value["backward"]["alternatives"].as_array().expect("a list");
        let known = |one: &&Value| one["sbp"] == value["backward"]["sbp"];
        assert!(all.len() > 1 && all.iter().any(|one| known(&one)), "{value}");
    }
    let free = plan(folder.path(), "free.json", &["--mesh", "2"]);
    let free = free.to_str().expect("UTF-8");
    let text = succeeds(["explain", free, "blocks.0.attn.qkv.weight"]);
    assert!(text.contains("for the backward pass it is kept as B\n"), "{text}");
    // Its gradient is a sum over tokens, which need no embedding.
    let text = succeeds(["explain", free, "tok.weight"]);
    assert!(!text.contains("backward pass"), "{text}");
}

/// The first tensor that an op of the forward pass makes and that waits so for the backward pass, as JSON and as text.
fn first_that_waits(plan: &str, way: &str) -> (Value, String) {
    let tensors = read(&std::fs::read_to_string(plan).expect("a plan"))["tensors"].clone();
    let activation = |one: &&Value| one["kind"] == "activation";
    for tensor in tensors.as_array().expect("a list").iter().filter(activation) {
        let name = tensor["name"].as_str().expect("text");
        let value = read(&succeeds(["explain", plan, name, "--format", "json"]));
        if value["waiting"]["way"] == way {
            return (value["waiting"].clone(), succeeds(["explain", plan, name]));
        }
    }
    panic!("nothing is {way}");
}

/// Returns what another way takes more than that of the plan: seconds, and bytes at the peak.
fn more(waiting: &Value, way: &str) -> [f64; 2] {
    let others = waiting["others"].as_array().expect("a list");
    let other = others.iter().find(|one| one["way"] == way).unwrap_or_else(|| panic!("{waiting}"));
    ["seconds", "peak_bytes"].map(|figure| {
        let number = |one: &Value| one[figure].as_f64().expect("a number");
        number(other) - number(waiting)
    })
}

#[test]
fn what_is_kept_could_be_recomputed_and_the_other_way_round() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let of = |recompute: &str| {
        let extra = ["--mesh", "2", "--strategy", "data", "--recompute", recompute];
        let plan = plan(folder.path(), &format!("{recompute}.json"), &extra);
        plan.to_str().expect("UTF-8").to_owned()
    };
    let (waiting, text) = first_that_waits(&of("full"), "recomputed");
    assert_eq!(waiting["kept_as"], Value::Null);
    let [seconds, bytes] = more(&waiting, "kept");
    assert!(seconds < 0.0 && bytes >= 0.0, "{waiting}");
    assert!(text.contains("for the backward pass it is recomputed\n"), "{text}");
    assert!(text.contains("  kept as S(0) ") && text.contains(" about -"), "{text}");
    let (waiting, text) = first_that_waits(&of("none"), "kept");
    assert_eq!(waiting["seconds"], 0.0, "{waiting}");
    let [seconds, bytes] = more(&waiting, "recomputed");
    assert!(seconds > 0.0 && bytes < 0.0, "{waiting}");
    assert!(text.contains("for the backward pass it is kept as S(0)\n"), "{text}");
    assert!(text.contains("  recomputed ") && text.contains(" at the peak of stage 0"), "{text}");
}

#[test]
fn what_is_kept_whole_could_be_sliced() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let plan = plan(folder.path(), "plan.json", &["--mesh", "4", "--strategy", "megatron"]);
    let plan = plan.to_str().expect("UTF-8");
    let value = read(&succeeds(["explain", plan, "layer_norm_1", "--format", "json"]));
    let waiting = &value["waiting"];
    assert_eq!((&waiting["way"], &waiting["kept_as"][0]), (&"kept".into(), &"B".into()), "{value}");
    let [seconds, bytes] = more(waiting, "sliced");
    assert!(seconds > 0.0 && bytes < 0.0, "{waiting}");
    let text = succeeds(["explain", plan, "layer_norm_1"]);
    assert!(text.contains("  sliced to S(0) and gathered again  about +"), "{text}");
}

#[test]
fn a_pin_to_an_alternative_costs_what_explain_says() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let free = plan(folder.path(), "free.json", &["--mesh", "4"]);
    let tensor = "tok.weight";
    let args = ["explain", free.to_str().expect("UTF-8"), tensor, "--format", "json"];
    let value = read(&succeeds(args));
    for alternative in value["alternatives"].as_array().expect("a list") {
        let Some(seconds) = alternative["objective_seconds"].as_f64() else { continue };
        let sbp = alternative["sbp"].as_array().expect("an SBP")[0].as_str().expect("text");
        let pin = format!("{tensor}={sbp}");
        let pinned = plan(folder.path(), "pinned.json", &["--mesh", "4", "--pin", &pin]);
        let pinned = read(&std::fs::read_to_string(pinned).expect("a plan"));
        let cost = pinned["planner"]["objective_seconds"].as_f64().expect("a number");
        assert!((cost / seconds - 1.0).abs() < 1e-6, "{pin}: {cost} instead of {seconds}");
    }
}

#[test]
fn memory_is_explained_to_the_last_byte_of_the_peak() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = plan(folder.path(), "plan.json", &["--mesh", "2", "--microbatches", "2"]);
    let value =
        read(&succeeds(["explain", path.to_str().expect("UTF-8"), "--memory", "--format", "json"]));
    let plan = read(&std::fs::read_to_string(&path).expect("a plan"));
    for (peak, program) in value["programs"]
        .as_array()
        .expect("a list")
        .iter()
        .zip(plan["programs"].as_array().expect("a list"))
    {
        let bytes = peak["bytes"].as_u64().expect("a number");
        let kinds = peak["kinds"].as_object().expect("a map");
        let sum: u64 = kinds.values().map(|bytes| bytes.as_u64().expect("a number")).sum();
        assert_eq!(sum, bytes);
        assert!(kinds.contains_key("parameter") && kinds.contains_key("state"), "{peak}");
        assert!(bytes <= program["arena_bytes"].as_u64().expect("a number"), "{peak}");
    }
}

#[test]
fn a_plan_differs_from_another_and_not_from_itself() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let one = plan(folder.path(), "one.json", &["--mesh", "4"]);
    let other = plan(folder.path(), "other.json", &["--mesh", "4", "--strategy", "data"]);
    let [one, other] = [&one, &other].map(|path| path.to_str().expect("UTF-8"));
    assert!(succeeds(["diff", one, one]).contains("0 tensors lie in other ways"));
    let text = succeeds(["diff", one, other]);
    assert!(text.contains("strategy: \"auto\" -> \"data\""), "{text}");
    assert!(text.contains("blocks.0.attn.qkv.weight: ("), "{text}");
    let value = read(&succeeds(["diff", one, other, "--format", "json"]));
    let objective = &value["figures"]["objective"];
    assert!(objective["after"].as_f64() > objective["before"].as_f64(), "{objective}");
}

#[test]
fn strategies_stand_in_one_table() {
    let model = reference("gpt").join("model.onnx");
    let args = ["compile", model.to_str().expect("UTF-8"), "--batch", "8", "--mesh", "4"];
    let training = ["--loss", "cross_entropy", "--optimizer", "adamw"];
    let compare = ["--compare", "data,zero3,megatron,auto"];
    let text = succeeds([&args[..], &training, &compare].concat());
    for strategy in ["data ", "zero3 ", "megatron ", "auto ", "optimal"] {
        assert!(text.contains(strategy), "{text}");
    }
    // Too little memory for any of them.
    let error = fails([&args[..], &training, &compare, &["--memory", "64KiB"]].concat());
    assert!(error.contains("no strategy has a plan") && error.contains("too little"), "{error}");
}

/// Returns the arguments of `graphc advise` for a reference.
fn advise(model: &str, extra: &[&str]) -> Vec<String> {
    let model = reference(model).join("model.onnx");
    let args = ["advise", model.to_str().expect("UTF-8"), "--batch", "8"];
    let training = ["--loss", "cross_entropy", "--optimizer", "adamw"];
    [&args[..], &training, extra].concat().into_iter().map(str::to_owned).collect()
}

#[test]
fn less_effort_gives_a_plan_that_says_its_gap() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let objective = |name: &str, extra: &[&str]| {
        let open = ["--mesh", "4", "--stages", "auto", "--microbatches", "auto"];
        let path = plan(folder.path(), name, &[&open[..], extra].concat());
        let plan = read(&std::fs::read_to_string(path).expect("a plan"));
        assert_eq!(plan["options"].get("effort").is_some(), name == "less.json");
        plan["predicted"]["step_seconds"].as_f64().expect("a number")
    };
    let (all, less) = (objective("all.json", &[]), objective("less.json", &["--effort", "1"]));
    assert_eq!(objective("whole.json", &["--effort", "100"]), all);
    assert!(less >= all, "{less} {all}");
    let model = reference("gpt").join("model.onnx");
    let args = ["compile", model.to_str().expect("UTF-8"), "--batch", "8", "--mesh", "2"];
    let text = succeeds([&args[..], &["--effort", "5"]].concat());
    assert!(text.contains(", with 5 % of the work\n"), "{text}");
    let output = graphc([&args[..], &["--effort", "101"]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("write a number of percent from 1 to 100"), "{error}");
}

#[test]
fn advice_ranks_meshes_by_the_step_of_their_plans() {
    let value =
        read(&succeeds(advise("gpt", &["--ranks", "4", "--plans", "2", "--format", "json"])));
    let ways = value["ways"].as_array().expect("a list");
    let planned: Vec<&Value> = ways.iter().filter(|way| way["planned"] == true).collect();
    assert!(ways.len() > 2 && planned.len() == 2, "{value}");
    let seconds = |way: &Value| way["step_seconds"].as_f64().expect("a number");
    assert!(seconds(planned[0]) <= seconds(planned[1]), "{value}");
    let mfu = ways.iter().map(|way| way["mfu"].as_f64().expect("a number"));
    assert!(mfu.clone().all(|mfu| mfu > 0.0 && mfu <= 1.0), "{value}");
    // The same plan as by its mesh, stages and microbatches.
    let best = planned[0];
    let mesh: Vec<String> =
        best["mesh"].as_array().expect("a list").iter().map(|n| n.to_string()).collect();
    let [stages, microbatches] = ["stages", "microbatches"].map(|name| best[name].to_string());
    let model = reference("gpt").join("model.onnx");
    let args = ["compile", model.to_str().expect("UTF-8"), "--batch", "8", "--format", "json"];
    let training = ["--loss", "cross_entropy", "--optimizer", "adamw", "--recompute", "auto"];
    let mesh = mesh.join("x");
    let chosen = ["--mesh", &mesh, "--stages", &stages, "--microbatches", &microbatches];
    let plan = read(&succeeds([&args[..], &training, &chosen].concat()));
    if stages == "1" {
        assert_eq!(plan["predicted"]["step_seconds"], best["step_seconds"]);
    }
    let text = succeeds(advise("gpt", &["--ranks", "4", "--plans", "1", "--ways", "3"]));
    assert!(text.contains("by the prices of its layers alone") && text.contains('~'), "{text}");
}

#[test]
fn the_fewest_ranks_are_told_with_what_is_proven() {
    let args = advise("mlp", &["--will-it-fit", "--memory", "40KiB", "--format", "json"]);
    let value = read(&succeeds(args));
    let [ranks, proven] = ["ranks", "proven_ranks"].map(|name| value[name].as_u64());
    assert!(proven > Some(1) && ranks >= proven, "{value}");
    assert!(value["variables_bytes"].as_u64() > Some(40 << 10), "{value}");
    let text = succeeds(advise("mlp", &["--will-it-fit", "--memory", "40KiB"]));
    assert!(text.contains("proven: not on fewer than"), "{text}");
    let text = succeeds(advise("mlp", &["--will-it-fit"]));
    assert!(text.contains("fits on 1 rank as 1,") && text.contains("tried: 1 rank\n"), "{text}");
}

#[test]
fn advice_that_cannot_be_given_is_refused() {
    let error = fails(advise("mlp", &["--will-it-fit", "--memory", "64B"]));
    assert!(error.contains("no number of ranks that was tried has a plan"), "{error}");
    let error = fails(advise("mlp", &["--ranks", "2", "--memory", "1KiB"]));
    assert!(error.contains("no advice on"), "{error}");
    let wrong: [(&[&str], &str); 4] = [
        (&["--ranks", "2", "--mesh", "2"], "cannot be used with"),
        (&["--ranks", "0"], "write a number of ranks from 1 to"),
        (&["--ranks", "2", "--will-it-fit"], "cannot be used with"),
        (&[], "<--ranks <N>|--will-it-fit> <MODEL>"),
    ];
    for (extra, said) in wrong {
        let output = graphc(advise("mlp", extra));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains(said), "{error}");
    }
}

#[test]
fn what_is_not_there_is_said() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = plan(folder.path(), "plan.json", &["--mesh", "2"]);
    let path = path.to_str().expect("UTF-8");
    let error = fails(["explain", path, "no such tensor"]);
    assert!(error.contains("no tensor `no such tensor`: `graphc inspect` lists them"), "{error}");
    let error = fails(["explain", path, "blocks.0.attn.qvk.weight"]);
    assert!(error.contains("did you mean `blocks.0.attn.qkv.weight`?"), "{error}");
    assert!(fails(["explain", path, "qkv"]).contains("blocks.0.attn.qkv.weight"));
    let missing = folder.path().join("missing.json");
    let error = fails(["diff", path, missing.to_str().expect("UTF-8")]);
    assert!(error.contains("missing.json"), "{error}");
}
