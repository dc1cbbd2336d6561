//! The check that this machine has the memory that a plan asks of it, before anything is taken: systems promise more than
//! they have, and end those who take them at their word.

use graphc_host::memory::memory_and_swap;
use graphc_plan::Plan;

use crate::error::RuntimeError;

/// Checks the arenas of the ranks of this process, and as much for each of the other ranks of this machine, which has
/// `neighbours` ranks.
///
/// # Errors
/// [`RuntimeError::Memory`] where they are more than the machine has, swap space included.
pub(super) fn check_free_memory(
    plan: &Plan,
    own: &[u32],
    neighbours: usize,
) -> Result<(), RuntimeError> {
    let arena = |&rank: &u32| (rank, plan.program_of(rank).arena_bytes);
    let arenas: Vec<(u32, u64)> = own.iter().map(arena).collect();
    memory_and_swap().map_or(Ok(()), |available| check_available(&arenas, neighbours, available))
}

fn check_available(
    arenas: &[(u32, u64)],
    neighbours: usize,
    available: u64,
) -> Result<(), RuntimeError> {
    // Of other processes this one knows that they are alike.
    let each = (neighbours / arenas.len().max(1)).max(1) as u64;
    let mut together = 0u64;
    for &(rank, bytes) in arenas {
        together = together.saturating_add(bytes.saturating_mul(each));
        if together > available {
            return Err(RuntimeError::Memory { rank, bytes, together, available });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arenas_count_together_and_for_other_processes() {
        assert_eq!(check_available(&[(0, 40), (1, 60)], 2, 100), Ok(()));
        assert_eq!(
            check_available(&[(0, 40), (1, 61)], 2, 100),
            Err(RuntimeError::Memory { rank: 1, bytes: 61, together: 101, available: 100 })
        );
        assert_eq!(check_available(&[(3, 25)], 4, 100), Ok(()));
        assert!(check_available(&[(3, 26)], 4, 100).is_err());
        assert!(check_available(&[(0, u64::MAX), (1, u64::MAX)], 2, 100).is_err(), "no overflow");
    }
}
