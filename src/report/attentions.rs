//! How a plan computes attention.

use std::fmt::Write as _;

use graphc_compiler::passes::attention::Attentions;
use graphc_compiler::pipeline::attentions_of;
use graphc_ir::plan::Plan;
use graphc_ir::text;

/// How a plan's graph computes attention; `None` where it has none, or cannot be read.
pub fn attentions(plan: &Plan) -> Option<Attentions> {
    let graph = text::parse(&plan.graph.join("\n")).ok()?;
    let found = attentions_of(graph, &plan.options).ok()?;
    (found.whole > 0 || !found.in_parts.is_empty()).then_some(found)
}

/// The same in a line, and one more for each reason why some is left in parts.
pub fn attention_lines(found: &Attentions) -> String {
    let parts: usize = found.in_parts.values().map(Vec::len).sum();
    let mut text = format!("attention: {} as one op, {parts} in parts\n", found.whole);
    for (kept, names) in &found.in_parts {
        let more = match names.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let _ = writeln!(text, "  in parts: `{}`{more}: {}", names[0], kept.reason());
    }
    text
}

#[cfg(test)]
mod tests {
    use graphc_compiler::passes::attention::Kept;

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
  in parts: `a` and 2 more: dropout of the weights
  in parts: `d`: the op `cumulative_sum` within
";
        assert_eq!(attention_lines(&found), expected);
    }
}
