//! Which way of a product was found to be the fastest: asked once in a process for each problem, and kept from one process to the next,
//! because another algorithm may give other bits.
//!
//! Ranks of a process with the same kind of card so take the same, and so do processes with a common folder of what is kept: what was
//! written first stays. Where nothing can be kept each process finds its own choice.

use std::collections::BTreeMap;
use std::env;
use std::sync::{Mutex, PoisonError};

use graphc_kernels::cuda::Product;
use sha2::{Digest, Sha256};

use super::cache;
use super::driver::Card;
use super::library::Library;

/// Where it is 0 nothing is timed, and the algorithm is taken that the library takes for the fastest.
const VARIABLE: &str = "GRAPHC_TUNE";
/// Part of each key: another meaning of what is kept gets another.
const FORM: &str = "product-1";

/// Whether algorithms are timed.
pub(super) fn is_measured() -> bool {
    env::var(VARIABLE).map_or(true, |text| text != "0")
}

/// All that the choice for a product with so many ways depends on, in short: the kind of card, the versions of the library and of the
/// driver, extents, types, layouts, where matrices begin, and the epilogue.
pub(super) fn key(card: &Card, product: &Product, count: usize) -> String {
    let Card { name, memory, capability, multiprocessors, .. } = card;
    let versions = [Library::CublasLt, Library::Driver].map(Library::version);
    let text = format!(
        "{FORM} {name:?} {memory} {capability:?} {multiprocessors} {versions:?} {product:?} {count}"
    );
    let sum = Sha256::digest(text);
    let digest: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{FORM}-{digest}")
}

/// The number of the way that is taken, below `count`: what was chosen in this process, or kept by another, or what `choose` finds.
/// Where that finds nothing it is the first, and is not kept.
pub(super) fn chosen(key: &str, count: usize, choose: impl FnOnce() -> Option<usize>) -> usize {
    static CHOSEN: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());
    let known = || CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&number) = known().get(key) {
        return number;
    }
    // No rank waits here for another: a card may wait for one that does. Of ranks that look at a time the first is right.
    let number = kept_or_found(key, count, choose).unwrap_or(0);
    *known().entry(key.to_owned()).or_insert(number)
}

fn kept_or_found(key: &str, count: usize, choose: impl FnOnce() -> Option<usize>) -> Option<usize> {
    let kept = || cache::read(key).and_then(|bytes| decoded(&bytes, count));
    let found = || {
        let number = choose()?;
        // Of processes that write at a time the first is right.
        let kept = cache::write_first(key, number.to_string().as_bytes());
        Some(decoded(&kept, count).unwrap_or(number))
    };
    kept().or_else(found)
}

/// The number that was kept, if it is one of a way.
fn decoded(bytes: &[u8], count: usize) -> Option<usize> {
    let number: usize = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    (number < count).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_number_of_a_way_is_one() {
        assert_eq!(decoded(b"2", 3), Some(2));
        for other in [&b"3"[..], b"", b"-1", b"two", b"\xff"] {
            assert_eq!(decoded(other, 3), None);
        }
    }

    #[test]
    fn what_was_chosen_in_a_process_stays() {
        // Nothing is kept of a choice that could not be made.
        assert_eq!(chosen("test-none", 3, || None), 0);
        assert_eq!(chosen("test-none", 3, || Some(2)), 0);
    }
}
