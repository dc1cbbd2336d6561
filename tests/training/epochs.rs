//! Training over epochs with evaluations on the way, and `graphc eval`.

use std::process::{Command, Output, Stdio};

use crate::support;
use crate::support::{Scratch, fails, graphc, reference, succeeds};
use graphc::runtime::HostTensor;
use graphc::runtime::data::{load_safetensors, save_safetensors};
use serde_json::Value;

const SGD: [&str; 8] =
    ["--loss", "cross_entropy", "--optimizer", "sgd", "--batch", "16", "--lr", "0.05"];

impl Scratch {
    /// The lines of a metrics file.
    fn lines(&self, name: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path(name)).expect("metrics");
        support::json_lines(&text)
    }
}

fn of_mlp(file: &str) -> String {
    reference("mlp").join(file).display().to_string()
}

fn train(extra: &[&str]) -> Vec<String> {
    support::training("mlp", &[&SGD, extra].concat())
}

/// `graphc eval` of the reference's model on its data.
fn eval(model: &str, extra: &[&str]) -> Vec<String> {
    let data = of_mlp("data.safetensors");
    let own = ["eval", model, "--data", &data, "--format", "json"];
    own.iter().chain(extra).map(ToString::to_string).collect()
}

fn scores(printed: &str) -> Value {
    serde_json::from_str(printed).expect("JSON")
}

fn close(a: &Value, b: &Value) {
    for name in ["loss", "top1", "top5", "samples"] {
        let [a, b] = [a, b].map(|scores| scores[name].as_f64().expect("a number"));
        assert!((a - b).abs() < 1e-5, "{name}: {a} is not {b}");
    }
}

/// Returns the share of the labels that have the highest score, by the scores of a model.
fn top1_by_hand(files: &Scratch) -> f64 {
    let (model, data) = (of_mlp("model.onnx"), of_mlp("data.safetensors"));
    let outputs = files.path("outputs");
    succeeds(["run", &model, "--inputs", &data, "--outputs", &outputs]);
    let outputs = load_safetensors(outputs.as_ref()).expect("outputs");
    let labels = load_safetensors(data.as_ref()).expect("data")["labels"].to_i64().expect("i64");
    let logits = outputs.values().next().expect("an output").to_f32().expect("f32");
    let right =
        |(row, label): (&[f32], &i64)| row.iter().all(|&score| score <= row[*label as usize]);
    let hits = logits.chunks(10).zip(&labels).filter(|&pair| right(pair)).count();
    hits as f64 / labels.len() as f64
}

#[test]
fn an_evaluation_counts_every_sample_once_on_every_mesh() {
    let (files, model) = (Scratch::new(), of_mlp("model.onnx"));
    let loss = ["--loss", "cross_entropy", "--batch"];
    let whole = scores(&succeeds(eval(&model, &[&loss[..], &["64"]].concat())));
    assert_eq!(whole["samples"], 64);
    assert!((whole["top1"].as_f64().expect("a share") - top1_by_hand(&files)).abs() < 1e-9);
    // Batches of 10 leave 4 samples, and one of 100 has 36 too many.
    for extra in [&["10"][..], &["100"], &["16", "--mesh", "2x2"], &["6", "--mesh", "3"]] {
        close(&whole, &scores(&succeeds(eval(&model, &[&loss[..], extra].concat()))));
    }
    let plan = files.path("plan.json");
    succeeds([&["compile", &model, "-o", &plan][..], &SGD, &["--mesh", "2"]].concat());
    close(&whole, &scores(&succeeds(eval(&plan, &[]))));
    let processes = ["launch", "--standalone", "--nproc-per-node", "2", "--"];
    let command = [env!("CARGO_BIN_EXE_graphc").to_owned()].into_iter();
    let command = command.chain(eval(&model, &[&loss[..], &["10"]].concat()));
    let launched = processes.map(String::from).into_iter().chain(command);
    close(&whole, &scores(&succeeds(launched)));
}

/// There is no loss of nothing.
#[test]
fn labels_that_are_all_ignored_are_no_evaluation() {
    let (files, model) = (Scratch::new(), of_mlp("model.onnx"));
    let mut data = load_safetensors(of_mlp("data.safetensors").as_ref()).expect("data");
    let rows = data["labels"].shape()[0];
    let ignored = HostTensor::from_i64([rows], &vec![-100; rows]).expect("as many");
    data.insert("labels".into(), ignored);
    let path = files.path("ignored.safetensors");
    save_safetensors(path.as_ref(), &data).expect("written");
    let error =
        fails(["eval", &model, "--data", &path, "--batch", "16", "--loss", "cross_entropy"]);
    assert!(error.contains("all are ignored"), "{error}");
}

#[test]
fn an_evaluation_against_targets_counts_every_sample_once_too() {
    let model = reference("mlp_mse").join("model.onnx").display().to_string();
    let data = reference("mlp_mse").join("data.safetensors").display().to_string();
    let eval = |loss: &str, extra: &[&str]| -> Vec<String> {
        let args = ["eval", &model, "--data", &data, "--loss", loss, "--format", "json"];
        args.iter().chain(extra).map(ToString::to_string).collect()
    };
    let rows = load_safetensors(data.as_ref()).expect("data")["target"].shape()[0];
    let found = |loss: &str, extra: &[&str]| {
        let found = scores(&succeeds(eval(loss, extra)));
        assert_eq!(found["samples"], rows);
        found["loss"].as_f64().expect("a number")
    };
    let [all, ragged, more] = [rows, rows / 2 + 1, rows + 5].map(|batch| batch.to_string());
    for loss in ["mse", "bce", "huber", "l1"] {
        let whole = found(loss, &["--batch", &all]);
        for extra in [
            &["--batch", &ragged][..],
            &["--batch", &more],
            &["--batch", "7", "--mesh", "2x2"],
            &["--batch", "6", "--mesh", "3", "--microbatches", "2"],
        ] {
            let found = found(loss, extra);
            assert!((whole - found).abs() < 1e-6 * whole.abs(), "{loss} {extra:?}: {found}");
        }
    }
    // What it trains on, and what comes out of training, is the mean of the whole batch as ever.
    let trained = ["train", &model, "--data", &data, "--loss", "mse", "--optimizer", "sgd"];
    let lr = ["--lr", "0", "--steps", "1", "--batch", &all, "--eval-data", &data];
    let line = scores(&succeeds([&trained[..], &lr].concat()));
    let [loss, of_eval] = [&line["loss"], &line["eval"]["loss"]].map(|l| l.as_f64().expect("one"));
    assert!((loss - of_eval).abs() < 1e-5 * loss, "{line}");
}

#[test]
fn a_sum_that_cannot_be_filled_up_is_refused_with_a_batch_that_divides() {
    let model = reference("mlp_mse").join("model.onnx").display().to_string();
    let data = reference("mlp_mse").join("data.safetensors").display().to_string();
    let rows = load_safetensors(data.as_ref()).expect("data")["target"].shape()[0];
    let batch = (rows / 2 + 1).to_string();
    let error = fails(["eval", &model, "--data", &data, "--loss", "sum", "--batch", &batch]);
    assert!(error.contains("divides them") && error.contains("sum"), "{error}");
}

#[test]
fn epochs_are_shuffled_alike_on_every_mesh_and_resumed_in_their_middle() {
    let files = Scratch::new();
    let data = of_mlp("data.safetensors");
    let run = |metrics: &str, extra: &[&str]| {
        let metrics = files.path(metrics);
        let own = ["--shuffle", "--metrics", &metrics, "--eval-data", &data];
        succeeds(train(&[&own[..], extra].concat()));
    };
    run("one", &["--epochs", "3"]);
    run("two", &["--epochs", "3", "--mesh", "2"]);
    let (one, two) = (files.lines("one"), files.lines("two"));
    assert_eq!((one.len(), two.len()), (12, 12), "four steps an epoch");
    for (step, (one, two)) in one.iter().zip(&two).enumerate() {
        assert_eq!(one["epoch"], step / 4);
        let [a, b] = [one, two].map(|line| line["loss"].as_f64().expect("a number"));
        assert!((a - b).abs() < 1e-5, "step {step}: {a} is not {b}");
        assert_eq!(one["eval"].is_object(), step % 4 == 3, "after each epoch");
    }
    let save = files.path("save");
    run("resumed", &["--steps", "6", "--save", &save]);
    run("resumed", &["--epochs", "3", "--resume", &save]);
    let resumed = files.lines("resumed");
    // The first of the two has evaluated at its end, too.
    let losses =
        |lines: &[Value]| lines.iter().map(|line| line["loss"].clone()).collect::<Vec<_>>();
    assert_eq!(losses(&resumed), losses(&one));
    assert_eq!(resumed[11]["eval"], one[11]["eval"]);
}

#[test]
fn the_best_checkpoint_is_kept_beside_the_newest() {
    let files = Scratch::new();
    let (data, save, best) =
        (of_mlp("data.safetensors"), files.path("save"), files.path("save/best"));
    // At such a rate the loss goes up and down.
    let own = ["--lr", "1.5", "--save", &save, "--eval-data", &data, "--eval-every", "1"];
    let args = support::training("mlp", &[&SGD[..6], &own, &["--keep-best", "loss"]].concat());
    let run = |steps: &str| {
        let output = graphc(args.iter().map(String::as_str).chain([
            "--resume",
            &save,
            "--steps",
            steps,
            "--metrics",
            &files.path("metrics"),
        ]));
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(output.status.success(), "{said}");
        said
    };
    assert!(run("2").contains("note: evaluation after 2 steps: loss "), "each is told");
    run("4");
    let losses: Vec<f64> = files
        .lines("metrics")
        .iter()
        .map(|line| line["eval"]["loss"].as_f64().expect("one"))
        .collect();
    let lowest = losses.iter().copied().fold(f64::INFINITY, f64::min);
    let step = 1 + losses.iter().position(|&loss| loss == lowest).expect("the lowest");
    assert!(step < losses.len(), "the last is not the best: {losses:?}");
    let record = std::fs::read_to_string(files.path("save/best/best.json")).expect("a record");
    assert_eq!(
        scores(&record),
        serde_json::json!({ "metric": "loss", "value": lowest, "step": step })
    );
    let kept = eval(
        &of_mlp("model.onnx"),
        &[&SGD[..2], &["--batch", "16", "--weights-from", &best]].concat(),
    );
    let found = scores(&succeeds(kept))["loss"].as_f64().expect("a number");
    assert!((found - lowest).abs() < 1e-5, "{found} is not {lowest}");
    let perplexity =
        [&SGD[..], &["--steps", "1", "--save", &files.path("other"), "--eval-data", &data]];
    let error = fails(support::training(
        "mlp",
        &[&perplexity.concat()[..], &["--keep-best", "perplexity"]].concat(),
    ));
    assert!(
        error.contains("--keep-best perplexity: no evaluation of this model finds that"),
        "{error}"
    );
}

#[test]
fn patience_ends_a_training_that_gets_no_better() {
    let files = Scratch::new();
    let (data, metrics, save) = (of_mlp("data.safetensors"), files.path("m"), files.path("save"));
    let own = ["--steps", "40", "--metrics", &metrics, "--save", &save, "--eval-data", &data];
    // At a rate of 0 nothing gets better: the first evaluation is the best.
    let idle = ["--eval-every", "3", "--patience", "2", "--lr", "0"];
    let args = support::training("mlp", &[&SGD[..6], &own, &idle].concat());
    let output = graphc(&args);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("after 9 steps"));
    let lines = files.lines("m");
    assert_eq!(lines.len(), 9);
    let saved = std::fs::read_dir(&save).expect("a folder").count();
    assert_eq!(saved, 1, "what was reached is saved");
}

#[test]
fn a_loss_that_is_no_number_ends_the_training() {
    let files = Scratch::new();
    let metrics = files.path("m");
    let wild = ["--steps", "8", "--metrics", &metrics, "--lr", "1e30"];
    let args = |extra: &[&str]| support::training("mlp", &[&SGD[..6], &wild, extra].concat());
    let error = fails(args(&[]));
    for part in ["the loss of step", "the first tensor that is not finite is", "--on-nan ignore"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(files.lines("m").len() < 8);
    succeeds(args(&["--on-nan", "ignore"]));
    assert_eq!(files.lines("m").len(), 8);
}

#[test]
fn a_set_of_images_is_trained_on_by_its_name() {
    let files = Scratch::new();
    let folder = files.path("mnist");
    succeeds(["data", "synth", "mnist", &folder, "--samples", "200"]);
    let model = files.path("model.gir");
    std::fs::write(&model, LINEAR).expect("writable");
    let source = format!("mnist:{folder}");
    let args = ["train", &model, "--data", &source, "--eval-data", &source, "--epochs", "2"];
    let line = scores(&succeeds([&args[..], &SGD[..4], &["--mesh", "2"]].concat()));
    assert_eq!((line["epoch"].as_u64(), line["eval"]["samples"].as_u64()), (Some(1), Some(40)));
    let missing = fails([&args[..3], &["mnist:nowhere"], &args[6..], &SGD[..4]].concat());
    assert!(missing.contains("train-images") && missing.contains("nowhere"), "{missing}");
}

/// `graphc launch` of so many processes of a command, which `sh` may keep from ending well.
fn launched(processes: usize, options: &[&str], script: &str, command: &[String]) -> Output {
    let graphc = env!("CARGO_BIN_EXE_graphc");
    let processes = processes.to_string();
    let launch = ["launch", "--standalone", "--nproc-per-node", &processes];
    Command::new(graphc)
        .args(launch)
        .args(options)
        .args(["--", "sh", "-c", script, "sh", graphc])
        .args(command)
        .stdin(Stdio::null())
        .output()
        .expect("graphc starts")
}

/// Returns the arguments of trainings on a set of images and on a file, both with evaluations, epochs and checkpoints.
fn trainings(files: &Scratch) -> Vec<Vec<String>> {
    let folder = files.path("mnist");
    succeeds(["data", "synth", "mnist", &folder, "--samples", "100"]);
    let model = files.path("model.gir");
    std::fs::write(&model, LINEAR).expect("writable");
    let source = format!("mnist:{folder}");
    let data = of_mlp("data.safetensors");
    let sgd = ["--loss", "cross_entropy", "--optimizer", "sgd", "--lr", "0.05"];
    let images = ["train", &model, "--data", &source, "--eval-data", &source, "--epochs", "2"];
    let rows = ["--eval-data", &data, "--eval-every", "4", "--steps", "10", "--batch", "16"];
    let images = images.iter().chain(&sgd).map(ToString::to_string).collect();
    vec![images, support::training("mlp", &[&sgd[..], &rows].concat())]
}

#[test]
fn launched_trainings_evaluate_save_and_go_on_after_a_rank_was_killed() {
    let files = Scratch::new();
    for (number, command) in trainings(&files).into_iter().enumerate() {
        for processes in [2, 4] {
            let name = |what: &str| files.path(&format!("{what}-{number}-{processes}"));
            let metrics = format!("m-{number}-{processes}");
            let with = |metrics: &str, extra: &[&str]| -> Vec<String> {
                let own = ["--metrics", metrics].into_iter().chain(extra.iter().copied());
                command.iter().cloned().chain(own.map(String::from)).collect()
            };
            let mesh = processes.to_string();
            succeeds(with(&files.path(&metrics), &["--mesh", &mesh]));
            let expected = std::fs::read(files.path(&metrics)).expect("metrics");
            // The last rank dies, the first time, once there is a checkpoint.
            let (saved, found) = (name("saved"), name("found"));
            let script = format!(
                "if [ $RANK = {} ] && [ $GRAPHC_RESTART = 0 ]; then \
                   \"$@\" & while [ ! -e '{saved}'/step-00000002 ] && [ ! -e '{saved}'/step-00000004 ]; do sleep 0.01; done; \
                   kill -9 $!; exit 9; \
                 fi; exec \"$@\"",
                processes - 1
            );
            let own = ["--save", &saved, "--save-every", "2", "--keep", "20", "--resume", &saved];
            let output =
                launched(processes, &["--max-restarts", "1"], &script, &with(&found, &own));
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{stderr}");
            let found = std::fs::read(found).expect("metrics");
            assert!(found == expected, "{number} on {processes}: other metrics than uninterrupted");
        }
    }
}

#[test]
fn processes_may_have_a_file_in_folders_of_their_own() {
    let files = Scratch::new();
    for rank in ["0", "1"] {
        std::fs::create_dir(files.path(rank)).expect("a folder");
        let copy = files.path(&format!("{rank}/data.safetensors"));
        std::fs::copy(of_mlp("data.safetensors"), copy).expect("a copy");
    }
    let mut command = support::training("mlp", &SGD);
    command[3] = format!("{}/$RANK/data.safetensors", files.0.path().display());
    for length in [&["--steps", "5"][..], &["--epochs", "2", "--shuffle"]] {
        let own: Vec<String> =
            command.iter().cloned().chain(length.iter().map(ToString::to_string)).collect();
        let script = format!("\"$1\" {}", own.join(" "));
        let output = launched(2, &[], &script, &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_launched_training_whose_loss_is_no_number_says_where_it_came_from() {
    use graphc::prelude::DType;
    use graphc::runtime::data::save_safetensors;
    let files = Scratch::new();
    let mut tensors = load_safetensors(of_mlp("data.safetensors").as_ref()).expect("data");
    let x = tensors.iter_mut().find(|(_, tensor)| tensor.dtype() == DType::F32).expect("inputs");
    let (input, row) = (x.0.clone(), x.1.bytes().len() / x.1.shape()[0]);
    // In the second batch: the first has been taken in.
    x.1.bytes_mut()[30 * row..30 * row + 8].copy_from_slice(&[0xff; 8]);
    let data = files.path("data.safetensors");
    save_safetensors(data.as_ref(), &tensors).expect("writable");
    let mut command = support::training("mlp", &SGD);
    command[3].clone_from(&data);
    command.extend(["--steps", "9"].map(String::from));
    let with = |extra: &[&str]| -> Vec<String> {
        command.iter().cloned().chain(extra.iter().map(ToString::to_string)).collect()
    };
    let names = |error: &str| {
        let tensor =
            format!("the first tensor that is not finite is `{input}` (input, f32[16, 20]");
        for part in ["the loss of step 1 is NaN", &tensor, "2 are not finite, 2 of them no number"]
        {
            assert!(error.contains(part), "`{part}` is not in: {error}");
        }
    };
    names(&fails(with(&[])));
    names(&fails(with(&["--mesh", "2x2"])));
    let staged = ["--mesh", "2", "--stages", "2", "--microbatches", "2"];
    for extra in [&[][..], &staged] {
        let output = launched(2, &[], "exec \"$@\"", &with(extra));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        names(&stderr);
    }
}

#[test]
fn what_overflows_first_is_found_behind_a_checkpoint_too() {
    let files = Scratch::new();
    let save = files.path("save");
    let wild = ["--lr", "1e18", "--steps", "20", "--save", &save, "--save-every", "1"];
    let error = fails(support::training("mlp", &[&SGD[..6], &wild].concat()));
    let (_, first) = error.split_once("the first tensor that is not finite is `").expect("found");
    let ops = ["matmul", "variable", "binary", "unary", "cross_entropy", "normalize", "reduce"];
    let is_of = |op: &&str| {
        first.contains(&format!("({op}, f32[")) || first.contains(&format!("({op} of "))
    };
    assert!(ops.iter().any(is_of), "{error}");
    // It is nothing that was fed, and the steps before it are not made again.
    assert!(!first.contains("(input"), "{error}");
    let step = error.split_once("the loss of step ").and_then(|(_, rest)| rest.split_once(' '));
    let step: u64 = step.expect("a step").0.parse().expect("a number");
    assert!(error.contains(&format!("steps {step} to {step} are made again")), "{error}");
}

const LINEAR: &str = r#"graph @linear {
  %x = input "x" : f32[20, 1, 28, 28]
  %w = variable "w" {init={"normal": {"mean": 0, "std": 0.02}}, trainable=true} : f32[784, 10]
  %2 = reshape %x {shape=[20, 784]} : f32[20, 784]
  %3 = matmul %2, %w : f32[20, 10]
  return "scores" = %3
}
"#;
