//! Errors of a text, shown with the user's own line and a caret.

use std::fmt;

/// Something in a text that does not fit.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct ParseError {
    /// The line, from 1.
    pub line: usize,
    /// The column, in characters, from 1.
    pub column: usize,
    /// The number of characters that it concerns, at least 1.
    pub length: usize,
    /// The reason.
    pub message: String,
}

crate::readable_debug!(ParseError);

/// All that is wrong with a text. Displays each error with the line that it concerns and carets below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseErrors {
    /// The errors, in the order of the text.
    pub errors: Vec<ParseError>,
    /// The line of the text that each error concerns.
    lines: Vec<String>,
}

impl std::error::Error for ParseErrors {}

impl ParseErrors {
    /// The errors of this text.
    pub(super) fn new(text: &str, mut errors: Vec<ParseError>) -> Self {
        errors.sort_by_key(|error| (error.line, error.column));
        let all: Vec<&str> = text.lines().collect();
        let line = |error: &ParseError| all.get(error.line - 1).copied().unwrap_or("").to_string();
        let lines = errors.iter().map(line).collect();
        Self { errors, lines }
    }
}

impl fmt::Display for ParseErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (error, line)) in self.errors.iter().zip(&self.lines).enumerate() {
            if index > 0 {
                f.write_str("\n\n")?;
            }
            let margin = " ".repeat(error.line.to_string().len());
            writeln!(f, "error: {}", error.message)?;
            writeln!(f, "{margin}--> line {}, column {}", error.line, error.column)?;
            writeln!(f, "{margin} |")?;
            writeln!(f, "{} | {line}", error.line)?;
            write!(
                f,
                "{margin} | {}{}",
                indent_to_column(line, error.column),
                "^".repeat(error.length)
            )?;
        }
        Ok(())
    }
}

/// White space as wide as the line before a column: tabs stay tabs.
fn indent_to_column(line: &str, column: usize) -> String {
    let before = line.chars().chain(std::iter::repeat(' ')).take(column - 1);
    before.map(|c| if c == '\t' { '\t' } else { ' ' }).collect()
}
