//! Sessions on plans made by hand.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use crate::common::{Builder, by_rows, f32s, layout, tour};
use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::Op;
use graphc_ir::ops::{Binary, BinaryFunction, EmbeddingOp, Init, Reduce, ReduceFunction};
use graphc_ir::random::{RandomStream, key_of};
use graphc_ir::types::DType;
use graphc_plan::{Action, BoxingKind, Plan, Rate};
use graphc_runtime::JobEnd;
use graphc_runtime::{HostTensor, RuntimeError, Session, SessionOptions};

fn tensor(shape: &[usize], first: f32) -> HostTensor {
    let elements = shape.iter().product::<usize>();
    let data: Vec<f32> = (0..elements).map(|i| first + i as f32).collect();
    HostTensor::from_f32(shape, &data).expect("as many as the shape has")
}

fn feeds(pairs: &[(&str, &HostTensor)]) -> BTreeMap<String, HostTensor> {
    pairs.iter().map(|&(name, tensor)| (name.to_owned(), tensor.clone())).collect()
}

fn session(builder: Builder, options: SessionOptions) -> Session {
    Session::new(&builder.verified(), &BTreeMap::new(), options).expect("the plan fits")
}

fn seconds(timeout: u64) -> SessionOptions {
    SessionOptions { timeout: Duration::from_secs(timeout), ..SessionOptions::default() }
}

#[test]
fn a_tour_through_all_layouts_comes_home() {
    use BoxingKind::{AllGather, AllReduce, AllToAll, Mask, ReduceScatter, SendRecv, Slice};
    for shape in [vec![5, 7], vec![200, 301], vec![8, 0, 4], vec![1, 2]] {
        let on = |ranks: &[u32], sbp| f32s(&shape, ranks, sbp);
        let all = [0, 1, 2];
        let builder = tour(
            &[
                on(&all, "B"),
                on(&all, "S(0)"),
                on(&all, "S(1)"),
                on(&all, "B"),
                on(&all, "P"),
                on(&all, "S(1)"),
                on(&[3, 1], "P"),
                on(&[3, 1], "B"),
                on(&[0, 2, 1, 3], "P"),
                on(&[0, 2, 1, 3], "B"),
            ],
            &[
                Slice,
                AllToAll,
                AllGather,
                Mask,
                ReduceScatter,
                SendRecv,
                AllReduce,
                SendRecv,
                AllReduce,
            ],
        );
        let mut session = session(builder, seconds(600));
        for step in 0..3 {
            let x = tensor(&shape, step as f32);
            let outputs = session.step(feeds(&[("x", &x)])).expect("alive").wait().expect("done");
            assert_eq!(outputs["y"], x, "{shape:?}");
        }
        session.shutdown().expect("no rank has failed");
    }
}

/// Two stages: rank 0 sends each microbatch to rank 1, which adds them up.
fn pipeline(microbatches: usize, slots: u32) -> Builder {
    let mut builder = Builder::new(2, microbatches);
    let rows = |rank: u32| by_rows(f32s(&[8, 3], &[rank], "B"));
    let first = builder.tensor(&rows(0), Rate::Microbatch, slots);
    let second = builder.tensor(&rows(1), Rate::Microbatch, slots);
    builder.feed("x", first, Rate::Microbatch);
    builder.channel(first, second, Rate::Microbatch, slots);
    builder.fetch("y", second, Rate::Microbatch);
    let row = f32s(&[3], &[1], "B");
    let part = builder.tensor(&row, Rate::Microbatch, 1);
    let add = Reduce { function: ReduceFunction::Sum, axes: vec![0], keep_dims: false };
    builder.compute(Op::Reduce(add), &[second], part, Rate::Microbatch);
    let sum = builder.tensor(&row, Rate::Step, 1);
    builder.actor("accumulate", Action::Accumulate, Rate::Microbatch, [&[part], &[sum], &[]]);
    builder.fetch("sum", sum, Rate::Step);
    interleave(&mut builder.plan);
    builder
}

/// Every stream: all actors for microbatch 0, then all for 1, ..; step-rate blocks last.
fn interleave(plan: &mut Plan) {
    let programs = plan.programs.iter_mut();
    for stream in programs.flat_map(|program| &mut program.streams) {
        let rate = |item: &graphc_plan::StreamItem| {
            stream.order.iter().filter(|other| other.block == item.block).count() == 1
        };
        let step_rate: Vec<bool> = stream.order.iter().map(rate).collect();
        let mut order: Vec<_> = stream.order.iter().copied().zip(step_rate).collect();
        order.sort_by_key(|(item, step)| (*step, item.microbatch, item.block));
        stream.order = order.into_iter().map(|(item, _)| item).collect();
    }
}

#[test]
fn microbatches_flow_and_add_up() {
    for (microbatches, slots) in [(2, 1), (4, 2), (4, 3)] {
        let mut session = session(pipeline(microbatches, slots), seconds(600));
        let handles: Vec<_> = (0..7)
            .map(|step| {
                let x = tensor(&[8, 3], step as f32);
                session.step(feeds(&[("x", &x)])).expect("alive")
            })
            .collect();
        for (step, handle) in handles.into_iter().enumerate() {
            let outputs = handle.wait().expect("done");
            let x = tensor(&[8, 3], step as f32);
            assert_eq!(outputs["y"], x);
            let data = x.to_f32().expect("f32");
            let sum: Vec<f32> = (0..3).map(|i| data[i..].iter().step_by(3).sum()).collect();
            assert_eq!(outputs["sum"].to_f32().expect("f32"), sum);
        }
    }
}

/// Of two outputs one is asked for in turns, with several steps under way.
#[test]
fn steps_give_the_outputs_that_they_were_begun_for() {
    let mut session = session(pipeline(4, 2), seconds(600));
    let asked: [&[&str]; 6] = [&["sum"], &["sum"], &["sum", "y"], &[], &["y"], &["sum"]];
    let given = Arc::new(Mutex::new(Vec::new()));
    let mut handles = Vec::new();
    for (step, &names) in asked.iter().enumerate() {
        session.fetch_only(names.iter().copied()).expect("outputs of the plan");
        let (x, given) = (tensor(&[8, 3], step as f32), Arc::clone(&given));
        let ready = move |name: &str, output: &HostTensor| {
            given.lock().expect("no panic").push((step, name.to_owned(), output.bytes().len()));
        };
        handles.push(session.step_watched(feeds(&[("x", &x)]), ready).expect("alive"));
    }
    for (step, (handle, &names)) in handles.into_iter().zip(&asked).enumerate() {
        let outputs = handle.wait().expect("done");
        assert_eq!(outputs.keys().collect::<Vec<_>>(), names, "step {step}");
        if let Some(y) = outputs.get("y") {
            assert_eq!(*y, tensor(&[8, 3], step as f32));
        }
    }
    let mut given = given.lock().expect("no panic").clone();
    given.sort();
    let bytes = |name: &str| if name == "y" { 8 * 3 * 4 } else { 3 * 4 };
    let expected = asked.iter().enumerate().flat_map(|(step, names)| {
        names.iter().map(move |&name| (step, name.to_owned(), bytes(name)))
    });
    assert_eq!(given, expected.collect::<Vec<_>>());
    let error = session.fetch_only(["z"]).expect_err("there is none").to_string();
    assert!(error.contains("no output `z`") && error.contains("\"sum\", \"y\""), "{error}");
}

#[test]
fn delays_change_neither_results_nor_high_water_marks() {
    let run = |shuffle_delays: Option<u64>| {
        let options = SessionOptions { shuffle_delays, ..seconds(600) };
        let mut session = session(pipeline(4, 2), options);
        let x = tensor(&[8, 3], 1.0);
        let handles: Vec<_> =
            (0..5).map(|_| session.step(feeds(&[("x", &x)])).expect("alive")).collect();
        let sums = handles.into_iter().map(|h| h.wait().expect("done")["sum"].clone());
        let sums: Vec<HostTensor> = sums.collect();
        let statistics = session.statistics().expect("alive");
        for register in statistics.ranks.iter().flat_map(|rank| &rank.registers) {
            assert!(register.high_water <= u64::from(register.slots), "{register:?}");
        }
        let marks = statistics.ranks.into_iter().map(|rank| rank.registers).collect::<Vec<_>>();
        (sums, marks)
    };
    let calm = run(None);
    assert_eq!(calm.1[1][0].high_water, 1, "rank 1 reads before it receives again");
    for seed in 0..4 {
        assert_eq!(run(Some(seed)), calm, "seed {seed}");
    }
}

#[test]
fn five_hundred_steps_go_without_a_wait() {
    let mut session = session(pipeline(4, 2), seconds(600));
    let x = tensor(&[8, 3], 0.0);
    let mut last = None;
    for _ in 0..500 {
        last = Some(session.step(feeds(&[("x", &x)])).expect("alive"));
    }
    let last = last.expect("500 steps");
    assert_eq!(last.step(), 499);
    assert_eq!(last.wait().expect("done")["y"], x);
    let statistics = session.statistics().expect("alive");
    assert_eq!(statistics.ranks.iter().map(|rank| rank.actions).sum::<u64>(), 500 * (8 + 17));
}

#[test]
fn a_second_stream_communicates_beside_the_first() {
    let mut builder = tour(
        &[f32s(&[6, 4], &[0, 1], "S(0)"), f32s(&[6, 4], &[0, 1], "B")],
        &[BoxingKind::AllGather],
    );
    builder.communicate_apart();
    let mut session = session(builder, seconds(600));
    let handles: Vec<_> = (0..100)
        .map(|step| {
            let x = tensor(&[6, 4], step as f32);
            session.step(feeds(&[("x", &x)])).expect("alive")
        })
        .collect();
    for (step, handle) in handles.into_iter().enumerate() {
        assert_eq!(handle.wait().expect("done")["y"], tensor(&[6, 4], step as f32));
    }
}

/// Ranks 0 to 3 sum a row each, and their sums become one by an all-reduce, by a reduce-scatter and by channels to another
/// mesh. A weight is added.
fn sums_of_rows(dtype: DType, width: usize) -> Builder {
    let all = [0, 1, 2, 3];
    let on = |shape: &[usize], ranks: &[u32], sbp| layout(shape, dtype, ranks, &[ranks.len()], sbp);
    let mut builder = Builder::new(4, 1);
    let x = builder.tensor(&on(&[4, width], &all, "S(0)"), Rate::Step, 1);
    let sums = builder.tensor(&on(&[width], &all, "P"), Rate::Step, 1);
    let w = builder.variable("w", &on(&[width], &all, "B"), Init::Weights);
    builder.feed("x", x, Rate::Step);
    let sum = Reduce { function: ReduceFunction::Sum, axes: vec![0], keep_dims: false };
    builder.compute(Op::Reduce(sum), &[x], sums, Rate::Step);
    let whole = builder.tensor(&on(&[width], &all, "B"), Rate::Step, 1);
    builder.collective(BoxingKind::AllReduce, 0, &[sums], &[whole], Rate::Step);
    let y = builder.tensor(&on(&[width], &all, "B"), Rate::Step, 1);
    let add = Op::Binary(Binary { function: BinaryFunction::Add });
    builder.compute(add, &[whole, w], y, Rate::Step);
    builder.fetch("reduced", y, Rate::Step);
    let parts = builder.tensor(&on(&[width], &all, "S(0)"), Rate::Step, 1);
    builder.collective(BoxingKind::ReduceScatter, 0, &[sums], &[parts], Rate::Step);
    builder.fetch("scattered", parts, Rate::Step);
    let sent = builder.tensor(&on(&[width], &[3, 1], "S(0)"), Rate::Step, 1);
    builder.channel(sums, sent, Rate::Step, 1);
    builder.fetch("sent", sent, Rate::Step);
    builder
}

#[test]
fn sums_over_ranks_of_16_bit_numbers_are_rounded_once() {
    // Rounded after each summand, 1 would be lost three times.
    for (dtype, large, sum) in [(DType::BF16, 256.0, 260.0), (DType::F16, 2048.0, 2052.0)] {
        for width in [3, 20_000] {
            let rows = [large, 1.0, 1.0, 1.0].map(|value| vec![value; width]).concat();
            let x = HostTensor::from_f64(dtype, [4, width], &rows).expect("4 rows");
            let w = HostTensor::from_f64(dtype, [width], &vec![4.0; width]).expect("a row");
            let weights = BTreeMap::from([("w".to_owned(), w)]);
            let plan = sums_of_rows(dtype, width).verified();
            let session = Session::new(&plan, &weights, seconds(60)).expect("the plan fits");
            let mut session = session;
            let step = session.step(feeds(&[("x", &x)])).expect("alive");
            let outputs = step.wait().expect("done");
            for (name, expected) in [("reduced", sum + 4.0), ("scattered", sum), ("sent", sum)] {
                assert_eq!(outputs[name].dtype(), dtype);
                assert!(outputs[name].to_f64() == vec![expected; width], "{dtype} {name} {width}");
            }
        }
    }
}

/// Rank 1 looks up rows that rank 0 does not; both wait for each other in an all-reduce.
fn lookup() -> Builder {
    let mut builder = Builder::new(2, 1);
    let table = builder.variable("table", &f32s(&[4, 2], &[0, 1], "B"), Init::Fill(1.0.into()));
    let rows = builder.tensor(&layout(&[4], DType::I64, &[0, 1], &[2], "S(0)"), Rate::Step, 1);
    let found = builder.tensor(&f32s(&[4, 2], &[0, 1], "S(0)"), Rate::Step, 1);
    let whole = builder.tensor(&f32s(&[4, 2], &[0, 1], "B"), Rate::Step, 1);
    builder.feed("rows", rows, Rate::Step);
    builder.compute(Op::Embedding(EmbeddingOp {}), &[table, rows], found, Rate::Step);
    builder.collective(BoxingKind::AllGather, 0, &[found], &[whole], Rate::Step);
    builder.fetch("y", whole, Rate::Step);
    builder
}

fn rows(data: &[i64]) -> HostTensor {
    HostTensor::from_i64([4], data).expect("4 rows")
}

#[test]
fn a_failure_on_one_rank_ends_the_step_on_all_with_one_error() {
    let mut session = session(lookup(), seconds(600));
    let good = session.step(feeds(&[("rows", &rows(&[0, 1, 2, 3]))])).expect("alive");
    assert_eq!(good.wait().expect("done")["y"].to_f32().expect("f32"), [1.0; 8]);
    let bad = session.step(feeds(&[("rows", &rows(&[0, 1, 2, 9]))])).expect("alive");
    let error = bad.wait().expect_err("row 9 is out of range");
    // A rank that waited for the timeout would fail first, with another error.
    let RuntimeError::Failed(failure) = &error else { panic!("{error}") };
    assert_eq!((failure.rank, failure.step, failure.actor.as_str()), (1, 1, "embedding"));
    assert!(error.to_string().contains("9"), "{error}");
    let later = session.step(feeds(&[("rows", &rows(&[0, 1, 2, 3]))]));
    assert_eq!(later.err(), Some(error.clone()));
    assert_eq!(session.shutdown(), Err(error));
}

/// Wakes a thread that has gone to sleep.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Drives a future on this thread, which sleeps until it is woken.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn steps_are_awaited_by_any_executor_and_asked_without_a_wait() {
    let mut session = session(lookup(), seconds(600));
    let good = feeds(&[("rows", &rows(&[0, 1, 2, 3]))]);
    let handle = session.step(good.clone()).expect("alive");
    while !handle.is_finished() {
        std::thread::yield_now();
    }
    assert_eq!(handle.wait().expect("done")["y"].to_f32().expect("f32"), [1.0; 8]);
    // Steps that are under way while others are awaited, and one whose waker is replaced.
    let mut steps: Vec<_> = (0..5).map(|_| session.step(good.clone()).expect("alive")).collect();
    let mut last = steps.pop().expect("five");
    let _ = std::pin::Pin::new(&mut last).poll(&mut Context::from_waker(Waker::noop()));
    for step in steps.into_iter().chain([last]) {
        assert_eq!(block_on(step).expect("done")["y"].to_f32().expect("f32"), [1.0; 8]);
    }
    let bad = session.step(feeds(&[("rows", &rows(&[0, 1, 2, 9]))])).expect("alive");
    let error = block_on(async { bad.await.map(drop) }).expect_err("row 9 is out of range");
    assert!(matches!(error, RuntimeError::Failed(_)), "{error}");
}

#[test]
fn a_session_can_be_dropped_with_steps_under_way() {
    for _ in 0..20 {
        let options = SessionOptions { shuffle_delays: Some(3), ..seconds(600) };
        let mut session = session(pipeline(4, 2), options);
        let x = tensor(&[8, 3], 0.0);
        let handles: Vec<_> =
            (0..30).map(|_| session.step(feeds(&[("x", &x)])).expect("alive")).collect();
        drop(session);
        for handle in handles {
            match handle.wait() {
                Ok(outputs) => assert_eq!(outputs["y"], x),
                Err(error) => assert_eq!(error, JobEnd::ShutDown.into()),
            }
        }
    }
}

#[test]
fn variables_begin_as_said_on_every_mesh_and_can_be_overwritten() {
    let normal = Init::Normal { mean: 1.0.into(), std: 0.5.into() };
    let stream = RandomStream { seed: 7, key: key_of("w"), step: 0 };
    let expected: Vec<f32> =
        (0..35).map(|i| (1.0 + 0.5 * f64::from(stream.normal(i))) as f32).collect();
    for (ranks, sbp) in [(1, "B"), (2, "S(0)"), (3, "S(1)"), (4, "P"), (2, "B")] {
        let ranks: Vec<u32> = (0..ranks).collect();
        let mut builder = Builder::new(ranks.len(), 1);
        builder.variable("w", &f32s(&[5, 7], &ranks, sbp), normal.clone());
        let mut session = session(builder, SessionOptions { seed: 7, ..seconds(600) });
        let w = session.variable("w").expect("there is one");
        assert_eq!(w.to_f32().expect("f32"), expected, "{sbp}");
        let new = tensor(&[5, 7], 3.0);
        session.set_variable("w", &new).expect("it fits");
        assert_eq!(session.variable("w").expect("there is one"), new, "{sbp}");
        let error = session.set_variable("w", &tensor(&[7, 5], 0.0)).expect_err("it does not");
        assert_eq!(error.to_string(), "variable `w` is f32[5, 7], but its value is f32[7, 5]");
        assert!(session.variable("v").is_err());
    }
}

#[test]
fn weights_come_by_name_and_what_is_missing_is_said() {
    let mut builder = Builder::new(2, 1);
    builder.variable("w", &f32s(&[5, 3], &[0, 1], "S(0)"), Init::Weights);
    let plan = builder.verified();
    let load = |weights: &[(&str, &HostTensor)]| {
        Session::new(&plan, &feeds(weights), SessionOptions::default())
    };
    let w = tensor(&[5, 3], 2.0);
    assert_eq!(load(&[("w", &w)]).expect("it is there").variable("w"), Ok(w.clone()));
    let unknown = load(&[("layer.w", &w), ("w", &w), ("x", &w)]).expect_err("no such variables");
    assert_eq!(
        unknown.to_string(),
        "the plan has no variable `layer.w`, nor 1 more of the weights; its variables are `w`: leave out what it lacks, or \
         rename it"
    );
    let missing = load(&[]).expect_err("no w");
    assert_eq!(missing.to_string(), "the weights have no tensor `w` (f32[5, 3])");
    let wrong = load(&[("w", &tensor(&[5], 0.0))]).expect_err("another shape");
    assert_eq!(wrong.to_string(), "variable `w` is f32[5, 3], but its value is f32[5]");
}

#[test]
fn weights_take_the_place_of_what_an_initialization_says() {
    let mut builder = Builder::new(2, 1);
    builder.variable("w", &f32s(&[5, 3], &[0, 1], "S(0)"), Init::Fill(1.0.into()));
    builder.variable("v", &f32s(&[2], &[0, 1], "B"), Init::Fill(1.0.into()));
    let plan = builder.verified();
    let w = tensor(&[5, 3], 2.0);
    let mut session =
        Session::new(&plan, &feeds(&[("w", &w)]), SessionOptions::default()).expect("it fits");
    assert_eq!(session.variable("w"), Ok(w));
    assert_eq!(session.variable("v").expect("there").to_f32().expect("f32"), [1.0, 1.0]);
}

#[test]
fn feeds_that_do_not_fit_are_refused() {
    let mut session = session(tour(&[f32s(&[6], &[0], "B")], &[]), seconds(600));
    let x = tensor(&[6], 0.0);
    let mut say = |pairs: &[(&str, &HostTensor)]| {
        session.step(feeds(pairs)).expect_err("refused").to_string()
    };
    assert_eq!(say(&[]), "input `x` (f32[6]) is not fed");
    assert!(say(&[("x", &x), ("z", &x)]).starts_with("the graph has no input `z`"));
    let short = say(&[("x", &tensor(&[5], 0.0))]);
    assert_eq!(short, "input `x` is f32[5], but the plan was compiled for f32[6]");
    let outputs = session.step(feeds(&[("x", &x)])).expect("alive").wait().expect("done");
    assert_eq!(outputs["y"], x);
}

#[test]
fn outputs_are_handed_out_when_they_are_whole_and_while_the_step_goes_on() {
    // Two ranks hold half of each, in two microbatches: four parts.
    let halves = by_rows(f32s(&[8, 3], &[0, 1], "S(1)"));
    let mut builder = Builder::new(2, 2);
    let [x, late] = [0, 1].map(|_| builder.tensor(&halves, Rate::Microbatch, 2));
    builder.feed("x", x, Rate::Microbatch);
    builder.fetch("first", x, Rate::Microbatch);
    builder.feed("z", late, Rate::Microbatch);
    builder.fetch("second", late, Rate::Microbatch);
    let mut session = session(builder, seconds(600));
    let (x, z) = (tensor(&[8, 3], 1.0), tensor(&[8, 3], 50.0));
    for _ in 0..3 {
        let (sender, seen) = std::sync::mpsc::channel();
        let ready = move |name: &str, value: &HostTensor| {
            sender.send((name.to_owned(), value.clone())).expect("somebody listens");
        };
        let step = session.step_watched(feeds(&[("x", &x), ("z", &z)]), ready).expect("alive");
        let mut outputs: Vec<_> =
            [seen.recv(), seen.recv()].into_iter().map(Result::unwrap).collect();
        outputs.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(outputs, [("first".to_owned(), x.clone()), ("second".to_owned(), z.clone())]);
        assert_eq!(step.wait().expect("done"), outputs.into_iter().collect());
        // Each once.
        assert!(seen.try_recv().is_err());
    }
}

#[test]
fn a_step_goes_on_after_an_output_was_handed_out() {
    let whole = f32s(&[4], &[0], "B");
    let mut builder = Builder::new(1, 1);
    let [x, z] = [0, 1].map(|_| builder.tensor(&whole, Rate::Step, 1));
    builder.feed("x", x, Rate::Step);
    builder.fetch("first", x, Rate::Step);
    builder.feed("z", z, Rate::Step);
    builder.fetch("second", z, Rate::Step);
    let mut session = session(builder, seconds(600));
    let (tell, told) = std::sync::mpsc::channel();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let ready = move |name: &str, _: &HostTensor| {
        tell.send(name.to_owned()).expect("somebody listens");
        // The worker is held in the middle of its step until the test has seen the first output.
        if name == "first" {
            gone.lock().expect("no panic").recv().expect("the test goes on");
        }
    };
    let both = feeds(&[("x", &tensor(&[4], 0.0)), ("z", &tensor(&[4], 1.0))]);
    let step = session.step_watched(both, ready).expect("alive");
    assert_eq!(told.recv().expect("the first output"), "first");
    assert!(told.try_recv().is_err(), "the second is still to come");
    go.send(()).expect("the worker waits");
    assert_eq!(told.recv().expect("the second output"), "second");
    step.wait().expect("done");
}

#[test]
fn who_is_handed_an_output_may_fail() {
    let whole = f32s(&[4], &[0], "B");
    let mut builder = Builder::new(1, 1);
    let x = builder.tensor(&whole, Rate::Step, 1);
    builder.feed("x", x, Rate::Step);
    builder.fetch("y", x, Rate::Step);
    let mut session = session(builder, seconds(600));
    let step = session.step_watched(feeds(&[("x", &tensor(&[4], 0.0))]), |_, _| panic!("no room"));
    let failed = step.expect("alive").wait().expect_err("it panics").to_string();
    assert!(failed.contains("no room") && failed.contains("fetch y"), "{failed}");
}

#[test]
fn a_plan_for_devices_that_are_not_there_is_refused_and_runs_on_the_processor_if_asked_to() {
    let plan = || {
        let mut builder = tour(
            &[f32s(&[5, 7], &[0, 1], "B"), f32s(&[5, 7], &[0, 1], "S(1)")],
            &[BoxingKind::Slice],
        );
        builder.plan.cluster.device.kind = DeviceKind::Cuda;
        builder.verified()
    };
    if !graphc_runtime::cards::list_cards().is_ok_and(|cards| !cards.is_empty()) {
        let refused = Session::new(&plan(), &BTreeMap::new(), SessionOptions::default());
        let error = refused.expect_err("there is no such device");
        assert!(matches!(error, RuntimeError::NoCard { .. }), "{error:?}");
        assert!(error.to_string().contains("--device cpu"), "{error}");
    }
    let options = SessionOptions { device: Some(DeviceKind::Cpu), ..seconds(20) };
    let mut session = Session::new(&plan(), &BTreeMap::new(), options).expect("a processor");
    let x = tensor(&[5, 7], 1.0);
    let outputs = session.step(feeds(&[("x", &x)])).expect("alive").wait().expect("done");
    assert_eq!(outputs["y"], x);
}
