//! Tests of the page that is shown where there is no plan: it names what conflicts, what each demands, and what to ask for instead.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::browser::Browser;
use super::opened::image;
use super::support::{fails, graphc, reference, succeeds};
use super::{block, read};

/// The arguments of a compilation of the reference mlp for training on four ranks.
fn mlp(extra: &[&str]) -> Vec<String> {
    let model = reference("mlp").join("model.onnx").display().to_string();
    let own = ["--batch", "32", "--loss", "cross_entropy", "--optimizer", "adam", "--lr", "0.001"];
    let all = ["compile", &model].into_iter().chain(own).chain(["--mesh", "4"]);
    all.chain(extra.iter().copied()).map(String::from).collect()
}

/// A compilation that must fail: its error, and the page.
fn why(folder: &Path, extra: &[&str]) -> (String, PathBuf) {
    let page = folder.join("why.html");
    let error = fails(mlp(&[&["--report", path(&page)], extra].concat()));
    assert!(error.contains("why.html shows why there is no plan"), "{error}");
    (error, page)
}

fn path(of: &Path) -> &str {
    of.to_str().expect("UTF-8")
}

const SHORT: [&str; 4] = ["--pin", "*.weight=B", "--memory", "60KiB"];

#[test]
fn what_conflicts_is_shown_with_what_it_demands() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let (error, page) = why(folder.path(), &SHORT);
    let failed = &block(&page)["failed"];
    assert_eq!(block(&page)["plans"], json!([]));
    assert!(error.contains(failed["error"].as_str().expect("a text")), "{error}");
    let [pin, limit] = failed["conflict"].as_array().expect("a list").as_slice() else {
        panic!("{failed}")
    };
    for one in [pin, limit] {
        let text = |name: &str| one[name].as_str().expect("a text").to_owned();
        assert!(error.contains(&format!("{}: {}", text("what"), text("advice"))), "{error}");
    }
    let weights: Vec<&Value> = pin["tensors"].as_array().expect("a list").iter().collect();
    assert!(weights.len() > 1 && weights.iter().all(|one| one[2] == "B"), "{pin}");
    assert!(weights.contains(&&json!(["layers.0.weight", "f32[64, 20]", "B"])), "{pin}");
    let short = &failed["shortage"];
    assert_eq!(short["limit"], 60 * 1024);
    assert!(short["needed"].as_u64() >= short["least"].as_u64(), "{short}");
    let options = failed["options"].as_array().expect("a list");
    assert!(options.contains(&json!(["mesh", [4]])), "{failed}");
    assert!(!options.iter().any(|one| one[0] == "stages"), "{failed}");
}

#[test]
fn a_plan_that_is_found_has_its_page_too() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let (plan, page) = (folder.path().join("plan.json"), folder.path().join("plan.html"));
    succeeds(mlp(&["-o", path(&plan), "--report", path(&page)]));
    let shown = &block(&page)["plans"][0];
    assert_eq!(shown["summary"]["planner"], read(&plan)["planner"]);
    assert_eq!((&shown["file"], &shown["summary"]["samples"]), (&json!("plan.json"), &json!(32)));
    // Of a model that cannot be read there is nothing to show.
    let missing = folder.path().join("missing.onnx");
    std::fs::remove_file(&page).expect("the page");
    fails(["compile", path(&missing), "--report", path(&page)]);
    assert!(!page.exists());
    let both = graphc(mlp(&["--report", path(&page), "--compare", "data,zero3"]));
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn the_page_without_a_plan_is_drawn() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let (_, page) = why(folder.path(), &SHORT);
    browser.open(&page);
    let failed = &block(&page)["failed"];
    assert_eq!(
        browser.text("document.querySelector('#failed .error').textContent"),
        failed["error"]
    );
    assert_eq!(browser.number("document.querySelectorAll('#conflict .demand').length"), 2.0);
    let advice =
        "[...document.querySelectorAll('.advice')].map((one) => one.textContent).join('|')";
    let wanted = failed["conflict"].as_array().expect("a list").iter();
    let wanted: Vec<&str> = wanted.map(|one| one["advice"].as_str().expect("a text")).collect();
    assert_eq!(browser.text(advice), wanted.join("|"));
    let named = "[...document.querySelectorAll('.demand .name')].map((one) => one.textContent)";
    assert!(browser.evaluate(named).to_string().contains("layers.0.weight"));
    assert!(browser.number("document.querySelectorAll('#short .need').length") >= 2.0);
    assert!(
        browser
            .text("document.querySelector('#short .least').textContent")
            .contains("memory of its own")
    );
    image(&mut browser, "why", "failed");
    browser.press("/");
    browser.evaluate("document.getElementById('theme').click()");
    assert_eq!(browser.complaints, Vec::<String>::new());
    // One pin that nothing fulfils conflicts with nothing.
    let (_, page) = why(folder.path(), &["--pin", "<script>=S(0)"]);
    browser.open(&page);
    assert_eq!(browser.number("document.querySelectorAll('#conflict, #short').length"), 0.0);
    assert!(browser.text("document.body.innerText").contains("<script>"));
    assert_eq!(browser.number("document.querySelectorAll('script').length"), 2.0);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// The planner counts memory of its own for each tensor: of the reference gpt on four ranks 284 KiB at least. Plans in which tensors
/// share memory need less.
#[test]
fn a_plan_that_needs_less_than_is_counted_is_found() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    for limit in [270, 280] {
        let memory = format!("{limit}KiB");
        let extra = ["--mesh", "4", "--memory", &memory];
        let plan = read(&super::reference_plan(folder.path(), "gpt", "plan.json", &extra));
        let peaks = plan["predicted"]["peak_memory_bytes"].as_array().expect("a list");
        let peak = peaks.iter().filter_map(Value::as_u64).max().expect("a peak");
        assert!(peak <= limit * 1024, "{peak} bytes of {limit} KiB");
    }
}
