//! The kit for machines with cards (benchmarks/card): the checker of kernels, on the double of NVIDIA's libraries; what runs its parts, where
//! an item fails, hangs, or the part is cut off; and the table of what was found. The whole kit is rehearsed by
//! `benchmarks/card/rehearse.sh`.

#[path = "support/machine.rs"]
mod machine;
mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use machine::Machine;
use serde_json::Value;
use tempfile::TempDir;

fn kit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benchmarks/card")
}

/// The checker of kernels. `cargo test` builds examples beside the test binaries.
fn checker(machine: &Machine, args: &[&str]) -> Command {
    let mut path = std::env::current_exe().expect("a path");
    path.pop();
    path.pop();
    let mut command = Command::new(path.join("examples/card_kernels"));
    let of_graphc = machine.command([""; 0]);
    let variables = of_graphc.get_envs().filter_map(|(name, value)| Some((name, value?)));
    command.args(args).envs(variables).env("GPU_DOUBLE_DEVICES", "1");
    command
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn a_few_kernels_of_each_op_are_right() {
    let Some(machine) = Machine::new() else { return };
    let output = checker(&machine, &["--few", "--jobs", "2"]).output().expect("it starts");
    let lines = lines(&output);
    let summary = &lines.last().expect("a summary")["summary"];
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{summary:#} {words}");
    assert_eq!(summary["right"].as_u64(), Some(lines.len() as u64 - 1));
    let name = |line: &Value| line["trial"].as_str().unwrap_or_default().to_owned();
    let ops: std::collections::BTreeSet<String> =
        lines.iter().filter_map(|line| name(line).split(' ').next().map(str::to_owned)).collect();
    assert!(lines.len() > 100 && ops.len() > 55, "{} trials of {ops:?}", lines.len());
}

/// On a card that has no memory for cuBLASLt a product fails, and its process ends; another goes on behind it.
#[test]
fn a_trial_that_loses_the_card_is_told_and_others_go_on() {
    let Some(machine) = Machine::new() else { return };
    let mut command = checker(&machine, &["--few", "--groups", "sums and products"]);
    let output = command.env("GPU_DOUBLE_MEMORY", "8MiB").output().expect("it starts");
    let lines = lines(&output);
    let of = |verdict: &str| -> Vec<String> {
        let with = lines.iter().filter(|line| line["verdict"] == verdict);
        with.map(|line| line["trial"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let (right, failed) = (of("right"), of("failed"));
    assert_eq!(output.status.code(), Some(1));
    assert!(!right.is_empty() && right.iter().all(|name| name.starts_with("reduce")), "{right:?}");
    assert!(
        failed.len() == 2 && failed.iter().all(|name| name.starts_with("matmul")),
        "{failed:?}"
    );
    let summary = &lines.last().expect("a summary")["summary"];
    assert_eq!(summary["worst"].as_array().map(Vec::len), Some(2), "{summary:#}");
}

fn has_python() -> bool {
    let found = Command::new("python3").arg("--version").output().is_ok();
    if !found {
        println!("skipped: there is no python3");
    }
    found
}

/// A kit whose items are these lines of Python.
fn kit_of(items: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a scratch folder");
    for name in ["run.py", "run.sh", "kit.py"] {
        std::fs::copy(kit().join(name), folder.path().join(name)).expect("it is copied");
    }
    let head = "import sys, time\nfrom dataclasses import dataclass\nfrom typing import Any\nfrom kit import Place, run, scratch\n\
                @dataclass\nclass Item:\n    name: str\n    limit: float\n    look: Any\n    least: float = 1.0\n    \
                def run(self, place):\n        return self.look(place) is False\n";
    std::fs::write(folder.path().join("items.py"), format!("{head}{items}")).expect("a file");
    folder
}

fn start(folder: &Path, seconds: &str) -> Command {
    let mut command = Command::new(folder.join("run.sh"));
    command.args(["right", "out"]).current_dir(folder).env("CARD_SECONDS", seconds);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn results(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("out/right.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn end_of<'a>(lines: &'a [Value], item: &str) -> &'a Value {
    let is_end = |line: &&Value| line["item"] == item && line["ended"].is_string();
    lines.iter().find(is_end).unwrap_or_else(|| panic!("no end of {item} in {lines:#?}"))
}

#[test]
fn items_that_fail_or_hang_are_told_and_the_next_ones_run() {
    if !has_python() {
        return;
    }
    let kit = kit_of(
        "def fails(place):\n    place.tell(begins=1)\n    print('why it fails')\n    raise RuntimeError('broken')\n\
         def hangs(place):\n    run(['sleep', '100'])\n\
         def says(place):\n    place.tell(found=7)\n\
         PARTS = {'right': [Item('fails', 9, fails), Item('hangs', 1, hangs), Item('is wrong', 9, lambda place: False),\n\
             Item('long', 9, says, 999), Item('says', 9, says)]}\n",
    );
    let begun = Instant::now();
    let output = start(kit.path(), "60").output().expect("it starts");
    assert!(output.status.success() && begun.elapsed() < Duration::from_secs(40));
    let lines = results(kit.path());
    let fails = end_of(&lines, "fails");
    let tail = fails["tail"].as_str().expect("a tail");
    assert!(fails["ended"] == "failed" && tail.contains("why it fails") && tail.contains("broken"));
    assert_eq!(end_of(&lines, "hangs")["ended"], "timeout");
    assert_eq!(end_of(&lines, "is wrong")["ended"], "failed");
    assert_eq!(end_of(&lines, "long")["ended"], "skipped");
    assert_eq!(end_of(&lines, "says")["ended"], "ok");
    assert!(lines.iter().any(|line| line["result"]["found"] == 7));
    assert!(lines.last().is_some_and(|line| line["ended"] == true));
    let text = std::fs::read_to_string(kit.path().join("out/right.txt")).expect("a text");
    assert!(text.contains("why it fails"));
}

#[test]
fn a_part_that_is_cut_off_keeps_what_it_has() {
    if !has_python() {
        return;
    }
    let kit = kit_of(
        "def says(place):\n    place.tell(found=7)\n\
         def sleeps(place):\n    place.tell(sleeps=True)\n    time.sleep(100)\n\
         PARTS = {'right': [Item('says', 9, says), Item('sleeps', 99, sleeps)]}\n",
    );
    let mut child = start(kit.path(), "200").spawn().expect("it starts");
    let begun = Instant::now();
    while !results(kit.path()).iter().any(|line| line["result"]["sleeps"] == true) {
        assert!(begun.elapsed() < Duration::from_secs(60), "it comes to its second item");
        std::thread::sleep(Duration::from_millis(50));
    }
    // `run.sh` becomes Python, so its number is that of the process.
    let ended = Command::new("kill").arg(child.id().to_string()).status().expect("kill starts");
    assert!(ended.success() && !child.wait().expect("it ends").success());
    let lines = results(kit.path());
    assert!(lines.iter().any(|line| line["result"]["found"] == 7));
    assert_eq!(lines.last().expect("lines")["cut_off"], "SIGTERM");
}

/// A program of this text in a folder.
fn program(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    std::fs::write(path, text).expect("a file");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a program");
}

/// Stands for NVIDIA's `ncu`, which no machine without a card has: a table in its form, of three launches, or of the one that is asked for.
const NCU: &str = r#"#!/usr/bin/env python3
import sys
metrics = sys.argv[sys.argv.index("--metrics") + 1].split(",")
kernels = [("chain(float *)", 3000), ("void gemm<float, 2>(T1)", 9000), ("chain(float *)", 5000)]
if "--kernel-name" in sys.argv:
    name = sys.argv[sys.argv.index("--kernel-name") + 1]
    skip = int(sys.argv[sys.argv.index("--launch-skip") + 1])
    kernels = [kernel for kernel in kernels if f"regex:^{kernel[0].removeprefix('void ')[:4]}" in name][skip : skip + 1]
print("==PROF== Connected to process 7 (graphc)")
print('"ID","Process ID","Kernel Name",' + ",".join(f'"{metric}"' for metric in metrics))
print('"","","",' + ",".join('"unit"' for _ in metrics))
for number, (name, nanoseconds) in enumerate(kernels):
    values = [f'"{nanoseconds:,}"' if metric.startswith("gpu__time") else '"40.5"' for metric in metrics]
    print(f'"{number}","7","{name}",' + ",".join(values))
"#;

#[test]
fn the_longest_kernels_are_found_and_looked_at() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = |name: &str| folder.path().join(name);
    let names = ["run.py", "kit.py", "items.py", "right.py", "fast.py", "why.py", "data.py"];
    for name in names {
        std::fs::copy(kit().join(name), path(name)).expect("it is copied");
    }
    program(&path("tools/ncu"), NCU);
    program(&path("bin/graphc"), "#!/bin/sh\n");
    std::fs::create_dir_all(path("plans")).expect("a folder");
    for name in ["gpt2", "resnet50"] {
        std::fs::write(path(&format!("plans/{name}-small.json")), "{}").expect("a plan");
    }
    std::fs::create_dir_all(path("out")).expect("a folder");
    let paths = format!("{}:{}", path("tools").display(), std::env::var("PATH").expect("a path"));
    let mut command = Command::new("python3");
    command.arg(path("run.py")).args(["--item", "why", "longest kernels"]).arg(path("out"));
    let output = command.env("PATH", paths).env("CARD_SMALL", "1").output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let text = std::fs::read_to_string(path("out/why.jsonl")).expect("results");
    let of_gpt2 = |line: &&str| line.contains("\"gpt2\"") && line.contains("\"kernels\"");
    let last = text.lines().rfind(of_gpt2).expect("kernels");
    let value: Value = serde_json::from_str(last).expect("JSON");
    let kernels = value["result"]["kernels"].as_array().expect("a list");
    let shown = |kernel: &Value| format!("{} {}", kernel["kernel"], kernel["launches"]);
    let shown: Vec<String> = kernels.iter().map(shown).collect();
    assert_eq!(shown, ["\"gemm\" 1", "\"chain\" 2"]);
    assert_eq!(kernels[1]["longest"].as_f64(), Some(5000.0 * 1e-9));
    assert_eq!(kernels[1]["memory"].as_f64(), Some(40.5));
    let table = table(&[&path("out")]);
    assert!(String::from_utf8_lossy(&table.stdout).contains("| gemm | 1 | 0.009 | 53 % |"));
}

/// Results of a rehearsal on the double, and the table of them.
fn sample() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/card_sample")
}

fn table(args: &[&Path]) -> Output {
    Command::new("python3").arg(kit().join("table.py")).args(args).output().expect("it starts")
}

/// `GRAPHC_BLESS=1` writes the table anew.
#[test]
fn a_table_is_made_of_what_was_found() {
    if !has_python() {
        return;
    }
    let all = ["right", "fast", "why"].map(|part| sample().join(part));
    let made = table(&all.each_ref().map(PathBuf::as_path));
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let made = String::from_utf8(made.stdout).expect("UTF-8");
    let path = sample().join("table.md");
    if std::env::var_os("GRAPHC_BLESS").is_some() {
        std::fs::write(&path, &made).expect("a file");
    }
    assert_eq!(made, std::fs::read_to_string(&path).expect("table.md"), "GRAPHC_BLESS=1 writes it");
    assert!(made.contains("Not of a card"));
    let part = table(&[&all[1]]);
    let part = String::from_utf8(part.stdout).expect("UTF-8");
    assert!(part.contains("`./run.sh right OUT`") && part.contains("`./run.sh why OUT`"), "{part}");
    let nothing = table(&[&sample().join("none")]);
    assert!(String::from_utf8_lossy(&nothing.stdout).contains("Nothing was found"));
}

#[test]
fn no_rehearsal_stands_in_a_document() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let document = folder.path().join("gpu.md");
    let before = "# Cards\n\n<!-- card -->\nold\n<!-- /card -->\n\nbehind\n";
    std::fs::write(&document, before).expect("a file");
    let put = |results: &Path| table(&[results, Path::new("--into"), &document]);
    assert_eq!(put(&sample().join("right")).status.code(), Some(1));
    assert_eq!(std::fs::read_to_string(&document).expect("a file"), before);
    // The same as if a card had said it.
    let text = std::fs::read_to_string(sample().join("right/right.jsonl")).expect("results");
    let text = text.replace("\"small\": true", "\"small\": false");
    std::fs::write(folder.path().join("right.jsonl"), text).expect("a file");
    assert!(put(folder.path()).status.success());
    let after = std::fs::read_to_string(&document).expect("a file");
    assert!(after.starts_with("# Cards\n\n<!-- card -->\n\n## On a card\n"), "{after}");
    assert!(after.ends_with("\n<!-- /card -->\n\nbehind\n") && !after.contains("old"), "{after}");
}
