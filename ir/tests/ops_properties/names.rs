//! The name of an op is its tag in the serialized form, and every variant has cases.

use std::collections::BTreeSet;

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
