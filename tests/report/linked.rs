//! Tests of a page's address, which holds all that is open on it, and of its layout: phones and paper hide nothing that a wide screen
//! shows.

use std::path::{Path, PathBuf};

use graphc::prelude::*;
use graphc::report::page::{PageOptions, build_page, write_html};

use super::browser::Browser;
use super::opened::{FILLED, FRAMES, OPEN_ALL, decoded};
use super::support::reference;
use super::{compiled, page, reference_plan};

const PIPELINE: [&str; 6] = ["--mesh", "2x2", "--stages", "2", "--microbatches", "4"];

/// Clicks on events of the first lane, from left to right, until the panel of one opens that has a part of the first block, and a tensor.
const CLICK: &str = "(() => { const canvas = document.querySelector('#when canvas'); \
     const box = canvas.getBoundingClientRect(); \
     canvas.setPointerCapture = () => {}; \
     const opened = () => { const text = (document.querySelector('#when .panel') || canvas).textContent; \
       return text.startsWith('blocks.0.up') && text.includes('reads'); }; \
     for (let share = 0.2; share < 0.95 && !opened(); share += 0.002) { \
       const at = { clientX: box.left + box.width * share, clientY: box.top + 24 + 38, pointerId: 1, bubbles: true }; \
       for (const kind of ['pointerdown', 'pointerup']) canvas.dispatchEvent(new PointerEvent(kind, at)); } })()";

/// Time in which the address is written.
const WRITTEN: &str = "new Promise((done) => setTimeout(done, 250))";

fn panel(browser: &mut Browser, section: &str) -> String {
    browser.text(&format!(
        "[...document.querySelectorAll('#{section} .panel')].map((one) => one.innerText).join('')"
    ))
}

#[test]
fn a_link_opens_what_was_open() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = reference_plan(folder.path(), "gpt", "gpt.json", &PIPELINE);
    let page = page(folder.path(), &[&file], &["--explain", "0"]);
    browser.open(&page);
    browser.evaluate("document.querySelector('#when canvas').focus()");
    browser.press("+");
    browser.evaluate(CLICK);
    let event = panel(&mut browser, "when");
    assert!(event.contains("stage 0, ranks 0, 1") && event.contains("reads"), "{event}");
    // The event leads to its tensor, that to its layer.
    browser.evaluate("document.querySelector('#when .panel dd .hit').click()");
    let tensor = panel(&mut browser, "where");
    browser.evaluate(WRITTEN);
    // Back is what was seen before the link, forth what it led to.
    browser.evaluate("history.back()");
    browser.evaluate(WRITTEN);
    assert_eq!(
        (panel(&mut browser, "when"), panel(&mut browser, "where")),
        (event.clone(), "".into())
    );
    assert!(browser.text("location.hash").starts_with("#when?"));
    browser.evaluate("history.forward()");
    browser.evaluate(WRITTEN);
    assert_eq!(panel(&mut browser, "where"), tensor);
    browser.evaluate("document.querySelectorAll('.layers summary')[1].click()");
    browser.evaluate(FILLED);
    browser.evaluate(WRITTEN);
    let address = browser.text("location.hash");
    for part in ["#where?", "time=0.15", "event=A:0.0.", "tensor=A:", "open=layers:A:blocks.0"] {
        assert!(address.contains(part), "{part}: {address}");
    }
    browser.open_link(&page, &format!("?again{address}"));
    browser.evaluate(FILLED);
    assert_eq!((panel(&mut browser, "when"), panel(&mut browser, "where")), (event, tensor));
    assert!(browser.number("document.querySelectorAll('.layers tbody tr').length") > 50.0);
    // An address that says nothing that is there opens nothing, and breaks nothing.
    browser.open_link(&page, "?other#when?event=A:9.9.9.9&tensor=A:no&open=%E0%A4%A&time=b-a&x");
    browser.evaluate(FRAMES);
    assert_eq!(browser.number("document.querySelectorAll('.panel').length"), 0.0);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn a_link_keeps_tables_the_theme_and_the_section() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = reference_plan(folder.path(), "gpt", "gpt.json", &PIPELINE);
    let page = page(folder.path(), &[&file], &["--explain", "2"]);
    browser.open(&page);
    browser.evaluate("document.getElementById('theme').click()");
    browser.evaluate("(() => { const whose = document.querySelector('#costs select'); whose.value = '1'; whose.dispatchEvent(new Event('change')); })()");
    for table in ["#where .mesh", "#costs", "#memory"] {
        browser.evaluate(&format!("document.querySelector('{table} details > summary').click()"));
        browser.evaluate(FILLED);
    }
    // The first reason is open at first, and stays shut once it is shut.
    browser.evaluate("document.querySelector('#why details > summary').click()");
    browser.evaluate(WRITTEN);
    let address = browser.text("location.hash");
    assert!(address.starts_with("#why?"), "{address}");
    browser.open_link(&page, &format!("?again{address}"));
    browser.evaluate(FILLED);
    assert_eq!(browser.text("document.documentElement.dataset.theme"), "dark");
    assert_eq!(browser.text("document.querySelector('#costs select').value"), "1");
    for table in ["#where .mesh", "#costs", "#memory"] {
        let rows = format!("document.querySelectorAll('{table} details[open] tbody tr').length");
        assert!(browser.number(&rows) >= 1.0, "{table}");
    }
    assert_eq!(browser.number("document.querySelectorAll('#why details[open]').length"), 0.0);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn figures_lead_to_the_events_and_tensors_that_they_speak_of() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let one = reference_plan(folder.path(), "gpt", "one.json", &["--mesh", "4"]);
    let zero = ["--mesh", "4", "--strategy", "zero3"];
    let other = reference_plan(folder.path(), "gpt", "other.json", &zero);
    browser.open(&page(folder.path(), &[&one, &other], &["--explain", "1"]));
    browser.evaluate(OPEN_ALL);
    browser.evaluate(FILLED);
    let text = browser.text("document.body.innerText");
    for wrong in ["[object", "undefined", "NaN"] {
        assert!(!text.contains(wrong), "{wrong}: {text}");
    }
    assert!(text.contains("Held against the plan's own objective"), "{text}");
    for (link, section, holds) in [
        ("#costs tbody .hit", "when", "all_gather"),
        ("#memory details .note .hit", "when", "makes"),
        ("#memory details td .hit", "where", "bytes"),
        ("#why details .hit", "where", ".weight"),
        ("#differs td .hit", "where", "blocks.0"),
    ] {
        browser.evaluate(&format!("document.querySelector('{link}').click()"));
        browser.evaluate(WRITTEN);
        let address = browser.text("location.hash");
        assert!(address.starts_with(&format!("#{section}?")), "{link}: {address}");
        let shown = panel(&mut browser, section);
        assert!(shown.contains(holds), "{link}: {shown}");
    }
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn lanes_that_are_alike_are_folded() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = reference_plan(folder.path(), "gpt", "gpt.json", &["--mesh", "3"]);
    browser.open(&page(folder.path(), &[&file], &["--explain", "0"]));
    // The three spend a step alike, and two of them have as much memory: rows and charts name all that they are of.
    let bars = "[...document.querySelectorAll('#costs .split > span')].map((one) => one.textContent).join('|')";
    assert_eq!(browser.text(bars), "stage 0 · ranks 0-2|");
    let charts = "[...document.querySelectorAll('#memory figcaption')].map((one) => one.textContent).join('|')";
    let charts = browser.text(charts);
    assert!(charts.starts_with("Stage 0, ranks 0, 1: peak"), "{charts}");
    assert_eq!(charts.split('|').count(), 2, "{charts}");
    let high = "document.querySelector('#when canvas').clientHeight";
    let folded = browser.number(high);
    browser.evaluate("[...document.querySelectorAll('#when button')].find((one) => one.textContent === 'All ranks').click()");
    browser.evaluate(FRAMES);
    let unfolded = browser.number(high);
    assert!(
        unfolded > 2.0 * folded,
        "three ranks, each with a part of its own: {folded}, {unfolded}"
    );
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Pairs of names under the roofs that cover each other.
const OVERLAPS: &str = "(() => { const all = [...document.querySelectorAll('#costs svg .label')].map((one) => one.getBoundingClientRect()); \
     return all.filter((a, at) => all.slice(at + 1).some((b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)).length; })()";

#[test]
fn on_a_phone_the_head_hides_no_heading_and_names_do_not_overlap() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = reference_plan(folder.path(), "gpt", "gpt.json", &PIPELINE);
    let page = page(folder.path(), &[&file], &["--explain", "0"]);
    browser.resize(true);
    browser.open(&page);
    for section in ["where", "graph", "costs", "when", "memory"] {
        browser.evaluate(&format!("document.querySelector('nav a[href=\"#{section}\"]').click()"));
        browser.evaluate(FRAMES);
        let hidden = format!(
            "document.querySelector('.top').getBoundingClientRect().bottom - \
             document.querySelector('#{section} h2').getBoundingClientRect().top"
        );
        let hidden = browser.number(&hidden);
        assert!(hidden <= 0.0, "{hidden} pixels of the heading of {section} are hidden");
    }
    assert!(browser.number("document.querySelectorAll('#costs svg .label').length") > 3.0);
    assert_eq!(browser.number(OVERLAPS), 0.0);
    let beyond = "document.documentElement.scrollWidth - innerWidth";
    assert!(browser.number(beyond) <= 0.0, "the page is no wider than the window");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn long_names_make_no_page_wider_than_a_phone() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let g = GraphBuilder::new("a_long_name_without_any_break_".repeat(6));
    let mut x = g.input("x", DType::F32, [4, 4]);
    for layer in 0..3 {
        let name = format!("{}.{layer}.weight", "a_module_of_a_long_name_".repeat(5));
        let init = graphc::ir::ops::Init::Fill(1.0.into());
        x = x.matmul(&g.variable(&name, DType::F32, [4, 4], init));
    }
    g.output(&"an_output_of_a_long_name".repeat(4), &x);
    let graph = g.finish().expect("a graph");
    let options = CompileOptions { mesh: vec![2], ..CompileOptions::default() };
    let cluster = preset("cpu").expect("a preset");
    let plan = compile(graph, &options, &cluster, None).expect("a plan").plan;
    let options = PageOptions { explain: Some(2), ..PageOptions::default() };
    let file = "plan_".repeat(30) + ".json";
    let made = build_page(&[(&file, &plan)], &options).expect("a page");
    let page = folder.path().join("page.html");
    std::fs::write(&page, write_html(&made)).expect("written");
    browser.resize(true);
    browser.open(&page);
    for opened in [
        OPEN_ALL,
        "document.querySelectorAll('.layers .hit').forEach((one) => one.click())",
        OPEN_ALL,
    ] {
        browser.evaluate(opened);
        browser.evaluate(FILLED);
    }
    // What is wider than the window scrolls within itself.
    let wide = "[...document.querySelectorAll('body *')].filter((one) => \
         one.getBoundingClientRect().right > innerWidth + 1 && !one.closest('.across, .scroll, .dag, .canvas')).map((one) => one.outerHTML.slice(0, 120)).join('\\n')";
    assert_eq!(browser.text(wide), "");
    let beyond = "document.documentElement.scrollWidth - innerWidth";
    assert!(browser.number(beyond) <= 0.0, "the page is no wider than the window");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

fn pages_of(pdf: &[u8]) -> usize {
    let text = String::from_utf8_lossy(pdf);
    text.match_indices("/Type /Page")
        .filter(|(at, found)| !text[at + found.len()..].starts_with('s'))
        .count()
}

/// Writes two plans of gpt, of batches of 8 and 16.
fn two_batches(folder: &Path) -> PathBuf {
    let one = reference_plan(folder, "gpt", "one.json", &["--mesh", "4"]);
    let training = ["--batch", "16", "--loss", "cross_entropy", "--optimizer", "adamw"];
    let model = reference("gpt").join("model.onnx");
    let other =
        compiled(folder, &model, "other.json", &[&training[..], &["--mesh", "2x2"]].concat());
    page(folder, &[&one, &other], &["--explain", "2"])
}

#[test]
fn two_plans_are_compared_by_what_can_be_compared_and_printed_on_few_pages() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let page = two_batches(folder.path());
    browser.open(&page);
    // No figure of other batches is better or worse but samples per second.
    let judged = "[...document.querySelectorAll('#differs .better, #differs .worse')]";
    assert_eq!(browser.number(&format!("{judged}.length")), 1.0);
    assert!(
        browser.evaluate(&format!("{judged}[0].dataset.pace === ''")).as_bool().expect("a truth")
    );
    // Both sides explain the same tensors, on one scale.
    let named = "[...document.querySelectorAll('#why .plan')].map((one) => [...one.querySelectorAll('summary .name')].map((name) => name.textContent).join())";
    let named: Vec<String> = serde_json::from_value(browser.evaluate(named)).expect("names");
    assert!(named.len() == 2 && named[0] == named[1] && named[0].contains(".weight"), "{named:?}");
    let pdf = decoded(&browser.print());
    assert!((2..8).contains(&pages_of(&pdf)), "{} pages", pages_of(&pdf));
    assert_eq!(browser.complaints, Vec::<String>::new());
}
