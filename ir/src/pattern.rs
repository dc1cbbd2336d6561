//! Patterns of names.

use crate::text::nearest_name;

/// Whether a name fits a pattern, in which `*` stands for any characters.
pub fn matches_pattern(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

/// Returns the pattern nearest to one that fits no name. Of a pattern like `*.q_prj.weight` the parts behind the star are compared with as many
/// last parts of each name, so that the nearest is `*.q_proj.weight`.
pub fn nearest_pattern<'a>(
    pattern: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    let Some(end) = pattern.strip_prefix("*.").filter(|end| !end.contains('*')) else {
        return nearest_name(pattern, names).map(str::to_owned);
    };
    let parts = end.split('.').count();
    let last_parts = |name: &'a str| {
        let begin = name.rmatch_indices('.').nth(parts - 1).map_or(0, |(at, _)| at + 1);
        &name[begin..]
    };
    nearest_name(end, names.into_iter().map(last_parts)).map(|near| format!("*.{near}"))
}

#[cfg(test)]
mod tests {
    use super::{matches_pattern, nearest_pattern};

    #[test]
    fn the_nearest_pattern_has_the_star_of_the_one_that_fits_nothing() {
        let names = ["h.0.attn.q_proj.weight", "h.0.attn.q_proj.bias", "wte.weight"];
        let nearest = |pattern| nearest_pattern(pattern, names);
        assert_eq!(nearest("*.q_prj.weight").as_deref(), Some("*.q_proj.weight"));
        assert_eq!(nearest("wte.wieght").as_deref(), Some("wte.weight"));
        assert_eq!(nearest("*.convolution.*"), None);
    }

    #[test]
    fn a_star_stands_for_any_text() {
        assert!(matches_pattern("*", "a.b"));
        assert!(matches_pattern("a.*.weight", "a.0.weight"));
        assert!(matches_pattern("*bias*", "x.bias"));
        assert!(matches_pattern("*b*b*", "abab.b"));
        assert!(!matches_pattern("a.*.weight", "a.0.bias"));
        assert!(!matches_pattern("a", "ab"));
        assert!(!matches_pattern("ab*ba", "aba"));
    }
}
