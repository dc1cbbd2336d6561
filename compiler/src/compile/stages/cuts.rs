//! Cuts a chain of layers into stages, by dynamic programming (Zheng et al., *Alpa*, arXiv 2201.12023, section 5;
//! PipeDream-Flush).
//!
//! All stages have submeshes of one size, so a range of layers costs the same on each of them. A step of `M`
//! microbatches through stages that take `t` seconds each takes `sum(t) + (M - 1) max(t)`. With `V` chunks for each
//! stage (an interleaved schedule) it takes `sum(t) / V + (V M - 1) max(t)`, with `t` over all chunks.
//!
//! For each limit of `max(t)`, ascending, the least sum of ranges is found that keep within the limit and the memory.
//! The memory of a range counts the microbatches that its stage has under way. The search ends where the limit alone
//! costs more than the best known cut. So the cut is the best of all; a test compares it with every cut.

/// The costs of a layer on the submesh of a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LayerCost {
    /// Seconds of its forward and backward pass for one microbatch, and its share of what is done once a step.
    pub seconds: f64,
    /// Bytes that a rank always keeps: weights, states, gradients.
    pub resident: u64,
    /// Bytes that a rank keeps of each microbatch from its forward to its backward pass.
    pub stashed: u64,
    /// Further bytes that a rank needs while the layer computes.
    pub transient: u64,
}

/// A chain of layers to be cut.
#[derive(Clone, Debug)]
pub(super) struct LayerChain<'a> {
    /// The layers.
    pub layers: &'a [LayerCost],
    /// Seconds of sending one microbatch over the boundary before each layer, forward and backward.
    pub boundaries: &'a [f64],
    /// Number of stages.
    pub stages: usize,
    /// Chunks of layers that each stage has.
    pub chunks: usize,
    /// Microbatches of a step.
    pub microbatches: usize,
    /// Microbatches between their forward and backward pass at once, by stage and chunk.
    pub under_way: &'a [Vec<usize>],
    /// Bytes that a rank may use.
    pub limit: u64,
}

/// A chain that is cut into ranges.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cut {
    /// Layers of each range, in the order of the chain; range `c` lies on stage `c mod stages`.
    pub layers: Vec<usize>,
    /// Seconds of a step.
    pub seconds: f64,
}

impl LayerChain<'_> {
    fn count_ranges(&self) -> usize {
        self.stages * self.chunks
    }

    /// Returns the seconds of a step whose ranges take this sum and this maximum.
    fn step_seconds(&self, sum: f64, max: f64) -> f64 {
        let (chunks, microbatches) = (self.chunks as f64, self.microbatches as f64);
        sum / chunks + (chunks * microbatches - 1.0) * max
    }
}

/// The properties of the ranges of a chain that are needed again and again.
struct ChainRanges<'a> {
    chain: &'a LayerChain<'a>,
    /// The seconds of each range for one microbatch, by its end and then by its start.
    seconds: Vec<f64>,
    /// The first start from which on a range fits the memory, by the index of the range in the cut and by its end.
    fits_from: Vec<Vec<usize>>,
}

impl<'a> ChainRanges<'a> {
    fn new(chain: &'a LayerChain<'a>) -> Self {
        let count = chain.layers.len();
        let mut seconds = vec![0.0; count * (count + 1) / 2];
        for start in 0..count {
            let boundary = if start == 0 { 0.0 } else { chain.boundaries[start] };
            let mut layers = 0.0;
            for end in start + 1..=count {
                layers += chain.layers[end - 1].seconds;
                seconds[range_index(start, end)] = layers + boundary;
            }
        }
        let fits_from = (0..chain.count_ranges()).map(|range| fits_from(chain, range)).collect();
        Self { chain, seconds, fits_from }
    }

    /// Returns the seconds of a range for one microbatch.
    fn seconds(&self, start: usize, end: usize) -> f64 {
        self.seconds[range_index(start, end)]
    }
}

/// Returns the index of a range among all, which are ordered by end and then by start.
fn range_index(start: usize, end: usize) -> usize {
    end * (end - 1) / 2 + start
}

/// Returns, for each end, the first start from which on a range fits the memory, or the end itself if none does. It is assumed that the other chunks
/// of its stage need as much.
fn fits_from(chain: &LayerChain<'_>, range: usize) -> Vec<usize> {
    let (stage, chunk) = (range % chain.stages, range / chain.stages);
    let under_way = chain.under_way[stage][chunk] as u64;
    let first = |end: usize| {
        let (mut kept, mut transient) = (0, 0);
        let fits = |start: &usize| {
            let layer = &chain.layers[*start];
            kept += layer.resident + under_way * layer.stashed;
            transient = layer.transient.max(transient);
            (chain.chunks as u64 * kept).saturating_add(transient) <= chain.limit
        };
        (0..end).rev().take_while(fits).last().unwrap_or(end)
    };
    (0..=chain.layers.len()).map(first).collect()
}

/// Finds the best cut. `None` if no cut fits the memory, or if there are more ranges than layers.
pub(super) fn cut_chain(chain: &LayerChain<'_>) -> Option<Cut> {
    let count = chain.layers.len();
    if chain.count_ranges() > count {
        return None;
    }
    let ranges = ChainRanges::new(chain);
    // What fits under no limit fits under none.
    let mut best = least_sum_within(&ranges, f64::INFINITY)?;
    if chain.count_ranges() == 1 {
        return Some(best);
    }
    let mut limits = ranges.seconds.clone();
    limits.sort_unstable_by(f64::total_cmp);
    limits.dedup();
    let inner = chain.boundaries.get(1..).unwrap_or_default().iter().copied();
    let least_boundary = if count > 1 { inner.fold(f64::INFINITY, f64::min) } else { 0.0 };
    let layers: f64 = chain.layers.iter().map(|layer| layer.seconds).sum();
    let least_sum = layers + (chain.count_ranges() - 1) as f64 * least_boundary;
    let feasible = |limit: &f64| least_sum_within(&ranges, *limit).is_some();
    let first = limits.partition_point(|limit| !feasible(limit));
    for &limit in &limits[first..] {
        if chain.step_seconds(least_sum, limit) >= best.seconds {
            break;
        }
        if let Some(found) = least_sum_within(&ranges, limit)
            && found.seconds < best.seconds
        {
            best = found;
        }
    }
    Some(best)
}

/// Finds the cut of the least sum among those whose ranges take at most `limit` seconds each and fit the memory.
fn least_sum_within(all: &ChainRanges<'_>, limit: f64) -> Option<Cut> {
    let chain = all.chain;
    let (ranges, count) = (chain.count_ranges(), chain.layers.len());
    // By number of layers: the least sum of the ranges so far, and the layers of each range's predecessors.
    let mut sums = vec![f64::INFINITY; count + 1];
    sums[0] = 0.0;
    let mut starts: Vec<Vec<usize>> = Vec::with_capacity(ranges);
    for range in 0..ranges {
        let (mut next, mut from) = (vec![f64::INFINITY; count + 1], vec![0; count + 1]);
        let behind = ranges - range - 1;
        for end in range + 1..=count - behind {
            for start in (range.max(all.fits_from[range][end])..end).rev() {
                let seconds = all.seconds(start, end);
                let layers_alone = seconds - if start == 0 { 0.0 } else { chain.boundaries[start] };
                if layers_alone > limit {
                    break;
                }
                if seconds <= limit && sums[start] + seconds < next[end] {
                    (next[end], from[end]) = (sums[start] + seconds, start);
                }
            }
        }
        sums = next;
        starts.push(from);
    }
    if !sums[count].is_finite() {
        return None;
    }
    let (mut layers, mut end, mut max) = (vec![0; ranges], count, 0.0f64);
    for range in (0..ranges).rev() {
        let start = starts[range][end];
        layers[range] = end - start;
        max = max.max(all.seconds(start, end));
        end = start;
    }
    Some(Cut { layers, seconds: chain.step_seconds(sums[count], max) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a number below `bound` from a seed, the same every time.
    fn below(seed: &mut u64, bound: u64) -> u64 {
        *seed =
            seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 33) % bound
    }

    impl LayerChain<'_> {
        /// Returns the seconds of a range for one microbatch.
        fn range_seconds(&self, start: usize, end: usize) -> f64 {
            let layers: f64 = self.layers[start..end].iter().map(|layer| layer.seconds).sum();
            layers + if start == 0 { 0.0 } else { self.boundaries[start] }
        }

        /// Whether a range fits the memory. It is assumed that the other chunks of its stage need as much.
        fn fits(&self, range: usize, start: usize, end: usize) -> bool {
            let (stage, chunk) = (range % self.stages, range / self.stages);
            let under_way = self.under_way[stage][chunk] as u64;
            let layers = &self.layers[start..end];
            let kept = layers.iter().map(|layer| layer.resident + under_way * layer.stashed);
            let transient = layers.iter().map(|layer| layer.transient).max().unwrap_or(0);
            (self.chunks as u64 * kept.sum::<u64>()).saturating_add(transient) <= self.limit
        }
    }

    /// Returns the seconds of the best of all cuts, which are tried one by one.
    fn exhaustive(chain: &LayerChain<'_>) -> Option<f64> {
        let (ranges, count) = (chain.count_ranges(), chain.layers.len());
        let mut best: Option<f64> = None;
        for ends in 0u32..1 << (count - 1) {
            if ends.count_ones() as usize + 1 != ranges {
                continue;
            }
            let (mut start, mut sum, mut max, mut fits, mut range) = (0, 0.0, 0.0f64, true, 0);
            for end in 1..=count {
                if end == count || ends >> (end - 1) & 1 == 1 {
                    let seconds = chain.range_seconds(start, end);
                    fits &= chain.fits(range, start, end);
                    (sum, max) = (sum + seconds, max.max(seconds));
                    (start, range) = (end, range + 1);
                }
            }
            let seconds = chain.step_seconds(sum, max);
            if fits && best.is_none_or(|best| seconds < best) {
                best = Some(seconds);
            }
        }
        best
    }

    #[test]
    fn no_other_cut_is_better() {
        let mut seed = 7;
        let (mut found, mut none) = (0, 0);
        for _ in 0..600 {
            let count = 2 + below(&mut seed, 6) as usize;
            let mut layer = || LayerCost {
                seconds: 1.0 + below(&mut seed, 20) as f64 / 4.0,
                resident: below(&mut seed, 10),
                stashed: below(&mut seed, 4),
                transient: below(&mut seed, 6),
            };
            let layers: Vec<LayerCost> = (0..count).map(|_| layer()).collect();
            let boundaries: Vec<f64> =
                (0..count).map(|_| below(&mut seed, 8) as f64 / 8.0).collect();
            let stages = 1 + below(&mut seed, 4) as usize;
            let chunks = 1 + below(&mut seed, 2) as usize;
            let under_way: Vec<Vec<usize>> =
                (0..stages).map(|stage| vec![stages - stage; chunks]).collect();
            let chain = LayerChain {
                layers: &layers,
                boundaries: &boundaries,
                stages,
                chunks,
                microbatches: 1 + below(&mut seed, 9) as usize,
                under_way: &under_way,
                limit: 20 + below(&mut seed, 100),
            };
            let expected = if chain.count_ranges() > count { None } else { exhaustive(&chain) };
            let cut = cut_chain(&chain);
            match (&cut, expected) {
                (None, None) => none += 1,
                (Some(cut), Some(expected)) => {
                    assert!((cut.seconds - expected).abs() < 1e-9, "{cut:?} {expected} {chain:?}");
                    assert_eq!(cut.layers.iter().sum::<usize>(), count);
                    assert_eq!(cut.layers.len(), chain.count_ranges());
                    found += 1;
                }
                _ => panic!("{cut:?} instead of {expected:?}: {chain:?}"),
            }
        }
        assert!(found > 100 && none > 50, "{found} {none}");
    }

    #[test]
    fn many_layers_of_unlike_costs_are_cut_soon() {
        let mut seed = 3;
        let mut layer = || LayerCost {
            seconds: 1.0 + below(&mut seed, 1000) as f64 / 1000.0,
            resident: 1,
            ..LayerCost::default()
        };
        let layers: Vec<LayerCost> = (0..600).map(|_| layer()).collect();
        let under_way = vec![vec![1]; 8];
        let chain = LayerChain {
            layers: &layers,
            boundaries: &[0.0; 600],
            stages: 8,
            chunks: 1,
            microbatches: 64,
            under_way: &under_way,
            limit: 90,
        };
        let cut = cut_chain(&chain).expect("there is one");
        let (sum, most) = (layers.iter().map(|layer| layer.seconds).sum::<f64>(), 63.0);
        let even = sum + most * sum / 8.0;
        assert!(cut.seconds >= even && cut.seconds < even * 1.01, "{} {even}", cut.seconds);
        assert!(cut.layers.iter().all(|&layers| layers <= 90), "{:?}", cut.layers);
    }

    #[test]
    fn equal_layers_are_cut_equally() {
        let layers = [LayerCost { seconds: 1.0, ..LayerCost::default() }; 96];
        let under_way = vec![vec![1]; 8];
        let chain = LayerChain {
            layers: &layers,
            boundaries: &[0.0; 96],
            stages: 8,
            chunks: 1,
            microbatches: 12,
            under_way: &under_way,
            limit: 0,
        };
        assert_eq!(
            cut_chain(&chain),
            Some(Cut { layers: vec![12; 8], seconds: 96.0 + 11.0 * 12.0 })
        );
    }
}
