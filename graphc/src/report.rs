//! Reports plans for people: tables and summaries that `graphc inspect` and the examples print.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use graphc_compiler::lower::collective_counts;
use graphc_compiler::passes::loss_scale::has_loss_scale;
use graphc_compiler::passes::padding::PADDED;
use graphc_compiler::planner::{WaitingWay, Waits};
use graphc_ir::mesh::format_mesh;
use graphc_ir::sbp::NdSbp;
use graphc_ir::types::{DType, format_bytes_briefly};
use graphc_plan::{
    BoxingKind, Plan, PlannerStatus, Rate, Recompute, RecomputedOps, TensorEntry, TensorKind,
};

mod alternatives;
mod attentions;
mod contents;
mod difference;
pub mod page;
mod peak;

pub use alternatives::{
    Alternative, Backward, ExplainError, Explained, LayoutChoice, explain_tensor,
};
pub use attentions::{attention_lines, find_attentions, find_functions, function_lines};
pub use difference::Difference;
pub use peak::{MemoryPeak, find_peak};

/// Seconds with a unit: `3.20 ms`.
pub fn format_seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.2} ms", s * 1e3),
        s => format!("{:.1} us", s * 1e6),
    }
}

/// Describes how a tensor waits for the backward pass: `gathered again from S(0)`.
pub fn describe_waiting(waits: &Waits) -> String {
    let sbp = waits.sbp.as_ref().map_or_else(|| "?".into(), NdSbp::to_string);
    match waits.way {
        WaitingWay::Kept => format!("kept as {sbp}"),
        WaitingWay::Gathered => format!("gathered again from {sbp}"),
        WaitingWay::Sliced => format!("sliced to {sbp} and gathered again"),
        WaitingWay::Recomputed => "recomputed".into(),
    }
}

/// A plan in one screen: stages, how tensors are split, boxing per step, predicted time and memory.
pub fn summary(plan: &Plan) -> String {
    let mut text = describe_plan(plan);
    if let Some(choice) = &plan.pipeline {
        let layers: Vec<String> = choice.layers.iter().map(usize::to_string).collect();
        let _ = writeln!(
            text,
            "pipeline: layers by stage {}, objective {} per step (bound {})",
            layers.join("+"),
            format_seconds(choice.seconds),
            format_seconds(choice.bound_seconds),
        );
    }
    text.push_str(&precision_lines(plan));
    if plan.regathered {
        text.push_str(
            "memory: short, so what the backward pass reads is kept for it, or gathered again, as is best\n",
        );
    }
    if plan.padded {
        let _ = writeln!(text, "padding: {}", padded_tensors(plan).join(", "));
    }
    text.push_str(&recomputed_line(plan));
    for stage in 0..plan.stages {
        text.push_str(&stage_lines(plan, stage));
    }
    text.push_str(&boxing_lines(plan));
    let peaks: Vec<String> =
        plan.predicted.peak_memory_bytes.iter().map(|&peak| format_bytes_briefly(peak)).collect();
    let _ = writeln!(
        text,
        "predicted: {} per step, bubble {:.1} %, peak memory {}",
        format_seconds(plan.predicted.step_seconds),
        plan.predicted.bubble_fraction * 100.0,
        peaks.join(", "),
    );
    text
}

/// Weights and logits that lie padded in memory, with the shapes that they have there.
fn padded_tensors(plan: &Plan) -> Vec<String> {
    let padded = plan.tensors.iter().filter(|tensor| tensor.name.ends_with(PADDED));
    padded.map(|tensor| format!("{} lies as {:?}", tensor.name, tensor.shape)).collect()
}

/// The precision that was asked for, and weights that have no f32 copy.
fn precision_lines(plan: &Plan) -> String {
    let mut text = String::new();
    match plan.options.precision {
        Some(DType::F32) => text.push_str("precision: f32, products of half operands too\n"),
        Some(DType::F8E4M3) => {
            let eighth = plan.layouts.iter().any(|layout| layout.dtype == DType::F8E4M3);
            let products = match eighth {
                true if plan.options.float8_recipe.is_rowwise() => {
                    "f8e4m3 for products of activations with weights"
                }
                true => "f8e4m3 for products of activations with weights, f8e5m2 for gradients",
                false => {
                    "no product in f8e4m3: none has a weight of multiples of 16 but that of the scores"
                }
            };
            let _ = writeln!(
                text,
                "precision: {products}; bf16 for other products, convolutions and attention, f32 for the rest"
            );
        }
        Some(dtype) => {
            let scaled = if has_loss_scale(plan) { ", the loss is scaled" } else { "" };
            let _ = writeln!(
                text,
                "precision: {dtype} for products, convolutions and attention, f32 for the rest{scaled}"
            );
        }
        None => {}
    }
    if let Some(said) = half_weights(plan) {
        let _ = writeln!(text, "weights: {said}");
    }
    text
}

/// The remark on a training plan whose weights are of half precision themselves.
pub fn half_weights(plan: &Plan) -> Option<String> {
    let half = |entry: &&TensorEntry| matches!(entry.dtype, DType::BF16 | DType::F16);
    let weights = || plan.tensors.iter().filter(|entry| entry.kind == TensorKind::Parameter);
    let (count, first) = (weights().filter(half).count(), weights().find(half)?);
    let (dtype, all) = (first.dtype, weights().count());
    plan.training.then(|| {
        format!(
            "{count} of {all} are {dtype} as the model has them, without an f32 copy: updates below their last bit are lost"
        )
    })
}

fn describe_plan(plan: &Plan) -> String {
    let status = match plan.planner.status {
        PlannerStatus::Optimal => "proven optimal".to_string(),
        PlannerStatus::Gap => format!("gap {:.2} %", plan.planner.gap * 100.0),
    };
    let tied = describe_tied_axes(&plan.planner.tied_axes);
    let effort = plan.options.effort.map(|percent| format!(", with {percent} % of the work"));
    let effort = effort.unwrap_or_default();
    format!(
        "plan `{}`: {} as {}, {}, {}, {}\n\
         planner: objective {}, bound {}, {status}{tied}{effort}\n",
        plan.name,
        number_of(plan.world_size, "rank", "ranks"),
        format_mesh(&plan.mesh),
        number_of(plan.stages, "stage", "stages"),
        number_of(plan.microbatches, "microbatch", "microbatches"),
        number_of(plan.programs.len(), "program", "programs"),
        format_seconds(plan.planner.objective_seconds),
        format_seconds(plan.planner.bound_seconds),
    )
}

/// Writes a number of something in words.
pub fn number_of(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

/// The axes that were planned as one, because there are too many.
fn describe_tied_axes(axes: &[usize]) -> String {
    if axes.is_empty() {
        return String::new();
    }
    let mut axes: Vec<String> = axes.iter().map(usize::to_string).collect();
    axes.sort_unstable();
    format!("; too many axes to plan each by itself: {} like the one before it", axes.join(", "))
}

/// Describes one stage: its ranks, and its tensors counted by kind and layout.
fn stage_lines(plan: &Plan, stage: usize) -> String {
    let tensors: Vec<&TensorEntry> = plan.tensors.iter().filter(|t| t.stage == stage).collect();
    let ranks =
        home_of_stage(plan, stage).map_or_else(String::new, |home| format_ranks(&home.ranks));
    let mut text = format!("stage {stage} on ranks {ranks}\n");
    let mut counts: BTreeMap<(TensorKind, String), Vec<&str>> = BTreeMap::new();
    for tensor in tensors {
        counts.entry((tensor.kind, tensor.sbp.to_string())).or_default().push(&tensor.name);
    }
    for ((kind, sbp), names) in counts {
        let kind = kind.name();
        let _ =
            writeln!(text, "  {kind:<10} {sbp:<12} {:>4}  {}", names.len(), list_examples(&names));
    }
    text
}

/// A tensor that lies where most of its stage's do: what a stage gives to others may lie elsewhere.
fn home_of_stage(plan: &Plan, stage: usize) -> Option<&TensorEntry> {
    let mut homes: Vec<(usize, &TensorEntry)> = Vec::new();
    for tensor in plan.tensors.iter().filter(|tensor| tensor.stage == stage) {
        let place = (&tensor.ranks, &tensor.hierarchy);
        match homes.iter_mut().find(|(_, home)| (&home.ranks, &home.hierarchy) == place) {
            Some((count, _)) => *count += 1,
            None => homes.push((1, tensor)),
        }
    }
    let first = homes.into_iter().rev();
    first.max_by_key(|(count, home)| (*count, home.ranks.len())).map(|(_, home)| home)
}

/// Ranks in the order in which they are given, three and more in a row as the first and the last: `0-7, 12, 13`.
fn format_ranks(ranks: &[u32]) -> String {
    let shown = |run: &[u32]| match run {
        [first, _, .., last] => format!("{first}-{last}"),
        few => few.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
    };
    ranks.chunk_by(|a, b| a.checked_add(1) == Some(*b)).map(shown).collect::<Vec<_>>().join(", ")
}

fn list_examples(names: &[&str]) -> String {
    let named: Vec<&str> = names.iter().copied().filter(|name| !name.starts_with('%')).collect();
    let shown = named.iter().take(3).copied().collect::<Vec<_>>().join(", ");
    if named.len() > 3 { format!("{shown}, ..") } else { shown }
}

/// Boxing per training step: kind, count, bytes of the busiest rank.
fn boxing_lines(plan: &Plan) -> String {
    let mut sums: BTreeMap<BoxingKind, (u64, u64)> = BTreeMap::new();
    for entry in &plan.boxing {
        let times = match entry.rate {
            Rate::Microbatch => plan.microbatches as u64,
            Rate::Step => 1,
        };
        let sum = sums.entry(entry.kind).or_default();
        *sum =
            (sum.0.saturating_add(times), sum.1.saturating_add(times.saturating_mul(entry.bytes)));
    }
    let messages = collective_counts(plan);
    let describe = |(kind, (count, sum)): (&BoxingKind, &(u64, u64))| {
        let in_messages = match messages.get(kind) {
            Some(&fewer) if (fewer as u64) < *count => {
                format!(" in {}", number_of(fewer, "message", "messages"))
            }
            _ => String::new(),
        };
        format!("{count} x {}{in_messages} ({})", kind.name(), format_bytes_briefly(*sum))
    };
    let parts: Vec<String> = sums.iter().map(describe).collect();
    let parts = if parts.is_empty() { "none".into() } else { parts.join(", ") };
    format!("boxing per step: {parts}\n")
}

/// Lists all tensors of the logical graph with their layouts.
pub fn tensors(plan: &Plan) -> String {
    let mut table = create_table(&["tensor", "kind", "type", "stage", "ranks", "mesh", "sbp"]);
    for t in &plan.tensors {
        table.add_row([
            t.name.clone(),
            t.kind.name().into(),
            format!("{}{:?}", t.dtype, t.shape),
            t.stage.to_string(),
            format_ranks(&t.ranks),
            format!("{:?}", t.hierarchy),
            t.sbp.to_string(),
        ]);
    }
    format!("{table}\n")
}

/// Lists all inserted boxing steps.
pub fn boxing(plan: &Plan) -> String {
    let mut table = create_table(&["tensor", "kind", "axis", "from", "to", "bytes", "rate"]);
    for entry in &plan.boxing {
        table.add_row([
            entry.tensor.clone(),
            entry.kind.name().into(),
            entry.axis.map_or_else(|| "-".into(), |axis| axis.to_string()),
            entry.from.to_string(),
            entry.to.to_string(),
            format_bytes_briefly(entry.bytes),
            entry.rate.name().into(),
        ]);
    }
    format!("{table}\n")
}

/// Programs: ranks, actors, memory against its lower bound.
pub fn programs(plan: &Plan) -> String {
    let mut table = create_table(&[
        "program",
        "stage",
        "ranks",
        "actors",
        "registers",
        "streams",
        "arena",
        "live",
    ]);
    for (index, program) in plan.programs.iter().enumerate() {
        let ranks = plan.ranks.iter().enumerate().filter(|(_, r)| r.program.index() == index);
        let ranks: Vec<u32> = ranks.map(|(rank, _)| rank as u32).collect();
        table.add_row([
            index.to_string(),
            program.stage.to_string(),
            format_ranks(&ranks),
            program.actors.len().to_string(),
            program.registers.len().to_string(),
            program.streams.len().to_string(),
            format_bytes_briefly(program.arena_bytes),
            format_bytes_briefly(program.live_bytes),
        ]);
    }
    format!("{table}\n")
}

fn create_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header);
    table
}

/// The line on what is computed again; nothing where nothing is.
fn recomputed_line(plan: &Plan) -> String {
    match plan.options.recompute {
        _ if !plan.training => String::new(),
        Recompute::None => String::new(),
        Recompute::Selective => "recomputed: what is cheap of all blocks\n".into(),
        Recompute::Full => "recomputed: all blocks\n".into(),
        Recompute::Auto if plan.recomputed.is_empty() => String::new(),
        Recompute::Auto => format!("recomputed: {}\n", recomputed_ops(&plan.recomputed)),
    }
}

/// The ops that are computed again, and in how many blocks, those of most blocks first.
fn recomputed_ops(all: &[RecomputedOps]) -> String {
    let mut blocks: BTreeMap<(usize, &str), usize> = BTreeMap::new();
    for some in all {
        for op in &some.ops {
            *blocks.entry((op.place, &op.op)).or_default() += some.blocks.len();
        }
    }
    let mut by_count: BTreeMap<Reverse<usize>, Vec<&str>> = BTreeMap::new();
    for ((_, op), count) in blocks {
        by_count.entry(Reverse(count)).or_default().push(op);
    }
    let line = |(Reverse(count), ops): (&Reverse<usize>, &Vec<&str>)| {
        format!("{} in {}", count_names(ops), number_of(*count, "block", "blocks"))
    };
    by_count.iter().map(line).collect::<Vec<_>>().join("; ")
}

/// Names, each once, with how often it stands there if that is more than once.
fn count_names(names: &[&str]) -> String {
    let mut seen: Vec<(&str, usize)> = Vec::new();
    for &name in names {
        match seen.iter_mut().find(|known| known.0 == name) {
            Some(known) => known.1 += 1,
            None => seen.push((name, 1)),
        }
    }
    let one = |&(name, count): &(&str, usize)| match count {
        1 => name.to_owned(),
        _ => format!("{count} {name}"),
    };
    seen.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::format_ranks;

    #[test]
    fn ranks_in_a_row_are_shown_by_their_ends() {
        assert_eq!(format_ranks(&[0, 1, 2, 3]), "0-3");
        assert_eq!(format_ranks(&[0, 1]), "0, 1");
        assert_eq!(format_ranks(&[8, 9, 10, 4, 6, 7]), "8-10, 4, 6, 7");
        assert_eq!(format_ranks(&[3]), "3");
        assert_eq!(format_ranks(&[]), "");
    }
}
