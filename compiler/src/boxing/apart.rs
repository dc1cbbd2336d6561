//! Finds the traffic of exchanges between meshes that share no rank, once for each pair of layouts.
//!
//! No receiver of these holds anything itself, so it does not matter which ranks they are. Stages of a pipeline hand on the same tensors from mesh to
//! mesh, so the exchange of one pair of stages is that of all pairs.

use std::collections::BTreeMap;

use graphc_plan::Layout;

use super::Prices;
use super::exchange::{Traffic, are_very_many, exchange_traffic, price_traffic};
use super::factored::factored_traffic;
use crate::cluster::alpha_beta;

/// The exchanges known so far.
#[derive(Default)]
pub(super) struct ApartExchanges {
    /// The traffic, by both layouts without their ranks.
    known: BTreeMap<(Layout, Layout), Traffic>,
}

impl ApartExchanges {
    /// Returns the seconds of an exchange between two meshes, and the bytes of its busiest rank.
    pub(super) fn price(&mut self, prices: Prices<'_>, from: &Layout, to: &Layout) -> (f64, u64) {
        let traffic = self.find_traffic(from, to, prices.microbatches);
        let mut ranks: Vec<u32> = from.ranks.iter().chain(&to.ranks).copied().collect();
        ranks.sort_unstable();
        ranks.dedup();
        price_traffic(prices, alpha_beta(prices.cluster, &ranks, None), traffic)
    }

    /// Returns [`exchange_traffic`]. If all ranks of one mesh are before those of the other, it is worked out once, by dims where that is possible.
    fn find_traffic(&mut self, from: &Layout, to: &Layout, microbatches: usize) -> Traffic {
        if !are_apart(&from.ranks, &to.ranks) {
            return exchange_traffic(from, to, microbatches);
        }
        let found = || match are_very_many(from, to) {
            true => exchange_traffic(from, to, microbatches),
            false => factored_traffic(from, to, microbatches)
                .unwrap_or_else(|| exchange_traffic(from, to, microbatches)),
        };
        *self.known.entry((strip_ranks(from), strip_ranks(to))).or_insert_with(found)
    }
}

/// Whether all ranks of one mesh are before all ranks of the other, or behind them.
fn are_apart(a: &[u32], b: &[u32]) -> bool {
    let before = |a: &[u32], b: &[u32]| a.iter().max() < b.iter().min();
    before(a, b) || before(b, a)
}

/// Returns a layout without its ranks.
fn strip_ranks(layout: &Layout) -> Layout {
    Layout {
        shape: layout.shape.clone(),
        dtype: layout.dtype,
        microbatch_dim: layout.microbatch_dim,
        ranks: Vec::new(),
        hierarchy: layout.hierarchy.clone(),
        sbp: layout.sbp.clone(),
    }
}

#[cfg(test)]
mod tests {
    use graphc_ir::types::DType;

    use super::*;

    /// Makes a layout of 10 x 7 elements in microbatches, on the ranks of a mesh from `first` on.
    fn at(first: u32, mesh: &[usize], sbp: &str) -> Layout {
        Layout {
            shape: vec![10, 7],
            dtype: DType::F32,
            microbatch_dim: Some(0),
            ranks: (first..first + mesh.iter().product::<usize>() as u32).collect(),
            hierarchy: mesh.to_vec(),
            sbp: sbp.parse().expect("an SBP"),
        }
    }

    #[test]
    fn exchanges_between_other_meshes_are_those_that_are_known() {
        let mut apart = ApartExchanges::default();
        let all = ["B", "S(0)", "S(1)", "P(sum)"];
        let sbps: Vec<String> =
            all.iter().flat_map(|a| all.iter().map(move |b| format!("{a}, {b}"))).collect();
        // The meshes of the first pair share no rank, and neither do those of the next two, before and behind; then
        // they share some, and all.
        for (first, second) in [(0, 6), (6, 12), (20, 3), (0, 4), (4, 4)] {
            for (from, to) in sbps.iter().flat_map(|from| sbps.iter().map(move |to| (from, to))) {
                let (from, to) = (at(first, &[2, 3], from), at(second, &[3, 2], to));
                let exchanged = exchange_traffic(&from, &to, 2);
                assert_eq!(apart.find_traffic(&from, &to, 2), exchanged, "{from:?} {to:?}");
            }
        }
        assert_eq!(apart.known.len(), sbps.len() * sbps.len());
    }
}
