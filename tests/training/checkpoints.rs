//! A training that was interrupted, in whatever way, ends as one that was not.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Reference, Scratch, fails, graphc, losses, reference, succeeds};
use graphc::prelude::*;
use graphc::runtime::data::load_safetensors;

impl Scratch {
    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).expect("it was written")
    }

    fn names(&self, name: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(name)).expect("the folder");
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<String> =
            entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

/// `graphc train` of a reference, `--steps` left to `extra`.
fn train(name: &str, extra: &[&str]) -> Vec<String> {
    let model = reference(name);
    let path = |file: &str| model.join(file).display().to_string();
    let mut args =
        vec!["train".into(), path("model.onnx"), "--data".into(), path("data.safetensors")];
    let own = Reference::load(name).args;
    let steps = own.iter().position(|arg| arg == "--steps");
    let without = |place: &usize| steps.is_none_or(|steps| *place != steps && *place != steps + 1);
    args.extend((0..own.len()).filter(without).map(|place| own[place].clone()));
    args.extend(extra.iter().map(ToString::to_string));
    args
}

/// The losses of a reference without interruption, on one rank.
fn uninterrupted(folder: &Scratch, name: &str, mesh: &str, steps: &str) -> Vec<f64> {
    let metrics = folder.path("uninterrupted.jsonl");
    succeeds(train(name, &["--steps", steps, "--mesh", mesh, "--metrics", &metrics]));
    losses(&folder.read("uninterrupted.jsonl"))
}

#[test]
fn on_the_same_mesh_a_resumed_training_is_the_same_bit_for_bit() {
    for (name, mesh) in [
        ("gpt", ["--mesh", "2"].as_slice()),
        ("mlp", &["--mesh", "2x2", "--stages", "2", "--microbatches", "2"]),
    ] {
        let folder = Scratch::new();
        let [whole, metrics, save, weights, final_weights] =
            ["whole.jsonl", "losses.jsonl", "save", "w", "final"].map(|file| folder.path(file));
        let with = |extra: &[&str]| train(name, &[mesh, extra].concat());
        succeeds(with(&["--steps", "9", "--metrics", &whole, "--weights", &weights]));
        succeeds(with(&["--steps", "4", "--metrics", &metrics, "--save", &save]));
        assert_eq!(folder.names("save"), ["step-00000004"]);
        let resume = ["--steps", "9", "--metrics", &metrics, "--resume", &save, "--save", &save];
        let every = ["--save-every", "2", "--keep", "3", "--weights", &final_weights];
        succeeds(with(&[&resume[..], &every].concat()));
        assert_eq!(folder.names("save"), ["step-00000006", "step-00000008", "step-00000009"]);
        assert!(folder.read("whole.jsonl") == folder.read("losses.jsonl"), "{name}: losses");
        assert!(folder.read("w") == folder.read("final"), "{name}: weights");
    }
}

/// A network with dropout, whose random numbers go by the step, trained by Adam, whose correction does too.
fn dropout_plan(mesh: usize) -> VerifiedPlan {
    let g = GraphBuilder::new("dropout");
    let x = g.input("x", DType::F32, [8, 6]);
    let w = g.variable("w", DType::F32, [6, 5], Init::Normal { mean: 0.0.into(), std: 0.5.into() });
    let y = x.matmul(&w).dropout(0.4);
    g.output("loss", &(&y * &y).mean(&[0, 1], false));
    let adam = AdamOptions { lr: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };
    let optimizer = Some(Optimizer::Adam(adam));
    let options = CompileOptions { mesh: vec![mesh], optimizer, ..CompileOptions::default() };
    let graph = g.finish().expect("a graph");
    let compiled = compile(graph, &options, &preset("cpu").expect("a preset"), None);
    compiled.expect("a plan").plan
}

fn session(plan: &VerifiedPlan, first_step: u64, seed: u64) -> Session {
    let options = SessionOptions { first_step, seed, ..SessionOptions::default() };
    Session::new(plan, &BTreeMap::new(), options).expect("a session")
}

fn take(session: &mut Session, steps: usize) -> Vec<f32> {
    let numbers: Vec<f32> = (0..48).map(|i| (i % 7) as f32 - 3.0).collect();
    let x = HostTensor::from_f32([8, 6], &numbers).expect("48 elements");
    let mut step = || {
        let handle = session.step(BTreeMap::from([("x".to_owned(), x.clone())]));
        let outputs = handle.expect("fed").wait().expect("it works");
        outputs["loss"].to_f32().expect("f32")[0]
    };
    (0..steps).map(|_| step()).collect()
}

#[test]
fn dropout_and_adam_go_by_the_step() {
    let folder = Scratch::new();
    let plan = dropout_plan(2);
    let expected = take(&mut session(&plan, 0, 11), 8);
    let mut first = session(&plan, 0, 11);
    let mut reached = take(&mut first, 3);
    let mut checkpoints = Checkpoints::create(folder.0.path(), 2).expect("writable");
    let path = first.save_checkpoint(&mut checkpoints).expect("saved");
    assert_eq!(path, checkpoints.path(3));
    let checkpoint = Checkpoint::open(folder.0.path()).expect("complete");
    assert_eq!((checkpoint.step(), checkpoint.seed(), checkpoint.model()), (3, 11, "dropout"));
    let mut second = session(&plan, 3, 11);
    second.load_checkpoint(&checkpoint).expect("of this plan");
    reached.extend(take(&mut second, 5));
    assert_eq!(reached, expected, "bit for bit");
    // From the same weights with other random numbers: the test would see a difference.
    let mut elsewhere = session(&plan, 3, 11);
    assert_ne!(take(&mut elsewhere, 5), expected[3..]);
    for (first_step, seed) in [(0, 11), (3, 0)] {
        let error = session(&plan, first_step, seed).load_checkpoint(&checkpoint);
        let error = error.expect_err("another position").to_string();
        assert!(error.contains("after 3 steps with seed 11"), "{error}");
    }
    let error = first.save_checkpoint(&mut checkpoints).expect_err("it is there").to_string();
    assert!(error.contains("step-00000003"), "{error}");
    let mut wider = session(&dropout_plan(3), 3, 11);
    wider.load_checkpoint(&checkpoint).expect("any mesh");
    for (reached, expected) in take(&mut wider, 5).iter().zip(&expected[3..]) {
        assert!((reached - expected).abs() <= 1e-5 * expected, "{reached} instead of {expected}");
    }
}

#[test]
fn the_steps_after_a_checkpoint_are_not_told_twice() {
    let folder = Scratch::new();
    let [metrics, save] = ["losses.jsonl", "save"].map(|file| folder.path(file));
    let to = ["--metrics", &metrics, "--save", &save, "--save-every", "3"];
    succeeds(train("mlp_mse", &[&to[..], &["--steps", "5"]].concat()));
    let before = folder.read("losses.jsonl");
    let third = folder.path("save/step-00000003");
    let resume = ["--metrics", &metrics, "--steps", "5", "--resume", &third];
    succeeds(train("mlp_mse", &resume));
    assert!(before == folder.read("losses.jsonl"));
    let from_the_beginning = ["--metrics", &metrics, "--steps", "2"];
    succeeds(train("mlp_mse", &from_the_beginning));
    assert_eq!(losses(&folder.read("losses.jsonl")).len(), 2, "the file is made anew");
}

#[test]
fn a_training_moves_from_mesh_to_mesh() {
    for name in ["mlp", "gpt"] {
        let folder = Scratch::new();
        let expected = uninterrupted(&folder, name, "4", "10");
        let [metrics, save] = ["losses.jsonl", "save"].map(|file| folder.path(file));
        let legs: [(&str, &[&str]); 5] = [
            ("2", &["--mesh", "4", "--strategy", "zero3"]),
            ("4", &["--mesh", "2x2", "--stages", "2", "--microbatches", "2"]),
            ("6", &["--mesh", "1"]),
            ("8", &["--mesh", "3"]),
            ("10", &["--mesh", "2", "--strategy", "data"]),
        ];
        for (steps, mesh) in legs {
            let to = ["--steps", steps, "--metrics", &metrics, "--save", &save, "--resume", &save];
            succeeds(train(name, &[&to[..], mesh].concat()));
        }
        let reached = losses(&folder.read("losses.jsonl"));
        assert_eq!(reached.len(), expected.len());
        for (step, (reached, expected)) in reached.iter().zip(&expected).enumerate() {
            let error = (reached - expected).abs() / expected.abs();
            assert!(error <= 1e-5, "{name}, step {step}: {reached} instead of {expected}");
        }
    }
}

#[test]
fn states_of_the_optimizer_are_kept() {
    // Without its momentum or moments the resumed training would take other steps.
    let folder = Scratch::new();
    let [save, parameters, all] = ["save", "p", "a"].map(|file| folder.path(file));
    succeeds(train("gpt", &["--steps", "2", "--save", &save]));
    succeeds(["export", &save, "-o", &parameters]);
    succeeds(["export", &save, "-o", &all, "--all"]);
    let load = |path: &str| load_safetensors(Path::new(path)).expect("tensors");
    let (parameters, all) = (load(&parameters), load(&all));
    let trained = all.len() - parameters.len();
    assert!(trained > 0 && trained.is_multiple_of(2), "Adam has two moments a parameter");
    assert!(parameters.iter().all(|(name, tensor)| all[name] == *tensor));
    let inside = folder.path("save/step-00000002/w.safetensors");
    assert!(fails(["export", &save, "-o", &inside]).contains("lies in the checkpoint"));
}

/// Returns the number of losses in a metrics file.
fn written(metrics: &str) -> usize {
    std::fs::read(metrics).unwrap_or_default().iter().filter(|&&byte| byte == b'\n').count()
}

/// A child that is killed where it is dropped.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn killed_at_any_point_it_resumes_from_a_complete_checkpoint() {
    const STEPS: &str = "2000";
    let folder = Scratch::new();
    let expected = uninterrupted(&folder, "mlp", "2", STEPS);
    let [metrics, save] = ["losses.jsonl", "save"].map(|file| folder.path(file));
    let to = ["--metrics", &metrics, "--save", &save, "--resume", &save, "--save-every", "5"];
    let args = train("mlp", &[&to[..], &["--steps", STEPS, "--mesh", "2"]].concat());
    let mut random = 0x2545_F491_4F6C_DD1D_u64;
    let mut interrupted = 0;
    let end = Instant::now() + Duration::from_secs(1000);
    while interrupted < 30 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let mut command = Command::new(env!("CARGO_BIN_EXE_graphc"));
        let command = command.args(&args).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = Child(command.spawn().expect("it starts"));
        // Some moments lie before the first step; the others are drawn in steps beyond those that were reached before.
        let target = (!random.is_multiple_of(4)).then(|| written(&metrics) + random as usize % 120);
        while target.is_some_and(|target| written(&metrics) < target)
            && child.0.try_wait().expect("a child").is_none()
        {
            assert!(Instant::now() < end, "training hangs");
            std::thread::sleep(Duration::from_micros(200));
        }
        let ended = child.0.try_wait().expect("a child");
        assert!(ended.is_none_or(|status| status.success()), "it failed by itself: {ended:?}");
        child.0.kill().expect("it is there or done");
        child.0.wait().expect("it has ended");
        interrupted += usize::from(ended.is_none());
        if ended.is_some() {
            assert_eq!(losses(&folder.read("losses.jsonl")), expected);
            std::fs::remove_dir_all(&save).expect("another training begins");
        }
        // What is visible is complete: every file is there and has its checksum.
        let visible = std::fs::read_dir(&save).into_iter().flatten();
        for entry in visible.map(|entry| entry.expect("an entry").path()) {
            if !entry.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.')) {
                let output = folder.path("exported");
                let entry = entry.display().to_string();
                succeeds(["export", &entry, "-o", &output, "--all"]);
            }
        }
    }
    succeeds(&args);
    assert_eq!(losses(&folder.read("losses.jsonl")), expected);
    assert!(folder.names("save").iter().all(|name| name.starts_with("step-")), "no leftovers");
}

/// Runs the CLI where no file may become longer than so many blocks of 512 bytes: what a full disk does.
fn with_file_limit(blocks: u32, args: &[String]) -> Output {
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg(env!("CARGO_BIN_EXE_graphc")).args(args);
    command.output().expect("sh")
}

#[test]
fn a_full_disk_keeps_the_checkpoint_before() {
    let folder = Scratch::new();
    let [metrics, save] = ["losses.jsonl", "save"].map(|file| folder.path(file));
    let to = ["--metrics", &metrics, "--save", &save, "--resume", &save];
    let steps = |steps| train("gpt", &[&to[..], &["--mesh", "2", "--steps", steps]].concat());
    succeeds(steps("2"));
    let output = with_file_limit(20, &steps("4"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    for part in ["cannot write", &save, "rank-0000", "too large", "are as they were"] {
        assert!(stderr.contains(part), "`{part}` is not in: {stderr}");
    }
    assert_eq!(folder.names("save"), ["step-00000002"], "nothing half-written");
    succeeds(steps("4"));
    let expected = uninterrupted(&folder, "gpt", "2", "4");
    assert_eq!(losses(&folder.read("losses.jsonl")), expected);
}

#[test]
fn a_directory_that_cannot_be_written_is_named_before_training() {
    let folder = Scratch::new();
    let file = folder.path("file");
    std::fs::write(&file, "in the way").expect("writable");
    let metrics = folder.path("losses.jsonl");
    let below = format!("{file}/save");
    for path in [&file, &below] {
        let error = fails(train("mlp", &["--steps", "2", "--save", path, "--metrics", &metrics]));
        assert!(error.contains("no checkpoint can be saved to") && error.contains(path), "{error}");
    }
    assert!(!Path::new(&metrics).exists(), "nothing was trained");
}

#[test]
fn damaged_files_are_found() {
    let folder = Scratch::new();
    let save = folder.path("save");
    succeeds(train("mlp", &["--steps", "1", "--save", &save]));
    let resume = || fails(train("mlp", &["--steps", "3", "--resume", &save]));
    let file = PathBuf::from(folder.path("save/step-00000001/rank-00000.safetensors"));
    let whole = std::fs::read(&file).expect("the file");
    let mut flipped = whole.clone();
    flipped[whole.len() - 1] ^= 1;
    for (content, reason) in [(&flipped, "SHA-256"), (&whole[..100].to_vec(), "it has 100 bytes")] {
        std::fs::write(&file, content).expect("writable");
        let error = resume();
        for part in ["rank-00000.safetensors is damaged", reason, "another checkpoint"] {
            assert!(error.contains(part), "`{part}` is not in: {error}");
        }
    }
    std::fs::remove_file(&file).expect("it is there");
    assert!(resume().contains("cannot read"));
    std::fs::write(folder.path("save/step-00000001/manifest.json"), "{}").expect("writable");
    assert!(resume().contains("manifest.json is no manifest of a checkpoint"));
}

#[test]
fn a_checkpoint_of_something_else_is_refused() {
    let folder = Scratch::new();
    let save = folder.path("save");
    succeeds(train("mlp", &["--steps", "2", "--seed", "3", "--save", &save]));
    let refused = |name: &str, extra: &[&str], parts: &[&str]| {
        let error = fails(train(name, &[&["--resume", &save], extra].concat()));
        assert!(parts.iter().all(|part| error.contains(part)), "{parts:?} are not in: {error}");
    };
    refused("gpt", &["--steps", "3"], &["lacks variable", "another model or optimizer", &save]);
    refused("mlp", &["--steps", "3", "--seed", "4"], &["with seed 3", "leave --seed out"]);
    refused("mlp", &["--steps", "1"], &["after 2 steps", "--steps 1"]);
    refused("mlp_mse", &["--steps", "3"], &["variable"]);
    let adam: Vec<String> = train("mlp", &["--steps", "3", "--resume", &save]);
    let adam = adam.iter().map(|arg| if arg == "sgd" { "adam" } else { arg });
    let adam: Vec<&str> = adam.filter(|arg| !["--momentum", "0.9"].contains(arg)).collect();
    assert!(fails(adam).contains("another model or optimizer"));
    // The checkpoint's seed is the training's.
    succeeds(train("mlp", &["--steps", "3", "--resume", &save, "--seed", "3"]));
}

#[test]
fn where_there_is_nothing_to_resume_it_says_so() {
    let folder = Scratch::new();
    let [absent, empty, save] = ["absent", "empty", "save"].map(|file| folder.path(file));
    std::fs::create_dir(&empty).expect("a folder");
    let resume = |path: &str| fails(train("mlp", &["--steps", "2", "--resume", path]));
    assert!(resume(&absent).contains("no such directory"));
    assert!(resume(&empty).contains("holds no complete checkpoint"));
    // The first run of a loop of restarts begins; one that is done says so and succeeds.
    let loop_args = train("mlp", &["--steps", "2", "--resume", &save, "--save", &save]);
    for (expected, lines) in [("begins at step 0", 1), ("no step is made", 0)] {
        let output = graphc(&loop_args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && stderr.contains(expected), "{stderr}");
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert_eq!(stdout.lines().count(), lines, "{stdout}");
    }
    // A new training does not mix its checkpoints with those of another.
    let error = fails(train("mlp", &["--steps", "4", "--save", &save]));
    assert!(error.contains("step-00000002 is another run's"), "{error}");
    let every = graphc(train("mlp", &["--steps", "4", "--save-every", "2"]));
    assert_eq!(every.status.code(), Some(2), "--save-every needs --save");
}

#[test]
fn a_training_that_goes_on_otherwise_says_how() {
    let folder = Scratch::new();
    let save = folder.path("save");
    let (model, data) =
        (reference("mlp").join("model.onnx"), reference("mlp").join("data.safetensors"));
    let run = |steps: &str, extra: &[&str]| {
        let (model, data) = (model.display().to_string(), data.display().to_string());
        let args = ["train", &model, "--data", &data, "--steps", steps, "--loss", "cross_entropy"];
        let output = graphc([&args[..], &["--optimizer", "sgd", "--save", &save], extra].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        said
    };
    let before = ["--batch", "16", "--lr", "0.1", "--momentum", "0.9"];
    run("1", &before);
    let resume = ["--resume", &save];
    assert_eq!(run("2", &[&before[..], &resume].concat()), "", "nothing has changed");
    let said =
        run("3", &[&["--batch", "8", "--lr", "0.05", "--momentum", "0.5"][..], &resume].concat());
    for part in [
        "warning: since ",
        "step-00000002 was saved",
        "lr was 0.1, and is 0.05 now",
        "momentum was 0.9, and is 0.5 now",
        "was f32[16, 20], and is f32[8, 20] now",
    ] {
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
}

#[test]
fn other_weights_losses_and_parts_of_a_batch_are_said_too() {
    let folder = Scratch::new();
    let save = folder.path("save");
    let path = |file: &str| reference("mlp").join(file).display().to_string();
    let (model, data) = (path("model.onnx"), path("data.safetensors"));
    let weights = folder.path("weights");
    let run = |steps: &str, extra: &[&str]| {
        let own = ["train", &model, "--data", &data, "--steps", steps, "--batch", "16"];
        let sgd = ["--lr", "0.1", "--save", &save, "--weights", &weights];
        let output = graphc([&own[..], &sgd, extra].concat());
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (done, said) = run("1", &["--loss", "cross_entropy", "--optimizer", "sgd"]);
    assert!(done, "{said}");
    let first = load_safetensors(weights.as_ref()).expect("weights").into_keys().next();
    let first = first.expect("a weight");
    let other = ["--resume", &save, "--optimizer", "sgd", "--loss", "nll", "--microbatches", "2"];
    let (done, said) = run("2", &[&other[..], &["--freeze", &first]].concat());
    assert!(done, "{said}");
    for part in [
        "loss was cross_entropy, and is nll now",
        "microbatches was 1, and is 2 now",
        &format!("`{first}` was trained, and is not now"),
    ] {
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
    let (done, said) = run("3", &["--resume", &save, "--optimizer", "adam", "--loss", "nll"]);
    assert!(!done && said.contains("optimizer was sgd, and is adam now"), "{said}");
    assert!(said.contains("`state.exp_avg"), "{said}");
}

/// A checkpoint that lacks a weight is none for inference: no step changes a weight there, so it would stay what it was made as.
#[test]
fn a_checkpoint_without_a_weight_is_none_for_inference() {
    let scratch = Scratch::new();
    let graph = |weights: &[&str]| {
        let g = GraphBuilder::new("products");
        let init = || Init::Normal { mean: 0.0.into(), std: 0.1.into() };
        let product =
            |x: Tensor, name: &&str| x.matmul(&g.variable(name, DType::F32, [4, 4], init()));
        g.output("y", &weights.iter().fold(g.input("x", DType::F32, [2, 4]), product));
        g.finish().expect("a graph")
    };
    let session = |graph: Graph, options: CompileOptions| {
        let plan = compile(graph, &options, &preset("cpu").expect("a preset"), None);
        let plan = plan.expect("a plan").plan;
        Session::new(&plan, &BTreeMap::new(), SessionOptions::default()).expect("it fits")
    };
    let training = CompileOptions {
        loss: Some(Loss::Sum),
        optimizer: Some(Optimizer::sgd(0.1)),
        ..CompileOptions::default()
    };
    let mut checkpoints = Checkpoints::create(scratch.0.path(), 1).expect("writable");
    let path = session(graph(&["first"]), training).save_checkpoint(&mut checkpoints);
    let checkpoint = Checkpoint::open(&path.expect("saved")).expect("complete");
    let mut both = session(graph(&["first", "second"]), CompileOptions::default());
    let error = both.load_checkpoint(&checkpoint).expect_err("it lacks a weight").to_string();
    assert!(error.contains("`second`"), "{error}");
}
