//! Runs passes on texts with their expectation. `filetests/*.gir` hold options, a graph, and after each line `---- after PASS` (or `---- error`) the
//! expected result. `UPDATE_EXPECT=1` writes the actual results instead.

use std::path::Path;

use expect_test::expect_file;
use graphc_compiler::pipeline::{prepare_graph, prepare_until};
use graphc_ir::graph::Graph;
use graphc_ir::text::{parse_graph, print_graph};
use graphc_plan::{
    Accumulation, AdamOptions, CompileOptions, Loss, Metric, Optimizer, Pin, Recompute,
};

/// Reads `key=value` pairs of the first line, `# loss=mse mesh=2x2`.
fn options(line: &str) -> CompileOptions {
    let mut options = CompileOptions::default();
    let adam = AdamOptions { lr: 0.1, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };
    let sgd = |momentum| Optimizer::Sgd { lr: 0.1, momentum, nesterov: false, weight_decay: 0.0 };
    for word in line.trim_start_matches('#').split_whitespace() {
        let (key, value) = word.split_once('=').expect("key=value");
        let number = || value.parse::<usize>().expect("a number");
        match (key, value) {
            ("mesh", _) => {
                options.mesh = value.split('x').map(|n| n.parse().expect("a number")).collect();
            }
            ("stages", _) => options.stages = number(),
            ("microbatches", _) => options.microbatches = number(),
            ("recompute", "full") => options.recompute = Recompute::Full,
            ("loss", "cross_entropy") => options.loss = Some(Loss::CrossEntropy),
            ("loss", "nll") => options.loss = Some(Loss::Nll),
            ("loss", "mse") => options.loss = Some(Loss::Mse),
            ("loss", "sum") => options.loss = Some(Loss::Sum),
            ("optimizer", "sgd") => options.optimizer = Some(sgd(0.0)),
            ("optimizer", "momentum") => options.optimizer = Some(sgd(0.9)),
            ("optimizer", "adam") => options.optimizer = Some(Optimizer::Adam(adam)),
            ("optimizer", "lamb") => options.optimizer = Some(Optimizer::Lamb(adam)),
            ("lr_schedule", _) => options.lr_schedule = value.parse().expect("a schedule"),
            ("clip_norm", _) => options.clip_norm = Some(value.parse().expect("a number")),
            ("keep_statistics", _) => options.keep_statistics.push(value.into()),
            ("accumulation", "half") => options.accumulation = Accumulation::Half,
            ("metrics", "top1") => options.metrics.push(Metric::Top1),
            ("ema", _) => options.ema = Some(value.parse().expect("a decay")),
            ("precision", _) => options.precision = Some(value.parse().expect("an element type")),
            ("pin", _) => {
                let (pattern, sbp) = value.split_once(':').expect("name:sbp");
                let sbp = sbp.parse().expect("an SBP");
                options.pins.push(Pin { pattern: pattern.into(), sbp });
            }
            _ => panic!("`{word}` is no option of a filetest"),
        }
    }
    options
}

fn section(graph: &Graph, options: &CompileOptions, title: &str) -> String {
    if title == "error" {
        return format!("{}\n", prepare_graph(graph.clone(), options).expect_err("an error"));
    }
    let pass = title.strip_prefix("after ").expect("`---- after PASS` or `---- error`");
    let after = prepare_until(graph.clone(), options, pass).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(parse_graph(&print_graph(&after)).expect("its own text"), after);
    print_graph(&after)
}

fn check(path: &Path) {
    let text = std::fs::read_to_string(path).expect("is there");
    let mut parts = text.split("---- ");
    let head = parts.next().expect("a graph");
    let (first, graph) = head.split_once('\n').expect("options and a graph");
    let options = options(first);
    let graph = parse_graph(graph).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut found = head.to_string();
    for part in parts {
        let title = part.lines().next().expect("a title");
        found += &format!("---- {title}\n{}", section(&graph, &options, title));
    }
    expect_file![path].assert_eq(&found);
}

#[test]
fn filetests_are_as_expected() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .expect("is there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "gir"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths.iter().for_each(|path| check(path));
}
