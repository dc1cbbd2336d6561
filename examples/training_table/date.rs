//! The day.

use std::time::{SystemTime, UNIX_EPOCH};

/// Today in UTC, as `2026-11-25`.
pub fn today() -> String {
    let days =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400);
    date(days)
}

/// The date so many days after 1970-01-01, counted in eras of 400 years that begin in March (Hinnant, "chrono-compatible
/// low-level date algorithms").
fn date(days: u64) -> String {
    let since_0000 = days + 719_468;
    let (era, day) = (since_0000 / 146_097, since_0000 % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{day:02}", year + 400 * era + next)
}
