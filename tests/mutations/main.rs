//! Plans edited at random: what is accepted runs without a crash and a hang, twice to the same bits; the rest is refused with
//! an account. `GRAPHC_MUTATIONS=20000 cargo test --release --test mutations` tries more than the default.

mod edits;
mod models;

use std::time::Duration;

use graphc::ir::types::TensorType;
use graphc::plan::check::VerifiedPlan;
use graphc::plan::{Plan, write_plan};
use graphc::prelude::*;
use graphc::runtime::{Cause, RuntimeError};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use edits::Edit;

/// Mutations of each model, unless the environment says how many of all.
const MUTATIONS: u32 = 200;

fn mutations() -> u32 {
    let given = std::env::var("GRAPHC_MUTATIONS").ok();
    let all = given.map(|text| text.parse::<u32>().expect("GRAPHC_MUTATIONS is a number"));
    all.map_or(MUTATIONS, |all| all.div_ceil(models::all().len() as u32))
}

/// The result of running a mutated plan.
#[derive(Debug)]
enum Outcome {
    /// It was refused before anything ran.
    Refused(String),
    /// It ran as far as a kernel that said that it does not fit.
    Stopped,
    /// It ran.
    Ran,
}

/// The bits of the outputs of two steps; an error of the plan's.
fn two_steps(plan: &VerifiedPlan) -> Result<Vec<Vec<u8>>, RuntimeError> {
    let options = SessionOptions {
        timeout: Duration::from_secs(30),
        threads_per_rank: Some(1),
        ..SessionOptions::default()
    };
    let mut session = Session::new(plan, &BTreeMap::new(), options)?;
    let feed = |(name, ty): (&String, &TensorType)| (name.clone(), feed(ty));
    let feeds: BTreeMap<String, HostTensor> = session.inputs().iter().map(feed).collect();
    let mut bits = Vec::new();
    for _ in 0..2 {
        let outputs = session.step(feeds.clone())?.wait()?;
        bits.extend(outputs.values().map(|output| output.bytes().to_vec()));
    }
    Ok(bits)
}

fn feed(ty: &TensorType) -> HostTensor {
    let element = |i: usize| match ty.dtype.is_float() {
        true => (i as f64 * 0.37).sin(),
        false => (i * i % 2) as f64,
    };
    let data: Vec<f64> = (0..ty.elements()).map(element).collect();
    HostTensor::from_f64(ty.dtype, ty.shape.clone(), &data).expect("as many as the shape has")
}

/// Whether an error is what a sound plan may meet: what a rank cannot do, said before it is done.
fn is_account(error: &RuntimeError) -> bool {
    match error {
        RuntimeError::Failed(failure) => matches!(failure.cause, Cause::Kernel(_)),
        RuntimeError::Plan { .. }
        | RuntimeError::NoKernel { .. }
        | RuntimeError::WeightMissing { .. } => true,
        _ => false,
    }
}

fn outcome(edited: Plan) -> Result<Outcome, String> {
    let plan = match VerifiedPlan::check(edited) {
        Ok(plan) => plan,
        Err(errors) => return Ok(Outcome::Refused(errors.to_string())),
    };
    match (two_steps(&plan), two_steps(&plan)) {
        (Ok(first), Ok(second)) if first == second => Ok(Outcome::Ran),
        (Ok(_), Ok(_)) => Err("two runs differ".into()),
        (Err(error), Err(_)) if is_account(&error) => Ok(Outcome::Stopped),
        (first, second) => Err(format!("{:?} and {:?}", first.err(), second.err())),
    }
}

fn check(plan: &Plan) -> [usize; 3] {
    let text = write_plan(plan);
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let places = edits::places(&value);
    let mut counts = [0; 3];
    let counted = std::cell::RefCell::new(&mut counts);
    let config = Config { cases: mutations(), failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&edits::edit(), |edit: Edit| {
        let Some(edited) = edit.apply(plan, &value, &places) else { return Ok(()) };
        if edited == *plan {
            return Ok(());
        }
        let outcome = outcome(edited).map_err(TestCaseError::fail)?;
        let place = match &outcome {
            Outcome::Refused(account) => {
                prop_assert!(!account.is_empty());
                0
            }
            Outcome::Stopped => 1,
            Outcome::Ran => 2,
        };
        counted.borrow_mut()[place] += 1;
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{}: {error}", plan.name));
    counts
}

/// Edited plans of every model are refused or run: more are refused than run, and some run.
#[test]
fn edited_plans_are_refused_or_run_as_they_say() {
    for (name, plan) in models::all() {
        let [refused, stopped, ran] = check(&plan);
        println!("{name}: {refused} refused, {stopped} stopped by a kernel, {ran} ran");
        assert!(refused > ran, "{name}");
    }
}
