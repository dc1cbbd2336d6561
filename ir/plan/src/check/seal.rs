//! Seals: marks in plan files that say that the text was proven, for engines that cannot prove it themselves.
//!
//! A seal is the SHA-256 of all bytes that stand before it, and stands last in the file. So it is compared without
//! reading a number, which languages write in different ways. It is no signature: who wants to deceive computes another
//! one.
//!
//! `graphc_torch` proves no plans, because the proof is long and a second one would go its own way. It executes no plan
//! without a seal. What it takes for granted when it reads (counts, places, types) it checks itself (`checking.py`), so a
//! forged seal ends in an error too. `tests/contract/cases.json` holds both engines to the same judgement of plans,
//! manifests, files and options.

use graphc_ir::hex::encode_hex;
use sha2::{Digest, Sha256};

use super::VerifiedPlan;
use crate::write_plan;

/// The text between a plan's text and the digits of its seal.
const BEFORE: &str = ",\n \"seal\": \"";

/// The text behind the digits.
const BEHIND: &str = "\"\n}\n";

/// The end of a plan's text without a seal.
const END: &str = "\n}\n";

/// The result of comparing a text with its seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seal {
    /// There is none where seals stand.
    Missing,
    /// The text is what was sealed.
    Holds,
    /// The text was changed after it was sealed.
    Broken,
}

impl Seal {
    /// Compares the seal of a text with the text.
    pub fn from_text(text: &str) -> Self {
        let content = text.strip_suffix(BEHIND).and_then(|text| text.rsplit_once(BEFORE));
        match content {
            None => Self::Missing,
            Some((content, digits)) if digits == digits_of(content) => Self::Holds,
            Some(_) => Self::Broken,
        }
    }
}

impl VerifiedPlan {
    /// The text of the plan's file, with its seal: the same text for the same plan.
    pub fn write_sealed(&self) -> String {
        let mut text = write_plan(self);
        let content =
            text.strip_suffix(END).expect("a plan has more fields than fit on a line").len();
        text.truncate(content);
        let digits = digits_of(&text);
        text + BEFORE + &digits + BEHIND
    }
}

/// The SHA-256 of a text, in hexadecimal digits.
fn digits_of(text: &str) -> String {
    encode_hex(&Sha256::digest(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_holds_for_the_text_that_it_was_made_of_and_no_other() {
        let content = "{\n \"version\": 3,\n \"seal\": \"of nothing\"";
        let sealed = format!("{content}{BEFORE}{}{BEHIND}", digits_of(content));
        assert_eq!(Seal::from_text(&sealed), Seal::Holds);
        assert_eq!(Seal::from_text(&format!("{content}{END}")), Seal::Broken);
        assert_eq!(Seal::from_text("{\n \"version\": 3\n}\n"), Seal::Missing);
        assert_eq!(Seal::from_text(&sealed.replace('3', "4")), Seal::Broken);
        assert_eq!(Seal::from_text(&sealed.replace("\n \"", "\n  \"")), Seal::Missing);
        assert_eq!(Seal::from_text(&format!("{content}{BEFORE}{BEHIND}")), Seal::Broken);
        assert_eq!(Seal::from_text(""), Seal::Missing);
    }
}
