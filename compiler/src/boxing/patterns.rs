//! Finds the traffic of exchanges on one mesh, once for each pair of SBPs.

use std::collections::HashMap;

use graphc_plan::Layout;

use super::Code;
use super::exchange::Traffic;
use super::same_mesh::{SameMesh, count_blocks};

/// Traffic of exchanges on one mesh. If all splits are even, it depends only on the two SBPs and the mesh, in units of a block: the part of each dim
/// that no split of either layout cuts.
#[derive(Default)]
pub(super) struct ExchangePatterns {
    meshes: Vec<Vec<usize>>,
    /// The traffic, by the index of the mesh, the number of dims and the numbers of the two SBPs.
    known: HashMap<(usize, usize, Code, Code), BlockTraffic>,
}

/// The traffic in blocks.
struct BlockTraffic {
    /// The number of blocks into which each dim is cut.
    blocks: Vec<usize>,
    /// The traffic of the first rank.
    first: Traffic,
    /// The traffic of the busiest rank. It is computed on request, because it takes a look at all ranks.
    most: Option<Traffic>,
}

impl ExchangePatterns {
    /// Returns the traffic of an exchange between layouts of one mesh, each given with its number. `None` if a split is uneven.
    pub(super) fn even_traffic(
        &mut self,
        from: (&Layout, Code),
        to: (&Layout, Code),
        microbatches: usize,
    ) -> Option<Traffic> {
        let known = self.find_blocks(from, to);
        let BlockTraffic { blocks, most, .. } = known;
        let in_blocks = || SameMesh::new(&from.0.hierarchy, &from.0.sbp, &to.0.sbp, blocks);
        let most = *most.get_or_insert_with(|| in_blocks().busiest_traffic());
        of_blocks(most, from.0, &known.blocks, microbatches)
    }

    /// Returns the traffic of the first rank under the same conditions. The busiest rank has no less.
    pub(super) fn even_first(
        &mut self,
        from: (&Layout, Code),
        to: (&Layout, Code),
        microbatches: usize,
    ) -> Option<Traffic> {
        let known = self.find_blocks(from, to);
        of_blocks(known.first, from.0, &known.blocks, microbatches)
    }

    fn find_blocks(&mut self, from: (&Layout, Code), to: (&Layout, Code)) -> &mut BlockTraffic {
        let (layout, mesh) = (from.0, &from.0.hierarchy);
        let known = self.meshes.iter().position(|known| known == mesh);
        let mesh = known.unwrap_or_else(|| {
            self.meshes.push(mesh.clone());
            self.meshes.len() - 1
        });
        let rank = layout.shape.len();
        self.known.entry((mesh, rank, from.1, to.1)).or_insert_with(|| {
            let (hierarchy, from, to) = (&layout.hierarchy, &layout.sbp, &to.0.sbp);
            let blocks: Vec<usize> =
                (0..rank).map(|dim| count_blocks(hierarchy, from, to, dim)).collect();
            let first = SameMesh::new(hierarchy, from, to, &blocks).of_first();
            BlockTraffic { blocks, first, most: None }
        })
    }
}

/// Returns the traffic of a tensor whose dims are cut into this many blocks, or `None` if they cannot be.
fn of_blocks(
    units: Traffic,
    layout: &Layout,
    blocks: &[usize],
    microbatches: usize,
) -> Option<Traffic> {
    let mut size = layout.dtype.size();
    for (dim, (&extent, &blocks)) in layout.shape.iter().zip(blocks).enumerate() {
        let parts = if layout.microbatch_dim == Some(dim) { microbatches * blocks } else { blocks };
        if extent == 0 || !extent.is_multiple_of(parts) {
            return None;
        }
        size *= extent / parts;
    }
    Some(Traffic { messages: units.messages, bytes: units.bytes * size as u64 })
}

#[cfg(test)]
mod tests {
    use graphc_ir::mesh::unravel_position;
    use graphc_ir::sbp::{NdSbp, Sbp};
    use graphc_ir::types::DType;

    use super::super::exchange::exchange_traffic;
    use super::*;

    #[test]
    fn even_traffic_is_what_all_pairs_say() {
        for (mesh, shape) in
            [(vec![4], vec![8]), (vec![2, 3], vec![36, 12]), (vec![2, 2, 3], vec![24, 48])]
        {
            let ranks = (0..mesh.iter().product::<usize>() as u32).collect();
            let place = Layout {
                microbatch_dim: (shape.len() > 1).then_some(1),
                shape,
                dtype: DType::F16,
                ranks,
                hierarchy: mesh.clone(),
                sbp: NdSbp(Vec::new()),
            };
            let digits: Vec<Sbp> = [Sbp::Broadcast, Sbp::Split(0), Sbp::Split(1), Sbp::PARTIAL]
                .into_iter()
                .filter(|sbp| place.shape.len() > 1 || *sbp != Sbp::Split(1))
                .collect();
            let extents = vec![digits.len(); mesh.len()];
            let all: Vec<Layout> = (0..extents.iter().product())
                .map(|at| {
                    unravel_position(at, &extents).into_iter().map(|digit| digits[digit]).collect()
                })
                .map(|sbp| Layout { sbp: NdSbp(sbp), ..place.clone() })
                .collect();
            let mut patterns = ExchangePatterns::default();
            for (a, from) in all.iter().enumerate().filter(|(_, from)| !from.sbp.is_partial()) {
                for (b, to) in all.iter().enumerate() {
                    let even = patterns.even_traffic((from, a as Code), (to, b as Code), 2);
                    assert_eq!(
                        even,
                        Some(exchange_traffic(from, to, 2)),
                        "{} {}",
                        from.sbp,
                        to.sbp
                    );
                    let first = patterns.even_first((from, a as Code), (to, b as Code), 2);
                    let least = first.expect("all splits are even");
                    assert_eq!(
                        even.map(|even| even.elementwise_max(least)),
                        even,
                        "{} {}",
                        from.sbp,
                        to.sbp
                    );
                }
            }
        }
    }
}
