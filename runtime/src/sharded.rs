//! Sharded tensors: the shards of all ranks of one tensor, held by one process, and their way from layout to layout.

use graphc_host::tensor::{HostTensor, TensorError, write_element};
use graphc_ir::mesh::Placement;
use graphc_ir::sbp::NdSbp;
use graphc_ir::shard::Rect;
use graphc_ir::types::{DType, TensorType, row_major_strides};
use graphc_kernels::narrow_to_halves;
use graphc_plan::Layout;

use crate::rectangles::{
    Move, fill_identity, list_contributions, masked_kind, partial_kind, sums_wide,
};

/// A tensor that lies on the ranks of a mesh in some layout, with the shards of all of them.
///
/// ```
/// use graphc_ir::mesh::Placement;
/// use graphc_runtime::{ShardedTensor, HostTensor};
///
/// let ranks = Placement::mesh(&[2]).unwrap();
/// let shards = [[1.0, 2.0], [3.0, 4.0]].map(|row| HostTensor::from_f32([1, 2], &row).unwrap());
/// let rows = ShardedTensor::from_local(shards.into(), vec![2, 2], &ranks, &"S(0)".parse().unwrap()).unwrap();
/// let columns = rows.to_global(&ranks, &"S(1)".parse().unwrap()).unwrap();
/// assert_eq!(columns.local(1).unwrap().to_f32().unwrap(), [2.0, 4.0]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ShardedTensor {
    layout: Layout,
    /// The shards, in the order of the layout's ranks.
    shards: Vec<HostTensor>,
}

impl ShardedTensor {
    /// Builds the tensor of this shape from its shards, in the order of the placement's ranks.
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
        Self::of_layout(laid_out(&ty, placement, sbp)?, shards)
    }

    /// Builds the tensor with this layout from its shards.
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

    /// Lays out a whole tensor.
    ///
    /// # Errors
    /// Where the layout does not fit the tensor.
    pub fn from_host(
        tensor: &HostTensor,
        placement: &Placement,
        sbp: &NdSbp,
    ) -> Result<Self, TensorError> {
        let to = laid_out(&tensor.ty(), placement, sbp)?;
        let whole = Self { layout: host_layout(&tensor.ty()), shards: vec![tensor.clone()] };
        whole.redistribute(to)
    }

    /// Moves the tensor to other ranks or to another layout. Ranks exchange the rectangles in which the layouts
    /// overlap.
    ///
    /// # Errors
    /// Where the layout does not fit the tensor.
    pub fn to_global(&self, placement: &Placement, sbp: &NdSbp) -> Result<Self, TensorError> {
        self.redistribute(laid_out(&self.layout.ty(), placement, sbp)?)
    }

    /// Gathers the whole tensor.
    ///
    /// # Errors
    /// Where its partial values are of several kinds.
    pub fn to_host(&self) -> Result<HostTensor, TensorError> {
        let mut whole = self.redistribute(host_layout(&self.layout.ty()))?;
        Ok(whole.shards.swap_remove(0))
    }

    /// Returns the shard of a rank; `None` where the rank holds none.
    pub fn local(&self, rank: u32) -> Option<&HostTensor> {
        let position = self.layout.ranks.iter().position(|&r| r == rank)?;
        Some(&self.shards[position])
    }

    /// Returns the layout of the shards.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    fn redistribute(&self, to: Layout) -> Result<Self, TensorError> {
        let shards = to.ranks.iter().map(|&rank| self.shard_in(&to, rank));
        let shards = shards.collect::<Result<_, _>>()?;
        Ok(Self { layout: to, shards })
    }

    /// Returns the shard of `rank` in another layout.
    fn shard_in(&self, to: &Layout, rank: u32) -> Result<HostTensor, TensorError> {
        let target = rect_of(to, rank);
        let mut shard = HostTensor::zeros(to.dtype, target.extent.clone());
        if let Some(kind) = masked_kind(to, rank) {
            fill_identity(to.dtype, kind, shard.bytes_mut());
        }
        let parts =
            list_contributions(&self.layout, to, rank, 0, 1).map_err(TensorError::Layout)?;
        let sums = parts.iter().any(|part| sums_wide(to.dtype, part.combine));
        let mut wide = if sums { vec![0.0; target.elements()] } else { Vec::new() };
        for part in parts {
            let Some(source) = self.local(part.source) else { continue };
            let held = rect_of(&self.layout, part.source);
            let step = Move::new(to.dtype, &part.part, &held, &target);
            match sums {
                true => step.sum_wide(part.combine.is_some(), source.bytes(), &mut wide),
                false => step.apply(part.combine, source.bytes(), shard.bytes_mut()),
            }
        }
        if sums {
            narrow_to_halves(to.dtype, &wide, shard.bytes_mut());
        }
        Ok(shard)
    }
}

/// Returns the shard of `rank` of a tensor whose elements are this function of their row-major index in the whole;
/// `None` where the rank is not in the layout. In a partial layout the first rank holds the elements and the others
/// the identity of the reduction.
pub fn generate_shard(
    layout: &Layout,
    rank: u32,
    element: &mut dyn FnMut(u64) -> f64,
) -> Option<HostTensor> {
    let rect = layout.rect(rank, 0, 1)?;
    let (size, own, whole) =
        (layout.dtype.size(), row_major_strides(&rect.extent), row_major_strides(&layout.shape));
    let mut shard = HostTensor::zeros(layout.dtype, rect.extent.clone());
    if let Some(kind) = masked_kind(layout, rank) {
        fill_identity(layout.dtype, kind, shard.bytes_mut());
        return Some(shard);
    }
    let place = |at: usize| -> usize {
        let dims = 0..rect.extent.len();
        let index = |dim: usize| at / own[dim] % rect.extent[dim] + rect.origin[dim];
        dims.map(|dim| index(dim) * whole[dim]).sum()
    };
    for (at, bytes) in shard.bytes_mut().chunks_exact_mut(size).enumerate() {
        write_element(layout.dtype, element(place(at) as u64), bytes);
    }
    Some(shard)
}

/// Returns the shard of `rank` of a whole tensor in a layout; as [`generate_shard`].
pub fn cut_shard(whole: &HostTensor, layout: &Layout, rank: u32) -> Option<HostTensor> {
    let rect = layout.rect(rank, 0, 1)?;
    let mut shard = HostTensor::zeros(layout.dtype, rect.extent.clone());
    match masked_kind(layout, rank) {
        Some(kind) => fill_identity(layout.dtype, kind, shard.bytes_mut()),
        None if rect.elements() == 0 => {}
        None => {
            let copy = Move::new(layout.dtype, &rect, &Rect::whole(&layout.shape), &rect);
            copy.copy(whole.bytes(), shard.bytes_mut());
        }
    }
    Some(shard)
}

/// Returns the rectangle of a rank of the layout.
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

/// Returns the layout of a tensor of this type on a placement.
///
/// # Errors
/// Where the mesh has another number of axes, a dim is split that the tensor lacks, or partial values are of several kinds.
pub fn laid_out(
    ty: &TensorType,
    placement: &Placement,
    sbp: &NdSbp,
) -> Result<Layout, TensorError> {
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
