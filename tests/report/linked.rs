//! What is open on a page is in its address.

use super::browser::Browser;
use super::opened::{FILLED, FRAMES};
use super::{page, reference_plan};

const PIPELINE: [&str; 6] = ["--mesh", "2x2", "--stages", "2", "--microbatches", "4"];

/// Clicks on events of the first lane, from left to right, until the panel of one opens that has a part of the first block, and a tensor.
const CLICK: &str = "(() => { const canvas = document.querySelector('#when canvas'); \
     const box = canvas.getBoundingClientRect(); \
     canvas.setPointerCapture = () => {}; \
     const opened = () => { const text = (document.querySelector('#when .panel') || canvas).textContent; \
       return text.startsWith('blocks.0.up') && text.includes('tensor'); }; \
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
    assert!(event.contains("stage 0, ranks 0-1") && event.contains("tensor"), "{event}");
    // The event leads to its tensor, that to its layer.
    browser.evaluate("document.querySelector('#when .panel dd .hit').click()");
    let tensor = panel(&mut browser, "where");
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
fn lanes_that_are_alike_are_folded() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = reference_plan(folder.path(), "gpt", "gpt.json", &["--mesh", "3"]);
    browser.open(&page(folder.path(), &[&file], &["--explain", "0"]));
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
