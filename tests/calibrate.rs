//! `graphc calibrate` measures this machine, or the double of a card, and makes a cluster file of it.
//!
//! These tests are a binary of their own, and go one after the other: whatever else runs on the cores is measured with them.

#[path = "support/machine.rs"]
mod machine;
mod support;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use graphc_compiler::cluster::parse_cluster;
use graphc_ir::mesh::DeviceKind;
use machine::{Machine, checked};
use serde_json::Value;
use support::{Scratch, calibrated, fails, graphc, reference, succeeds};

/// Held by the test that has the cores.
static CORES: Mutex<()> = Mutex::new(());

/// Standard output and standard error of `graphc calibrate --quick`.
fn calibrate(extra: &[&str]) -> [String; 2] {
    let run = || graphc([&["calibrate", "--quick"], extra].concat());
    let output = calibrated(run, |output| output.status.success());
    [output.stdout, output.stderr].map(|said| String::from_utf8(said).expect("UTF-8"))
}

/// Plans the reference gpt for two ranks of the cluster in a file.
fn plan(scratch: &Scratch, cluster: &str) -> String {
    let (model, path) = (reference("gpt").join("model.onnx"), scratch.path("plan.json"));
    let model = model.to_str().expect("UTF-8");
    let training = ["--batch", "8", "--loss", "cross_entropy", "--optimizer", "adamw"];
    let given = ["--mesh", "2", "--cluster", cluster, "-o", &path];
    succeeds([&["compile", model][..], &training, &given].concat());
    path
}

#[test]
fn this_machine_becomes_a_cluster_that_plans() {
    let _alone = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let scratch = Scratch::new();
    let file = scratch.path("here.toml");
    let [shown, _] = calibrate(&["--ranks", "2", "-o", &file]);
    for word in ["launch", "memory", "attention", "matmul f32", "all-reduce", "link"] {
        assert!(shown.contains(word), "`{word}` in {shown}");
    }
    let path = plan(&scratch, &file);
    let simulated = succeeds(["simulate", &path, "--format", "json"]);
    let value: Value = serde_json::from_str(&simulated).expect("JSON");
    assert_eq!(value["cluster"], "calibrated");
    assert!(value["step_seconds"].as_f64().expect("a number") > 0.0);
    assert!(fails(["calibrate", "--ranks", "0"]).contains("--ranks"));
    let [_, notes] = calibrate(&["--ranks", "1", "-o", &file]);
    assert!(notes.contains("links between ranks"), "{notes}");
    assert!(Path::new(&plan(&scratch, &file)).exists());
}

/// A machine that does something else is measured as slower than it is, and that is said.
#[test]
fn calibration_says_that_it_was_disturbed() {
    if !Path::new("/proc/self/stat").exists() {
        return;
    }
    let _alone = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let ends = AtomicBool::new(false);
    let busy = || {
        while !ends.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    };
    let [file, warning] = std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        (0..2 * cores).for_each(|_| _ = scope.spawn(busy));
        // If it fails, the others end too.
        let measured = std::panic::catch_unwind(|| calibrate(&["--ranks", "1"]));
        ends.store(true, Ordering::Relaxed);
        measured.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    assert!(warning.contains("other processes had"), "{warning}");
    assert!(file.contains("# this machine was disturbed while it was measured"), "{file}");
}

/// Measurements of a card become a cluster file that plans. They are of small sizes where larger ones would take too long, as they do
/// where others have the machine. No link is measured with one card.
#[test]
fn a_card_is_measured() {
    let Some(machine) = Machine::new() else { return };
    let _alone = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let file = machine.file("card.toml");
    let mut args = vec!["calibrate", "--device", "cuda", "--ranks", "1", "-o", &file];
    args.extend(std::env::var_os("GRAPHC_DOUBLE_ALL").is_none().then_some("--quick"));
    let run = || machine.command(&args).output().expect("graphc starts");
    let attention =
        || std::fs::read_to_string(&file).is_ok_and(|text| text.contains("[device.attention"));
    let output = calibrated(run, |output| output.status.success() && attention());
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    for word in
        ["of a recorded step", "chains", "cross entropy", "matmul bf16", "odd rows", "backward"]
    {
        assert!(shown.contains(word), "`{word}` in {shown}");
    }
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(notes.contains("those of the preset dgx-h100"), "{notes}");
    assert!(!notes.contains("gpu double"), "{notes}");
    let text = std::fs::read_to_string(&file).expect("written");
    let cluster = parse_cluster(&text).expect("read");
    assert_eq!(cluster.device.kind, DeviceKind::Cuda);
    assert!(
        ["f32", "f16", "bf16"].iter().all(|&of| cluster.device.flops.contains_key(of)),
        "{text}"
    );
    assert!(["f32", "f16"].iter().all(|&of| cluster.device.matmul_efficiency_of.contains_key(of)));
    assert!(cluster.device.attention.is_some() && text.contains("bandwidth_share"), "{text}");
    let model = reference("mlp").join("model.onnx").display().to_string();
    let compiled = ["compile", &model, "--batch", "8", "--cluster", &file];
    checked(machine.command(compiled));
}
