//! The cost of loads and stores of card memory: memory comes in sectors of 32 bytes, and a warp's request takes each that
//! it touches once.

/// Bytes of a sector.
const SECTOR: u64 = 32;

/// Sectors of all requests of one kind in a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Sectors that were touched.
    pub sectors: u64,
    /// Sectors that the same bytes would have taken, had they lain side by side.
    pub least: u64,
}

impl Traffic {
    /// Counts the request of a warp, whose lanes touch `size` bytes each, at multiples of as many.
    pub fn count(&mut self, at: impl Iterator<Item = u64>, size: usize) {
        let mut touched = [0; 32];
        let mut lanes = 0;
        for address in at {
            touched[lanes] = address;
            lanes += 1;
        }
        let touched = &mut touched[..lanes];
        if !touched.is_sorted() {
            touched.sort_unstable();
        }
        let (mut sectors, mut places) = (0, 0);
        let mut last = None;
        for &address in &*touched {
            sectors += u64::from(last.is_none_or(|last| last / SECTOR != address / SECTOR));
            places += u64::from(last != Some(address));
            last = Some(address);
        }
        self.sectors += sectors;
        self.least += (places * size as u64).div_ceil(SECTOR);
    }

    /// Sectors for each that is needed; 1 where nothing was touched.
    pub fn ratio(&self) -> f64 {
        if self.least == 0 { 1.0 } else { self.sectors as f64 / self.least as f64 }
    }
}
