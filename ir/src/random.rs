//! Counter-based random numbers: a function of (seed, key, step, global element index) alone, so that every
//! mesh and every number of microbatches draws the same. Philox4x32-10 (Salmon et al., "Parallel random
//! numbers: as easy as 1, 2, 3", SC 2011, section 3.3).

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Names one stream of random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomStream {
    /// The job's seed.
    pub seed: u64,
    /// The op's key.
    pub key: u64,
    /// The training step, 0 for what does not change.
    pub step: u64,
}

impl RandomStream {
    /// Returns four random words of one element. (Inlined into kernels' loops, which vectorize it.)
    #[inline(always)]
    pub fn words(&self, element: u64) -> [u32; 4] {
        let mixed = self.seed ^ self.key.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(17);
        let mut key = [mixed as u32, (mixed >> 32) as u32];
        let mut counter =
            [element as u32, (element >> 32) as u32, self.step as u32, (self.step >> 32) as u32];
        for _ in 0..10 {
            let product0 = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
            let product1 = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
            counter = [
                (product1 >> 32) as u32 ^ counter[1] ^ key[0],
                product1 as u32,
                (product0 >> 32) as u32 ^ counter[3] ^ key[1],
                product0 as u32,
            ];
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        counter
    }

    /// A number in [0, 1), a multiple of 2^-24.
    pub fn uniform(&self, element: u64) -> f32 {
        (self.words(element)[0] >> 8) as f32 * (1.0 / 16_777_216.0)
    }

    /// A number of the standard normal distribution (Box-Muller, in f64 and rounded once).
    pub fn normal(&self, element: u64) -> f32 {
        let words = self.words(element);
        let u = (f64::from(words[0]) + 1.0) / 4_294_967_296.0;
        let v = f64::from(words[1]) / 4_294_967_296.0;
        ((-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
    }
}

/// A key from a name: FNV-1a, 64 bits.
pub fn key_of(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_distribution() {
        let stream = RandomStream { seed: 7, key: key_of("w"), step: 0 };
        let n = 100_000;
        let normal: Vec<f64> = (0..n).map(|i| f64::from(stream.normal(i))).collect();
        let mean = normal.iter().sum::<f64>() / n as f64;
        let variance = normal.iter().map(|x| x * x).sum::<f64>() / n as f64;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
        let uniform = (0..n).map(|i| f64::from(stream.uniform(i))).sum::<f64>() / n as f64;
        assert!((uniform - 0.5).abs() < 0.01, "{uniform}");
    }
}
