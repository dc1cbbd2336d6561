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

/// Insertions, deletions and substitutions that lead from one name to the other, letter case apart.
fn edit_distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.to_lowercase().chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, &b) in to.iter().enumerate() {
            let substituted = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::nearest_name;

    #[test]
    fn a_slip_is_forgiven_and_another_word_is_not() {
        assert_eq!(nearest_name("matmull", ["relu", "matmul"]), Some("matmul"));
        assert_eq!(nearest_name("Rleu", ["relu", "matmul"]), None);
        assert_eq!(nearest_name("relo", ["relu", "matmul"]), Some("relu"));
        assert_eq!(nearest_name("convolution", ["relu", "matmul"]), None);
    }
}
