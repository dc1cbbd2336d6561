//! Data parallelism with an optimizer: the steps are those of one plan for all samples, whatever the number of ranks; its
//! checkpoints are those of sessions.

use std::path::Path;

use crate::support::succeeds;
use graphc::dist::{self, DataParallelError};
use graphc::ir::text;
use graphc::nn::{LayerNorm, Linear, Module};
use graphc::plan::ParameterGroup;
use graphc::prelude::*;
use graphc::runtime::data::{load_safetensors, save_safetensors};

type Tensors = BTreeMap<String, HostTensor>;

/// Samples of a step, over all ranks.
const BATCH: usize = 12;

/// Scores of three classes.
fn network(batch: usize) -> Graph {
    let g = GraphBuilder::new("perceptron");
    let x = g.input("x", DType::F32, [batch, 6]);
    let y = LayerNorm::new(&g, "norm", 8).forward(&Linear::new(&g, "fc1", 6, 8).forward(&x)).tanh();
    g.output("scores", &Linear::new(&g, "fc2", 8, 3).forward(&y));
    g.finish().expect("a graph")
}

/// Returns the options of a training.
fn training(optimizer: Optimizer) -> CompileOptions {
    CompileOptions {
        loss: Some(Loss::CrossEntropy),
        optimizer: Some(optimizer),
        lr_schedule: "warmup:2 cosine:9".parse().expect("a schedule"),
        clip_norm: Some(0.5),
        clip_value: Some(0.2),
        groups: vec![ParameterGroup::no_decay("*bias"), ParameterGroup::of("norm*", 0.5)],
        ema: Some(0.75),
        ..CompileOptions::default()
    }
}

fn sgd() -> Optimizer {
    Optimizer::Sgd { lr: 0.2, momentum: 0.9, nesterov: true, weight_decay: 0.01 }
}

/// Rows of a step's batch.
fn feeds(step: u64, rows: std::ops::Range<usize>) -> Tensors {
    let number =
        |row: usize, at: usize| ((step as usize * 31 + row * 7 + at * 13) % 17) as f32 / 8.0 - 1.0;
    let x: Vec<f32> = rows.clone().flat_map(|row| (0..6).map(move |at| number(row, at))).collect();
    let labels: Vec<i64> = rows.clone().map(|row| ((row + step as usize) % 3) as i64).collect();
    BTreeMap::from([
        ("x".to_owned(), HostTensor::from_f32([rows.len(), 6], &x).expect("as many")),
        ("labels".to_owned(), HostTensor::from_i64([rows.len()], &labels).expect("as many")),
    ])
}

fn feeds_of(group: &Group, step: u64) -> Tensors {
    let own = BATCH / group.world_size();
    feeds(step, group.rank() * own..(group.rank() + 1) * own)
}

fn plan(options: &CompileOptions) -> VerifiedPlan {
    compile(network(BATCH), options, &preset("cpu").expect("a preset"), None)
        .expect("compiles")
        .plan
}

/// A session at a step, from a checkpoint if there is one.
fn session(options: &CompileOptions, checkpoint: Option<&Checkpoint>) -> Session {
    let first_step = checkpoint.map_or(0, Checkpoint::step);
    let own = SessionOptions { first_step, seed: 5, ..SessionOptions::default() };
    let mut session = Session::new(&plan(options), &BTreeMap::new(), own).expect("begins");
    if let Some(checkpoint) = checkpoint {
        session.load_checkpoint(checkpoint).expect("of the same graph and optimizer");
        assert_eq!(session.changes_since(checkpoint), Vec::<String>::new());
    }
    session
}

fn step(session: &mut Session, at: u64) -> Tensors {
    session.step(feeds(at, 0..BATCH)).and_then(|step| step.wait()).expect("computes")
}

/// Returns all variables, states among them.
fn all(session: &mut Session) -> Tensors {
    let names: Vec<String> = session.variables().into_keys().collect();
    names.into_iter().map(|name| (name.clone(), session.variable(&name).expect("there"))).collect()
}

fn ddp(
    group: &Group,
    training: &CompileOptions,
    checkpoint: Option<&Checkpoint>,
) -> Result<DataParallel, DataParallelError> {
    let first_step = checkpoint.map_or(0, Checkpoint::step);
    let session = SessionOptions { first_step, seed: 5, ..SessionOptions::default() };
    let options = DataParallelOptions { training: training.clone(), bucket_bytes: 200, session };
    let graph = network(BATCH / group.world_size());
    let mut ddp = DataParallel::new(group, graph, &BTreeMap::new(), &options)?;
    if let Some(checkpoint) = checkpoint {
        ddp.load_checkpoint(checkpoint)?;
        assert_eq!(ddp.changes_since(checkpoint), Vec::<String>::new());
    }
    Ok(ddp)
}

/// Trains from a step to another; the mean losses of all ranks, and the variables of these names.
fn trained(
    group: &Group,
    ddp: &mut DataParallel,
    steps: std::ops::Range<u64>,
    names: &[String],
) -> Result<(Vec<f64>, Tensors), DataParallelError> {
    let mut losses = Vec::new();
    for at in steps {
        let mut loss = ddp.train_step(feeds_of(group, at))?["loss"].clone();
        group.all_reduce(&mut loss, ReduceOp::Avg)?;
        losses.push(loss.to_f64()[0]);
    }
    let value = |name: &String| Ok((name.clone(), ddp.variable(name)?));
    Ok((losses, names.iter().map(value).collect::<Result<_, DataParallelError>>()?))
}

fn close(found: &Tensors, expected: &Tensors, what: &str) {
    for (name, expected) in expected {
        for (found, expected) in found[name].to_f64().iter().zip(expected.to_f64()) {
            let error = (found - expected).abs();
            assert!(
                error <= 4e-6 * (1.0 + expected.abs()),
                "{what}, {name}: {found} is not {expected}"
            );
        }
    }
}

#[test]
fn every_optimizer_steps_as_in_one_plan() {
    use graphc::plan::{AdamOptions, RmspropOptions};
    let adam = AdamOptions { lr: 0.02, beta1: 0.9, beta2: 0.99, eps: 1e-6, weight_decay: 0.1 };
    let rmsprop = RmspropOptions {
        lr: 0.01,
        alpha: 0.9,
        eps: 1e-4,
        weight_decay: 0.01,
        momentum: 0.5,
        centered: true,
    };
    let optimizers = [
        sgd(),
        Optimizer::Adam(adam),
        Optimizer::AdamW(adam),
        Optimizer::Lamb(adam),
        Optimizer::Rmsprop(rmsprop),
        Optimizer::muon(0.02),
        Optimizer::nadam(0.02),
    ];
    for training in optimizers.map(training) {
        let mut session = session(&training, None);
        let losses: Vec<f64> =
            (0..6).map(|at| step(&mut session, at)["loss"].to_f64()[0]).collect();
        let variables = all(&mut session);
        let names: Vec<String> = variables.keys().cloned().collect();
        for ranks in 1..=3 {
            let what = format!("{:?} on {ranks}", training.optimizer);
            let run = || {
                let rank = |group: Group| {
                    trained(&group, &mut ddp(&group, &training, None)?, 0..6, &names)
                };
                dist::spawn(ranks, rank).expect("no rank fails")
            };
            let found = run();
            assert!(found.iter().all(|rank| *rank == found[0]), "{what}: ranks stay alike");
            for (found, expected) in found[0].0.iter().zip(&losses) {
                assert!((found - expected).abs() < 1e-6, "{what}: {found} is not {expected}");
            }
            close(&found[0].1, &variables, &what);
            if ranks == 3 {
                assert!(run() == found, "{what}: a second run gives the same bits");
            }
        }
    }
}

#[test]
fn checkpoints_go_from_and_to_plans_on_other_meshes() {
    let training = training(sgd());
    let folder = tempfile::tempdir().expect("a folder");
    let mut whole = session(&training, None);
    (0..6).for_each(|at| drop(step(&mut whole, at)));
    let expected = all(&mut whole);
    let names: Vec<String> = expected.keys().cloned().collect();
    // Two ranks save after three steps.
    let by_ranks = folder.path().join("ranks");
    let saved = dist::spawn(2, |group| {
        let mut ddp = ddp(&group, &training, None)?;
        trained(&group, &mut ddp, 0..3, &[])?;
        assert_eq!(ddp.finished(), 3);
        let mut to = Checkpoints::create(&by_ranks, 1)?;
        ddp.save_checkpoint(&mut to)
    });
    let paths = saved.expect("no rank fails");
    assert!(paths.iter().all(|path| path.ends_with("step-00000003")), "{paths:?}");
    let checkpoint = Checkpoint::open(&by_ranks).expect("one");
    for options in [
        training.clone(),
        CompileOptions { mesh: vec![3], strategy: Strategy::Zero3, ..training.clone() },
        CompileOptions { mesh: vec![2], stages: 2, microbatches: 2, ..training.clone() },
    ] {
        let mut session = session(&options, Some(&checkpoint));
        (3..6).for_each(|at| drop(step(&mut session, at)));
        close(&all(&mut session), &expected, &format!("{:?} {:?}", options.mesh, options.strategy));
    }
    // And back: what a plan on two ranks saves three ranks go on from.
    let zero = CompileOptions { mesh: vec![2], strategy: Strategy::Zero1, ..training.clone() };
    let mut session = session(&zero, None);
    (0..3).for_each(|at| drop(step(&mut session, at)));
    let by_plan = folder.path().join("plan");
    session
        .save_checkpoint(&mut Checkpoints::create(&by_plan, 1).expect("a folder"))
        .expect("written");
    let from_plan = Checkpoint::open(&by_plan).expect("one");
    for from in [&checkpoint, &from_plan] {
        let resumed = dist::spawn(3, |group| {
            let mut ddp = ddp(&group, &training, Some(from))?;
            trained(&group, &mut ddp, 3..6, &names)
        });
        resumed
            .expect("no rank fails")
            .iter()
            .for_each(|(_, found)| close(found, &expected, "back"));
    }
}

#[test]
fn a_checkpoint_of_another_optimizer_or_step_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let saved = dist::spawn(1, |group| {
        let mut ddp = ddp(&group, &training(sgd()), None)?;
        trained(&group, &mut ddp, 0..2, &[])?;
        ddp.save_checkpoint(&mut Checkpoints::create(folder.path(), 1)?)
    });
    saved.expect("written");
    let checkpoint = Checkpoint::open(folder.path()).expect("one");
    let plain = Optimizer::Sgd { lr: 0.2, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let refused =
        dist::spawn(2, |group| ddp(&group, &training(plain), Some(&checkpoint)).map(drop));
    let error = refused.expect_err("it has states that plain SGD lacks").to_string();
    assert!(error.contains("has variable `state.momentum.fc1.bias`"), "{error}");
    let early = dist::spawn(1, |group| {
        let mut ddp = ddp(&group, &training(sgd()), None)?;
        ddp.load_checkpoint(&checkpoint)
    });
    let error = early.expect_err("it begins at step 0").to_string();
    assert!(error.contains("saved after 2 steps") && error.contains("begins at step 0"), "{error}");
    let faster = Optimizer::Sgd { lr: 0.4, momentum: 0.9, nesterov: true, weight_decay: 0.01 };
    let changes = dist::spawn(3, |group| {
        Ok::<_, DataParallelError>(ddp(&group, &training(faster), None)?.changes_since(&checkpoint))
    });
    let lr = ["lr was 0.2, and is 0.4 now"];
    changes.expect("no rank fails").iter().for_each(|changes| assert_eq!(changes[..], lr));
}

#[test]
fn the_command_line_reads_its_checkpoints() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let [saved, exported, averaged, model, data] =
        ["saved", "weights.safetensors", "averages.safetensors", "model.gir", "data.safetensors"]
            .map(path);
    let held = dist::spawn(2, |group| {
        let mut ddp = ddp(&group, &training(sgd()), None)?;
        trained(&group, &mut ddp, 0..3, &[])?;
        ddp.save_checkpoint(&mut Checkpoints::create(Path::new(&saved), 1)?)?;
        Ok::<_, DataParallelError>([
            ddp.variable("fc1.weight")?,
            ddp.variable("state.ema.fc1.weight")?,
        ])
    });
    let held = held.expect("no rank fails").swap_remove(0);
    succeeds(["export", &saved, "-o", &exported]);
    succeeds(["export", &saved, "-o", &averaged, "--ema"]);
    let read = |path: &str| load_safetensors(Path::new(path)).expect("weights");
    assert_eq!(read(&exported).len(), 6, "weights alone");
    assert_eq!(
        (&read(&exported)["fc1.weight"], &read(&averaged)["fc1.weight"]),
        (&held[0], &held[1])
    );
    std::fs::write(&model, text::print_graph(&network(BATCH))).expect("writable");
    save_safetensors(Path::new(&data), &feeds(0, 0..BATCH)).expect("writable");
    let eval =
        ["eval", &model, "--weights-from", &saved, "--data", &data, "--loss", "cross_entropy"];
    let scores: serde_json::Value =
        serde_json::from_str(&succeeds([&eval[..], &["--format", "json"]].concat())).expect("JSON");
    let inference = CompileOptions { loss: Some(Loss::CrossEntropy), ..CompileOptions::default() };
    let mut own = Session::new(&plan(&inference), &BTreeMap::new(), SessionOptions::default())
        .expect("begins");
    read(&exported).iter().for_each(|(name, value)| own.set_variable(name, value).expect("there"));
    let expected = step(&mut own, 0)["loss"].to_f64()[0];
    assert!((scores["loss"].as_f64().expect("a loss") - expected).abs() < 1e-6, "{scores}");
}

/// Gradients of several passes may be summed by microbatches, or by hand.
#[test]
fn gradients_of_several_passes_make_one_step() {
    let (whole, parts) = (training(sgd()), CompileOptions { microbatches: 3, ..training(sgd()) });
    let expected = {
        let mut session = session(&whole, None);
        (0..2).for_each(|at| drop(step(&mut session, at)));
        all(&mut session)
    };
    let names: Vec<String> = expected.keys().cloned().collect();
    let found =
        dist::spawn(2, |group| trained(&group, &mut ddp(&group, &parts, None)?, 0..2, &names));
    found
        .expect("no rank fails")
        .iter()
        .for_each(|(_, found)| close(found, &expected, "microbatches"));
    let by_hand = dist::spawn(2, |group| {
        let options = DataParallelOptions {
            training: whole.clone(),
            session: SessionOptions { seed: 5, ..SessionOptions::default() },
            ..DataParallelOptions::default()
        };
        let mut ddp = DataParallel::new(&group, network(3), &BTreeMap::new(), &options)?;
        for at in 0..2 {
            let first = group.rank() * 6;
            let [one, other] = [
                ddp.step(feeds(at, first..first + 3))?.gradients,
                ddp.step(feeds(at, first + 3..first + 6))?.gradients,
            ];
            ddp.apply(mean(&one, &other))?;
        }
        assert_eq!(ddp.finished(), 2, "of four passes");
        trained(&group, &mut ddp, 0..0, &names)
    });
    by_hand
        .expect("no rank fails")
        .iter()
        .for_each(|(_, found)| close(found, &expected, "by hand"));
}

/// The optimizer's steps go by a rate that all ranks give.
#[test]
fn a_rate_that_is_given_is_the_optimizers() {
    let planned = training(sgd());
    let schedule = planned.lr_schedule.clone();
    let optimizer = Optimizer::Sgd { lr: 1.0, momentum: 0.9, nesterov: true, weight_decay: 0.01 };
    let constant = CompileOptions {
        optimizer: Some(optimizer),
        lr_schedule: Default::default(),
        ..planned.clone()
    };
    let names = ["fc1.weight", "norm.weight", "fc2.bias"].map(str::to_owned);
    let runs = dist::spawn(2, |group| {
        let expected = trained(&group, &mut ddp(&group, &planned, None)?, 0..3, &names)?;
        let mut ddp = ddp(&group, &constant, None)?;
        let schedule = schedule.clone();
        ddp.set_schedule(move |step| 0.2 * schedule.factor(step))?;
        let first = trained(&group, &mut ddp, 0..2, &[])?.0;
        assert_eq!(ddp.learning_rate(), planned.learning_rate(2));
        ddp.set_learning_rate(0.2)?;
        let found = trained(&group, &mut ddp, 2..3, &names)?;
        Ok::<_, DataParallelError>((expected, ([first, found.0].concat(), found.1)))
    });
    for (expected, found) in runs.expect("no rank fails") {
        assert_eq!(found, expected);
    }
}

fn mean(one: &Tensors, other: &Tensors) -> Tensors {
    let mean = |(name, one): (&String, &HostTensor)| {
        let sums = one.to_f64().into_iter().zip(other[name].to_f64());
        let means: Vec<f64> = sums.map(|(a, b)| (a + b) / 2.0).collect();
        (name.clone(), HostTensor::from_f64(one.dtype(), one.shape(), &means).expect("as many"))
    };
    one.iter().map(mean).collect()
}

/// A parameter that one rank alone trains is changed on all; one that nobody trains stays, whatever its decay.
#[test]
fn ranks_with_other_graphs_make_the_same_steps() {
    let optimizer = Optimizer::Sgd { lr: 0.5, momentum: 0.9, nesterov: false, weight_decay: 0.5 };
    let folder = tempfile::tempdir().expect("a folder");
    let all = dist::spawn(2, |group| {
        let g = GraphBuilder::new("own");
        let variable =
            |name: &str, value: f64| g.variable(name, DType::F32, [1], Init::Fill(value.into()));
        let (w, on_rank_1, unused) =
            (variable("w", 1.0), variable("on_rank_1", 2.0), variable("unused", 3.0));
        let y = g.input("x", DType::F32, [1]).mul(&w);
        let y = if group.rank() == 1 { y.mul(&on_rank_1) } else { y };
        g.output("loss", &y.sum(&[0], false));
        drop(unused);
        let training = CompileOptions { optimizer: Some(optimizer), ..CompileOptions::default() };
        let options = DataParallelOptions { training, ..DataParallelOptions::default() };
        let graph = g.finish().expect("a graph");
        let mut ddp = DataParallel::new(&group, graph, &BTreeMap::new(), &options)?;
        let x = HostTensor::from_f32([1], &[1.0]).expect("one");
        ddp.train_step(BTreeMap::from([("x".to_owned(), x)]))?;
        ddp.save_checkpoint(&mut Checkpoints::create(folder.path(), 1)?)?;
        let after = ["w", "on_rank_1", "unused", "state.momentum.on_rank_1"];
        let after = after.map(|name| ddp.variable(name).expect("there").to_f64()[0]);
        Ok::<_, DataParallelError>(after)
    });
    for after in all.expect("no rank fails") {
        // Gradients: (1 + 2) / 2 and (0 + 1) / 2, with decay 1.5 + 0.5 and 0.5 + 1.
        assert_eq!(after, [0.0, 1.25, 3.0, 1.5]);
    }
    let saved = Checkpoint::open(folder.path()).expect("one");
    let names: Vec<&String> = saved.variables().keys().collect();
    // No state of what nobody trains.
    assert_eq!(names, ["on_rank_1", "state.momentum.on_rank_1", "state.momentum.w", "unused", "w"]);
}

#[test]
fn weights_go_to_a_session_that_evaluates() {
    let training = training(sgd());
    let inference = CompileOptions { loss: training.loss, ..CompileOptions::default() };
    let losses = dist::spawn(2, |group| {
        let mut ddp = ddp(&group, &training, None)?;
        trained(&group, &mut ddp, 0..2, &[])?;
        let mut tester =
            Session::new(&plan(&inference), &BTreeMap::new(), SessionOptions::default())?;
        ddp.copy_to(&mut tester)?;
        Ok::<_, DataParallelError>(step(&mut tester, 2)["loss"].to_f64()[0])
    });
    let mut session = session(&training, None);
    (0..2).for_each(|at| drop(step(&mut session, at)));
    let expected = step(&mut session, 2)["loss"].to_f64()[0];
    for loss in losses.expect("no rank fails") {
        assert!((loss - expected).abs() < 1e-6, "{loss} is not {expected}");
    }
}

#[test]
fn what_makes_no_sense_is_said() {
    let refused = |ranks: u32, options: &(dyn Fn(usize) -> CompileOptions + Sync)| {
        let rank = |group: Group| {
            let training = options(group.rank());
            let options = DataParallelOptions { training, ..DataParallelOptions::default() };
            let graph = network(BATCH / group.world_size());
            let mut ddp = DataParallel::new(&group, graph, &BTreeMap::new(), &options)?;
            ddp.train_step(feeds_of(&group, 0)).map(drop)
        };
        dist::spawn(ranks, rank).expect_err("refused").to_string()
    };
    let loss = Some(Loss::CrossEntropy);
    let nothing = CompileOptions { loss, ..CompileOptions::default() };
    let error = refused(2, &|_| nothing.clone());
    assert!(error.contains("there is no optimizer to make a step"), "{error}");
    let error = refused(2, &|_| CompileOptions { mesh: vec![2], ..training(sgd()) });
    assert!(error.contains("is [2], but each rank has a plan of its own"), "{error}");
    let error = refused(1, &|_| CompileOptions { precision: Some(DType::F16), ..training(sgd()) });
    assert!(error.contains("computes in f16") && error.contains("bf16"), "{error}");
    let error = refused(1, &|_| CompileOptions { skip_non_finite: true, ..training(sgd()) });
    assert!(error.contains("skip steps whose loss is not finite"), "{error}");
    let lr = |rank: usize| 0.1 * (rank + 1) as f64;
    let other =
        |rank| Optimizer::Sgd { lr: lr(rank), momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let error = refused(2, &|rank| training(other(rank)));
    assert!(error.contains("the optimizer") && error.contains("lr: 0.2"), "{error}");
    let group = ParameterGroup::no_decay("fc3*");
    let error = refused(2, &|_| CompileOptions { groups: vec![group.clone()], ..training(sgd()) });
    assert!(error.contains("no trained variable has a name like `fc3*`"), "{error}");
}

#[test]
fn a_session_of_inference_begins_with_the_weights_of_a_checkpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut trains = session(&training(Optimizer::adamw(1e-2)), None);
    step(&mut trains, 0);
    let mut saved = Checkpoints::create(folder.path(), 1).expect("a folder");
    trains.save_checkpoint(&mut saved).expect("it is saved");
    let checkpoint = Checkpoint::open(folder.path()).expect("it is whole");
    let weights = checkpoint.weights().expect("it is whole");
    assert_eq!(weights, trains.weights().expect("idle"));
    let inference = CompileOptions::default();
    let plan = compile(network(BATCH), &inference, &preset("cpu").expect("a preset"), None);
    let plan = plan.expect("compiles").plan;
    let mut infers = Session::new(&plan, &weights, SessionOptions::default()).expect("they fit");
    let refused = infers.load_checkpoint(&checkpoint).expect_err("a step was made").to_string();
    assert!(refused.contains("Checkpoint::weights"), "{refused}");
    for (name, weight) in &weights {
        assert_eq!(infers.variable(name).expect("there"), *weight, "{name}");
    }
}
