//! Ranks of a tensor in a file: numbers, and from [`LONG`] ranks on runs, as tensors of a thousand ranks would otherwise be
//! little else than their numbers.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::runs::{self, Run};

/// The least number of ranks that are written as runs.
const LONG: usize = 128;

/// Writes a list of ranks: as numbers, or as runs if it is long.
pub(super) fn serialize<S: Serializer>(ranks: &[u32], serializer: S) -> Result<S::Ok, S::Error> {
    if ranks.len() < LONG {
        ranks.serialize(serializer)
    } else {
        runs::serialize(ranks, serializer)
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Listed {
    Ranks(Vec<u32>),
    Runs(Vec<Run>),
}

/// Reads a list of ranks, from numbers or from runs.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<u32>, D::Error> {
    match Listed::deserialize(deserializer)? {
        Listed::Ranks(ranks) => Ok(ranks),
        Listed::Runs(runs) => runs::expand_runs(runs).map_err(D::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, Deserialize, PartialEq, Debug)]
    struct Holder(#[serde(with = "super")] Vec<u32>);

    #[test]
    fn long_lists_are_runs_and_come_back() {
        let long = Holder((0..1024).chain(4096..4100).collect());
        let text = serde_json::to_string(&long).expect("plain numbers");
        assert_eq!(text, "[[0,1024,1],[4096,4,1]]");
        let short = Holder((0..127).collect());
        let plain = serde_json::to_string(&short).expect("plain numbers");
        assert!(plain.starts_with("[0,1,2,"), "{plain}");
        for (text, list) in [(text, long), (plain, short), ("[]".into(), Holder(Vec::new()))] {
            assert_eq!(serde_json::from_str::<Holder>(&text).expect("as written"), list);
        }
    }

    #[test]
    fn what_is_no_list_of_ranks_is_refused() {
        for text in ["[[0,4000000000,1]]", "[-1]", "[[4294967295,2,1]]", "[1,[2,1,1]]", "[\"0\"]"] {
            assert!(serde_json::from_str::<Holder>(text).is_err(), "{text}");
        }
    }
}
