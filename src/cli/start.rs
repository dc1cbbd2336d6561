//! `--weights-from`: variables begin as a file of weights or a checkpoint has them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use graphc_ir::plan::TensorKind;
use graphc_runtime::data::load_safetensors;
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
    let found = read(path, &wanted.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>())?;
    let missing: Vec<&str> = wanted
        .iter()
        .map(|(name, _)| name.as_str())
        .filter(|name| !found.contains_key(*name))
        .collect();
    if !missing.is_empty() {
        bail!(
            "{} has no {}: it holds the weights of another model",
            path.display(),
            list(&missing)
        );
    }
    for (name, ty) in &wanted {
        let value = &found[name];
        if value.ty() != *ty {
            bail!("{}: `{name}` is {}, and the model has {ty}", path.display(), value.ty());
        }
        session.set_variable(name, value)?;
    }
    Ok(())
}

/// The tensors of these names, as far as there are any.
fn read(path: &Path, names: &[&str]) -> Result<BTreeMap<String, HostTensor>> {
    if !path.is_dir() {
        let tensors = load_safetensors(path)?;
        note_others(path, tensors.keys().filter(|name| !names.contains(&name.as_str())).count());
        return Ok(tensors);
    }
    let checkpoint = Checkpoint::open(path)?;
    let held = checkpoint.variables();
    let known: Vec<&str> = names.iter().copied().filter(|name| held.contains_key(*name)).collect();
    Ok(checkpoint.read(&known)?)
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
