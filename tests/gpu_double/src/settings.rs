//! Settings of the double, from the environment.

use std::path::PathBuf;

/// Cards, their memory and the seed of the order in which streams go on.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `GPU_DOUBLE_DEVICES`: number of cards, 8 if unset.
    pub devices: i32,
    /// `GPU_DOUBLE_MEMORY`: bytes of a card, with KiB, MiB or GiB; 2 GiB if unset.
    pub memory: u64,
    /// `GPU_DOUBLE_SEED`: 0 if unset.
    pub seed: u64,
    /// `GPU_DOUBLE_CAPABILITY`: compute capability, `9.0` if unset.
    pub capability: (i32, i32),
    /// `GPU_DOUBLE_ACCOUNT`: a file that gets a line for each kernel which was executed; none if unset.
    pub account: Option<PathBuf>,
}

impl Settings {
    /// Settings from the environment. What cannot be read is as if unset, and said on standard error.
    pub fn of_environment() -> Settings {
        Settings {
            devices: setting("GPU_DOUBLE_DEVICES", 8, |text| text.parse().ok()),
            memory: setting("GPU_DOUBLE_MEMORY", 2 << 30, bytes),
            seed: setting("GPU_DOUBLE_SEED", 0, |text| text.parse().ok()),
            capability: setting("GPU_DOUBLE_CAPABILITY", (9, 0), capability),
            account: std::env::var_os("GPU_DOUBLE_ACCOUNT").map(PathBuf::from),
        }
    }
}

/// The value of a variable. One that cannot be read is as if unset, and said on standard error.
pub fn setting<T>(name: &str, unset: T, read: fn(&str) -> Option<T>) -> T {
    let Ok(text) = std::env::var(name) else { return unset };
    read(text.trim()).unwrap_or_else(|| {
        eprintln!("gpu double: {name}={text} cannot be read and is ignored");
        unset
    })
}

/// Reads a size such as `3 MiB`; `None` if it is none.
pub fn bytes(text: &str) -> Option<u64> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    let unit = units.iter().find(|(unit, _)| text.ends_with(unit));
    let (unit, factor) = unit.copied().unwrap_or(("", 1));
    text.strip_suffix(unit)?.trim().parse::<u64>().ok()?.checked_mul(factor)
}

/// Reads a compute capability such as `9.0`; `None` if it is none.
pub fn capability(text: &str) -> Option<(i32, i32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
