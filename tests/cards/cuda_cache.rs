//! Kernels that are kept: compiled side by side and once, taken along to a machine without a compiler, and believed only where nobody
//! else can have written them. On the double of NVIDIA's libraries (`tests/gpu_double`).

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::machine::{Machine, arguments, checked, near};
use crate::support;
use crate::support::{Reference, compile_library, losses, reference};
use sha2::{Digest, Sha256};

/// The version of the cache's format, with which the names and the contents of its files begin.
const FORM: &str = "graphc-2-";

/// Plans of trainings: the model and the options besides its own.
const PLANS: [(&str, &[&str]); 4] = [
    ("mlp", &["--mesh", "1"]),
    ("gpt", &["--mesh", "2", "--cluster", "dgx-h100", "--strategy", "zero2"]),
    ("gpt", &["--mesh", "2", "--stages", "2", "--microbatches", "2"]),
    ("gpt", &["--mesh", "2x2", "--precision", "bf16"]),
];

impl Machine {
    /// Writes the plan of a reference's training.
    fn plan(&self, name: &str, extra: &[&str], file: &str) -> String {
        let plan = self.file(file);
        let model = reference(name).join("model.onnx").display().to_string();
        let mut args = vec!["compile".to_owned(), model, "-o".to_owned(), plan.clone()];
        args.extend(Reference::load(name).args);
        let at = args.iter().position(|arg| arg == "--steps").expect("steps");
        args.drain(at..at + 2);
        args.extend(extra.iter().map(ToString::to_string));
        checked(self.command(args));
        plan
    }

    /// Writes all plans.
    fn plans(&self) -> Vec<String> {
        let plan = |(at, (name, extra)): (usize, &(&str, &[&str]))| {
            self.plan(name, extra, &format!("{at}.json"))
        };
        PLANS.iter().enumerate().map(plan).collect()
    }

    /// Compiles the kernels of plans to a folder: what is said.
    fn prepare(&self, plans: &[String], folder: &Path) -> String {
        let mut command = self.command(["kernels", "--capability", "9.0", "-o"]);
        command.arg(folder).args(plans);
        String::from_utf8(checked(command).stdout).expect("UTF-8")
    }

    /// The training of a plan, with kernels of a folder.
    fn training(&self, name: &str, plan: &str, kept: &Path) -> Command {
        let data = reference(name).join("data.safetensors").display().to_string();
        let metrics = self.file("metrics.jsonl");
        let mut command = self.command(["train", plan, "--data", &data, "--device", "cuda"]);
        command.args(["--metrics", &metrics, "--steps", "2"]).env("GRAPHC_CACHE", kept);
        command
    }

    /// A training of a small model, with kernels of a folder.
    fn small(&self, kept: &Path) -> Command {
        let metrics = self.file("metrics.jsonl");
        let mut command = self.command(arguments("mlp", &[], &metrics));
        command.env("GRAPHC_CACHE", kept);
        command
    }

    /// Has the small model trained, to the losses of PyTorch; what is said meanwhile, but for what the double says of images that it
    /// does not take.
    fn train_with_kernels(&self, kept: &Path) -> String {
        let output = self.small(kept).output().expect("graphc starts");
        let said = text(&output);
        assert!(output.status.success(), "{said}");
        let metrics = std::fs::read(self.file("metrics.jsonl")).expect("metrics");
        near("mlp", &[], &losses(&metrics), Reference::load("mlp").tolerance);
        let refused = |line: &&str| line.starts_with("gpu double: cuModuleLoadData: the image");
        said.lines().filter(|line| !refused(line)).map(|line| format!("{line}\n")).collect()
    }

    /// Takes the compiler from the machine.
    fn lose_compiler(&self) {
        for name in ["libnvrtc.so", "libnvrtc.so.13"] {
            std::fs::remove_file(self.file(name)).expect("a link to the double");
        }
    }

    /// Puts a library of this source in the compiler's place.
    fn replace_compiler(&self, source: &str) {
        self.lose_compiler();
        compile_library(source, Path::new(&self.file("libnvrtc.so")));
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The kept files of a folder.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

/// The bytes of a file that holds this under its name.
fn holding(path: &Path, content: &[u8]) -> Vec<u8> {
    let name = path.file_name().expect("a name").to_string_lossy();
    let key = name.strip_prefix(FORM).expect("a kept file");
    let digest = Sha256::new().chain_update(key).chain_update([0]).chain_update(content).finalize();
    [FORM.as_bytes(), &digest, content].concat()
}

fn content(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("a kept file")[FORM.len() + 32..].to_vec()
}

/// Kernels that `graphc kernels` compiles are all that trainings need: they run where there is no compiler.
#[test]
fn kernels_are_taken_to_a_machine_without_a_compiler() {
    let Some(machine) = Machine::new() else { return };
    let folder = PathBuf::from(machine.file("kernels"));
    let plans = machine.plans();
    let kernels = |count: usize| format!(", of which {count} were compiled now");
    let said = machine.prepare(&plans, &folder);
    let count = entries(&folder).len();
    assert!(said.contains(&format!("{count} kernels")) && said.contains(&kernels(count)), "{said}");
    assert!(machine.prepare(&plans, &folder).contains(&kernels(0)), "they are there");
    machine.lose_compiler();
    for ((name, extra), plan) in PLANS.iter().zip(&plans) {
        checked(machine.training(name, plan, &folder));
        let none = PathBuf::from(machine.file("none"));
        let output = machine.training(name, plan, &none).output().expect("graphc starts");
        assert!(text(&output).contains("NVRTC"), "{name} {extra:?}: {}", text(&output));
    }
    assert_eq!(entries(&folder).len(), count, "nothing was compiled");
}

/// The kernels are all that trainings need, also where cuBLASLt refuses products, their ends or calls that it has promised, and where it is
/// missing.
#[test]
fn kernels_are_taken_to_a_machine_without_a_library_of_products() {
    let Some(machine) = Machine::new() else { return };
    let folder = PathBuf::from(machine.file("kernels"));
    let plans = machine.plans();
    machine.prepare(&plans, &folder);
    let count = entries(&folder).len();
    machine.lose_compiler();
    let train = |refused: &[(&str, &str)]| {
        for ((name, _), plan) in PLANS.iter().zip(&plans) {
            let mut command = machine.training(name, plan, &folder);
            command.envs(refused.iter().copied());
            checked(command);
        }
    };
    for how in ["GPU_DOUBLE_UNSUPPORTED", "GPU_DOUBLE_FAILING"] {
        ["epilogues", "all"].iter().for_each(|what| train(&[(how, what)]));
    }
    machine.remove("libcublasLt");
    train(&[]);
    assert_eq!(entries(&folder).len(), count, "nothing was compiled");
}

/// A compiler that can do nothing, and says that it is newer.
const NEWER: &str = r#"
int nvrtcVersion(int *major, int *minor) { *major = 13; *minor = 99; return 0; }
int nvrtcGetNumSupportedArchs(int *count) { *count = 0; return 0; }
int nvrtcGetSupportedArchs(int *all) { return 0; }
int nvrtcCreateProgram(void **program) { *program = program; return 0; }
int nvrtcDestroyProgram(void **program) { return 0; }
int nvrtcCompileProgram(void *program) { return 6; }
int nvrtcGetCUBINSize(void *program, unsigned long *size) { return 1; }
int nvrtcGetCUBIN(void *program, char *binary) { return 1; }
int nvrtcGetProgramLogSize(void *program, unsigned long *size) { *size = 9; return 0; }
int nvrtcGetProgramLog(void *program, char *log) { __builtin_memcpy(log, "not mine", 9); return 0; }
"#;

/// Kernels that were prepared are used whatever compiler is there. Kernels that this machine has compiled are used only with the compiler
/// that made them.
#[test]
fn another_compiler_takes_what_was_prepared() {
    let Some(machine) = Machine::new() else { return };
    let (prepared, kept) = (machine.file("prepared"), PathBuf::from(machine.file("kept")));
    let plan = machine.plan("mlp", &["--mesh", "1"], "plan.json");
    checked(machine.command(["kernels", &plan, "--capability", "9.0", "-o", &prepared]));
    checked(machine.training("mlp", &plan, &kept));
    machine.replace_compiler(NEWER);
    checked(machine.training("mlp", &plan, Path::new(&prepared)));
    let output = machine.training("mlp", &plan, &kept).output().expect("graphc starts");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("not mine"), "{}", text(&output));
    let again = machine.training("mlp", &plan, &kept).output().expect("graphc starts");
    assert_eq!(text(&again), text(&output), "the first of all that cannot be compiled");
}

/// A driver takes binaries of its major version of CUDA and of older ones.
#[test]
fn kernels_for_a_newer_driver_are_not_taken() {
    let Some(machine) = Machine::new() else { return };
    let folder = machine.file("prepared");
    let plan = machine.plan("mlp", &["--mesh", "1"], "plan.json");
    checked(machine.command(["kernels", &plan, "--capability", "9.0", "-o", &folder]));
    let prepared = entries(Path::new(&folder));
    for major in [12, 14] {
        for path in &prepared {
            let mut changed = content(path);
            changed[..4].copy_from_slice(&i32::to_le_bytes(major));
            std::fs::write(path, holding(path, &changed)).expect("writable");
        }
        let said = text(&checked(machine.training("mlp", &plan, Path::new(&folder))));
        assert_eq!(said.contains("NVRTC 14"), major == 14, "{said}");
    }
    assert!(entries(Path::new(&folder)).len() > prepared.len(), "they were compiled here");
}

/// NVIDIA's own compiler, without a driver, makes machine code, which the double leaves alone; and it leaves alone what was made for
/// the double.
#[test]
fn kernels_of_cards_and_of_the_double_are_kept_apart() {
    let Some(machine) = Machine::new() else { return };
    let folder = PathBuf::from(machine.file("prepared"));
    let plan = machine.plan("mlp", &["--mesh", "1"], "plan.json");
    let kernels = |mut command: Command| {
        let args = ["kernels", &plan, "--capability", "9.0", "-o"];
        command.args(args).arg(&folder);
        String::from_utf8(checked(command).stdout).expect("UTF-8")
    };
    let mut alone = Command::new(env!("CARGO_BIN_EXE_graphc"));
    let compiler = gpu_double::nvrtc::path().expect("installed");
    alone.env("LD_LIBRARY_PATH", compiler.parent().expect("a folder"));
    kernels(alone);
    let machine_code = entries(&folder);
    for path in &machine_code {
        let binary = content(path).split_off(8);
        // ELF of 64 bits for EM_CUDA.
        assert!(binary.starts_with(b"\x7fELF\x02") && binary[18..20] == [190, 0], "{path:?}");
        let ptx = b".version ";
        assert!(!binary.windows(ptx.len()).any(|part| part == ptx), "{path:?} has PTX");
    }
    checked(machine.training("mlp", &plan, &folder));
    let said = kernels(machine.command([] as [&str; 0]));
    let all = machine_code.len();
    assert!(
        said.contains(&format!("{all} kernels")) && said.contains(&format!(" {all} were")),
        "{said}"
    );
    assert!(entries(&folder).len() > 2 * all, "prepared for both, and compiled by the training");
}

/// Counts what is compiled, and how many threads do so at one time; the first few wait a second for another.
const COUNTING: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void *found(const char *name) { return dlsym(dlopen(getenv("COMPILER"), RTLD_NOW), name); }
#define HAND_ON(name, parameters, arguments) \
    int name parameters { return ((int(*) parameters)found(#name)) arguments; }
HAND_ON(nvrtcVersion, (int *a, int *b), (a, b))
HAND_ON(nvrtcGetNumSupportedArchs, (int *a), (a))
HAND_ON(nvrtcGetSupportedArchs, (int *a), (a))
HAND_ON(nvrtcCreateProgram, (void **a, char *b, char *c, int d, void *e, void *f), (a, b, c, d, e, f))
HAND_ON(nvrtcDestroyProgram, (void **a), (a))
HAND_ON(nvrtcGetCUBINSize, (void *a, size_t *b), (a, b))
HAND_ON(nvrtcGetCUBIN, (void *a, char *b), (a, b))
HAND_ON(nvrtcGetProgramLogSize, (void *a, size_t *b), (a, b))
HAND_ON(nvrtcGetProgramLog, (void *a, char *b), (a, b))
static atomic_int count, inside, most;
int nvrtcCompileProgram(void *program, int options, char **texts) {
    count++;
    int now = ++inside;
    if (now > most) most = now;
    for (int i = 0; i < 1000 && most < 2 && count < 4; i++) usleep(1000);
    int code = ((int (*)(void *, int, char **))found("nvrtcCompileProgram"))(program, options, texts);
    inside--;
    return code;
}
__attribute__((destructor)) static void tell(void) {
    FILE *file = fopen(getenv("COUNTS"), "w");
    fprintf(file, "%d %d", count, most);
    fclose(file);
}
"#;

/// Threads of one process are ranks with the same kernels.
#[test]
fn kernels_are_compiled_side_by_side_and_each_once() {
    let Some(machine) = Machine::new() else { return };
    machine.replace_compiler(COUNTING);
    let (kept, counts) = (PathBuf::from(machine.file("kept")), machine.file("counts"));
    let plan = machine.plan("gpt", &["--mesh", "2", "--strategy", "zero2"], "plan.json");
    let train = || {
        let mut command = machine.training("gpt", &plan, &kept);
        let double = gpu_double::library().expect("built");
        checked_quietly(command.env("COMPILER", double).env("COUNTS", &counts));
        let text = std::fs::read_to_string(&counts).expect("counts");
        let (count, most) = text.split_once(' ').expect("two numbers");
        [count, most].map(|number| number.parse::<usize>().expect("a number"))
    };
    let [count, most] = train();
    assert_eq!(count, entries(&kept).len(), "each is kept, and was compiled once");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    assert!((cores.min(2)..=cores).contains(&most), "{most} threads at a time on {cores} cores");
    assert_eq!(train()[0], 0, "all are kept");
}

fn checked_quietly(command: &mut Command) {
    let output = command.output().expect("graphc starts");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output));
}

/// A file that stands in the place of a kept kernel but is none is replaced, and there is one message about it.
#[test]
fn what_is_no_kernel_is_compiled_again() {
    let Some(machine) = Machine::new() else { return };
    let kept = PathBuf::from(machine.file("kept"));
    assert_eq!(machine.train_with_kernels(&kept), "");
    let good: Vec<(PathBuf, Vec<u8>)> =
        entries(&kept).into_iter().map(|path| (path.clone(), content(&path))).collect();
    type Plant<'a> = &'a dyn Fn(&Path);
    let junk: [(&str, &str, Plant<'_>); 5] = [
        ("under its own digest", "compiled again", &|path| {
            std::fs::write(path, holding(path, b"junk")).expect("writable");
        }),
        ("machine code, of which nothing is said", "", &|path| {
            std::fs::write(path, holding(path, b"\x7fELF")).expect("writable");
        }),
        ("cut off", "made again", &|path| std::fs::write(path, FORM).expect("writable")),
        ("of others", "made again", &|path| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o666)).expect("our own");
        }),
        ("a pipe", "made again", &|path| {
            std::fs::remove_file(path).expect("writable");
            let made = Command::new("mkfifo").arg(path).status().expect("mkfifo");
            assert!(made.success());
        }),
    ];
    for (what, says, plant) in junk {
        good.iter().for_each(|(path, _)| plant(path));
        let said = machine.train_with_kernels(&kept);
        assert!(said.contains(says) && said.lines().count() == says.len().min(1), "{what}: {said}");
        for (path, content_before) in &good {
            assert!(content(path) == *content_before, "{what}: it is replaced");
        }
        assert_eq!(machine.train_with_kernels(&kept), "", "{what}");
    }
}

/// A folder that others may write holds nothing that is executed, and gets nothing.
#[test]
fn a_folder_that_others_may_write_is_not_used() {
    let Some(machine) = Machine::new() else { return };
    let kept = PathBuf::from(machine.file("kept"));
    machine.train_with_kernels(&kept);
    for path in entries(&kept) {
        std::fs::write(&path, holding(&path, b"planted")).expect("writable");
    }
    std::fs::set_permissions(&kept, PermissionsExt::from_mode(0o777)).expect("our own");
    let said = machine.train_with_kernels(&kept);
    assert!(said.contains("chmod go-w") && said.lines().count() == 1, "{said}");
    assert!(entries(&kept).iter().all(|path| content(path) == b"planted"), "left alone");
    let folder = kept.display().to_string();
    let plan = machine.plan("mlp", &["--mesh", "1"], "plan.json");
    let mut command = machine.command(["kernels", &plan, "--capability", "9.0", "-o", &folder]);
    let output = command.output().expect("graphc starts");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("chmod go-w") && text(&output).contains(&folder));
}

/// A variable that is empty, or a relative path where none is allowed, is as none.
#[test]
fn an_empty_variable_names_no_folder() {
    let Some(machine) = Machine::new() else { return };
    let here = PathBuf::from(machine.file("here"));
    std::fs::create_dir(&here).expect("writable");
    let home = machine.file("home");
    let train = |caches: &str| {
        let mut command = machine.small(Path::new(""));
        command.env("XDG_CACHE_HOME", caches).env("HOME", &home).current_dir(&here);
        checked_quietly(&mut command);
        assert!(entries(&here).is_empty(), "{caches:?}: {:?}", entries(&here));
    };
    train(&machine.file("caches"));
    assert!(!entries(&Path::new(&machine.file("caches")).join("graphc")).is_empty());
    assert!(!Path::new(&home).exists());
    for none in ["", "relative"] {
        train(none);
        let kept = Path::new(&home).join(".cache/graphc");
        assert!(!entries(&kept).is_empty());
        std::fs::remove_dir_all(kept).expect("writable");
    }
}

/// A capability that is not two numbers, or that cannot be used, is an error.
#[test]
fn a_capability_is_two_numbers() {
    let output = support::graphc(["kernels", "plan.json", "--capability", "sm_90", "-o", "none"]);
    assert!(text(&output).contains("e.g. 9.0"), "{}", text(&output));
    let Some(machine) = Machine::new() else { return };
    let (plan, folder) = (machine.plan("mlp", &["--mesh", "1"], "plan.json"), machine.file("none"));
    for (capability, says) in [("7.5", "8.0"), ("99.0", "does not know")] {
        let args = ["kernels", &plan, "--capability", capability, "-o", &folder];
        let output = machine.command(args).output().expect("graphc starts");
        assert_eq!(output.status.code(), Some(1), "{capability}");
        assert!(text(&output).contains(says), "{}", text(&output));
    }
}
