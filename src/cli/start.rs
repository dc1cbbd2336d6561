//! Starts sessions: their options, and `--weights-from`, by which variables begin as a file of weights or a checkpoint has them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use graphc_import::weights::Weights;
use graphc_ir::graph::{Graph, Node};
use graphc_ir::op::Op;
use graphc_ir::ops::Init;
use graphc_ir::types::TensorType;
use graphc_plan::check::VerifiedPlan;
use graphc_plan::{Plan, RegisterKind, TensorKind};
use graphc_runtime::data::{HostFileError, TensorFile};
use graphc_runtime::{Checkpoint, HostTensor, Session, SessionOptions, is_table};

use super::args::RuntimeArgs;
use super::data_files::{ModelWeights, session_weights};
use super::output::print_message;
use super::ranks::Ranks;

/// The most names that a sentence lists.
const LISTED: usize = 5;

/// Tensors of the model that a plan was made with.
pub(super) type Fixed = BTreeMap<String, HostTensor>;

/// The options of a session.
pub(super) fn session_options(args: &RuntimeArgs) -> SessionOptions {
    SessionOptions {
        seed: args.seed.unwrap_or(0),
        device: args.device.map(Into::into),
        threads_per_rank: args.threads,
        timeout: std::time::Duration::from_secs_f64(args.timeout),
        replay: std::env::var(REPLAY).map_or(true, |text| text != "0"),
        ..SessionOptions::default()
    }
}

/// The environment variable that turns recordings of launches off. If it is 0, cards are given the launches of each step one by one, as in
/// the first step, which shows whether recordings are to blame.
const REPLAY: &str = "GRAPHC_REPLAY";

/// A session of inference with the weights of the model, or with those of a file in their place. Of the model no more is
/// read than that takes.
pub(super) fn open_inference(
    plan: &VerifiedPlan,
    weights: Weights,
    (ranks, options): (&Ranks, SessionOptions),
    from: Option<&Path>,
) -> Result<Session> {
    let Some(path) = from else {
        let own = session_weights(plan, weights)?;
        if ranks.leads() {
            note_drawn(plan, &own);
        }
        return ranks.session(plan, &own, options);
    };
    let ModelWeights { own, aside, fixed } = ModelWeights::read_of_plan(plan, weights)?;
    let mut session = ranks.session(plan, &own, options)?;
    session.set_aside(aside);
    drop(own);
    load_weights(path, &mut session, plan, &fixed)?;
    Ok(session)
}

/// Says that weights begin at random and were not trained, as those of a text form do.
fn note_drawn(plan: &Plan, own: &BTreeMap<String, HostTensor>) {
    let is_drawn = |init: &Init| matches!(init, Init::Normal { .. } | Init::Uniform { .. });
    let registers = plan.programs.iter().flat_map(|program| &program.registers);
    let drawn: BTreeSet<&str> = registers
        .filter_map(|register| match &register.kind {
            RegisterKind::Variable { name, init, role: TensorKind::Parameter }
                if is_drawn(init) =>
            {
                Some(name.as_str())
            }
            _ => None,
        })
        .filter(|name| !own.contains_key(*name))
        .collect();
    if !drawn.is_empty() {
        let names = list_names(&drawn.into_iter().collect::<Vec<_>>());
        let text = format!("no trained weights are given (--weights-from): random are {names}");
        print_message("note", &text);
    }
}

/// Gives the model's variables the contents that a safetensors file, or a checkpoint, has under their names. What else is
/// in there, such as an optimizer's states, is left aside, and what is not trained keeps the model's value where the file
/// lacks it, as files of PyTorch lack some buffers. All ranks find the same.
pub(super) fn load_weights(
    path: &Path,
    session: &mut Session,
    plan: &Plan,
    fixed: &Fixed,
) -> Result<()> {
    let wanted = wanted_tensors(session);
    let mut found =
        FoundWeights::open_path(path, &wanted.keys().map(String::as_str).collect::<Vec<_>>())?;
    check_missing(path, plan, wanted.keys().filter(|name| !found.has(name)))?;
    for (name, ty) in wanted.iter().filter(|(name, _)| found.has(name)).collect::<Vec<_>>() {
        let value = found.take(name)?;
        if value.ty() != *ty {
            bail!("{}: `{name}` is {}, and the model has {ty}", path.display(), value.ty());
        }
        check_fixed(path, fixed, name, &value)?;
        if session.unread_tensors().contains_key(name) {
            session.set_aside(BTreeMap::from([(name.clone(), value)]));
        } else {
            session.set_variable(name, &value)?;
        }
    }
    Ok(())
}

/// The model's own tensors, whether the plan has variables for them or not.
fn wanted_tensors(session: &Session) -> BTreeMap<String, TensorType> {
    let variables = session.variables().into_iter();
    let own = variables.filter(|(_, (kind, _))| *kind == TensorKind::Parameter);
    let aside = session.unread_tensors().iter().map(|(name, tensor)| (name.clone(), tensor.ty()));
    own.map(|(name, (_, ty))| (name, ty)).chain(aside).collect()
}

/// A file without a weight that the model trains is another model's.
fn check_missing<'a>(
    path: &Path,
    plan: &Plan,
    missing: impl Iterator<Item = &'a String>,
) -> Result<()> {
    let missing: Vec<&str> = missing.map(String::as_str).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let graph = graphc_ir::text::parse_graph(&plan.graph.join("\n"))
        .context("the plan's graph cannot be read")?;
    let trained = trained_weights(&graph);
    let (needed, kept): (Vec<&str>, Vec<&str>) =
        missing.into_iter().partition(|&name| trained.contains(name));
    let variables = plan.variable_names();
    let kept: Vec<&str> = kept.into_iter().filter(|name| variables.contains(name)).collect();
    let path = path.display();
    ensure!(
        needed.is_empty(),
        "{path} has no {}: it holds the weights of another model{}",
        list_names(&needed),
        if needed.iter().any(|name| is_made_up(name)) { RENAMED } else { "" }
    );
    if !kept.is_empty() {
        let kept = list_names(&kept);
        print_message(
            "note",
            &format!("{path} has no {kept}, not trained: what the model has is taken"),
        );
    }
    Ok(())
}

/// The advice for a file that has the author's names while the model has others.
const RENAMED: &str = ", or the exporter has renamed weights, as it does without optimize=False: export the model anew";

/// Whether a name is one that PyTorch's exporters give to what they have folded.
fn is_made_up(name: &str) -> bool {
    let number = name.strip_prefix("val_");
    name.starts_with("onnx::") || number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// The names of the weights that the model's author, or the command line, has trained.
pub(super) fn trained_weights(graph: &Graph) -> BTreeSet<String> {
    let name = |node: &Node| match &node.op {
        Op::Variable(variable) if variable.trainable => Some(variable.name.clone()),
        _ => None,
    };
    graph.nodes.iter().filter_map(name).collect()
}

/// Refuses another value of what the plan was made with.
fn check_fixed(path: &Path, fixed: &Fixed, name: &str, value: &HostTensor) -> Result<()> {
    ensure!(
        fixed.get(name).is_none_or(|own| own == value),
        "`{name}` of {0} is another than the model's, and what depends on it is computed when the model is read: put it into the \
         model first, with graphc export {0} --model MODEL -o NEW.onnx",
        path.display()
    );
    Ok(())
}

/// Refuses to go on from a checkpoint that has another value of what the plan was made with.
pub(super) fn check_checkpoint(checkpoint: &Checkpoint, fixed: &Fixed) -> Result<()> {
    let held = checkpoint.variables();
    let names: Vec<&str> =
        fixed.keys().map(String::as_str).filter(|name| held.contains_key(*name)).collect();
    let found = checkpoint.read(&names)?;
    found.iter().try_for_each(|(name, value)| check_fixed(checkpoint.path(), fixed, name, value))
}

/// The source of the weights.
enum FoundWeights {
    /// In a file, read one by one.
    File(TensorFile),
    /// In a checkpoint, whose files are checked as a whole.
    Checkpoint(BTreeMap<String, HostTensor>),
}

impl FoundWeights {
    /// Opens the weights of these names, as far as there are any.
    fn open_path(path: &Path, names: &[&str]) -> Result<Self> {
        if !path.is_dir() {
            let file = TensorFile::open(path).map_err(|error| no_weights(path, error))?;
            // Tables were saved once; they are computed.
            let known = |name: &String| names.contains(&name.as_str()) || is_table(name);
            note_others(path, file.tensors().keys().filter(|name| !known(name)).count());
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

/// Explains why a file has no weights: models and plans are mistaken for one.
fn no_weights(path: &Path, error: HostFileError) -> anyhow::Error {
    let name = path.display();
    let said = match path.extension().and_then(|ending| ending.to_str()) {
        Some("onnx") => {
            format!(
                "{name} is a model: name it in the place of MODEL, and its own weights are taken"
            )
        }
        Some("gir" | "json") => format!("{name} holds no weights"),
        _ => return error.into(),
    };
    anyhow!("--weights-from: {said}; what it takes is a safetensors file or a checkpoint")
}

fn note_others(path: &Path, others: usize) {
    if others > 0 {
        print_message(
            "note",
            &format!("{}: {others} tensors that the model lacks are left aside", path.display()),
        );
    }
}

/// Names in a sentence, the first of them.
pub(super) fn list_names(names: &[&str]) -> String {
    let first: Vec<String> = names.iter().take(LISTED).map(|name| format!("`{name}`")).collect();
    let more = names.len().saturating_sub(LISTED);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", first.join(", "))
}
