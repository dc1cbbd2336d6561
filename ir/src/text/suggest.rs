//! The nearest of several names, for "did you mean".

/// The candidate nearest to `name` by edit distance; `None` where none is near.
pub fn nearest_name<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let limit = name.chars().count().max(3) / 3;
    candidates
        .into_iter()
        .map(|candidate| (edit_distance(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns the words that name the nearest, behind what a message says is missing; nothing where none is near.
pub fn suggest_name(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!(" (did you mean `{name}`?)"))
}

/// The insertions, deletions, substitutions and swaps of neighbours that lead from one name to the other, letter case apart.
fn edit_distance(from: &str, to: &str) -> usize {
    strsim::osa_distance(&from.to_lowercase(), &to.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::nearest_name;

    #[test]
    fn a_slip_is_forgiven_and_another_word_is_not() {
        assert_eq!(nearest_name("matmull", ["relu", "matmul"]), Some("matmul"));
        assert_eq!(nearest_name("Rleu", ["relu", "matmul"]), Some("relu"));
        assert_eq!(nearest_name("erly", ["relu", "matmul"]), None);
        assert_eq!(nearest_name("relo", ["relu", "matmul"]), Some("relu"));
        assert_eq!(nearest_name("convolution", ["relu", "matmul"]), None);
    }
}
