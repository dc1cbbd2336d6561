//! Documents, and the documentation of modules, name files that are there.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The files that a step or a user makes, and those that lie in archives of data sets.
const MADE: [&str; 4] = ["target/", "cifar-10-batches-bin/", "cifar-100-binary/", "MNIST/raw/"];

/// The file of torchao that has the recipes of 8 bits.
const OF_TORCHAO: &str = "torchao/float8/config.py";

/// The files of the project, and its folders with a slash at their end.
fn places(root: &Path) -> BTreeSet<String> {
    let mut places = BTreeSet::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let place = path.strip_prefix(root).expect("below the root").display().to_string();
            if place == "target" || place == ".git" {
                continue;
            }
            if path.is_dir() {
                places.insert(place + "/");
                folders.push(path);
            } else {
                places.insert(place);
            }
        }
    }
    places
}

/// The names of files and folders of the project that stand in backquotes, outside blocks of code.
fn named(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    let quoted = prose.flat_map(|part| part.split('`').skip(1).step_by(2));
    quoted.filter(|name| is_place(name)).collect()
}

fn is_place(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let is_source = [".rs", ".cu", ".cuh", ".py"].iter().any(|end| name.ends_with(end));
    let is_other = name.contains('/')
        && [".toml", ".md", ".json", ".sh", ".gir", "/"].iter().any(|end| name.ends_with(end));
    name.len() > 4 && name.chars().all(is_plain) && (is_source || is_other)
}

/// Looks at the names in the texts of these places, and returns the number of names.
fn check_names(is_looked_at: impl Fn(&str) -> bool, prose: impl Fn(String) -> String) -> usize {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let places = places(root);
    let is_there = |name: &str| {
        let inner = format!("/{name}");
        places.contains(name) || places.iter().any(|place| place.ends_with(&inner))
    };
    let mut seen = 0;
    for place in places.iter().filter(|place| is_looked_at(place)) {
        let text = prose(std::fs::read_to_string(root.join(place)).expect("a text"));
        for name in named(&text) {
            seen += 1;
            let is_known = MADE.iter().any(|made| name.starts_with(made))
                || name == OF_TORCHAO
                || is_there(name);
            assert!(is_known, "{place} names `{name}`, which is not there");
        }
    }
    seen
}

#[test]
fn documents_name_files_that_are_there() {
    let is_document = |place: &str| place.ends_with(".md") && !place.starts_with("tests/");
    let seen = check_names(is_document, |text| text);
    assert!(seen > 100, "documents name {seen} files");
}

#[test]
fn modules_name_files_that_are_there() {
    let documentation = |text: String| -> String {
        let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix("//!"));
        lines.map(|line| format!("{line}\n")).collect()
    };
    let seen = check_names(|place| place.ends_with(".rs"), documentation);
    assert!(seen > 50, "modules name {seen} files");
}

/// Returns the standard output of the command.
fn graphc(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_graphc")).args(args).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn the_page_of_commands_names_every_preset() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/commands.md");
    let page = std::fs::read_to_string(path).expect("the page");
    for name in graphc_compiler::cluster::PRESETS {
        assert!(page.contains(&format!("`{name}`")), "docs/commands.md lacks the preset {name}");
    }
}

#[test]
fn every_command_has_a_manual_page_and_is_completed() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let man = folder.path().join("man1");
    graphc(&["man", man.to_str().expect("UTF-8")]);
    let help = graphc(&["--help"]);
    let listed = help.split("Commands:\n").nth(1).and_then(|text| text.split("\n\n").next());
    let lines = listed.expect("a list").lines().filter(|line| !line.starts_with("    "));
    let commands: Vec<&str> = lines.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.len() > 15 && commands.contains(&"train"), "{commands:?}");
    let scripts = ["bash", "zsh", "fish"].map(|shell| graphc(&["completions", shell]));
    for command in commands.into_iter().filter(|&command| command != "help") {
        let page = man.join(format!("graphc-{command}.1"));
        let page = std::fs::read_to_string(page).expect("a page of each command");
        assert!(page.starts_with(".ie") && page.contains("SYNOPSIS"), "{page}");
        for script in &scripts {
            assert!(script.contains(command) && !script.contains("\\u00"), "{command}");
        }
    }
    let page = std::fs::read_to_string(man.join("graphc-train.1")).expect("a page");
    assert!(page.contains("keep\\-best"), "{page}");
    assert!(scripts.iter().all(|script| script.contains("keep-best")));
}
