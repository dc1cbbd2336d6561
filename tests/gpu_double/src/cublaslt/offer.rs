//! The offer of the heuristic, as the environment says: how many algorithms, which of them is the fastest, and which
//! products the library does not compute after all. On a card all of that depends on the product; here a test asks for
//! it.

use std::sync::LazyLock;

use super::problem::Problem;
use super::types::Epilogue;
use crate::settings::setting;

/// The offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// `GPU_DOUBLE_ALGORITHMS`: how many algorithms there are; if unset two where a workspace is allowed, else one.
    pub algorithms: Option<usize>,
    /// `GPU_DOUBLE_FASTEST`: the number of the one that takes the least modelled time, from 0.
    pub fastest: usize,
    /// `GPU_DOUBLE_IN_PLACE`: how many algorithms, from the first on, write the result over a summand alone.
    pub in_place: u64,
    /// `GPU_DOUBLE_SLOW`: products that take a hundred times as long.
    pub slow: Products,
    /// `GPU_DOUBLE_UNSUPPORTED`: products for which the heuristic gives none.
    pub unsupported: Products,
    /// `GPU_DOUBLE_FAILING`: products whose algorithms are refused when they are called.
    pub failing: Products,
}

/// Some products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Products {
    /// No product.
    None,
    /// All, by the first algorithm: `first`.
    First,
    /// Those with an epilogue, by all algorithms: `epilogues`.
    Epilogues,
    /// All of them, by all algorithms: `all`.
    All,
}

impl Offer {
    /// Returns the offer that the environment sets.
    pub fn get() -> &'static Offer {
        static OFFER: LazyLock<Offer> = LazyLock::new(|| Offer {
            algorithms: setting("GPU_DOUBLE_ALGORITHMS", None, |text| text.parse().ok().map(Some)),
            fastest: setting("GPU_DOUBLE_FASTEST", 0, |text| text.parse().ok()),
            in_place: setting("GPU_DOUBLE_IN_PLACE", 0, |text| text.parse().ok()),
            slow: setting("GPU_DOUBLE_SLOW", Products::None, Products::named),
            unsupported: setting("GPU_DOUBLE_UNSUPPORTED", Products::None, Products::named),
            failing: setting("GPU_DOUBLE_FAILING", Products::None, Products::named),
        });
        &OFFER
    }
}

impl Products {
    /// Returns those that a setting names; `None` if it names none.
    pub fn named(name: &str) -> Option<Products> {
        match name {
            "first" => Some(Products::First),
            "epilogues" => Some(Products::Epilogues),
            "all" => Some(Products::All),
            _ => None,
        }
    }

    /// Whether a product by the algorithm of a number is among them.
    pub fn has(self, problem: &Problem, number: u64) -> bool {
        match self {
            Products::None => false,
            Products::First => number == 0,
            Products::Epilogues => problem.epilogue != Epilogue::NONE,
            Products::All => true,
        }
    }
}
