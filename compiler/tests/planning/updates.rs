//! Plans of updates alone: gradients are inputs, nothing is differentiated.

use graphc_compiler::cluster::preset;
use graphc_compiler::compile::{Compiled, compile};
use graphc_compiler::error::CompileError;
use graphc_ir::builder::GraphBuilder;
use graphc_ir::ops::Init;
use graphc_ir::types::DType;
use graphc_plan::{CompileOptions, Optimizer, TensorKind};

/// A variable, and an input of this name and extent that is to be its gradient.
fn compiled(gradient: &str, extent: usize, mesh: usize) -> Result<Compiled, CompileError> {
    let g = GraphBuilder::new("updates");
    g.variable("w", DType::F32, [4, 6], Init::Fill(1.0.into()));
    g.input(gradient, DType::F32, [4, extent]);
    let optimizer = Optimizer::Sgd { lr: 0.1, momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    let options = CompileOptions {
        mesh: vec![mesh],
        optimizer: Some(optimizer),
        updates_alone: true,
        clip_norm: Some(1.0),
        ema: Some(0.9),
        ..CompileOptions::default()
    };
    compile(g.finish().expect("a graph"), &options, &preset("cpu").expect("a preset"), None)
}

#[test]
fn states_clipping_and_averages_are_as_in_any_training() {
    for mesh in [1, 2] {
        let plan = compiled("grad.w", 6, mesh).expect("compiles").plan;
        let of = |kind: TensorKind| {
            let mut names: Vec<&str> =
                plan.tensors.iter().filter(|t| t.kind == kind).map(|t| t.name.as_str()).collect();
            names.sort_unstable();
            names
        };
        assert_eq!(of(TensorKind::Input), ["grad.w"]);
        assert!(of(TensorKind::State).contains(&"state.momentum.w"), "{:?}", of(TensorKind::State));
        assert!(of(TensorKind::State).contains(&"state.ema.w"), "{:?}", of(TensorKind::State));
        assert!(plan.training);
        graphc_compiler::check::verify_plan(&plan).expect("what it compiles to again");
    }
}

#[test]
fn a_gradient_that_is_not_fed_is_named() {
    for (name, extent) in [("grad.v", 6), ("grad.w", 5)] {
        let error = compiled(name, extent, 1).expect_err("no gradient of w").to_string();
        assert!(error.contains("no input `grad.w` (f32[4, 6])"), "{error}");
    }
}
