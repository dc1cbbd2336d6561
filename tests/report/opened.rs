//! Pages opened in a browser: they are drawn, in time, without complaints, and what they show are the plan's numbers.

use std::path::{Path, PathBuf};

use graphc::compiler::null_device::{Simulation, simulate};
use graphc::plan::{TensorEntry, read_plan};
use graphc::prelude::*;
use graphc::report::page::{PageOptions, build_page as page_of, write_html};

use super::browser::Browser;
use super::support::{Reference, losses, succeeds, training};
use super::{large_plan, page, read, reference_plan};

/// Milliseconds in which a page is drawn.
const IN_TIME: f64 = 2000.0;

/// Bytes of the largest page.
const LARGEST: u64 = 3 << 20;

/// Opens a page: the milliseconds in which it was drawn, at the best of some tries, as other programs run beside it.
fn drawn(browser: &mut Browser, page: &Path) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..4 {
        browser.open(page);
        best = best.min(browser.number("Number(document.documentElement.dataset.drawn)"));
        if best < IN_TIME {
            break;
        }
    }
    best
}

/// Holds what is drawn of a plan against the plan.
fn shows(browser: &mut Browser, file: &Path, page: &Path) {
    let milliseconds = drawn(browser, page);
    let name = file.file_name().expect("a name").to_string_lossy();
    assert!(milliseconds < IN_TIME, "{name} took {milliseconds} ms");
    assert_eq!(browser.complaints, Vec::<String>::new(), "{name}");
    let size = std::fs::metadata(page).expect("a page").len();
    assert!(size < LARGEST, "{name} has {size} bytes");
    eprintln!("{name}: drawn in {milliseconds} ms, {size} bytes");
    equals(browser, file);
}

/// Holds the figures of the page that is open against those of its plan.
fn equals(browser: &mut Browser, file: &Path) {
    let name = file.display();
    let text = std::fs::read_to_string(file).expect("a plan");
    let plan = read_plan(&text).expect("a plan");
    let simulation = simulate(&plan).expect("it runs");
    let cards = numbers(browser, ".card .big", "value");
    let peak = plan.predicted.peak_memory_bytes.iter().max().copied().unwrap_or(0);
    let figures = [
        simulation.step_seconds,
        peak as f64,
        plan.planner.gap,
        plan.world_size as f64,
        plan.stages as f64,
    ];
    assert_eq!(cards[..5], figures, "{name}");
    assert!(cards.get(5).is_none_or(|share| (0.0..=1.0).contains(share)), "{name}: {cards:?}");
    let ranks = browser.number("document.querySelectorAll('.stage rect').length");
    assert_eq!(ranks, plan.world_size as f64, "{name}");
    let events = browser.number("Number(document.querySelector('#when figure').dataset.events)");
    assert_eq!(events, actions(&plan, &simulation) as f64, "{name}");
    assert!(browser.number("Number(document.querySelector('#when canvas').dataset.drawn)") > 0.0);
    let arenas = "[...document.querySelectorAll('#memory figure')].flatMap((one) => JSON.parse(one.dataset.arenas))";
    let arenas = browser.evaluate(arenas);
    let mut arenas: Vec<f64> = serde_json::from_value(arenas).expect("numbers");
    let mut wanted: Vec<f64> = plan.programs.iter().map(|one| one.arena_bytes as f64).collect();
    arenas.sort_by(f64::total_cmp);
    wanted.sort_by(f64::total_cmp);
    assert_eq!(arenas, wanted, "{name}");
}

/// The actions of a step of one rank of each class.
fn actions(plan: &Plan, simulation: &Simulation) -> usize {
    (simulation.classes.iter())
        .map(|class| &plan.programs[plan.ranks[class.rank as usize].program.index()])
        .flat_map(|program| &program.streams)
        .flat_map(|stream| stream.order.iter().map(|item| stream.blocks[item.block as usize].len()))
        .sum()
}

/// The numbers that elements bear.
fn numbers(browser: &mut Browser, elements: &str, name: &str) -> Vec<f64> {
    let all = browser.evaluate(&format!(
        "[...document.querySelectorAll('{elements}')].map((one) => Number(one.dataset.{name}))"
    ));
    serde_json::from_value(all).expect("numbers")
}

#[test]
fn pages_of_small_and_large_plans_are_drawn_in_time() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let folder = folder.path();
    let pipeline = ["--mesh", "2x2", "--stages", "2", "--microbatches", "4"];
    let h100 = ["--batch", "64", "--cluster", "dgx-h100", "--mesh", "8x8"];
    let stages = ["--batch", "1536", "--cluster", "dgx-a100", "--mesh", "128x8", "--stages", "8"];
    let megatron = ["--microbatches", "96", "--strategy", "megatron"];
    let plans = [
        reference_plan(folder, "gpt", "gpt.json", &pipeline),
        reference_plan(folder, "resnet", "resnet.json", &["--mesh", "4"]),
        large_plan(folder, "llama3_8b", &h100),
        large_plan(folder, "gpt3_175b", &[&stages[..], &megatron].concat()),
    ];
    for (plan, section) in plans.iter().zip(["summary", "costs", "when", "when"]) {
        let page = page(folder, &[plan], &["--explain", "0"]);
        shows(&mut browser, plan, &page);
        let name = plan.file_stem().expect("a name").to_string_lossy().into_owned();
        if name == "llama3_8b" {
            boxing_of_folded_layers_is_seen(&mut browser);
        }
        image(&mut browser, &name, section);
    }
}

/// Layers that are folded in the graph say what each of them, and what lies between two, asks for.
fn boxing_of_folded_layers_is_seen(browser: &mut Browser) {
    let folded = "document.querySelector('#graph .between').parentNode.textContent";
    let folded = browser.text(folded);
    for part in ["32 layers alike", "boxing in each: ", "all_gather", "between two of them"] {
        assert!(folded.contains(part), "{part}: {folded}");
    }
    let first = browser.text("document.querySelector('#graph summary .name').textContent");
    assert_eq!(first, "tok_embeddings");
    // Of several steps on one edge the first is named, and how many more there are.
    for key in ["alike:A:layers.0", "ops:A:layers.1"] {
        browser
            .evaluate(&format!("document.querySelector('[data-key=\"{key}\"] > summary').click()"));
        browser.evaluate(FILLED);
    }
    let badges =
        "[...document.querySelectorAll('.dag text.on')].map((one) => one.textContent).join('|')";
    let badges = browser.text(badges);
    assert!(badges.contains("all_to_all +2") && !badges.contains('…'), "{badges}");
}

/// Writes the images of docs/commands.md with `GRAPHC_IMAGES=1`, each from a section on.
pub fn image(browser: &mut Browser, name: &str, section: &str) {
    if std::env::var_os("GRAPHC_IMAGES").is_none() {
        return;
    }
    browser.evaluate(&format!("document.getElementById('{section}').scrollIntoView()"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = root.join("docs/report").join(format!("{name}.png"));
    let bytes = decoded(&browser.screenshot());
    std::fs::write(&file, bytes).expect("the image is written");
}

/// The bytes of a text in base 64.
pub fn decoded(text: &str) -> Vec<u8> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |c: u8| LETTERS.iter().position(|&letter| letter == c);
    let digits: Vec<usize> = text.bytes().filter_map(digit).collect();
    let three = |four: &[usize]| {
        let number = (0..4).fold(0, |sum, at| sum << 6 | four.get(at).copied().unwrap_or(0));
        let bytes = [number >> 16, number >> 8, number].map(|byte| byte as u8);
        bytes[..four.len() - 1].to_vec()
    };
    digits.chunks(4).flat_map(three).collect()
}

/// A script that waits for two frames, in which what was asked for is drawn.
pub const FRAMES: &str =
    "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))";

/// Time in which what was opened is filled.
pub const FILLED: &str = "new Promise((done) => setTimeout(done, 50))";

/// Opens all that is folded.
pub const OPEN_ALL: &str =
    "document.querySelectorAll('details > summary').forEach((s) => s.parentNode.open || s.click())";

#[test]
fn layers_open_tensors_are_found_and_the_timeline_zooms() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let pipeline = ["--mesh", "2x2", "--stages", "2", "--microbatches", "4"];
    let file = reference_plan(folder.path(), "gpt", "gpt.json", &pipeline);
    let page = page(folder.path(), &[&file], &["--explain", "1"]);
    let plan = read_plan(&std::fs::read_to_string(&file).expect("a plan")).expect("a plan");
    browser.open(&page);
    layers_unfold(&mut browser);
    names_are_found(&mut browser, &plan);
    chosen_tensors_show_their_parts(&mut browser, &plan);
    waits_are_named(&mut browser, &plan);
    keys_zoom(&mut browser);
    // Tables say it too, and the dark theme draws as well.
    browser.evaluate(OPEN_ALL);
    browser.evaluate("document.getElementById('theme').click()");
    browser.evaluate(FRAMES);
    assert!(browser.number("document.querySelectorAll('#when table tbody tr').length") >= 2.0);
    assert_eq!(browser.text("document.documentElement.dataset.theme"), "dark");
    ops_unfold(&mut browser, &plan);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// The graph has the ops of each layer, and on its edges the boxing of the plan.
fn ops_unfold(browser: &mut Browser, plan: &Plan) {
    let ops = browser.number("document.querySelectorAll('.dag g.op .box').length");
    let drawn = numbers(browser, ".dag svg", "ops").iter().sum::<f64>();
    assert!(ops > 50.0 && ops == drawn, "{ops} of {drawn} ops are drawn");
    let moved = plan.boxing.iter().filter(|entry| entry.tensor == "add_2").count();
    let edges = "[...document.querySelectorAll('.entering .edge')].filter((one) => \
         one.querySelector('.hit').textContent === 'add_2').length";
    assert!(moved > 0 && browser.number(edges) == 1.0, "the next stage reads what is sent to it");
}

/// A layer is folded until it is clicked.
fn layers_unfold(browser: &mut Browser) {
    let rows = "document.querySelectorAll('.layers tbody tr').length";
    assert_eq!(browser.number(rows), 0.0);
    browser.evaluate("document.querySelectorAll('.layers summary')[1].click()");
    browser.evaluate(FILLED);
    assert!(browser.number(rows) > 50.0, "a block has many tensors");
}

/// Types into the search: how many tensors are listed.
fn search(browser: &mut Browser, text: &str) -> f64 {
    browser.number(&format!(
        "(() => {{ const box = document.querySelector('input[type=search]'); box.value = {text:?}; \
         box.dispatchEvent(new Event('input')); return document.querySelectorAll('.found tbody tr').length; }})()"
    ))
}

/// Search finds the plan's names, and nothing where there is none.
fn names_are_found(browser: &mut Browser, plan: &Plan) {
    let wanted = plan.tensors.iter().filter(|entry| entry.name.contains("qkv.weight")).count();
    assert_eq!(search(browser, "QKV.weight"), wanted as f64);
    assert_eq!(search(browser, "no such tensor"), 0.0);
}

/// A tensor that is chosen shows its layout, and its parts on the ranks of its stage alone.
fn chosen_tensors_show_their_parts(browser: &mut Browser, plan: &Plan) {
    let named = |entry: &&TensorEntry| entry.name == "state.exp_avg.blocks.1.up.weight";
    let entry = plan.tensors.iter().find(named).expect("a state");
    assert_eq!(search(browser, &entry.name), 1.0);
    browser.evaluate("document.querySelector('.found .hit').click()");
    assert_eq!(browser.text("document.querySelector('.panel h4 bdi').textContent"), entry.name);
    let chips = "[...document.querySelectorAll('.panel .facts .chip')].map((c) => c.textContent).join(', ')";
    assert_eq!(browser.text(chips), entry.sbp.to_string());
    let events = browser.text("document.querySelector('.panel [data-events]').textContent");
    assert!(events.contains("updated by ") && !events.contains("made by"), "{events}");
    let ranks = entry.ranks.len() as f64;
    assert_eq!(browser.number("document.querySelectorAll('rect.part').length"), ranks);
    browser.evaluate("document.querySelector('.panel details > summary').click()");
    browser.evaluate(FILLED);
    let parts = "document.querySelectorAll('.panel details tbody tr').length";
    assert_eq!(browser.number(parts), ranks);
}

/// The texts of the timeline at places of its first lane where the stream waits.
const WAITS: &str = "(() => { const canvas = document.querySelector('#when canvas'); \
     const box = canvas.getBoundingClientRect(); \
     const said = new Set(); \
     for (let share = 0.15; share < 1; share += 0.002) { \
       const at = { clientX: box.left + box.width * share, clientY: box.top + 24 + 38 }; \
       canvas.dispatchEvent(new PointerEvent('pointermove', at)); \
       const tip = document.getElementById('tip'); \
       if (!tip.hidden && tip.textContent.startsWith('waits')) said.add(tip.textContent.split('\\n')[0]); } \
     return [...said].join('; '); })()";

/// Waiting is told as that, with what is waited for and whose it is.
fn waits_are_named(browser: &mut Browser, plan: &Plan) {
    let said = browser.text(WAITS);
    let named = |name: &str| said.contains(&format!("waits for {name}"));
    assert!(plan.channels.iter().any(|channel| named(&channel.tensor)), "{said}");
    assert!(said.contains(" of rank 2"), "{said}");
}

/// Keys zoom into the timeline; the whole step comes back.
fn keys_zoom(browser: &mut Browser) {
    let drawn = "Number(document.querySelector('#when canvas').dataset.drawn)";
    let all = browser.number(drawn);
    browser.evaluate("document.querySelector('#when canvas').focus()");
    for _ in 0..6 {
        browser.press("+");
    }
    browser.evaluate(FRAMES);
    assert!(browser.number(drawn) < all / 2.0, "fewer events are seen");
    browser.press("0");
    browser.evaluate(FRAMES);
    assert_eq!(browser.number(drawn), all);
}

/// Names that would end a script, begin a comment or a line, or turn text around.
const HOSTILE: [&str; 5] = [
    "<script>document.hacked = 1</script>",
    "</script><img src=x onerror=document.hacked=1>",
    "--><!--",
    "line\u{2028}and\u{2029}paragraph",
    "${document.hacked = 1}\"'`\u{202e}",
];

#[test]
fn names_stay_text() {
    let Some(mut browser) = Browser::start() else { return };
    let g = GraphBuilder::new("<script>document.hacked = 1</script>");
    let mut x = g.input("x", DType::F32, [4, 4]);
    for name in HOSTILE {
        x = x.matmul(&g.variable(name, DType::F32, [4, 4], nn_init()));
    }
    g.output("</title>", &x);
    let graph = g.finish().expect("a graph");
    let options = CompileOptions { mesh: vec![2], ..CompileOptions::default() };
    let plan =
        compile(graph, &options, &preset("cpu").expect("a preset"), None).expect("a plan").plan;
    let options = PageOptions { explain: Some(2), ..PageOptions::default() };
    let made = page_of(&[("<b>.json", &plan)], &options).expect("a page");
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = folder.path().join("page.html");
    std::fs::write(&file, write_html(&made)).expect("written");
    browser.open(&file);
    assert!(browser.evaluate("document.hacked === undefined").as_bool().expect("a truth"));
    assert_eq!(browser.number("document.querySelectorAll('script, img, b.json').length"), 2.0);
    assert!(browser.text("document.title").starts_with("<script>"));
    browser.evaluate(OPEN_ALL);
    browser.evaluate("(() => { const box = document.querySelector('input'); box.value = 'e'; box.dispatchEvent(new Event('input')); })()");
    browser.evaluate("document.querySelectorAll('.found .hit').forEach((one) => one.click())");
    assert!(browser.text("document.body.innerText").contains(HOSTILE[0]));
    assert!(browser.evaluate("document.hacked === undefined").as_bool().expect("a truth"));
    assert_eq!(browser.complaints, Vec::<String>::new());
}

fn nn_init() -> graphc::ir::ops::Init {
    graphc::ir::ops::Init::Fill(1.0.into())
}

/// The metrics of a few steps of the reference gpt.
fn trained(folder: &Path) -> PathBuf {
    let metrics = folder.join("losses.jsonl");
    let file = metrics.to_str().expect("UTF-8");
    let mut args = training("gpt", &["--metrics", file, "--measure", "speed"]);
    args.extend(Reference::load("gpt").args);
    succeeds(&args);
    metrics
}

#[test]
fn two_plans_and_a_run_are_drawn_beside_each_other() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let one = reference_plan(folder.path(), "gpt", "one.json", &["--mesh", "4"]);
    let other = reference_plan(
        folder.path(),
        "gpt",
        "other.json",
        &["--mesh", "2x2", "--stages", "2", "--microbatches", "2"],
    );
    let metrics = trained(folder.path());
    let extra = ["--explain", "0", "--metrics", metrics.to_str().expect("UTF-8")];
    let page = page(folder.path(), &[&one, &other], &extra);
    browser.open(&page);
    for (what, count) in [
        ("#summary .strip", 2.0),
        ("#when canvas", 2.0),
        ("#where .plan", 2.0),
        ("#differs table", 3.0),
        ("#differs .differing > details", 3.0),
    ] {
        assert_eq!(
            browser.number(&format!("document.querySelectorAll('{what}').length")),
            count,
            "{what}"
        );
    }
    let found = losses(&std::fs::read(&metrics).expect("metrics"));
    let last =
        browser.number("Number(document.querySelector('figure[data-curve=loss]').dataset.last)");
    assert_eq!(Some(&last), found.last());
    let headline = "[...document.querySelectorAll('.card dt')].map((one) => one.textContent)";
    let titles: Vec<String> =
        serde_json::from_value(browser.evaluate(headline)).expect("the titles of cards");
    let measured = titles.iter().filter(|title| *title == "Measured step").count();
    assert_eq!((titles[1].as_str(), measured), ("Measured step", 1), "the run is of plan A");
    // Beside the losses how fast the run was, and what was predicted.
    assert_eq!(
        browser
            .number("document.querySelectorAll('figure[data-curve=\"samples/s\"] .curve').length"),
        1.0
    );
    let pace = numbers(&mut browser, "#went .pace", "measured");
    assert!(pace.len() == 1 && pace[0] > 0.0, "{pace:?}");
    let first = read(&one)["predicted"]["step_seconds"].as_f64().expect("a number");
    let predicted = numbers(&mut browser, "#went .pace", "predicted");
    assert!((predicted[0] * first - 8.0).abs() < 1e-6, "{predicted:?}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}
