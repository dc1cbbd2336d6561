//! Random numbers that follow from a seed and the number of a case (Steele, Lea and Flood, "Fast splittable pseudorandom number
//! generators", 2014).

/// A source of numbers.
pub struct Random(u64);

impl Random {
    /// Makes the numbers of one case of a seed.
    pub fn new(seed: u64, case: u64) -> Self {
        let mut random = Self(seed);
        random.0 = random.draw() ^ case.wrapping_mul(0xd134_2543_de82_ef95);
        random
    }

    /// Draws any number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`; 0 where that is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.draw() % limit.max(1) as u64) as usize
    }

    /// True once in so many times.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Picks one of several, of which there is one at least.
    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// A number at which programs break.
    pub fn number(&mut self) -> u64 {
        match self.below(8) {
            0..4 => *self.pick(&EDGES),
            4 => 1 << self.below(64),
            5 => (1 << self.below(64)) - 1,
            6 => self.below(17) as u64,
            _ => self.draw(),
        }
    }
}

const EDGES: [u64; 17] = [
    0,
    1,
    2,
    3,
    5,
    127,
    255,
    65_535,
    65_536,
    1_000_003,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 40,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];
