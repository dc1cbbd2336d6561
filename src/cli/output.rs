//! Files, standard output and standard error: what is written where, and what must not be overwritten.
//!
//! All text for people leaves here. What steers a terminal is escaped as JSON does it. So no name from a file can steer
//! it, and JSON and the text form of graphs stay what they are.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use graphc_runtime::data::check_writable;

/// Prints to standard output, escaped. A reader that has seen enough (`| head`) is no error.
pub(crate) fn print_escaped(text: &str) -> Result<()> {
    let text = escape_text(text);
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}

/// Makes a file that reaches the limit of its size (`ulimit -f`) an error of whoever writes it, as a full disk is, and not the end of the
/// process, which would leave half a file. Programs that are started are not concerned.
pub(crate) fn expect_full_disks() -> Result<()> {
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default())
        .context("cannot listen to signals")?;
    Ok(())
}

/// Says something on standard error, escaped: an `error`, a `warning` or a `note`.
pub(crate) fn print_message(kind: &str, text: &str) {
    // Where standard error cannot be written, there is nobody to be told.
    let _ = writeln!(std::io::stderr(), "{kind}: {}", escape_text(text));
}

/// Says what there is to say about cards.
pub(crate) fn say_notes() {
    for text in graphc_runtime::cards::take_notes() {
        print_message("note", &text);
    }
}

/// Says what is wrong with a command line, which may have any names in it, escaped; or prints the help that it asks for.
pub(crate) fn wrong_command_line(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Nothing of the command line is in it, and it may have colours.
        error.exit();
    }
    // Where standard error cannot be written, there is nobody to be told.
    let _ = std::io::stderr().write_all(escape_text(&error.render().to_string()).as_bytes());
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// The output of a program as a terminal may be shown it: escaped, but for carriage returns, with which progress bars end
/// their lines.
pub(crate) fn for_terminal(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.split('\r').map(escape_text).collect::<Vec<_>>().join("\r")
}

/// The text with what steers a terminal (control characters but the ends of lines and tabs, and changes of the direction in
/// which text runs) as JSON writes it. So JSON, and the text form of graphs, say the same as before.
fn escape_text(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    for c in text.chars() {
        let steers = c.is_control() && !matches!(c, '\n' | '\t')
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        match steers {
            true => result += &format!("\\u{:04x}", u32::from(c)),
            false => result.push(c),
        }
    }
    result
}

/// A file of the command line, with the option that names it.
pub(crate) type Named<'a> = (&'a str, Option<&'a Path>);

/// Refuses outputs that would overwrite an input or each other.
pub(crate) fn check_distinct(inputs: &[Named<'_>], outputs: &[Named<'_>]) -> Result<()> {
    let named = |files: &[Named<'_>]| -> Vec<(String, PathBuf)> {
        let found = files.iter().filter_map(|(name, path)| Some((name.to_string(), (*path)?)));
        found.map(|(name, path)| (name, path.to_path_buf())).collect()
    };
    let mut taken = named(inputs);
    for (name, path) in named(outputs) {
        for (other, theirs) in &taken {
            ensure!(
                !same_file(&path, theirs),
                "{name} would overwrite {} ({other}): choose another file",
                theirs.display()
            );
        }
        taken.push((name, path));
    }
    Ok(())
}

/// Refuses outputs that cannot be written, before the work is done whose results they are to hold.
pub(crate) fn check_places(outputs: &[Named<'_>]) -> Result<()> {
    for (name, path) in outputs {
        path.map_or(Ok(()), check_writable).with_context(|| (*name).to_owned())?;
    }
    Ok(())
}

/// Whether two paths lead to one file, which need not exist yet. Devices may be written to twice.
fn same_file(one: &Path, other: &Path) -> bool {
    let device = |path: &Path| path.metadata().is_ok_and(|found| !found.is_file());
    !device(one) && resolve_path(one) == resolve_path(other)
}

fn resolve_path(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    std::fs::canonicalize(path).unwrap_or_else(|_| {
        let folder = std::fs::canonicalize(folder.unwrap_or(Path::new(".")));
        folder.map_or_else(
            |_| path.into(),
            |folder| folder.join(path.file_name().unwrap_or_default()),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::{escape_text, for_terminal};

    #[test]
    fn what_steers_a_terminal_is_escaped_and_the_rest_is_not() {
        let name = "a\u{1b}[31mb\rc\u{9b}2Jd\u{7f}\u{202e}";
        assert_eq!(escape_text(name), "a\\u001b[31mb\\u000dc\\u009b2Jd\\u007f\\u202e");
        assert_eq!(escape_text("größe\t1\n`名`"), "größe\t1\n`名`");
    }

    #[test]
    fn what_programs_print_keeps_its_lines_and_nothing_that_steers() {
        let printed = b"10 %\r20 %\r\n\x1b[2J\xff done\x07\n";
        assert_eq!(for_terminal(printed), "10 %\r20 %\r\n\\u001b[2J\u{fffd} done\\u0007\n");
    }

    #[test]
    fn json_says_the_same_when_it_is_escaped() {
        let value = serde_json::json!({ "a\u{1b}b\u{9b}": "\u{7f}\u{2066}\n" });
        let text = escape_text(&value.to_string());
        assert!(text.is_ascii());
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).expect("JSON"), value);
    }
}
