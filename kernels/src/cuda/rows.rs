//! The share of each thread in rows, for kernels that read a row as a whole.
//!
//! A row is shared among as many threads as it has parts of 16 bytes, up to a block. They keep it in registers where it fits, and
//! combine in a tree that follows from the extent. If there are many rows, a thread takes several parts.

use super::Shard;
use super::call::{Argument, Launch};
use super::source::{KernelSource, access_width};

/// Threads of a block that has several rows.
const SHARED: usize = 128;
/// Threads of a block whose rows lie side by side, with their elements apart.
const APART: usize = 256;
/// Threads of a block at most.
const MOST: usize = 1024;
/// Elements that a thread keeps in registers at most, of all operands, and where so many share a block that it has 64 registers in all.
const REGISTERS: usize = 64;
const FEW_REGISTERS: usize = 40;
/// Rows from which blocks are many enough that a thread takes more than one step.
const MANY: usize = 1024;
/// Steps that it takes then.
const STEPS: usize = 4;

/// Rows along one dim of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DimRows {
    /// The number of rows.
    pub(super) count: usize,
    /// Elements of a row.
    pub(super) extent: usize,
    /// The distance between neighbouring elements of a row.
    pub(super) inner: usize,
}

/// The share of a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ThreadShare {
    lanes: usize,
    threads: usize,
    width: usize,
    steps: usize,
}

impl DimRows {
    /// Along a dim of a shard.
    pub(super) fn along_dim(shard: &Shard, axis: usize) -> Self {
        let shape = shard.shape();
        let inner = shape[axis + 1..].iter().product();
        let outer: usize = shape[..axis].iter().product();
        Self { count: outer * inner, extent: shape[axis], inner }
    }

    /// Along the last dim, of which there is one.
    pub(super) fn along_last(shard: &Shard) -> Self {
        Self::along_dim(shard, shard.shape().len() - 1)
    }

    /// Launches a kernel in `text`, which stands behind `cu/rows.cuh`. It reads `operands` tensors along rows, with elements of at most
    /// `size` bytes.
    pub(super) fn launch(
        &self,
        define: impl FnOnce(KernelSource) -> KernelSource,
        (text, entry): (&str, &'static str),
        (operands, size): (usize, usize),
        arguments: Vec<Argument>,
    ) -> Launch {
        let share = self.choose_share(size);
        let registers = if share.threads > MOST / 2 { FEW_REGISTERS } else { REGISTERS };
        let kept = share.steps * share.width * operands <= registers;
        let source = KernelSource::new(format!("{}\n{text}", include_str!("cu/rows.cuh")))
            .define("EXTENT", self.extent)
            .define("COUNT", format!("{}ull", self.count))
            .define("INNER", self.inner)
            .define("LANES", share.lanes)
            .define("THREADS", share.threads)
            .define("WIDTH", share.width)
            .define("STEPS", share.steps)
            .define_flag("KEPT", kept);
        let blocks = self.count.div_ceil(share.threads / share.lanes);
        Launch::kernel(define(source), entry, blocks, share.threads, arguments)
    }

    fn choose_share(&self, size: usize) -> ThreadShare {
        let (width, most) = match self.inner {
            1 => (access_width(size, [self.extent]), MOST),
            _ => (1, APART / self.inner.next_power_of_two().min(32)),
        };
        let parts = self.extent / width;
        let each = if self.inner == 1 && self.count >= MANY { STEPS } else { 1 };
        let lanes = parts.div_ceil(each).next_power_of_two().clamp(1, most);
        let threads = match self.inner {
            1 => lanes.max(SHARED),
            _ => APART,
        };
        // A row that more than a warp shares has a block of its own, if its elements lie side by side.
        let threads = if self.inner == 1 && lanes > 32 { lanes } else { threads };
        ThreadShare { lanes, threads, width, steps: parts.div_ceil(lanes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(count: usize, extent: usize, inner: usize) -> ThreadShare {
        DimRows { count, extent, inner }.choose_share(4)
    }

    #[test]
    fn short_rows_share_a_block_and_long_ones_have_one() {
        let of = |lanes, threads, width, steps| ThreadShare { lanes, threads, width, steps };
        assert_eq!(share(10, 5, 1), of(8, 128, 1, 1));
        assert_eq!(share(10, 64, 1), of(16, 128, 4, 1));
        assert_eq!(share(5000, 1024, 1), of(64, 64, 4, 4));
        assert_eq!(share(10, 1024, 1), of(256, 256, 4, 1));
        assert_eq!(share(5000, 50257, 1), of(1024, 1024, 1, 50));
        assert_eq!(share(10, 100, 7), of(32, 256, 1, 4));
        assert_eq!(share(10, 3, 64), of(4, 256, 1, 1));
    }
}
