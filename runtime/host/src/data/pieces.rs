//! Samples along any dim of a tensor.

use graphc_ir::types::TensorType;

/// The arrangement of a tensor's samples along a dim: in blocks, one for each element of the dims before it, each with a
/// piece of every sample, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// The number of blocks.
    pub blocks: usize,
    /// Bytes of a piece.
    pub bytes: usize,
}

/// A tensor's bytes, how many samples it has, and from which one on they are meant.
pub(super) type From<B> = (B, usize, usize);

impl Pieces {
    /// Returns the pieces of a tensor along one of its dims.
    pub fn along_dim(ty: &TensorType, dim: usize) -> Self {
        let (before, after) = (&ty.shape[..dim], &ty.shape[dim + 1..]);
        let bytes = after.iter().product::<usize>() * ty.dtype.size();
        Self { blocks: before.iter().product(), bytes }
    }

    /// Returns the bytes of a sample.
    pub fn sample_bytes(self) -> usize {
        self.blocks * self.bytes
    }

    /// Copies `count` samples that follow each other.
    pub fn copy_samples(
        self,
        (from, of, first): From<&[u8]>,
        (to, into, at): From<&mut [u8]>,
        count: usize,
    ) {
        for block in 0..self.blocks {
            let [source, target] = [block * of + first, block * into + at].map(|n| n * self.bytes);
            let bytes = count * self.bytes;
            to[target..target + bytes].copy_from_slice(&from[source..source + bytes]);
        }
    }
}

#[cfg(test)]
mod tests {
    use graphc_ir::types::DType;

    use super::*;

    #[test]
    fn samples_of_a_middle_dim_are_copied_piece_by_piece() {
        // [2, 3, 2]: sample 1 has elements 2, 3 and 8, 9.
        let ty = TensorType::new(DType::U8, [2, 3, 2]);
        let pieces = Pieces::along_dim(&ty, 1);
        assert_eq!((pieces, pieces.sample_bytes()), (Pieces { blocks: 2, bytes: 2 }, 4));
        let from: Vec<u8> = (0..12).collect();
        let mut to = vec![0; 8];
        pieces.copy_samples((&from, 3, 1), (&mut to, 2, 0), 2);
        assert_eq!(to, [2, 3, 4, 5, 8, 9, 10, 11]);
    }
}
