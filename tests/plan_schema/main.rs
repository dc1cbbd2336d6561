//! docs/plan.md and docs/plan.schema.json say what plans are made of. Both are written from the doc comments of the types themselves, and
//! this test holds them to the source: `UPDATE_EXPECT=1` writes them anew.

mod markdown;
mod schema;
mod source;

use std::path::Path;

use expect_test::expect_file;
use graphc::plan::check::Seal;
use graphc::plan::{PLAN_VERSION, read_plan};
use graphc::prelude::*;
use serde_json::Value;

/// The files whose types plans consist of.
const SOURCES: [&str; 6] = [
    "ir/plan/src",
    "ir/src/op.rs",
    "ir/src/ops",
    "ir/src/ops/update",
    "ir/src/types.rs",
    "ir/src/mesh.rs",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn docs_say_what_the_source_says() {
    let items = source::read(root(), &SOURCES);
    let docs = root().join("docs");
    expect_file![docs.join("plan.md")].assert_eq(&markdown::write(&items, PLAN_VERSION));
    let schema = schema::write(&items, PLAN_VERSION);
    let schema = serde_json::to_string_pretty(&schema).expect("JSON") + "\n";
    expect_file![docs.join("plan.schema.json")].assert_eq(&schema);
}

fn plan() -> VerifiedPlan {
    let g = GraphBuilder::new("small");
    let x = g.input("x", DType::F32, [8, 4]);
    let w = g.variable("w", DType::F32, [4, 4], Init::Fill(0.5.into()));
    g.output("scores", &x.matmul(&w).gelu().dropout(0.5));
    let options = CompileOptions {
        mesh: vec![2, 2],
        stages: 2,
        microbatches: 2,
        loss: Some(graphc::plan::Loss::CrossEntropy),
        optimizer: Some(graphc::plan::Optimizer::Sgd {
            lr: 0.1,
            momentum: 0.9,
            nesterov: false,
            weight_decay: 0.0,
        }),
        ..CompileOptions::default()
    };
    let graph = g.finish().expect("a graph");
    compile(graph, &options, &preset("cpu").expect("a preset"), None).expect("a plan").plan
}

#[test]
fn a_plan_has_no_field_that_the_schema_lacks() {
    let items = source::read(root(), &SOURCES);
    let schema = schema::write(&items, PLAN_VERSION);
    let written: Value = serde_json::from_str(&plan().write_sealed()).expect("JSON");
    schema::check(&schema, &schema, &written, "plan").expect("it is as the schema says");
    for (from, to) in [
        ("\"stages\"", "\"phases\""),
        ("\"f32\"", "\"f31\""),
        ("\"mesh\": [2, 2]", "\"mesh\": [2, \"2\"]"),
    ] {
        let wrong = plan().write_sealed().replace(from, to);
        let wrong: Value = serde_json::from_str(&wrong).expect("JSON");
        let error = schema::check(&schema, &schema, &wrong, "plan");
        assert!(error.is_err(), "{to} in the place of {from} is not found");
    }
}

#[test]
fn a_sealed_text_is_the_plan_and_its_seal_holds() {
    let plan = plan();
    let text = plan.write_sealed();
    assert_eq!(Seal::from_text(&text), Seal::Holds);
    assert!(read_plan(&text).expect("a plan") == *plan);
    assert_eq!(Seal::from_text(&text.replacen("\"small\"", "\"other\"", 1)), Seal::Broken);
}
