//! Finds the first tensor that was not finite, in a step whose loss is not finite.
//!
//! By the time that the loss is known, the variables have taken the step in, and those under way behind it. So the
//! training is repeated up to that step, from the last checkpoint or from its beginning. Steps are functions of their
//! number, so this gives the same bits. A plan that counts in every tensor what is not finite ([`FiniteCheck`]) then
//! computes the step itself. A training that goes well pays nothing for this.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use graphc_compiler::finite::{FiniteCheck, NotFinite};
use graphc_import::weights::Weights;
use graphc_plan::check::VerifiedPlan;
use graphc_runtime::{Checkpoint, HostTensor, Session, SessionOptions, known_weights};

use super::checkpoints::resumed_options;
use super::feeding::Training;
use super::progress::{Diverged, number_outputs};
use crate::cli::args::TrainArgs;
use crate::cli::data_files::ModelWeights;
use crate::cli::output::print_message;
use crate::cli::plans::plan_weights;
use crate::cli::ranks::Ranks;
use crate::cli::start;

/// The most steps that are made again.
const MOST_STEPS: u64 = 1000;

/// A training whose loss was not finite, as all its processes know it.
pub(super) struct Diagnosis<'a> {
    /// The command line.
    pub args: &'a TrainArgs,
    /// The processes.
    pub ranks: &'a Ranks,
    /// The plan.
    pub plan: &'a VerifiedPlan,
    /// The options of the training from its beginning, with its seed.
    pub options: SessionOptions,
    /// The checkpoint that the training went on from.
    pub resumed: Option<Checkpoint>,
}

impl Diagnosis<'_> {
    /// Says what there is to say of the step besides its loss. The sessions of the training must be gone: this takes
    /// as much memory.
    ///
    /// # Errors
    /// Returns an error if the steps cannot be made again.
    pub(super) fn describe_divergence(&self, diverged: &Diverged) -> Result<String> {
        let from = self.ranks.share_checkpoint(self.nearest_checkpoint(diverged.step)?)?;
        let begin = from.as_ref().map_or(0, Checkpoint::step);
        let again = diverged.step - begin;
        if again > MOST_STEPS {
            return Ok(format!(
                "which tensor was not finite first is not known: step {begin} is the nearest to go on from, and more than \
                 {MOST_STEPS} steps are not made again for it (--save-every keeps it nearer)"
            ));
        }
        if self.ranks.leads() {
            let step = diverged.step;
            print_message(
                "note",
                &format!(
                    "{}: steps {begin} to {step} are made again, to find what was not finite first",
                    diverged.describe_number()
                ),
            );
        }
        let weights = ModelWeights::read_of_plan(self.plan, plan_weights(self.plan)?)?;
        let mut trained = self.train_again(&weights, from.as_ref(), diverged.step)?;
        let found = self.find_non_finite(&weights.own, &mut trained, diverged.step)?;
        Ok(match found {
            Some(tensor) => format!("the first tensor that is not finite is {tensor}"),
            None => "with every tensor kept all of them are finite: it overflows only where they are not".into(),
        })
    }

    /// The last checkpoint up to a step, of those that this training has saved and that from which it went on.
    fn nearest_checkpoint(&self, step: u64) -> Result<Option<Checkpoint>> {
        if !self.ranks.leads() {
            return Ok(None);
        }
        let saved = self.args.checkpoints.save.as_deref().map(Checkpoint::latest).transpose()?;
        let resumed =
            self.resumed.as_ref().map(|from| Checkpoint::open(from.path())).transpose()?;
        let known = saved.flatten().into_iter().chain(resumed).filter(|from| from.step() <= step);
        Ok(known.max_by_key(Checkpoint::step))
    }

    /// A session that stands before the step.
    fn train_again(
        &self,
        weights: &ModelWeights,
        from: Option<&Checkpoint>,
        step: u64,
    ) -> Result<Session> {
        let options = SessionOptions { first_step: 0, ..self.options.clone() };
        let options = resumed_options(options, from);
        let (first, seed) = (options.first_step, options.seed);
        let mut session = self.ranks.session(self.plan, &weights.own, options)?;
        session.set_aside(weights.aside.clone());
        match (from, &self.args.weights_from) {
            (Some(from), _) => session.load_checkpoint(from)?,
            (None, Some(path)) => {
                start::load_weights(path, &mut session, self.plan, &weights.fixed)?
            }
            (None, None) => {}
        }
        let mut feeder = Training::open_data(self.args)?.feeder(&session, self.ranks, seed)?;
        let numbers = number_outputs(&session);
        session.fetch_only(numbers.iter().map(String::as_str))?;
        for step in first..step {
            session.step(feeder.next(step)?)?.wait()?;
        }
        Ok(session)
    }

    /// Makes the step with counts in all tensors, with the variables of a session that stands before it.
    fn find_non_finite(
        &self,
        weights: &BTreeMap<String, HostTensor>,
        trained: &mut Session,
        step: u64,
    ) -> Result<Option<NotFinite>> {
        let mut check = None;
        let (plan, _) = self.ranks.plan(|| {
            let made = FiniteCheck::from_plan(self.plan).context("cannot plan the look for it")?;
            let plan = made.plan.clone();
            check = Some(made);
            Ok((plan, Weights::default()))
        })?;
        let options = SessionOptions { first_step: step, ..self.options.clone() };
        let seed = options.seed;
        let weights = known_weights(&plan, weights);
        let mut session = self.ranks.session(&plan, &weights, options)?;
        for name in session.variables().into_keys() {
            let value = trained.variable(&name)?;
            session.set_variable(&name, &value)?;
        }
        let mut feeder = Training::open_data(self.args)?.feeder(&session, self.ranks, seed)?;
        let outputs = session.step(feeder.next(step)?)?.wait()?;
        let number = |name: &str| outputs.get(name).map(|output| output.to_f64()[0]);
        Ok(check.and_then(|check| check.first_not_finite(number)))
    }
}
