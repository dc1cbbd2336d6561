//! Modules of a crate use each other one way: who reads one finds what it stands on below it, and never itself.
//!
//! Modules beside each other are compared, at every level: what a file uses of another module is an arrow between the two
//! modules at which their paths part. A module and what lies inside it are one. `use` lines are read, and paths that begin
//! with `crate`, `super` or `self`; tests inside of files are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Modules that may use each other in a circle, by the path of the module that they lie in, each with its reason: none.
const KNOTS: &[(&str, &[&str])] = &[];

#[test]
fn modules_use_each_other_one_way() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = BTreeSet::new();
    for room in super::LIBRARIES.into_iter().chain(["src"]) {
        let folder = if room == "src" { root.join(room) } else { root.join(room).join("src") };
        for (level, arrows) in levels(&modules(&folder)) {
            let inside = [vec![room.to_string()], level].concat().join("::");
            found.extend(knots(&arrows).into_iter().map(|knot| (inside.clone(), knot)));
        }
    }
    let name = |&(inside, knot): &(&str, &[&str])| {
        (inside.to_string(), knot.iter().map(|module| module.to_string()).collect())
    };
    let known: BTreeSet<(String, BTreeSet<String>)> = KNOTS.iter().map(name).collect();
    let new: Vec<_> = found.difference(&known).collect();
    assert!(new.is_empty(), "modules that use each other in a circle: {new:#?}");
    let gone: Vec<_> = known.difference(&found).collect();
    assert!(gone.is_empty(), "no circle any more, take them off the list: {gone:#?}");
}

/// A path of module names from the root of a crate.
type Module = Vec<String>;

/// The modules that each module uses, among those beside each other.
type Arrows = BTreeMap<String, BTreeSet<String>>;

/// The text of each module of a crate, without tests.
fn modules(folder: &Path) -> BTreeMap<Module, String> {
    let mut files = Vec::new();
    collect(folder, &mut files);
    let mut modules = BTreeMap::new();
    for file in files {
        let inside = file.strip_prefix(folder).expect("a file of the folder").with_extension("");
        let mut path: Module =
            inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        if path.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
            path.pop();
        }
        if !path.iter().any(|part| part == "tests") {
            let text = std::fs::read_to_string(&file).expect("source");
            modules.insert(path, code(&text));
        }
    }
    modules
}

pub(super) fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Source without comments, up to its module of tests, and without what is imported for tests alone.
pub(super) fn code(text: &str) -> String {
    let mut code = String::new();
    for (index, part) in text.split("#[cfg(").enumerate() {
        if index == 0 || !(part.starts_with("test") || part.starts_with("all(test")) {
            code.push_str(part);
            continue;
        }
        let mut item = part.split_once('\n').map_or("", |(_, item)| item);
        while let Some((_, next)) = item.split_once('\n').filter(|_| item.starts_with("#[")) {
            item = next;
        }
        let first = item.lines().next().unwrap_or("");
        let begins = |word: &str| {
            let seen = ["", "pub ", "pub(crate) ", "pub(super) "];
            seen.iter().any(|seen| first.strip_prefix(seen).is_some_and(|it| it.starts_with(word)))
        };
        if begins("mod ") && first.ends_with('{') {
            break;
        }
        let is_import = begins("use ");
        let item = item.split_once(';').filter(|_| is_import).map_or(item, |(_, behind)| behind);
        code.push_str(item);
    }
    code.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

/// The arrows of each level, by the path of the module that holds it.
fn levels(modules: &BTreeMap<Module, String>) -> BTreeMap<Module, Arrows> {
    let mut levels: BTreeMap<Module, Arrows> = BTreeMap::new();
    for (module, text) in modules {
        for target in used(text).iter().filter_map(|path| resolve(modules, module, path)) {
            let common = module.iter().zip(&target).take_while(|(a, b)| a == b).count();
            if let (Some(from), Some(to)) = (module.get(common), target.get(common)) {
                let arrows = levels.entry(module[..common].to_vec()).or_default();
                arrows.entry(from.clone()).or_default().insert(to.clone());
            }
        }
    }
    levels
}

/// The module that a path leads to from another.
fn resolve(modules: &BTreeMap<Module, String>, from: &Module, path: &[String]) -> Option<Module> {
    let ups = path.iter().take_while(|part| *part == "super").count();
    let mut target: Module = match path.first()?.as_str() {
        "crate" => path[1..].to_vec(),
        "self" => [from, &path[1..]].concat(),
        "super" => [from.get(..from.len().checked_sub(ups)?)?, &path[ups..]].concat(),
        first => {
            let child = [from.as_slice(), &[first.to_string()]].concat();
            modules.get(&child).map(|_| [from, path].concat())?
        }
    };
    while !target.is_empty() && !modules.contains_key(&target) {
        target.pop();
    }
    Some(target)
}

/// The paths that a text uses.
fn used(text: &str) -> Vec<Module> {
    let mut paths = Vec::new();
    for (at, _) in text.match_indices("use ") {
        let begins = text[..at].lines().next_back().is_none_or(|line| {
            let before = line.trim();
            before.is_empty() || before.starts_with("pub") || text[..at].ends_with('\n')
        });
        if begins && let Some(end) = text[at..].find(';') {
            trees(&text[at + 4..at + end], &[], &mut paths);
        }
    }
    for word in ["crate::", "super::", "self::"] {
        paths.extend(text.match_indices(word).map(|(at, _)| path(&text[at..])));
    }
    paths
}

/// A path at the beginning of a text.
fn path(text: &str) -> Module {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let end = text.find(|c| !is_path(c)).unwrap_or(text.len());
    text[..end].split("::").filter(|part| !part.is_empty()).map(String::from).collect()
}

/// The paths of a tree of a `use`: `a::{b, c::{d}}`.
fn trees(tree: &str, before: &[String], paths: &mut Vec<Module>) {
    let tree = tree.trim();
    let start = [before, &path(tree)].concat();
    let Some((open, close)) = tree.find('{').zip(tree.rfind('}')) else {
        paths.push(start);
        return;
    };
    let mut depth = 0;
    let parts = tree[open + 1..close].split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    parts.filter(|part| !part.trim().is_empty()).for_each(|part| trees(part, &start, paths));
}

/// Sets of modules of which each leads to all others.
fn knots(arrows: &Arrows) -> BTreeSet<BTreeSet<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        arrows.keys().map(|from| (from, reach(arrows, from))).collect();
    let mutual = |a: &String| -> BTreeSet<String> {
        let back = |b: &&&String| reached.get(**b).is_some_and(|from| from.contains(a));
        reached[a].iter().filter(back).map(|module| (*module).clone()).collect()
    };
    arrows.keys().map(mutual).filter(|knot| knot.len() > 1).collect()
}

fn reach<'a>(arrows: &'a Arrows, from: &'a String) -> BTreeSet<&'a String> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        for next in arrows.get(module).into_iter().flatten() {
            if found.insert(next) {
                open.push(next);
            }
        }
    }
    found
}

#[test]
fn a_circle_is_found_in_any_way_of_writing_it() {
    let sources = [
        ("a", "use crate::b::{X, c::{Y}};"),
        ("b", "pub use self::c::Y;"),
        ("b::c", "fn f() { super::super::d::g() }"),
        ("d", "use super::{e, a};\n#[cfg(test)]\nuse crate::e::f;"),
        ("e", "// crate::a\n"),
    ];
    let modules = sources
        .iter()
        .map(|(name, text)| (name.split("::").map(String::from).collect::<Module>(), code(text)));
    let levels = levels(&modules.collect());
    let knot: BTreeSet<String> = ["a", "b", "d"].map(String::from).into();
    assert_eq!(knots(&levels[&Vec::new()]), [knot].into());
}
