//! The kernels of plans, compiled where no card is.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use graphc_comm::transport::Patience;
use graphc_comm::transport::in_process::Hub;
use graphc_plan::check::VerifiedPlan;

use super::edges::Sockets;
use crate::device::Device;
use crate::device::cuda::{self, Cuda, PrepareError};
use crate::error::RuntimeError;
use crate::worker::ActorResolver;

/// The counts of kernels that were compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreparedKernels {
    /// Kernels of the plans.
    pub kernels: usize,
    /// The number of them that were not in the folder yet.
    pub compiled: usize,
}

/// Compiles all kernels that plans launch on cards of a capability, such as `(9, 0)`, and keeps them in a folder. No card
/// and no driver are needed, NVRTC is. A session on a machine with such cards takes them from there where `GRAPHC_CACHE`
/// names the folder.
///
/// # Errors
/// Where there is no compiler, a plan cannot be executed on cards, or the folder cannot be written.
pub fn prepare_kernels<'a>(
    plans: impl IntoIterator<Item = &'a VerifiedPlan>,
    capability: (i32, i32),
    folder: &Path,
) -> Result<PreparedKernels, PrepareError> {
    let mut sources = BTreeSet::new();
    for plan in plans {
        // A card's library of products may compute no product together with its neighbours: then these are kernels of their own.
        for refuses in [false, true] {
            sources.extend(list_sources(plan, capability, refuses)?);
        }
    }
    let sources: Vec<String> = sources.into_iter().collect();
    let compiled = cuda::prepare_kernels(&sources, capability, folder)?;
    Ok(PreparedKernels { kernels: sources.len(), compiled })
}

/// Lists the sources of the kernels of all ranks.
fn list_sources(
    plan: &VerifiedPlan,
    capability: (i32, i32),
    refuses: bool,
) -> Result<BTreeSet<String>, RuntimeError> {
    let own: Vec<u32> = (0..plan.world_size as u32).collect();
    let edges = Sockets::from_plan(plan, &own).edges(None);
    let mut sources = BTreeSet::new();
    for &rank in &own {
        // Nobody sends anything, so each rank may have a hub of its own.
        let hub = Hub::new(Patience { timeout: Duration::ZERO, spin: Duration::ZERO });
        let transport = hub.new_transport(rank);
        let device = Device::Cuda(Cuda::without_card(rank, capability, refuses));
        ActorResolver::new(plan, plan.program_of(rank), &edges, &device, &transport)?.resolve()?;
        if let Device::Cuda(cuda) = &device {
            sources.extend(cuda.take_sources());
        }
    }
    Ok(sources)
}
