//! The kit for machines with cards (benchmarks/card): the checker of kernels, on the double of NVIDIA's libraries; what runs its parts, where
//! an item fails, hangs, or the part is cut off; and the table of what was found. The whole kit is rehearsed by
//! `benchmarks/card/rehearse.sh`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::machine::Machine;
use expect_test::expect_file;
use serde_json::Value;
use tempfile::TempDir;

use crate::support;

fn kit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benchmarks/card")
}

/// An example. `cargo test` builds them beside the test binaries.
fn example(name: &str) -> PathBuf {
    let mut path = std::env::current_exe().expect("a path");
    path.pop();
    path.pop();
    path.join("examples").join(name)
}

/// The checker of kernels.
fn checker(machine: &Machine, args: &[&str]) -> Command {
    let mut command = Command::new(example("card_kernels"));
    let of_graphc = machine.command([""; 0]);
    let variables = of_graphc.get_envs().filter_map(|(name, value)| Some((name, value?)));
    command.args(args).envs(variables).env("GPU_DOUBLE_DEVICES", "1");
    command
}

fn lines(output: &Output) -> Vec<Value> {
    support::json_lines(&String::from_utf8_lossy(&output.stdout))
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
    assert_eq!(summary["untried"], serde_json::json!([]), "ops without a trial");
}

/// A product fails on a card that has no memory for cuBLASLt, and its process ends. Another process goes on behind it.
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

/// The kit's programs in Python.
fn copy_programs(to: &Path) {
    let is_program =
        |path: &PathBuf| path.extension().is_some_and(|end| end == "py" || end == "sh");
    let files = kit().read_dir().expect("the kit").flatten().map(|entry| entry.path());
    for file in files.filter(is_program) {
        let name = file.file_name().expect("a name");
        std::fs::copy(&file, to.join(name)).expect("it is copied");
    }
}

/// A kit whose items are these lines of Python.
fn kit_of(items: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a scratch folder");
    copy_programs(folder.path());
    let head = "import os, sys, time\nfrom dataclasses import dataclass\nfrom typing import Any\nfrom kit import Place, run, scratch, start\n\
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
    support::json_lines(
        &std::fs::read_to_string(folder.join("out/right.jsonl")).unwrap_or_default(),
    )
}

fn end_of<'a>(lines: &'a [Value], item: &str) -> &'a Value {
    let is_end = |line: &&Value| line["item"] == item && line["ended"].is_string();
    lines.iter().find(is_end).unwrap_or_else(|| panic!("no end of {item} in {lines:#?}"))
}

/// Whether a process computes still: one that has ended may wait for whoever has started it.
fn lives(process: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, behind)| !behind.trim_start().starts_with(['Z', 'X']))
}

/// Waits until what a test is about has come, for as long as a busy machine may take.
fn wait_for(what: &str, has_come: impl Fn() -> bool) {
    let begun = Instant::now();
    while !has_come() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what} within a minute");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// An item that tells its process and one of a session of its own, and waits.
const LEAVES: &str = "def leaves(place):\n    of_its_own = start(['sleep', '1000'], start_new_session=True)\n    \
    place.tell(processes=[os.getpid(), of_its_own.pid])\n    time.sleep(1000)\n";

/// The processes of [`LEAVES`], as far as they are told.
fn processes(folder: &Path) -> Vec<u64> {
    let told = results(folder);
    let told = told.iter().filter_map(|line| line["result"]["processes"].as_array());
    told.flatten().filter_map(Value::as_u64).collect()
}

#[test]
fn no_process_outlives_its_item() {
    if !has_python() {
        return;
    }
    let kit = kit_of(&format!("{LEAVES}PARTS = {{'right': [Item('leaves', 3, leaves)]}}\n"));
    let output = start(kit.path(), "60").output().expect("it starts");
    assert!(output.status.success());
    assert_eq!(end_of(&results(kit.path()), "leaves")["ended"], "timeout");
    let processes = processes(kit.path());
    assert_eq!(processes.len(), 2);
    wait_for("they end", || !processes.iter().any(|&process| lives(process)));
}

#[test]
fn no_process_outlives_its_part() {
    if !has_python() {
        return;
    }
    // One that is killed can end nothing itself.
    for signal in ["-TERM", "-KILL"] {
        let kit = kit_of(&format!("{LEAVES}PARTS = {{'right': [Item('leaves', 99, leaves)]}}\n"));
        let mut child = start(kit.path(), "200").spawn().expect("it starts");
        wait_for("the item begins", || !processes(kit.path()).is_empty());
        let processes = processes(kit.path());
        assert!(processes.len() == 2 && processes.iter().all(|&process| lives(process)));
        let killed = Command::new("kill").arg(signal).arg(child.id().to_string()).status();
        assert!(
            killed.expect("kill starts").success() && !child.wait().expect("it ends").success()
        );
        wait_for("they end", || !processes.iter().any(|&process| lives(process)));
    }
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
    wait_for("the second item begins", || {
        results(kit.path()).iter().any(|line| line["result"]["sleeps"] == true)
    });
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

/// Stands for graphc: a step is predicted, and trained.
const GRAPHC: &str = r#"#!/usr/bin/env python3
import sys
if sys.argv[1] == "simulate":
    print('{"step_seconds": 1.0, "mfu": 0.5}')
if sys.argv[1] == "train":
    with open(sys.argv[sys.argv.index("--metrics") + 1], "w") as file:
        file.writelines('{"seconds": 2.0, "loss": 3.0}\n' for _ in range(int(sys.argv[sys.argv.index("--steps") + 1])))
"#;

/// Stands for PyTorch's side, one mode of which ends its process and another of which never ends.
const PEER: &str = r#"import sys, time
for line in sys.stdin:
    mode, steps = line.split()
    if mode == "compile":
        sys.exit(1)
    if mode == "updates":
        time.sleep(1000)
    print('{"seconds": [4.0], "losses": [3.0, 3.0], "memory": null}', flush=True)
"#;

/// A kit with these stand-ins.
fn kit_of_peers() -> TempDir {
    let folder = tempfile::tempdir().expect("a scratch folder");
    copy_programs(folder.path());
    program(&folder.path().join("bin/graphc"), GRAPHC);
    program(&folder.path().join("peers/train.py"), PEER);
    std::fs::write(folder.path().join("torch.py"), "").expect("a module");
    std::fs::create_dir_all(folder.path().join("out")).expect("a folder");
    let mut models = Command::new(example("card_models"));
    assert!(models.arg(folder.path().join("models")).status().expect("it starts").success());
    folder
}

#[test]
fn a_mode_of_pytorch_that_ends_leaves_the_others_in_the_comparison() {
    if !has_python() {
        return;
    }
    let kit = kit_of_peers();
    let mut command = Command::new("python3");
    command.current_dir(&kit).args(["run.py", "--item", "fast", "llama", "out"]);
    let output = command.env("CARD_SMALL", "1").output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let text = std::fs::read_to_string(kit.path().join("out/fast.jsonl")).expect("results");
    let last = text.lines().rfind(|line| line.contains("\"sides\"")).expect("results");
    let last: Value = serde_json::from_str(last).expect("JSON");
    let of = |side: &str| last["result"]["sides"][side]["seconds"].clone();
    // Two rounds: each of three steps of graphc, and of one of PyTorch.
    assert_eq!(
        (of("graphc")["count"].as_u64(), of("graphc")["median"].as_f64()),
        (Some(6), Some(2.0))
    );
    assert_eq!(of("PyTorch, eager")["count"].as_u64(), Some(2));
    let failed = last["result"]["failed"].as_object().expect("failures");
    assert_eq!(failed.keys().collect::<Vec<_>>(), ["PyTorch, torch.compile"]);
}

/// Runs lines of Python in a kit.
fn python(kit: &Path, lines: &str) -> String {
    let mut command = Command::new("python3");
    let output = command.current_dir(kit).args(["-c", lines]).env("CARD_SMALL", "1").output();
    let output = output.expect("it starts");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_mode_of_pytorch_that_does_not_end_is_ended() {
    if !has_python() {
        return;
    }
    let kit = kit_of_peers();
    let lines = "import fast\npeer = fast.Peer('gpt2', 'eager')\n\
        for what in ('eager', 'updates', 'updates'):\n    try:\n        print('answer', peer.ask(what, 1, 2.0)['seconds'])\n    \
        except fast.Failed as failed:\n        print('failed', failed)\nprint('ended', peer.process.wait())\n";
    let said = python(kit.path(), lines);
    let said: Vec<&str> = said.lines().filter(|line| !line.starts_with("PyTorch, ")).collect();
    assert!(said.len() == 4 && said[0] == "answer [4.0]" && said[3] == "ended -9", "{said:?}");
    assert!(said[1].contains("more than 2 s") && said[2].starts_with("failed"), "{said:?}");
}

#[test]
fn kernels_are_kept_where_graphc_believes_them() {
    use std::os::unix::fs::PermissionsExt;
    if !has_python() {
        return;
    }
    let kit = kit_of(
        "import kit\n\
         def makes(place):\n    kit.PLACES[:] = [place]\n    place.tell(folder=str(kit.kernel_cache()))\n    \
         run(['sh', '-c', 'echo note: nothing is kept in here >&2'])\n\
         PARTS = {'right': [Item('makes', 30, makes)]}\n",
    );
    let brought = kit.path().join("kernels/graphc-2-sample");
    program(&brought, "");
    std::fs::set_permissions(&brought, std::fs::Permissions::from_mode(0o666)).expect("a mode");
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 0; exec ./run.sh right out"]).current_dir(&kit);
    assert!(shell.output().expect("it starts").status.success());
    let lines = results(kit.path());
    let told = |key: &str| lines.iter().find_map(|line| line["result"][key].as_str());
    let folder = PathBuf::from(told("folder").expect("a folder"));
    let mode = |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode();
    assert_eq!(mode(&folder) & 0o777, 0o700);
    assert_eq!(mode(&folder.join("graphc-2-sample")) & 0o777, 0o600);
    assert_eq!(told("note"), Some("note: nothing is kept in here"));
}

/// Stands for NVIDIA's `ncu`, which no machine without a card has: a table in its form, of four launches, or of the one that is asked for by
/// the whole name. It does not know the metric of tensor cores, and gives nothing where that is asked for.
const NCU: &str = r#"#!/usr/bin/env python3
import re, sys
said = lambda option: sys.argv[sys.argv.index(option) + 1]
metrics = said("--metrics").split(",")
kernels = [("chain(float *)", 3000), ("void gemm<float, (int)2>(T1)", 9000), ("void gemm<half, (int)2>(T1)", 100), ("chain(float *)", 5000)]
print("==PROF== Connected to process 7 (graphc)")
if any("tensor" in metric for metric in metrics):
    sys.exit("==ERROR== Failed to find metric")
if "--kernel-name" in sys.argv:
    assert said("--kernel-name-base") == "demangled"
    form, pattern = said("--kernel-name").split(":", 1)
    assert form == "regex"
    skip = int(said("--launch-skip"))
    kernels = [kernel for kernel in kernels if re.search(pattern, kernel[0])][skip : skip + 1]
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
    copy_programs(folder.path());
    program(&path("tools/ncu"), NCU);
    program(&path("bin/graphc"), GRAPHC);
    let mut models = Command::new(example("card_models"));
    assert!(models.arg(path("models")).status().expect("it starts").success());
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
    for model in ["gpt2", "resnet50"] {
        let of_it =
            |line: &&str| line.contains(&format!("\"{model}\"")) && line.contains("\"kernels\"");
        let value = text.lines().rfind(of_it).expect("kernels");
        let value: Value = serde_json::from_str(value).expect("JSON");
        let kernels = value["result"]["kernels"].as_array().expect("a list");
        let shown = |kernel: &Value| format!("{} {}", kernel["kernel"], kernel["launches"]);
        let shown: Vec<String> = kernels.iter().map(shown).collect();
        assert_eq!(shown, ["\"gemm\" 1", "\"chain\" 2", "\"gemm\" 1"]);
        assert_eq!(kernels[1]["longest"].as_f64(), Some(5000.0 * 1e-9));
        assert_eq!(kernels[1]["memory"].as_f64(), Some(40.5));
        assert!(kernels[1]["tensor cores"].is_null());
    }
    let table = table(&[&path("out")]);
    let table = String::from_utf8_lossy(&table.stdout);
    assert!(table.contains("| gemm | 1 | 0.009 | 53 % |"), "{table}");
}

/// Results of a rehearsal on the double, and the table of them.
fn sample() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/card_sample")
}

/// The table of the results in a folder, which stands there as well. `UPDATE_EXPECT=1` writes it anew.
fn check_table(of: &Path) -> String {
    let parts = ["right", "fast", "why"].map(|part| of.join(part));
    let made = table(&parts.each_ref().map(PathBuf::as_path));
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let made = String::from_utf8(made.stdout).expect("UTF-8");
    expect_file![of.join("table.md")].assert_eq(&made);
    made
}

fn table(args: &[&Path]) -> Output {
    Command::new("python3").arg(kit().join("table.py")).args(args).output().expect("it starts")
}

#[test]
fn a_table_is_made_of_what_was_found() {
    if !has_python() {
        return;
    }
    assert!(check_table(&sample()).contains("Not of a card"));
    let part = table(&[&sample().join("fast")]);
    let part = String::from_utf8(part.stdout).expect("UTF-8");
    assert!(part.contains("`./run.sh right OUT`") && part.contains("`./run.sh why OUT`"), "{part}");
    let nothing = table(&[&sample().join("none")]);
    assert!(String::from_utf8_lossy(&nothing.stdout).contains("Nothing was found"));
}

/// A table shows all that a card may give: results that the double does not have, failures, work that was left out, and a line that was cut
/// off.
#[test]
fn a_table_shows_all_that_a_card_may_give() {
    if !has_python() {
        return;
    }
    let folder = sample().with_file_name("card_made_up");
    let table = check_table(&folder);
    let text = std::fs::read_to_string(folder.join("fast/fast.jsonl")).expect("results");
    assert!(text.lines().any(|line| serde_json::from_str::<Value>(line).is_err()));
    for row in [
        "| gpt2 | PyTorch, eager | 2,000 (1,000 to 4,000) | 4,096 tokens/s | 2 | 12 % | 4.00 |",
        "| gpt2 | PyTorch, torch.compile | failed: PyTorch has ended in mode compile",
        "| adam_update | 20 | 100 | 250 | 2.5 | memory | 25 % |",
        "AdamW of GPT-2 alone: PyTorch, fused, 500 (250 to 1,000) ms; graphc, in a step, 250 ms.",
        "the plan has 7.00 GB, the driver says 8.00 GB",
        "| calibrate | full | failed | graphc calibrate: status -9: killed after 80 s |",
        "| memcheck | gpt | skipped | no time is left |",
        "| racecheck | mlp | **no** |",
        "ops without a trial: made_up",
        "nothing is kept in /made/up",
        "Part `fast` was cut off.",
    ] {
        assert!(table.contains(row), "{row} in {table}");
    }
    assert!(!table.contains("rehearsal"));
}

#[test]
fn no_rehearsal_stands_in_a_document() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let document = folder.path().join("gpu.md");
    let other = "## On a card: another\n\nkept\n\n";
    let before = format!("# Cards\n\n<!-- card -->\n\n{other}<!-- /card -->\n\nbehind\n");
    std::fs::write(&document, &before).expect("a file");
    let put = |results: &Path| table(&[results, Path::new("--into"), &document]);
    assert_eq!(put(&sample().join("right")).status.code(), Some(1));
    assert_eq!(std::fs::read_to_string(&document).expect("a file"), before);
    // The same as if a card had said it.
    let text = std::fs::read_to_string(sample().join("right/right.jsonl")).expect("results");
    let text = text.replace("\"small\": true", "\"small\": false");
    std::fs::write(folder.path().join("right.jsonl"), text).expect("a file");
    assert!(put(folder.path()).status.success());
    let after = std::fs::read_to_string(&document).expect("a file");
    assert!(after.starts_with("# Cards\n\n<!-- card -->\n\n## On a card: "), "{after}");
    assert!(after.ends_with(&format!("\n\n{other}<!-- /card -->\n\nbehind\n")), "{after}");
    assert!(put(folder.path()).status.success());
    let again = std::fs::read_to_string(&document).expect("a file");
    assert_eq!(again, after, "a card's section takes the place of its own alone");
}
