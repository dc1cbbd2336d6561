//! Names say what they are: few functions are called by one word, and a type name means one thing in the workspace.
//!
//! Counted is product code: what lies in `src` folders, up to the tests of a file.

use std::collections::BTreeMap;
use std::path::Path;

use super::modules::{code, collect};

/// The share of functions that one word may name: methods that read well after their receiver, and traits of the language.
const ONE_WORD: f64 = 0.30;

/// The share of type names that may be defined more than once.
const REPEATED: f64 = 0.02;

/// The lines of all product code, without comments.
fn product_lines() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for package in super::LIBRARIES.into_iter().chain(["."]) {
        collect(&root.join(package).join("src"), &mut files);
    }
    files.retain(|file| !file.iter().any(|part| part == "tests" || part == "tests.rs"));
    let text = |file| code(&std::fs::read_to_string(file).expect("source"));
    files
        .iter()
        .flat_map(|file| text(file).lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// The name that a line defines by one of these words.
fn defined<'a>(line: &'a str, words: &[&str]) -> Option<&'a str> {
    let mut parts = line.split_whitespace().skip_while(|part| {
        part.starts_with("pub") || ["super)", "crate)", "const", "unsafe", "async"].contains(part)
    });
    let word = parts.next()?;
    let name = parts.next().filter(|_| words.contains(&word))?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
}

#[test]
fn few_functions_are_named_by_one_word() {
    let lines = product_lines();
    let functions: Vec<&str> = lines.iter().filter_map(|line| defined(line, &["fn"])).collect();
    let short = functions.iter().filter(|name| !name.trim_matches('_').contains('_')).count();
    let share = short as f64 / functions.len() as f64;
    assert!(functions.len() > 5000, "only {} functions were found", functions.len());
    assert!(share <= ONE_WORD, "{:.1} % of the functions are named by one word", share * 100.0);
}

#[test]
fn a_type_name_means_one_thing() {
    let lines = product_lines();
    let mut types: BTreeMap<&str, usize> = BTreeMap::new();
    for name in lines.iter().filter_map(|line| defined(line, &["struct", "enum", "trait", "union"]))
    {
        *types.entry(name).or_default() += 1;
    }
    let all: usize = types.values().sum();
    let repeated: Vec<_> = types.iter().filter(|(_, count)| **count > 1).collect();
    let share = repeated.iter().map(|(_, count)| **count).sum::<usize>() as f64 / all as f64;
    assert!(all > 1000, "only {all} types were found");
    assert!(share <= REPEATED, "defined more than once: {repeated:?}");
}
