//! Products and what cuBLASLt computes at their ends: plans whose products are joined with what stands behind or beside them have the
//! values of the processor, on the double of NVIDIA's libraries, and fewer launches. What the library refuses is made in another way, and
//! of its algorithms the fastest is taken.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::machine::{Machine, checked, near};
use crate::support::{Reference, losses};
use graphc::models::{Gpt2Config, gpt2};
use graphc::nn::Module;
use graphc::prelude::*;
use graphc_ir::text::print_graph;
use graphc_runtime::data::{load_safetensors, save_safetensors};

type Counts = BTreeMap<String, usize>;

/// The gradient of the tanh form of GELU at x, times g.
fn gradient(x: &Tensor, g: &Tensor) -> Tensor {
    let c = (2.0 / std::f64::consts::PI).sqrt();
    let t = (x + (x * x * x).scale(0.044715)).scale(c).tanh();
    let inner = (x * x).scale(3.0 * 0.044715).offset(1.0).scale(c);
    let slope = (&t * &t).neg().offset(1.0) * inner * x;
    g * (t.offset(1.0) + slope).scale(0.5)
}

/// Inputs by name and extents, and the outputs that a function of them gives.
struct Network<'a> {
    inputs: &'a [(&'a str, &'a [usize])],
    outputs: fn(&[Tensor]) -> Vec<Tensor>,
}

impl Network<'_> {
    /// Whether outputs on a card are within so much of those on the processor; the launches on the card.
    fn check(&self, machine: &Machine, dtype: DType, tolerance: f64) -> Counts {
        let g = GraphBuilder::new("products");
        let one = Placement::new(vec![0], vec![1]).expect("a placement");
        let given: Vec<Tensor> = g.on(&one, || {
            self.inputs.iter().map(|(name, shape)| g.input(name, dtype, *shape)).collect()
        });
        let outputs = (self.outputs)(&given);
        for (index, output) in outputs.iter().enumerate() {
            g.output(&format!("y{index}"), output);
        }
        // All inputs are read once more behind the outputs, whose memory is therefore another. What is transposed is in no chain with
        // the output itself.
        let whole = outputs.iter().find(|output| output.shape().len() > 1).expect("a matrix");
        let axes: Vec<usize> = (0..whole.shape().len()).collect();
        let turned = whole.transpose(&axes.iter().rev().copied().collect::<Vec<_>>());
        let late = (&turned * &turned).mean(&axes, false);
        for (index, input) in given.iter().enumerate() {
            let axes: Vec<usize> = (0..input.shape().len()).rev().collect();
            g.output(&format!("late{index}"), &(input.transpose(&axes) * &late));
        }
        let [model, inputs, on_card, on_processor] =
            ["products.gir", "x.safetensors", "card.safetensors", "processor.safetensors"]
                .map(|name| machine.file(name));
        std::fs::write(&model, print_graph(&g.finish().expect("a graph"))).expect("a file");
        let tensors = self.inputs.iter().enumerate().map(|(index, (name, shape))| {
            let elements = 0..shape.iter().product();
            let number = |i: usize| ((i * 37 + 11 * index) % 64) as f64 / 16.0 - 2.0;
            let data: Vec<f64> = elements.map(number).collect();
            let tensor = HostTensor::from_f64(dtype, shape.to_vec(), &data).expect("a tensor");
            ((*name).to_owned(), tensor)
        });
        save_safetensors(Path::new(&inputs), &tensors.collect()).expect("a file");
        let run = |device, outputs| {
            let args = ["run", &model, "--inputs", &inputs, "--outputs", outputs];
            let mut command = machine.command(args);
            command.args(["--mesh", "1", "--device", device]);
            command
        };
        let counts = machine.counts(run("cuda", &on_card));
        checked(run("cpu", &on_processor));
        let [found, right] = [on_card, on_processor]
            .map(|file| load_safetensors(Path::new(&file)).expect("outputs"));
        assert!(!right.is_empty() && found.len() == right.len());
        for (name, right) in right {
            let [found, right] = [&found[&name], &right].map(HostTensor::to_f64);
            let greatest = right.iter().fold(1.0f64, |most, x| most.max(x.abs()));
            for (found, right) in found.iter().zip(&right) {
                let error = (found - right).abs() / greatest;
                assert!(error <= tolerance, "{name} in {dtype}: {found}, not {right}");
            }
        }
        counts
    }
}

const TYPES: [(DType, f64); 3] = [(DType::F32, 1e-5), (DType::BF16, 2e-2), (DType::F16, 4e-3)];

fn count(counts: &Counts, kernel: &str) -> usize {
    counts.get(kernel).copied().unwrap_or(0)
}

/// Networks, what the product of each ends in where the library computes that, and what it ends in where it does not.
fn check(network: &Network<'_>, joined: &str, apart: &[&str]) {
    let Some(machine) = Machine::new() else { return };
    for (dtype, tolerance) in TYPES {
        let counts = network.check(&machine, dtype, tolerance);
        assert_eq!(count(&counts, joined), 1, "{dtype}: {counts:?}");
        for kernel in apart {
            assert_eq!(count(&counts, kernel), 0, "{dtype}: {counts:?}");
        }
    }
}

#[test]
fn gelu_keeps_what_it_is_taken_of() {
    let network = Network {
        inputs: &[("a", &[3, 5, 7]), ("b", &[7, 24]), ("c", &[24])],
        outputs: |x| {
            let z = x[0].matmul(&x[1]).add(&x[2]);
            vec![z.gelu_tanh(), z]
        },
    };
    check(&network, "product_gelu_aux_bias", &["product"]);
}

/// Rows of 9 elements cannot be kept, and the exact form of GELU is not the library's.
#[test]
fn what_does_not_fit_the_library_is_two_launches() {
    let odd = Network {
        inputs: &[("a", &[3, 5, 7]), ("b", &[7, 9]), ("c", &[9])],
        outputs: |x| {
            let z = x[0].matmul(&x[1]).add(&x[2]);
            vec![z.gelu_tanh(), z]
        },
    };
    check(&odd, "product", &["product_gelu_aux_bias"]);
    let exact = Network {
        inputs: &[("a", &[3, 5, 7]), ("b", &[7, 24]), ("c", &[24])],
        outputs: |x| {
            let z = x[0].matmul(&x[1]).add(&x[2]);
            vec![z.gelu(), z]
        },
    };
    check(&exact, "product", &["product_gelu_aux_bias"]);
}

#[test]
fn gradients_of_gelu_are_the_ends_of_products() {
    let plain = Network {
        inputs: &[("a", &[3, 5, 7]), ("b", &[24, 7]), ("z", &[3, 5, 24])],
        outputs: |x| vec![gradient(&x[2], &x[0].matmul_transposed(&x[1], false, true))],
    };
    check(&plain, "product_dgelu", &["product"]);
    let summed = Network {
        inputs: plain.inputs,
        outputs: |x| {
            let slope = gradient(&x[2], &x[0].matmul_transposed(&x[1], false, true));
            vec![slope.sum(&[0, 1], false), slope]
        },
    };
    check(&summed, "product_dgelu_bgrad", &["product"]);
}

/// Sums over rows of a factor, as gradients of biases are, which the library calls A where we call it the second.
#[test]
fn sums_of_factors_come_with_products() {
    let second = Network {
        inputs: &[("a", &[13, 7]), ("b", &[13, 9])],
        outputs: |x| vec![x[1].sum(&[0], false), x[0].matmul_transposed(&x[1], true, false)],
    };
    check(&second, "product_bgrada", &["product"]);
    let first = Network {
        inputs: &[("a", &[13, 7]), ("b", &[13, 9])],
        outputs: |x| vec![x[0].matmul_transposed(&x[1], true, false), x[0].sum(&[0], false)],
    };
    check(&first, "product_bgradb", &["product"]);
}

/// A small GPT-2 with data of its own.
fn small_gpt(machine: &Machine) -> [String; 2] {
    let config =
        Gpt2Config { layers: 2, width: 24, heads: 3, sequence: 8, vocabulary: 19, dropout: 0.0 };
    let g = GraphBuilder::new("gpt2");
    let model = gpt2(&g, &config);
    g.output("logits", &model.forward(&g.input("tokens", DType::I64, [4, 7])));
    let [file, data] = ["gpt2.gir", "tokens.safetensors"].map(|name| machine.file(name));
    std::fs::write(&file, print_graph(&g.finish().expect("a graph"))).expect("a file");
    let tokens = |from: i64| {
        let tokens: Vec<i64> = (0..8 * 7).map(|i| (i * i + from * i + 3) % 19).collect();
        HostTensor::from_i64([8, 7], &tokens).expect("a tensor")
    };
    let named = [("tokens", tokens(5)), ("labels", tokens(7))];
    let tensors = named.map(|(name, tensor)| (name.to_owned(), tensor)).into();
    save_safetensors(Path::new(&data), &tensors).expect("a file");
    [file, data]
}

/// Prepares three steps of training a small GPT-2; the losses go into a file.
fn training(machine: &Machine, device: &str, extra: &[&str]) -> (Command, String) {
    let ([model, data], metrics) = (small_gpt(machine), machine.file("gpt2.jsonl"));
    let mut command = machine.command(["train", &model, "--data", &data, "--metrics", &metrics]);
    command.args(["--loss", "cross_entropy", "--optimizer", "adamw", "--lr", "0.01"]);
    command.args(["--steps", "3", "--batch", "4", "--device", device]).args(extra);
    (command, metrics)
}

/// The losses of three steps of a small GPT-2, and on a card how often each kernel was executed.
fn trained(machine: &Machine, device: &str, extra: &[&str]) -> (Vec<f64>, Counts) {
    let (command, metrics) = training(machine, device, extra);
    let counts = machine.counts(command);
    (losses(&std::fs::read(metrics).expect("metrics")), counts)
}

/// Whether losses are those of the processor, within so much of them.
fn check_losses(found: &[f64], right: &[f64], tolerance: f64, what: &str) {
    assert!(found.len() == 3 && right.len() == 3, "{what}");
    for (found, right) in found.iter().zip(right) {
        assert!((found - right).abs() <= tolerance * right, "{what}: {found}, not {right}");
    }
}

const PRECISIONS: [(&str, f64); 2] = [("f32", 1e-5), ("bf16", 5e-3)];

/// GELU and its gradient are the ends of products, and so are biases and gradients of these.
#[test]
fn a_training_step_of_gpt_has_its_epilogues() {
    let Some(machine) = Machine::new() else { return };
    for (precision, tolerance) in PRECISIONS {
        let extra = ["--mesh", "1", "--precision", precision];
        let (right, _) = trained(&machine, "cpu", &extra);
        let (losses, counts) = trained(&machine, "cuda", &extra);
        check_losses(&losses, &right, tolerance, precision);
        // Of two layers in three steps.
        for kernel in ["product_gelu_aux_bias", "product_dgelu_bgrad"] {
            assert_eq!(count(&counts, kernel), 6, "{precision}: {counts:?}");
        }
        assert!(count(&counts, "product_bias") >= 3, "{precision}: {counts:?}");
        // Sums of biases' gradients that products take: of halves others are read by casts before the product that could take them.
        let sums = count(&counts, "product_bgrada") + count(&counts, "product_dgelu_bgrad");
        assert!(sums >= if precision == "f32" { 9 } else { 6 }, "{precision}: {counts:?}");
    }
}

/// Gradients of weights are added to what the microbatches before have summed by the products that make them: four of each layer, and that
/// of the head.
#[test]
fn products_add_up_over_microbatches() {
    let Some(machine) = Machine::new() else { return };
    for (precision, tolerance) in [&PRECISIONS[..], &[("f16", 5e-3)]].concat() {
        let extra = ["--mesh", "1", "--microbatches", "4", "--precision", precision];
        let (right, _) = trained(&machine, "cpu", &extra);
        let (losses, counts) = trained(&machine, "cuda", &extra);
        check_losses(&losses, &right, tolerance, precision);
        // Gradients of biases and norms, of positions and of looked-up tokens, the loss and the number of its labels: each is added for
        // each later microbatch of three steps.
        let sums = 2 * 4 + 5 * 2 + 2 + 2;
        assert_eq!(count(&counts, "rectangle"), 3 * 3 * sums, "{precision}: {counts:?}");
    }
}

/// A value that is gathered before a chain may begin, such as the bias of a sharded layer, does not keep the chain from being its product's
/// end.
#[test]
fn gathered_biases_are_the_ends_of_products() {
    let Some(machine) = Machine::new() else { return };
    let clusters: [&[&str]; 2] = [&[], &["--cluster", "dgx-h100"]];
    for cluster in clusters {
        let extra = [&["--mesh", "2", "--strategy", "zero3"], cluster].concat();
        let (reached, counts) = machine.counted("mlp", &extra);
        near("mlp", &extra, &reached, Reference::load("mlp").tolerance);
        // Of two ranks: three layers, of which two have a ReLU, and the sum beside a gradient.
        let steps = 2 * reached.len();
        let kinds = [("product_relu_bias", 2), ("product_bias", 1), ("product_bgradb", 1)];
        for (kernel, each) in kinds {
            assert_eq!(count(&counts, kernel), each * steps, "{cluster:?}: {counts:?}");
        }
    }
}

/// A library that refuses some of what it is asked for.
struct Refusing {
    variables: &'static [(&'static str, &'static str)],
    /// Kernels that are executed then, and those that are not: by their names, or how they begin.
    executed: &'static [&'static str],
    never: &'static [&'static str],
    /// Part of what is said on standard error.
    said: &'static str,
}

const REFUSING: [Refusing; 5] = [
    Refusing {
        // Then products and chains are launched one by one: the chains' kernels are the better ones for ends.
        variables: &[("GPU_DOUBLE_UNSUPPORTED", "epilogues")],
        executed: &["product", "chain_add_gelu_tanh"],
        never: &[
            "product_gelu",
            "product_bias",
            "product_bgrad",
            "product_dgelu",
            "product_tiles",
            "product_end",
            "product_sums",
        ],
        said: "",
    },
    Refusing {
        variables: &[("GPU_DOUBLE_FAILING", "epilogues")],
        executed: &["product", "product_end", "product_sums"],
        never: &["product_gelu", "product_bias", "product_bgrad", "product_dgelu", "product_tiles"],
        said: "CUBLAS_STATUS_NOT_SUPPORTED; it is made by algorithm 1 of 2 of cuBLASLt, with a kernel",
    },
    Refusing {
        variables: &[("GPU_DOUBLE_FAILING", "first")],
        executed: &["product", "product_gelu_aux_bias"],
        never: &["product_end", "product_sums", "product_tiles"],
        said: "CUBLAS_STATUS_NOT_SUPPORTED; it is made by algorithm 2 of 2 of cuBLASLt\n",
    },
    Refusing {
        variables: &[("GPU_DOUBLE_UNSUPPORTED", "all"), ("GRAPHC_PRODUCTS", "1")],
        executed: &["product_tiles", "product_sums"],
        never: &["product", "product_gelu", "product_end"],
        said: "is made by a kernel of graphc's own",
    },
    Refusing {
        variables: &[("GPU_DOUBLE_FAILING", "all")],
        executed: &["product_tiles", "product_sums"],
        never: &["product", "product_gelu", "product_end"],
        said: "CUBLAS_STATUS_NOT_SUPPORTED; it is made by a kernel of graphc's own",
    },
];

impl Refusing {
    fn check(&self, machine: &Machine, extra: &[&str], (right, tolerance): (&[f64], f64)) {
        let run = || {
            let (mut command, metrics) = training(machine, "cuda", extra);
            command.envs(self.variables.iter().copied());
            let (counts, stderr) = machine.counts_and_errors(command);
            (std::fs::read(metrics).expect("metrics"), counts, stderr)
        };
        let what = format!("{:?} {extra:?}", self.variables);
        let (metrics, counts, stderr) = run();
        check_losses(&losses(&metrics), right, tolerance, &what);
        for kernel in self.executed {
            assert!(count(&counts, kernel) > 0, "{what}: {counts:?}");
        }
        for kernel in self.never {
            let found = counts.keys().find(|name| match *kernel {
                "product" => *name == "product",
                other => name.starts_with(other),
            });
            assert_eq!(found, None, "{what}: {counts:?}");
        }
        assert!(stderr.contains(self.said), "{what}: {stderr}");
        assert!(repeats(&stderr).is_empty(), "{what}: {stderr}");
        assert!(run().0 == metrics, "{what}: two runs differ");
    }
}

/// Lines that are there twice.
fn repeats(text: &str) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    text.lines().filter(|line| !seen.insert(*line)).collect()
}

/// A product that the library does not end, or does not make, has the values of the processor all the same, and the same bits each time.
#[test]
fn what_the_library_refuses_is_made_in_another_way() {
    let Some(machine) = Machine::new() else { return };
    for (precision, tolerance) in PRECISIONS {
        let extra = ["--mesh", "1", "--precision", precision];
        let (right, _) = trained(&machine, "cpu", &extra);
        for refusing in &REFUSING {
            refusing.check(&machine, &extra, (&right, tolerance));
        }
    }
}

/// Plans run where there is no cuBLASLt at all, too, and there is one message about it.
#[test]
fn without_the_library_products_are_made_by_own_kernels() {
    let Some(machine) = Machine::new() else { return };
    machine.remove("libcublasLt");
    let missing = Refusing {
        variables: &[],
        executed: &["product_tiles"],
        never: &["product", "product_gelu", "product_end"],
        said: "made by kernels of graphc's own",
    };
    let extra = ["--mesh", "2"];
    let (right, _) = trained(&machine, "cpu", &extra);
    missing.check(&machine, &extra, (&right, 1e-5));
}

/// Returns the lines that say how products are made, sorted.
fn ways(stderr: &str) -> Vec<&str> {
    let mut ways: Vec<&str> = stderr.lines().filter(|line| line.contains(" is made ")).collect();
    ways.sort_unstable();
    ways
}

/// The fastest of several algorithms is taken, also by later processes, for whom another might be the fastest: ranks and processes have
/// the same bits.
#[test]
fn the_fastest_algorithm_is_taken_and_kept() {
    let Some(machine) = Machine::new() else { return };
    let cache = machine.file("choices");
    let run = |fastest: &str, tune: &str, cache: &str, mesh: &str| {
        let (mut command, metrics) = training(&machine, "cuda", &["--mesh", mesh]);
        command.env("GPU_DOUBLE_ALGORITHMS", "4").env("GPU_DOUBLE_FASTEST", fastest);
        command.env("GRAPHC_TUNE", tune).env("GRAPHC_CACHE", cache).env("GRAPHC_PRODUCTS", "1");
        let (_, stderr) = machine.counts_and_errors(command);
        (std::fs::read(metrics).expect("metrics"), stderr)
    };
    let (first, stderr) = run("2", "1", &cache, "1");
    let of_first = ways(&stderr);
    assert!(of_first.len() > 5 && stderr.contains("algorithms of cuBLASLt take"), "{stderr}");
    for way in &of_first {
        assert!(way.ends_with("is made by algorithm 3 of 4 of cuBLASLt"), "{way}");
    }
    let (second, again) = run("0", "1", &cache, "1");
    assert!(second == first, "a later process has other bits");
    assert_eq!(ways(&again), of_first);
    assert!(!again.contains("algorithms of cuBLASLt take"), "{again}");
    // What is kept and cannot be read is chosen anew, once.
    for entry in std::fs::read_dir(&cache).expect("a folder").flatten() {
        if entry.file_name().to_string_lossy().contains("-product-") {
            std::fs::write(entry.path(), "99").expect("writable");
        }
    }
    for (fastest, timed) in [("1", true), ("3", false)] {
        let (_, stderr) = run(fastest, "1", &cache, "1");
        assert!(stderr.contains("algorithm 2 of 4") && !stderr.contains("algorithm 3 of 4"));
        assert_eq!(stderr.contains("algorithms of cuBLASLt take"), timed, "{stderr}");
    }
    // Where nothing is timed the first is taken.
    let (untimed, stderr) = run("3", "0", &cache, "1");
    assert!(ways(&stderr).iter().all(|way| way.contains("algorithm 1 of 4")), "{stderr}");
    assert!(untimed != first, "other algorithms have the same bits");
    // Ranks of a process choose together, also where nothing can be kept.
    let nowhere = machine.file("gpt2.gir/none");
    let (metrics, stderr) = run("3", "1", &nowhere, "2");
    assert!(ways(&stderr).iter().all(|way| way.contains("algorithm 4 of 4")), "{stderr}");
    assert!(run("3", "1", &nowhere, "2").0 == metrics, "two runs differ");
}

/// If the library takes longer for a product with its end than for the product alone and a kernel for the end, the latter is chosen, and
/// the choice is kept.
#[test]
fn an_end_that_is_slow_in_the_library_is_a_kernel() {
    let Some(machine) = Machine::new() else { return };
    let cache = machine.file("slow ends");
    let extra = ["--mesh", "1"];
    let (right, _) = trained(&machine, "cpu", &extra);
    let run = |slow: Option<&str>| {
        let (mut command, metrics) = training(&machine, "cuda", &extra);
        command.envs(slow.map(|slow| ("GPU_DOUBLE_SLOW", slow))).env("GRAPHC_PRODUCTS", "1");
        command.env("GRAPHC_TUNE", "1").env("GRAPHC_CACHE", &cache);
        let (counts, stderr) = machine.counts_and_errors(command);
        (std::fs::read(metrics).expect("metrics"), counts, stderr)
    };
    let (metrics, counts, stderr) = run(Some("epilogues"));
    check_losses(&losses(&metrics), &right, 1e-5, "slow ends");
    assert!(
        stderr.contains("of cuBLASLt, with a kernel for what stands behind it take"),
        "{stderr}"
    );
    let ended = |way: &&&str| way.contains(", with GELU");
    let made = ways(&stderr);
    assert!(made.iter().filter(ended).count() > 0, "{stderr}");
    for way in made.iter().filter(ended) {
        assert!(way.ends_with("with a kernel for what stands behind it"), "{way}");
    }
    assert!(count(&counts, "product_end") > 0, "{counts:?}");
    let (again, others, _) = run(None);
    assert!(again == metrics && count(&others, "product_end") > 0, "{others:?}");
    assert_eq!(count(&others, "product_gelu_aux_bias"), 0, "nothing is timed again");
}

/// An algorithm that writes the result over a summand alone is not taken for a product with one, wherever the plan has the result.
#[test]
fn where_a_sum_lies_changes_no_algorithm() {
    let Some(machine) = Machine::new() else { return };
    let (mut command, metrics) = training(&machine, "cuda", &["--mesh", "1"]);
    command.env("GPU_DOUBLE_IN_PLACE", "1").env("GRAPHC_PRODUCTS", "1");
    let (_, stderr) = machine.counts_and_errors(command);
    let (right, _) = trained(&machine, "cpu", &["--mesh", "1"]);
    check_losses(&losses(&std::fs::read(metrics).expect("metrics")), &right, 1e-5, "in place");
    let made = ways(&stderr);
    assert!(made.iter().any(|way| way.contains("with a summand")), "{stderr}");
    for way in made {
        let count = if way.contains("with a summand") { 1 } else { 2 };
        assert!(way.contains(&format!("algorithm 1 of {count} ")), "{way}");
    }
    assert!(!stderr.contains("refuses"), "{stderr}");
}
