//! The context that the eager tensors of a rank belong to.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use graphc_ir::mesh::{DeviceKind, Placement};
use graphc_ir::sbp::NdSbp;
use graphc_ir::types::{DType, TensorType};
use graphc_plan::Layout;
use graphc_runtime::dist::Group;
use graphc_runtime::{Routines, TensorError, laid_out};

use crate::error::EagerError;
use crate::plans::Plans;
use crate::spots::{Spot, Spots};

/// A handle, cheap to clone, by which one rank of a group makes and uses eager tensors. All ranks make the same calls in the same order, whatever the
/// placement: a rank outside a tensor's placement knows its shape and layout, and holds no shard.
///
/// Every call is compared between the ranks that take part in it. If they differ, the job ends on all of them, with an error that says which rank
/// calls what.
#[derive(Clone)]
pub struct Eager {
    state: Arc<Mutex<EagerState>>,
    rank: u32,
    ranks: usize,
    dtype: DType,
}

/// The state that all handles of a rank share.
pub(crate) struct EagerState {
    pub(crate) routines: Routines,
    pub(crate) plans: Plans,
    pub(crate) spots: Spots,
    pub(crate) seed: u64,
    /// The number of random tensors that were drawn since the seed was set.
    pub(crate) draws: u64,
}

impl fmt::Debug for Eager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Eager(rank {} of {})", self.rank, self.ranks)
    }
}

impl Eager {
    /// Makes a context on the ranks of a group, all of which call this. Placements name the ranks by their index in the group.
    ///
    /// # Errors
    /// Returns an error if a rank calls something else, if the job ends, or if the system gives no thread.
    pub fn new(group: &Group) -> Result<Self, EagerError> {
        let routines = Routines::new(group)?;
        let (rank, ranks) = (routines.rank(), routines.world_size());
        let (plans, spots) = (Plans::default(), Spots::default());
        let state = EagerState { routines, plans, spots, seed: 0, draws: 0 };
        Ok(Self { state: Arc::new(Mutex::new(state)), rank, ranks, dtype: DType::F32 })
    }

    /// Returns a handle of the same context that makes tensors of another element type than f32.
    #[must_use]
    pub fn of(&self, dtype: DType) -> Self {
        Self { dtype, ..self.clone() }
    }

    /// Returns the index of this rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Returns the number of ranks.
    pub fn world_size(&self) -> usize {
        self.ranks
    }

    /// Returns the placement on all ranks, along one axis.
    pub fn all(&self) -> Placement {
        let ranks = (0..self.ranks as u32).collect();
        Placement { device: DeviceKind::Cpu, ranks, hierarchy: vec![self.ranks] }
    }

    /// Sets the seed of the numbers that [`Eager::randn`] and [`Eager::rand`] draw from now on. All ranks call it alike. The seed of a new context is
    /// 0.
    pub fn seed(&self, seed: u64) {
        let mut state = self.lock_state();
        (state.seed, state.draws) = (seed, 0);
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn lock_state(&self) -> MutexGuard<'_, EagerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_same_context(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// Returns the layout of a tensor of this type.
    ///
    /// # Errors
    /// Returns an error if the placement names ranks or devices that do not exist, or if the layout does not fit.
    pub(crate) fn build_layout(
        &self,
        ty: &TensorType,
        placement: &Placement,
        sbp: &NdSbp,
    ) -> Result<Layout, EagerError> {
        self.check_placement(placement)?;
        let bytes = ty.shape.iter().try_fold(ty.dtype.size(), |n, &extent| n.checked_mul(extent));
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            let reason = format!("{ty} is larger than any memory");
            return Err(TensorError::Layout(reason).into());
        }
        Ok(laid_out(ty, placement, sbp)?)
    }

    /// Checks that the ranks and devices of a placement exist.
    ///
    /// # Errors
    /// Returns an error if one does not.
    pub(crate) fn check_placement(&self, placement: &Placement) -> Result<(), EagerError> {
        let ranks = self.ranks;
        if let Some(&rank) = placement.ranks.iter().find(|&&rank| rank as usize >= ranks) {
            return Err(EagerError::Rank { placement: placement.clone(), rank, ranks });
        }
        match placement.device {
            DeviceKind::Cpu => Ok(()),
            DeviceKind::Cuda => Err(EagerError::Device { placement: placement.clone() }),
        }
    }

    pub(crate) fn find_spot(&self, layout: &Layout) -> Arc<Spot> {
        self.lock_state().spots.find_spot(layout)
    }
}
