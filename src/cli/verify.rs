//! `graphc verify`: every invariant of a plan; with the model, that it computes the same.

use anyhow::{Context, Result, ensure};
use graphc_compiler::check;
use graphc_compiler::compile::compile;
use graphc_compiler::import::{ImportOptions, load_model};

use super::args::VerifyArgs;
use super::compile::load_plan;
use super::options;

/// Runs the command.
pub fn run(args: &VerifyArgs) -> Result<()> {
    let plan = load_plan(&args.plan)?;
    check::verify(&plan).with_context(|| format!("{} is not valid", args.plan.display()))?;
    if let Some(model) = &args.model {
        let imported = load_model(model, &plan.options.dims, ImportOptions::default())?;
        let again = compile(imported.graph, &plan.options, &plan.cluster, plan.weights.clone())
            .with_context(|| format!("cannot plan {} with the plan's options", model.display()))?;
        ensure!(
            again.plan == plan,
            "{} is a plan of another graph than {}: the graphs differ",
            args.plan.display(),
            model.display()
        );
        if let Some(source) = &plan.weights {
            let found = options::sha256(model)?;
            ensure!(
                found == source.sha256,
                "{} has other weights than the plan's (SHA-256 {found}, the plan has {})",
                model.display(),
                source.sha256
            );
        }
    }
    println!(
        "{}: valid, {} ranks, {} programs",
        args.plan.display(),
        plan.world_size,
        plan.programs.len()
    );
    Ok(())
}
