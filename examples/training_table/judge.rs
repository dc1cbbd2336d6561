//! Compares predictions with measurements.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::row::{Layout, Row};

/// A row that was measured: its index in the table, what was measured and what was predicted.
struct Known<'a> {
    index: usize,
    row: &'a Row,
    measured: f64,
    predicted: f64,
}

/// Errors, order and choices over some rows, for each kind of machine that the table names, as text. Rows without a
/// measurement are left out.
pub fn summary(rows: &[Row], predicted: &[f64]) -> String {
    let mut machines: BTreeMap<&str, Vec<Known<'_>>> = BTreeMap::new();
    for (index, (row, &predicted)) in rows.iter().zip(predicted).enumerate() {
        if let Some(measured) = row.measured {
            let known = Known { index, row, measured, predicted };
            machines.entry(row.cluster.as_deref().unwrap_or("")).or_default().push(known);
        }
    }
    let mut text = String::new();
    for (name, known) in &machines {
        let name = if name.is_empty() { String::new() } else { format!("{name}: ") };
        let _ = writeln!(text, "{name}mean absolute error {}", errors(known));
        text += &orders(known);
    }
    text
}

/// Mean errors over all rows, those of even index and the others.
fn errors(known: &[Known<'_>]) -> String {
    let mean = |wanted: &dyn Fn(usize) -> bool| {
        let of = known.iter().filter(|known| wanted(known.index));
        let errors: Vec<f64> =
            of.map(|known| (known.predicted / known.measured - 1.0).abs()).collect();
        100.0 * errors.iter().sum::<f64>() / errors.len().max(1) as f64
    };
    format!(
        "{:.1} % over {} rows; {:.1} % over the even, {:.1} % over the odd",
        mean(&|_| true),
        known.len(),
        mean(&|index| index % 2 == 0),
        mean(&|index| index % 2 == 1)
    )
}

/// Describes how many pairs are in order, and how good the choices are.
fn orders(known: &[Known<'_>]) -> String {
    let mut groups: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for Known { row, measured, predicted, .. } in known {
        groups.entry(&row.group).or_default().push((*measured, *predicted));
    }
    let (mut right, mut pairs, mut worst) = (0, 0, 1.0f64);
    for group in groups.values().filter(|group| group.len() > 1) {
        let (in_order, all) = order(group);
        (right, pairs) = (right + in_order, pairs + all);
        worst = worst.max(regret(group));
    }
    if pairs == 0 {
        return String::new();
    }
    let share = 100.0 * right as f64 / pairs as f64;
    match known[0].row.layout {
        Layout::Megatron(_) => format!(
            "{share:.1} % of {pairs} pairs of one model on equally many GPUs that are over 10 % apart are in order\n\
             the layout predicted best is at most {:.1} % slower than its group's best\n",
            100.0 * (worst - 1.0)
        ),
        // Rows of one group take different batches, so the least is no choice.
        Layout::Fsdp(_) => format!(
            "{share:.1} % of {pairs} pairs of one model that are over 10 % apart are in order\n"
        ),
    }
}

/// Counts the pairs measured more than 10 % apart: those that are predicted in that order, and all.
fn order(group: &[(f64, f64)]) -> (usize, usize) {
    let (mut right, mut pairs) = (0, 0);
    for (index, a) in group.iter().enumerate() {
        for b in &group[index + 1..] {
            if (a.0 - b.0).abs() > 0.1 * a.0.min(b.0) {
                pairs += 1;
                right += usize::from((a.0 < b.0) == (a.1 < b.1));
            }
        }
    }
    (right, pairs)
}

/// Returns the measured time of the layout that was predicted best, as a multiple of the best measured time.
fn regret(group: &[(f64, f64)]) -> f64 {
    let best = group.iter().map(|entry| entry.0).fold(f64::INFINITY, f64::min);
    let chosen = group.iter().min_by(|a, b| a.1.total_cmp(&b.1));
    chosen.map_or(1.0, |chosen| chosen.0 / best)
}
