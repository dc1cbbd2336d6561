//! NVIDIA's libraries that are not as graphc needs them: it is said which, where, and what to do.

use std::path::Path;
use std::process::{Command, Output};

use crate::machine::{Machine, arguments};
use crate::support::compile_library;
use tempfile::TempDir;

/// The functions of the driver that graphc calls, as they stand in its source.
fn functions() -> Vec<&'static str> {
    let source = include_str!("../../runtime/src/device/cuda/functions.rs");
    let (_, list) = source.split_once("const DRIVER: &[&str] = &[").expect("a list");
    let (list, _) = list.split_once("];").expect("its end");
    let quoted = list.split('"').skip(1).step_by(2);
    quoted.collect()
}

/// A machine whose driver is made of this source.
fn driver(name: &str, source: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a scratch folder");
    compile_library(source, &folder.path().join(name));
    folder
}

/// Runs the commands that run on cards or look for them.
fn commands(folder: &Path) -> Vec<(Vec<String>, Output)> {
    let metrics = folder.join("none.jsonl").display().to_string();
    let quick = ["doctor", "--quick"].map(str::to_owned);
    let all = [vec!["devices".to_owned()], quick.into(), arguments("mlp", &[], &metrics)];
    let run = |args: Vec<String>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_graphc"));
        let output = command.args(&args).env("LD_LIBRARY_PATH", folder).output();
        (args, output.expect("graphc starts"))
    };
    all.into_iter().map(run).collect()
}

/// Returns all that the commands have said, which end as they should.
fn said(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for (args, output) in commands(folder) {
        let streams = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        let text = streams.concat();
        let status = if args[0] == "devices" { 0 } else { 1 };
        assert_eq!(output.status.code(), Some(status), "{args:?}: {text}");
        assert!(!text.contains("panicked"), "{args:?}: {text}");
        // Tables break lines.
        all.push(text.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    all
}

#[test]
fn a_driver_that_lacks_a_function_is_an_error() {
    let folder = driver(
        "libcuda.so.1",
        "int cuInit(unsigned flags) { return 0; }\nint cuDriverGetVersion(int *v) { *v = 11040; return 0; }",
    );
    for text in said(folder.path()) {
        let file = folder.path().join("libcuda.so.1").display().to_string();
        for part in [file.as_str(), "CUDA 11.4", "lacks the function cuGetErrorName"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

/// Each function that is called may be the one that is missing.
#[test]
fn every_function_of_the_driver_is_looked_for() {
    for missing in functions() {
        let others = functions().into_iter().filter(|name| *name != missing);
        let source: String =
            others.map(|name| format!("int {name}(void) {{ return 999; }}\n")).collect();
        let folder = driver("libcuda.so.1", &source);
        let output = Command::new(env!("CARGO_BIN_EXE_graphc"))
            .arg("devices")
            .env("LD_LIBRARY_PATH", folder.path())
            .output()
            .expect("graphc starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{missing}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains(&format!("lacks the function {missing},")), "{missing}: {text}");
    }
}

/// The toolkit's stub has all functions, of which each gives `CUDA_ERROR_STUB_LIBRARY`.
#[test]
fn a_stub_is_told_from_a_driver() {
    let source: String =
        functions().iter().map(|name| format!("int {name}(void) {{ return 34; }}\n")).collect();
    let folder = driver("libcuda.so", &source);
    for text in said(folder.path()) {
        let file = folder.path().join("libcuda.so").display().to_string();
        for part in [file.as_str(), "is no driver but the toolkit's stub", "LD_LIBRARY_PATH"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

/// A training says the same of the compiler and of the library of products.
#[test]
fn other_libraries_that_lack_a_function_are_named() {
    for (names, version, says, status) in [
        (
            ["libnvrtc.so", "libnvrtc.so.13"],
            "int nvrtcVersion(int *a, int *b) { *a = 11; *b = 1; return 0; }",
            "(11.1) lacks the function nvrtcGetNumSupportedArchs",
            1,
        ),
        (
            ["libcublasLt.so", "libcublasLt.so.13"],
            "unsigned long cublasLtGetVersion(void) { return 110203; }",
            "(11.2.3) lacks the function cublasLtCreate",
            // Products are made by kernels of graphc's own then.
            0,
        ),
    ] {
        let Some(machine) = Machine::new() else { return };
        for name in names {
            std::fs::remove_file(machine.file(name)).expect("a link to the double");
        }
        compile_library(version, Path::new(&machine.file(names[0])));
        let mut command = machine.command(arguments("mlp", &[], &machine.file("none.jsonl")));
        let output = command.env("GRAPHC_CACHE", machine.file("kept")).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{text}");
        assert!(text.contains(says) && text.contains("pip install"), "{text}");
        assert!(!text.contains("panicked"), "{text}");
    }
}
