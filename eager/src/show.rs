//! Shows global tensors as text: type, layout, placement, and the numbers that this rank holds. Nothing is communicated, so a single rank may print.

use std::fmt::{self, Debug, Display, Formatter};

use crate::tensor::GlobalTensor;

impl GlobalTensor {
    /// Writes text such as `f32[4, 4] S(0) on cpu [0, 1] as 2, rank 1 has [2..4, 0..4]`.
    fn write_head(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (spot, rank) = (self.spot(), self.eager().rank());
        write!(f, "{spot}, rank {rank} has ")?;
        let Some(rect) = spot.layout.rect(rank, 0, 1) else { return f.write_str("nothing") };
        let ranges = rect.origin.iter().zip(&rect.extent);
        let ranges: Vec<String> =
            ranges.map(|(&start, &extent)| format!("{start}..{}", start + extent)).collect();
        write!(f, "[{}]", ranges.join(", "))
    }
}

impl Display for GlobalTensor {
    /// Writes type, layout and placement in a line, then this rank's numbers, one line for each row.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.write_head(f)?;
        self.to_local().map_or(Ok(()), |local| write!(f, ":\n{local:#}"))
    }
}

impl Debug for GlobalTensor {
    /// Writes type, layout, placement and this rank's numbers in one line.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.write_head(f)?;
        self.to_local().map_or(Ok(()), |local| write!(f, ": {local}"))
    }
}
