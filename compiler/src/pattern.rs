//! Patterns of names.

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

#[cfg(test)]
mod tests {
    use super::matches_pattern;

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
