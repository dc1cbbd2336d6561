//! Placements: which ranks hold a tensor, and the hierarchy in which they are arranged.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of device that a rank computes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// The processor.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

/// More ranks than any cluster has: a number above it is an error of whoever wrote it, and is not believed.
pub const MOST_RANKS: usize = 1 << 17;

/// A mesh: ranks in row-major order of a hierarchy such as 2x4. The ranks are distinct.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Placement {
    /// Device kind of every rank.
    pub device: DeviceKind,
    /// Rank ids, row-major over `hierarchy`.
    pub ranks: Vec<u32>,
    /// Extent of each mesh axis; the product is the number of ranks.
    pub hierarchy: Vec<usize>,
}

/// An error in a placement.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// The hierarchy's product is not the number of ranks.
    #[error("a mesh of {hierarchy:?} has {} ranks, but {ranks} are named", hierarchy.iter().product::<usize>())]
    Size {
        /// The hierarchy asked for.
        hierarchy: Vec<usize>,
        /// The number of ranks that were named.
        ranks: usize,
    },
    /// A rank appears twice.
    #[error("rank {rank} is named twice in one mesh")]
    Duplicate {
        /// The rank.
        rank: u32,
    },
    /// More ranks than any cluster has.
    #[error("a mesh of {hierarchy:?} has too many ranks: at most {MOST_RANKS} are possible")]
    TooMany {
        /// The hierarchy asked for.
        hierarchy: Vec<usize>,
    },
    /// A mesh without ranks or axes.
    #[error("a mesh needs at least one axis and every axis at least one rank")]
    Empty,
}

crate::readable_debug!(PlacementError);

impl Placement {
    /// A placement on CPU ranks.
    pub fn new(ranks: Vec<u32>, hierarchy: Vec<usize>) -> Result<Self, PlacementError> {
        if hierarchy.is_empty() || hierarchy.contains(&0) {
            return Err(PlacementError::Empty);
        }
        if hierarchy.iter().product::<usize>() != ranks.len() {
            return Err(PlacementError::Size { hierarchy, ranks: ranks.len() });
        }
        let mut sorted = ranks.clone();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(PlacementError::Duplicate { rank: pair[0] });
        }
        Ok(Self { device: DeviceKind::Cpu, ranks, hierarchy })
    }

    /// Ranks `0..n` arranged as `hierarchy`.
    pub fn mesh(hierarchy: &[usize]) -> Result<Self, PlacementError> {
        let n = hierarchy.iter().try_fold(1usize, |ranks, &extent| ranks.checked_mul(extent));
        let Some(n) = n.filter(|&ranks| ranks <= MOST_RANKS) else {
            return Err(PlacementError::TooMany { hierarchy: hierarchy.to_vec() });
        };
        Self::new((0..n as u32).collect(), hierarchy.to_vec())
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// The position of a rank in this mesh, row-major.
    pub fn position(&self, rank: u32) -> Option<usize> {
        self.ranks.iter().position(|&r| r == rank)
    }

    /// The coordinates of the rank at `position`, one per axis.
    pub fn coordinates(&self, position: usize) -> Vec<usize> {
        unravel_position(position, &self.hierarchy)
    }

    /// The mesh of stage `stage` of `stages`: a slice of the first axis that keeps every axis.
    /// `None` where `stages` does not divide the first axis.
    pub fn slice_stage(&self, stage: usize, stages: usize) -> Option<Self> {
        if stages == 0 || !self.hierarchy[0].is_multiple_of(stages) {
            return None;
        }
        let size = self.size() / stages;
        let mut hierarchy = self.hierarchy.clone();
        hierarchy[0] /= stages;
        let ranks = self.ranks[stage * size..(stage + 1) * size].to_vec();
        Some(Self { device: self.device, ranks, hierarchy })
    }
}

/// The row-major coordinates of `position` in a grid of these `extents`.
pub fn unravel_position(position: usize, extents: &[usize]) -> Vec<usize> {
    let mut rest = position;
    let mut coordinates = vec![0; extents.len()];
    for (axis, &extent) in extents.iter().enumerate().rev() {
        coordinates[axis] = rest % extent;
        rest /= extent;
    }
    coordinates
}

impl fmt::Display for DeviceKind {
    /// `cpu`, `cuda`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        })
    }
}

impl fmt::Display for Placement {
    /// `cpu [0, 1, 2, 3] as 2x2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} as {}", self.device, self.ranks, format_mesh(&self.hierarchy))
    }
}

/// Writes the extents of the axes of a mesh: `2x4`.
pub fn format_mesh(mesh: &[usize]) -> String {
    mesh.iter().map(usize::to_string).collect::<Vec<_>>().join("x")
}
