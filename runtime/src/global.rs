//! Global tensors: shards on ranks that are one tensor, and their way from layout to layout.

use graphc_ir::mesh::Placement;
use graphc_ir::plan::Layout;
use graphc_ir::sbp::NdSbp;
use graphc_ir::shard::Rect;
use graphc_ir::types::{DType, TensorType};
use graphc_kernels::narrow;

use crate::rectangles::{Move, contributions, fill_identity, masked, partial_kind, sums_wide};
use crate::tensor::{HostTensor, TensorError};

/// A tensor that lies on the ranks of a mesh in some layout.
///
/// ```
/// use graphc_ir::mesh::Placement;
/// use graphc_runtime::{GlobalTensor, HostTensor};
///
/// let ranks = Placement::mesh(&[2]).unwrap();
/// let shards = [[1.0, 2.0], [3.0, 4.0]].map(|row| HostTensor::from_f32([1, 2], &row).unwrap());
/// let rows = GlobalTensor::from_local(shards.into(), vec![2, 2], &ranks, &"S(0)".parse().unwrap()).unwrap();
/// let columns = rows.to_global(&ranks, &"S(1)".parse().unwrap()).unwrap();
/// assert_eq!(columns.local(1).unwrap().to_f32().unwrap(), [2.0, 4.0]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct GlobalTensor {
    layout: Layout,
    /// In the order of the layout's ranks.
    shards: Vec<HostTensor>,
}

impl GlobalTensor {
    /// The tensor of this shape whose shards these are, in the order of the placement's ranks.
    ///
    /// # Errors
    /// Where number, shapes or element types of the shards are not those of the layout.
    pub fn from_local(
        shards: Vec<HostTensor>,
        shape: impl Into<Vec<usize>>,
        placement: &Placement,
        sbp: &NdSbp,
    ) -> Result<Self, TensorError> {
        let dtype = shards.first().map_or(DType::F32, HostTensor::dtype);
        let ty = TensorType { dtype, shape: shape.into() };
        Self::of_layout(layout_of(&ty, placement, sbp)?, shards)
    }

    /// The tensor with this layout whose shards these are.
    pub(crate) fn of_layout(layout: Layout, shards: Vec<HostTensor>) -> Result<Self, TensorError> {
        if shards.len() != layout.ranks.len() {
            let reason = format!("{} shards for {} ranks", shards.len(), layout.ranks.len());
            return Err(TensorError::Layout(reason));
        }
        for (&rank, shard) in layout.ranks.iter().zip(&shards) {
            let expected = TensorType { dtype: layout.dtype, shape: rect_of(&layout, rank).extent };
            if shard.ty() != expected {
                let reason = format!("rank {rank} holds {expected}, not {}", shard.ty());
                return Err(TensorError::Layout(reason));
            }
        }
        Ok(Self { layout, shards })
    }

    /// A whole tensor, laid out.
    ///
    /// # Errors
    /// Where the layout does not fit the tensor.
    pub fn from_host(
        tensor: &HostTensor,
        placement: &Placement,
        sbp: &NdSbp,
    ) -> Result<Self, TensorError> {
        let to = layout_of(&tensor.ty(), placement, sbp)?;
        let whole = Self { layout: host_layout(&tensor.ty()), shards: vec![tensor.clone()] };
        whole.redistribute(to)
    }

    /// The same tensor on other ranks or in another layout. Ranks exchange the rectangles in which the layouts overlap.
    ///
    /// # Errors
    /// Where the layout does not fit the tensor.
    pub fn to_global(&self, placement: &Placement, sbp: &NdSbp) -> Result<Self, TensorError> {
        self.redistribute(layout_of(&self.layout.ty(), placement, sbp)?)
    }

    /// The whole tensor.
    ///
    /// # Errors
    /// Where its partial values are of several kinds.
    pub fn to_host(&self) -> Result<HostTensor, TensorError> {
        let mut whole = self.redistribute(host_layout(&self.layout.ty()))?;
        Ok(whole.shards.swap_remove(0))
    }

    /// The shard of a rank; `None` where the rank holds none.
    pub fn local(&self, rank: u32) -> Option<&HostTensor> {
        let position = self.layout.ranks.iter().position(|&r| r == rank)?;
        Some(&self.shards[position])
    }

    /// Where the shards lie.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    fn redistribute(&self, to: Layout) -> Result<Self, TensorError> {
        let shards = to.ranks.iter().map(|&rank| self.shard_in(&to, rank));
        let shards = shards.collect::<Result<_, _>>()?;
        Ok(Self { layout: to, shards })
    }

    /// What `rank` holds in another layout.
    fn shard_in(&self, to: &Layout, rank: u32) -> Result<HostTensor, TensorError> {
        let target = rect_of(to, rank);
        let mut shard = HostTensor::zeros(to.dtype, target.extent.clone());
        if let Some(kind) = masked(to, rank) {
            fill_identity(to.dtype, kind, shard.bytes_mut());
        }
        let parts = contributions(&self.layout, to, rank, 0, 1).map_err(TensorError::Layout)?;
        let sums = parts.iter().any(|part| sums_wide(to.dtype, part.combine));
        let mut wide = if sums { vec![0.0; target.elements()] } else { Vec::new() };
        for part in parts {
            let Some(source) = self.local(part.source) else { continue };
            let held = rect_of(&self.layout, part.source);
            let step = Move::new(to.dtype, &part.part, &held, &target);
            match sums {
                true => step.sum(part.combine.is_some(), source.bytes(), &mut wide),
                false => step.apply(part.combine, source.bytes(), shard.bytes_mut()),
            }
        }
        if sums {
            narrow(to.dtype, &wide, shard.bytes_mut());
        }
        Ok(shard)
    }
}

/// The rectangle of a rank of the layout.
fn rect_of(layout: &Layout, rank: u32) -> Rect {
    layout.rect(rank, 0, 1).unwrap_or_else(|| Rect::whole(&layout.shape))
}

fn host_layout(ty: &TensorType) -> Layout {
    Layout {
        shape: ty.shape.clone(),
        dtype: ty.dtype,
        microbatch_dim: None,
        ranks: vec![0],
        hierarchy: vec![1],
        sbp: NdSbp::broadcast(1),
    }
}

fn layout_of(ty: &TensorType, placement: &Placement, sbp: &NdSbp) -> Result<Layout, TensorError> {
    let fail = |reason: String| Err(TensorError::Layout(reason));
    if sbp.0.len() != placement.hierarchy.len() {
        return fail(format!("({sbp}) names {} axes, the mesh is {placement}", sbp.0.len()));
    }
    let beyond = |sbp: &&graphc_ir::sbp::Sbp| match sbp {
        graphc_ir::sbp::Sbp::Split(dim) => *dim >= ty.shape.len(),
        _ => false,
    };
    if let Some(split) = sbp.0.iter().find(beyond) {
        return fail(format!("{ty} cannot be {split}: it has {} dims", ty.shape.len()));
    }
    partial_kind(sbp).map_err(TensorError::Layout)?;
    Ok(Layout {
        shape: ty.shape.clone(),
        dtype: ty.dtype,
        microbatch_dim: None,
        ranks: placement.ranks.clone(),
        hierarchy: placement.hierarchy.clone(),
        sbp: sbp.clone(),
    })
}
