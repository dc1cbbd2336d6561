//! The models of `graphc::models` and layers of `graphc::nn` compute what PyTorch's do, in training and in evaluation, on every
//! mesh. What PyTorch makes of them is recorded by `record.py` and `record_ddp.py`.

mod context;
mod curves;
mod ddp;
mod float8;
mod float8_experts;
mod formula;
mod images;
mod layers;
mod networks;
mod running;

use std::path::Path;

use graphc::plan::TensorKind;
use graphc::prelude::*;
use serde_json::Value;

type Feeds = BTreeMap<String, HostTensor>;

/// Returns PyTorch's results of a case.
fn recorded(case: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(case);
    let text = std::fs::read_to_string(path.with_extension("json")).expect("is there");
    serde_json::from_str(&text).expect("JSON")
}

fn list(value: &Value) -> Vec<f64> {
    serde_json::from_value(value.clone()).expect("a list of numbers")
}

/// A session whose weights and buffers are functions of their names.
fn begin(graph: &Graph, options: &CompileOptions) -> Session {
    let cpu = preset("cpu").expect("a preset");
    let compiled = compile(graph.clone(), options, &cpu, None);
    let plan = compiled.unwrap_or_else(|error| panic!("{options:?}: {error}")).plan;
    let mut session =
        Session::new(&plan, &BTreeMap::new(), SessionOptions::default()).expect("begins");
    for (name, (_, ty)) in variables(&session) {
        session.set_variable(&name, &formula::weight(&name, &ty.shape)).expect("fits");
    }
    session
}

/// Returns all variables that are no state of an optimizer.
fn variables(session: &Session) -> BTreeMap<String, (TensorKind, graphc::ir::types::TensorType)> {
    let mut all = session.variables();
    all.retain(|_, (kind, _)| *kind == TensorKind::Parameter);
    all
}

/// Opens another session of the same variables.
fn evaluated(graph: &Graph, options: &CompileOptions, trained: &mut Session) -> Session {
    let mut session = begin(graph, options);
    for name in variables(&session).keys() {
        let value = trained.variable(name).expect("trained");
        session.set_variable(name, &value).expect("fits");
    }
    session
}

fn step(session: &mut Session, feeds: &Feeds) -> Feeds {
    session.step(feeds.clone()).and_then(|step| step.wait()).expect("computes")
}

fn number(outputs: &Feeds, name: &str) -> f64 {
    outputs[name].to_f64()[0]
}

fn sgd(lr: f64) -> Option<Optimizer> {
    Some(Optimizer::Sgd { lr, momentum: 0.9, nesterov: false, weight_decay: 0.0 })
}

/// Checks numbers against others, within a share of the greatest of them.
fn near(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let greatest = expected.iter().fold(0.0f64, |greatest, x| greatest.max(x.abs()));
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs() / greatest;
        assert!(
            error <= tolerance,
            "{what}, {at}: {found} instead of {expected}, which is {error:.1e} of the greatest"
        );
    }
}

/// As in the command: planning allocates much that is small.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
