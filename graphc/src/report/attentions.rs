//! Reports on attention in a plan, and on the functions that its model writes in parts.

use std::fmt::Write as _;

use graphc_compiler::passes::attention::Attentions;
use graphc_compiler::passes::functions::Functions;
use graphc_compiler::pipeline::{attentions_of, functions_of};
use graphc_ir::text;
use graphc_plan::Plan;

/// Finds out how a plan's graph computes attention; `None` if it has none, or cannot be read.
pub fn find_attentions(plan: &Plan) -> Option<Attentions> {
    let graph = text::parse_graph(&plan.graph.join("\n")).ok()?;
    let found = attentions_of(graph, &plan.options).ok()?;
    (found.whole > 0 || !found.in_parts.is_empty()).then_some(found)
}

/// Describes attention in a line, with one more line for each reason why some is left in parts.
pub fn attention_lines(found: &Attentions) -> String {
    let parts: usize = found.in_parts.values().map(Vec::len).sum();
    let mut text = format!("attention: {} as one op, {parts} in parts\n", found.whole);
    for (kept, names) in &found.in_parts {
        let _ = writeln!(text, "  in parts: {}: {}", first_of(names), kept.reason());
    }
    text
}

/// The functions that a plan's graph writes in parts; `None` where there are none, or it cannot be read.
pub fn find_functions(plan: &Plan) -> Option<Functions> {
    let graph = text::parse_graph(&plan.graph.join("\n")).ok()?;
    let found = functions_of(graph, &plan.options).ok()?;
    (found != Functions::default()).then_some(found)
}

/// Describes functions in a line, with one more line for each function and reason why some are left in parts.
pub fn function_lines(found: &Functions) -> String {
    let whole = found.whole.iter().map(|(name, count)| format!("{count} {name}"));
    let whole = match found.whole.len() {
        0 => "none".into(),
        _ => whole.collect::<Vec<_>>().join(", "),
    };
    let parts: usize = found.in_parts.values().map(Vec::len).sum();
    let mut text = format!("functions in parts: {whole} as one op each, {parts} in parts\n");
    for ((held, name), values) in &found.in_parts {
        let _ = writeln!(text, "  {name} in parts: {}: {}", first_of(values), held.reason());
    }
    text
}

/// The first of some names, and how many more there are.
fn first_of(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => format!("`{one}`"),
        [first, more @ ..] => format!("`{first}` and {} more", more.len()),
    }
}

#[cfg(test)]
mod tests {
    use graphc_compiler::passes::attention::Kept;
    use graphc_compiler::passes::joined::Held;

    use super::*;

    #[test]
    fn each_reason_has_a_line() {
        let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        let in_parts = [
            (Kept::Dropout, names(&["a", "b", "c"])),
            (Kept::Other("cumulative_sum"), names(&["d"])),
        ];
        let found = Attentions { whole: 5, in_parts: in_parts.into() };
        let expected = "attention: 5 as one op, 4 in parts
  in parts: `a` and 2 more: weights are dropped twice
  in parts: `d`: the op `cumulative_sum` within
";
        assert_eq!(attention_lines(&found), expected);
    }

    #[test]
    fn functions_are_counted_by_their_names() {
        let in_parts = [((Held::Pinned, "silu"), vec!["gate".to_string()])].into();
        let found = Functions { whole: [("gelu", 2), ("rms_norm", 5)].into(), in_parts };
        let expected = "functions in parts: 2 gelu, 5 rms_norm as one op each, 1 in parts
  silu in parts: `gate`: a layout is asked for inside
";
        assert_eq!(function_lines(&found), expected);
    }
}
