//! Agreements: what all ranks must have alike, said before they begin. Ranks that were started with another seed, other
//! options or other data would otherwise compute something else than the others, and nobody would notice.
//!
//! Each rank brings named fields with digests, and all get the same account of those that differ. The command line
//! compares how ranks were started, `Session::on` the plan, the seed and the first step, and data parallelism its
//! buckets.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{self, Write};

use graphc_ir::hex::encode_hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Job;
use crate::control::{ControlMessage, note_waiting};
use crate::end::JobEnd;

/// The number of characters of a value that an account shows.
const SHOWN: usize = 60;

/// Named fields, and of each what it is on this rank: a short text, and a digest of all of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Agreement(Vec<AgreementField>);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct AgreementField {
    name: String,
    shown: String,
    digest: String,
}

impl Agreement {
    /// Makes an empty agreement.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value that people read.
    #[must_use]
    pub fn and(mut self, name: &str, value: impl Display) -> Self {
        let text = value.to_string();
        let digest = encode_hex(Sha256::digest(text.as_bytes()).as_slice());
        let mut shown: String = text.chars().filter(|c| !c.is_control()).take(SHOWN).collect();
        if shown != text {
            shown += &format!(".. (digest {})", &digest[..12]);
        }
        self.0.push(AgreementField { name: name.to_owned(), shown, digest });
        self
    }

    /// Adds a value of which only its digest is told.
    #[must_use]
    pub fn and_digest(mut self, name: &str, value: &impl Serialize) -> Self {
        let mut hash = Hash(Sha256::new());
        // What cannot be written as JSON is alike where it fails at the same place.
        let _ = serde_json::to_writer(&mut hash, value);
        let digest = encode_hex(hash.0.finalize().as_slice());
        let shown = format!("of digest {}", &digest[..12]);
        self.0.push(AgreementField { name: name.to_owned(), shown, digest });
        self
    }

    /// Returns the bytes to be sent.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads the agreement that was sent. All ranks run one version, they could not have met otherwise; so it can be
    /// read.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        serde_json::from_slice(bytes).unwrap_or_default()
    }

    fn find_field(&self, name: &str) -> Option<&AgreementField> {
        self.0.iter().find(|field| field.name == name)
    }
}

struct Hash(Sha256);

impl Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Job {
    /// Compares what the ranks have. All of them call it, with the same `what`, which is used once in a job.
    ///
    /// # Errors
    /// [`JobEnd::Differ`] on all ranks where they differ, with each field, its values, and who has them;
    /// [`JobEnd::Job`] where the job ends before all have come.
    pub fn agree(&self, what: &str, own: &Agreement) -> Result<(), JobEnd> {
        let all = self.gather_bytes(format!("agreement on {what}"), &own.to_bytes())?;
        let all: Vec<Agreement> = all.iter().map(|bytes| Agreement::from_bytes(bytes)).collect();
        match list_differences(&all) {
            None => Ok(()),
            Some(fields) => Err(JobEnd::Differ { what: what.to_owned(), fields }),
        }
    }

    /// Brings `bytes` under a name, and gets those of all ranks.
    pub(super) fn gather_bytes(&self, key: String, bytes: &[u8]) -> Result<Vec<Vec<u8>>, JobEnd> {
        if let Some(ended) = self.line.end_reason() {
            return Err(ended);
        }
        let _waiting = note_waiting(|| format!("for all ranks in {key}"));
        self.line.send_message(&ControlMessage::Gather { key: key.clone() }, bytes);
        let gathered = self.line.wait_for_gathered(&key);
        gathered.ok_or_else(|| self.line.end_reason().unwrap_or(JobEnd::ShutDown))
    }
}

/// Lists the fields that are not the same on all ranks, a line each.
pub fn list_differences(all: &[Agreement]) -> Option<String> {
    let mut names: Vec<&str> = Vec::new();
    for field in all.iter().flat_map(|agreement| &agreement.0) {
        if !names.contains(&field.name.as_str()) {
            names.push(&field.name);
        }
    }
    let lines: Vec<String> =
        names.into_iter().filter_map(|name| describe_difference(name, all)).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn describe_difference(name: &str, all: &[Agreement]) -> Option<String> {
    // In the order of the first rank that has each.
    let mut values: Vec<(&str, &str)> = Vec::new();
    let mut ranks: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (rank, agreement) in all.iter().enumerate() {
        let field = agreement.find_field(name);
        let (digest, shown) = field.map_or(("", "not given"), |f| (&f.digest, &f.shown));
        if !ranks.contains_key(digest) {
            values.push((digest, shown));
        }
        ranks.entry(digest).or_default().push(rank);
    }
    if values.len() == 1 {
        return None;
    }
    let part =
        |(digest, shown): &(&str, &str)| format!("{shown} on {}", format_ranks(&ranks[digest]));
    let parts: Vec<String> = values.iter().map(part).collect();
    Some(format!("  {name}: {}", parts.join("; ")))
}

/// Formats ranks: `rank 3`, or `ranks 0-2, 5`.
fn format_ranks(ranks: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let run = |&(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let runs: Vec<String> = runs.iter().map(run).collect();
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, runs.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(seed: u64, steps: &str) -> Agreement {
        Agreement::new().and("seed", seed).and("--steps", steps)
    }

    #[test]
    fn who_has_the_same_agrees() {
        assert_eq!(list_differences(&[of(1, "9"), of(1, "9"), of(1, "9")]), None);
        assert_eq!(list_differences(&[]), None);
    }

    #[test]
    fn each_field_that_differs_is_told_with_who_has_what() {
        let all = [of(0, "9"), of(0, "9"), of(7, "9"), of(0, "10")];
        let told = list_differences(&all).expect("they differ");
        assert_eq!(
            told,
            "  seed: 0 on ranks 0-1, 3; 7 on rank 2\n  --steps: 9 on ranks 0-2; 10 on rank 3"
        );
    }

    #[test]
    fn who_lacks_a_field_differs() {
        let told =
            list_differences(&[of(0, "9").and("--lr", 0.5), of(0, "9")]).expect("they differ");
        assert_eq!(told, "  --lr: 0.5 on rank 0; not given on rank 1");
    }

    #[test]
    fn long_values_are_told_apart_by_all_of_them_and_shown_in_part() {
        let long =
            |end: &str| Agreement::new().and("data", format!("{}{end}\u{1b}[31m", "x".repeat(80)));
        let told = list_differences(&[long("a"), long("b")]).expect("they differ");
        assert!(!told.contains('\u{1b}'), "{told}");
        assert!(told.starts_with("  data: xxxxxxxx") && told.len() < 250, "{told}");
        let digest = |value: &[u8]| Agreement::new().and_digest("plan", &value);
        assert!(list_differences(&[digest(b"a"), digest(b"a")]).is_none());
        let told = list_differences(&[digest(b"a"), digest(b"b")]).expect("they differ");
        assert!(told.contains("of digest "), "{told}");
    }
}
