//! Data, model and pipeline parallelism, and a mix of them: one small network in five layouts, with and without
//! annotations. Each part prints where its tensors lie and the outputs, which are the same numbers in every layout.
//!
//!     cargo run --release --example parallelism

use graphc::nn::Module;
use graphc::prelude::*;
use graphc::report;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let data = show("data parallel: x S(0), w B", &[2], data_parallel()?)?;
    assert_eq!(data["out"].shape(), [4, 8]);
    let model = show("model parallel: x B, w S(1)", &[2], model_parallel()?)?;
    assert_eq!(data["out"].to_f32()?, model["out"].to_f32()?);
    show("pipeline: a stage on rank 0, the next on rank 1", &[2], pipeline()?)?;
    let stages =
        show("mixed: data parallel on {0,1}, then model parallel on {2,3}", &[4], mixed(true)?)?;
    assert_eq!((stages["hidden"].shape(), stages["out"].shape()), (&[4, 8][..], &[4, 3][..]));
    let planned = show("the same without annotations, planned", &[4], mixed(false)?)?;
    close(&stages["out"].to_f32()?, &planned["out"].to_f32()?);
    show("implicit boxing: x S(0) + y S(1)", &[2], implicit_boxing()?)?;
    Ok(())
}

fn normal() -> Init {
    Init::Normal { mean: 0.0.into(), std: 1.0.into() }
}

/// x is cut by rows, w whole on both ranks: out is cut by rows, nothing is communicated.
fn data_parallel() -> Result<Graph> {
    let g = GraphBuilder::new("data_parallel");
    let x = g.input("x", DType::F32, [4, 5]).pin("S(0)".parse()?);
    let w = g.variable("w", DType::F32, [5, 8], normal()).pin("B".parse()?);
    g.output("out", &x.matmul(&w).named("y").pin("S(0)".parse()?));
    Ok(g.finish()?)
}

/// x is whole on both ranks, w cut by columns: out is cut by columns.
fn model_parallel() -> Result<Graph> {
    let g = GraphBuilder::new("model_parallel");
    let x = g.input("x", DType::F32, [4, 5]).pin("B".parse()?);
    let w = g.variable("w", DType::F32, [5, 8], normal()).pin("S(1)".parse()?);
    g.output("out", &x.matmul(&w).named("y").pin("S(1)".parse()?));
    Ok(g.finish()?)
}

/// Builds two linear layers on one rank each; `to_global` moves the tensor between them.
fn pipeline() -> Result<Graph> {
    let g = GraphBuilder::new("pipeline");
    let (first, second) = (Placement::new(vec![0], vec![1])?, Placement::new(vec![1], vec![1])?);
    let x = g.on(&first, || g.input("x", DType::F32, [4, 5]));
    let hidden = g.on(&first, || x.matmul(&g.variable("w0", DType::F32, [5, 8], normal())).relu());
    let moved = hidden.to_global(&second, "B".parse()?);
    g.output(
        "out",
        &g.on(&second, || moved.matmul(&g.variable("w1", DType::F32, [8, 3], normal()))),
    );
    Ok(g.finish()?)
}

/// A module with two stage modules.
struct TwoStages {
    first: nn::Staged<nn::Linear>,
    second: nn::Staged<nn::Linear>,
}

impl TwoStages {
    /// Data parallel on ranks 0 and 1, model parallel (weight [3, 8] cut by outputs) on ranks 2 and 3.
    fn new(g: &GraphBuilder) -> Result<Self> {
        let first = nn::Linear::without_bias(g, "first", 5, 8);
        first.weight.clone().pin("B".parse()?);
        let second = nn::Linear::without_bias(g, "second", 8, 3);
        second.weight.clone().pin("S(0)".parse()?);
        Ok(Self {
            first: first.set_stage(0, Placement::new(vec![0, 1], vec![2])?),
            second: second.set_stage(1, Placement::new(vec![2, 3], vec![2])?),
        })
    }
}

/// The network of two stages: annotated, or left to the planner.
fn mixed(annotated: bool) -> Result<Graph> {
    let g = GraphBuilder::new(if annotated { "mixed" } else { "planned" });
    let (hidden, out) = if annotated {
        let module = TwoStages::new(&g)?;
        let x = module.first.here(&g, || g.input("x", DType::F32, [4, 5])).pin("S(0)".parse()?);
        let hidden = module.first.forward(&x);
        (hidden.clone(), module.second.forward(&hidden).pin("S(1)".parse()?))
    } else {
        let first = nn::Linear::without_bias(&g, "first", 5, 8);
        let second = nn::Linear::without_bias(&g, "second", 8, 3);
        let hidden = first.forward(&g.input("x", DType::F32, [4, 5]));
        (hidden.clone(), second.forward(&hidden))
    };
    g.output("hidden", &hidden);
    g.output("out", &out);
    Ok(g.finish()?)
}

/// Operands that meet in different layouts: the compiler boxes them.
fn implicit_boxing() -> Result<Graph> {
    let g = GraphBuilder::new("implicit_boxing");
    let x = g.input("x", DType::F32, [4, 4]).pin("S(0)".parse()?);
    let y = g.input("y", DType::F32, [4, 4]).pin("S(1)".parse()?);
    g.output("out", &(&x + &y).named("sum"));
    Ok(g.finish()?)
}

/// Compiles, prints the layouts and the boxing, runs one step on rising numbers and prints the outputs.
fn show(title: &str, mesh: &[usize], graph: Graph) -> Result<BTreeMap<String, HostTensor>> {
    println!("== {title}");
    let stages = graph.stages.len().max(1);
    let options = CompileOptions { mesh: mesh.to_vec(), stages, ..CompileOptions::default() };
    let feeds = feeds(&graph)?;
    let plan = compile(graph, &options, &preset("cpu").ok_or("no preset")?, None)?.plan;
    print!("{}", report::tensors(&plan));
    if !plan.boxing.is_empty() {
        print!("{}", report::boxing(&plan));
    }
    let mut session = Session::new(&plan, &BTreeMap::new(), SessionOptions::default())?;
    let outputs = session.step(feeds)?.wait()?;
    for (name, tensor) in &outputs {
        println!("{name} {:?}: {:.2?} ..", tensor.shape(), &tensor.to_f32()?[..4]);
    }
    println!();
    Ok(outputs)
}

/// 0, 0.1, 0.2, .. for every input.
fn feeds(graph: &Graph) -> Result<BTreeMap<String, HostTensor>> {
    let inputs = graph.nodes.iter().filter_map(|node| match &node.op {
        graphc::ir::op::Op::Input(input) => Some(input),
        _ => None,
    });
    inputs
        .map(|input| {
            let data: Vec<f32> = (0..input.ty.elements()).map(|i| i as f32 * 0.1).collect();
            Ok((input.name.clone(), HostTensor::from_f32(input.ty.shape.clone(), &data)?))
        })
        .collect()
}

fn close(a: &[f32], b: &[f32]) {
    assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4), "{a:?} {b:?}");
}
