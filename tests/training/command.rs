//! Training as practice has it: schedules, clipping, groups, optimizers and losses make of a small network what
//! torch.optim makes of it (`tests/refs/training/record.py`), on every mesh, and twice the same bits; metrics count exactly.

use crate::support::reference;
use graphc::ir::learning_rate::LrSchedule;
use graphc::prelude::*;
use serde_json::Value;

const STEPS: u64 = 50;
const BATCH: usize = 12;
const BATCHES: usize = 4;

/// Returns the same numbers as the script.
fn numbers(count: usize, seed: i64, scale: f64) -> Vec<f64> {
    let number = |i: i64| (i * i * 31 + i * 7919 + seed * 104_729) % 2001 - 1000;
    (0..count as i64).map(|i| number(i) as f64 * scale / 1024.0).collect()
}

pub(crate) fn tensor(shape: &[usize], seed: i64, scale: f64) -> HostTensor {
    let data = numbers(shape.iter().product(), seed, scale);
    HostTensor::from_f64(DType::F32, shape, &data).expect("a tensor")
}

/// The index of the greatest of the first three features; some are ignored.
fn labels() -> Vec<i64> {
    let x = numbers(BATCH * BATCHES * 4, 1, 1.0);
    let mut labels: Vec<i64> = x
        .chunks(4)
        .map(|row| (0..3).max_by(|&a, &b| row[a].total_cmp(&row[b])).expect("three") as i64)
        .collect();
    labels.iter_mut().skip(3).step_by(7).for_each(|label| *label = -100);
    labels
}

const SHAPES: [(&str, &[usize]); 4] =
    [("a.weight", &[4, 8]), ("a.bias", &[8]), ("b.weight", &[8, 3]), ("b.bias", &[3])];

fn network() -> Graph {
    let g = GraphBuilder::new("network");
    let [a, b, c, d] =
        SHAPES.map(|(name, shape)| g.variable(name, DType::F32, shape, Init::Weights));
    let h = (g.input("x", DType::F32, [BATCH, 4]).matmul(&a) + b).tanh();
    g.output("y", &(h.matmul(&c) + d));
    g.finish().expect("a graph")
}

fn weights() -> BTreeMap<String, HostTensor> {
    let of = |(seed, (name, shape)): (usize, &(&str, &[usize]))| {
        (name.to_string(), tensor(shape, seed as i64 + 3, 0.5))
    };
    SHAPES.iter().enumerate().map(of).collect()
}

/// The rows of a step.
fn feeds(step: u64, loss: Loss) -> BTreeMap<String, HostTensor> {
    let first = step as usize % BATCHES * BATCH;
    let rows = |width: usize, seed: i64, scale: f64| {
        let all = numbers(BATCH * BATCHES * width, seed, scale);
        all[first * width..(first + BATCH) * width].to_vec()
    };
    let floats = |width: usize, data: &[f64]| {
        HostTensor::from_f64(DType::F32, [BATCH, width], data).expect("a tensor")
    };
    let target = match loss {
        Loss::Bce => rows(3, 2, 2.0).iter().map(|t| t / 4.0 + 0.5).collect(),
        _ => rows(3, 2, 2.0),
    };
    let other = match loss.has_labels() {
        true => {
            let labels = &labels()[first..first + BATCH];
            ("labels".into(), HostTensor::from_i64([BATCH], labels).expect("a tensor"))
        }
        false => ("target".into(), floats(3, &target)),
    };
    BTreeMap::from([("x".into(), floats(4, &rows(4, 1, 1.0))), other])
}

/// A recorded case.
struct Case {
    options: CompileOptions,
    record: Value,
}

fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(reference("training").join("ref.json")).expect("ref.json");
    let records: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    records.into_iter().map(Case::new).collect()
}

impl Case {
    /// The options as plans write them, over the defaults.
    fn new(record: Value) -> Self {
        let mut all = serde_json::to_value(CompileOptions::default()).expect("JSON");
        for (name, value) in record["options"].as_object().expect("options") {
            all[name] = value.clone();
        }
        Self { options: serde_json::from_value(all).expect("options of a plan"), record }
    }

    fn list(&self, of: &str) -> Vec<f64> {
        let list = self.record[of].as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter().map(|number| number.as_f64().expect("a number")).collect()
    }
}

/// The results of a training: losses, norms of gradients, weights.
#[derive(Debug, PartialEq)]
struct Trained {
    losses: Vec<f64>,
    norms: Vec<f64>,
    weights: Vec<Vec<f64>>,
}

fn train(options: &CompileOptions, steps: u64) -> Trained {
    let cluster = preset("cpu").expect("a preset");
    let plan = compile(network(), options, &cluster, None).expect("a plan").plan;
    let text = graphc::plan::write_plan(&plan);
    let read = graphc::plan::read_plan(&text).expect("its own text");
    assert_eq!(*plan, read, "a plan is its text");
    let mut session =
        Session::new(&plan, &weights(), SessionOptions::default()).expect("a session");
    let loss = options.loss.expect("a loss");
    let mut trained = Trained { losses: Vec::new(), norms: Vec::new(), weights: Vec::new() };
    for step in 0..steps {
        let outputs = session.step(feeds(step, loss)).expect("a step").wait().expect("outputs");
        trained.losses.extend(outputs["loss"].to_f64());
        trained.norms.extend(outputs.get("grad_norm").map(HostTensor::to_f64).unwrap_or_default());
    }
    for (name, _) in SHAPES {
        trained.weights.push(session.variable(name).expect("a variable").to_f64());
    }
    trained
}

fn near(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let close = (found - expected).abs() <= tolerance * (1.0 + expected.abs());
        assert!(close, "{what} {at}: {found} instead of {expected}");
    }
}

#[test]
fn fifty_steps_are_those_of_torch_optim() {
    for case in cases() {
        let what = case.record["options"].to_string();
        let found = train(&case.options, STEPS);
        near(&found.losses, &case.list("losses"), 1e-6, &format!("{what}: loss"));
        near(&found.norms, &case.list("norms"), 1e-6, &format!("{what}: norm"));
        for ((name, _), found) in SHAPES.iter().zip(&found.weights) {
            let expected: Vec<f64> =
                serde_json::from_value(case.record["weights"][name].clone()).expect("numbers");
            near(found, &expected, 1e-6, &format!("{what}: {name}"));
        }
    }
}

#[test]
fn schedules_are_those_of_torch() {
    let mut compared = 0;
    for case in cases().iter().filter(|case| !case.options.lr_schedule.is_constant()) {
        let rate = |step| case.options.learning_rate(step).expect("it trains");
        let rates: Vec<f64> = (0..STEPS).map(rate).collect();
        near(&rates, &case.list("rates"), 1e-14, &case.options.lr_schedule.to_string());
        compared += 1;
    }
    assert!(compared > 12, "{compared}");
}

/// Meshes with their strategies, stages and microbatches.
fn configurations() -> Vec<CompileOptions> {
    let of = |mesh: &[usize], strategy, stages, microbatches| CompileOptions {
        mesh: mesh.to_vec(),
        strategy,
        stages,
        microbatches,
        ..CompileOptions::default()
    };
    use Strategy::{Auto, Data, Megatron, Zero1, Zero2, Zero3};
    vec![
        of(&[2], Auto, 1, 1),
        of(&[3], Auto, 1, 1),
        of(&[2, 2], Auto, 1, 1),
        of(&[2], Data, 1, 2),
        of(&[3], Data, 1, 1),
        of(&[2, 2], Data, 1, 1),
        of(&[3], Zero1, 1, 1),
        of(&[2], Zero2, 1, 3),
        of(&[2, 2], Zero2, 1, 1),
        of(&[2], Zero3, 1, 1),
        of(&[3], Zero3, 1, 2),
        of(&[2, 2], Zero3, 1, 1),
        of(&[2], Megatron, 1, 1),
        of(&[2], Auto, 2, 2),
        of(&[2, 2], Zero3, 2, 2),
    ]
}

#[test]
fn every_mesh_trains_alike_and_twice_the_same() {
    const STEPS: u64 = 12;
    let all = cases();
    let with = |name: &str| {
        let of = |case: &&Case| case.record["options"]["optimizer"]["name"] == name;
        all.iter().filter(of).collect::<Vec<_>>()
    };
    let has = |case: &&Case, option: &str| !case.record["options"][option].is_null();
    let chosen = [
        with("lamb").into_iter().find(|case| has(case, "clip_norm")),
        with("lamb").into_iter().find(|case| has(case, "groups")),
        with("rmsprop").into_iter().next_back(),
        with("muon").into_iter().next(),
        with("muon").into_iter().find(|case| has(case, "clip_norm")),
        with("composed").into_iter().find(|case| has(case, "groups")),
        with("composed").into_iter().find(|case| has(case, "maximize")),
        with("composed").into_iter().rfind(|case| has(case, "groups")),
        with("sgd").into_iter().find(|case| has(case, "clip_norm") && has(case, "clip_value")),
        with("adamw").into_iter().find(|case| has(case, "lr_schedule")),
        with("sgd").into_iter().find(|case| has(case, "label_smoothing")),
    ];
    for case in chosen.map(|case| case.expect("it is recorded")) {
        let what = case.record["options"].to_string();
        let one = train(&case.options, STEPS);
        assert_eq!(one, train(&case.options, STEPS), "{what}: two runs differ");
        for on in configurations() {
            let CompileOptions { mesh, strategy, stages, microbatches, .. } = on;
            let place = format!("{what} on {mesh:?}, {strategy:?}, {stages} stages");
            let options =
                CompileOptions { mesh, strategy, stages, microbatches, ..case.options.clone() };
            let found = train(&options, STEPS);
            near(&found.losses, &one.losses, 3e-6, &format!("{place}: loss"));
            near(&found.norms, &one.norms, 3e-6, &format!("{place}: norm"));
            for (found, one) in found.weights.iter().zip(&one.weights) {
                near(found, one, 3e-6, &format!("{place}: weights"));
            }
        }
    }
}

#[test]
fn a_resumed_session_goes_on_in_the_schedule() {
    let lr_schedule: LrSchedule = "warmup:3 step:4,0.5".parse().expect("a schedule");
    let options = CompileOptions {
        loss: Some(Loss::Mse),
        optimizer: Some(Optimizer::Sgd {
            lr: 0.1,
            momentum: 0.0,
            nesterov: false,
            weight_decay: 0.0,
        }),
        lr_schedule,
        ..CompileOptions::default()
    };
    let whole = train(&options, 9);
    let plan = compile(network(), &options, &preset("cpu").expect("a preset"), None);
    let plan = plan.expect("a plan").plan;
    let half = train(&options, 5);
    let weights = SHAPES.iter().zip(&half.weights).map(|((name, shape), data)| {
        let tensor = HostTensor::from_f64(DType::F32, *shape, data).expect("a tensor");
        (name.to_string(), tensor)
    });
    let session_options = SessionOptions { first_step: 5, ..SessionOptions::default() };
    let mut session = Session::new(&plan, &weights.collect(), session_options).expect("a session");
    for step in 5..9 {
        session.step(feeds(step, Loss::Mse)).expect("a step").wait().expect("outputs");
    }
    for ((name, _), expected) in SHAPES.iter().zip(&whole.weights) {
        assert_eq!(session.variable(name).expect("a variable").to_f64(), *expected, "{name}");
    }
}

/// The weights after four steps on these ranks; `given` is called before each is begun.
fn given_rates(
    options: &CompileOptions,
    mesh: &[usize],
    given: &dyn Fn(&mut Session, u64),
) -> Vec<Vec<f64>> {
    let options = CompileOptions { mesh: mesh.to_vec(), ..options.clone() };
    let plan = compile(network(), &options, &preset("cpu").expect("a preset"), None);
    let plan = plan.expect("a plan").plan;
    let mut session =
        Session::new(&plan, &weights(), SessionOptions::default()).expect("a session");
    let begin = |step| {
        given(&mut session, step);
        session.step(feeds(step, Loss::Mse)).expect("a step")
    };
    // All are under way before the first is waited for.
    let handles: Vec<_> = (0..4).map(begin).collect();
    handles.into_iter().for_each(|handle| drop(handle.wait().expect("outputs")));
    SHAPES.map(|(name, _)| session.variable(name).expect("a variable").to_f64()).to_vec()
}

#[test]
fn a_rate_that_is_given_trains_as_one_that_is_planned() {
    let sgd = |lr| Optimizer::Sgd { lr, momentum: 0.9, nesterov: true, weight_decay: 0.01 };
    let optimizers: [fn(f64) -> Optimizer; 6] = [
        sgd,
        Optimizer::adamw,
        Optimizer::lamb,
        Optimizer::rmsprop,
        Optimizer::muon,
        Optimizer::nadam,
    ];
    let lr_schedule: LrSchedule = "warmup:2 cosine:5".parse().expect("a schedule");
    for (number, optimizer) in optimizers.into_iter().enumerate() {
        let half = ParameterGroup::of("b.*", 0.5);
        let groups = vec![ParameterGroup { weight_decay: Some(0.25), ..half }];
        let options = |lr, lr_schedule| CompileOptions {
            loss: Some(Loss::Mse),
            optimizer: Some(optimizer(lr)),
            groups: groups.clone(),
            lr_schedule,
            ..CompileOptions::default()
        };
        let planned = options(0.125, lr_schedule.clone());
        let (constant, schedule) = (options(0.5, LrSchedule::default()), lr_schedule.clone());
        let rate = move |step| 0.125 * schedule.factor(step);
        for mesh in [&[1][..], &[2]] {
            let expected = given_rates(&planned, mesh, &|_, _| ());
            let by_number = given_rates(&constant, mesh, &|session, step| {
                session.set_learning_rate(rate(step)).expect("a rate");
                assert_eq!(session.learning_rate(), Some(rate(step)));
            });
            assert_eq!(by_number, expected, "optimizer {number} on {mesh:?}");
            let by_function = given_rates(&constant, mesh, &|session, step| match step {
                0 => session.set_schedule(rate.clone()).expect("it trains"),
                _ => assert_eq!(session.learning_rate(), Some(rate(step))),
            });
            assert_eq!(by_function, expected, "optimizer {number} on {mesh:?}");
        }
        let back = given_rates(&planned, &[1], &|session, _| {
            session.set_learning_rate(9.0).expect("a rate");
            session.follow_planned_rate();
        });
        assert_eq!(back, given_rates(&planned, &[1], &|_, _| ()), "optimizer {number}");
    }
}

#[test]
fn a_rate_that_cannot_be_is_refused() {
    let plan = |options: &CompileOptions| {
        compile(network(), options, &preset("cpu").expect("a preset"), None).expect("a plan").plan
    };
    let session = |optimizer| {
        let options =
            CompileOptions { loss: Some(Loss::Mse), optimizer, ..CompileOptions::default() };
        Session::new(&plan(&options), &weights(), SessionOptions::default()).expect("a session")
    };
    let mut trains = session(Some(Optimizer::sgd(0.1)));
    for rate in [-1.0, f64::NAN, f64::INFINITY] {
        let error = trains.set_learning_rate(rate).expect_err("no rate").to_string();
        assert!(error.contains(&format!("{rate} is no rate")), "{error}");
    }
    trains.set_schedule(|step| if step == 0 { 0.1 } else { f64::NAN }).expect("a function");
    trains.step(feeds(0, Loss::Mse)).expect("a rate").wait().expect("a step");
    let error = trains.step(feeds(1, Loss::Mse)).expect_err("no rate").to_string();
    assert!(error.contains("NaN is no rate"), "{error}");
    trains.follow_planned_rate();
    trains.step(feeds(1, Loss::Mse)).expect("it goes on").wait().expect("a step");
    let error = session(None).set_learning_rate(0.1).expect_err("it evaluates").to_string();
    assert!(error.contains("the plan has no optimizer"), "{error}");
    let error = session(Some(Optimizer::sgd(0.0))).set_schedule(|_| 0.1).expect_err("of 0");
    assert!(error.to_string().contains("a learning rate of 0"), "{error}");
}

/// Low-rank adaptation learns a change of the weight: with the change added to the weight the model computes the same.
#[test]
fn an_adapted_weight_is_the_weight_and_its_change() {
    let options = |mesh: &[usize]| CompileOptions {
        mesh: mesh.to_vec(),
        loss: Some(Loss::Mse),
        optimizer: Some(Optimizer::adam(0.05)),
        ..CompileOptions::default()
    };
    let session = |graph, mesh: &[usize]| {
        let plan = compile(graph, &options(mesh), &preset("cpu").expect("a preset"), None);
        let plan = plan.expect("a plan").plan;
        Session::new(&plan, &weights(), SessionOptions::default()).expect("a session")
    };
    let loss = |session: &mut Session, step| {
        let outputs =
            session.step(feeds(step, Loss::Mse)).expect("a step").wait().expect("outputs");
        outputs["loss"].to_f64()[0]
    };
    let adapted = || graphc::lora::adapt(&network(), &["*.weight"], 2, 4.0).expect("it has them");
    let mut one = session(adapted(), &[1]);
    let losses: Vec<f64> = (0..4).map(|step| loss(&mut one, step)).collect();
    assert_eq!(losses[0], loss(&mut session(network(), &[1]), 0), "it begins as the model");
    let mut two = session(adapted(), &[2]);
    near(&(0..4).map(|step| loss(&mut two, step)).collect::<Vec<_>>(), &losses, 1e-6, "on 2 ranks");
    let mut merged = session(network(), &[1]);
    for (name, shape) in SHAPES {
        let mut value = one.variable(name).expect("a variable").to_f64();
        assert_eq!(value, weights()[name].to_f64(), "{name} is frozen");
        let [inputs, outputs] = *shape else { continue };
        let mut read =
            |part| one.variable(&format!("{name}.{part}")).expect("it is trained").to_f64();
        let (a, b) = (read("lora_a"), read("lora_b"));
        assert!(b.iter().any(|&b| b != 0.0), "{name} learns");
        for (at, value) in value.iter_mut().enumerate() {
            let (input, output) = (at / outputs, at % outputs);
            let sum: f64 = (0..2).map(|r| a[r * inputs + input] * b[output * 2 + r]).sum();
            *value += 2.0 * sum;
        }
        let value = HostTensor::from_f64(DType::F32, shape, &value).expect("a tensor");
        merged.set_variable(name, &value).expect("a variable");
    }
    near(&[loss(&mut merged, 4)], &[loss(&mut one, 4)], 1e-6, "merged");
}

#[test]
fn what_cannot_be_adapted_is_said() {
    let refused = |patterns: &[&str], rank| {
        graphc::lora::adapt(&network(), patterns, rank, 1.0).expect_err("refused").to_string()
    };
    let error = refused(&["a.wight"], 2);
    assert!(error.contains("like `a.wight` (did you mean `a.weight`?)"), "{error}");
    let error = refused(&["a.bias"], 2);
    assert!(error.contains("`a.bias` (f32[8]) cannot be adapted: `binary` reads it"), "{error}");
    assert!(refused(&["a.weight"], 0).contains("at least 1"));
}

/// A plan that evaluates: a loss and metrics, and neither gradients nor updates.
fn evaluation(mesh: &[usize], strategy: Strategy, microbatches: usize) -> CompileOptions {
    CompileOptions {
        mesh: mesh.to_vec(),
        strategy,
        microbatches,
        loss: Some(Loss::CrossEntropy),
        metrics: vec![Metric::Top1, Metric::Top5],
        ..CompileOptions::default()
    }
}

/// Scores of seven classes as the only layer makes them of one feature each.
fn classifier(rows: usize) -> Graph {
    let g = GraphBuilder::new("classifier");
    let scale = g.variable("scale", DType::F32, [7], Init::Fill(1.0.into()));
    g.output("scores", &(g.input("x", DType::F32, [rows, 7]) * scale));
    g.finish().expect("a graph")
}

/// (top1, top5, samples) and the loss, summed over the samples, of all rows in batches; the last one is filled up.
fn evaluate(options: &CompileOptions, x: &[f64], labels: &[i64], batch: usize) -> ([f64; 3], f64) {
    let cluster = preset("cpu").expect("a preset");
    let plan = compile(classifier(batch), options, &cluster, None).expect("a plan").plan;
    assert!(!plan.training, "it evaluates");
    let mut session =
        Session::new(&plan, &BTreeMap::new(), SessionOptions::default()).expect("a session");
    let (mut counts, mut sum) = ([0.0; 3], 0.0);
    for (x, labels) in x.chunks(batch * 7).zip(labels.chunks(batch)) {
        let (mut x, mut labels) = (x.to_vec(), labels.to_vec());
        x.resize(batch * 7, 0.0);
        labels.resize(batch, -100);
        let feeds = BTreeMap::from([
            ("x".into(), HostTensor::from_f64(DType::F32, [batch, 7], &x).expect("a tensor")),
            ("labels".into(), HostTensor::from_i64([batch], &labels).expect("a tensor")),
        ]);
        let outputs = session.step(feeds).expect("a step").wait().expect("outputs");
        let number = |name: &str| outputs[name].to_f64()[0];
        let found = ["top1", "top5", "samples"].map(number);
        for (count, found) in counts.iter_mut().zip(found) {
            *count += found;
        }
        sum += number("loss") * found[2];
    }
    (counts, sum)
}

#[test]
fn metrics_count_exactly_over_a_ragged_last_batch() {
    const ROWS: usize = 101;
    // Few values, so that many scores are equal.
    let x: Vec<f64> = numbers(ROWS * 7, 5, 1.0).iter().map(|x| (x * 4.0).round() / 4.0).collect();
    let labels: Vec<i64> =
        (0..ROWS as i64).map(|row| if row % 10 == 4 { -100 } else { row * row % 7 }).collect();
    let mut expected = [0.0; 3];
    let mut loss = 0.0;
    for (row, &label) in x.chunks(7).zip(&labels).filter(|&(_, &label)| label >= 0) {
        let label = label as usize;
        let before =
            |&class: &usize| row[class] > row[label] || row[class] == row[label] && class < label;
        let rank = (0..7).filter(before).count();
        let hits = [rank < 1, rank < 5, true].map(|hit| f64::from(u8::from(hit)));
        expected.iter_mut().zip(hits).for_each(|(sum, hit)| *sum += hit);
        loss += row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[label];
    }
    assert!(expected[0] > 5.0 && expected[1] > expected[0] && expected[2] > expected[1]);
    for (mesh, strategy, microbatches) in [
        (&[1][..], Strategy::Auto, 1),
        (&[2], Strategy::Data, 2),
        (&[3], Strategy::Auto, 1),
        (&[2, 2], Strategy::Zero3, 1),
        (&[2, 2], Strategy::Megatron, 1),
    ] {
        let options = evaluation(mesh, strategy, microbatches);
        let (counts, sum) = evaluate(&options, &x, &labels, 12);
        assert_eq!(counts, expected, "{mesh:?} {strategy:?}");
        assert!((sum - loss).abs() < 1e-4 * loss, "{mesh:?} {strategy:?}: {sum} is not {loss}");
    }
}

#[test]
fn classes_that_are_split_are_ranked_all_the_same() {
    let x = numbers(24 * 7, 5, 1.0);
    let labels: Vec<i64> = (0..24).map(|row| row * row % 7).collect();
    let one = evaluate(&evaluation(&[1], Strategy::Auto, 1), &x, &labels, 12).0;
    let sbp = "S(1)".parse().expect("an SBP");
    let pins = vec![Pin { pattern: "x".into(), sbp }];
    let split = CompileOptions { pins, ..evaluation(&[2], Strategy::Auto, 1) };
    assert_eq!(evaluate(&split, &x, &labels, 12).0, one);
}

#[test]
fn what_is_no_number_is_no_hit() {
    let x = vec![f64::NAN; 12 * 7];
    let (counts, _) = evaluate(&evaluation(&[1], Strategy::Auto, 1), &x, &[3; 12], 12);
    assert_eq!(counts, [0.0, 0.0, 12.0]);
}
