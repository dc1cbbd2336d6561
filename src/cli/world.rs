//! Reads the number of processes from the environment.

use anyhow::{Result, ensure};
use graphc_runtime::job::JobOptions;

/// Returns the number of processes that a launcher has started; `None` without a launcher.
pub(super) fn world_size() -> Result<Option<usize>> {
    let world = JobOptions::world_size_from_environment()?;
    ensure!(world != Some(0), "WORLD_SIZE is 0");
    Ok(world.map(|world| world as usize))
}
