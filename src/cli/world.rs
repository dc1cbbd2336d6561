//! How many processes the environment says that there are.

use anyhow::{Result, ensure};
use graphc_runtime::job::JobOptions;

/// How many processes a launcher has started, where one has.
pub fn world_size() -> Result<Option<usize>> {
    let world = JobOptions::world_size_from_environment()?;
    ensure!(world != Some(0), "WORLD_SIZE is 0");
    Ok(world.map(|world| world as usize))
}
