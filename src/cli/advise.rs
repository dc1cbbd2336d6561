//! `graphc advise`: the meshes, stages and microbatches of the shortest steps, or the fewest ranks on which a training fits.

use std::fmt::Write;

use anyhow::{Context, Result, bail};
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use graphc::report;
use graphc_compiler::compile::advise::{
    Binds, Depth, Figures, Least, Way, advise_ways, least_ranks,
};
use graphc_ir::graph::Graph;
use graphc_ir::mesh::format_mesh;
use graphc_ir::types::format_bytes_briefly;
use graphc_plan::{Cluster, CompileOptions, Loss, Recompute};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::args::{
    AdviseArgs, Count, Format, LossChoice, OptimizerName, SharedArgs, compile_options,
};
use super::clusters::shared_cluster;
use super::models::read_model;
use super::output::{print_escaped, print_message};

/// A model, what is to be done with it and on which machines.
struct Question {
    graph: Graph,
    options: CompileOptions,
    cluster: Cluster,
}

/// Runs the command.
pub(super) fn run_advise(args: &AdviseArgs) -> Result<()> {
    let question = read_question(args)?;
    let of = || format!("no advice on {}", args.model.display());
    match args.ranks {
        Some(ranks) => print_ways(args, &question, ranks).with_context(of),
        None => print_least(args.shared.format, &question).with_context(of),
    }
}

fn read_question(args: &AdviseArgs) -> Result<Question> {
    let shared = open_options(&args.shared);
    let (imported, dims) = read_model(&args.model, &shared, None)?;
    imported
        .warnings
        .iter()
        .chain(&imported.training_warnings)
        .for_each(|warning| print_message("warning", warning));
    let options = compile_options(&shared, dims)?;
    let cluster = shared_cluster(&shared, None)?;
    Ok(Question { graph: imported.graph, options, cluster })
}

/// The options with all left open that may be, and a training where none is said.
fn open_options(args: &SharedArgs) -> SharedArgs {
    let mut args = args.clone();
    args.stages = args.stages.or(Some(Count::Auto));
    args.microbatches = args.microbatches.or(Some(Count::Auto));
    args.recompute = args.recompute.or(Some(Recompute::Auto));
    if args.optimizer.is_none() {
        print_message("note", "no --optimizer is given: advice is for adamw");
        args.optimizer = Some(OptimizerName::Adamw);
    }
    if args.loss.is_none() {
        print_message("note", "no --loss is given: advice is for cross_entropy");
        args.loss = Some(LossChoice::Of(Loss::CrossEntropy));
    }
    args
}

fn print_ways(args: &AdviseArgs, question: &Question, ranks: usize) -> Result<()> {
    let Question { graph, options, cluster } = question;
    // It is hidden where standard error is no terminal.
    let bar = ProgressBar::new(1);
    bar.set_style(ProgressStyle::with_template("{bar:32} {pos}/{len} parts [{elapsed}]")?);
    let mut reached = |done: usize, all: usize| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    };
    let depth = Depth { ways: args.ways, plans: args.plans.min(args.ways) };
    let ways = advise_ways(graph, options, cluster, (ranks, depth), &mut reached);
    bar.finish_and_clear();
    let ways = ways?;
    print_escaped(&match args.shared.format {
        Format::Text => render_text(question, ranks, &ways),
        Format::Json => {
            let ways: Vec<Value> = ways.iter().map(|way| as_json(way, &ways)).collect();
            serde_json::to_string_pretty(&json!({ "ranks": ranks, "ways": ways }))? + "\n"
        }
    })
}

/// The share of the peak of a way: of one without a plan what its seconds make of that of one with a plan, as both
/// compute the same.
fn share_of_peak(way: &Way, ways: &[Way]) -> Option<f64> {
    let own = |way: &Way| way.planned.as_ref()?.as_ref().ok()?.mfu;
    let known = || ways.iter().find_map(|known| Some(own(known)? * known.seconds()));
    own(way).or_else(|| Some(known()? / way.seconds()))
}

fn as_json(way: &Way, ways: &[Way]) -> Value {
    let choice = &way.choice;
    let mut value = json!({
        "mesh": way.mesh,
        "stages": choice.stages,
        "microbatches": choice.microbatches,
        "step_seconds": way.seconds(),
        "priced_seconds": choice.seconds,
        "mfu": share_of_peak(way, ways),
        "planned": matches!(way.planned, Some(Ok(_))),
        "why": explain_way(way),
    });
    match &way.planned {
        Some(Ok(figures)) => {
            value["memory_bytes"] = figures.memory_bytes.into();
            value["binds"] = bound_name(figures.binding_limit()).into();
            value["gap"] = figures.gap.into();
        }
        Some(Err(error)) => value["error"] = error.to_string().into(),
        None => {}
    }
    value
}

fn render_text(question: &Question, ranks: usize, ways: &[Way]) -> String {
    let Question { graph, options, cluster } = question;
    let memory = format_bytes_briefly(options.memory.unwrap_or(cluster.device.memory));
    let mut text = format!("`{}` on {ranks} ranks of {} with {memory}\n", graph.name, cluster.name);
    let mut table = Table::new();
    let header = ["mesh", "stages", "microbatches", "step", "memory", "mfu", "why"];
    table.load_style(NOTHING).set_header(header);
    for way in ways {
        let planned = way.planned.as_ref().and_then(|planned| planned.as_ref().ok());
        let about = if planned.is_some() { "" } else { "~" };
        let share = |share: f64| format!("{about}{:.1} %", share * 100.0);
        table.add_row([
            format_mesh(&way.mesh),
            way.choice.stages.to_string(),
            way.choice.microbatches.to_string(),
            format!("{about}{}", report::format_seconds(way.seconds())),
            planned.map_or("-".into(), |figures| format_bytes_briefly(figures.memory_bytes)),
            share_of_peak(way, ways).map_or("-".into(), share),
            explain_way(way),
        ]);
    }
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{table}");
    text
}

fn bound_name(binds: Binds) -> &'static str {
    match binds {
        Binds::Bubble => "bubble",
        Binds::Links => "links",
        Binds::Memory => "memory",
        Binds::Kernels => "kernels",
    }
}

/// A line of why a step takes so long.
fn explain_way(way: &Way) -> String {
    match &way.planned {
        None => "by the prices of its layers alone".into(),
        Some(Err(error)) => {
            let error = error.to_string();
            format!("no plan: {}", error.lines().next().unwrap_or_default())
        }
        Some(Ok(figures)) => why_planned(figures),
    }
}

fn why_planned(figures: &Figures) -> String {
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let shares = &figures.shares;
    let [compute, links, waiting] =
        [shares.compute, shares.communication, shares.waiting].map(percent);
    let binds = figures.binding_limit();
    let short = match figures.is_short && binds != Binds::Memory {
        true => "; for want of memory some is computed or gathered again",
        false => "",
    };
    let said = match binds {
        Binds::Bubble => {
            format!("ranks wait for each other {waiting} of the time, {links} for what travels")
        }
        Binds::Links => {
            format!("ranks wait {links} of the time for what travels, {waiting} for each other")
        }
        Binds::Memory => {
            format!(
                "for want of it some is computed or gathered again; kernels take {compute} of the time"
            )
        }
        Binds::Kernels => format!("they take {compute} of the time"),
    };
    format!("{}: {said}{short}", bound_name(binds))
}

fn print_least(format: Format, question: &Question) -> Result<()> {
    let Question { graph, options, cluster } = question;
    let least = least_ranks(graph, options, cluster)?;
    let limit = options.memory.unwrap_or(cluster.device.memory);
    let Some(found) = &least.mesh else {
        let tried: Vec<String> = least.tried.iter().map(usize::to_string).collect();
        bail!(
            "no number of ranks that was tried has a plan ({}): its variables are {}, and a rank has {}",
            tried.join(", "),
            format_bytes_briefly(least.variables),
            format_bytes_briefly(limit)
        );
    };
    print_escaped(&match format {
        Format::Text => least_text(&least, found, limit),
        Format::Json => {
            let value = json!({
                "ranks": found.iter().product::<usize>(),
                "mesh": found,
                "microbatches": least.microbatches,
                "proven_ranks": least.proven,
                "variables_bytes": least.variables,
                "memory_bytes": limit,
                "tried": least.tried,
            });
            serde_json::to_string_pretty(&value)? + "\n"
        }
    })
}

fn least_text(least: &Least, found: &[usize], limit: u64) -> String {
    let ranks: usize = found.iter().product();
    let tried: Vec<String> = least.tried.iter().map(usize::to_string).collect();
    let mut text = format!(
        "fits on {} as {}, in one stage and {}\n",
        report::number_of(ranks, "rank", "ranks"),
        format_mesh(found),
        report::number_of(least.microbatches, "microbatch", "microbatches")
    );
    let _ = writeln!(
        text,
        "tried: {} {}",
        tried.join(", "),
        if tried == ["1"] { "rank" } else { "ranks" }
    );
    if least.proven <= 1 {
        return text;
    }
    let _ = writeln!(
        text,
        "proven: not on fewer than {}, as variables are {} and a rank has {}",
        least.proven,
        format_bytes_briefly(least.variables),
        format_bytes_briefly(limit)
    );
    text
}
