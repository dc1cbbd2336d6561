//! The tables of docs/ops.md, which follow from the sources: `UPDATE_EXPECT=1` writes them anew.

use std::fmt::Write;
use std::path::Path;

use expect_test::expect_file;

/// The text before the tables.
const BEGIN: &str = "# Ops\n\nWhat a model may consist of: the ops of ONNX that are imported, and the methods that write a model in Rust.\n\
                     The tables are made from the sources.\n";

#[test]
fn the_tables_of_ops_are_those_of_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = [BEGIN.to_owned(), onnx_tables(root), method_tables(root)].join("\n");
    expect_file![root.join("docs/ops.md")].assert_eq(&made);
}

fn onnx_tables(root: &Path) -> String {
    let source =
        std::fs::read_to_string(root.join("compiler/import/src/onnx/ops.rs")).expect("source");
    let tables = [
        (
            "STANDARD",
            "Ops of ONNX",
            "Ops of the standard domain, of opsets 7 to 28. [guide.md](guide.md) says what of each is taken.",
        ),
        (
            "MICROSOFT",
            "Ops of onnxruntime",
            "Ops of the domain `com.microsoft`, which onnxruntime's optimizer makes of transformers.",
        ),
    ];
    let sections = tables.map(|(table, title, text)| {
        let begin = source.find(&format!("const {table}: ")).expect("the table is there");
        let body = source[begin..].split("];").next().expect("it ends");
        let names: Vec<String> =
            body.lines().filter_map(op_name).map(|name| format!("`{name}`")).collect();
        assert!(names.len() > 5, "{table} has {} ops", names.len());
        format!("## {title}\n\n{text} There are {}:\n\n{}\n", names.len(), wrap(&names.join(", ")))
    });
    sections.join("\n")
}

/// The name that a line of a table begins with, as in `("Abs", ..`.
fn op_name(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("(\"")?.split('"').next()
}

/// Breaks a text into lines of at most 120 letters.
fn wrap(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last().expect("there is a line");
        if !line.is_empty() && line.len() + 1 + word.len() > 120 {
            lines.push(String::new());
        }
        let line = lines.last_mut().expect("there is a line");
        let gap = if line.is_empty() { "" } else { " " };
        let _ = write!(line, "{gap}{word}");
    }
    lines.join("\n")
}

fn method_tables(root: &Path) -> String {
    let folder = root.join("ir/src/builder");
    let mut files = vec![root.join("ir/src/builder.rs")];
    let inside = std::fs::read_dir(folder).expect("a folder");
    files.extend(inside.map(|entry| entry.expect("an entry").path()));
    files.sort();
    let mut methods = Vec::new();
    for file in files {
        collect_methods(&std::fs::read_to_string(file).expect("source"), &mut methods);
    }
    methods.sort();
    let table = |of: &str, title: &str, text: &str| {
        let mut table = format!("## {title}\n\n{text}\n\n| method | it |\n|---|---|\n");
        for (_, call, does) in methods.iter().filter(|(owner, ..)| owner == of) {
            let _ = writeln!(table, "| `{call}` | {does} |");
        }
        table
    };
    [
        table("Tensor", "Methods of `Tensor`", "`graphc::prelude::Tensor`. An axis below 0 is counted from the last. `+`, `-`, `*`, `/` and `-x` are operators."),
        table("GraphBuilder", "Methods of `GraphBuilder`", "`graphc::prelude::GraphBuilder`. Layers are in `graphc::nn`."),
    ]
    .join("\n")
}

/// Appends the owner, the call and the first sentence of each public method of a file.
fn collect_methods(source: &str, methods: &mut Vec<(String, String, String)>) {
    let (mut owner, mut doc) = (String::new(), Vec::new());
    let lines: Vec<&str> = source.split("#[cfg(test)]").next().unwrap_or("").lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let text = line.trim_start();
        if let Some(of) = line.strip_prefix("impl ") {
            owner = of.trim_end_matches(" {").to_owned();
        } else if let Some(said) = text.strip_prefix("///") {
            doc.push(said.trim());
        } else if let Some(method) = line.strip_prefix("    pub fn ") {
            let rest = [&[method], &lines[at + 1..]].concat().join(" ");
            methods.push((owner.clone(), call_of(&rest), first_sentence(&doc)));
            doc.clear();
        } else if !text.starts_with("#[") {
            doc.clear();
        }
    }
}

/// Returns the name of a method and those of its parameters, from its signature on.
fn call_of(signature: &str) -> String {
    let (name, rest) = signature.split_once('(').expect("it has parameters");
    let (mut depth, mut names, mut current) = (1, Vec::new(), String::new());
    for letter in rest.chars() {
        match letter {
            '(' | '[' | '<' => depth += 1,
            ')' | ']' | '>' => depth -= 1,
            ',' if depth == 1 => names.push(std::mem::take(&mut current)),
            _ => {}
        }
        if depth == 0 {
            break;
        }
        if letter != ',' || depth > 1 {
            current.push(letter);
        }
    }
    names.push(current);
    let names = names.iter().filter_map(|name| name.split_once(':')).map(|(name, _)| name.trim());
    let names: Vec<&str> = names.filter(|name| !name.contains("self")).collect();
    format!("{}({})", name.split('<').next().unwrap_or(name), names.join(", "))
}

/// Returns the first sentence of a doc comment, as a cell of a table.
fn first_sentence(doc: &[&str]) -> String {
    let text =
        doc.iter().take_while(|line| !line.is_empty()).copied().collect::<Vec<_>>().join(" ");
    let end = text.find(". ").map_or(text.len(), |end| end + 1);
    text[..end]
        .replace("[`", "`")
        .replace("`]", "`")
        .replace("\\[", "[")
        .replace("\\]", "]")
        .replace('|', "\\|")
}
