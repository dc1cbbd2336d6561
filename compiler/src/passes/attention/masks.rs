//! Decides by its elements which keys a mask leaves.

use std::num::NonZeroU32;

use graphc_ir::array::Array;
use graphc_ir::types::DType;

/// The greatest number that stands for no score: whatever is added to it, softmax makes it exactly 0.
const LOW: f64 = -1e9;

/// The keys that a mask leaves each query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeenKeys {
    /// All keys.
    All,
    /// The keys before and at the query's place.
    Past,
    /// The last so many of the keys before and at the query's place.
    Near(NonZeroU32),
}

/// Returns the keys that are left when an array is added to scores `[.., queries, keys]` and the sum is multiplied by a factor. `None` if it is no
/// mask, or one of another form.
pub(super) fn find_seen_keys(
    mask: &Array,
    dtype: DType,
    factor: f64,
    [queries, keys]: [usize; 2],
) -> Option<SeenKeys> {
    if mask.data.iter().all(|&x| x == 0.0) {
        return Some(SeenKeys::All);
    }
    let hides = |x: f64| is_low(x, dtype, factor);
    if mask.data.iter().any(|&x| x != 0.0 && !hides(x)) {
        return None;
    }
    let matrix = mask.shape.len() >= 2 && mask.shape[mask.shape.len() - 2..] == [queries, keys];
    if !matrix || queries != keys {
        return None;
    }
    // The last query of all tells how many keys there are at most.
    let window = mask.data.iter().rev().take(keys).filter(|&&x| x == 0.0).count();
    let is_near = |(position, &x): (usize, &f64)| {
        let (query, key) = (position / keys % queries, position % keys);
        (key <= query && query < key + window) == (x == 0.0)
    };
    if !mask.data.iter().enumerate().all(is_near) {
        return None;
    }
    if window == keys {
        return Some(SeenKeys::Past);
    }
    u32::try_from(window).ok().and_then(NonZeroU32::new).map(SeenKeys::Near)
}

/// Whether a number hides a key: it is very low, or the lowest of its type and the factor brings it no nearer to 0.
pub(super) fn is_low(x: f64, dtype: DType, factor: f64) -> bool {
    let lowest = match dtype {
        DType::F16 => -65504.0,
        _ => LOW,
    };
    factor > 0.0 && (x <= LOW && x * factor <= LOW || x <= lowest && factor >= 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HIDDEN: f64 = f64::NEG_INFINITY;

    fn of(shape: &[usize], data: &[f64]) -> Option<SeenKeys> {
        find_seen_keys(&Array::new(shape, data.to_vec()), DType::F32, 1.0, [2, 2])
    }

    #[test]
    fn a_mask_is_known_by_what_it_hides() {
        assert_eq!(of(&[1, 1], &[0.0]), Some(SeenKeys::All));
        assert_eq!(of(&[2, 2], &[0.0, HIDDEN, 0.0, 0.0]), Some(SeenKeys::Past));
        assert_eq!(of(&[1, 1, 2, 2], &[0.0, -1e10, 0.0, 0.0]), Some(SeenKeys::Past));
        let samples = [0.0, HIDDEN, 0.0, 0.0, 0.0, HIDDEN, 0.0, HIDDEN];
        assert_eq!(of(&[2, 2, 2], &samples), None, "the second has a shorter past");
        assert_eq!(of(&[2, 2], &[0.0, 0.0, HIDDEN, 0.0]), None);
        assert_eq!(of(&[2, 2], &[HIDDEN, HIDDEN, 0.0, 0.0]), None);
        assert_eq!(of(&[2, 1], &[HIDDEN, 0.0]), None);
        assert_eq!(of(&[2], &[0.0, HIDDEN]), None);
        assert_eq!(of(&[2, 2], &[0.0, -1e4, 0.0, 0.0]), None);
        assert_eq!(of(&[2, 2], &[0.0, HIDDEN, f64::NAN, 0.0]), None);
    }

    #[test]
    fn a_window_is_known_by_the_last_row() {
        let near = |query: usize, key: usize| key <= query && query < key + 2;
        let of = |seen: &dyn Fn(usize, usize) -> bool| {
            let all = (0..16).map(|at| if seen(at / 4, at % 4) { 0.0 } else { HIDDEN });
            seen4(&Array::new([4, 4], all.collect()))
        };
        assert_eq!(of(&near), Some(SeenKeys::Near(NonZeroU32::new(2).expect("is no zero"))));
        assert_eq!(of(&|query, key| near(query, key) || key == 0), None);
        assert_eq!(of(&|query, key| near(query, key) && query != key), None);
    }

    fn seen4(mask: &Array) -> Option<SeenKeys> {
        find_seen_keys(mask, DType::F32, 1.0, [4, 4])
    }

    #[test]
    fn the_lowest_number_of_halves_hides_unless_it_is_scaled() {
        let mask = Array::new([2, 2], vec![0.0, -65504.0, 0.0, 0.0]);
        assert_eq!(find_seen_keys(&mask, DType::F16, 1.0, [2, 2]), Some(SeenKeys::Past));
        assert_eq!(find_seen_keys(&mask, DType::F16, 0.125, [2, 2]), None);
        assert_eq!(find_seen_keys(&mask, DType::F32, 1.0, [2, 2]), None);
        let low = Array::new([2, 2], vec![0.0, HIDDEN, 0.0, 0.0]);
        assert_eq!(find_seen_keys(&low, DType::F32, -1.0, [2, 2]), None);
        assert_eq!(find_seen_keys(&low, DType::F32, 1.0, [2, 3]), None);
    }
}
