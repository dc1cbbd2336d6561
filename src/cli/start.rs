//! `--weights-from`: variables begin as a file of weights or a checkpoint has them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use graphc_ir::plan::TensorKind;
use graphc_runtime::data::TensorFile;
use graphc_runtime::{Checkpoint, HostTensor, Session};

use super::options::sha256;
use super::output::say;

/// How many names an error lists.
const LISTED: usize = 5;

/// Gives the model's variables the contents that a safetensors file, or a checkpoint, has under their names. What else is in
/// there, such as an optimizer's states, is left aside; all ranks find the same.
pub fn load(path: &Path, session: &mut Session) -> Result<()> {
    let wanted: Vec<(String, graphc_ir::types::TensorType)> = session
        .variables()
        .into_iter()
        .filter(|(_, (kind, _))| *kind == TensorKind::Parameter)
        .map(|(name, (_, ty))| (name, ty))
        .collect();
    let names: Vec<&str> = wanted.iter().map(|(name, _)| name.as_str()).collect();
    let mut found = Found::open(path, &names)?;
    let missing: Vec<&str> = names.into_iter().filter(|name| !found.has(name)).collect();
    if !missing.is_empty() {
        bail!(
            "{} has no {}: it holds the weights of another model",
            path.display(),
            list(&missing)
        );
    }
    for (name, ty) in &wanted {
        let value = found.take(name)?;
        if value.ty() != *ty {
            bail!("{}: `{name}` is {}, and the model has {ty}", path.display(), value.ty());
        }
        session.set_variable(name, &value)?;
    }
    Ok(())
}

/// Where the weights are found.
enum Found {
    /// In a file, read one by one.
    File(TensorFile),
    /// In a checkpoint, whose files are checked as a whole.
    Checkpoint(BTreeMap<String, HostTensor>),
}

impl Found {
    /// Those of these names, as far as there are any.
    fn open(path: &Path, names: &[&str]) -> Result<Self> {
        if !path.is_dir() {
            let file = TensorFile::open(path)?;
            let others = file.tensors().keys().filter(|name| !names.contains(&name.as_str()));
            note_others(path, others.count());
            return Ok(Self::File(file));
        }
        let checkpoint = Checkpoint::open(path)?;
        let held = checkpoint.variables();
        let known: Vec<&str> =
            names.iter().copied().filter(|name| held.contains_key(*name)).collect();
        Ok(Self::Checkpoint(checkpoint.read(&known)?))
    }

    fn has(&self, name: &str) -> bool {
        match self {
            Self::File(file) => file.tensors().contains_key(name),
            Self::Checkpoint(tensors) => tensors.contains_key(name),
        }
    }

    fn take(&mut self, name: &str) -> Result<HostTensor> {
        match self {
            Self::File(file) => Ok(file.read(name)?),
            Self::Checkpoint(tensors) => {
                tensors.remove(name).with_context(|| format!("the checkpoint lacks `{name}`"))
            }
        }
    }
}

fn note_others(path: &Path, others: usize) {
    if others > 0 {
        say(
            "note",
            &format!("{}: {others} tensors that the model lacks are left aside", path.display()),
        );
    }
}

fn list(names: &[&str]) -> String {
    let first: Vec<String> = names.iter().take(LISTED).map(|name| format!("`{name}`")).collect();
    let more = names.len().saturating_sub(LISTED);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", first.join(", "))
}

/// What ranks that begin alike have in common: a file's content, or a checkpoint's step and name.
pub fn digest(path: Option<&Path>) -> Result<String> {
    let Some(path) = path else { return Ok("none".into()) };
    if !path.is_dir() {
        return sha256(path).with_context(|| format!("cannot read {}", path.display()));
    }
    let checkpoint = Checkpoint::open(path)?;
    Ok(format!("{} after {} steps", checkpoint.model(), checkpoint.step()))
}
