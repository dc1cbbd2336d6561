//! Models that compute their own loss: they are evaluated as those are whose loss graphc attaches, and run in batches.

use serde_json::Value;

use crate::support::{Scratch, fails, json_lines, succeeds};
use graphc::ir::builder::{BuildErrors, GraphBuilder};
use graphc::ir::ops::Init;
use graphc::ir::text::print_for_any_batch;
use graphc::ir::types::DType;
use graphc::runtime::HostTensor;
use graphc::runtime::data::{load_safetensors, save_safetensors};

const CLASSES: usize = 5;
const SAMPLES: usize = 12;

/// A model with scores of one row or more a sample, and with its own loss if that is wanted.
fn write_model(files: &Scratch, name: &str, (own, rows): (bool, usize)) -> String {
    let text: Result<_, BuildErrors> = print_for_any_batch("batch", |batch| {
        let g = GraphBuilder::new("model");
        let x = g.input("x", DType::F32, [batch, rows, 4]);
        let init = Init::Normal { mean: 0.0.into(), std: 0.5.into() };
        let scores = x.tanh().matmul(&g.variable("w", DType::F32, [4, CLASSES], init));
        let scores = scores.reshape(&[batch * rows, CLASSES]);
        if own {
            let labels = g.input("labels", DType::I64, [batch]);
            g.output("loss", &scores.cross_entropy(&labels));
        }
        g.output("scores", &scores);
        g.finish()
    });
    let path = files.path(name);
    std::fs::write(&path, text.expect("it fits").expect("sizes are multiples")).expect("writable");
    path
}

fn write_data(files: &Scratch, rows: usize) -> String {
    let numbers: Vec<f32> =
        (0..SAMPLES * rows * 4).map(|at| (0.7 + 1.9 * at as f64).sin() as f32).collect();
    let labels: Vec<i64> = (0..SAMPLES).map(|at| (at * 7 % CLASSES) as i64).collect();
    let tensors = [
        ("x".to_owned(), HostTensor::from_f32([SAMPLES, rows, 4], &numbers).expect("it fits")),
        ("labels".to_owned(), HostTensor::from_i64([SAMPLES], &labels).expect("it fits")),
    ];
    let path = files.path("data.safetensors");
    save_safetensors(path.as_ref(), &tensors.into()).expect("writable");
    path
}

fn found_loss(args: &[&str]) -> f64 {
    let printed = succeeds(args.iter().copied().chain(["--format", "json", "--seed", "3"]));
    let scores: Value = serde_json::from_str(&printed).expect("JSON");
    assert_eq!(scores["samples"], SAMPLES);
    scores["loss"].as_f64().expect("a number")
}

#[test]
fn a_loss_that_the_model_computes_is_evaluated_as_an_attached_one() {
    let files = Scratch::new();
    let attached = write_model(&files, "attached.gir", (false, 1));
    let own = write_model(&files, "own.gir", (true, 1));
    let data = write_data(&files, 1);
    let eval = |model: &str, extra: &[&str]| {
        found_loss(&[&["eval", model, "--data", &data][..], extra].concat())
    };
    let expected = eval(&attached, &["--loss", "cross_entropy"]);
    let plan = files.path("plan.json");
    succeeds(["compile", &own, "--optimizer", "sgd", "--batch", "4", "-o", &plan]);
    for (model, extra) in [
        (&own, &[][..]),
        (&own, &["--batch", "4"]),
        (&own, &["--batch", "6", "--mesh", "2"]),
        (&own, &["--batch", "6", "--loss", "output:loss", "--microbatches", "3"]),
        (&plan, &[]),
    ] {
        let found = eval(model, extra);
        assert!((found - expected).abs() < 1e-6 * expected, "{extra:?}: {found}, not {expected}");
    }
    let error = fails(["eval", &own, "--data", &data, "--batch", "5"]);
    let parts = ["batches of 5 leave 2", "a loss that the model computes", "4 say"];
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    let error = fails(["eval", &attached, "--data", &data]);
    assert!(error.contains("evaluation needs a loss"), "{error}");
}

#[test]
fn a_training_on_a_loss_of_the_model_keeps_its_best() {
    let files = Scratch::new();
    let (own, data) = (write_model(&files, "own.gir", (true, 1)), write_data(&files, 1));
    let [save, metrics] = ["save", "metrics"].map(|name| files.path(name));
    let length = "--optimizer sgd --lr 0.5 --batch 4 --epochs 3 --keep-best loss --patience 9";
    let shown = ["--eval-data", &data, "--save", &save, "--metrics", &metrics];
    let train = ["train", &own, "--data", &data].into_iter().chain(length.split(' '));
    succeeds(train.chain(shown));
    let lines = json_lines(&std::fs::read_to_string(&metrics).expect("metrics"));
    let evaluated: Vec<f64> =
        lines.iter().filter_map(|line| line["eval"]["loss"].as_f64()).collect();
    assert!(evaluated.len() == 3 && evaluated[2] < evaluated[0], "{evaluated:?}");
    let best = files.path("save/best");
    let found = found_loss(&["eval", &own, "--data", &data, "--weights-from", &best]);
    assert!((found - evaluated[2]).abs() < 1e-6, "{found} is not {}", evaluated[2]);
}

#[test]
fn scores_are_run_in_batches_beside_a_loss_and_with_several_rows_a_sample() {
    let files = Scratch::new();
    let data = write_data(&files, 1);
    let own = write_model(&files, "own.gir", (true, 1));
    let run = |model: &str, name: &str, extra: &[&str]| {
        let outputs = files.path(name);
        let args = ["run", model, "--inputs", &data, "--outputs", &outputs, "--seed", "3"];
        succeeds([&args[..], extra].concat());
        load_safetensors(outputs.as_ref()).expect("outputs")
    };
    let whole = run(&own, "whole", &[]);
    assert_eq!(whole.keys().collect::<Vec<_>>(), ["loss", "scores"]);
    let outputs = files.path("none");
    let error = fails(["run", &own, "--inputs", &data, "--outputs", &outputs, "--batch", "5"]);
    assert!(error.contains("`loss`") && error.contains("--fetch"), "{error}");
    let parts = run(&own, "parts", &["--batch", "5", "--fetch", "scores"]);
    assert_eq!(parts.keys().collect::<Vec<_>>(), ["scores"]);
    assert_eq!(parts["scores"], whole["scores"]);
    write_data(&files, 3);
    let flat = write_model(&files, "flat.gir", (false, 3));
    let whole = run(&flat, "flat", &[]);
    assert_eq!(whole["scores"].shape(), [3 * SAMPLES, CLASSES]);
    for extra in [&["--batch", "5"][..], &["--batch", "4", "--mesh", "2"]] {
        assert_eq!(run(&flat, "flat-parts", extra), whole, "{extra:?}");
    }
}

#[test]
fn a_file_says_what_extents_are_in_epochs_too() {
    let files = Scratch::new();
    let data = write_data(&files, 1);
    let text =
        std::fs::read_to_string(write_model(&files, "own.gir", (true, 1))).expect("the model");
    // The width of the input is a symbol as well.
    let model = files.path("wide.gir");
    std::fs::write(&model, text.replacen("batch, 1, 4", "batch, 1, wide", 1)).expect("writable");
    let train = ["train", &model, "--data", &data, "--optimizer", "sgd", "--batch", "4"];
    for length in [["--steps", "1"], ["--epochs", "1"]] {
        succeeds([&train[..], &length].concat());
    }
    let twice = [&train[..], &["--steps", "1", "--dim", "batch=8"]].concat();
    assert!(fails(twice).contains("--batch 4 and --dim batch=8 say different things"));
}

/// The bytes of records of an event file, one after another.
fn records(bytes: &[u8]) -> Vec<&[u8]> {
    let (mut records, mut rest) = (Vec::new(), bytes);
    while let Some((head, behind)) = rest.split_first_chunk::<12>() {
        let length = u64::from_le_bytes(head[..8].try_into().expect("eight"));
        let (record, behind) = behind.split_at(length as usize);
        records.push(record);
        rest = &behind[4..];
    }
    records
}

#[test]
fn event_files_hold_the_numbers_of_each_step() {
    let files = Scratch::new();
    let (own, data) = (write_model(&files, "own.gir", (true, 1)), write_data(&files, 1));
    let [runs, save, metrics] = ["runs", "save", "metrics"].map(|name| files.path(name));
    let options = "--optimizer sgd --lr 0.5 --batch 4 --epochs";
    let train = |epochs: &str, resume: &[&str]| {
        let begin = ["train", &own, "--data", &data].into_iter().chain(options.split(' '));
        let shown = ["--eval-data", &data, "--tensorboard", &runs, "--save", &save];
        succeeds(begin.chain([epochs]).chain(shown).chain(resume.iter().copied()));
    };
    train("2", &[]);
    let event_files = || {
        let mut found: Vec<_> = std::fs::read_dir(&runs)
            .expect("a folder")
            .map(|entry| entry.expect("one").path())
            .collect();
        found.sort();
        found
    };
    let first = event_files();
    assert_eq!(first.len(), 1);
    let bytes = std::fs::read(&first[0]).expect("events");
    let found = records(&bytes);
    let has =
        |record: &[u8], name: &str| record.windows(name.len()).any(|part| part == name.as_bytes());
    // The version, the beginning of the session, and six steps.
    assert_eq!(found.len(), 8);
    assert!(has(found[0], "brain.Event:2"));
    for (step, record) in found[2..].iter().enumerate() {
        assert!(has(record, "loss") && has(record, "epoch"), "step {step}");
        assert_eq!(has(record, "eval/loss"), step % 3 == 2, "after each epoch");
    }
    // A resumed training has a file of its own. Lines that its metrics lack are told.
    train("3", &["--resume", &save]);
    assert_eq!(event_files().len(), 2);
    let more = ["--epochs", "4", "--resume", &save, "--metrics", &metrics];
    let output = crate::support::graphc(
        ["train", &own, "--data", &data].into_iter().chain(options.split(' ').take(6)).chain(more),
    );
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("has no lines of the steps 0 to 8"), "{said}");
}
