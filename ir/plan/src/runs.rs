//! Lists of ranks in a file: as arithmetic runs, since a mesh of a thousand ranks is one or a few.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A run of ranks: the first rank, the number of ranks, and the distance between neighbours.
pub(super) type Run = (u32, u32, u32);

/// The greatest number of ranks that the runs of one list may stand for: more than any machine has.
const MOST: u64 = 1 << 24;

/// Writes a list of ranks as runs.
pub(super) fn serialize<S: Serializer>(ranks: &[u32], serializer: S) -> Result<S::Ok, S::Error> {
    compress_ranks(ranks).serialize(serializer)
}

/// Reads a list of ranks from runs.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<u32>, D::Error> {
    expand_runs(Vec::<Run>::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// Returns the ranks that runs stand for, or what is wrong with them.
pub(super) fn expand_runs(runs: Vec<Run>) -> Result<Vec<u32>, String> {
    let total: u64 = runs.iter().map(|run| u64::from(run.1)).sum();
    if total > MOST {
        return Err(format!("{total} ranks in one layout"));
    }
    let mut ranks = Vec::new();
    for (first, count, stride) in runs {
        for index in 0..count {
            let rank = index.checked_mul(stride).and_then(|offset| offset.checked_add(first));
            ranks.push(rank.ok_or("a rank above 2^32")?);
        }
    }
    Ok(ranks)
}

fn compress_ranks(ranks: &[u32]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some((first, count @ 1, stride)) if rank > *first => {
                (*count, *stride) = (2, rank - *first);
            }
            Some((first, count, stride))
                if *count > 1
                    && u64::from(*first) + u64::from(*count) * u64::from(*stride)
                        == u64::from(rank) =>
            {
                *count += 1;
            }
            _ => runs.push((rank, 1, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_survive() {
        let lists: [&[u32]; 7] = [
            &[],
            &[5],
            &[0, 1, 2, 3],
            &[0, 8, 16, 1, 9, 17],
            &[3, 2, 1, 0],
            &[7, 7],
            &[0, u32::MAX, 1],
        ];
        for list in lists {
            let text = serde_json::to_string(&compress_ranks(list)).expect("plain numbers");
            let mut reader = serde_json::Deserializer::from_str(&text);
            assert_eq!(deserialize(&mut reader).expect(&text), list, "{text}");
        }
        assert_eq!(compress_ranks(&(0..1024).collect::<Vec<_>>()), [(0, 1024, 1)]);
    }

    #[test]
    fn absurd_runs_are_refused() {
        for text in ["[[0, 4000000000, 1]]", "[[4294967295, 2, 1]]"] {
            let mut reader = serde_json::Deserializer::from_str(text);
            assert!(deserialize(&mut reader).is_err(), "{text}");
        }
    }
}
