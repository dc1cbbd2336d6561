//! `graphc simulate`: the null device executes a plan with modelled time.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use graphc::profile::{KindSeconds, Limit, Profile, ProfileError};
use graphc::report;
use graphc_compiler::compile::prepare_again;
use graphc_compiler::cost::{model_flops_utilization, on_cluster};
use graphc_compiler::null_device::{Simulation, simulate, trace};
use graphc_ir::types::format_bytes_briefly;
use graphc_plan::Plan;
use serde_json::{Value, json};

use super::args::{Format, SimulateArgs};
use super::clusters::{read_cluster, run_by};
use super::output::{check_distinct, check_places, print_escaped};
use super::plans::load_sound_plan;
use super::timeline;

/// Runs the command.
pub(super) fn run_simulate(args: &SimulateArgs) -> Result<()> {
    let trace_to = args.trace.as_deref();
    let cluster = args.cluster.as_deref().map(Path::new).filter(|path| path.is_file());
    let inputs = [
        ("the plan", Some(args.plan.as_path())),
        ("the cluster file", cluster),
        ("--measured", args.measured.as_deref()),
    ];
    check_distinct(&inputs, &[("--trace", trace_to)])?;
    check_places(&[("--trace", trace_to)])?;
    let mut plan = load_sound_plan(&args.plan)?.into_plan();
    // Before other machines take the place of the plan's: what was padded depends on those.
    let decisions = prepare_again(&plan).context("the plan's graph cannot be prepared again")?;
    if args.cluster.is_some() || args.framework.is_some() {
        let named = args.cluster.as_deref().map(read_cluster).transpose()?;
        let cluster = named.unwrap_or_else(|| plan.cluster.clone());
        plan = on_cluster(&plan, &run_by(cluster, args.framework.as_ref()));
    }
    let simulation = simulate(&plan).context("the plan cannot run")?;
    if let Some(path) = &args.trace {
        let traced = trace(&plan, 1).context("the plan cannot run")?;
        graphc_runtime::data::write_with(path, |file| {
            timeline::write_timeline(file, &plan, &traced)
        })?;
    }
    let mfu = model_flops_utilization(&plan, &decisions, simulation.step_seconds);
    let profile = args.measured.as_deref().map(Profile::read).transpose()?;
    let beside = profile.map(|profile| Ok::<_, ProfileError>((profile.by_kind(&plan)?, profile)));
    let beside = beside.transpose()?;
    match args.format {
        Format::Json => {
            let mut value = as_json(&plan, &simulation, mfu);
            if let Some((kinds, profile)) = &beside {
                value["measured"] = measured_json(kinds, profile);
            }
            print_escaped(&(serde_json::to_string_pretty(&value)? + "\n"))
        }
        Format::Text => {
            let cluster = &plan.cluster.name;
            let more = beside
                .map(|(kinds, profile)| measured_text(&kinds, &profile, cluster))
                .unwrap_or_default();
            print_escaped(&(as_text(&plan, &simulation, mfu) + &more))
        }
    }
}

/// Lists the measured seconds of a step by kinds of ops, as JSON; they are the mean of all ranks.
fn measured_json(kinds: &[(String, KindSeconds)], profile: &Profile) -> Value {
    let kind = |(kind, sum): &(String, KindSeconds)| {
        json!({
            "kind": kind,
            "actions": sum.actions,
            "predicted_seconds": sum.predicted,
            "measured_seconds": sum.measured,
            "limit": sum.limit.map(Limit::name),
            "predicted_share": sum.share(sum.predicted),
            "measured_share": sum.share(sum.measured).filter(|&share| share <= 1.0),
            "faster_than_cluster": is_faster(sum),
        })
    };
    json!({
        "engine": profile.engine,
        "device": profile.device,
        "step_seconds": profile.step_seconds,
        "kinds": kinds.iter().map(kind).collect::<Vec<_>>(),
    })
}

fn measured_text(kinds: &[(String, KindSeconds)], profile: &Profile, cluster: &str) -> String {
    let step = report::format_seconds(profile.step_seconds);
    let mut text =
        format!("measured       {step} a step, by {} on {}\n", profile.engine, profile.device);
    let _ = writeln!(
        text,
        "\n{:<24} {:>8} {:>12} {:>12} {:>7}  {:<6} {:>9} {:>9}",
        "kind", "actions", "predicted", "measured", "ratio", "of", "predicted", "measured"
    );
    let percent = |share: Option<f64>| match share {
        Some(share) if share > 1.0 => "faster".into(),
        Some(share) => format!("{:.1} %", share * 100.0),
        None => "-".into(),
    };
    for (kind, sum) in kinds {
        let ratio = if sum.predicted > 0.0 {
            format!("{:.2}", sum.measured / sum.predicted)
        } else {
            "-".into()
        };
        let [predicted, measured] = [sum.predicted, sum.measured].map(report::format_seconds);
        let _ = writeln!(
            text,
            "{kind:<24} {:>8} {predicted:>12} {measured:>12} {ratio:>7}  {:<6} {:>9} {:>9}",
            sum.actions,
            sum.limit.map_or("links", Limit::name),
            percent(sum.share(sum.predicted)),
            percent(sum.share(sum.measured)),
        );
    }
    if kinds.iter().any(|(_, sum)| is_faster(sum)) {
        let _ = writeln!(
            text,
            "faster: in less time than cluster {cluster} allows; `graphc calibrate` makes one of the machine as it is"
        );
    }
    text
}

/// Whether kernels of a kind took less time than the cluster's peak or bandwidth allows: it says too little of the
/// machine that was measured, so no share can be told.
fn is_faster(sum: &KindSeconds) -> bool {
    sum.share(sum.measured).is_some_and(|share| share > 1.0)
}

fn as_json(plan: &Plan, simulation: &Simulation, mfu: Option<f64>) -> Value {
    let shares = &simulation.shares;
    let stages = simulation.stages.iter().map(|stage| {
        json!({
            "stage": stage.stage,
            "ranks": stage.ranks,
            "busy_seconds": stage.busy_seconds,
            "peak_memory_bytes": stage.peak_memory_bytes,
        })
    });
    json!({
        "cluster": plan.cluster.name,
        "framework": plan.cluster.framework.name,
        "step_seconds": simulation.step_seconds,
        "bubble_fraction": simulation.bubble_fraction,
        "compute_fraction": shares.compute,
        "communication_fraction": shares.communication,
        "waiting_fraction": shares.waiting,
        "overlap_fraction": shares.overlap,
        "mfu": mfu,
        "memory_bytes": plan.cluster.device.memory,
        "peak_memory_bytes": plan.predicted.peak_memory_bytes,
        "stages": stages.collect::<Vec<_>>(),
    })
}

fn as_text(plan: &Plan, simulation: &Simulation, mfu: Option<f64>) -> String {
    let percent = |share: f64| format!("{:.2} %", share * 100.0);
    let shares = &simulation.shares;
    let mut text = format!("cluster        {}\n", plan.cluster.name);
    let _ = writeln!(text, "framework      {}", plan.cluster.framework.name);
    let _ = writeln!(text, "step           {}", report::format_seconds(simulation.step_seconds));
    let _ = writeln!(text, "compute        {}", percent(shares.compute));
    let overlap = percent(shares.overlap);
    let _ = writeln!(
        text,
        "communication  {} (not hidden; {overlap} of all communication is under compute)",
        percent(shares.communication)
    );
    let _ = writeln!(text, "waiting        {}", percent(shares.waiting));
    let _ = writeln!(text, "bubble         {}", percent(simulation.bubble_fraction));
    if let Some(mfu) = mfu {
        let _ = writeln!(text, "mfu            {}", percent(mfu));
    }
    for stage in &simulation.stages {
        let over = stage.peak_memory_bytes > plan.cluster.device.memory;
        let _ = writeln!(
            text,
            "stage {:<8} {} ranks, busy {}, memory {}{}",
            stage.stage,
            stage.ranks,
            report::format_seconds(stage.busy_seconds),
            format_bytes_briefly(stage.peak_memory_bytes),
            if over { ", more than a device has" } else { "" },
        );
    }
    text
}
