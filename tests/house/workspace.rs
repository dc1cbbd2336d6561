//! The arrows between rooms, and what is absent below them, as docs/architecture.md says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Returns all packages of the workspace.
fn packages() -> Vec<serde_json::Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo metadata");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

/// Workspace crates and the workspace crates that each depends on, dev-dependencies left out.
fn arrows() -> BTreeMap<String, Vec<String>> {
    let names = |package: &serde_json::Value| -> Vec<String> {
        let dependencies = package["dependencies"].as_array().expect("dependencies").iter();
        dependencies
            .filter(|dependency| dependency["kind"].is_null())
            .filter_map(|dependency| dependency["name"].as_str())
            .filter(|name| name.starts_with("graphc") || *name == "gpu-double")
            .map(String::from)
            .collect()
    };
    let name = |package: &serde_json::Value| package["name"].as_str().expect("a name").to_string();
    packages().iter().map(|package| (name(package), names(package))).collect()
}

/// All that the tests of this folder hold, they hold for all libraries.
#[test]
fn every_library_is_looked_at() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = |package: &serde_json::Value| {
        let manifest = Path::new(package["manifest_path"].as_str().expect("a path"));
        let folder = manifest.parent().and_then(|folder| folder.strip_prefix(root).ok());
        folder.expect("a folder of the workspace").display().to_string()
    };
    let known = super::LIBRARIES.into_iter();
    let known = known.chain(["", "benchmarks/overhead", "examples", "tests/gpu_double"]);
    let found: BTreeSet<String> = packages().iter().map(folder).collect();
    assert_eq!(found, known.map(String::from).collect());
}

#[test]
fn arrows_point_one_way() {
    let arrows = arrows();
    assert_eq!(arrows["graphc-ir"], Vec::<String>::new());
    assert_eq!(arrows["graphc-nn"], ["graphc-ir"]);
    assert_eq!(arrows["graphc-plan"], ["graphc-ir"]);
    assert_eq!(arrows["graphc-solver"], Vec::<String>::new());
    assert_eq!(arrows["graphc-import"], ["graphc-ir"]);
    assert_eq!(arrows["graphc-compiler"], ["graphc-ir", "graphc-plan", "graphc-solver"]);
    assert_eq!(arrows["graphc-kernels"], ["graphc-ir", "graphc-plan"]);
    assert_eq!(arrows["graphc-host"], ["graphc-ir"]);
    assert_eq!(arrows["graphc-comm"], ["graphc-host", "graphc-ir"]);
    let below_runtime =
        ["graphc-comm", "graphc-host", "graphc-ir", "graphc-kernels", "graphc-plan"];
    assert_eq!(arrows["graphc-runtime"], below_runtime);
    assert_eq!(arrows["graphc-data"], ["graphc-host", "graphc-ir"]);
    let below_eager = ["graphc-compiler", "graphc-ir", "graphc-plan", "graphc-runtime"];
    assert_eq!(arrows["graphc-eager"], below_eager);
}

/// Whoever uses the library builds nothing that only a command line needs.
#[test]
fn the_library_knows_no_command_line() {
    let arrows = arrows();
    for (name, dependencies) in &arrows {
        assert!(!dependencies.contains(&String::from("graphc-cli")), "{name} depends on it");
    }
    let packages = packages();
    for package in packages.iter().filter(|package| package["name"] != "graphc-cli") {
        for dependency in package["dependencies"].as_array().expect("a list") {
            let known =
                ["clap", "clap_complete", "clap_mangen", "indicatif", "mimalloc", "signal-hook"];
            let of_the_product = dependency["kind"].is_null();
            let forbidden = known.iter().any(|name| dependency["name"] == *name);
            let (name, dependency) = (&package["name"], &dependency["name"]);
            assert!(!(of_the_product && forbidden), "{name} depends on {dependency}");
        }
    }
}

#[test]
fn the_double_of_cards_is_for_tests_alone() {
    let arrows = arrows();
    assert_eq!(arrows["gpu-double"], Vec::<String>::new());
    for (name, dependencies) in arrows {
        assert!(!dependencies.contains(&String::from("gpu-double")), "{name} depends on it");
    }
}

/// Whoever tries an example first should not wait for what only tests need.
#[test]
fn examples_build_nothing_that_only_tests_need() {
    let packages = packages();
    let package = |name: &str| {
        packages.iter().find(|package| package["name"] == name).expect("a package").clone()
    };
    let names = |list: &serde_json::Value| -> Vec<String> {
        let list = list.as_array().expect("a list").iter();
        list.filter_map(|item| item["name"].as_str()).map(String::from).collect()
    };
    let examples = package("graphc-examples");
    assert!(names(&examples["targets"]).contains(&String::from("gpt")));
    for dependency in ["gpu-double", "proptest", "shuttle", "criterion"] {
        assert!(!names(&examples["dependencies"]).contains(&String::from(dependency)));
    }
}

#[test]
fn ir_and_compiler_have_no_clock_network_environment_or_threads() {
    let forbidden =
        ["std::time", "Instant::now", "std::net", "std::env", "std::thread", "thread::spawn"];
    let rooms = ["ir", "ir/plan", "ir/nn", "compiler", "compiler/solver", "compiler/import"];
    for room in rooms.map(|room| format!("{room}/src")) {
        visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join(room), &mut |path, text| {
            for word in forbidden {
                assert!(!text.contains(word), "{} uses {word}", path.display());
            }
            let importer = path.components().any(|part| part.as_os_str() == "import");
            assert!(importer || !text.contains("std::fs"), "{} reads files", path.display());
        });
    }
}

#[test]
fn no_file_is_too_long_for_one_room() {
    for room in super::LIBRARIES.into_iter().chain(["src", "examples", "tests/gpu_double"]) {
        visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join(room), &mut |path, text| {
            let lines = text.lines().count();
            assert!(lines <= 600, "{} has {lines} lines: split it", path.display());
        });
    }
}

/// The places that call the processor, the system or a foreign library, as docs/architecture.md lists them.
const UNSAFE: [&str; 11] = [
    "kernels/src/",
    "runtime/host/src/memory.rs",
    "runtime/comm/src/memory.rs",
    "runtime/comm/src/mpi/",
    "runtime/comm/src/transport/",
    "runtime/src/copy.rs",
    "runtime/src/device/cuda/",
    "runtime/src/device/views.rs",
    "runtime/src/dist/element.rs",
    "src/cli/launch/",
    "tests/gpu_double/src/",
];

#[test]
fn unsafe_code_is_where_the_architecture_lists_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/architecture.md")).expect("a page");
    let mut used = BTreeSet::new();
    for room in super::LIBRARIES
        .map(|room| format!("{room}/src"))
        .into_iter()
        .chain(["src", "examples", "tests/gpu_double/src"].map(String::from))
    {
        visit(&root.join(room), &mut |path, text| {
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let has = |line: &str| {
                line.contains("unsafe {")
                    || line.contains("unsafe fn")
                    || line.contains("unsafe impl")
            };
            if code.into_iter().any(has) {
                let path = path.strip_prefix(root).expect("below the root").display().to_string();
                let place = UNSAFE.iter().find(|place| path.starts_with(**place));
                used.insert(*place.unwrap_or_else(|| panic!("{path} has unsafe code")));
            }
        });
    }
    assert_eq!(used, UNSAFE.into_iter().collect(), "places without unsafe code");
    for place in UNSAFE {
        assert!(page.contains(&format!("`{place}`")), "docs/architecture.md does not list {place}");
    }
}

fn visit(folder: &Path, check: &mut dyn FnMut(&Path, &str)) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            visit(&path, check);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            check(&path, &std::fs::read_to_string(&path).expect("source"));
        }
    }
}

/// Errors grow with what is found out: who matches on them from outside must expect others.
#[test]
fn enums_of_errors_may_grow() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for package in super::LIBRARIES {
        super::modules::collect(&root.join(package).join("src"), &mut files);
    }
    let mut found = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).expect("source");
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate().filter(|(_, line)| line.starts_with("pub enum "))
        {
            let above = || lines[..at].iter().rev().take_while(|line| line.starts_with("#["));
            if above().any(|attribute| attribute.contains("thiserror::Error")) {
                let may_grow = above().any(|attribute| *attribute == "#[non_exhaustive]");
                assert!(may_grow, "{}: {line} is not #[non_exhaustive]", file.display());
                found += 1;
            }
        }
    }
    assert!(found > 20, "only {found} enums of errors were found");
}

/// `main`, `unwrap` and `expect` print errors by `Debug`: those that a program may end with say there what `Display` says.
#[test]
fn errors_read_alike_however_they_are_printed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for package in super::LIBRARIES {
        super::modules::collect(&root.join(package).join("src"), &mut files);
    }
    files.retain(|file| !file.starts_with(root.join("runtime/src/device")));
    let mut found = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).expect("source");
        let mut rest = text.lines();
        while let Some(line) = rest.by_ref().find(|line| line.starts_with("#[derive(")) {
            let prints_fields = line.contains("thiserror::Error") && line.contains("Debug");
            let is_item =
                |line: &&str| line.starts_with("pub enum ") || line.starts_with("pub struct ");
            let item = rest.clone().find(is_item);
            let name = item.and_then(|item| item.split([' ', '(']).nth(2)).unwrap_or_default();
            let is_error = name.ends_with("Error") || name.ends_with("Errors");
            assert!(
                !(prints_fields && is_error),
                "{}: {name} needs `readable_debug!`",
                file.display()
            );
        }
        found += text.matches("readable_debug!(").count();
    }
    assert!(found > 30, "only {found} readable errors were found");
}
