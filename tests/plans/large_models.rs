//! The models of real size under `examples/models`: what they are, that they are what their program writes, and that
//! they pass all that comes before the planner.

use std::path::{Path, PathBuf};
use std::process::Command;

use graphc::compiler::decisions::Decisions;
use graphc::compiler::import::{ImportOptions, load_model};
use graphc::compiler::pipeline::prepare_graph;
use graphc::ir::op::Op;
use graphc::ir::types::TensorType;
use graphc::prelude::*;

/// Models that are written besides the committed ones, and their parameters: of Llama by Dubey et al. (arXiv 2407.21783), of Mixtral
/// by Jiang et al. (arXiv 2401.04088), of Qwen3-235B-A22B by its published files, of DeepSeek-V3 (arXiv 2412.19437: 671 billion) by its
/// sizes, with the 256 biases of 58 routers, of MPT 12 w^2 + 2 w for each of 80 blocks of width w = 8192, and (50368 + 2048 + 1) w.
const LARGER: [(&str, usize); 7] = [
    ("llama3_70b", 70_553_706_496),
    ("llama3_405b", 405_853_388_800),
    ("llama3_8b_131072_tokens", 8_030_261_248),
    ("mpt_70b", 80 * (12 * 8192 * 8192 + 2 * 8192) + (50368 + 2048 + 1) * 8192),
    ("mixtral_8x7b", 46_702_792_704),
    ("qwen3_235b_a22b", 235_093_634_560),
    ("deepseek_v3", 671_026_404_352 + 58 * 256),
];

fn committed(model: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("examples/models").join(model).with_extension("gir")
}

/// Prepares the graph that the planner would be given for a step of AdamW.
fn trained(model: &str, batch: usize, microbatches: usize) -> Decisions {
    let dims = BTreeMap::from([("batch".to_string(), batch)]);
    let imported = load_model(&committed(model), &dims, ImportOptions::default());
    let adam = AdamOptions { lr: 3e-4, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
    let options = CompileOptions {
        mesh: vec![8],
        loss: Some(Loss::CrossEntropy),
        optimizer: Some(Optimizer::AdamW(adam)),
        microbatches,
        ..CompileOptions::default()
    };
    prepare_graph(imported.expect("the file is a model").graph, &options)
        .expect("it can be trained")
}

/// The types of variables, trained ones and others.
fn variables(graph: &Graph) -> [Vec<&TensorType>; 2] {
    let of = |wanted: bool| {
        let variable = |op: &'_ Op| matches!(op, Op::Variable(v) if v.trainable == wanted);
        let nodes = graph.nodes.iter().filter(|node| variable(&node.op));
        nodes.map(|node| &graph.value(node.results[0]).ty).collect()
    };
    [of(true), of(false)]
}

fn check(model: &str, batch: usize, microbatches: usize, parameters: usize) {
    let decisions = trained(model, batch, microbatches);
    let graph = &decisions.training.graph;
    let [trained, states] = variables(graph);
    let elements = |types: &[&TensorType]| types.iter().map(|ty| ty.elements()).sum::<usize>();
    assert_eq!(elements(&trained), parameters);
    assert_eq!(elements(&states), 2 * parameters);
    assert!(trained.iter().all(|ty| ty.dtype == DType::BF16));
    assert!(states.iter().all(|ty| ty.dtype == DType::F32));
    assert_eq!(decisions.training.gradients.len(), trained.len());
    let input = graph.find("tokens").expect("an input");
    let time = graph.value(input).ty.shape[1];
    let square = |ty: &TensorType| ty.shape.iter().filter(|&&extent| extent == time).count() > 1;
    let found = graph.values.iter().find(|value| square(&value.ty));
    assert!(found.is_none(), "time by time: {found:?}");
}

#[test]
fn llama3_8b_passes_the_front_end() {
    check("llama3_8b", 16, 1, 8_030_261_248);
}

#[test]
fn gpt3_175b_passes_the_front_end_in_microbatches() {
    // 96 (12 w^2 + 13 w) + (2 v + t) w + 2 w, for width w, vocabulary v and sequence t.
    let (width, vocabulary, sequence) = (12288, 51200, 2048);
    let blocks = 96 * (12 * width * width + 13 * width);
    check("gpt3_175b", 1536, 96, blocks + (2 * vocabulary + sequence) * width + 2 * width);
}

#[test]
fn the_files_are_what_the_program_writes() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut program = std::env::current_exe().expect("a path");
    program.pop();
    program.pop();
    let status = Command::new(program.join("examples/large_models")).arg(directory.path()).output();
    assert!(status.expect("the example starts").status.success());
    let dims = BTreeMap::from([("batch".to_string(), 16)]);
    for (model, parameters) in LARGER {
        let path = directory.path().join(model).with_extension("gir");
        let graph = load_model(&path, &dims, ImportOptions::default()).expect("a model").graph;
        let all = variables(&graph).concat();
        assert_eq!(all.iter().map(|ty| ty.elements()).sum::<usize>(), parameters, "{model}");
    }
    for model in ["llama3_8b", "gpt3_175b"] {
        let written = directory.path().join(model).with_extension("gir");
        let [written, kept] = [written, committed(model)].map(std::fs::read_to_string);
        assert!(
            written.expect("it was written") == kept.expect("it is committed"),
            "{model} is another: cargo run --example large_models"
        );
    }
}
