//! The name of an op is its tag in the serialized form, and every variant has cases.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use graphc_ir::op::Op;

use crate::cases::{all, is_differentiable};

#[test]
fn name_is_the_serialized_tag() {
    for case in all() {
        let json = serde_json::to_value(&case.op).expect("an op serializes");
        assert_eq!(json["op"], case.op.name());
        let back: Op = serde_json::from_value(json).expect("an op deserializes");
        assert_eq!(back, case.op);
    }
}

#[test]
fn every_variant_has_cases() {
    let covered: BTreeSet<String> = all().iter().map(|case| case.op.name().to_string()).collect();
    assert_eq!(covered, evaluated());
}

#[test]
fn every_variant_but_sources_is_checked_for_completeness_and_gradients() {
    let sources = ["input", "variable", "constant", "full", "iota", "random"].map(String::from);
    let names = |chosen: fn(&crate::cases::Case) -> bool| -> BTreeSet<String> {
        all().iter().filter(|case| chosen(case)).map(|case| case.op.name().to_string()).collect()
    };
    let complete = names(|case| case.complete);
    let expected: BTreeSet<String> = &evaluated() - &BTreeSet::from(["input".to_string()]);
    assert_eq!(complete, expected);
    let differentiable = names(|case| is_differentiable(&case.op));
    assert!(differentiable.is_disjoint(&BTreeSet::from(sources)));
    assert!(differentiable.len() >= 24, "{differentiable:?}");
}

/// Results by operands whose place they take, of the ops that have some. `graphc_torch` compares its own table with the same file.
#[test]
fn results_take_the_place_of_the_operands_that_the_contract_names() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/contract/cases.json");
    let text = std::fs::read_to_string(path).expect("the cases");
    let contract: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let listed = contract["updates"]["cases"].as_array().expect("cases").iter().map(|case| {
        let updates = serde_json::from_value(case["updates"].clone()).expect("pairs");
        (case["op"].as_str().expect("a name").to_owned(), updates)
    });
    let listed: BTreeMap<String, Vec<(usize, usize)>> = listed.collect();
    let mut found = BTreeMap::<String, Vec<(usize, usize)>>::new();
    for case in all().iter().filter(|case| !case.op.operation().updates().is_empty()) {
        let updates = case.op.operation().updates();
        assert!(listed[case.op.name()].starts_with(updates), "{:?}", case.op);
        let most = found.entry(case.op.name().to_owned()).or_default();
        if updates.len() > most.len() {
            *most = updates.to_vec();
        }
    }
    assert_eq!(found, listed);
}

/// An op that changes its operands is the step of an optimizer, which says where its gradient is, or one of these.
#[test]
fn steps_of_optimizers_name_their_gradient() {
    let others = ["blend", "lamb_update", "loss_scale", "skip_step"];
    for case in all() {
        let op = case.op.operation();
        let steps = !op.updates().is_empty() && !others.contains(&op.name());
        assert_eq!(op.gradient_operand().is_some(), steps, "{}", op.name());
    }
}

/// The variants that say what they compute: all but an op of a program's own.
fn evaluated() -> BTreeSet<String> {
    &variants() - &BTreeSet::from(["custom".to_string()])
}

/// The tags that deserialization knows, as its own error lists them.
fn variants() -> BTreeSet<String> {
    let error = serde_json::from_str::<Op>(r#"{"op": "?"}"#).expect_err("`?` is no op");
    let message = error.to_string();
    let (_, list) = message.split_once("expected one of").expect("serde lists the variants");
    list.split('`').skip(1).step_by(2).map(str::to_string).collect()
}
