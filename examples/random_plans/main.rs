//! Plans with inputs and the outputs that the oracle finds, for engines other than graphc's own: each op in the cases of its tests, and
//! random graphs, on meshes of one to four ranks, some with layouts that are pinned at random.
//!
//! `cargo run --example random_plans -- DIR [COUNT]` writes N.json, a plan, and N.safetensors: `in.NAME` is what is fed, `out.NAME` what
//! comes of it at step 2 with seed 11. Then it writes plans that train (`training.rs`), of which `var.NAME` is what a variable is after
//! three steps from step 2 on, as graphc's own runtime makes them, and random numbers (`numbers.rs`). Its last line counts plans, ops and kinds of boxing.

use std::collections::BTreeSet;
use std::path::Path;

use graphc::ir::array::Array;
use graphc::ir::evaluate::evaluate_graph;
use graphc::ir::op::Op;
use graphc::ir::sbp::{NdSbp, Sbp};
use graphc::plan::{Action, BoxingKind, Pin, Plan};
use graphc::prelude::*;
use graphc::runtime::data::save_safetensors;

use cases::Case;
use shards::{CONTEXT, Instance, Random};

#[path = "../../ir/tests/ops_properties/cases/mod.rs"]
#[allow(dead_code, reason = "shared with the tests of ops")]
mod cases;
mod numbers;
#[path = "../../ir/tests/ops_properties/shards.rs"]
#[allow(dead_code, reason = "shared with the tests of ops")]
mod shards;
mod training;

const MESHES: [&[usize]; 5] = [&[1], &[2], &[3], &[4], &[2, 2]];

/// The number of plans where the command line gives none.
const COUNT: usize = 300;

/// A graph with what is fed and what comes of it.
struct Sample {
    graph: Graph,
    feeds: BTreeMap<String, Array>,
    outputs: BTreeMap<String, Array>,
    /// Names and ranks of tensors whose layout may be asked for.
    tensors: Vec<(String, usize)>,
}

/// The ops and boxings that the plans contain.
#[derive(Default)]
struct Seen {
    ops: BTreeSet<&'static str>,
    boxing: BTreeSet<BoxingKind>,
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, rest @ ..] = arguments.as_slice() else {
        anyhow::bail!("usage: random_plans DIR [COUNT]");
    };
    let count = rest.first().map_or(Ok(COUNT), |count| count.parse())?;
    std::fs::create_dir_all(folder)?;
    let (mut seen, mut written) = (Seen::default(), 0);
    let mut random = Random::new(17);
    let ops = by_turns(cases::all());
    // Cases of all ops and random graphs by turns.
    for number in 0.. {
        if written == count {
            break;
        }
        let case = ops.get(number / 2).filter(|_| number % 2 == 0);
        let sample = match case {
            Some(case) => of_case(case, number as u64),
            None => of_graph(&mut random),
        };
        if let Some(sample) = sample {
            let mesh = MESHES[written % MESHES.len()];
            written +=
                usize::from(write(&sample, mesh, &mut random, (folder, written), &mut seen)?);
        }
    }
    numbers::write(folder)?;
    for plan in training::write(folder, written)? {
        note(&plan, &mut seen);
        written += 1;
    }
    let ops: Vec<&str> = seen.ops.into_iter().collect();
    println!("{written} plans; ops: {}; boxing: {:?}", ops.join(" "), seen.boxing);
    Ok(())
}

/// The first case of each op, then the second of each, and so on.
fn by_turns(cases: Vec<Case>) -> Vec<Case> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut turns = Vec::new();
    for case in cases {
        let count = counts.entry(case.op.name()).or_default();
        *count += 1;
        turns.push((*count, case));
    }
    turns.sort_by_key(|(turn, _)| *turn);
    turns.into_iter().map(|(_, case)| case).collect()
}

/// Makes a sample of one op on inputs; `None` of an op that is no actor of a plan by itself.
fn of_case(case: &Case, key: u64) -> Option<Sample> {
    if !case.can_be_evaluated() || is_of_training(&case.op) {
        return None;
    }
    let instance = Instance::new(case, key);
    let g = GraphBuilder::new("case");
    let (mut operands, mut feeds) = (Vec::new(), BTreeMap::new());
    for (index, (ty, array)) in instance.types.iter().zip(&instance.arrays).enumerate() {
        let name = format!("a{index}");
        operands.push(g.input(&name, ty.dtype, ty.shape.clone()));
        feeds.insert(name, array.clone());
    }
    let results = g.apply_all(case.op.clone(), &operands.iter().collect::<Vec<_>>());
    let mut outputs = BTreeMap::new();
    for (index, (result, array)) in results.iter().zip(&instance.results).enumerate() {
        g.output(&format!("r{index}"), result);
        outputs.insert(format!("r{index}"), array.clone());
    }
    let tensors =
        feeds.iter().chain(&outputs).map(|(name, array)| (name.clone(), array.shape.len()));
    let tensors = tensors.collect();
    Some(Sample { graph: g.finish().ok()?, feeds, outputs, tensors })
}

/// Whether it is none of a plan of inference.
fn is_of_training(op: &Op) -> bool {
    let updates = !op.operation().updates().is_empty();
    updates || matches!(op, Op::Variable(_) | Op::BatchNormTraining(_) | Op::Dropout(_))
}

/// A random graph of a few ops.
fn of_graph(random: &mut Random) -> Option<Sample> {
    let g = GraphBuilder::new("random");
    let extents = [random.integer(1, 7) as usize, random.integer(1, 9) as usize];
    let [rows, columns] = extents;
    let mut tensors = vec![
        g.input("x", DType::F32, [rows, columns]),
        g.input("y", DType::F32, [columns, rows]),
        g.input("w", DType::F32, [columns, columns]),
        g.input("b", DType::F32, [columns]),
    ];
    let feeds = ["x", "y", "w", "b"].into_iter().zip(&tensors);
    let feeds = feeds.map(|(name, tensor)| (name.to_owned(), drawn(&tensor.shape(), random)));
    let feeds = feeds.collect();
    for _ in 0..random.integer(2, 12) {
        let [op, a, b] = [20, 100, 100].map(|below| random.integer(0, below) as usize);
        let [a, b] = [a, b].map(|index| tensors[index % tensors.len()].clone());
        let name = format!("t{}", tensors.len());
        tensors.extend(apply(&g, op, &a, &b).map(|tensor| tensor.named(&name)));
    }
    for (index, tensor) in tensors.iter().enumerate().skip(4).rev().take(3) {
        g.output(&format!("out{index}"), tensor);
    }
    g.output("last", &tensors[0].relu());
    let named = tensors.iter().enumerate().skip(4);
    let named = named.map(|(index, tensor)| (format!("t{index}"), tensor.shape().len())).collect();
    let graph = g.finish().ok()?;
    let values = evaluate_graph(&graph, &feeds, &CONTEXT).ok()?;
    let output = |o: &graphc::ir::graph::Output| (o.name.clone(), values[o.value.index()].clone());
    let outputs = graph.outputs.iter().map(output).collect();
    Some(Sample { graph, feeds, outputs, tensors: named })
}

fn drawn(shape: &[usize], random: &mut Random) -> Array {
    Array::from_fn(shape, |_| random.uniform(-1.0, 1.0))
}

/// The op's result; `None` where the operands do not fit.
fn apply(g: &GraphBuilder, op: usize, a: &Tensor, b: &Tensor) -> Option<Tensor> {
    let (left, right) = (a.shape(), b.shape());
    let matrix = left.len() == 2;
    Some(match op {
        0 | 1 if matrix && right.len() == 2 && left[1] == right[0] => a.matmul(b),
        2 if broadcasts(&left, &right) => a + b,
        3 if broadcasts(&left, &right) => a * b,
        4 if broadcasts(&left, &right) => a - b,
        5 => a.silu(),
        6 => a.tanh(),
        7 => a.gelu(),
        8 if matrix => a.softmax(1),
        9 if matrix => a.t(),
        10 if matrix => a.sum(&[0], true),
        11 if matrix => a.mean(&[1], true),
        12 if matrix => a.max(&[1], true),
        13 if matrix => a.reshape(&[left[0] * left[1]]),
        14 if matrix && left[1] > 2 => a.scale(1.5),
        14 if matrix && left[1] > 1 => a.slice(1, 1..left[1]),
        15 if left == right && matrix => g.concat(&[a.clone(), b.clone()], 1),
        16 if matrix => a.normalize(true, 1e-3),
        17 if matrix => a.tril(0),
        18 if left == right => a.greater(b).select(a, b),
        19 if matrix => a.max(&[0], true),
        _ => return None,
    })
}

fn broadcasts(a: &[usize], b: &[usize]) -> bool {
    a.iter().rev().zip(b.iter().rev()).all(|(x, y)| x == y || *x == 1 || *y == 1)
}

/// Writes a sample as a plan; whether there is a plan for it.
fn write(
    sample: &Sample,
    mesh: &[usize],
    random: &mut Random,
    (folder, number): (&str, usize),
    seen: &mut Seen,
) -> anyhow::Result<bool> {
    let Some(mut plan) = planned(sample, mesh, &[]) else { return Ok(false) };
    let mut pins = Vec::new();
    for pin in candidates(sample, mesh, random) {
        pins.push(pin);
        match planned(sample, mesh, &pins) {
            Some(pinned) => plan = pinned,
            None => _ = pins.pop(),
        }
    }
    let path = Path::new(folder).join(number.to_string());
    std::fs::write(path.with_extension("json"), plan.write_sealed())?;
    save_safetensors(&path.with_extension("safetensors"), &tensors(sample)?)?;
    note(&plan, seen);
    Ok(true)
}

fn planned(sample: &Sample, mesh: &[usize], pins: &[Pin]) -> Option<VerifiedPlan> {
    let options =
        CompileOptions { mesh: mesh.to_vec(), pins: pins.to_vec(), ..CompileOptions::default() };
    Some(compile(sample.graph.clone(), &options, &preset("cpu")?, None).ok()?.plan)
}

/// Layouts for some tensors.
fn candidates(sample: &Sample, mesh: &[usize], random: &mut Random) -> Vec<Pin> {
    let some: Vec<_> = sample.tensors.iter().filter(|_| random.integer(0, 2) == 0).collect();
    let pin = |(name, rank): &(String, usize)| {
        let axis = |_: &usize| match random.integer(-2, *rank as i64) {
            -2 => Sbp::PARTIAL,
            -1 => Sbp::Broadcast,
            dim => Sbp::Split(dim as usize),
        };
        Pin { pattern: name.clone(), sbp: NdSbp(mesh.iter().map(axis).collect()) }
    };
    some.into_iter().map(pin).collect()
}

fn tensors(sample: &Sample) -> anyhow::Result<BTreeMap<String, HostTensor>> {
    let mut tensors = BTreeMap::new();
    let ends = [("in", &sample.feeds), ("out", &sample.outputs)];
    for (prefix, (name, array)) in ends.iter().flat_map(|(p, all)| all.iter().map(move |a| (p, a)))
    {
        let dtype = dtype(&sample.graph, name);
        let tensor = HostTensor::from_f64(dtype, array.shape.clone(), &array.data)?;
        tensors.insert(format!("{prefix}.{name}"), tensor);
    }
    Ok(tensors)
}

/// The element type of an input or output.
fn dtype(graph: &Graph, name: &str) -> DType {
    let output = graph.outputs.iter().find(|output| output.name == name);
    let input = graph.nodes.iter().find_map(|node| match &node.op {
        Op::Input(input) if input.name == name => Some(input.ty.dtype),
        _ => None,
    });
    let of_output = || output.map(|output| graph.values[output.value.index()].ty.dtype);
    input.or_else(of_output).unwrap_or(DType::F32)
}

fn note(plan: &Plan, seen: &mut Seen) {
    for actor in plan.programs.iter().flat_map(|program| &program.actors) {
        match &actor.action {
            Action::Compute { op, .. } => _ = seen.ops.insert(op.name()),
            Action::Fused(chain) => seen.ops.extend(chain.steps.iter().map(|step| step.op.name())),
            Action::Collective { kind, .. } | Action::Local { kind } => {
                _ = seen.boxing.insert(*kind)
            }
            Action::Send { .. } => _ = seen.boxing.insert(BoxingKind::SendRecv),
            _ => {}
        }
    }
}
