//! Random numbers for tests, the same every time.

/// A random sequence of small integers, from a seed.
pub(crate) struct Draw(pub u64);

impl Draw {
    /// The next number, below `most`.
    pub(crate) fn below(&mut self, most: usize) -> usize {
        // Knuth's linear congruential generator (MMIX).
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }
}
