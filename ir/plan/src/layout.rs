//! Layouts: where each shard of a tensor lies, microbatch by microbatch.

use graphc_ir::mesh::unravel_position;
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_ir::shard::{Rect, shard_rect};
use graphc_ir::types::{DType, TensorType};
use serde::{Deserialize, Serialize};

/// A tensor's layout over time (microbatches) and a mesh. Time is like a mesh axis before all others: a
/// microbatch is a range of `microbatch_dim`, which the mesh axes then cut further.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Layout {
    /// The shape of the whole tensor, of the whole batch.
    pub shape: Vec<usize>,
    /// The element type.
    pub dtype: DType,
    /// The dim that microbatches cut; `None` for what is the same in all of them.
    pub microbatch_dim: Option<usize>,
    /// The ranks, row-major over `hierarchy`. In a file as runs `[first, count, stride]`.
    #[serde(with = "super::runs")]
    pub ranks: Vec<u32>,
    /// The extents of the mesh axes.
    pub hierarchy: Vec<usize>,
    /// One SBP per mesh axis.
    pub sbp: NdSbp,
}

impl Layout {
    /// Returns the part that `rank` holds of microbatch `microbatch` of `microbatches`; `None` where it is not of this mesh.
    pub fn rect(&self, rank: u32, microbatch: usize, microbatches: usize) -> Option<Rect> {
        let position = self.ranks.iter().position(|&r| r == rank)?;
        Some(self.rect_at(position, microbatch, microbatches))
    }

    /// Returns the part of the rank at `position`, row-major in the mesh.
    pub fn rect_at(&self, position: usize, microbatch: usize, microbatches: usize) -> Rect {
        let mut hierarchy = vec![microbatches];
        hierarchy.extend(&self.hierarchy);
        let time = self.microbatch_dim.map_or(Sbp::Broadcast, Sbp::Split);
        let sbp = NdSbp([&[time], self.sbp.0.as_slice()].concat());
        let mut coordinates = vec![microbatch];
        coordinates.extend(unravel_position(position, &self.hierarchy));
        shard_rect(&self.shape, &hierarchy, &sbp, &coordinates)
    }

    /// Returns the extents of every rank's part of every microbatch, where they are all equal because every cut is even.
    pub fn uniform_extents(&self, microbatches: usize) -> Option<Vec<usize>> {
        let mut extents = self.shape.clone();
        let time = self.microbatch_dim.map(|dim| (dim, microbatches));
        let splits = self.sbp.0.iter().zip(&self.hierarchy).filter_map(|(sbp, &parts)| match sbp {
            Sbp::Split(dim) => Some((*dim, parts)),
            Sbp::Broadcast | Sbp::Partial(_) => None,
        });
        for (dim, parts) in time.into_iter().chain(splits) {
            let extent = extents.get_mut(dim)?;
            if parts == 0 || !extent.is_multiple_of(parts) {
                return None;
            }
            *extent /= parts;
        }
        Some(extents)
    }

    /// Returns the coordinates of a rank in this mesh; `None` where it is not of this mesh.
    pub fn coordinates(&self, rank: u32) -> Option<Vec<usize>> {
        let position = self.ranks.iter().position(|&r| r == rank)?;
        Some(unravel_position(position, &self.hierarchy))
    }

    /// Returns the ranks that differ from `rank` in `axis` alone, with it, in order of that coordinate.
    pub fn axis_group(&self, rank: u32, axis: usize) -> Option<Vec<u32>> {
        let position = self.ranks.iter().position(|&r| r == rank)?;
        let stride: usize = self.hierarchy[axis + 1..].iter().product();
        let coordinate = position / stride % self.hierarchy[axis];
        let first = position - coordinate * stride;
        Some((0..self.hierarchy[axis]).map(|i| self.ranks[first + i * stride]).collect())
    }

    /// Returns the type of the whole tensor.
    pub fn ty(&self) -> TensorType {
        TensorType { dtype: self.dtype, shape: self.shape.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microbatches_cut_before_ranks() {
        let layout = Layout {
            shape: vec![8, 3],
            dtype: DType::F32,
            microbatch_dim: Some(0),
            ranks: vec![4, 5],
            hierarchy: vec![2],
            sbp: NdSbp(vec![Sbp::Split(0)]),
        };
        let rect = layout.rect(5, 1, 2).expect("rank 5 is of the mesh");
        assert_eq!(rect, Rect { origin: vec![6, 0], extent: vec![2, 3] });
        assert_eq!(layout.rect(0, 0, 2), None);
    }

    #[test]
    fn uniform_layouts_give_every_rank_as_much() {
        for (rows, microbatches, uniform) in [(24, 2, true), (16, 2, false), (12, 2, true)] {
            let layout = Layout {
                shape: vec![rows, 3],
                dtype: DType::F32,
                microbatch_dim: Some(0),
                ranks: (0..6).collect(),
                hierarchy: vec![2, 3],
                sbp: NdSbp(vec![Sbp::Broadcast, Sbp::Split(0)]),
            };
            let found = layout.uniform_extents(microbatches);
            assert_eq!(found.is_some(), uniform, "{rows} rows in {microbatches}");
            for position in (0..6).filter(|_| uniform) {
                let rect = layout.rect_at(position, 0, microbatches);
                assert_eq!(Some(rect.extent), found);
            }
        }
    }

    #[test]
    fn groups_run_along_one_axis() {
        let layout = Layout {
            shape: vec![4],
            dtype: DType::F32,
            microbatch_dim: None,
            ranks: vec![0, 1, 2, 3, 4, 5],
            hierarchy: vec![2, 3],
            sbp: NdSbp::broadcast(2),
        };
        assert_eq!(layout.axis_group(4, 1), Some(vec![3, 4, 5]));
        assert_eq!(layout.axis_group(4, 0), Some(vec![1, 4]));
    }
}
