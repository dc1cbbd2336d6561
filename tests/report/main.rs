//! `graphc report`: pages hold what plans say, and browsers show what pages hold.

mod browser;
mod data;
mod decide;
mod events;
mod failed;
mod linked;
mod opened;
#[path = "../support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};

use serde_json::Value;
use support::{reference, succeeds};

/// A plan of a reference model in a folder.
fn reference_plan(folder: &Path, model: &str, name: &str, extra: &[&str]) -> PathBuf {
    let path = reference(model).join("model.onnx");
    let training = ["--batch", "8", "--loss", "cross_entropy", "--optimizer", "adamw"];
    compiled(folder, &path, name, &[&training, extra].concat())
}

/// A plan of one of the large models, AdamW with everything computed again.
fn large_plan(folder: &Path, model: &str, extra: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("examples/models").join(model).with_extension("gir");
    let training = ["--loss", "cross_entropy", "--optimizer", "adamw", "--lr", "3e-4"];
    let again = ["--recompute", "full"];
    compiled(folder, &path, &format!("{model}.json"), &[&training[..], &again, extra].concat())
}

fn compiled(folder: &Path, model: &Path, name: &str, extra: &[&str]) -> PathBuf {
    let plan = folder.join(name);
    let files = [model, &plan].map(|path| path.to_str().expect("UTF-8"));
    let args = [&["compile", files[0], "-o", files[1]], extra].concat();
    succeeds(args);
    plan
}

/// The page of plans in a folder.
fn page(folder: &Path, plans: &[&Path], extra: &[&str]) -> PathBuf {
    let path = folder.join("page.html");
    let plans: Vec<&str> = plans.iter().map(|plan| plan.to_str().expect("UTF-8")).collect();
    let args = [&["report", "-o", path.to_str().expect("UTF-8")], &plans[..], extra].concat();
    succeeds(args);
    path
}

/// The data block of a page.
fn block(page: &Path) -> Value {
    let text = std::fs::read_to_string(page).expect("a page");
    let start = text.split_once("id=\"data\">").expect("a data block").1;
    let json = start.split_once("</script>").expect("its end").0;
    serde_json::from_str(json).expect("JSON")
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("a file")).expect("JSON")
}

/// As in the command: planning allocates much that is small.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
