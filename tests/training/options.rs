//! Schedules, clipping and groups from the command line: what metrics say, how a run is resumed, what is refused.

use crate::support;
use crate::support::{fails, graphc, succeeds, training};
use graphc::prelude::*;
use serde_json::Value;

const TRAIN: [&str; 8] =
    ["--loss", "cross_entropy", "--optimizer", "sgd", "--lr", "0.1", "--momentum", "0.9"];

/// Trains the small network; the lines of metrics and the bytes of the weights.
fn train(folder: &tempfile::TempDir, extra: &[&str]) -> (Vec<Value>, Vec<u8>) {
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (metrics, weights) = (path("metrics.jsonl"), path("weights.safetensors"));
    let own = training("mlp", &[&TRAIN[..], extra].concat());
    succeeds(
        [own, ["--metrics", &metrics, "--weights", &weights].map(String::from).to_vec()].concat(),
    );
    let lines = std::fs::read_to_string(&metrics).expect("metrics");
    let lines = support::json_lines(&lines);
    (lines, std::fs::read(&weights).expect("weights"))
}

fn column(lines: &[Value], name: &str) -> Vec<f64> {
    lines.iter().map(|line| line[name].as_f64().expect(name)).collect()
}

#[test]
fn metrics_say_the_rate_and_the_norm() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let schedule = ["--lr-schedule", "linear:6", "--warmup", "2,0.5", "--steps", "6"];
    let (lines, _) = train(&folder, &[&schedule[..], &["--clip-norm", "0.05"]].concat());
    let rates = column(&lines, "lr");
    for (rate, expected) in rates.iter().zip([0.05, 0.075, 0.1, 0.075, 0.05, 0.025]) {
        assert!((rate - expected).abs() < 1e-12, "{rates:?}");
    }
    assert!(column(&lines, "grad_norm").iter().all(|&norm| norm > 0.05), "{lines:?}");
    let (lines, _) = train(&folder, &["--steps", "1"]);
    let keys: Vec<&String> = lines[0].as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["step", "loss"], "who asks for nothing gets nothing more");
}

#[test]
fn metrics_say_the_speed_where_it_is_asked_for() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let (lines, _) = train(&folder, &["--steps", "2", "--measure", "speed"]);
    assert_eq!(column(&lines, "samples"), [64.0, 64.0]);
    assert!(column(&lines, "seconds").iter().all(|&seconds| seconds > 0.0), "{lines:?}");
}

#[test]
fn a_resumed_run_goes_on_in_its_schedule() {
    let options = ["--lr-schedule", "onecycle:8", "--clip-norm", "1", "--no-decay", "*bias"];
    let whole = tempfile::tempdir().expect("a scratch folder");
    let expected = train(&whole, &[&options[..], &["--steps", "8"]].concat());
    let parts = tempfile::tempdir().expect("a scratch folder");
    let save = parts.path().join("checkpoints").display().to_string();
    let saved = [&options[..], &["--save", &save, "--resume", &save]].concat();
    train(&parts, &[&saved[..], &["--steps", "3"]].concat());
    let found = train(&parts, &[&saved[..], &["--steps", "8"]].concat());
    assert!(found == expected, "a resumed run is that which was never interrupted");
    let other = training("mlp", &[&TRAIN[..], &["--resume", &save, "--steps", "9"]].concat());
    let output = graphc(&other);
    let warning = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{warning}");
    for said in ["learning-rate schedule was onecycle:8, and is constant now", "clip norm was 1.0"]
    {
        assert!(warning.contains(said), "{warning}");
    }
}

/// Writes a run file; its path.
fn run_file(folder: &tempfile::TempDir, text: &str) -> String {
    let path = folder.path().join("run.toml");
    std::fs::write(&path, text).expect("a scratch file");
    path.display().to_string()
}

#[test]
fn options_in_a_file_are_those_of_the_command_line() {
    let [said, read] = [0, 1].map(|_| tempfile::tempdir().expect("a scratch folder"));
    let own = ["--steps", "6", "--lr-schedule", "linear:6", "--no-decay", "*bias", "--nesterov"];
    let expected = train(&said, &own);
    let text = "loss = 'cross_entropy'\noptimizer = 'sgd'\nlr = 0.1\nmomentum = 0.9\nsteps = 6\n\
                lr-schedule = 'linear:6'\nno-decay = ['*bias']\nnesterov = true\ncentered = false\n";
    let config = run_file(&read, text);
    let path = |name: &str| read.path().join(name).display().to_string();
    let (metrics, weights) = (path("metrics.jsonl"), path("weights.safetensors"));
    let files = ["--config", &config, "--metrics", &metrics, "--weights", &weights];
    let lines = |extra: &[&str]| {
        succeeds(training("mlp", &[&files[..], extra].concat()));
        support::json_lines(&std::fs::read_to_string(&metrics).expect("metrics"))
    };
    assert_eq!(lines(&[]), expected.0);
    assert!(std::fs::read(&weights).expect("weights") == expected.1, "the same training");
    // What the command line says counts, and what it says otherwise leaves out what contradicts it.
    let rates = column(&lines(&["--lr", "0.2", "--steps=2"]), "lr");
    assert!(rates.len() == 2 && (rates[0] - 0.2).abs() < 1e-12, "{rates:?}");
    assert_eq!(lines(&["--epochs", "1", "--batch", "16"]).len(), 4);
}

#[test]
fn a_file_of_options_that_is_wrong_says_where() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    for (text, said) in [
        ("lr-shedule = 'constant'", "no option of graphc train: did you mean `lr-schedule`?"),
        ("save_every = 1", "did you mean `save-every`?"),
        ("colour = 1", "`graphc train --help` lists them"),
        ("config = 'other.toml'", "`config` is no option"),
        ("lr = [0.1, 0.2]", "`lr` has one value"),
        ("nesterov = 'yes'", "`nesterov` is true or false"),
        ("[lr]\nvalue = 1", "the value of `lr` is a text or a number"),
        ("lr 1", "line 1"),
    ] {
        let config = run_file(&folder, text);
        let error = fails(training("mlp", &["--config", &config]));
        assert!(error.contains(&format!("in run file {config}")), "{error}");
        assert!(error.contains(said), "{text}: {error}");
    }
    let config = run_file(&folder, "lr = -1");
    let output = graphc(training("mlp", &["--steps", "1", "--config", &config]));
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains("'-1' for '--lr <LR>'") && error.contains("note: --lr is set in"),
        "{error}"
    );
}

#[test]
fn what_makes_no_sense_is_refused() {
    let refused = |extra: &[&str], said: &[&str]| {
        let error = fails(training("mlp", &[&["--steps", "1"], extra].concat()));
        assert!(said.iter().all(|said| error.contains(said)), "{extra:?}: {error}");
    };
    let sgd = |extra: &[&'static str]| [&TRAIN[..], extra].concat();
    refused(&sgd(&["--no-decay", "*.bais"]), &["no trained variable has a name like `*.bais`"]);
    for (option, value, said) in [
        ("--clip-norm", "0", "write a number above 0"),
        ("--clip-norm", "-1", "write a number above 0"),
        ("--clip-value", "nan", "write a number above 0"),
        ("--label-smoothing", "1.5", "write a number from 0 to 1"),
    ] {
        let output =
            graphc(training("mlp", &[&sgd(&[option, value])[..], &["--steps", "1"]].concat()));
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(option) && error.contains(said), "{error}");
    }
    refused(
        &sgd(&["--lr-schedule", "cosine:5", "--warmup", "5"]),
        &["it ends at step 5, its warm-up at 5"],
    );
    refused(
        &sgd(&["--alpha", "0.9"]),
        &["--alpha is an option of rmsprop and adadelta, not of sgd"],
    );
    refused(&sgd(&["--decoupled"]), &["--decoupled is an option of nadam and radam, not of sgd"]);
    let damped = ["--nesterov", "--dampening", "0.1"];
    refused(&sgd(&damped), &["--dampening needs --momentum without --nesterov"]);
    refused(&sgd(&["--by-adamw", "*"]), &["--by-adamw is an option of muon, not of sgd"]);
    let muon = ["--loss", "cross_entropy", "--optimizer", "muon", "--lr", "0.01"];
    refused(&[&muon[..], &["--nesterov"]].concat(), &["--nesterov is an option of sgd"]);
    refused(&[&muon[..], &["--by-adamw", "head.*"]].concat(), &["no trained variable", "head.*"]);
    let mse = ["--loss", "mse", "--optimizer", "lamb", "--label-smoothing", "0.1"];
    refused(&mse, &["label smoothing needs", "cross_entropy, not mse"]);
    let folder = tempfile::tempdir().expect("a scratch folder");
    let plan = folder.path().join("plan.json").display().to_string();
    let model = support::reference("mlp").join("model.onnx").display().to_string();
    let compile = ["compile", &model, "--batch", "16", "-o", &plan];
    let error = fails([&compile[..], &["--warmup", "5"]].concat());
    assert!(error.contains("--warmup is an option of training: it needs --optimizer"), "{error}");
    succeeds([&compile[..], &TRAIN, &["--lr-schedule", "cosine:9"]].concat());
    let data = support::reference("mlp").join("data.safetensors").display().to_string();
    let own = ["train", &plan, "--data", &data, "--steps", "1"];
    succeeds([&own[..], &["--lr-schedule", "cosine:9"]].concat());
    for (extra, said) in [
        (["--lr-schedule", "cosine:8"], "compiled with cosine:9"),
        (["--warmup", "3"], "compiled with cosine:9"),
        (["--clip-norm", "1"], "compiled without it"),
        (["--no-decay", "*"], "compiled without this pattern"),
        (["--label-smoothing", "0.1"], "compiled with 0"),
    ] {
        let error = fails([&own[..], &extra].concat());
        assert!(error.contains(said), "{extra:?}: {error}");
    }
}

#[test]
fn muon_updates_matrices_and_adamw_all_else() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("plan.json").display().to_string();
    let model = support::reference("mlp").join("model.onnx").display().to_string();
    let training = ["--loss", "cross_entropy", "--optimizer", "muon", "--lr", "0.01"];
    let compile = |extra: &[&str]| {
        succeeds(
            [&["compile", &model, "--batch", "16", "-o", &path], &training[..], extra].concat(),
        );
        let text = std::fs::read_to_string(&path).expect("a plan");
        graphc::plan::read_plan(&text).expect("its own text")
    };
    let states = |plan: &Plan| -> Vec<String> {
        let names = plan.variable_names().into_iter();
        names.filter(|name| name.starts_with("state.")).map(str::to_owned).collect()
    };
    let found = states(&compile(&[]));
    let is_matrix = |name: &String| name.ends_with("weight");
    assert!(found.iter().any(is_matrix) && !found.iter().all(is_matrix), "{found:?}");
    for name in &found {
        assert_eq!(name.starts_with("state.momentum."), is_matrix(name), "{name}");
    }
    let others = states(&compile(&["--by-adamw", "*", "--adjust-lr", "original"]));
    assert!(others.iter().all(|name| name.starts_with("state.exp_avg")), "{others:?}");
    let data = support::reference("mlp").join("data.safetensors").display().to_string();
    let own = ["train", &path, "--data", &data, "--steps", "1"];
    succeeds([&own[..], &["--by-adamw", "*", "--adjust-lr", "original"]].concat());
    for extra in [["--adjust-lr", "match_rms_adamw"], ["--by-adamw", "*.weight"]] {
        let error = fails([&own[..], &extra].concat());
        assert!(error.contains("compiled without"), "{extra:?}: {error}");
    }
}

#[test]
fn the_command_has_the_numbers_of_composed_optimizers() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("plan.json").display().to_string();
    let model = support::reference("mlp").join("model.onnx").display().to_string();
    let data = support::reference("mlp").join("data.safetensors").display().to_string();
    let checked = |name: &str, given: &[&str], other: &[&str], said: &str| {
        let own = [&["--loss", "cross_entropy", "--optimizer", name], given].concat();
        succeeds([&["compile", &model, "--batch", "16", "-o", &path][..], &own].concat());
        let train = ["train", &path, "--data", &data, "--steps", "1"];
        succeeds([&train[..], &own].concat());
        let error = fails([&train[..], other].concat());
        assert!(error.contains(said), "{name} {other:?}: {error}");
        graphc::plan::read_plan(&std::fs::read_to_string(&path).expect("a plan")).expect("its own")
    };
    let with = |options: ComposedOptions| Some(Optimizer::Composed(options));
    let plan = checked("adamw", &["--amsgrad"], &["--maximize"], "compiled without it");
    let decoupled =
        ComposedOptions { decoupled: true, weight_decay: 0.01, ..ComposedOptions::amsgrad(1e-3) };
    assert_eq!(plan.options.optimizer, with(decoupled));
    let damped = ["--momentum", "0.9", "--dampening", "0.25", "--lr", "0.1"];
    let plan = checked("sgd", &damped, &["--dampening", "0.5"], "compiled with 0.25");
    assert_eq!(plan.options.optimizer, with(ComposedOptions::damped(0.1, 0.9, 0.25)));
    let plan = checked("nadam", &["--decoupled"], &["--momentum-decay", "1"], "with 0.004");
    let nadam = ComposedOptions { decoupled: true, ..ComposedOptions::nadam(2e-3) };
    assert_eq!(plan.options.optimizer, with(nadam));
    let sums = ["--initial-accumulator", "0.5", "--lr-decay", "0.1"];
    let plan = checked("adagrad", &sums, &["--amsgrad"], "compiled without it");
    let rule = StepRule::Adagrad { lr_decay: 0.1, initial: 0.5, eps: 1e-10 };
    assert_eq!(
        plan.options.optimizer,
        with(ComposedOptions { rule, ..ComposedOptions::adagrad(1e-2) })
    );
    let muon = ["--plain-momentum", "--iterations", "3", "--coefficients", "3,-3.5,1.5"];
    let plan = checked("muon", &muon, &["--iterations", "5"], "compiled with 3");
    let Some(Optimizer::Muon(own)) = plan.options.optimizer else { panic!("it is another") };
    assert_eq!((own.nesterov, own.iterations, own.coefficients), (false, 3, [3.0, -3.5, 1.5]));
}

#[test]
fn a_schedule_that_is_none_is_a_wrong_command_line() {
    for extra in [["--lr-schedule", "cosin:5"], ["--lr-schedule", "step:5"], ["--warmup", "0"]] {
        let output = graphc(training("mlp", &[&TRAIN[..], &["--steps", "1"], &extra].concat()));
        assert_eq!(output.status.code(), Some(2), "{extra:?}");
    }
}

/// Returns the standard error of a training.
fn said(extra: &[&str]) -> String {
    let output = graphc(training("mlp", &[&TRAIN[..4], &["--steps", "1"], extra].concat()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stderr).expect("UTF-8")
}

#[test]
fn a_rate_that_is_not_given_is_said() {
    assert!(said(&[]).starts_with("note: no --lr is given: sgd takes its default, 0.001\n"));
    assert!(!said(&["--lr", "0.1"]).contains("default"));
    let help = String::from_utf8(graphc(["train", "--help"]).stdout).expect("UTF-8");
    assert!(
        help.contains("Learning rate; default 0.001, of rmsprop, adagrad and adafactor 0.01"),
        "{help}"
    );
}

#[test]
fn groups_have_their_rates_and_what_is_measured_is_said() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let names = graphc::runtime::data::load_safetensors;
    let trained = |extra: &[&str]| {
        let steps = ["--steps", "3", "--batch", "16"];
        let (lines, _) = train(&folder, &[&steps[..], extra].concat());
        let weights = names(&folder.path().join("weights.safetensors")).expect("weights");
        (lines, weights)
    };
    let (_, plain) = trained(&["--lr-schedule", "constant"]);
    let (first, _) = plain.iter().next().expect("a weight");
    // A factor of 0 leaves this weight as it begins, whatever the others do.
    let (_, still) = trained(&["--lr-schedule", "constant", "--group", &format!("{first}=0")]);
    let (_, begin) = trained(&["--group", "*=0"]);
    assert_eq!(still[first], begin[first]);
    for (name, weight) in &plain {
        assert_ne!(*weight, begin[name], "{name} is trained");
        assert!(name == first || still[name] != begin[name], "{name} is trained beside {first}");
    }
    // The first that fits counts.
    let (_, both) = trained(&["--group", &format!("{first}=1,0"), "--group", "*=0"]);
    assert_ne!(both[first], begin[first]);
    assert!(both.iter().all(|(name, weight)| name == first || *weight == begin[name]));

    // What is named twice is counted once.
    let measured = ["--measure", "top1,top5,top1,perplexity"];
    let (lines, weights) = trained(&measured);
    assert_eq!(weights, plain, "what is measured changes nothing");
    let (top1, top5) = (column(&lines, "top1"), column(&lines, "top5"));
    assert!(top1.iter().zip(&top5).all(|(one, five)| one <= five && *five <= 1.0), "{lines:?}");
    assert!(top1.iter().chain(&top5).all(|share| (share * 16.0).fract() == 0.0), "of 16 labels");
    for (loss, perplexity) in column(&lines, "loss").iter().zip(column(&lines, "perplexity")) {
        assert!((loss.exp() - perplexity).abs() < 1e-6 * perplexity);
    }
    // The first step's share is what an evaluation of the same weights counts.
    let model = support::reference("mlp").join("model.onnx").display().to_string();
    let data = support::reference("mlp").join("data.safetensors").display().to_string();
    let args = ["train", &model, "--data", &data, "--eval-data", &data, "--batch", "64"];
    let line =
        succeeds([&args[..], &TRAIN[..4], &["--lr", "0", "--steps", "1"], &measured].concat());
    let line: Value = serde_json::from_str(&line).expect("JSON");
    for share in ["top1", "top5"] {
        assert_eq!(line[share], line["eval"][share]);
    }
}

#[test]
fn groups_and_measures_that_make_no_sense_are_refused() {
    for text in ["a", "a=", "a=x", "a=-1", "a=1,", "a=1,-2", "a=inf"] {
        let output =
            graphc(training("mlp", &[&TRAIN[..], &["--steps", "1", "--group", text]].concat()));
        assert_eq!(output.status.code(), Some(2), "{text}");
    }
    let own = |extra: &[&str]| fails(training("mlp", &[&["--steps", "1"], extra].concat()));
    let error = own(&[&TRAIN[..], &["--group", "*.bais=1"]].concat());
    assert!(error.contains("no trained variable has a name like `*.bais`"), "{error}");
    let mse = ["--loss", "mse", "--optimizer", "sgd", "--lr", "0.1", "--measure"];
    for measure in ["top1", "perplexity"] {
        let error = own(&[&mse[..], &[measure]].concat());
        assert!(error.contains("needs --loss cross_entropy or nll"), "{error}");
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let plan = folder.path().join("plan.json").display().to_string();
    let model = support::reference("mlp").join("model.onnx").display().to_string();
    succeeds([&["compile", &model, "--batch", "16", "-o", &plan][..], &TRAIN].concat());
    let data = support::reference("mlp").join("data.safetensors").display().to_string();
    let own = ["train", &plan, "--data", &data, "--steps", "1"];
    for (extra, said) in
        [(["--group", "*=2"], "without this group"), (["--measure", "top5"], "without counting it")]
    {
        let error = fails([&own[..], &extra].concat());
        assert!(error.contains(said), "{extra:?}: {error}");
    }
    // The exponential of a loss is nothing that a plan counts.
    assert!(succeeds([&own[..], &["--measure", "perplexity"]].concat()).contains("perplexity"));
}
