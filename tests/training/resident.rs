//! Tests that a training on the processor has little more resident than its plan says: no copies of weights, scores or gradients beside the
//! arena.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::succeeds;
use graphc::ir::ids::ProgramId;
use graphc::ir::op::Op;
use graphc::ir::ops::Init;
use graphc::ir::text::print_graph;
use graphc::nn::Module;
use graphc::nn::models::{Gpt2Config, gpt2};
use graphc::plan::read_plan;
use graphc::prelude::*;
use graphc::runtime::data::save_safetensors;

/// Samples of a step, and tokens of each.
const TOKENS: [usize; 2] = [4, 64];
const VOCABULARY: usize = 50257;
/// Bytes of the program itself, whatever it trains.
const PROGRAM: u64 = 24 << 20;

/// Writes GPT-2 with one narrow layer and its whole vocabulary, whose first weights are drawn, or in a file beside the model.
fn write_model(path: &Path, drawn: bool) {
    let g = GraphBuilder::new("gpt2");
    let config =
        Gpt2Config { layers: 1, width: 128, heads: 2, sequence: 64, ..Gpt2Config::small() };
    let tokens = g.input("tokens", DType::I64, TOKENS);
    g.output("logits", &gpt2(&g, &config).forward(&tokens));
    let mut graph = g.finish().expect("a graph");
    for node in &mut graph.nodes {
        if let (Op::Variable(variable), false) = (&mut node.op, drawn) {
            variable.init = Init::Weights;
        }
    }
    std::fs::write(path, print_graph(&graph)).expect("a file");
}

fn write_data(path: &Path) {
    let numbers = |shift: usize| {
        let all = TOKENS.iter().product::<usize>();
        let tokens: Vec<i64> = (0..all).map(|i| ((i * 7919 + shift) % VOCABULARY) as i64).collect();
        HostTensor::from_i64(TOKENS, &tokens).expect("tokens")
    };
    let tensors = [("tokens".to_owned(), numbers(0)), ("labels".to_owned(), numbers(1))];
    save_safetensors(path, &tensors.into()).expect("a file");
}

/// Files of a test.
struct Scratch(tempfile::TempDir);

impl Scratch {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn name(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }
}

/// The bytes of all ranks by the plan.
fn planned(scratch: &Scratch, model: &str, options: &[&str]) -> u64 {
    let plan = scratch.name("plan.json");
    succeeds(["compile", model, "-o", &plan].into_iter().chain(options.iter().copied()));
    let plan = read_plan(&std::fs::read_to_string(plan).expect("a plan")).expect("a plan");
    let of = |program: ProgramId| plan.predicted.peak_memory_bytes[program.index()];
    plan.ranks.iter().map(|rank| of(rank.program)).sum()
}

/// The most bytes that a run of the CLI has resident at one time. The system's own account of a child that has ended (`ru_maxrss`) begins with what
/// was resident here when it was started, so the child is asked while it runs.
fn resident(args: &[&str]) -> u64 {
    let mut command = Command::new(env!("CARGO_BIN_EXE_graphc"));
    let mut child = command.args(args).stdout(Stdio::null()).spawn().expect("it starts");
    let account = format!("/proc/{}/status", child.id());
    let mut most = 0;
    loop {
        // The account of one that has just ended has no such line.
        let text = std::fs::read_to_string(&account).unwrap_or_default();
        most = most.max(high_water(&text).unwrap_or(0));
        if let Some(status) = child.try_wait().expect("a child of this process") {
            assert!(status.success(), "{args:?}: {status}");
            return most;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The most bytes that a process had resident so far, by its account.
fn high_water(account: &str) -> Option<u64> {
    let line = account.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024)
}

fn check(scratch: &Scratch, model: &str, options: &[&str], extra: &[&str]) {
    let (model, data) = (scratch.name(model), scratch.name("data.safetensors"));
    let shared = [&["--loss", "cross_entropy", "--lr", "0.001"][..], options].concat();
    let plan = planned(scratch, &model, &shared);
    let train = ["train", &model, "--data", &data, "--steps", "3"];
    let found = resident(&[&train[..], &shared, extra].concat());
    let most = plan * 13 / 10 + PROGRAM;
    assert!(found <= most, "{options:?} {extra:?}: {found} bytes resident, the plan has {plan}");
    // The test itself: what is resident was seen.
    assert!(found > plan * 3 / 4, "{options:?}: {found} of {plan} bytes");
}

/// A training takes the memory of its plan. With the scores of each step on the host, the first weights kept, and weights written from one
/// copy of all of them these took two to four times their plans.
#[test]
fn a_training_takes_the_memory_of_its_plan() {
    let scratch = Scratch(tempfile::tempdir().expect("a scratch folder"));
    write_model(&scratch.path("drawn.gir"), true);
    write_model(&scratch.path("stored.gir"), false);
    write_data(&scratch.path("data.safetensors"));
    let stored = scratch.name("stored.safetensors");
    let [adamw, sgd] = ["adamw", "sgd"].map(|name| ["--optimizer", name]);
    check(&scratch, "drawn.gir", &adamw, &["--weights", &stored]);
    check(&scratch, "stored.gir", &adamw, &[]);
    check(&scratch, "stored.gir", &sgd, &[]);
    check(&scratch, "drawn.gir", &sgd, &["--weights-from", &stored]);
    check(&scratch, "drawn.gir", &[&adamw[..], &["--mesh", "2"]].concat(), &[]);
}
