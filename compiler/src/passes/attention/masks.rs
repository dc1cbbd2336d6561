//! Which keys a mask leaves, by its elements.

use graphc_ir::array::Array;
use graphc_ir::types::DType;

use super::kept::Kept;

/// What is at most this is no score: whatever is added to it, softmax makes it exactly 0.
const LOW: f64 = -1e9;

/// The keys that a mask leaves each query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// All.
    All,
    /// As many as stand before and at the query's place.
    Past,
}

/// The keys that are left where an array is added to scores `[.., queries, keys]` that are then multiplied by a factor.
pub(super) fn seen(
    mask: &Array,
    dtype: DType,
    factor: f64,
    [queries, keys]: [usize; 2],
) -> Result<Seen, Kept> {
    if mask.data.iter().all(|&x| x == 0.0) {
        return Ok(Seen::All);
    }
    let hides = |x: f64| is_low(x, dtype, factor);
    if mask.data.iter().any(|&x| x != 0.0 && !hides(x)) {
        return Err(Kept::Bias);
    }
    let matrix = mask.shape.len() >= 2 && mask.shape[mask.shape.len() - 2..] == [queries, keys];
    if !matrix || queries != keys {
        return Err(Kept::OtherMask);
    }
    let is_causal = |(position, &x): (usize, &f64)| {
        let (query, key) = (position / keys % queries, position % keys);
        (key <= query) == (x == 0.0)
    };
    let causal = mask.data.iter().enumerate().all(is_causal);
    if causal { Ok(Seen::Past) } else { Err(Kept::OtherMask) }
}

/// Whether a number hides a key: a large one, or the lowest of its type where nothing brings it nearer to 0.
fn is_low(x: f64, dtype: DType, factor: f64) -> bool {
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

    fn of(shape: &[usize], data: &[f64]) -> Result<Seen, Kept> {
        seen(&Array::new(shape, data.to_vec()), DType::F32, 1.0, [2, 2])
    }

    #[test]
    fn a_mask_is_known_by_what_it_hides() {
        assert_eq!(of(&[1, 1], &[0.0]), Ok(Seen::All));
        assert_eq!(of(&[2, 2], &[0.0, HIDDEN, 0.0, 0.0]), Ok(Seen::Past));
        assert_eq!(of(&[1, 1, 2, 2], &[0.0, -1e10, 0.0, 0.0]), Ok(Seen::Past));
        let samples = [0.0, HIDDEN, 0.0, 0.0, 0.0, HIDDEN, 0.0, HIDDEN];
        assert_eq!(of(&[2, 2, 2], &samples), Err(Kept::OtherMask), "the second has a shorter past");
        assert_eq!(of(&[2, 2], &[0.0, 0.0, HIDDEN, 0.0]), Err(Kept::OtherMask));
        assert_eq!(of(&[2, 2], &[HIDDEN, HIDDEN, 0.0, 0.0]), Err(Kept::OtherMask));
        assert_eq!(of(&[2, 1], &[HIDDEN, 0.0]), Err(Kept::OtherMask));
        assert_eq!(of(&[2], &[0.0, HIDDEN]), Err(Kept::OtherMask));
        assert_eq!(of(&[2, 2], &[0.0, -1e4, 0.0, 0.0]), Err(Kept::Bias));
        assert_eq!(of(&[2, 2], &[0.0, HIDDEN, f64::NAN, 0.0]), Err(Kept::Bias));
    }

    #[test]
    fn the_lowest_number_of_halves_hides_unless_it_is_scaled() {
        let mask = Array::new([2, 2], vec![0.0, -65504.0, 0.0, 0.0]);
        assert_eq!(seen(&mask, DType::F16, 1.0, [2, 2]), Ok(Seen::Past));
        assert_eq!(seen(&mask, DType::F16, 0.125, [2, 2]), Err(Kept::Bias));
        assert_eq!(seen(&mask, DType::F32, 1.0, [2, 2]), Err(Kept::Bias));
        let low = Array::new([2, 2], vec![0.0, HIDDEN, 0.0, 0.0]);
        assert_eq!(seen(&low, DType::F32, -1.0, [2, 2]), Err(Kept::Bias));
        assert_eq!(seen(&low, DType::F32, 1.0, [2, 3]), Err(Kept::OtherMask));
    }
}
