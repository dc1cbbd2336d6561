//! Compares predictions of published trainings with measurements, for each source and framework.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{Outcome, Predicted};

/// A row that was measured and predicted.
struct Known<'a> {
    outcome: &'a Outcome,
    /// The features that the prediction leaves out.
    left_out: &'a [&'static str],
    measured: f64,
    predicted: f64,
}

impl<'a> Known<'a> {
    fn of(outcome: &'a Outcome) -> Option<Self> {
        let Predicted { seconds, left_out } = outcome.predicted.as_ref().ok()?;
        Some(Self { outcome, left_out, measured: outcome.row.step?, predicted: *seconds })
    }

    /// Seconds for a sequence, measured and predicted.
    fn each(&self) -> (f64, f64) {
        let batch = self.outcome.row.global_batch as f64;
        (self.measured / batch, self.predicted / batch)
    }
}

/// A table for each source and framework, as text.
pub fn summary(outcomes: &[Outcome]) -> String {
    let mut sources: BTreeMap<(String, &str), Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes {
        let row = &outcome.row;
        sources.entry((short(&row.source), &row.framework)).or_default().push(outcome);
    }
    let mut text = String::new();
    for ((source, framework), outcomes) in &sources {
        let _ = writeln!(text, "\n{source}, {framework}: {} rows", outcomes.len());
        text += &errors(outcomes);
        text += &orders(outcomes);
        text += &memory(outcomes);
        text += &unsaid(outcomes);
    }
    text
}

/// The repository or site of a source: of several pages of one repository the repository.
fn short(source: &str) -> String {
    let first = source.split_whitespace().next().unwrap_or_default();
    first.strip_prefix("github:").unwrap_or(first).to_owned()
}

/// Errors over rows that are said as they are, and over those of which something is left out.
fn errors(outcomes: &[&Outcome]) -> String {
    let mut groups: BTreeMap<String, Vec<Known<'_>>> = BTreeMap::new();
    for known in outcomes.iter().filter_map(|outcome| Known::of(outcome)) {
        let name = match known.left_out {
            [] => "as they are".to_owned(),
            what => format!("without {}", what.join(", ")),
        };
        groups.entry(name).or_default().push(known);
    }
    let mut text = String::new();
    for (name, known) in &groups {
        let ratios: Vec<f64> = known.iter().map(|known| known.predicted / known.measured).collect();
        let of = |indices: fn(usize) -> bool| {
            let of =
                known.iter().zip(&ratios).filter(|(known, _)| indices(known.outcome.row.index));
            let errors: Vec<f64> = of.map(|(_, ratio)| 100.0 * (ratio - 1.0).abs()).collect();
            if errors.is_empty() { "none".to_owned() } else { format!("{:.1}", mean(&errors)) }
        };
        let logarithms: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
        let _ = writeln!(
            text,
            "  {:3} {name}: mean error {} % (even {}, odd {}), bias {:.3}",
            known.len(),
            of(|_| true),
            of(|index| index % 2 == 0),
            of(|index| index % 2 == 1),
            mean(&logarithms).exp()
        );
    }
    text
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Pairs of one model on the same cards in order, and the place of the fastest of each sweep among the predictions.
fn orders(outcomes: &[&Outcome]) -> String {
    let mut sweeps: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for known in outcomes.iter().filter_map(|outcome| Known::of(outcome)) {
        let row = &known.outcome.row;
        let shape = (row.layers, row.hidden, row.sequence);
        let sweep = format!("{} {shape:?} on {} {}", row.model, row.gpus, row.gpu);
        sweeps.entry(sweep).or_default().push(known.each());
    }
    let (mut right, mut pairs, mut places) = (0, 0, Vec::new());
    for sweep in sweeps.values() {
        let (in_order, all) = order(sweep);
        (right, pairs) = (right + in_order, pairs + all);
        if all > 0 {
            places.push(place_of_best(sweep).to_string());
        }
    }
    if pairs == 0 {
        return String::new();
    }
    let share = 100.0 * right as f64 / pairs as f64;
    let places = places.join(", ");
    format!(
        "  {share:.1} % of {pairs} pairs in order; the fastest of each sweep is predicted to be number {places}\n"
    )
}

/// Counts the pairs measured more than 10 % apart: those that are predicted in that order, and all.
fn order(sweep: &[(f64, f64)]) -> (usize, usize) {
    let (mut right, mut pairs) = (0, 0);
    for (index, a) in sweep.iter().enumerate() {
        for b in &sweep[index + 1..] {
            if (a.0 - b.0).abs() > 0.1 * a.0.min(b.0) {
                pairs += 1;
                right += usize::from((a.0 < b.0) == (a.1 < b.1));
            }
        }
    }
    (right, pairs)
}

/// The place, counted from 1, of what was measured fastest, in the order of predictions.
fn place_of_best(sweep: &[(f64, f64)]) -> usize {
    let best = sweep.iter().min_by(|a, b| a.0.total_cmp(&b.0)).map_or(0.0, |best| best.1);
    1 + sweep.iter().filter(|row| row.1 < best).count()
}

/// Describes how many rows that fit their cards are said to fit, and how many that did not fit are found too large.
fn memory(outcomes: &[&Outcome]) -> String {
    let known =
        || outcomes.iter().filter_map(|outcome| Some((outcome.row.too_large, outcome.memory?)));
    let count = |too_large: bool| {
        let of = known().filter(|(large, _)| *large == too_large);
        let right = of.clone().filter(|(_, (peak, has))| (peak > has) == too_large).count();
        (right, of.count())
    };
    if known().count() == 0 {
        return String::new();
    }
    let ((fit, ran), (large, failed)) = (count(false), count(true));
    format!(
        "  of {ran} that fit {fit} are said to, of {failed} that did not {large} are said not to\n"
    )
}

/// Lists the reasons why rows cannot be expressed, with the number of rows for each.
fn unsaid(outcomes: &[&Outcome]) -> String {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for why in outcomes.iter().filter_map(|outcome| outcome.predicted.as_ref().err()) {
        *reasons.entry(why).or_default() += 1;
    }
    let line = |(why, count): (&&str, &usize)| format!("  {count:3} cannot be said: {why}\n");
    reasons.iter().map(line).collect()
}
