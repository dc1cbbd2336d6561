//! Tests of judgements that graphc and `graphc_torch` have in common: the cases of `tests/contract/cases.json`, which
//! `python/tests/test_contract.py` goes over for the other engine.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{fails, graphc, reference, succeeds};
use serde_json::Value;
use sha2::{Digest, Sha256};

fn cases(of: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/contract/cases.json");
    let text = std::fs::read_to_string(path).expect("the cases");
    let all: Value = serde_json::from_str(&text).expect("JSON");
    all[of]["cases"].as_array().expect("cases").clone()
}

/// A folder with a plan, and data for it.
struct Scene {
    folder: tempfile::TempDir,
    data: String,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let data = text(&reference("mlp").join("data.safetensors"));
        let scene = Self { folder, data };
        let model = text(&reference("mlp").join("model.onnx"));
        let training = ["--loss", "cross_entropy", "--optimizer", "sgd", "--lr", "0.1"];
        let plan = scene.path("plan.json");
        succeeds([&["compile", &model, "-o", &plan, "--batch", "16"][..], &training].concat());
        scene
    }

    fn path(&self, name: &str) -> String {
        text(&self.folder.path().join(name))
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect("it is there")
    }

    fn train(&self, plan: &str, options: &[&str]) -> Vec<String> {
        let head = ["train", plan, "--data", &self.data, "--steps"];
        head.iter().chain(options).map(ToString::to_string).collect()
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// A document after the edit of a case; where that is one of its text, the text.
fn edited(document: &str, case: &Value) -> String {
    if let Some(depth) = case["deep"].as_u64() {
        return "[".repeat(depth as usize);
    }
    if let [Some(from), Some(to)] = [0, 1].map(|part| case["replace"][part].as_str()) {
        let changed = document.replacen(from, to, 1);
        assert_ne!(changed, document, "{case}");
        return changed;
    }
    let Some(at) = case["at"].as_str() else { return document.to_owned() };
    let mut value: Value = serde_json::from_str(document).expect("JSON");
    let (parent, name) = at.rsplit_once('/').expect("a place");
    let parent = value.pointer_mut(parent).unwrap_or_else(|| panic!("{at} is not there"));
    match (parent, case.get("value")) {
        (Value::Object(fields), Some(new)) => _ = fields.insert(name.into(), new.clone()),
        (Value::Object(fields), None) => _ = fields.shift_remove(name).expect("it is there"),
        (Value::Array(items), Some(new)) => {
            items[name.parse::<usize>().expect("an index")] = new.clone();
        }
        (other, _) => panic!("{at} is in {other}"),
    }
    value.to_string()
}

/// Whether a run was accepted; one that is not says why, in a line that no terminal is steered by.
fn accepts(args: &[String]) -> bool {
    let output = graphc(args);
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    match output.status.code() {
        Some(0) => true,
        Some(1) => {
            assert!(said.contains("error: ") && !said.contains("panicked"), "{args:?}: {said}");
            false
        }
        other => panic!("{args:?} ends with {other:?}: {said}"),
    }
}

fn is_accepted(case: &Value) -> bool {
    match case["verdict"].as_str() {
        Some("accepted") => true,
        Some("refused") => false,
        other => panic!("{other:?} is no verdict"),
    }
}

#[test]
fn plans_are_judged_as_the_cases_say() {
    let scene = Scene::new();
    let (whole, path) = (scene.read("plan.json"), scene.path("edited.json"));
    for case in cases("plans") {
        std::fs::write(&path, edited(&whole, &case)).expect("writable");
        let verify = ["verify", &path, "--seal"].map(str::to_owned);
        assert_eq!(accepts(&verify), is_accepted(&case), "{case}");
        if is_accepted(&case) {
            assert_eq!(scene.read("edited.json"), whole, "{case}");
        }
    }
}

#[test]
fn manifests_are_judged_as_the_cases_say() {
    let scene = Scene::new();
    let (plan, saved) = (scene.path("plan.json"), scene.path("saved"));
    succeeds(scene.train(&plan, &["2", "--save", &saved]));
    let manifest = Path::new(&saved).join("step-00000002/manifest.json");
    let whole = std::fs::read_to_string(&manifest).expect("a manifest");
    for case in cases("manifests") {
        std::fs::write(&manifest, sealed(&edited(&whole, &case))).expect("writable");
        let resumed = scene.train(&plan, &["5", "--resume", &saved]);
        assert_eq!(accepts(&resumed), is_accepted(&case), "{case}");
    }
}

/// A manifest with the SHA-256 of what it is now.
fn sealed(manifest: &str) -> String {
    let mut value: Value = serde_json::from_str(manifest).expect("JSON");
    value["sha256"] = "".into();
    let digest = Sha256::digest(value.to_string().as_bytes());
    value["sha256"] = digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into();
    value.to_string()
}

#[test]
fn what_is_no_file_is_refused() {
    let scene = Scene::new();
    let plan = scene.path("plan.json");
    let before = [scene.read("plan.json").into_bytes(), std::fs::read(&scene.data).expect("data")];
    for case in cases("files") {
        let given = given(&scene, &case);
        let args = match case["option"].as_str().expect("an option") {
            "plan" => scene.train(&given, &["1"]),
            "--data" => {
                ["train", &plan, "--steps", "1", "--data", &given].map(str::to_owned).to_vec()
            }
            option => scene.train(&plan, &["1", option, &given]),
        };
        assert!(fails(&args).contains("error: "), "{case}");
    }
    let after = [scene.read("plan.json").into_bytes(), std::fs::read(&scene.data).expect("data")];
    assert!(before == after, "nothing is overwritten");
}

/// The path of what a case gives in the place of a file.
fn given(scene: &Scene, case: &Value) -> String {
    let path = scene.path("given.json");
    let _ = std::fs::remove_file(&path);
    let _ = std::fs::remove_dir(&path);
    match case["is"].as_str().expect("what it is") {
        "pipe" => {
            assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
        }
        "folder" => std::fs::create_dir(&path).expect("a folder"),
        "nothing" => {}
        "text" => std::fs::write(&path, "a text").expect("writable"),
        "plan" => return scene.path("plan.json"),
        "data" => return scene.data.clone(),
        device => {
            let link = std::os::unix::fs::symlink(PathBuf::from(device), &path);
            link.expect("a link");
        }
    }
    path
}

#[test]
fn options_are_judged_as_the_cases_say() {
    let scene = Scene::new();
    let plan = scene.path("plan.json");
    for case in cases("options") {
        let options = case["options"].as_array().expect("options").iter();
        let mut args = scene.train(&plan, &["1"]);
        args.extend(options.map(|option| option.as_str().expect("a text").to_owned()));
        let output = graphc(&args);
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        let status = output.status.code().map(i64::from);
        assert_eq!(status, case["status"].as_i64(), "{case}: {said}");
        assert!(!said.contains('\u{1b}'), "{case}: {said:?}");
    }
}
