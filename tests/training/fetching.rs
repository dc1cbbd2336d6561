//! Outputs that nobody asks for are in no plan of a training, and in no step; those that somebody asks for are the same in every way.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::{Reference, Scratch, fails, graphc, reference, succeeds, training};
use graphc::plan::{Action, Plan, read_plan};
use graphc::prelude::*;
use graphc::runtime::data::load_safetensors;

impl Scratch {
    fn plan(&self, name: &str) -> Plan {
        let text = std::fs::read_to_string(self.0.path().join(name)).expect("a plan");
        read_plan(&text).expect("a plan")
    }

    fn outputs(&self, name: &str) -> BTreeMap<String, HostTensor> {
        load_safetensors(Path::new(&self.path(name))).expect("outputs")
    }

    /// Compiles the reference `mlp`.
    fn compile(&self, extra: &[&str], plan: &str) {
        let model = reference("mlp").join("model.onnx").display().to_string();
        let output = self.path(plan);
        let options = ["--loss", "cross_entropy", "--optimizer", "adamw", "--batch", "16"];
        succeeds([&["compile", &model, "-o", &output][..], &options[..], extra].concat());
    }
}

fn fetched(plan: &Plan) -> Vec<&str> {
    let actors = plan.programs.iter().flat_map(|program| &program.actors);
    let outputs = actors.filter_map(|actor| match &actor.action {
        Action::Fetch { output, .. } => Some(output.as_str()),
        _ => None,
    });
    outputs.collect()
}

/// The name of the only output of the reference.
fn scores(scratch: &Scratch) -> String {
    scratch.compile(&["--fetch", "*"], "all.json");
    let plan = scratch.plan("all.json");
    let names = fetched(&plan).into_iter().filter(|&name| name != "loss");
    names.map(str::to_owned).next().expect("an output")
}

#[test]
fn a_training_plan_gives_its_loss_and_what_is_asked_for() {
    let scratch = Scratch::new();
    scratch.compile(&[], "alone.json");
    assert_eq!(fetched(&scratch.plan("alone.json")), ["loss"]);
    let scores = scores(&scratch);
    scratch.compile(&["--fetch", &scores], "named.json");
    let mut named = scratch.plan("named.json");
    assert_eq!(named.options.fetch, [scores]);
    assert_eq!(fetched(&named).len(), 2);
    named.options.fetch = vec!["*".into()];
    assert_eq!(named, scratch.plan("all.json"));
    scratch.compile(&["--measure", "top1"], "counted.json");
    let counted = scratch.plan("counted.json");
    assert_eq!(fetched(&counted).len(), 3);
    let model = reference("mlp").join("model.onnx").display().to_string();
    let error = fails([
        "compile",
        &model,
        "--batch",
        "16",
        "--loss",
        "mse",
        "--optimizer",
        "sgd",
        "--fetch",
        "no*",
    ]);
    assert!(error.contains("no output has a name like `no*`"), "{error}");
}

/// Outputs that are not asked for take no memory: in a model with a second output that nothing else reads, and in one whose scores are its
/// largest tensor.
#[test]
fn what_is_not_asked_for_takes_no_memory() {
    let scratch = Scratch::new();
    let g = GraphBuilder::new("wide");
    let x = g.input("x", DType::F32, [64, 16]);
    let scores = x.matmul(&g.variable("w", DType::F32, [16, 1024], Init::Fill(0.01.into())));
    g.output("scores", &scores);
    let factors = g.variable("factors", DType::F32, [64, 1, 1], Init::Fill(1.5.into()));
    g.output("multiples", &scores.mul(&factors));
    let model = scratch.path("wide.gir");
    let text = graphc::ir::text::print_graph(&g.finish().expect("a graph"));
    std::fs::write(&model, text).expect("a file");
    let memory = |model: &str, options: &[&str]| {
        let plan = scratch.path("plan.json");
        let shared = ["--loss", "cross_entropy", "--optimizer", "adamw", "-o", &plan];
        succeeds([&["compile", model][..], &shared[..], options].concat());
        let plan = scratch.plan("plan.json");
        plan.programs.iter().map(|program| program.arena_bytes).max().expect("a program")
    };
    let (alone, with) = (memory(&model, &[]), memory(&model, &["--fetch", "multiples"]));
    assert!(with >= alone + 60 * 64 * 1024 * 4, "{alone} bytes, and {with} with all multiples");

    let llama = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/llama3_8b.gir");
    let llama = llama.display().to_string();
    // What is gathered goes ahead by what its own phase reads, so a tie of two layouts does not fill the memory with weights.
    let large = ["--batch", "16", "--recompute", "full", "--cluster", "dgx-h100", "--mesh", "8x8"];
    let alone = memory(&llama, &large);
    let with = memory(&llama, &[&large[..], &["--fetch", "*"]].concat());
    assert!(alone as f64 <= 1.01 * with as f64, "{alone} bytes, and {with} with the scores");
}

#[test]
fn outputs_of_a_plan_without_them_are_an_error_that_says_how_to_compile_it() {
    let scratch = Scratch::new();
    scratch.compile(&[], "alone.json");
    let (plan, outputs) = (scratch.path("alone.json"), scratch.path("outputs.safetensors"));
    let data = reference("mlp").join("data.safetensors").display().to_string();
    let train = ["train", &plan, "--data", &data, "--steps", "1"];
    let error = fails([&train[..], &["--outputs", &outputs]].concat());
    assert!(error.contains("alone.json") && error.contains("--fetch"), "{error}");
    let error = fails([&train[..], &["--fetch", "*"]].concat());
    assert!(error.contains("--outputs FILE"), "{error}");
    let error = fails([&train[..], &["--fetch", "*", "--outputs", &outputs]].concat());
    assert!(error.contains("--fetch * contradicts"), "{error}");
    assert!(!Path::new(&outputs).exists());
    succeeds(train);
}

/// A model trained on threads, on processes and by a plan, and by hand, with all outputs of each step on the host.
#[test]
fn the_outputs_of_the_last_step_are_the_same_in_every_way() {
    let scratch = Scratch::new();
    let own = Reference::load("mlp").args;
    let shared = |extra: &[&str]| -> Vec<String> {
        own.iter().cloned().chain(extra.iter().map(ToString::to_string)).collect()
    };
    let [threads, processes, planned, early] =
        ["threads", "processes", "planned", "early"].map(|name| scratch.path(name));
    let train = training("mlp", &["--mesh", "2"]);
    succeeds([train.clone(), shared(&["--outputs", &threads])].concat());
    let launch = ["launch", "--standalone", "--nproc-per-node", "2", "--"].map(str::to_owned);
    let program = env!("CARGO_BIN_EXE_graphc").to_owned();
    let command = [launch.to_vec(), vec![program], train.clone()].concat();
    succeeds([command, shared(&["--outputs", &processes])].concat());

    // Patience ends a training behind a step that was not known to be the last.
    let data = reference("mlp").join("data.safetensors").display().to_string();
    let evaluation = ["--eval-data", &data, "--eval-every", "3", "--patience", "1"];
    let long = shared(&[&evaluation[..], &["--lr", "0", "--outputs", &early]].concat());
    let twice = long.iter().position(|arg| arg == "--lr").expect("a rate");
    let long = [&long[..twice], &long[twice + 2..]].concat();
    succeeds([train, long].concat());

    let model = reference("mlp").join("model.onnx").display().to_string();
    let plan = scratch.path("plan.json");
    let steps = own.iter().position(|arg| arg == "--steps").expect("steps");
    let options = [&own[..steps], &own[steps + 2..]].concat();
    let compile = ["compile", &model, "-o", &plan, "--mesh", "2", "--fetch", "*"];
    succeeds([compile.map(str::to_owned).to_vec(), options].concat());
    succeeds(["train", &plan, "--data", &data, "--steps", &own[steps + 1], "--outputs", &planned]);

    let expected = by_hand(&scratch.plan("plan.json"), &model, &data, own[steps + 1].parse());
    assert_eq!(expected.len(), 2);
    for name in ["threads", "processes", "planned"] {
        assert!(scratch.outputs(name) == expected, "{name}");
    }
    let early = scratch.outputs("early");
    assert_eq!(early.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    let zeros = early.values().filter(|tensor| tensor.to_f64().iter().all(|&x| x == 0.0));
    assert_eq!(zeros.count(), 0);
}

/// The outputs of the last step of a plan, which gives all of them at each.
fn by_hand(
    plan: &Plan,
    model: &str,
    data: &str,
    steps: Result<usize, std::num::ParseIntError>,
) -> BTreeMap<String, HostTensor> {
    let imported = graphc::compiler::import::load_model(
        Path::new(model),
        &plan.options.dims,
        Default::default(),
    );
    let weights = imported.expect("a model").weights;
    let weight = |(name, tensor): (&String, &graphc::compiler::import::weights::WeightTensor)| {
        let bytes = tensor.bytes(name).expect("bytes").to_vec();
        let tensor = HostTensor::new(tensor.dtype, tensor.shape.clone(), bytes);
        (name.clone(), tensor.expect("it fits"))
    };
    let weights: BTreeMap<_, _> = weights.tensors.iter().map(weight).collect();
    let plan = VerifiedPlan::check(plan.clone()).expect("a plan");
    let mut session = Session::new(&plan, &weights, SessionOptions::default()).expect("a session");
    let tensors = load_safetensors(Path::new(data)).expect("data");
    let batches = graphc::runtime::data::Batches::new(tensors, session.inputs(), session.samples());
    let batches = batches.expect("they fit");
    let mut outputs = BTreeMap::new();
    for step in 0..steps.expect("a number") {
        let handle = session.step(batches.feeds(step as u64)).expect("a step");
        outputs = handle.wait().expect("outputs");
    }
    outputs
}

/// An evaluation adds up numbers: the scores of a batch are no output of its plan.
#[test]
fn an_evaluation_has_no_outputs_to_ask_for() {
    let model = reference("mlp").join("model.onnx").display().to_string();
    let data = reference("mlp").join("data.safetensors").display().to_string();
    let eval = ["eval", &model, "--data", &data, "--batch", "16", "--loss", "cross_entropy"];
    let error = fails([&eval[..], &["--fetch", "*"]].concat());
    assert!(error.contains("--fetch * belongs to compile, run and train"), "{error}");
    let output = graphc(eval);
    assert!(output.status.success());
}
