//! Tests of what a reader decides by: figures of two plans, measured seconds, what is folded and named so that it is found.

use std::path::Path;

use graphc::plan::{Action, read_plan};
use graphc::prelude::*;
use graphc::report::page::{
    MeasuredCosts, Page, PageOptions, RunPace, Went, build_page, write_html,
};
use serde_json::Value;

use super::browser::Browser;
use super::opened::{FILLED, OPEN_ALL};
use super::support::reference;
use super::{block, compiled, page, reference_plan};

const PIPELINE: [&str; 6] = ["--mesh", "2x2", "--stages", "2", "--microbatches", "4"];

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list"))
}

fn index(value: &Value) -> usize {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no index")) as usize
}

/// The texts of elements.
fn texts(browser: &mut Browser, elements: &str) -> Vec<String> {
    let all = format!("[...document.querySelectorAll({elements:?})].map((one) => one.textContent)");
    serde_json::from_value(browser.evaluate(&all)).expect("texts")
}

/// A plan of layers that are all alike, with weights far larger than what they make.
fn plan_of_layers(layers: usize, stages: usize) -> VerifiedPlan {
    let g = GraphBuilder::new("chain");
    let mut x = g.input("x", DType::F32, [4, 64]);
    for layer in 0..layers {
        let init = graphc::ir::ops::Init::Fill(0.01.into());
        x = x.matmul(&g.variable(&format!("layers.{layer}.weight"), DType::F32, [64, 64], init));
    }
    g.output("y", &x);
    let graph = g.finish().expect("a graph");
    let options = CompileOptions { mesh: vec![4], stages, ..CompileOptions::default() };
    let cluster = preset("cpu").expect("a preset");
    compile(graph, &options, &cluster, None).expect("a plan").plan
}

fn page_of(plans: &[(&str, &VerifiedPlan)]) -> Page {
    let options = PageOptions { explain: Some(0), ..PageOptions::default() };
    build_page(plans, &options).expect("a page")
}

fn open(browser: &mut Browser, folder: &Path, made: &Page) {
    let file = folder.join("made.html");
    std::fs::write(&file, write_html(made)).expect("written");
    browser.open(&file);
}

#[test]
fn two_plans_of_one_name_are_called_by_their_files() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let (one, other) = (plan_of_layers(12, 1), plan_of_layers(12, 2));
    open(&mut browser, folder.path(), &page_of(&[("one.json", &one), ("other.json", &other)]));
    assert_eq!(
        browser.text("document.getElementById('title').textContent"),
        "one.json and other.json"
    );
    let sides = texts(&mut browser, "#costs .plan h3");
    assert_eq!(sides, ["Aone.json", "Bother.json"]);
    // Plans with names of their own keep them.
    let mut named = page_of(&[("one.json", &one), ("other.json", &other)]);
    named.plans[1].name = "second".into();
    open(&mut browser, folder.path(), &named);
    assert_eq!(texts(&mut browser, "#costs .plan h3"), ["Achain", "Bsecond"]);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn differences_of_layers_alike_are_counted_once_whatever_their_stage() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let (one, other) = (plan_of_layers(12, 1), plan_of_layers(12, 2));
    let made = page_of(&[("one.json", &one), ("other.json", &other)]);
    let differing = made.difference.as_ref().expect("a difference").tensors.iter();
    let weights = differing.filter(|row| row.0.ends_with(".weight")).count();
    assert_eq!(weights, 12);
    open(&mut browser, folder.path(), &made);
    browser.evaluate(OPEN_ALL);
    browser.evaluate(FILLED);
    // In the order of the model, not of letters: layers.9 is not the last.
    let titles = texts(&mut browser, "#differs .differing summary");
    let folded: Vec<_> = titles.iter().filter(|title| title.contains(" layers")).collect();
    assert!(titles.iter().any(|title| title.contains("layers.11")), "{titles:?}");
    assert!(titles.iter().all(|title| !title.contains("… layers.9")), "{titles:?}");
    let rows = texts(&mut browser, "#differs .differing tbody tr");
    let of_weights: Vec<_> = rows.iter().filter(|row| row.contains(".weight")).collect();
    assert!(of_weights.len() < 6, "layers of two stages are one row: {folded:?} {of_weights:?}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn figures_say_what_the_step_is_made_of_before_what_the_planner_adds_up() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let one = reference_plan(folder.path(), "gpt", "one.json", &["--mesh", "4"]);
    let other = reference_plan(folder.path(), "gpt", "other.json", &PIPELINE);
    browser.open(&page(folder.path(), &[&one, &other], &["--explain", "0"]));
    let names = texts(&mut browser, "#differs table:first-of-type tbody td:first-child");
    let wanted = [
        "samples/s",
        "predicted step",
        "kernels",
        "communication not hidden",
        "waiting",
        "of the machines' peak",
        "peak memory",
        "objective",
        "bound",
    ];
    assert_eq!(names[..wanted.len()], wanted);
    let text = browser.text("document.getElementById('differs').innerText");
    assert!(text.contains("points"), "{text}");
    assert!(text.contains("send_recv") && text.contains("KiB"), "collectives have bytes: {text}");
    // Both timelines begin nested in layers, as their one switch says.
    let pressed = "[...document.querySelectorAll('#when button')].find((one) => one.textContent === 'Layers').ariaPressed";
    assert_eq!(browser.text(pressed), "true");
    let high = "[...document.querySelectorAll('#when canvas')].map((one) => one.clientHeight)";
    let high: Vec<f64> = serde_json::from_value(browser.evaluate(high)).expect("heights");
    assert!(high[1] > 2.0 * 49.0, "the two stages are nested: {high:?}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn a_plan_of_many_stages_beside_one_of_few_is_nested_too() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let (one, other) = (plan_of_layers(12, 1), plan_of_layers(12, 4));
    // Ranks that are not alike have lanes of their own.
    let mut made = page_of(&[("one.json", &one), ("other.json", &other)]);
    let rows = made.plans[1].timeline.rows.clone();
    let next = rows.iter().cloned().map(|mut row| {
        row.stage += 4;
        row
    });
    made.plans[1].timeline.rows.extend(next);
    open(&mut browser, folder.path(), &made);
    let high = browser.number("document.querySelectorAll('#when canvas')[1].clientHeight");
    assert!(high > 8.0 * 49.0, "eight lanes, each with passes, layers and events: {high}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn what_rounding_leaves_of_measured_seconds_has_no_ratio() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let plan = plan_of_layers(2, 1);
    let mut made = page_of(&[("one.json", &plan)]);
    made.plans[0].summary.samples = Some(8);
    // In this order the parts are 0.6, and the step is a little more.
    let rows = [("matmul", 0.3, 0.5), ("binary", 0.2, 0.2), ("all_reduce", 0.1, 0.1)];
    made.went = Some(Went {
        pace: Some(RunPace { predicted: 8.0 / 0.6, measured: 5.0 }),
        measured: Some(MeasuredCosts {
            step: (0.1 + 0.2 + 0.3, 1.0),
            rows: rows.map(|(name, a, b)| (name.to_owned(), a, b)).to_vec(),
            ranks: Vec::new(),
            actors: Vec::new(),
        }),
        ..Went::default()
    });
    open(&mut browser, folder.path(), &made);
    let rows = texts(&mut browser, "#went tbody tr");
    let outside = rows.iter().find(|row| row.starts_with("outside")).expect("a row");
    assert!(outside.ends_with('–') && outside.contains("0 s"), "{outside}");
    // The headline says what it is of, and that the run as a whole did otherwise.
    let card = texts(&mut browser, ".card").into_iter().find(|card| card.starts_with("Measured"));
    let card = card.expect("a card");
    assert!(card.contains("the median of the profile; the run made 5.00 samples/s"), "{card}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn little_memory_is_not_none() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let plan = plan_of_layers(2, 1);
    open(&mut browser, folder.path(), &page_of(&[("one.json", &plan)]));
    let cards = texts(&mut browser, ".card");
    let memory = cards.iter().find(|card| card.starts_with("Peak memory")).expect("a card");
    assert!(memory.contains("< 0.1 % of 4.0 GiB"), "{memory}");
    // What is nothing is that.
    assert!(cards.iter().any(|card| card.contains("waiting 0.0 %")), "{cards:?}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn memory_of_stages_alike_is_one_chart() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let plan = plan_of_layers(8, 4);
    let mut made = page_of(&[("one.json", &plan)]);
    // The last stage holds twice as much.
    let last = &mut made.plans[0].memory.programs[3];
    last.arena_bytes *= 2;
    open(&mut browser, folder.path(), &made);
    let charts = texts(&mut browser, "#memory figcaption");
    assert!(charts[1].starts_with("Stages 1, 2, ranks 1, 2: peak"), "{charts:?}");
    assert!(charts[1].contains("of stage "), "it says which is drawn: {charts:?}");
    assert!(charts.len() == 3 && charts[2].starts_with("Stage 3, rank 3: "), "{charts:?}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn on_a_phone_seconds_are_seen_without_scrolling_and_on_paper_headings_take_room() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = reference_plan(folder.path(), "gpt", "gpt.json", &PIPELINE);
    browser.resize(true);
    browser.open(&page(folder.path(), &[&file], &["--explain", "1"]));
    let ends = "[...document.querySelectorAll('#costs .pair th')].filter((one) => one.textContent === 'seconds').map((one) => one.getBoundingClientRect().right)";
    let ends: Vec<f64> = serde_json::from_value(browser.evaluate(ends)).expect("numbers");
    assert!(ends.len() == 2 && ends.iter().all(|&end| end < 391.0), "{ends:?}");
    browser.resize(false);
    browser.call("Emulation.setEmulatedMedia", serde_json::json!({ "media": "print" }));
    let room = "[...document.querySelectorAll('section > h2')].map((one) => parseFloat(getComputedStyle(one, '::after').height))";
    let room: Vec<f64> = serde_json::from_value(browser.evaluate(room)).expect("numbers");
    assert!(room.len() > 5 && room.iter().all(|&room| room > 100.0), "{room:?}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn a_large_bucket_says_what_it_holds_in_all() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = reference_plan(folder.path(), "gpt", "gpt.json", &["--mesh", "4"]);
    let page = page(folder.path(), &[&file], &["--explain", "1"]);
    let shown = block(&page)["plans"][0].clone();
    let timeline = &shown["timeline"];
    let row = &timeline["rows"][0];
    let actors = &timeline["actors"][index(&row["program"])];
    let stream = &row["streams"][0];
    let (run, place, reads) = (list(&stream["items"]).iter().enumerate())
        .find_map(|(run, item)| {
            let block = list(&stream["blocks"][index(&item[0])]);
            let large = |actor: &Value| list(&actors[index(actor)][5][1]).len() > 12;
            let place = block.iter().position(large)?;
            Some((run, place, list(&actors[index(&block[place])][5][1]).clone()))
        })
        .expect("a bucket");
    browser.open_link(&page, &format!("#when?event=A:0.0.{run}.{place}"));
    browser.evaluate(FILLED);
    let panel = texts(&mut browser, "#when .panel dd[data-registers=reads]");
    let registers = &timeline["registers"][index(&row["program"])];
    let bytes: usize = reads.iter().map(|one| index(&registers[index(one)][4])).sum();
    let wanted = format!("{} tensors of ", reads.len());
    let kib = format!("{:.1} KiB on a rank together", bytes as f64 / 1024.0);
    assert!(panel[0].starts_with(&wanted) && panel[0].contains(&kib), "{kib}: {panel:?}");
    // Reasons name the parts of tensors that have numbers.
    let reasons = texts(&mut browser, "#why .reasons td .note");
    assert!(reasons.iter().any(|part| part.contains("blocks.")), "{reasons:?}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn ops_within_a_chain_read_what_their_kernel_reads() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let megatron = ["--mesh", "2", "--strategy", "megatron"];
    let file = reference_plan(folder.path(), "gpt", "gpt.json", &megatron);
    let shown = block(&page(folder.path(), &[&file], &["--explain", "0"]))["plans"][0].clone();
    let (tensors, layouts) = (list(&shown["places"]["tensors"]), &shown["places"]["layouts"]);
    let layout = |number: &Value| layouts[index(number)].as_str().expect("a layout");
    let mut reduced = 0;
    for op in list(&shown["graph"]["ops"]).iter().filter(|op| op[0] == "binary") {
        let Some(made) = list(&op[4]).first() else { continue };
        let summands = layout(&tensors[index(made)][3]).contains('P');
        for read in list(&op[3]) {
            // A sum of summands and of something whole is no whole.
            assert!(summands || !layout(&read[1]).contains('P'), "{op}");
            reduced += usize::from(layout(&tensors[index(&read[0])][3]).contains('P'));
        }
    }
    assert!(reduced >= 4, "attention and feed-forward of both layers are reduced: {reduced}");
}

#[test]
fn boxing_on_edges_of_one_op_does_not_overlap() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let g = GraphBuilder::new("sums");
    let init = || graphc::ir::ops::Init::Fill(0.01.into());
    let x = g.input("x", DType::F32, [4, 64]);
    let made = |name: &str| x.matmul(&g.variable(name, DType::F32, [64, 64], init()));
    let parts = [made("layers.0.q"), made("layers.0.k"), made("layers.0.v")];
    g.output("y", &(&(&parts[0] + &parts[1]) + &parts[2]).relu());
    let graph = g.finish().expect("a graph");
    let options = CompileOptions { mesh: vec![2], ..CompileOptions::default() };
    let plan = compile(graph, &options, &preset("cpu").expect("a preset"), None).expect("a plan");
    let mut made = page_of(&[("one.json", &plan.plan)]);
    // One op that reads three tensors, each brought to another layout, two of them in the same way.
    let shown = &mut made.plans[0];
    let makers: Vec<usize> =
        (shown.graph.ops.iter().filter(|op| op.0 == "matmul")).map(|op| op.4[0]).collect();
    shown.places.layouts.push("S(1)".into());
    let new = shown.places.layouts.len() - 1;
    for (&tensor, kind) in makers.iter().zip(["all_to_all", "all_to_all", "all_gather"]) {
        let own = shown.places.tensors[tensor].3;
        shown.places.boxing.push((tensor, kind, own, new, Some(0), 64, 1));
    }
    let last = shown.graph.ops.last_mut().expect("an op");
    last.3 = makers.iter().map(|&tensor| (tensor, new)).collect();
    open(&mut browser, folder.path(), &made);
    browser.evaluate(OPEN_ALL);
    browser.evaluate(FILLED);
    let badges = texts(&mut browser, ".dag .edge-boxing");
    assert!(badges.contains(&"2 x all_to_all 0".to_owned()), "{badges:?}");
    let overlaps = "(() => { const all = [...document.querySelectorAll('.dag .edge-boxing rect')].map((one) => one.getBoundingClientRect()); \
         return all.filter((a, at) => all.slice(at + 1).some((b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)).length; })()";
    assert_eq!(browser.number(overlaps), 0.0);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn ranks_that_are_all_alike_do_not_wait_for_each_other() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    // So many samples that kernels take longer than the communication beside them.
    let overlap = [
        "--mesh",
        "4",
        "--cluster",
        "dgx-h100",
        "--strategy",
        "zero3",
        "--batch",
        "16384",
        "--microbatches",
        "2",
    ];
    let training = ["--loss", "cross_entropy", "--optimizer", "adamw"];
    let model = reference("gpt").join("model.onnx");
    let file = compiled(folder.path(), &model, "gpt.json", &[&training[..], &overlap].concat());
    let shown = block(&page(folder.path(), &[&file], &["--explain", "0"]))["plans"][0].clone();
    let plan = read_plan(&std::fs::read_to_string(&file).expect("a plan")).expect("a plan");
    let rows = list(&shown["timeline"]["rows"]);
    assert_eq!(rows.len(), 1);
    let program = &plan.programs[index(&rows[0]["program"])];
    let mut held = 0;
    for wait in list(&rows[0]["waits"]).iter().flat_map(list) {
        let actor = &program.actors[index(&wait["actor"])];
        if matches!(actor.action, Action::Collective { .. }) {
            // It is held back by what its own rank does on the other stream.
            assert!(list(&wait["ranks"]).is_empty(), "{wait} of {}", actor.name);
            assert_ne!(wait["tensor"], "", "{wait} of {}", actor.name);
            held += 1;
        }
    }
    assert!(held > 5, "gathers ahead wait for room: {held}");
}
