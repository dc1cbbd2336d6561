//! The test whether the variables of a checkpoint are those that a session or a program has.
//!
//! Which weights are trained may change from one training to the next, and so may tables, which imports compute. States
//! of what was frozen in one of both are passed over, or begin anew. What no step changes keeps its value where a
//! checkpoint lacks it.

use std::collections::BTreeMap;

use graphc_ir::types::TensorType;
use graphc_plan::{SKIPPED_STEPS, TensorKind};

use super::manifest::{Manifest, VariableRecord};
use super::{Checkpoint, CheckpointError};

/// A variable that a checkpoint is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpectedVariable {
    pub(crate) ty: TensorType,
    pub(crate) kind: TensorKind,
    /// Whether steps change it.
    pub(crate) updated: bool,
    /// Whether it keeps what it holds where the checkpoint lacks it.
    pub(crate) may_lack: bool,
}

impl Checkpoint {
    /// Checks that these are the variables of the checkpoint, of these types.
    pub(crate) fn check_variables(
        &self,
        wanted: &BTreeMap<&str, ExpectedVariable>,
    ) -> Result<(), CheckpointError> {
        let manifest = self.manifest();
        let at = || format!("{} (of model `{}`)", self.path().display(), manifest.model);
        let stored = wanted.iter().filter(|(_, wanted)| wanted.kind != TensorKind::Table);
        for (&name, wanted) in stored {
            let (checkpoint, expected) = (at(), wanted.ty.clone());
            let name = name.to_owned();
            match manifest.variables.get(&name).map(VariableRecord::ty) {
                None if may_lack(manifest, &name, wanted) => {}
                None => {
                    return Err(CheckpointError::VariableMissing {
                        checkpoint,
                        name,
                        ty: expected,
                    });
                }
                Some(found) if found != expected => {
                    return Err(CheckpointError::VariableType {
                        checkpoint,
                        name,
                        expected,
                        found,
                    });
                }
                Some(_) => {}
            }
        }
        let unknown = |(name, record): &(&String, &VariableRecord)| {
            !wanted.contains_key(name.as_str()) && !is_passed_over(name, record.kind, wanted)
        };
        match manifest.variables.iter().find(unknown) {
            None => Ok(()),
            Some((name, record)) => {
                let (checkpoint, name, ty) = (at(), name.clone(), record.ty());
                Err(CheckpointError::VariableUnknown { checkpoint, name, ty })
            }
        }
    }
}

/// Whether a variable that the checkpoint lacks begins as it does without one: the count of steps that were left out,
/// which is 0 where nobody asked to leave any out, what a training does not change, and states of a weight that was
/// frozen.
fn may_lack(manifest: &Manifest, name: &str, wanted: &ExpectedVariable) -> bool {
    let was_frozen = |weight: &str| {
        let trained = manifest.settings.as_ref().and_then(|settings| settings.trained_weights());
        manifest.variables.contains_key(weight)
            && trained.is_some_and(|mut trained| !trained.any(|name| name == weight))
    };
    name == SKIPPED_STEPS
        || wanted.may_lack
        || (wanted.kind == TensorKind::State && weight_of_state(name).is_some_and(was_frozen))
}

/// Whether it does not matter that nobody wants a variable of the checkpoint: a table that an earlier version has saved,
/// and states of a weight that is frozen now.
fn is_passed_over(name: &str, kind: TensorKind, wanted: &BTreeMap<&str, ExpectedVariable>) -> bool {
    let is_frozen = |weight: &str| wanted.get(weight).is_some_and(|wanted| !wanted.updated);
    match kind {
        TensorKind::State => name == SKIPPED_STEPS || weight_of_state(name).is_some_and(is_frozen),
        TensorKind::Parameter => is_table(name),
        TensorKind::Table
        | TensorKind::Input
        | TensorKind::Output
        | TensorKind::Activation
        | TensorKind::Gradient => false,
    }
}

/// Whether a weight has the name that earlier versions gave to the tables that imports compute.
pub fn is_table(name: &str) -> bool {
    let number = name.strip_prefix("literal.");
    number.is_some_and(|number| number.parse::<usize>().is_ok())
}

/// Returns the weight that a state is of: it is called `state.KIND.WEIGHT`.
fn weight_of_state(state: &str) -> Option<&str> {
    Some(state.strip_prefix("state.")?.split_once('.')?.1)
}
