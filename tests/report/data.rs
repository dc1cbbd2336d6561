//! Tests that the data block of a page agrees with the plan, the null device and the other commands.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use graphc::plan::check::VerifiedPlan;
use graphc::plan::read_plan;
use graphc::report::page::{PageOptions, build_page as page_of};
use serde_json::{Value, json};

use super::browser::Browser;
use super::support::{fails, graphc, succeeds};
use super::{block, page, read, reference_plan};

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list"))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn index(value: &Value) -> usize {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no index")) as usize
}

fn path(of: &Path) -> &str {
    of.to_str().expect("UTF-8")
}

/// An event: rank, stream, actor, microbatch, start and end in seconds.
type Event = (u64, u64, String, u64, f64, f64);

/// The events of a page's timeline, unpacked as `events.js` does it.
fn events(timeline: &Value) -> Vec<Event> {
    let tick = number(&timeline["tick_seconds"]);
    let mut all = Vec::new();
    for row in list(&timeline["rows"]) {
        let names = list(&timeline["actors"][index(&row["program"])]);
        for (stream, lane) in list(&row["streams"]).iter().enumerate() {
            for item in list(&lane["items"]) {
                let block = index(&item[0]);
                let departures: BTreeMap<usize, (f64, f64)> = (list(&item[3]).iter())
                    .map(|one| (index(&one[0]), (number(&one[1]), number(&one[2]))))
                    .collect();
                let mut shift = number(&item[2]);
                let actors = list(&lane["blocks"][block]);
                for (place, (actor, base)) in
                    actors.iter().zip(list(&lane["base"][block])).enumerate()
                {
                    let (waited, longer) = departures.get(&place).copied().unwrap_or_default();
                    shift += waited;
                    let start = (number(&base[0]) + shift) * tick;
                    let end = (number(&base[1]) + shift + longer) * tick;
                    shift += longer;
                    let name = names[index(actor)][0].as_str().expect("a name").to_owned();
                    let microbatch = item[1].as_u64().expect("a microbatch");
                    let rank = row["rank"].as_u64().expect("a rank");
                    all.push((rank, stream as u64, name, microbatch, start, end));
                }
            }
        }
    }
    all
}

/// The events of a trace that `simulate` wrote.
fn traced(trace: &Value) -> Vec<Event> {
    let spans = list(&trace["traceEvents"]).iter().filter(|event| event["ph"] == "X");
    let event = |event: &Value| {
        let start = number(&event["ts"]) * 1e-6;
        let whole = |value: &Value| value.as_u64().expect("a number");
        let name = event["name"].as_str().expect("a name").to_owned();
        let end = start + number(&event["dur"]) * 1e-6;
        (
            whole(&event["pid"]),
            whole(&event["tid"]),
            name,
            whole(&event["args"]["microbatch"]),
            start,
            end,
        )
    };
    spans.map(event).collect()
}

fn same_events(folder: &Path, plan: &Path) {
    let trace = folder.join("trace.json");
    succeeds(["simulate", path(plan), "--trace", path(&trace)]);
    let block = block(&page(folder, &[plan], &["--explain", "0"]));
    let timeline = &block["plans"][0]["timeline"];
    let (mut ours, mut theirs) = (events(timeline), traced(&read(&trace)));
    assert!(ours.len() == theirs.len() && ours.len() > 100, "{} and {}", ours.len(), theirs.len());
    let key = |event: &Event| (event.0, event.1, event.3, event.2.clone());
    let by_key = |a: &Event, b: &Event| key(a).cmp(&key(b)).then(a.4.total_cmp(&b.4));
    ours.sort_by(by_key);
    theirs.sort_by(by_key);
    let most = 1e-7 * number(&block["plans"][0]["summary"]["step_seconds"]);
    for (our, their) in ours.iter().zip(&theirs) {
        assert_eq!(key(our), key(their));
        assert!(
            (our.4 - their.4).abs() < most && (our.5 - their.5).abs() < most,
            "{our:?} {their:?}"
        );
    }
}

#[test]
fn the_timeline_has_the_events_of_the_trace() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let pipeline = ["--mesh", "2x2", "--stages", "2", "--microbatches", "4"];
    same_events(folder.path(), &reference_plan(folder.path(), "gpt", "gpt.json", &pipeline));
    // Two streams.
    let overlap = ["--mesh", "4", "--cluster", "dgx-h100", "--strategy", "zero3"];
    same_events(folder.path(), &reference_plan(folder.path(), "gpt", "zero3.json", &overlap));
}

#[test]
fn figures_are_those_of_the_plan_and_of_simulate() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let pipeline = ["--mesh", "2x2", "--stages", "2", "--microbatches", "4"];
    let file = reference_plan(folder.path(), "gpt", "gpt.json", &pipeline);
    let (plan, block) = (read(&file), block(&page(folder.path(), &[&file], &["--explain", "0"])));
    let shown = &block["plans"][0];
    let simulated: Value =
        serde_json::from_str(&succeeds(["simulate", path(&file), "--format", "json"]))
            .expect("JSON");
    let summary = &shown["summary"];
    assert_eq!(summary["step_seconds"], simulated["step_seconds"]);
    assert_eq!(summary["planner"], plan["planner"]);
    assert_eq!(list(&shown["places"]["tensors"]).len(), list(&plan["tensors"]).len());
    // Shares of all ranks are the means of those of classes.
    let step = number(&summary["step_seconds"]);
    for (share, name) in [(0, "compute"), (1, "exposed"), (2, "waiting")] {
        let classes = list(&shown["costs"]["classes"]).iter();
        let sum: f64 = classes.map(|one| number(&one[name]) * number(&one["ranks"])).sum();
        let (ours, theirs) = (sum / step / 4.0, number(&summary["shares"][share]));
        assert!((ours - theirs).abs() < 1e-9, "{name}: {ours} and {theirs}");
    }
    // With one stream the peak is that of `explain`.
    let explained: Value =
        serde_json::from_str(&succeeds(["explain", path(&file), "--memory", "--format", "json"]))
            .expect("JSON");
    for (program, peak) in
        list(&shown["memory"]["programs"]).iter().zip(list(&explained["programs"]))
    {
        let moment = &program["moments"][index(&program["peak"])];
        let bytes: u64 = list(&moment[1]).iter().map(|bytes| bytes.as_u64().expect("bytes")).sum();
        assert_eq!(Some(bytes), peak["bytes"].as_u64());
    }
}

#[test]
fn tensors_are_in_layers_with_what_becomes_of_them() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let asked = ["--mesh", "4", "--recompute", "full", "--pin", "tok.weight=S(0)"];
    let file = reference_plan(folder.path(), "gpt", "gpt.json", &asked);
    let shown = &block(&page(folder.path(), &[&file], &["--explain", "0"]))["plans"][0];
    let tensors = list(&shown["places"]["tensors"]);
    let find = |name: &str| tensors.iter().position(|tensor| tensor[0] == name).expect("a tensor");
    let pinned = &tensors[find("tok.weight")];
    assert_eq!(shown["places"]["layouts"][index(&pinned[3])], "S(0)");
    assert_eq!(index(&pinned[5]) & 1, 1, "{pinned}");
    assert!(tensors.iter().any(|tensor| index(&tensor[5]) & 8 != 0), "something is recomputed");
    let layers = list(&shown["places"]["layers"]);
    let of = |name: &str| {
        let tensor = find(name);
        let has = |layer: &&Value| list(&layer["tensors"]).iter().any(|one| index(one) == tensor);
        layers.iter().find(has).expect("a layer")["name"].clone()
    };
    for name in
        ["blocks.1.up.weight", "grad.blocks.1.up.weight", "state.exp_avg.blocks.1.up.weight"]
    {
        assert_eq!(of(name), "blocks.1", "{name}");
    }
    let members: usize = layers.iter().map(|layer| list(&layer["tensors"]).len()).sum();
    assert_eq!(members, tensors.len(), "each tensor is in one layer");
}

#[test]
fn actors_and_ops_are_named_after_the_model() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let zero = ["--mesh", "4", "--strategy", "zero3", "--recompute", "full"];
    let file = reference_plan(folder.path(), "gpt", "gpt.json", &zero);
    let shown = &block(&page(folder.path(), &[&file], &["--explain", "0"]))["plans"][0];
    let (timeline, places) = (&shown["timeline"], &shown["places"]);
    let actors = list(&list(&timeline["actors"])[0]);
    let named = |name: &str| {
        let row = actors.iter().find(|row| row[0] == name).unwrap_or_else(|| panic!("no {name}"));
        let layer = row[4].as_u64().map(|layer| &list(&places["layers"])[layer as usize]["name"]);
        let pass = timeline["passes"][index(&row[2])].as_str().expect("a pass");
        (
            pass,
            shown["parts"][index(&row[3])].as_str().expect("a part"),
            layer.and_then(Value::as_str),
        )
    };
    let block_1 = Some("blocks.1");
    assert_eq!(named("adam_update blocks.1.up.weight"), ("update", "blocks.1.up", block_1));
    let first = |word: &str| {
        let mut names = actors.iter().filter_map(|row| row[0].as_str());
        names.find(|name| name.starts_with(word)).unwrap_or_else(|| panic!("no {word}"))
    };
    let gathered = named(first("all_gather blocks.1.up.weight"));
    assert_eq!((gathered.1, gathered.2), ("blocks.1.up", block_1));
    assert_eq!(named(first("reduce_scatter grad.")).0, "backward", "gradients travel in it");
    // Each product is that of a weight, in each pass; each actor has a pass.
    for row in actors {
        assert!(row[2].is_u64(), "{row} has no pass");
        let (name, part) = (row[0].as_str().expect("a name"), &shown["parts"][index(&row[3])]);
        let part = part.as_str().expect("a part");
        let layers = ["blocks.0.", "blocks.1.", "head", "tok"];
        let known = layers.iter().any(|layer| part.starts_with(layer));
        assert!(known || !name.starts_with("matmul"), "{name} is of `{part}`");
    }
    // What is read in another layout is brought to it by a boxing of the plan.
    let tensors = list(&places["tensors"]);
    let mut moved = 0;
    for op in list(&shown["graph"]["ops"]) {
        for read in list(&op[3]).iter().filter(|read| tensors[index(&read[0])][3] != read[1]) {
            let brought = |step: &&Value| step[0] == read[0] && step[3] == read[1];
            assert!(list(&places["boxing"]).iter().any(|step| brought(&step)), "{op}: {read}");
            moved += 1;
        }
    }
    assert!(moved > 10, "weights are gathered, {moved} times");
}

#[test]
fn without_time_one_tensor_is_explained_as_it_lies() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = reference_plan(folder.path(), "gpt", "gpt.json", &["--mesh", "4"]);
    let plan = read_plan(&std::fs::read_to_string(&file).expect("a plan")).expect("a plan");
    let plan = VerifiedPlan::check(plan).expect("a sound plan");
    let options = PageOptions { within: Some(Duration::ZERO), ..PageOptions::default() };
    let shown = &page_of(&[("gpt.json", &plan)], &options).expect("a page").plans[0];
    let [why] = shown.why.as_slice() else { panic!("{:?}", shown.why) };
    assert!(why.choices.len() == 1 && why.choices[0].chosen && why.unplanned > 0, "{why:?}");
    assert_eq!(shown.unexplained.len(), 5);
}

#[test]
fn two_plans_explain_the_same_tensors_however_little_time_there_is() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let load = |name: &str, extra: &[&str]| {
        let file = reference_plan(folder.path(), "gpt", name, extra);
        let plan = read_plan(&std::fs::read_to_string(&file).expect("a plan")).expect("a plan");
        VerifiedPlan::check(plan).expect("a sound plan")
    };
    let (one, other) = (load("one.json", &["--mesh", "4"]), load("other.json", &["--mesh", "2x2"]));
    for milliseconds in [0, 50, 400] {
        let within = Some(Duration::from_millis(milliseconds));
        let options = PageOptions { within, ..PageOptions::default() };
        let made = page_of(&[("one", &one), ("other", &other)], &options).expect("a page");
        let names = |at: usize| -> Vec<&str> {
            made.plans[at].why.iter().map(|why| why.tensor.as_str()).collect()
        };
        assert!(!names(0).is_empty());
        assert_eq!(names(0), names(1), "in {milliseconds} ms");
        assert_eq!(made.plans[0].unexplained, made.plans[1].unexplained);
    }
}

#[test]
fn reasons_are_those_of_explain() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = reference_plan(folder.path(), "gpt", "gpt.json", &["--mesh", "4"]);
    let shown = &block(&page(folder.path(), &[&file], &["--explain", "2"]))["plans"][0];
    let why = list(&shown["why"]);
    assert_eq!(why.len(), 2);
    for one in why {
        let tensor = one["tensor"].as_str().expect("a name");
        let text = succeeds(["explain", path(&file), tensor, "--format", "json"]);
        let explained: Value = serde_json::from_str(&text).expect("JSON");
        let mut costs: Vec<f64> = list(&explained["alternatives"])
            .iter()
            .filter_map(|a| a["objective_seconds"].as_f64())
            .collect();
        costs.sort_by(f64::total_cmp);
        let ours: Vec<f64> =
            list(&one["choices"]).iter().filter_map(|c| c["seconds"].as_f64()).collect();
        assert_eq!(ours, costs, "{tensor}");
        assert_eq!(
            list(&one["choices"]).iter().filter(|choice| choice["chosen"] == true).count(),
            1
        );
    }
}

#[test]
fn what_was_asked_for_has_a_price() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let free = reference_plan(folder.path(), "gpt", "free.json", &["--mesh", "4"]);
    let pin = ["--mesh", "4", "--pin", "tok.weight=S(0)"];
    let pinned = reference_plan(folder.path(), "gpt", "pinned.json", &pin);
    let shown = &block(&page(folder.path(), &[&pinned], &["--explain", "1"]))["plans"][0];
    let [asked] = list(&shown["asked"]).as_slice() else { panic!("{}", shown["asked"]) };
    assert_eq!(asked["what"], "the pin tok.weight=S(0)");
    let (without, cheapest) =
        (number(&asked["seconds"]), number(&read(&free)["planner"]["objective_seconds"]));
    assert!((without / cheapest - 1.0).abs() < 1e-6, "{without} and {cheapest}");
    let objective = number(&read(&pinned)["planner"]["objective_seconds"]);
    assert!(objective >= without, "{objective} and {without}");
}

#[test]
fn two_plans_differ_as_diff_says() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let one = reference_plan(folder.path(), "gpt", "one.json", &["--mesh", "4"]);
    let other =
        reference_plan(folder.path(), "gpt", "other.json", &["--mesh", "4", "--strategy", "data"]);
    let block = block(&page(folder.path(), &[&one, &other], &["--explain", "0"]));
    assert_eq!(list(&block["plans"]).len(), 2);
    let text = succeeds(["diff", path(&one), path(&other), "--format", "json"]);
    let diff: Value = serde_json::from_str(&text).expect("JSON");
    let pairs = |of: &str| -> serde_json::Map<String, Value> {
        let pair = |one: &Value| {
            (
                one[0].as_str().expect("a name").to_owned(),
                json!({ "before": one[1], "after": one[2] }),
            )
        };
        list(&block["difference"][of]).iter().map(pair).collect()
    };
    for part in ["inputs", "figures", "collectives", "tensors"] {
        assert_eq!(Value::Object(pairs(part)), diff[part], "{part}");
    }
}

#[test]
fn runs_and_measured_seconds_stand_beside_what_was_predicted() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let plan = reference_plan(folder.path(), "gpt", "plan.json", &["--mesh", "2"]);
    let (metrics, measured) =
        (folder.path().join("losses.jsonl"), folder.path().join("measured.json"));
    std::fs::write(
        &metrics,
        "{\"step\": 0, \"loss\": 4.5, \"samples\": 8, \"seconds\": 2, \"eval\": {\"top1\": 0.25}}\n\
         {\"step\": 1, \"loss\": 3.5, \"samples\": 8, \"seconds\": 0.5}\n",
    )
    .expect("written");
    let actors = read(&plan)["programs"][0]["actors"].as_array().expect("actors").clone();
    let priced = |actor: &&Value| number(&actor["seconds"]) > 0.0;
    let [kernel, other] = [0, 1].map(|n| actors.iter().filter(priced).nth(n).expect("kernels"));
    let collective = |actor: &&Value| actor["action"]["collective"].is_object();
    let reduced = actors.iter().find(collective).expect("a collective");
    let place = |actor: &Value| actors.iter().position(|one| one == actor).expect("it is there");
    let entry = |actor: &Value, kind: &str, seconds: f64| {
        json!({
            "actor": place(actor), "name": actor["name"], "kind": kind, "seconds": seconds, "flops": 1.0, "bytes": 8.0,
            "dtype": "f32", "ranks": 1,
        })
    };
    let mut joint = entry(kernel, "x", 0.25);
    joint["with"] = json!([place(other)]);
    let profile = |actors: &[Value]| {
        json!({
            "format": "graphc measured", "version": 1, "plan": read(&plan)["name"], "device": "cpu", "memory": 1 << 30,
            "engine": "torch", "ranks": 2, "step_seconds": 0.5, "programs": [{ "program": 0, "actors": actors }],
        })
    };
    let file = profile(&[joint, entry(reduced, "all_reduce", 0.0625)]);
    std::fs::write(&measured, file.to_string()).expect("written");
    let extra = ["--explain", "0", "--metrics", path(&metrics), "--measured", path(&measured)];
    let went = &block(&page(folder.path(), &[&plan], &extra))["went"];
    assert_eq!(went["steps"], json!([0, 1]));
    let curves = json!({ "eval top1": [0.25, null], "loss": [4.5, 3.5], "samples/s": [4.0, 16.0] });
    assert_eq!(went["curves"], curves);
    assert_eq!(went["pace"]["measured"], 16.0, "the first step does not count");
    let (predicted, step) =
        (number(&went["pace"]["predicted"]), number(&went["measured"]["step"][0]));
    assert!((predicted * step - 8.0).abs() < 1e-9, "{predicted} samples/s, {step} s a step");
    let measured = &went["measured"];
    assert_eq!(measured["step"][1], 0.5);
    let both = number(&kernel["seconds"]) + number(&other["seconds"]);
    let title = format!("{} and 1 more", kernel["name"].as_str().expect("a name"));
    let near = |found: &Value, right: f64| (number(found) / right - 1.0).abs() < 1e-9;
    let [first, second] = [0, 1].map(|n| measured["actors"][n].clone());
    assert!(first[0] == title && near(&first[1], both) && first[2] == 0.25, "{first}");
    assert!(second[0] == reduced["name"] && second[2] == 0.0625, "{second}");
    let row = |name: &str| {
        list(&measured["rows"]).iter().find(|row| row[0] == name).expect("a row").clone()
    };
    assert!(near(&row("x")[1], both) && row("x")[2] == 0.25, "{}", row("x"));
    let reduced = row("all_reduce");
    assert!(number(&reduced[1]) > 0.0 && number(&reduced[2]) >= 0.0625, "{reduced}");
}

#[test]
fn measured_seconds_stand_beside_those_of_the_same_ranks() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let pipeline = ["--mesh", "2x2", "--stages", "2", "--microbatches", "4"];
    let plan = reference_plan(folder.path(), "gpt", "plan.json", &pipeline);
    let programs = read(&plan)["programs"].as_array().expect("programs").clone();
    let measured = |program: usize, seconds: f64| {
        let actors = list(&programs[program]["actors"]);
        let matmul =
            |actor: &&Value| actor["name"].as_str().is_some_and(|name| name.starts_with("matmul"));
        let place = actors.iter().position(|actor| matmul(&actor)).expect("a product");
        json!({ "program": program, "actors": [{
            "actor": place, "name": actors[place]["name"], "kind": "matmul", "seconds": seconds, "flops": 1.0, "bytes": 8.0,
            "dtype": "f32", "ranks": 1,
        }] })
    };
    let file = folder.path().join("measured.json");
    let profile = json!({
        "format": "graphc measured", "version": 1, "plan": read(&plan)["name"], "device": "cpu", "memory": 1 << 30,
        "engine": "torch", "ranks": 4, "step_seconds": 4.0, "programs": [measured(0, 0.25), measured(1, 0.5)],
    });
    std::fs::write(&file, profile.to_string()).expect("written");
    let page = page(folder.path(), &[&plan], &["--explain", "0", "--measured", path(&file)]);
    let measured = &block(&page)["went"]["measured"];
    // Each actor acts for four microbatches.
    let [first, second] = [0, 1].map(|at| measured["ranks"][at].clone());
    assert_eq!((&first["ranks"], &second["ranks"]), (&json!([[0, 2, 1]]), &json!([[2, 2, 1]])));
    assert_eq!((&first["rows"][0][2], &second["rows"][0][2]), (&json!(1.0), &json!(2.0)));
    for at in [1, 2] {
        let mean = (number(&first["rows"][0][at]) + number(&second["rows"][0][at])) / 2.0;
        assert!((number(&measured["rows"][0][at]) / mean - 1.0).abs() < 1e-9, "{measured}");
    }
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page);
    let cells = "[...document.querySelectorAll('#went tbody tr')].slice(0, 3).map((row) => [row.cells[0], row.cells[2]].map((cell) => cell.textContent).join(': ')).join('; ')";
    let said = browser.text(cells);
    assert_eq!(said, "the step: 4.00 s; outside of actors: 2.50 s; all actors: 1.50 s");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn what_is_wrong_with_files_is_said() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let plan = reference_plan(folder.path(), "mlp", "plan.json", &[]);
    let file = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).expect("written");
        file
    };
    let out = folder.path().join("page.html");
    let with = |option: &str, file: &Path| {
        fails(["report", path(&plan), "-o", path(&out), option, path(file)])
    };
    let error = with("--metrics", &file("m", "{\"step\": 0, \"loss\": 1}\nloss 2\n"));
    assert!(
        error.contains("line 2 of the metrics") && error.contains("one JSON object a step"),
        "{error}"
    );
    let error = with("--metrics", &file("m", "{\"loss\": 1}\n"));
    assert!(error.contains("line 1") && error.contains("no `step`"), "{error}");
    let other = "{\"step\": 0, \"loss\": 1}\n{\"step\": 1, \"loss\": 1, \"samples\": 7}\n";
    let error = with("--metrics", &file("m", other));
    assert!(error.contains("line 2 of the metrics is of another plan"), "{error}");
    assert!(error.contains("of 7 samples, the plan's of 8"), "{error}");
    let error = with("--metrics", &file("m", "{\"step\": 0, \"loss\": 1, \"top5\": 0.5}\n"));
    assert!(error.contains("it has `top5`, and the plan has no such output"), "{error}");
    let error = with("--measured", &file("s", "{\"step_seconds\": 1}"));
    assert!(error.contains("holds no measurements that can be read"), "{error}");
    let mut profile = json!({
        "format": "graphc measured", "version": 1, "plan": "another", "device": "cpu", "memory": 1, "engine": "torch",
        "ranks": 1, "step_seconds": -1, "programs": [],
    });
    let error = with("--measured", &file("s", &profile.to_string()));
    assert!(error.contains("-1 is no number of seconds"), "{error}");
    profile["step_seconds"] = json!(1);
    let error = with("--measured", &file("s", &profile.to_string()));
    assert!(error.contains("of another plan") && error.contains("`another`"), "{error}");
    assert!(!out.exists(), "no page of what is wrong");
    let error = fails(["report", path(&plan), "-o", path(&plan)]);
    assert!(error.contains("would overwrite"), "{error}");
    let many = graphc(["report", path(&plan), path(&plan), path(&plan), "-o", path(&out)]);
    assert_eq!(many.status.code(), Some(2), "three plans");
    let missing = folder.path().join("missing.json");
    assert!(fails(["report", path(&missing), "-o", path(&out)]).contains("missing.json"));
}
