//! How predictions compare with what was measured.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::row::Row;

/// Errors, order and choices over some rows, as text. Rows without a measurement are left out.
pub fn summary(rows: &[Row], predicted: &[f64]) -> String {
    let known: Vec<(&Row, f64, f64)> = (rows.iter().zip(predicted))
        .filter_map(|(row, &seconds)| Some((row, row.measured?, seconds)))
        .collect();
    let mut text = String::new();
    if known.is_empty() {
        return text;
    }
    let error = |(_, measured, predicted): &(&Row, f64, f64)| (predicted / measured - 1.0).abs();
    let mean = |all: &mut dyn Iterator<Item = f64>| {
        let (sum, count) = all.fold((0.0, 0usize), |(sum, count), e| (sum + e, count + 1));
        100.0 * sum / count.max(1) as f64
    };
    let _ = writeln!(
        text,
        "mean absolute error {:.1} % over {} rows; {:.1} % over the even, {:.1} % over the odd",
        mean(&mut known.iter().map(error)),
        known.len(),
        mean(&mut known.iter().step_by(2).map(error)),
        mean(&mut known.iter().skip(1).step_by(2).map(error)),
    );
    let mut groups: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for (row, measured, predicted) in &known {
        groups.entry(&row.group).or_default().push((*measured, *predicted));
    }
    let (mut right, mut pairs, mut worst) = (0, 0, 1.0f64);
    for group in groups.values().filter(|group| group.len() > 1) {
        let (in_order, all) = order(group);
        (right, pairs) = (right + in_order, pairs + all);
        worst = worst.max(regret(group));
    }
    if pairs > 0 {
        let _ = writeln!(
            text,
            "{:.1} % of {pairs} pairs of one model on equally many GPUs that are over 10 % apart are in order",
            100.0 * right as f64 / pairs as f64
        );
        let _ = writeln!(
            text,
            "the layout predicted best is at most {:.1} % slower than its group's best",
            100.0 * (worst - 1.0)
        );
    }
    text
}

/// Of pairs measured more than 10 % apart: how many are predicted in that order, and how many there are.
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

/// How much slower, as measured, the layout predicted best is than the best.
fn regret(group: &[(f64, f64)]) -> f64 {
    let best = group.iter().map(|entry| entry.0).fold(f64::INFINITY, f64::min);
    let chosen = group.iter().min_by(|a, b| a.1.total_cmp(&b.1));
    chosen.map_or(1.0, |chosen| chosen.0 / best)
}
