//! Describes machines: presets, profiles of frameworks, TOML files, and the constants of the links that a group of
//! ranks uses.
//!
//! Machines and the framework that runs on them are two things (`Cluster::device`, `Cluster::framework`). Plans and cluster files that name no
//! framework are for graphc itself.
//!
//! Nothing here reads a file. The text of a cluster file comes from the caller, and that of `fitted.toml` is part of
//! the program. Start reading with [`preset`], [`parse_cluster`], [`link`] and [`alpha_beta`].

mod file;
mod fitted;
mod frameworks;
mod link;
mod presets;

use graphc_plan::Cluster;

pub use file::{ClusterError, parse_bytes, parse_cluster};
pub use fitted::{
    Fitted, FittedConstant, FittedConstants, FittedTable, fitted_constants, parse_fitted,
    write_fitted,
};
pub use frameworks::{FRAMEWORKS, find_framework};
#[cfg(test)]
pub(crate) use link::Hop;
pub use link::{Link, find_link};
pub use presets::{PRESETS, preset};

/// The constants of a link in the alpha-beta model: a message of `n` bytes takes `alpha + n * beta` seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AlphaBeta {
    /// Seconds per communication step.
    pub alpha: f64,
    /// Seconds per byte, rank and direction.
    pub beta: f64,
}

impl AlphaBeta {
    /// The link of a rank to itself.
    pub(crate) const FREE: AlphaBeta = AlphaBeta { alpha: 0.0, beta: 0.0 };

    fn elementwise_max(self, other: Self) -> Self {
        Self { alpha: self.alpha.max(other.alpha), beta: self.beta.max(other.beta) }
    }
}

/// Returns the link that a group of ranks shares. It is that of the innermost level which joins them all. If the cluster gives constants by axis, it
/// has those of mesh axis `axis` (of the slowest axis if `axis` is `None`). A group of one rank is free. Ranks are numbered so that the innermost
/// level joins neighbours.
pub(crate) fn alpha_beta(cluster: &Cluster, ranks: &[u32], axis: Option<usize>) -> AlphaBeta {
    if ranks.len() < 2 {
        return AlphaBeta::FREE;
    }
    if !cluster.axes.is_empty() {
        return of_axis(cluster, axis);
    }
    let mut block = 1usize;
    for (index, level) in cluster.levels.iter().enumerate() {
        block = block.saturating_mul(level.size);
        let joined = |rank: &u32| *rank as usize / block == ranks[0] as usize / block;
        if level.size == 0 || ranks.iter().all(joined) {
            return of_level(cluster, index);
        }
    }
    match cluster.levels.len() {
        0 => memory_link(cluster),
        levels => of_level(cluster, levels - 1),
    }
}

fn of_axis(cluster: &Cluster, axis: Option<usize>) -> AlphaBeta {
    let links = cluster
        .axes
        .iter()
        .map(|axis| AlphaBeta { alpha: axis.latency, beta: axis.seconds_per_byte });
    match axis {
        Some(axis) => links.take(axis + 1).fold(AlphaBeta::FREE, |_, link| link),
        None => links.fold(AlphaBeta::FREE, AlphaBeta::elementwise_max),
    }
}

fn of_level(cluster: &Cluster, index: usize) -> AlphaBeta {
    let level = cluster.effective_level(index);
    AlphaBeta { alpha: level.latency, beta: 1.0 / level.bandwidth }
}

/// Returns the link of a cluster without levels, which is one device: ranks exchange data in its memory.
fn memory_link(cluster: &Cluster) -> AlphaBeta {
    AlphaBeta { alpha: cluster.device.launch, beta: 1.0 / cluster.device.reached_bandwidth() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use graphc_plan::AxisLink;

    #[test]
    fn the_level_is_that_which_joins_the_ranks() {
        let cluster = preset("dgx-a100").expect("a preset");
        let near = alpha_beta(&cluster, &[8, 15], Some(1));
        let far = alpha_beta(&cluster, &[7, 8], Some(0));
        assert_eq!(near, of_level(&cluster, 0));
        assert_eq!(far, of_level(&cluster, 1));
        assert_eq!(alpha_beta(&cluster, &[7], None), AlphaBeta::FREE);
    }

    #[test]
    fn constants_by_axis_are_taken_as_given() {
        let mut cluster = preset("cpu").expect("a preset");
        cluster.axes = vec![
            AxisLink { latency: 1.0, seconds_per_byte: 0.01 },
            AxisLink { latency: 0.5, seconds_per_byte: 0.1 },
        ];
        let of = |axis| alpha_beta(&cluster, &[0, 1], axis);
        assert_eq!(of(Some(0)), AlphaBeta { alpha: 1.0, beta: 0.01 });
        assert_eq!(of(Some(1)), AlphaBeta { alpha: 0.5, beta: 0.1 });
        assert_eq!(of(None), AlphaBeta { alpha: 1.0, beta: 0.1 }, "the slowest of each");
    }
}
