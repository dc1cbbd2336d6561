//! Sizes that come from outside, from an option, a file or the environment, are checked before they are believed; and what is
//! no file is not waited for. Every run here has a limit of memory that what it was asked for would break.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{reference, succeeds};
use graphc::prelude::*;
use graphc::runtime::data::save_safetensors;

/// A run of the CLI that may take two gigabytes of memory, and so many 512 bytes of a file where that is given.
fn limited(blocks: Option<u64>, args: &[&str], environment: &[(&str, &str)]) -> Output {
    let files = blocks.map_or("unlimited".to_owned(), |blocks| blocks.to_string());
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("ulimit -d 2000000; ulimit -f {files}; exec \"$0\" \"$@\""));
    shell.arg(env!("CARGO_BIN_EXE_graphc")).args(args).envs(environment.iter().copied());
    shell.output().expect("sh starts")
}

/// Standard error of a limited run that must end with status 1 or 2, and say why.
fn refused(args: &[&str], environment: &[(&str, &str)]) -> String {
    said(&limited(None, args, environment))
}

fn said(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let status = output.status;
    assert!(matches!(status.code(), Some(1 | 2)), "{status}: {stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    stderr
}

fn planned(args: &[&str]) {
    let output = limited(None, args, &[]);
    assert!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

fn file(name: &str, file: &str) -> String {
    reference(name).join(file).display().to_string()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

const TRAINED: [&str; 4] = ["--loss", "cross_entropy", "--optimizer", "sgd"];

fn compile<'a>(model: &'a str, extra: &[&'a str]) -> Vec<&'a str> {
    [&["compile", model][..], &TRAINED, extra].concat()
}

#[test]
fn axes_of_one_rank_cost_nothing() {
    let (mlp, twelve) = (file("mlp", "model.onnx"), ["1"; 12].join("x"));
    planned(&compile(&mlp, &["--batch", "16", "--mesh", &twelve]));
    let wide = format!("{twelve}x2");
    planned(&compile(&mlp, &["--batch", "16", "--mesh", &wide]));
    // A fixed strategy names what lies along them, in more ways than there is memory for.
    let error =
        refused(&compile(&mlp, &["--batch", "16", "--mesh", &twelve, "--strategy", "zero3"]), &[]);
    contains(&error, &["signatures", "fewer axes"]);
}

#[test]
fn more_axes_than_can_be_planned_are_an_error() {
    let mlp = file("mlp", "model.onnx");
    let mesh = ["2"; 16].join("x");
    let error = refused(&compile(&mlp, &["--batch", "65536", "--mesh", &mesh]), &[]);
    contains(&error, &["signatures on a mesh of 2x2x2", "fewer axes"]);
}

#[test]
fn many_ranks_of_one_axis_cost_what_they_are() {
    let mlp = file("mlp", "model.onnx");
    planned(&compile(&mlp, &["--batch", "32768", "--mesh", "32768"]));
    let stages = ["--batch", "32768", "--mesh", "32768", "--stages", "2", "--microbatches", "2"];
    planned(&compile(&mlp, &stages));
}

#[test]
fn a_world_that_no_job_has_is_not_believed() {
    let (mlp, data) = (file("mlp", "model.onnx"), file("mlp", "data.safetensors"));
    let environment = |world| {
        [("WORLD_SIZE", world), ("RANK", "0"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")]
    };
    let train = [&["train", &mlp, "--data", &data, "--steps", "1"][..], &TRAINED].concat();
    for command in [compile(&mlp, &["--batch", "16"]), train] {
        let error = refused(&command, &environment("4294967295"));
        contains(&error, &["4294967295", "at most 131072"]);
        refused(&command, &environment("-1"));
    }
    let launch = ["launch", "--nproc-per-node", "100000", "--", "true"];
    contains(&refused(&launch, &[]), &["100000", "at most 1024"]);
}

#[test]
fn more_microbatches_or_threads_than_make_sense_are_refused() {
    let (mlp, data) = (file("mlp", "model.onnx"), file("mlp", "data.safetensors"));
    let many = ["--batch", "16777216", "--microbatches", "16777216"];
    contains(&refused(&compile(&mlp, &many), &[]), &["16777216 microbatches", "at most 65536"]);
    let train = ["train", &mlp, "--data", &data, "--steps", "1", "--batch", "2048"];
    let error = refused(&[&train[..], &TRAINED, &["--mesh", "2048"]].concat(), &[]);
    contains(&error, &["2048 ranks", "at most 1024", "launch"]);
}

/// A layer whose weight has so many rows of 1024 numbers.
fn layer(folder: &Path, rows: usize) -> PathBuf {
    let path = folder.join("layer.gir");
    let graph = format!(
        "graph @layer {{\n  %x = input \"x\" : f32[batch, {rows}]\n  %w = variable \"w\" {{init={{\"fill\": 1}}, \
         trainable=true}} : f32[{rows}, 1024]\n  %y = matmul %x, %w\n  return \"y\" = %y\n}}\n"
    );
    std::fs::write(&path, graph).expect("written");
    path
}

#[test]
fn memory_that_the_machine_lacks_is_an_error_before_it_is_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let plan = folder.path().join("plan.json");
    let model = layer(folder.path(), 1 << 28);
    let compile = ["compile", text(&model), "--batch", "1", "--memory", "4TiB", "-o", text(&plan)];
    planned(&compile);
    let inputs = folder.path().join("inputs.safetensors");
    let x = HostTensor::zeros(DType::F32, [1, 1]);
    save_safetensors(&inputs, &[("x".to_owned(), x)].into()).expect("written");
    let outputs = folder.path().join("outputs");
    let run = ["run", text(&plan), "--inputs", text(&inputs), "--outputs", text(&outputs)];
    contains(
        &refused(&run, &[]),
        &["rank 0 needs 1", "iB of memory", "are available", "compile for"],
    );
    // The system has so much, but the process may not have it.
    planned(&["compile", text(&layer(folder.path(), 1 << 19)), "--batch", "1", "-o", text(&plan)]);
    contains(&refused(&run, &[]), &["rank 0 was not given", "ulimit"]);
}

#[test]
fn what_is_no_file_is_not_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = layer(folder.path(), 4);
    let plan = folder.path().join("plan.json");
    succeeds(["compile", text(&model), "--batch", "4", "-o", text(&plan)]);
    let mlp = file("mlp", "model.onnx");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let make = |name: &str, kind: &str| {
        let path = folder.path().join(name);
        let _ = std::fs::remove_file(&path);
        match kind {
            "pipe" => _ = Command::new("mkfifo").arg(&path).status().expect("mkfifo"),
            _ => std::os::unix::fs::symlink("/dev/zero", &path).expect("a link"),
        }
        path.display().to_string()
    };
    for kind in ["pipe", "device"] {
        let (onnx, gir) = (make("odd.onnx", kind), make("odd.gir", kind));
        let (json, toml, data) =
            (make("odd.json", kind), make("odd.toml", kind), make("odd", kind));
        std::fs::create_dir_all(folder.path().join("save/step-00000001")).expect("a folder");
        make("save/step-00000001/manifest.json", kind);
        make("layer.safetensors", kind);
        let (save, out, layer) = (at("save"), at("out"), text(&model));
        let whole = file("mlp", "data.safetensors");
        let train = ["train", &mlp, "--steps", "1", "--optimizer", "sgd", "--data"];
        let runs: [&[&str]; 9] = [
            &["compile", &onnx],
            &["compile", &gir],
            &["inspect", &json],
            &["compile", &mlp, "--batch", "4", "--cluster", &toml],
            &["run", text(&plan), "--inputs", &data, "--outputs", &out],
            &[&train[..], &[&data]].concat(),
            &[&train[..], &[&whole, "--resume", &save]].concat(),
            &["export", &save, "-o", &out],
            &["compile", layer, "--batch", "4"],
        ];
        for run in runs {
            let error = refused(run, &[]);
            let named =
                ["odd", "save", "layer.safetensors"].iter().any(|name| error.contains(name));
            assert!(named, "{kind}, {run:?}: {error}");
        }
    }
}

#[test]
fn a_file_that_reaches_its_limit_leaves_nothing_half_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let names = || {
        let entries = std::fs::read_dir(folder.path()).expect("the folder");
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry").file_name();
        entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    let (mlp, data) = (file("mlp", "model.onnx"), file("mlp", "data.safetensors"));
    let at = |name: &str| folder.path().join(name).display().to_string();
    let train = ["train", &mlp, "--data", &data, "--batch", "16", "--steps", "200"];
    let train = [&train[..], &TRAINED[..]].concat();
    let cannot_write = |output: &Output, what: &str| {
        contains(&said(output), &["cannot write", what, "File too large"]);
    };
    let plan = at("plan.json");
    let compiled = compile(&mlp, &["--batch", "16", "-o", &plan]);
    cannot_write(&limited(Some(4), &compiled, &[]), "plan.json");
    let (weights, save, metrics) = (at("w"), at("save"), at("losses.jsonl"));
    let with = |extra: &[&str]| limited(Some(4), &[&train[..], extra].concat(), &[]);
    cannot_write(&with(&["--weights", &weights]), "/w");
    assert!(names().is_empty(), "{:?}", names());
    cannot_write(&with(&["--save", &save]), "save");
    assert_eq!(std::fs::read_dir(&save).expect("the folder").count(), 0);
    cannot_write(&with(&["--metrics", &metrics]), "losses.jsonl");
    let text = std::fs::read_to_string(&metrics).expect("what fitted");
    assert!(text.len() > 1500 && text.ends_with("}\n"), "whole lines: {text}");
}

#[test]
fn names_do_not_steer_the_terminal() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join("m\u{1b}[31m.gir");
    let graph = "graph @g {\n  %x = input \"x\\u001b]0;owned\\u0007\" : f32[4, 3]\n  %w = variable \"w\\u009b2J\" \
                 {init={\"fill\": 1}, trainable=true} : f32[3, 2]\n  %y = matmul %x, %w\n  return \"y\\u001b[0m\" = %y\n}\n";
    std::fs::write(&model, graph).expect("written");
    let model = model.display().to_string();
    let plan = folder.path().join("plan.json").display().to_string();
    let inert = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        text
    };
    let shown = |args: &[&str]| {
        let output = limited(None, args, &[]);
        let said = inert(&output.stderr);
        assert!(output.status.success(), "{said}");
        inert(&output.stdout)
    };
    shown(&["compile", &model, "-o", &plan]);
    contains(&shown(&["inspect", &plan]), &["w\\u009b2J"]);
    for args in [
        &["verify", &plan, &model][..],
        &["simulate", &plan],
        &["diff", &plan, &plan],
        &["explain", &plan, "w\u{9b}2J"],
        &["explain", &plan, "--memory"],
        &["compile", &model, "--emit", "after:simplify"],
    ] {
        shown(args);
    }
    let json = shown(&["inspect", &plan, "--format", "json"]);
    let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let tensors = value["tensors"].as_array().expect("a list");
    assert!(tensors.iter().any(|tensor| tensor["name"] == "w\u{9b}2J"), "the name itself");
    for args in [
        &["explain", &plan, "\u{1b}[2J"][..],
        &["compile", &model, "--freeze", "\u{1b}[2J", "--pin", "w\u{9b}2J=S(7)"],
        &["run", &model, "--inputs", "\u{1b}[2J", "--outputs", &plan],
    ] {
        contains(&inert(&limited(None, args, &[]).stderr), &["\\u00"]);
    }
}
