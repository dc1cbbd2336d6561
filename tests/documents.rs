//! Documents name files that are there.

use std::collections::BTreeSet;
use std::path::Path;

/// What a step or a user makes, and what lies in archives of data sets.
const MADE: [&str; 4] = ["target/", "cifar-10-batches-bin/", "cifar-100-binary/", "MNIST/raw/"];

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

#[test]
fn documents_name_files_that_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let places = places(root);
    let is_there = |name: &str| {
        let inner = format!("/{name}");
        places.contains(name) || places.iter().any(|place| place.ends_with(&inner))
    };
    let mut seen = 0;
    let is_document = |place: &&String| place.ends_with(".md") && !place.starts_with("tests/");
    for document in places.iter().filter(is_document) {
        let text = std::fs::read_to_string(root.join(document)).expect("a document");
        for name in named(&text) {
            seen += 1;
            let is_made = MADE.iter().any(|made| name.starts_with(made));
            assert!(is_made || is_there(name), "{document} names `{name}`, which is not there");
        }
    }
    assert!(seen > 100, "documents name {seen} files");
}
