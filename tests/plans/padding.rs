//! A vocabulary whose rows begin at odd addresses: padded in memory where machines multiply odd rows slowly, and nowhere else to be seen.

use std::collections::BTreeMap;
use std::path::Path;

use crate::machine::{Machine, checked};
use crate::support::{Scratch, fails, losses, near, succeeds};
use graphc::prelude::*;
use graphc_compiler::compile::sketch_plan;
use graphc_compiler::cost::on_cluster;
use graphc_compiler::null_device::step_seconds;
use graphc_ir::text::print_graph;
use graphc_nn::Module;
use graphc_nn::models::{Gpt2Config, gpt2};
use graphc_plan::Cluster;
use graphc_runtime::data::{load_safetensors, save_safetensors};
use serde_json::Value;

const VOCABULARY: usize = 1013;
const PADDED: u64 = 1024;
const WIDTH: usize = 16;
const STEPS: usize = 3;

impl Scratch {
    /// A folder with a small GPT-2, tokens for it, and machines that multiply odd rows at half the rate, and slowly.
    fn with_gpt() -> Self {
        let folder = Self::new();
        let write = |name: &str, text: String| {
            std::fs::write(folder.path(name), text).expect("a file");
        };
        write("tied.gir", print_graph(&model(true)));
        write("apart.gir", print_graph(&model(false)));
        for kind in ["cpu", "cuda"] {
            write(&format!("{kind}.toml"), machines(kind, 0.5));
            write(&format!("{kind}_even.toml"), machines(kind, 1.0));
        }
        let token = |seed: usize| move |at: usize| ((at * 7919 + seed) % VOCABULARY) as i64;
        let tensor = |seed| {
            let tokens: Vec<i64> = (0..4 * STEPS * 8).map(token(seed)).collect();
            HostTensor::from_i64([4 * STEPS, 8], &tokens).expect("as many tokens")
        };
        let data = [("tokens", tensor(1)), ("labels", tensor(1012))];
        let data = data.map(|(name, tokens)| (name.to_owned(), tokens));
        save_safetensors(folder.path("data").as_ref(), &data.into()).expect("a file");
        folder
    }

    fn compile(&self, model: &str, cluster: &str, extra: &[&str]) -> Value {
        let (model, plan) = (self.path(model), self.path("plan.json"));
        let own = ["compile", &model, "--batch", "4", "--cluster", cluster, "-o", &plan];
        let training = ["--loss", "cross_entropy", "--optimizer", "adamw", "--precision", "bf16"];
        succeeds([&own[..], &training, extra].concat());
        serde_json::from_slice(&std::fs::read(plan).expect("a plan")).expect("JSON")
    }

    /// A graph on the way to its plan, as text.
    fn emit(&self, model: &str, extra: &[&str]) -> String {
        let (model, cluster) = (self.path(model), self.path("cpu.toml"));
        let own = ["compile", &model, "--batch", "4", "--cluster", &cluster];
        let training = ["--loss", "cross_entropy", "--optimizer", "adamw", "--precision", "bf16"];
        succeeds([&own[..], &training, extra].concat())
    }

    fn arguments(&self, model: &str, cluster: &str, extra: &[&str]) -> Vec<String> {
        let paths = [model, "data", cluster, "losses"].map(|name| self.path(name));
        let [model, data, cluster, metrics] = &paths;
        let own = ["train", model, "--data", data, "--cluster", cluster, "--metrics", metrics];
        let training = ["--loss", "cross_entropy", "--optimizer", "adamw", "--precision", "bf16"];
        let sizes = ["--batch", "4", "--lr", "0.01"];
        let all = [&own[..], &training, &sizes, extra].concat();
        all.into_iter().map(str::to_owned).collect()
    }

    fn losses(&self) -> Vec<f64> {
        losses(&std::fs::read(self.path("losses")).expect("metrics"))
    }

    /// The losses of a training on the processor.
    fn train(&self, model: &str, cluster: &str, extra: &[&str]) -> Vec<f64> {
        let steps = STEPS.to_string();
        let args = self.arguments(model, cluster, &[&["--steps", &steps][..], extra].concat());
        succeeds(args);
        self.losses()
    }
}

/// Tied, or with a head `[width, vocabulary]` of its own.
fn model(tied: bool) -> Graph {
    let g = GraphBuilder::new("gpt");
    let tokens = g.input("tokens", DType::I64, [4, 8]);
    let logits = if tied {
        let (vocabulary, width) = (VOCABULARY, WIDTH);
        let config =
            Gpt2Config { layers: 1, width, heads: 2, sequence: 8, vocabulary, dropout: 0.0 };
        gpt2(&g, &config).forward(&tokens)
    } else {
        let normal = || Init::Normal { mean: 0.0.into(), std: 0.1.into() };
        let table = g.variable("wte.weight", DType::F32, [VOCABULARY, WIDTH], normal());
        let head = g.variable("head.weight", DType::F32, [WIDTH, VOCABULARY], normal());
        let bias = g.variable("head.bias", DType::F32, [VOCABULARY], normal());
        table.embedding(&tokens).tanh().matmul(&head).add(&bias)
    };
    g.output("logits", &logits.named("logits"));
    g.finish().expect("a graph")
}

fn machines(kind: &str, unaligned: f64) -> String {
    format!(
        "name = \"slow\"\n[device]\nkind = \"{kind}\"\nmemory = \"4GiB\"\nflops = {{ f32 = 1e8 }}\n\
         matmul_unaligned = {unaligned}\nbandwidth = 1e10\nlaunch = 1e-6\n\
         [[level]]\nlatency = 2e-6\nbandwidth = 4e9\n"
    )
}

#[test]
fn a_plan_pads_where_machines_multiply_odd_rows_slowly() {
    let folder = Scratch::with_gpt();
    let shapes = |plan: &Value| -> BTreeMap<String, Value> {
        let tensors = plan["tensors"].as_array().expect("tensors").iter();
        tensors.map(|t| (t["name"].as_str().unwrap_or("").into(), t["shape"].clone())).collect()
    };
    for (model, table, padded) in [
        ("tied.gir", "wte", vec![PADDED, WIDTH as u64]),
        ("apart.gir", "head", vec![WIDTH as u64, PADDED]),
    ] {
        let plan = folder.compile(model, &folder.path("cpu.toml"), &[]);
        let (found, weight) = (shapes(&plan), format!("{table}.weight"));
        let of = |name: &str| found.get(name).cloned().unwrap_or_default();
        assert_eq!(of(&format!("{weight}.padded")), serde_json::json!(padded), "{model}");
        assert_eq!(of("logits.padded"), serde_json::json!([4, 8, PADDED]), "{model}");
        let real = padded.iter().map(|&n| if n == PADDED { VOCABULARY as u64 } else { n });
        assert_eq!(of(&weight), serde_json::json!(real.collect::<Vec<_>>()), "{model}");
        for cluster in ["cpu".to_owned(), folder.path("cpu_even.toml")] {
            let found = shapes(&folder.compile(model, &cluster, &[]));
            assert!(!found.keys().any(|name| name.ends_with(".padded")), "{model} on {cluster}");
        }
    }
    let bare = succeeds(["inspect", &folder.path("plan.json")]);
    assert!(!bare.contains("padded"), "{bare}");
    folder.compile("tied.gir", &folder.path("cpu.toml"), &[]);
    let text = succeeds(["inspect", &folder.path("plan.json")]);
    assert!(text.contains("wte.weight.padded") && text.contains("logits.padded"), "{text}");
    for mesh in ["1", "2"] {
        let plan = folder.compile("tied.gir", &folder.path("cpu.toml"), &["--mesh", mesh]);
        assert_eq!(plan["padded"], serde_json::json!(true), "on {mesh}");
        let plan = folder.path("plan.json");
        succeeds(["verify", &plan]);
        let explained = succeeds(["explain", &plan, "logits.padded"]);
        assert!(explained.starts_with("`logits.padded` is "), "{explained}");
    }
    let text = folder.emit("tied.gir", &["--emit", "after:padding"]);
    assert!(text.contains("wte.weight.padded") && text.contains("classes=1013"), "{text}");
}

/// The gradients of microbatches for a padded weight are summed in f32, and cut to the real classes once.
#[test]
fn microbatches_are_summed_before_padding_is_cut_off() {
    let text =
        Scratch::with_gpt().emit("apart.gir", &["--microbatches", "2", "--emit", "after:rates"]);
    let sums: Vec<&str> = text.lines().filter(|line| line.contains(" = accumulate ")).collect();
    assert!(sums.iter().any(|line| line.ends_with(": f32[16, 1024]")), "{text}");
    assert!(sums.iter().all(|line| !line.contains("bf16")), "{text}");
}

/// Logits are sums of the same order, so they are the same numbers; what is summed over classes may be summed in another.
#[test]
fn losses_are_those_of_a_plan_without_padding() {
    let folder = Scratch::with_gpt();
    for model in ["tied.gir", "apart.gir"] {
        let expected = folder.train(model, "cpu_even.toml", &[]);
        assert!(expected[0] > 6.0, "{expected:?}");
        for extra in [
            &["--mesh", "1"][..],
            &["--mesh", "2"],
            &["--mesh", "4"],
            &["--mesh", "2x2"],
            &["--mesh", "2", "--strategy", "zero3"],
            &["--mesh", "2", "--stages", "2", "--microbatches", "2"],
        ] {
            if model == "apart.gir" && extra.contains(&"--stages") {
                continue; // It has one layer.
            }
            let found = folder.train(model, "cpu.toml", extra);
            let what = format!("{model} {extra:?}");
            near(&found[..1], &expected[..1], if extra[1] == "1" { 1e-6 } else { 1e-3 }, &what);
            near(&found, &expected, 5e-3, &what);
            assert!(found == folder.train(model, "cpu.toml", extra), "{what}: two runs differ");
        }
    }
}

/// A checkpoint of one goes on in the other, and the file of weights has the author's shapes.
#[test]
fn checkpoints_and_weights_know_nothing_of_padding() {
    let folder = Scratch::with_gpt();
    let (save, weights) = (folder.path("save"), folder.path("weights"));
    for (first, second) in [("cpu.toml", "cpu_even.toml"), ("cpu_even.toml", "cpu.toml")] {
        let expected = folder.train("apart.gir", first, &[]);
        let _ = std::fs::remove_dir_all(&save);
        succeeds(folder.arguments("apart.gir", first, &["--steps", "1", "--save", &save]));
        let steps = STEPS.to_string();
        let resume = ["--steps", &steps, "--resume", &save, "--weights", &weights];
        succeeds(folder.arguments("apart.gir", second, &resume));
        near(&folder.losses(), &expected, 5e-3, second);
        let weights = load_safetensors(Path::new(&weights)).expect("weights");
        assert_eq!(weights["head.weight"].shape(), [WIDTH, VOCABULARY]);
        assert_eq!(weights["wte.weight"].shape(), [VOCABULARY, WIDTH]);
    }
}

/// Labels that lead to padding are out of range, in either form of cross entropy.
#[test]
fn no_label_leads_to_padding() {
    let folder = Scratch::with_gpt();
    let mut data = load_safetensors(folder.path("data").as_ref()).expect("data");
    let shape = data["labels"].shape().to_vec();
    let labels = vec![VOCABULARY as i64; shape.iter().product()];
    let labels = HostTensor::from_i64(shape, &labels).expect("as many");
    data.insert("labels".into(), labels);
    save_safetensors(folder.path("data").as_ref(), &data).expect("a file");
    for extra in [&["--steps", "1"][..], &["--steps", "1", "--mesh", "2"]] {
        let error = fails(folder.arguments("tied.gir", "cpu.toml", extra));
        assert!(
            error.contains("label 1013") && error.contains("from 0 to 1012"),
            "{extra:?}: {error}"
        );
    }
}

/// Kernels of cards on the double.
#[test]
fn cards_train_with_padding() {
    let Some(machine) = Machine::new() else { return };
    let folder = Scratch::with_gpt();
    for (model, extra) in [("tied.gir", &["--mesh", "1"][..]), ("apart.gir", &["--mesh", "2"])] {
        let expected = folder.train(model, "cuda_even.toml", &["--device", "cpu"]);
        let steps = STEPS.to_string();
        let all = [&["--device", "cuda", "--steps", &steps][..], extra].concat();
        checked(machine.command(folder.arguments(model, "cuda.toml", &all)));
        near(&folder.losses(), &expected, 5e-3, model);
    }
}

/// GPT-2 of 124 million weights on a card that multiplies odd rows slowly: padded it takes about as long as with the vocabulary that
/// people write for speed, and without padding longer.
#[test]
fn gpt2_is_padded_on_a_card() {
    let card = preset("dgx-h100").expect("a preset");
    let mut even = card.clone();
    even.device.matmul_unaligned = 1.0;
    let step = |vocabulary: usize, mesh: usize, cluster: &Cluster| {
        let g = GraphBuilder::new("gpt2");
        let config = Gpt2Config { vocabulary, dropout: 0.0, ..Gpt2Config::small() };
        let batch = [8 * mesh, 1024];
        let logits = gpt2(&g, &config).forward(&g.input("tokens", DType::I64, batch));
        g.output("loss", &logits.cross_entropy(&g.input("labels", DType::I64, batch)));
        let adam = AdamOptions { lr: 1e-3, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
        let options = CompileOptions {
            mesh: vec![mesh],
            optimizer: Some(Optimizer::AdamW(adam)),
            precision: Some(DType::BF16),
            ..CompileOptions::default()
        };
        let plan = sketch_plan(g.finish().expect("a graph"), &options, cluster).expect("a plan");
        (step_seconds(&plan).expect("it ends"), plan)
    };
    for mesh in [1, 2] {
        let (bare, plan) = step(50257, mesh, &even);
        assert!(!plan.padded);
        let slow = step_seconds(&on_cluster(&plan, &card)).expect("it ends");
        let (padded, plan) = step(50257, mesh, &card);
        let (written, other) = step(50304, mesh, &card);
        assert!(plan.padded && !other.padded);
        println!(
            "{mesh}: {bare:.6} if odd rows were as fast, {slow:.6}, padded {padded:.6}, written {written:.6}"
        );
        assert!(bare < padded && padded < 0.97 * slow, "{mesh}: {padded} of {slow}");
        assert!(padded < 1.03 * written, "{mesh}: {padded} of {written}");
    }
}
