//! The kernels of two real trainings, GPT-2 124M and ResNet-50, as NVIDIA's compiler makes them for four generations of cards: what they
//! need of a multiprocessor, and what they would take if nothing but memory and arithmetic bounded them. No register may be kept in memory.
//!
//! `UPDATE_EXPECT=1 cargo test --test cards cuda_kernels::` writes the table into docs/gpu.md. What it says of time is computed, not measured;
//! sectors are counted by the double, which executes the actors of the same models on a smaller batch.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use crate::traffic::{Sectors, sectors};
use gpu_double::Traffic;
use gpu_double::nvrtc::{self, Record, Resources};
use graphc::models::{Gpt2Config, gpt2, resnet50};
use graphc::nn::Module;
use graphc::prelude::*;
use graphc_compiler::cost::ActorWork;
use graphc_ir::types::TensorType;
use graphc_kernels::cuda::{Call, Kernel, Launch, Shard, prepare_fused, prepare_op};
use graphc_plan::{Action, Actor, Program};

const ARCHITECTURES: [&str; 4] = ["sm_80", "sm_90a", "sm_100", "sm_120"];
const OPTIONS: [&str; 4] = ["--fmad=false", "--std=c++17", "-default-device", "-minimal"];
/// The marks around the table in the document.
const MARKS: [&str; 2] = ["<!-- kernels -->\n", "<!-- /kernels -->"];

/// An actor of a training as a card executes it.
struct Found {
    what: String,
    call: Call,
    operands: Vec<Shard>,
    results: Vec<Shard>,
    work: ActorWork,
    bytes: f64,
}

impl Found {
    fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.call.launches.iter().filter_map(|launch| match launch {
            Launch::Kernel(kernel) => Some(kernel),
            _ => None,
        })
    }
}

/// A training's plan on one card.
fn plan(graph: Graph, precision: Option<DType>) -> Plan {
    let adam = AdamOptions { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
    let options = CompileOptions {
        loss: Some(Loss::CrossEntropy),
        optimizer: Some(Optimizer::AdamW(adam)),
        precision,
        ..CompileOptions::default()
    };
    let cluster = preset("dgx-h100").expect("a preset");
    compile(graph, &options, &cluster, None).expect("a plan").plan.into_plan()
}

/// Builds one layer of GPT-2, for so many tokens.
fn transformer(tokens: [usize; 2], vocabulary: usize) -> Graph {
    let g = GraphBuilder::new("gpt2");
    let config = Gpt2Config { layers: 1, vocabulary, ..Gpt2Config::small() };
    let model = gpt2(&g, &config);
    g.output("logits", &model.forward(&g.input("tokens", DType::I64, tokens)));
    g.finish().expect("a graph")
}

/// ResNet-50, for square images.
fn images(count: usize, side: usize) -> Graph {
    let g = GraphBuilder::new("resnet50");
    let model = resnet50(&g, 1000);
    g.output("logits", &model.forward(&g.input("x", DType::F32, [count, 3, side, side])));
    g.finish().expect("a graph")
}

/// Finds for each op and element type the actor that moves most.
fn actors(plan: &Plan) -> Vec<Found> {
    let program = &plan.programs[0];
    let mut greatest: BTreeMap<String, &Actor> = BTreeMap::new();
    for actor in &program.actors {
        let Some(name) = name(plan, program, actor) else { continue };
        let before = greatest.entry(name).or_insert(actor);
        if actor.bytes > before.bytes {
            *before = actor;
        }
    }
    greatest.into_iter().filter_map(|(name, actor)| found(plan, program, actor, name)).collect()
}

/// Returns what an actor computes, and of which type: `softmax of bf16`.
fn name(plan: &Plan, program: &Program, actor: &Actor) -> Option<String> {
    let what = match &actor.action {
        Action::Compute { op, .. } => op.name(),
        Action::Fused(fused) if fused.steps.iter().any(|s| s.op.name().contains("reduce")) => {
            "chain with sums"
        }
        Action::Fused(_) => "chain",
        _ => return None,
    };
    let first = actor.inputs.first().or(actor.outputs.first())?;
    let layout = program.registers[first.index()].layout;
    Some(format!("{what} of {}", plan.layouts[layout.index()].dtype))
}

fn found(plan: &Plan, program: &Program, actor: &Actor, what: String) -> Option<Found> {
    let shard = |register: &graphc_ir::ids::RegisterId| {
        let register = &program.registers[register.index()];
        let layout = &plan.layouts[register.layout.index()];
        Shard {
            ty: TensorType::new(layout.dtype, register.shape.clone()),
            global: layout.shape.clone(),
        }
    };
    let outputs: Vec<Shard> = actor.outputs.iter().map(shard).collect();
    let (call, operands, results) = match &actor.action {
        Action::Compute { op, operands } => {
            let registers = operands.iter().filter_map(|&operand| actor.operand_register(operand));
            let operands: Vec<Shard> = registers.map(|register| shard(&register)).collect();
            let replaced = op.operation().updates().iter().map(|pair| operands[pair.1].clone());
            let results = if actor.updates.is_empty() { outputs } else { replaced.collect() };
            (prepare_op(op, &operands, &results), operands, results)
        }
        Action::Fused(fused) => {
            let operands: Vec<Shard> = actor.inputs.iter().map(shard).collect();
            (prepare_fused(fused, &operands, &outputs), operands, outputs)
        }
        _ => return None,
    };
    let call = call.unwrap_or_else(|error| panic!("{what}: {error}"));
    let work = ActorWork::from_actor(&plan.layouts, program, actor)?;
    Some(Found { what, call, operands, results, work, bytes: actor.bytes })
}

/// Threads of a multiprocessor that are at work at once, of the 2048 that it takes.
fn occupancy(kernel: &Kernel, needs: &Resources) -> usize {
    let threads: usize = kernel.block.iter().map(|&n| n as usize).product();
    let warps = threads.div_ceil(32);
    // Registers are given to warps in pieces of 256, shared memory to blocks in pieces of 128 bytes and 1 KiB for the system.
    let by_registers = 65_536 / (needs.registers * 32).next_multiple_of(256) / warps;
    let shared = (needs.shared + kernel.shared as usize).next_multiple_of(128) + 1024;
    let blocks = by_registers.min(233_472 / shared).min(2048 / (warps * 32)).min(32);
    blocks * warps * 32
}

/// The least seconds on a card, and what bounds them.
fn bound(found: &Found, cluster: &str) -> (f64, &'static str) {
    let least = found.work.least_seconds(&preset(cluster).expect("a preset"));
    match least.computing > least.moving {
        true => (least.computing, "arithmetic"),
        false => (least.moving, "memory"),
    }
}

/// Sectors of loads and of stores, for each that is needed.
fn ratios(sectors: Option<&Sectors>) -> String {
    let ratio = |traffic: &Traffic| match traffic.least {
        0 => "-".to_owned(),
        _ => format!("{:.2}", traffic.ratio()),
    };
    match sectors {
        Some([loads, stores]) => format!("{} / {}", ratio(loads), ratio(stores)),
        None => "not counted".to_owned(),
    }
}

fn row(
    found: &Found,
    kernel: &Kernel,
    on: &[(String, Resources)],
    sectors: Option<&Sectors>,
) -> String {
    let registers: Vec<String> = on.iter().map(|(_, needs)| needs.registers.to_string()).collect();
    let hopper = &on[1].1;
    let blocks: u64 = kernel.grid.iter().map(|&n| u64::from(n)).product();
    let threads: u32 = kernel.block.iter().product();
    let [(a100, _), (h100, by)] = ["dgx-a100", "dgx-h100"].map(|cluster| bound(found, cluster));
    format!(
        "| {} | `{}` | {blocks} x {threads} | {} | {} | {:.0} % | {} | {:.1} MB | {:.0} / {:.0} us, {by} |\n",
        found.what,
        kernel.entry,
        registers.join(" / "),
        hopper.shared + kernel.shared as usize,
        occupancy(kernel, hopper) as f64 / 20.48,
        ratios(sectors),
        found.bytes / 1e6,
        a100 * 1e6,
        h100 * 1e6,
    )
}

/// A training whose kernels are looked at, and the same on a smaller batch.
struct Training {
    name: &'static str,
    plan: Plan,
    small: fn() -> Plan,
}

fn trainings() -> [Training; 3] {
    const HALVES: Option<DType> = Some(DType::BF16);
    [
        Training {
            name: "GPT-2 124M, 8 x 1024 tokens, bf16",
            plan: plan(transformer([8, 1024], 50257), HALVES),
            small: || plan(transformer([1, 96], 1001), HALVES),
        },
        Training {
            name: "GPT-2 124M, 8 x 1024 tokens, f32",
            plan: plan(transformer([8, 1024], 50257), None),
            small: || plan(transformer([1, 96], 1001), None),
        },
        Training {
            name: "ResNet-50, 32 images, bf16",
            plan: plan(images(32, 224), HALVES),
            small: || plan(images(1, 64), HALVES),
        },
    ]
}

/// Counts what the kernels of a plan touch, by actor and kernel.
fn touched(plan: &Plan) -> BTreeMap<(String, String), Sectors> {
    let mut all = BTreeMap::new();
    for found in actors(plan) {
        let of_call = sectors(&found.call, &found.operands, &found.results, &OPTIONS);
        all.extend(of_call.into_iter().map(|(entry, of)| ((found.what.clone(), entry), of)));
    }
    all
}

/// Returns the resources that a kernel needs on each architecture.
fn needs(record: &Record, found: &Found, kernel: &Kernel) -> [(String, Resources); 4] {
    ARCHITECTURES.map(|architecture| {
        let all = record.resources(&kernel.source, architecture, &OPTIONS);
        let all = all.unwrap_or_else(|log| panic!("{} for {architecture}: {log}", found.what));
        let own = all.into_iter().find(|needs| needs.entry == kernel.entry);
        (architecture.to_owned(), own.expect("the kernel is in its source"))
    })
}

#[test]
fn no_kernel_of_real_trainings_spills() {
    if !nvrtc::is_installed() {
        return println!("skipped: NVRTC is not installed");
    }
    let blessed = std::env::var_os("UPDATE_EXPECT").is_some();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let record = Record::open(folder.join("tests/cards/resources.txt"));
    let (mut table, mut spills) = (String::new(), Vec::new());
    for Training { name, plan, small } in trainings() {
        let _ = write!(
            table,
            "\n{name}:\n\n| actor | kernel | blocks x threads | registers | shared bytes | occupancy | sectors, loads / stores | moved | at least |\n|---|---|---|---|---|---|---|---|---|\n"
        );
        let touched = if blessed { touched(&small()) } else { BTreeMap::new() };
        for found in actors(&plan) {
            for kernel in found.kernels() {
                let needs = needs(&record, &found, kernel);
                let spilling = needs.iter().filter(|(_, needs)| needs.spills > 0);
                spills.extend(spilling.map(|(architecture, needs)| {
                    format!("{name}: {} for {architecture}: {} bytes", found.what, needs.spills)
                }));
                let sectors = touched.get(&(found.what.clone(), kernel.entry.clone()));
                table += &row(&found, kernel, &needs, sectors);
            }
        }
    }
    record.finish().expect("the record is written");
    assert!(spills.is_empty(), "{spills:#?}");
    if blessed {
        write_table(&table);
    }
}

fn write_table(table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/gpu.md");
    let text = std::fs::read_to_string(&path).expect("docs/gpu.md");
    let (before, rest) = text.split_once(MARKS[0]).expect("a mark before the table");
    let (_, after) = rest.split_once(MARKS[1]).expect("a mark after it");
    let text = format!("{before}{}{table}\n{}{after}", MARKS[0], MARKS[1]);
    std::fs::write(path, text).expect("docs/gpu.md is written");
}
