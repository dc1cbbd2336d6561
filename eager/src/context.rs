//! The context that eager tensors of a rank belong to.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use graphc_ir::mesh::{DeviceKind, Placement};
use graphc_ir::plan::Layout;
use graphc_ir::sbp::NdSbp;
use graphc_ir::types::{DType, TensorType};
use graphc_runtime::dist::Group;
use graphc_runtime::{Routines, TensorError, laid_out};

use crate::error::EagerError;
use crate::plans::Plans;
use crate::spots::{Spot, Spots};

/// Eager tensors of the ranks of a group, seen from one of them; a cheap handle. All ranks make the same calls in the same
/// order, whatever the placement: a rank that a tensor does not lie on knows its shape and layout, and holds nothing.
///
/// Every call is compared between the ranks that take part in it. Where ranks differ the job ends on all of them, with an
/// error that says who calls what.
#[derive(Clone)]
pub struct Eager {
    state: Arc<Mutex<EagerState>>,
    rank: u32,
    ranks: usize,
    dtype: DType,
}

/// What calls of a rank have in common.
pub(crate) struct EagerState {
    pub(crate) routines: Routines,
    pub(crate) plans: Plans,
    pub(crate) spots: Spots,
    pub(crate) seed: u64,
    /// How many random tensors were drawn since the seed was set.
    pub(crate) draws: u64,
}

impl fmt::Debug for Eager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Eager(rank {} of {})", self.rank, self.ranks)
    }
}

impl Eager {
    /// A context on the ranks of a group, all of which call it. Placements name the ranks by their index in the group.
    ///
    /// # Errors
    /// Where a rank calls something else, the job ends, or the system gives no thread.
    pub fn new(group: &Group) -> Result<Self, EagerError> {
        let routines = Routines::new(group)?;
        let (rank, ranks) = (routines.rank(), routines.world_size());
        let (plans, spots) = (Plans::default(), Spots::default());
        let state = EagerState { routines, plans, spots, seed: 0, draws: 0 };
        Ok(Self { state: Arc::new(Mutex::new(state)), rank, ranks, dtype: DType::F32 })
    }

    /// The same context, which makes tensors of another element type than f32.
    #[must_use]
    pub fn of(&self, dtype: DType) -> Self {
        Self { dtype, ..self.clone() }
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.ranks
    }

    /// All ranks, on one axis.
    pub fn all(&self) -> Placement {
        let ranks = (0..self.ranks as u32).collect();
        Placement { device: DeviceKind::Cpu, ranks, hierarchy: vec![self.ranks] }
    }

    /// Seeds what [`Eager::randn`] and [`Eager::rand`] draw from now on; to be called alike on all ranks. A context begins
    /// with 0.
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

    /// The layout of a tensor of this type.
    ///
    /// # Errors
    /// Where the placement names ranks or devices that there are not, or the layout does not fit.
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

    /// Checks that a placement names ranks and devices that there are.
    ///
    /// # Errors
    /// Where it does not.
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
