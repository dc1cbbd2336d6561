//! Batches of several shapes train one set of variables (`graphc::buckets`).

use std::collections::BTreeMap;

use graphc::buckets::{Buckets, BucketsOptions};
use graphc::ir::learning_rate::LrSchedule;
use graphc::prelude::*;

use crate::command::tensor;

/// A model of batches that have so many rows.
fn of_rows(rows: usize) -> Graph {
    let g = GraphBuilder::new("buckets");
    let fc = nn::Linear::new(&g, "fc", 4, 2);
    let y = fc.forward(&g.input("x", DType::F32, [rows, 4]));
    g.output("loss", &y.tanh().mean(&[0, 1], false));
    g.finish().expect("a graph")
}

/// Sessions of it.
fn buckets_of_rows(compile: CompileOptions, most: usize) -> Buckets {
    let (cluster, session) = (preset("cpu").expect("one"), SessionOptions::default());
    let options = BucketsOptions { compile, cluster, session, most };
    Buckets::new(options, BTreeMap::new(), None, |shapes| Ok(of_rows(shapes["x"].shape[0])))
}

/// Batches of two shapes, in turns, train one set of weights as plans that are handed the weights by hand do.
#[test]
fn batches_of_several_shapes_train_one_set_of_weights() {
    let compile_options = |mesh: &[usize]| CompileOptions {
        mesh: mesh.to_vec(),
        optimizer: Some(Optimizer::adam(0.05)),
        lr_schedule: "step:2,0.5".parse().expect("a schedule"),
        ..CompileOptions::default()
    };
    let batch = |step: usize| {
        let rows = [4, 6, 4, 4, 8, 6][step];
        BTreeMap::from([("x".to_owned(), tensor(&[rows, 4], step as i64, 1.0))])
    };
    for mesh in [&[1][..], &[2]] {
        // As the sessions of one plan for each step, which goes on where the last was.
        let (mut before, mut expected) = (None::<Session>, Vec::new());
        for step in 0..6 {
            let rows = batch(step)["x"].shape()[0];
            let plan =
                compile(of_rows(rows), &compile_options(mesh), &preset("cpu").expect("one"), None);
            let own = SessionOptions { first_step: step as u64, ..SessionOptions::default() };
            let plan = plan.expect("a plan").plan;
            let mut session = Session::new(&plan, &BTreeMap::new(), own).expect("a session");
            if let Some(before) = &mut before {
                let names: Vec<String> = session.variables().into_keys().collect();
                session.copy_variables(before, names.iter().map(String::as_str)).expect("alike");
            }
            let outputs = session.step(batch(step)).and_then(|step| step.wait());
            expected.extend(outputs.expect("a step")["loss"].to_f64());
            before = Some(session);
        }
        for most in [1, 2, 4] {
            let mut buckets = buckets_of_rows(compile_options(mesh), most);
            let mut found = Vec::new();
            for step in 0..6 {
                let session = buckets.session_for(&batch(step)).expect("a session");
                assert_eq!(session.next_step(), step as u64);
                let outputs = session.step(batch(step)).and_then(|step| step.wait());
                found.extend(outputs.expect("a step")["loss"].to_f64());
            }
            assert_eq!(found, expected, "{most} sessions on {mesh:?}");
            assert_eq!(buckets.len(), most.min(3));
            let back = buckets.last().expect("there is one").skip_to(2).expect_err("it is past");
            assert_eq!(back.to_string(), "step 2 was begun before: the next one is step 6");
        }
    }
}

/// A rate or schedule that is set on the session of one shape holds for those of other shapes, as a rate of the plans would.
#[test]
fn a_rate_that_is_given_goes_from_shape_to_shape() {
    let schedule: LrSchedule = "step:2,0.5".parse().expect("a schedule");
    let options = |lr_schedule: &LrSchedule| CompileOptions {
        optimizer: Some(Optimizer::adam(0.05)),
        lr_schedule: lr_schedule.clone(),
        ..CompileOptions::default()
    };
    // The number of rows in each step: sessions are made, turned to again, and ended, as two are kept.
    let train = |options, set: &dyn Fn(&mut Session, u64)| -> Vec<f64> {
        let mut buckets = buckets_of_rows(options, 2);
        let steps = [4, 6, 4, 8, 6, 4].into_iter().zip(0..);
        let losses = steps.map(|(rows, step)| {
            let feeds = BTreeMap::from([("x".to_owned(), tensor(&[rows, 4], step as i64, 1.0))]);
            let session = buckets.session_for(&feeds).expect("a session");
            set(session, step);
            let outputs = session.step(feeds).and_then(|step| step.wait());
            outputs.expect("a step")["loss"].to_f64()[0]
        });
        losses.collect()
    };
    let (constant, factors) = (LrSchedule::default(), schedule.clone());
    let planned = train(options(&schedule), &|_, _| ());
    let given = train(options(&constant), &|session, step| {
        if step == 0 {
            let factors = factors.clone();
            session.set_schedule(move |step| 0.05 * factors.factor(step)).expect("it trains");
        }
    });
    assert_eq!(given, planned);
    assert_ne!(given, train(options(&constant), &|_, _| ()), "the schedule makes a difference");
    train(options(&constant), &|session, step| match step {
        1 => session.set_learning_rate(0.5).expect("a rate"),
        2 | 3 => assert_eq!(session.learning_rate(), Some(0.5)),
        4 => session.follow_planned_rate(),
        5 => assert_eq!(session.learning_rate(), Some(0.05)),
        _ => {}
    });
}
