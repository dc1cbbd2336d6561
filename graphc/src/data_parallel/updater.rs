//! The optimizer's steps, which all ranks make alike: a plan of updates alone, fed with gradients.

use std::collections::{BTreeMap, BTreeSet};

use graphc_compiler::error::CompileError;
use graphc_compiler::passes::error::PassError;
use graphc_ir::builder::GraphBuilder;
use graphc_ir::graph::Graph;
use graphc_ir::learning_rate::LrSchedule;
use graphc_ir::ops::{Init, Variable};
use graphc_ir::types::TensorType;
use graphc_plan::{CompileOptions, TensorKind};
use graphc_runtime::{HostTensor, RuntimeError, Session, SessionOptions};

use super::{DataParallelError, gradient_of, open_session};

/// The options of a plan that gives the gradients of what `training` trains.
pub(super) fn gradient_options(training: &CompileOptions) -> CompileOptions {
    CompileOptions {
        gradients: true,
        gradients_of: Vec::new(),
        optimizer: None,
        lr_schedule: LrSchedule::default(),
        clip_norm: None,
        clip_value: None,
        groups: Vec::new(),
        ema: None,
        ..training.clone()
    }
}

/// The options of a plan that makes the updates of `training` with gradients that it is fed.
fn update_options(training: &CompileOptions) -> CompileOptions {
    CompileOptions {
        updates_alone: true,
        optimizer: training.optimizer,
        lr_schedule: training.lr_schedule.clone(),
        clip_norm: training.clip_norm,
        clip_value: training.clip_value,
        groups: training.groups.clone(),
        ema: training.ema,
        memory: training.memory,
        ..CompileOptions::default()
    }
}

/// A session of updates. It holds the trained parameters, which it changes in place, and the optimizer's states.
#[derive(Debug)]
pub(super) struct Updater {
    pub(super) session: Session,
    held: BTreeMap<String, (TensorKind, TensorType)>,
    trained: Vec<String>,
    /// Parameters that the session which makes gradients holds too.
    shared: Vec<String>,
}

impl Updater {
    /// Prepares the updates of these parameters; `None` where there is no optimizer. `held` are the variables of the session that makes
    /// gradients.
    pub(super) fn new(
        trained: &[Variable],
        held: &BTreeSet<String>,
        training: &CompileOptions,
        options: &SessionOptions,
    ) -> Result<Option<Self>, DataParallelError> {
        if training.optimizer.is_none() {
            return Ok(None);
        }
        let graph = update_graph(trained).map_err(CompileError::from)?;
        let session = open_session(graph, &update_options(training), &BTreeMap::new(), options)?;
        let held_here = session.variables();
        let trained: Vec<String> = trained.iter().map(|variable| variable.name.clone()).collect();
        let shared = trained.iter().filter(|name| held.contains(*name)).cloned().collect();
        Ok(Some(Self { session, held: held_here, trained, shared }))
    }

    /// Whether there is a parameter or state of this name.
    pub(super) fn holds(&self, name: &str) -> bool {
        self.held.contains_key(name)
    }

    /// The optimizer's states, by name.
    pub(super) fn states(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        let states = self.held.iter().filter(|(_, (kind, _))| *kind == TensorKind::State);
        states.map(|(name, (_, ty))| (name.as_str(), ty))
    }

    /// Takes the parameters of the session that makes gradients.
    pub(super) fn take_parameters(&mut self, from: &mut Session) -> Result<(), RuntimeError> {
        self.session.copy_variables(from, self.shared.iter().map(String::as_str))
    }

    /// A step with the gradients of the trained parameters, by their names; `into` gets the new parameters.
    pub(super) fn step(
        &mut self,
        mut gradients: BTreeMap<String, HostTensor>,
        into: &mut Session,
    ) -> Result<BTreeMap<String, HostTensor>, RuntimeError> {
        let feed = |name: &String| Some((gradient_of(name), gradients.remove(name)?));
        let feeds = self.trained.iter().filter_map(feed).collect();
        let outputs = self.session.step(feeds)?.wait()?;
        into.copy_variables(&mut self.session, self.shared.iter().map(String::as_str))?;
        Ok(outputs)
    }
}

/// The parameters, and an input for the gradient of each.
fn update_graph(trained: &[Variable]) -> Result<Graph, PassError> {
    let g = GraphBuilder::new("updates");
    for Variable { name, ty, .. } in trained {
        // What they begin with they are given.
        g.variable_of(name, ty.clone(), Init::Fill(0.0.into()), true);
        g.input(&gradient_of(name), ty.dtype, ty.shape.clone());
    }
    g.finish().map_err(|errors| PassError::Build { pass: "updates", errors })
}
