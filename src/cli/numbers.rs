//! Parses numbers of the command line.

use std::str::FromStr;

/// A number of at least 1.
pub(super) fn parse_positive<T: FromStr + Default + PartialEq>(text: &str) -> Result<T, String> {
    let number = text.parse().ok().filter(|number| *number != T::default());
    number.ok_or_else(|| "write a number of at least 1".into())
}

/// A whole number of at least 0.
pub(super) fn parse_whole<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "write a whole number of at least 0".into())
}
