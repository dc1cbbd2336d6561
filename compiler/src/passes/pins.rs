//! The layouts that a user asks for, by the builder or by name.

use graphc_ir::graph::Graph;
use graphc_ir::ids::ValueId;
use graphc_ir::pattern::matches_pattern;
use graphc_ir::sbp::NdSbp;
use graphc_ir::text::nearest_name;
use graphc_plan::{CompileOptions, Pin};

use crate::passes::GRADIENT;
use crate::passes::error::PassError;

/// The layout that is asked for of a value: that of the last option whose pattern fits its name, else the graph's own.
pub(crate) fn pin_of(graph: &Graph, value: ValueId, options: &CompileOptions) -> Option<NdSbp> {
    let value = graph.value(value);
    let named =
        |pin: &&Pin| value.name.as_deref().is_some_and(|name| pin_matches_name(&pin.pattern, name));
    let option = options.pins.iter().rev().find(named).map(|pin| pin.sbp.clone());
    option.or_else(|| value.pin.clone())
}

/// Whether a pin means the tensor of a name: a pattern fits what the user wrote, and gradients, updates and whatever else the compiler
/// makes of them only where it says so itself.
pub fn pin_matches_name(pattern: &str, name: &str) -> bool {
    let made = [GRADIENT];
    matches_pattern(pattern, name)
        && made.iter().all(|made| !name.starts_with(made) || pattern.starts_with(made))
}

/// Checks that every pattern fits a name of one of the graphs.
///
/// # Errors
/// The first pattern that fits none.
pub(crate) fn check_pins(graphs: &[&Graph], options: &CompileOptions) -> Result<(), PassError> {
    let values = || graphs.iter().flat_map(|graph| &graph.values);
    let names: Vec<&str> = values().filter_map(|value| value.name.as_deref()).collect();
    match options
        .pins
        .iter()
        .find(|pin| !names.iter().any(|name| pin_matches_name(&pin.pattern, name)))
    {
        None => Ok(()),
        Some(Pin { pattern, .. }) => Err(PassError::PinUnknown {
            pattern: pattern.clone(),
            nearest: find_close_name(pattern, &names).map(str::to_string),
        }),
    }
}

/// A name that is close to a pattern: one that has one of its parts, or is written alike.
pub(super) fn find_close_name<'a>(pattern: &str, names: &[&'a str]) -> Option<&'a str> {
    let longest = pattern.split('*').max_by_key(|part| part.len()).unwrap_or("");
    // Gradients where the pattern is of one, and what the user wrote where it is not.
    let gradients = pattern.starts_with(GRADIENT);
    let written =
        || names.iter().copied().filter(move |name| name.starts_with(GRADIENT) == gradients);
    let near = nearest_name(pattern, written()).or_else(|| nearest_name(longest, written()));
    near.or_else(|| written().find(|name| longest.len() > 2 && name.contains(longest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_means_gradients_only_where_it_says_so() {
        assert!(
            pin_matches_name("*weight", "fc.weight")
                && !pin_matches_name("*weight", "grad.fc.weight")
        );
        assert!(
            pin_matches_name("grad.*", "grad.fc.weight")
                && pin_matches_name("grad.fc.weight", "grad.fc.weight")
        );
    }

    #[test]
    fn names_close_to_a_pattern_are_found() {
        let names = ["grad.fc1.weight", "fc1.weight", "fc1.bias"];
        assert_eq!(find_close_name("fc1.wieght", &names), Some("fc1.weight"));
        assert_eq!(find_close_name("*c1.biass", &names), Some("fc1.bias"));
        assert_eq!(find_close_name("layer*.bias", &names), Some("fc1.bias"));
        assert_eq!(find_close_name("grad.fc1.wieght", &names), Some("grad.fc1.weight"));
        assert_eq!(find_close_name("q*z", &names), None);
    }

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, name, expected) in [
            ("w", "w", true),
            ("w", "w2", false),
            ("*", "", true),
            ("h.*.weight", "h.0.mlp.weight", true),
            ("h.*.weight", "h.0.bias", false),
            ("*.a*b", "x.aab", true),
            ("*a*a", "a", false),
            ("a*a", "a", false),
        ] {
            assert_eq!(matches_pattern(pattern, name), expected, "{pattern} {name}");
        }
    }
}
