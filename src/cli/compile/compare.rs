//! `graphc compile --compare`: one model, several strategies, one table.

use std::time::Instant;

use anyhow::Result;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use graphc::report;
use graphc_compiler::lower::collective_counts;
use graphc_ir::types::format_bytes_briefly;
use graphc_plan::{Plan, PlannerStatus, Strategy};
use serde_json::json;

use crate::cli::args::{CompileArgs, Format, SharedArgs};
use crate::cli::output::print_escaped;
use crate::cli::planning::plan_model;

/// A strategy's plan, or why there is none.
struct StrategyRow {
    strategy: Strategy,
    seconds: f64,
    outcome: Result<Plan>,
}

/// Plans with each strategy. It fails where none of them has a plan.
pub(super) fn run_compare(args: &CompileArgs) -> Result<()> {
    let rows: Vec<StrategyRow> =
        args.compare.iter().map(|&strategy| plan_strategy(args, strategy)).collect();
    let text = match args.shared.format {
        Format::Text => render_text(&rows),
        Format::Json => {
            serde_json::to_string_pretty(&rows.iter().map(render_json).collect::<Vec<_>>())? + "\n"
        }
    };
    if rows.iter().any(|row| row.outcome.is_ok()) {
        return print_escaped(&text);
    }
    match rows.into_iter().find_map(|row| row.outcome.err()) {
        Some(error) => Err(error.context("no strategy has a plan")),
        None => Ok(()),
    }
}

fn plan_strategy(args: &CompileArgs, strategy: Strategy) -> StrategyRow {
    let begun = Instant::now();
    let shared = SharedArgs { strategy: Some(strategy), ..args.shared.clone() };
    let planned = plan_model(&args.model, (&shared, None), None, shared.optimizer.is_some());
    let outcome = planned.map(|planned| planned.plan.into_plan());
    StrategyRow { strategy, seconds: begun.elapsed().as_secs_f64(), outcome }
}

fn render_text(rows: &[StrategyRow]) -> String {
    let mut table = Table::new();
    let header = [
        "strategy",
        "objective",
        "predicted step",
        "peak memory",
        "collectives",
        "gap",
        "planned in",
    ];
    table.load_style(NOTHING).set_header(header);
    let mut failures = String::new();
    for row in rows {
        let plan = match &row.outcome {
            Ok(plan) => plan,
            Err(error) => {
                failures += &format!("{}: {error:#}\n", row.strategy);
                continue;
            }
        };
        let peak = plan.predicted.peak_memory_bytes.iter().max().copied().unwrap_or(0);
        let counts: Vec<String> = collective_counts(plan)
            .into_iter()
            .map(|(kind, count)| format!("{count} {}", kind.name()))
            .collect();
        table.add_row([
            row.strategy.to_string(),
            report::format_seconds(plan.planner.objective_seconds),
            report::format_seconds(plan.predicted.step_seconds),
            format_bytes_briefly(peak),
            counts.join(", "),
            match plan.planner.status {
                PlannerStatus::Optimal => "optimal".into(),
                PlannerStatus::Gap => format!("{:.2} %", plan.planner.gap * 100.0),
            },
            report::format_seconds(row.seconds),
        ]);
    }
    format!("{table}\n{failures}")
}

fn render_json(row: &StrategyRow) -> serde_json::Value {
    match &row.outcome {
        Ok(plan) => json!({
            "strategy": row.strategy.to_string(),
            "planner": plan.planner,
            "predicted": plan.predicted,
            "seconds": row.seconds,
        }),
        Err(error) => {
            json!({ "strategy": row.strategy.to_string(), "error": format!("{error:#}") })
        }
    }
}
