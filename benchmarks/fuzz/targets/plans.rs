//! Plans, and what was measured of them.

use std::path::Path;
use std::sync::OnceLock;

use graphc::compiler::null_device::simulate;
use graphc::ir::types::DType;
use graphc::plan::check::VerifiedPlan;
use graphc::plan::{Plan, Program, read_plan, write_plan};
use graphc::profile::{ActorProfile, Profile, ProgramProfile};
use graphc::report::{self, page};

use super::{Outcome, words};

#[path = "../../../tests/mutations/models.rs"]
mod models;

fn plans() -> &'static [Plan] {
    static PLANS: OnceLock<Vec<Plan>> = OnceLock::new();
    PLANS.get_or_init(|| models::all().into_iter().map(|(_, plan)| plan.into_plan()).collect())
}

/// Small plans of all kinds.
pub fn corpus() -> Vec<Vec<u8>> {
    plans().iter().map(|plan| write_plan(plan).into_bytes()).collect()
}

/// Reads a plan, checks it, and does with a sound one what needs no ranks.
pub fn feed(input: &[u8]) -> Outcome {
    let text = std::str::from_utf8(input).map_err(words)?;
    let plan = read_plan(text).map_err(words)?;
    assert_eq!(
        read_plan(&write_plan(&plan)).as_ref().ok(),
        Some(&plan),
        "it is written as another"
    );
    let plan = VerifiedPlan::check(plan).map_err(words)?;
    simulate(&plan).map_err(words)?;
    let shown = [report::summary, report::tensors, report::boxing, report::programs];
    assert!(shown.iter().all(|show| !show(&plan).is_empty()));
    // Without alternatives, which are planned.
    let options = page::PageOptions { explain: Some(0), ..page::PageOptions::default() };
    page::build_page(&[("plan.json", &plan)], &options).map_err(words)?;
    Ok(())
}

/// Returns files of measurements of the plans, with made-up seconds.
pub fn measured_corpus() -> Vec<Vec<u8>> {
    plans().iter().map(measured).collect()
}

fn measured(plan: &Plan) -> Vec<u8> {
    let programs = plan.programs.iter().enumerate();
    let profile = Profile {
        format: "graphc measured".into(),
        version: 1,
        plan: plan.name.clone(),
        device: "cpu".into(),
        memory: 1 << 30,
        engine: "fuzz".into(),
        ranks: plan.world_size,
        step_seconds: 1e-3,
        programs: programs.map(|(index, program)| measured_program(index, program)).collect(),
    };
    serde_json::to_vec(&profile).expect("numbers and names are JSON")
}

fn measured_program(index: usize, program: &Program) -> ProgramProfile {
    let actors = program.actors.iter().enumerate().map(|(actor, of)| ActorProfile {
        actor,
        with: Vec::new(),
        name: of.name.clone(),
        kind: "matmul".into(),
        seconds: 1e-5,
        flops: 1e3,
        bytes: 1e3,
        dtype: Some(DType::F32),
        ranks: 1,
    });
    ProgramProfile { program: index, actors: actors.collect() }
}

/// Reads a file and puts it beside each plan.
pub fn feed_measured(input: &[u8], folder: &Path) -> Outcome {
    let path = folder.join("measured.json");
    std::fs::write(&path, input).expect("the folder is writable");
    let profile = Profile::read(&path).map_err(words)?;
    let beside = |plan: &Plan| {
        let kinds = profile.by_kind(plan).map_err(words).map(drop);
        let actors = profile.by_actor(plan).map_err(words).map(drop);
        kinds.and(actors)
    };
    let machine = profile.to_measured().map_err(words).map(drop);
    let outcomes: Vec<Outcome> = plans().iter().map(beside).collect();
    machine.and(outcomes.into_iter().reduce(Outcome::or).unwrap_or(Ok(())))
}
