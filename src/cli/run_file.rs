//! `--config FILE`: options of a run in a TOML file. They are put before those of the command line, but for what that says itself or
//! contradicts, so they are read, and refused, as if they stood there.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use clap::{Arg, ArgAction, Command};
use graphc_ir::text::nearest_name;
use toml::{Table, Value};

use super::data_files::read_text;

/// The option that names the file.
const OPTION: &str = "config";

/// Options that no file has.
const OF_THE_COMMAND_LINE: [&str; 3] = [OPTION, "help", "version"];

/// Bytes of the longest file of options.
const LONGEST: u64 = 1 << 20;

/// The arguments of the process with those of its run file, and the file, where there is one.
pub(super) struct Arguments {
    /// All of them.
    pub all: Vec<OsString>,
    /// The run file.
    pub file: Option<OsString>,
    /// The number of arguments that it stands for, which are behind the name of the command.
    own: usize,
}

impl Arguments {
    /// Returns the options of the run file that a text names, as `--lr`.
    pub(super) fn options_in(&self, text: &str) -> Vec<String> {
        let own = self.all.iter().skip(2).take(self.own).filter_map(|argument| argument.to_str());
        let names = own.filter_map(|argument| argument.split('=').next());
        let named: BTreeSet<&str> = names.filter(|name| names_option(text, name)).collect();
        named.into_iter().map(str::to_owned).collect()
    }
}

/// Whether a text names an option, and not one whose name only begins so.
fn names_option(text: &str, option: &str) -> bool {
    let mut behind =
        text.match_indices(option).map(|(at, _)| text[at + option.len()..].chars().next());
    behind.any(|next| next.is_none_or(|next| !next.is_alphanumeric() && next != '-'))
}

/// Puts what a run file says before what the command line says.
///
/// # Errors
/// Returns an error if the file cannot be read, or has an option that the command does not have, or a value that its option does not take.
pub(super) fn merge_arguments(command: &Command, given: Vec<OsString>) -> Result<Arguments> {
    let own = given.get(1).and_then(|name| command.find_subcommand(name));
    let file =
        own.filter(|own| find_option(own, OPTION).is_some()).and_then(|_| named_file(&given[2..]));
    let (Some(command), Some(file)) = (own, file) else {
        return Ok(Arguments { all: given, file: None, own: 0 });
    };
    let said = given_options(command, &given[2..]);
    let options = read_options(command, Path::new(&file), &said)
        .with_context(|| format!("in run file {}", Path::new(&file).display()))?;
    let (begin, rest) = given.split_at(2);
    let own = options.len();
    let options = options.into_iter().map(OsString::from);
    let all = begin.iter().cloned().chain(options).chain(rest.iter().cloned()).collect();
    Ok(Arguments { all, file: Some(file), own })
}

/// Returns the file that `--config` names.
fn named_file(arguments: &[OsString]) -> Option<OsString> {
    let mut arguments = arguments.iter().take_while(|argument| *argument != "--");
    let is_it = |argument: &&OsString| {
        let text = argument.to_str().and_then(|text| text.strip_prefix("--"));
        text.is_some_and(|text| text.split('=').next() == Some(OPTION))
    };
    let named = arguments.find(is_it)?;
    match named.to_str().and_then(|text| text.split_once('=')) {
        Some((_, file)) => Some(file.into()),
        None => arguments.next().cloned(),
    }
}

/// The options that the command line says.
fn given_options<'a>(command: &'a Command, arguments: &[OsString]) -> Vec<&'a Arg> {
    let arguments = arguments.iter().take_while(|argument| *argument != "--");
    arguments.filter_map(|argument| option_of_argument(command, argument)).collect()
}

/// The option that an argument is. No value begins as one does.
fn option_of_argument<'a>(command: &'a Command, argument: &OsStr) -> Option<&'a Arg> {
    let text = argument.to_str()?;
    match text.strip_prefix("--") {
        Some(name) => find_option(command, name.split('=').next()?),
        None => {
            let short = text.strip_prefix('-')?.chars().next()?;
            command.get_arguments().find(|option| option.get_short() == Some(short))
        }
    }
}

fn find_option<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|option| option.get_long() == Some(name))
}

/// The arguments that stand for what the file says, without options that cannot stand beside those which are `said`.
fn read_options(command: &Command, path: &Path, said: &[&Arg]) -> Result<Vec<String>> {
    let table: Table = read_text(path, LONGEST, "")?.parse()?;
    let mut arguments = Vec::new();
    for (name, value) in &table {
        let option =
            find_option(command, name).filter(|_| !OF_THE_COMMAND_LINE.contains(&name.as_str()));
        let Some(option) = option else { bail!(unknown_option(command, name)) };
        let written = write_option(option, name, value)?;
        if !said.iter().any(|other| excludes_option(command, option, other)) {
            arguments.extend(written);
        }
    }
    Ok(arguments)
}

/// Whether an option cannot stand beside another, or is the same.
fn excludes_option(command: &Command, option: &Arg, other: &Arg) -> bool {
    let conflicts = |one: &Arg, two: &Arg| {
        command.get_arg_conflicts_with(one).iter().any(|found| found.get_id() == two.get_id())
    };
    let alternatives = command.get_groups().filter(|group| !(*group).clone().is_multiple());
    let are_alternatives = alternatives
        .map(|group| group.get_args().collect::<BTreeSet<_>>())
        .any(|group| group.contains(option.get_id()) && group.contains(other.get_id()));
    option.get_id() == other.get_id()
        || are_alternatives
        || conflicts(option, other)
        || conflicts(other, option)
}

fn unknown_option(command: &Command, name: &str) -> String {
    let known = command.get_arguments().filter_map(Arg::get_long);
    let known = known.filter(|known| !OF_THE_COMMAND_LINE.contains(known));
    let of = command.get_name();
    match nearest_name(&name.replace('_', "-"), known) {
        Some(near) => format!("`{name}` is no option of graphc {of}: did you mean `{near}`?"),
        None => format!("`{name}` is no option of graphc {of}: `graphc {of} --help` lists them"),
    }
}

/// An option with its value, as the command line has it; several where it may be said more than once.
fn write_option(option: &Arg, name: &str, value: &Value) -> Result<Vec<String>> {
    if !option.get_action().takes_values() {
        let Value::Boolean(is_on) = value else { bail!("`{name}` is true or false") };
        return Ok(if *is_on { vec![format!("--{name}")] } else { Vec::new() });
    }
    let values = match value {
        Value::Array(values) => {
            let several = matches!(option.get_action(), ArgAction::Append);
            ensure!(several, "`{name}` has one value, and not several");
            values.as_slice()
        }
        one => std::slice::from_ref(one),
    };
    values.iter().map(|value| Ok(format!("--{name}={}", value_text(name, value)?))).collect()
}

fn value_text(name: &str, value: &Value) -> Result<String> {
    Ok(match value {
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(_) | Value::Datetime(_) | Value::Array(_) | Value::Table(_) => {
            bail!("the value of `{name}` is a text or a number, as on the command line")
        }
    })
}
