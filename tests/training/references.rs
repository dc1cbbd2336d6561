//! Training the reference models reaches the losses that PyTorch reached, on every mesh, and twice the same bits.

use crate::support::{
    Reference, Scratch, fails, graphc, losses, reference, succeeds, train_reference,
};
use graphc::prelude::*;
use graphc::runtime::data::{load_safetensors, save_safetensors};
use graphc_ir::graph::{Graph, Node};
use graphc_ir::op::Op;

/// The meshes and strategies that every reference must reach its losses on.
const CONFIGURATIONS: [&[&str]; 9] = [
    &["--mesh", "1"],
    &["--mesh", "2"],
    &["--mesh", "3"],
    &["--mesh", "4"],
    &["--mesh", "2x2"],
    &["--mesh", "2", "--stages", "2", "--microbatches", "2"],
    &["--mesh", "2x2", "--stages", "2", "--microbatches", "2"],
    &["--mesh", "2", "--strategy", "data"],
    &["--mesh", "2", "--strategy", "zero3"],
];

fn check(name: &str, extra: &[&str]) -> Vec<u8> {
    check_within(Reference::load(name).tolerance, name, extra)
}

fn check_within(tolerance: f64, name: &str, extra: &[&str]) -> Vec<u8> {
    let reference = Reference::load(name);
    let metrics = train_reference(name, extra);
    let reached = losses(&metrics);
    assert_eq!(reached.len(), reference.losses.len(), "{name} {extra:?}: steps");
    for (step, (reached, expected)) in reached.iter().zip(&reference.losses).enumerate() {
        let error = (reached - expected).abs() / expected.abs();
        assert!(
            error <= tolerance,
            "{name} {extra:?}, step {step}: {reached} instead of {expected}, relative error {error:.1e}"
        );
    }
    metrics
}

fn check_all(name: &str) {
    for extra in CONFIGURATIONS {
        let first = check(name, extra);
        assert!(first == train_reference(name, extra), "{name} {extra:?}: two runs differ");
    }
}

#[test]
fn mlp_reaches_the_losses_of_pytorch_on_every_mesh() {
    check_all("mlp");
}

#[test]
fn mlp_mse_reaches_the_losses_of_pytorch_on_every_mesh() {
    check_all("mlp_mse");
}

#[test]
fn gpt_reaches_the_losses_of_pytorch_on_every_mesh() {
    check_all("gpt");
}

#[test]
fn lstm_reaches_the_losses_of_pytorch_on_every_mesh() {
    check_all("lstm");
}

#[test]
fn gru_reaches_the_losses_of_pytorch_on_every_mesh() {
    check_all("gru");
}

/// Samples are the second dim of sequences, first states and labels.
#[test]
fn states_reach_the_losses_of_pytorch_on_every_mesh() {
    check_all("states");
}

/// The losses are compared as those of the resnet: without microbatches.
#[test]
fn unet_reaches_the_losses_of_pytorch_on_every_mesh() {
    let own = Reference::load("unet").tolerance;
    for extra in CONFIGURATIONS.iter().filter(|extra| !extra.contains(&"--microbatches")) {
        check_within(2.0 * own, "unet", extra);
    }
}

#[test]
fn llama_with_masks_reaches_the_losses_of_pytorch_on_every_mesh() {
    check_all("llama");
}

#[test]
fn experts_that_are_chosen_reach_the_losses_of_pytorch_on_every_mesh() {
    check_all("experts");
}

/// Without microbatches: batch norm takes the statistics of each, which no reference covers. On one rank within the
/// reference's own tolerance; on several sums are taken in another order, and where an element is within rounding of a
/// kink (a rectifier, a maximum) it may take the other side, which moves later losses by more.
#[test]
fn resnet_reaches_the_losses_of_pytorch_on_every_mesh() {
    let whole = |extra: &&&[&str]| !extra.contains(&"--microbatches");
    for extra in CONFIGURATIONS.iter().filter(whole) {
        let own = Reference::load("resnet").tolerance;
        let tolerance = if extra.contains(&"1") { own } else { 20.0 * own };
        let first = check_within(tolerance, "resnet", extra);
        assert!(first == train_reference("resnet", extra), "resnet {extra:?}: two runs differ");
    }
}

#[test]
fn other_strategies_and_schedules_reach_them_too() {
    for extra in [
        ["--mesh", "4", "--strategy", "zero1"].as_slice(),
        &["--mesh", "2x2", "--strategy", "zero1", "--pin", "state.*=B,S(0)"],
        &["--mesh", "2", "--strategy", "megatron"],
        &["--mesh", "4", "--strategy", "megatron"],
        &["--mesh", "2", "--strategy", "megatron:sp"],
        &["--mesh", "2x2", "--strategy", "megatron:sp", "--microbatches", "2"],
        &["--mesh", "2x2", "--strategy", "megatron", "--microbatches", "2"],
        &["--mesh", "4", "--strategy", "zero2"],
        &["--mesh", "2x2", "--strategy", "zero3"],
        // A strategy for each axis.
        &["--mesh", "2x2", "--strategy", "hsdp"],
        &["--mesh", "2x2", "--strategy", "zero1,zero3", "--microbatches", "2"],
        &["--mesh", "2x2", "--strategy", "zero3,megatron"],
        &["--mesh", "2x2", "--strategy", "zero2,megatron:sp", "--microbatches", "2"],
        // Axes of one rank, of the mesh and of a stage.
        &["--mesh", "1x2", "--strategy", "zero3"],
        &["--mesh", "2x2", "--stages", "2", "--microbatches", "2", "--strategy", "zero2"],
        &["--mesh", "2", "--stages", "2", "--microbatches", "4", "--schedule", "gpipe"],
    ] {
        check("gpt", extra);
    }
}

/// Weights and activations that are gathered again for the backward pass where memory is short reach the references too, with several
/// microbatches as well.
#[test]
fn what_is_gathered_again_reaches_them_too() {
    for extra in [
        ["--mesh", "2", "--memory", "585KiB"].as_slice(),
        &["--mesh", "2", "--memory", "500KiB", "--microbatches", "2"],
        &["--mesh", "4", "--strategy", "zero3", "--microbatches", "2"],
        &["--mesh", "2", "--strategy", "zero3", "--microbatches", "2", "--recompute", "full"],
    ] {
        let first = check("gpt", extra);
        assert!(first == train_reference("gpt", extra), "gpt {extra:?}: two runs differ");
    }
}

#[test]
fn interleaved_chunks_reach_them_too() {
    let stages = ["--stages", "2", "--microbatches", "2", "--schedule", "interleaved:2"];
    check("gpt", &[&["--mesh", "2"], &stages[..]].concat());
    check("gpt", &[&["--mesh", "2x2", "--recompute", "full"], &stages[..]].concat());
}

#[test]
fn recomputation_changes_no_bit_of_the_losses() {
    for (name, extra) in [
        ("gpt", ["--mesh", "1"].as_slice()),
        // Of the same layouts: the planner may choose others where more is computed.
        ("gpt", &["--mesh", "2", "--strategy", "megatron"]),
        ("gpt", &["--mesh", "2", "--strategy", "data", "--microbatches", "2"]),
        ("gpt", &["--mesh", "2", "--stages", "2", "--microbatches", "2"]),
        ("mlp", &["--mesh", "1"]),
        ("mlp", &["--mesh", "2", "--strategy", "zero3"]),
        ("mlp", &["--mesh", "2", "--stages", "2", "--microbatches", "2"]),
    ] {
        let kept = check(name, extra);
        let full = check(name, &[extra, &["--recompute", "full"]].concat());
        assert!(kept == full, "{name} {extra:?}: losses differ");
    }
}

/// Models that transformers has saved, whose recorded logits and losses are its own.
const SAVED: [&str; 8] =
    ["llama", "mistral", "mixtral", "qwen2", "qwen3", "gpt2", "bert", "bert_classes"];

/// The folder of a saved model, with the results of transformers.
struct Saved {
    folder: std::path::PathBuf,
    record: serde_json::Value,
}

impl Saved {
    fn load(name: &str) -> Self {
        let folder = reference("hugging_face").join(name);
        let text = std::fs::read_to_string(folder.join("expected.json")).expect("it is recorded");
        Self { folder, record: serde_json::from_str(&text).expect("JSON") }
    }

    fn list(&self, of: &str) -> Vec<f64> {
        let list = self.record[of].as_array().expect("a list");
        list.iter().map(|number| number.as_f64().expect("a number")).collect()
    }

    /// Tokens of two sequences, or a class of each.
    fn tokens(&self, of: &str) -> HostTensor {
        let tokens: Vec<i64> = self.list(of).iter().map(|&token| token as i64).collect();
        let shape = if tokens.len() == 2 { vec![2] } else { vec![2, 6] };
        HostTensor::from_i64(shape, &tokens).expect("as many")
    }

    /// A session on these ranks, with the weights of the folder.
    fn session(&self, options: &CompileOptions) -> (Session, BTreeMap<String, HostTensor>) {
        let model = models::from_hf(&self.folder, 2, 6).expect("a model");
        let plan = compile(model.graph, options, &preset("cpu").expect("a preset"), None);
        let plan = plan.expect("a plan").plan;
        let session = Session::new(&plan, &model.weights, SessionOptions::default());
        (session.expect("a session"), model.weights)
    }

    fn step(&self, session: &mut Session, output: &str) -> Vec<f64> {
        let mut feeds = BTreeMap::from([("input_ids".to_owned(), self.tokens("tokens"))]);
        if session.inputs().contains_key("labels") {
            feeds.insert("labels".to_owned(), self.tokens("labels"));
        }
        session.step(feeds).and_then(|step| step.wait()).expect("a step")[output].to_f64()
    }
}

fn near(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= 1e-5, "{what}: {found} instead of {expected}");
    }
}

/// A file that PyTorch has exported is read with its weights by one call.
#[test]
fn a_model_file_is_loaded_with_its_weights() {
    let folder = reference("mlp");
    let model = models::load(folder.join("model.onnx"), &[("batch", 16)]).expect("a model");
    let options = CompileOptions {
        mesh: vec![2],
        loss: Some(Loss::CrossEntropy),
        optimizer: Some(Optimizer::sgd(0.05)),
        ..CompileOptions::default()
    };
    let plan = compile(model.graph, &options, &preset("cpu").expect("a preset"), None);
    let plan = plan.expect("a plan").plan;
    let mut session = Session::new(&plan, &model.weights, SessionOptions::default()).expect("fits");
    let data = load_safetensors(folder.join("data.safetensors").as_ref()).expect("data");
    // The first 16 samples.
    let first = |name: &String| {
        let (whole, shape) = (&data[name], &session.inputs()[name].shape);
        let elements = shape.iter().product();
        let tensor = match name.as_str() {
            "labels" => {
                HostTensor::from_i64(shape.clone(), &whole.to_i64().expect("i64")[..elements])
            }
            _ => HostTensor::from_f32(shape.clone(), &whole.to_f32().expect("f32")[..elements]),
        };
        (name.clone(), tensor.expect("as many"))
    };
    let feeds = session.inputs().keys().map(first).collect();
    let step = session.step(feeds).and_then(|step| step.wait()).expect("a step");
    let loss = step["loss"].to_f64()[0];
    let expected = Reference::load("mlp").losses[0];
    assert!((loss - expected).abs() < 1e-5, "{loss}, not {expected}");
    assert!(models::load(folder.join("nothing.onnx"), &[]).is_err());
}

#[test]
fn models_of_transformers_compute_and_learn_what_they_do_there() {
    for name in SAVED {
        let saved = Saved::load(name);
        let training = CompileOptions {
            loss: Some(Loss::CrossEntropy),
            optimizer: Some(Optimizer::adamw(1e-2)),
            ..CompileOptions::default()
        };
        for mesh in [vec![1], vec![2], vec![2, 2]] {
            let what = format!("{name} on {mesh:?}");
            let inference = CompileOptions { mesh: mesh.clone(), ..CompileOptions::default() };
            let (mut infers, weights) = saved.session(&inference);
            near(&saved.step(&mut infers, "logits"), &saved.list("logits"), &what);
            let (mut trains, _) = saved.session(&CompileOptions { mesh, ..training.clone() });
            let losses: Vec<f64> = (0..3).flat_map(|_| saved.step(&mut trains, "loss")).collect();
            near(&losses, &saved.list("losses"), &what);
            let names: Vec<&str> = weights.keys().map(String::as_str).collect();
            infers.copy_variables(&mut trains, names).expect("the same variables");
            near(&saved.step(&mut infers, "logits"), &saved.list("trained"), &what);
        }
    }
}

#[test]
fn a_saved_model_is_trained_by_the_command_and_keeps_its_names() {
    for name in ["qwen2", "gpt2", "mixtral"] {
        let (saved, scratch) = (Saved::load(name), Scratch::new());
        let model = format!("hf:{}", saved.folder.display());
        let [data, weights, metrics, plan] =
            ["data.safetensors", "out.safetensors", "losses.jsonl", "plan.json"]
                .map(|file| scratch.path(file));
        let feeds = [("input_ids", "tokens"), ("labels", "labels")];
        let feeds = feeds.map(|(name, of)| (name.to_owned(), saved.tokens(of)));
        save_safetensors(data.as_ref(), &BTreeMap::from(feeds)).expect("written");
        let how = ["--loss", "cross_entropy", "--optimizer", "adamw", "--lr", "1e-2"];
        let shape = ["--batch", "2", "--dim", "time=6", "--mesh", "2", "-o", &plan];
        let compiled = [&["compile", &model][..], &how, &shape].concat();
        succeeds(compiled);
        let train = ["train", &plan, "--data", &data, "--steps", "3", "--weights", &weights];
        succeeds(train.iter().copied().chain(["--metrics", &metrics]));
        let reached = losses(&std::fs::read(&metrics).expect("metrics"));
        near(&reached, &saved.list("losses"), name);
        let trained = load_safetensors(weights.as_ref()).expect("weights");
        let own = load_safetensors(&saved.folder.join("model.safetensors")).expect("weights");
        assert_eq!(trained.keys().collect::<Vec<_>>(), own.keys().collect::<Vec<_>>(), "{name}");
    }
}

/// Makes a folder with the configuration of this reference, of which a part is replaced.
fn change_config(name: &str, from: &str, to: &str) -> Scratch {
    let scratch = Scratch::new();
    let config = Saved::load(name).folder.join("config.json");
    let config = std::fs::read_to_string(config).expect("a configuration");
    assert!(config.contains(from), "{name}: {from}");
    let changed = config.replace(from, to);
    std::fs::write(scratch.0.path().join("config.json"), changed).expect("written");
    scratch
}

/// Lists the probabilities with which attention drops its weights.
fn attention_dropouts(graph: &Graph) -> Vec<f64> {
    let attention = |node: &Node| match &node.op {
        Op::Attention(op) => Some(op.weight_dropout().map_or(0.0, |of| of.probability.0)),
        _ => None,
    };
    graph.nodes.iter().filter_map(attention).collect()
}

#[test]
fn a_saved_model_drops_weights_of_attention_as_its_configuration_says() {
    for (name, said, usual) in [
        ("gpt2", "\"attn_pdrop\": 0.0", 0.1),
        ("bert", "\"attention_probs_dropout_prob\": 0.0", 0.1),
        ("llama", "\"attention_dropout\": 0.0", 0.0),
        ("qwen3", "\"attention_dropout\": 0.0", 0.0),
    ] {
        let of = |to: &str| {
            let scratch = change_config(name, said, to);
            attention_dropouts(&models::from_hf(scratch.0.path(), 2, 6).expect("a model").graph)
        };
        let all = |probability: f64, found: Vec<f64>| {
            assert!(
                !found.is_empty() && found.iter().all(|&p| p == probability),
                "{name} {found:?}"
            );
        };
        all(0.0, of(said));
        all(0.3, of(&said.replace("0.0", "0.3")));
        // What is left out is what transformers takes then.
        all(usual, of("\"no_such_key\": 0.0"));
    }
    let scratch = change_config("gpt2", "\"attn_pdrop\": 0.0", "\"attn_pdrop\": 1.5");
    let model = format!("hf:{}", scratch.0.path().display());
    let error = fails(["compile", &model, "--batch", "2", "--dim", "time=6"]);
    assert!(
        error.contains("`attn_pdrop` is a probability of at least 0 and below 1, not 1.5"),
        "{error}"
    );
}

#[test]
fn a_folder_that_is_no_known_model_says_why() {
    let scratch = Scratch::new();
    let own = Saved::load("mistral").folder;
    let config = std::fs::read_to_string(own.join("config.json")).expect("a configuration");
    let refused = |from: &str, to: &str, further: &[&str]| {
        assert!(config.contains(from), "{from}");
        let text = config.replace(from, to);
        std::fs::write(scratch.0.path().join("config.json"), text).expect("written");
        let model = format!("hf:{}", scratch.0.path().display());
        let shape = ["--batch", "2", "--dim", "time=6"];
        fails([&["compile", &model][..], &shape, further].concat())
    };
    for (from, to, said) in [
        (
            "MistralForCausalLM",
            "MambaForCausalLM",
            "`MambaForCausalLM` is none of those that are known",
        ),
        (
            "\"hidden_size\": 8",
            "\"hidden_size\": -8",
            "`hidden_size` is a whole number from 1 to 2^20, not -8",
        ),
        ("\"hidden_size\": 8,", "", "it does not say `hidden_size`"),
        ("\"silu\"", "\"mish\"", "`hidden_act` is silu, gelu, gelu_new"),
        (
            "\"rope_type\": \"default\"",
            "\"rope_type\": \"yarn\"",
            "positions of the kind `yarn` are not known",
        ),
        (
            "\"num_key_value_heads\": 2",
            "\"num_key_value_heads\": 3",
            "3 heads of keys do not divide 4",
        ),
        ("\"sliding_window\": 8", "\"sliding_window\": 4", "at most 4 tokens, not 6"),
        ("{", "[", "cannot read the model"),
    ] {
        let error = refused(from, to, &[]);
        assert!(error.contains(said) && error.contains("config.json"), "{error}");
    }
    // Without files of weights a plan can be made, and no step of inference.
    std::fs::write(scratch.0.path().join("config.json"), &config).expect("written");
    let model = format!("hf:{}", scratch.0.path().display());
    let noted = graphc(["compile", &model, "--batch", "2", "--dim", "time=6"]);
    let said = String::from_utf8_lossy(&noted.stderr).into_owned();
    assert!(
        noted.status.success() && said.contains("model.safetensors, which holds weights"),
        "{said}"
    );
    let error = fails(["compile", &model, "--batch", "2"]);
    assert!(error.contains("`time` has no value: --dim time=N"), "{error}");
    std::fs::copy(own.join("../gpt2/model.safetensors"), scratch.path("model.safetensors"))
        .expect("copied");
    let missing = fails(["compile", &model, "--batch", "2", "--dim", "time=6"]);
    assert!(missing.contains("there is no weight `model.embed_tokens.weight`"), "{missing}");
    assert!(fails(["compile", "hf:/no/such/folder", "--batch", "2"]).contains("/no/such/folder"));
}

#[test]
fn a_folder_without_weights_is_trained_from_scratch() {
    let scratch = Scratch::new();
    for name in ["gpt2", "mixtral", "bert"] {
        let saved = Saved::load(name);
        let own = scratch.0.path().join(name);
        std::fs::create_dir(&own).expect("a folder");
        std::fs::copy(saved.folder.join("config.json"), own.join("config.json")).expect("copied");
        let model = format!("hf:{}", own.display());
        let data = scratch.path(&format!("{name}.data"));
        let feeds = [("input_ids", "tokens"), ("labels", "labels")];
        let feeds = feeds.map(|(name, of)| (name.to_owned(), saved.tokens(of)));
        save_safetensors(data.as_ref(), &BTreeMap::from(feeds)).expect("written");
        let [weights, again, outputs] =
            ["w", "v", "o"].map(|file| scratch.path(&format!("{name}.{file}")));
        let how = ["--loss", "cross_entropy", "--optimizer", "sgd"];
        let train = [&["train", &model, "--data", &data, "--steps", "2"][..], &how].concat();
        let trained = graphc([&train[..], &["--weights", &weights]].concat());
        let said = String::from_utf8_lossy(&trained.stderr).into_owned();
        assert!(trained.status.success() && said.contains("they are drawn at random"), "{said}");
        // The same seed draws the same on another mesh, up to rounding.
        succeeds([&train[..], &["--weights", &again, "--mesh", "2"]].concat());
        let [one, other] =
            [&weights, &again].map(|path| load_safetensors(path.as_ref()).expect("weights"));
        let saved_names =
            load_safetensors(&saved.folder.join("model.safetensors")).expect("weights");
        assert_eq!(
            one.keys().collect::<Vec<_>>(),
            saved_names.keys().collect::<Vec<_>>(),
            "{name}"
        );
        for (key, tensor) in &one {
            let [a, b] = [tensor, &other[key]].map(|tensor| tensor.to_f32().expect("f32"));
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-4), "{name}: {key}");
        }
        // Weights in another format are not passed over.
        let other = own.join("pytorch_model.bin");
        std::fs::write(&other, "weights").expect("written");
        let refused = fails(train.iter());
        assert!(
            refused.contains("its weights are in pytorch_model.bin, which is not read"),
            "{refused}"
        );
        std::fs::remove_file(other).expect("it is there");
        let refused = fails(["run", &model, "--inputs", &data, "--outputs", &outputs]);
        assert!(refused.contains("model.safetensors, which cannot be read"), "{refused}");
        succeeds([
            "run",
            &model,
            "--inputs",
            &data,
            "--outputs",
            &outputs,
            "--weights-from",
            &weights,
        ]);
    }
}
