//! The samples on which a rank trains.

use graphc_ir::random::{RandomStream, key_of};

/// The treatment of samples that do not divide evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remainder {
    /// The first ones of the epoch are taken again, so that all ranks have equally many.
    Wrap,
    /// The last ones of the epoch are left out.
    Drop,
}

/// Splits the samples of a data set over the ranks of a group, in an order that each epoch shuffles anew. The order is a
/// function of seed and epoch alone: taken together, the samples at place `k` of all ranks are those from `k * ranks` on,
/// whatever the number of ranks.
#[derive(Clone, Debug)]
pub struct DistributedSampler {
    samples: usize,
    ranks: usize,
    rank: usize,
    remainder: Remainder,
    shuffle: Option<u64>,
    epoch: u64,
}

impl DistributedSampler {
    /// Samples of rank `rank` of `ranks`, in the order of the data set.
    pub fn new(samples: usize, ranks: usize, rank: usize, remainder: Remainder) -> Self {
        Self { samples, ranks: ranks.max(1), rank, remainder, shuffle: None, epoch: 0 }
    }

    /// Shuffles the samples, with this seed.
    #[must_use]
    pub fn shuffled(mut self, seed: u64) -> Self {
        self.shuffle = Some(seed);
        self
    }

    /// Says which epoch [`DistributedSampler::indices`] and iteration give; 0 at first.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// Returns this rank's samples of the epoch that was set.
    pub fn indices(&self) -> Vec<usize> {
        self.epoch(self.epoch)
    }

    /// Returns the number of samples of the data set.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Returns the number of samples of a rank in an epoch.
    pub fn len(&self) -> usize {
        match self.remainder {
            Remainder::Wrap => self.samples.div_ceil(self.ranks),
            Remainder::Drop => self.samples / self.ranks,
        }
    }

    /// Whether a rank has no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns this rank's samples of an epoch.
    pub fn epoch(&self, epoch: u64) -> Vec<usize> {
        let order = self.epoch_order(epoch);
        let places = (0..self.len()).map(|place| place * self.ranks + self.rank);
        places.map(|place| order[place % self.samples]).collect()
    }

    /// Returns all samples in the order of an epoch, by Fisher and Yates.
    fn epoch_order(&self, epoch: u64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.samples).collect();
        let Some(seed) = self.shuffle else { return order };
        let stream = RandomStream { seed, key: key_of("sampler"), step: epoch };
        for place in (1..self.samples).rev() {
            let [low, high, ..] = stream.words(place as u64);
            let word = u64::from(high) << 32 | u64::from(low);
            // The high part of the product is below `place + 1`, evenly but for 2^-64 per place.
            let other = ((u128::from(word) * (place as u128 + 1)) >> 64) as usize;
            order.swap(place, other);
        }
        order
    }
}

impl IntoIterator for &DistributedSampler {
    type Item = usize;
    type IntoIter = std::vec::IntoIter<usize>;

    /// Iterates over this rank's samples of the epoch that was set.
    fn into_iter(self) -> Self::IntoIter {
        self.indices().into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(samples: usize, ranks: usize, remainder: Remainder, epoch: u64) -> Vec<usize> {
        let one = |rank| {
            DistributedSampler::new(samples, ranks, rank, remainder).shuffled(7).epoch(epoch)
        };
        let all: Vec<Vec<usize>> = (0..ranks).map(one).collect();
        (0..all[0].len()).flat_map(|place| all.iter().map(move |rank| rank[place])).collect()
    }

    #[test]
    fn every_mesh_sees_the_same_order() {
        let whole = joined(23, 1, Remainder::Wrap, 3);
        let mut sorted = whole.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..23).collect::<Vec<_>>());
        for ranks in 2..6 {
            let wrapped = joined(23, ranks, Remainder::Wrap, 3);
            assert_eq!(wrapped[..23], whole);
            assert_eq!(wrapped[23..], whole[..wrapped.len() - 23]);
            let dropped = joined(23, ranks, Remainder::Drop, 3);
            assert_eq!(dropped, whole[..23 / ranks * ranks]);
        }
    }

    #[test]
    fn epochs_and_seeds_differ() {
        assert_ne!(joined(23, 1, Remainder::Wrap, 0), joined(23, 1, Remainder::Wrap, 1));
        let plain = DistributedSampler::new(5, 2, 1, Remainder::Wrap);
        assert_eq!(plain.epoch(9), [1, 3, 0]);
        assert_ne!(plain.clone().shuffled(1).epoch_order(0), plain.shuffled(2).epoch_order(0));
    }

    #[test]
    fn the_epoch_that_was_set_is_the_one_that_is_given() {
        let mut sampler = DistributedSampler::new(23, 2, 0, Remainder::Drop).shuffled(5);
        assert_eq!((&sampler).into_iter().collect::<Vec<_>>(), sampler.epoch(0));
        sampler.set_epoch(4);
        assert_eq!((sampler.indices(), sampler.samples()), (sampler.epoch(4), 23));
    }

    #[test]
    fn more_ranks_than_samples_and_no_samples_are_no_fault() {
        assert_eq!(DistributedSampler::new(1, 3, 2, Remainder::Wrap).epoch(0), [0]);
        assert!(DistributedSampler::new(1, 3, 2, Remainder::Drop).epoch(0).is_empty());
        assert!(DistributedSampler::new(0, 2, 1, Remainder::Wrap).epoch(0).is_empty());
    }
}
