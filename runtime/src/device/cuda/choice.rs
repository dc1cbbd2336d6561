//! The fastest way of each product, as it was found: asked once in a process for each problem, and kept from one process to the
//! next, because another algorithm may give other bits.
//!
//! So ranks of a process with the same kind of card take the same way, and so do processes with a common folder of what is kept:
//! what was written first stays. Where nothing can be kept, each process finds its own choice.

use std::collections::BTreeMap;
use std::env;
use std::sync::{Mutex, PoisonError};

use graphc_ir::hex::encode_hex;
use graphc_kernels::cuda::{Epilogue, MatrixProduct, Operands};
use sha2::{Digest, Sha256};

use super::cache;
use super::driver::Card;
use super::library::Library;

/// The variable that turns timing off with 0: then the algorithm is used that the library takes for the fastest.
const VARIABLE: &str = "GRAPHC_TUNE";
/// Part of each key: another meaning of what is kept gets another.
const FORM: &str = "product-3";

/// Whether algorithms are timed.
pub(super) fn is_measured() -> bool {
    env::var(VARIABLE).map_or(true, |text| text != "0")
}

/// Returns the key of the choice for a product with so many ways, from all that it depends on: the kind of card, the versions of
/// the library and of the driver, extents, types, layouts, where matrices begin, and the epilogue.
pub(super) fn choice_key(card: &Card, product: &MatrixProduct, count: usize) -> String {
    let Card { name, memory, capability, multiprocessors, .. } = card;
    let versions = [Library::CublasLt, Library::Driver].map(Library::version);
    let problem = describe_problem(product);
    let text = format!(
        "{FORM} {name:?} {memory} {capability:?} {multiprocessors} {versions:?} {problem} {count}"
    );
    format!("{FORM}-{}", encode_hex(&Sha256::digest(text)))
}

/// Describes the part of a product that an algorithm's time depends on: all but its registers.
fn describe_problem(product: &MatrixProduct) -> String {
    let MatrixProduct {
        rows, inner, columns, batch, a, b, out, starts, operands, epilogue, ..
    } = product;
    let Operands { dtype, made, .. } = operands;
    let Epilogue { added, bias, activation, kept, sums } = epilogue;
    let matrices = [a, b, out].map(|of| (of.by_columns, of.leading, of.stride));
    let extents = [rows, inner, columns, batch];
    let parts = [added, bias, kept].map(Option::is_some);
    let summed = sums.map(|(summed, _)| summed);
    format!(
        "{extents:?} {matrices:?} {starts:?} {dtype} {made} {activation:?} {parts:?} {summed:?}"
    )
}

/// Finds the number of the way that is taken, below `count`: what was chosen in this process, or kept by another, or what `choose`
/// finds. Where that finds nothing it is the first, and is not kept.
///
/// # Errors
/// Those of `choose`.
pub(super) fn find_choice<E>(
    key: &str,
    count: usize,
    choose: impl FnOnce() -> Result<Option<usize>, E>,
) -> Result<usize, E> {
    static CHOSEN: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());
    let known = || CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&number) = known().get(key) {
        return Ok(number);
    }
    // No rank waits here for another: a card may wait for one that does. Of ranks that look at a time the first is right.
    let number = match cache::read_content(key).and_then(|bytes| decode_choice(&bytes, count)) {
        Some(number) => number,
        None => choose()?.map_or(0, |number| keep_choice(key, count, number)),
    };
    Ok(*known().entry(key.to_owned()).or_insert(number))
}

/// Keeps the number that was found. Of processes that write at a time the first is right: returns its number.
fn keep_choice(key: &str, count: usize, number: usize) -> usize {
    let kept = cache::write_first(key, number.to_string().as_bytes());
    decode_choice(&kept, count).unwrap_or(number)
}

/// Returns the number that was kept, if it is one of a way.
fn decode_choice(bytes: &[u8], count: usize) -> Option<usize> {
    let number: usize = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    (number < count).then_some(number)
}

#[cfg(test)]
mod tests {
    use graphc_ir::types::DType;
    use graphc_kernels::cuda::{Activation, CallRegister, LaunchMemory, Matrix};

    use super::*;

    #[test]
    fn only_a_number_of_a_way_is_one() {
        assert_eq!(decode_choice(b"2", 3), Some(2));
        for other in [&b"3"[..], b"", b"-1", b"two", b"\xff"] {
            assert_eq!(decode_choice(other, 3), None);
        }
    }

    #[test]
    fn what_was_chosen_in_a_process_stays() {
        // Nothing is kept of a choice that could not be made.
        assert_eq!(find_choice("test-none", 3, || Ok::<_, ()>(None)), Ok(0));
        assert_eq!(find_choice("test-none", 3, || Ok::<_, ()>(Some(2))), Ok(0));
    }

    #[test]
    fn a_card_that_fails_chooses_nothing() {
        assert_eq!(find_choice("test-failed", 3, || Err("failed")), Err("failed"));
        assert_eq!(find_choice("test-failed", 3, || Ok::<_, ()>(None)), Ok(0), "it is asked again");
    }

    /// A product of one matrix of 2 rows by one of 4 columns.
    fn product(slots: [CallRegister; 3]) -> MatrixProduct {
        let matrix = |leading| Matrix { by_columns: false, leading, stride: 0 };
        let [a, b, out] = slots.map(LaunchMemory::Slot);
        let (dtype, made) = (DType::F32, DType::F32);
        MatrixProduct {
            rows: 2,
            inner: 3,
            columns: 4,
            a: matrix(3),
            b: matrix(4),
            out: matrix(4),
            batch: 1,
            starts: vec![[0; 3]],
            operands: Operands { dtype, made, a, b, out },
            epilogue: Epilogue { bias: Some(b), ..Epilogue::default() },
            instead: Vec::new(),
        }
    }

    #[test]
    fn products_of_other_registers_are_one_problem() {
        let [first, second] = [0, 7].map(|from| {
            product([
                CallRegister::Operand(from),
                CallRegister::Operand(from + 1),
                CallRegister::Result(from),
            ])
        });
        assert_eq!(describe_problem(&first), describe_problem(&second));
        let turned = Matrix { by_columns: true, ..first.b };
        let epilogue = Epilogue { bias: None, sums: None, ..first.epilogue };
        let relu = Epilogue { activation: Activation::Relu, ..first.epilogue };
        let others = [
            MatrixProduct { rows: 8, ..first.clone() },
            MatrixProduct { b: turned, ..first.clone() },
            MatrixProduct { starts: vec![[0; 3], [6, 0, 8]], ..first.clone() },
            MatrixProduct {
                operands: Operands { made: DType::BF16, ..first.operands },
                ..first.clone()
            },
            MatrixProduct { epilogue, ..first.clone() },
            MatrixProduct { epilogue: relu, ..first.clone() },
        ];
        for other in others {
            assert_ne!(describe_problem(&other), describe_problem(&first));
        }
    }
}
