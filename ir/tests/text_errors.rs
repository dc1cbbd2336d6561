//! Filetests of the parser's errors: each file under `text_errors/` is a text with, after it, what is said of it, as
//! comments that begin with `//!`. `UPDATE_EXPECT=1` writes what is said now.

use std::path::Path;

use expect_test::expect_file;
use graphc_ir::text::{ParseErrors, parse_graph};

#[test]
fn errors_are_as_the_files_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/text_errors");
    let entries = std::fs::read_dir(&folder).expect("the folder is there");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("is readable").path()).collect();
    paths.sort();
    assert!(paths.len() >= 20, "only {} files", paths.len());
    for path in paths {
        expect_file![&path].assert_eq(&with_errors(&path));
    }
}

/// Returns the text of a file, with the errors that it has now behind it.
fn with_errors(path: &Path) -> String {
    let file = std::fs::read_to_string(path).expect("is readable");
    let text = file.lines().filter(|line| !line.starts_with("//!"));
    let text: String = text.map(|line| format!("{line}\n")).collect();
    let errors: ParseErrors = parse_graph(&text).expect_err("the text is wrong");
    let errors = errors.to_string();
    let errors = errors.lines().map(|line| format!("//! {line}").trim_end().to_owned() + "\n");
    text + &errors.collect::<String>()
}
