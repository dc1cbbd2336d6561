//! Filetests of the parser's errors: each file under `text_errors/` is a text with, after it, what is said of it, as
//! comments that begin with `//!`. GRAPHC_BLESS=1 writes what is said now.

use std::path::Path;

use graphc_ir::text::{ParseErrors, parse_graph};

#[test]
fn errors_are_as_the_files_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/text_errors");
    let entries = std::fs::read_dir(&folder).expect("the folder is there");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("is readable").path()).collect();
    paths.sort();
    assert!(paths.len() >= 20, "only {} files", paths.len());
    let wrong: Vec<String> = paths.iter().filter_map(|path| check(path)).collect();
    assert!(wrong.is_empty(), "GRAPHC_BLESS=1 accepts these:\n{}", wrong.join("\n\n"));
}

/// Compares the errors of a file's text with those that the file expects, and returns the difference, if there is one.
fn check(path: &Path) -> Option<String> {
    let file = std::fs::read_to_string(path).expect("is readable");
    let (text, expected): (Vec<&str>, Vec<&str>) =
        file.lines().partition(|line| !line.starts_with("//!"));
    let text = text.join("\n") + "\n";
    let errors: ParseErrors = parse_graph(&text).expect_err("the text is wrong");
    let found = errors.to_string();
    let found: Vec<String> =
        found.lines().map(|line| format!("//! {line}").trim_end().to_string()).collect();
    if found == expected {
        return None;
    }
    if std::env::var_os("GRAPHC_BLESS").is_some() {
        std::fs::write(path, text + &found.join("\n") + "\n").expect("is writable");
        return None;
    }
    Some(format!("{}:\n{}", path.display(), found.join("\n")))
}
