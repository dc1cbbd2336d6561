//! `graphc train`: steps through a data set, losses to a metrics file.

mod best;
mod checkpoints;
mod diagnosis;
mod feeding;
mod interruption;
mod progress;
mod watch;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use graphc::profile::MeasuredPart;
use graphc_import::weights::Weights;
use graphc_ir::types::TensorType;
use graphc_plan::check::VerifiedPlan;
use graphc_plan::{Plan, TensorKind};
use graphc_runtime::data::{order_in_file, save_each, save_safetensors};
use graphc_runtime::{HostTensor, Session, is_finite, known_weights};

use crate::cli::args::{BestBy, TrainArgs};
use crate::cli::contradictions::check_options;
use crate::cli::data_files::{DataExtents, ModelWeights};
use crate::cli::eval::plan_of;
use crate::cli::output::{check_distinct, check_places, print_escaped, print_message};
use crate::cli::planning::{PlannedModel, compile_inputs, plan_model};
use crate::cli::plans::{is_plan, load_sound_plan, plan_weights};
use crate::cli::profiling::{Profiling, device_kind};
use crate::cli::ranks::Ranks;
use crate::cli::start::{self, session_options};
use best::BestCheckpoint;
use checkpoints::{
    Saver, check_finite, check_length, find_resumed, resumed_options, warn_of_differences,
};
use diagnosis::Diagnosis;
use feeding::{Feeder, Training};
use interruption::{Interrupted, Interruption, tell_interruption};
use progress::{Diverged, Finished, REMEDIES, UnderWay, WAYS_ON, check_skips, number_outputs};
use watch::Watch;

/// Steps under way at once.
const DEPTH: usize = 4;

/// Runs the command.
pub(super) fn run_train(args: &TrainArgs) -> Result<ExitCode> {
    let interrupted = Ranks::run_on_all(|ranks| train_model(args, ranks))?;
    Ok(interrupted.map_or(ExitCode::SUCCESS, Interrupted::exit_code))
}

/// Trains, and returns the signal that ended it before its last step, if one did.
fn train_model(args: &TrainArgs, ranks: &Ranks) -> Result<Option<Interrupted>> {
    let options = session_options(&args.runtime);
    check_files(args, ranks)?;
    ensure!(
        args.shared.fetch.is_empty() || args.outputs.is_some(),
        "--fetch: where outputs go is for --outputs FILE to say"
    );
    let data = Training::open_data(args)?;
    // A checkpoint brings its own seed.
    let seed = args.runtime.seed.or(args.checkpoints.resume.is_none().then_some(options.seed));
    ranks.agree(seed, data.shared_tensors(), args.weights_from.as_deref())?;
    let checkpoint = match ranks.leads() {
        true => find_resumed(&args.checkpoints, &args.runtime)?,
        false => None,
    };
    let ignores = args.shared.hyperparameters.ignores_non_finite();
    if let Some(checkpoint) = &checkpoint {
        check_finite(checkpoint, ignores)?;
    }
    if let (Some(checkpoint), Some(steps)) = (&checkpoint, args.steps) {
        check_length(checkpoint, steps, args.epochs)?;
    }
    let checkpoint = ranks.share_checkpoint(checkpoint)?;
    let options = resumed_options(options, checkpoint.as_ref());
    let (first_step, seed) = (options.first_step, options.seed);
    let mut saver = Saver::new(&args.checkpoints, ignores, first_step)?;
    let (plan, weights) = ranks.plan(|| load_plan(args, data.extents()))?;
    ranks.note_turns(&plan, device_kind(&args.runtime, &plan));
    check_skips(args, &plan)?;
    let ModelWeights { own: weights, aside, fixed } = ModelWeights::read_of_plan(&plan, weights)?;
    let mut session = ranks.session(&plan, &weights, options.clone())?;
    session.set_aside(aside);
    let feeder = data.feeder(&session, ranks, seed)?;
    let steps = feeder.steps(args)?;
    let profiling = Profiling::from_args(args, &plan, &(first_step..steps))?;
    let watch = open_watch(args, ranks, (&plan, &weights), &feeder)?;
    let best = BestCheckpoint::new(&args.checkpoints, ignores)?;
    // Sessions have them: a second copy would stay as long as the training.
    drop(weights);
    if let Some(path) = &args.weights_from {
        start::load_weights(path, &mut session, &plan, &fixed)?;
    }
    if let Some(checkpoint) = &checkpoint {
        check_length(checkpoint, steps, args.epochs)?;
        if ranks.leads() {
            warn_of_differences(checkpoint, &session, steps);
        }
        start::check_checkpoint(checkpoint, &fixed)?;
        session.load_checkpoint(checkpoint)?;
    }
    saver.as_mut().map_or(Ok(()), |saver| saver.claim(&session))?;
    let states = (ranks.leads(), checkpoint.is_some());
    let finished = Finished::new(args, &plan, &feeder, (first_step, steps), states)?;
    let fetched = FetchedOutputs::from_session(&session, ranks.decide(args.outputs.is_some())?);
    let ends_early = args.patience.is_some();
    let mut way = TrainingUnderWay {
        session,
        ranks,
        feeder,
        saver,
        best,
        watch,
        profiling,
        finished,
        fetched,
        ends_early,
        interruption: Interruption::listen(ranks.is_alone(), first_step)?,
    };
    let interrupted = match way.take_steps(first_step..steps) {
        Ok(interrupted) => interrupted,
        Err(error) => {
            let Some(diverged) = error.downcast_ref::<Diverged>() else { return Err(error) };
            let diagnosis = Diagnosis { args, ranks, plan: &plan, options, resumed: checkpoint };
            return Err(way.explain_divergence(&diagnosis, diverged)?);
        }
    };
    way.finished.clear();
    if let Some((signal, done)) = interrupted {
        if ranks.leads() {
            tell_interruption(done, steps, args.checkpoints.save.as_deref());
        }
        ranks.barrier()?;
        return Ok(Some(signal));
    }
    write_results(args, &plan, (&mut way.session, ranks), &way.finished.outputs)?;
    // The others must not leave before rank 0 has what it writes.
    ranks.barrier()?;
    if args.metrics.is_none() && first_step < steps && ranks.leads() {
        print_escaped(&(way.finished.line() + "\n"))?;
    }
    Ok(None)
}

/// Prepares the evaluation that `--eval-data` asks for.
fn open_watch(
    args: &TrainArgs,
    ranks: &Ranks,
    (plan, weights): (&VerifiedPlan, &BTreeMap<String, HostTensor>),
    feeder: &Feeder,
) -> Result<Option<Watch>> {
    let Some(source) = &args.eval_data else { return Ok(None) };
    let every = args.eval_every.or(feeder.steps_per_epoch());
    let (evaluation, _) = ranks.plan(|| Ok((plan_of(plan)?, Weights::default())))?;
    let weights = known_weights(&evaluation, weights);
    let session = ranks.session(&evaluation, &weights, session_options(&args.runtime))?;
    let watch = Watch::new(session, &evaluation, source, every, args.patience)?;
    if let Some(by) = args.checkpoints.keep_best.map(BestBy::name) {
        ensure!(watch.finds_metric(by), "--keep-best {by}: no evaluation of this model finds that");
    }
    Ok(Some(watch))
}

/// The plan and the weights of its model.
fn load_plan(args: &TrainArgs, data: Option<DataExtents<'_>>) -> Result<(VerifiedPlan, Weights)> {
    if !is_plan(&args.model) {
        let mut shared = args.shared.clone();
        shared.draws_missing = true;
        if args.outputs.is_some() && shared.fetch.is_empty() {
            shared.fetch.push("*".into());
        }
        let PlannedModel { plan, weights, .. } =
            plan_model(&args.model, (&shared, args.runtime.device), data, true)?;
        return Ok((plan, weights));
    }
    let plan = load_sound_plan(&args.model)?;
    check_options(&args.model, &plan, &args.shared)?;
    let path = args.model.display();
    ensure!(plan.training, "{path} is an inference plan: compile with --optimizer");
    ensure!(
        args.outputs.is_none() || plan.options.loss.is_none() || !plan.options.fetch.is_empty(),
        "--outputs: {path} was compiled to give its loss alone; compile it with --fetch NAME for an output of the model, or \
         --fetch '*' for all of them"
    );
    let weights = plan_weights(&plan)?;
    Ok((plan, weights))
}

/// A training under way.
struct TrainingUnderWay<'a> {
    session: Session,
    ranks: &'a Ranks,
    feeder: Feeder,
    saver: Option<Saver>,
    best: Option<BestCheckpoint>,
    watch: Option<Watch>,
    /// The measurements.
    profiling: Option<Profiling<'a>>,
    finished: Finished,
    fetched: FetchedOutputs,
    /// Whether an evaluation may be the end, as patience is limited.
    ends_early: bool,
    interruption: Interruption,
}

/// The outputs that steps are asked for, by name.
struct FetchedOutputs {
    /// The outputs that are one number: losses and metrics.
    numbers: Vec<String>,
    /// The outputs that a last step gives.
    at_last: Vec<String>,
}

impl FetchedOutputs {
    /// Takes all outputs of the last step, where they are `wanted`.
    fn from_session(session: &Session, wanted: bool) -> Self {
        let numbers = number_outputs(session);
        let all = || session.outputs().keys().cloned().collect();
        let at_last = if wanted { all() } else { numbers.clone() };
        Self { numbers, at_last }
    }
}

impl TrainingUnderWay<'_> {
    /// Takes the steps, some of them at once; evaluates and saves where it is due. A signal of the user ends it: the signal, and the
    /// number of steps that were made until then.
    fn take_steps(&mut self, steps: Range<u64>) -> Result<Option<(Interrupted, u64)>> {
        let mut under_way: VecDeque<UnderWay> = VecDeque::new();
        for step in steps.clone() {
            let begun = Instant::now();
            let part = self
                .profiling
                .as_ref()
                .map_or(MeasuredPart::Over, |profiling| profiling.part_of_step(step));
            let (done, is_last) = (step + 1, step + 1 == steps.end);
            let saves = self.saver.as_ref().is_some_and(|saver| is_last || saver.is_due(done));
            let evaluates = self.watch.as_ref().is_some_and(|watch| is_last || watch.is_due(done));
            let may_be_last = is_last || evaluates && self.ends_early;
            let FetchedOutputs { numbers, at_last } = &self.fetched;
            let fetched = if may_be_last { at_last } else { numbers };
            self.session.fetch_only(fetched.iter().map(String::as_str))?;
            let feeds = self.feeder.next(step)?;
            if part != MeasuredPart::Over {
                self.ranks.barrier()?;
            }
            let launched = Instant::now();
            let handle = match part {
                MeasuredPart::Apart => self.session.step_apart(feeds)?,
                MeasuredPart::WarmUp | MeasuredPart::Whole | MeasuredPart::Over => {
                    self.session.step(feeds)?
                }
            };
            under_way.push_back(UnderWay { begun, handle });
            // What a checkpoint holds the metrics must hold too: a resumed run does not write them again.
            let alone = saves || evaluates || part != MeasuredPart::Over;
            let depth = if alone { 0 } else { DEPTH - 1 };
            while under_way.len() > depth
                && let Some(oldest) = under_way.pop_front()
            {
                let ended =
                    self.finished.wait_for_step(oldest, evaluates && under_way.is_empty())?;
                self.add_to_profile(step, ended - launched)?;
            }
            let ends = evaluates && self.evaluate(done)?;
            if saves || ends {
                self.save()?;
            }
            if ends && !is_last {
                self.tell_end(done);
                self.tell_profile(done);
                return Ok(None);
            }
            if !is_last && let Some(signal) = self.interruption.after_step(done, self.ranks)? {
                self.wait_for_all(under_way)?;
                if !saves {
                    self.save()?;
                }
                self.tell_profile(done);
                return Ok(Some((signal, done)));
            }
        }
        self.wait_for_all(under_way)?;
        Ok(None)
    }

    fn wait_for_all(&mut self, steps: VecDeque<UnderWay>) -> Result<()> {
        steps.into_iter().try_for_each(|step| self.finished.wait_for_step(step, false).map(drop))
    }

    /// Takes what a step took into the profile, and writes that when it is whole.
    fn add_to_profile(&mut self, step: u64, took: Duration) -> Result<()> {
        if let Some(profiling) = &mut self.profiling
            && profiling.add_step(step, took)
        {
            profiling.write(&mut self.session, self.ranks)?;
        }
        Ok(())
    }

    /// Evaluates the weights as they are after so many steps, and saves them where they are the best: whether patience is at its end.
    fn evaluate(&mut self, steps: u64) -> Result<bool> {
        let Some(watch) = &mut self.watch else { return Ok(false) };
        let (scores, ends) = watch.evaluate(&mut self.session)?;
        self.finished.add_scores(&scores)?;
        if let Some(best) = &mut self.best {
            best.save_if_best(&scores, steps, (&mut self.session, self.ranks))?;
        }
        self.ranks.decide(ends)
    }

    fn save(&mut self) -> Result<()> {
        match &mut self.saver {
            Some(saver) => saver.save(&mut self.session, self.ranks),
            None => Ok(()),
        }
    }

    /// The error of a loss that is not finite, with what was not finite first.
    fn explain_divergence(
        self,
        diagnosis: &Diagnosis<'_>,
        diverged: &Diverged,
    ) -> Result<anyhow::Error> {
        self.finished.clear();
        // Steps behind it are under way.
        self.session.shutdown()?;
        drop(self.watch);
        let told = diagnosis.describe_divergence(diverged);
        if !self.ranks.leads() {
            told?;
            // The process of rank 0 tells it, and ends the job.
            self.ranks.barrier()?;
            return Ok(diverged.clone().into());
        }
        let told = told.unwrap_or_else(|error| {
            format!("which tensor was not finite first could not be found: {error:#}")
        });
        Ok(anyhow!("{diverged}: {told}; {REMEDIES}, {WAYS_ON}"))
    }

    /// Says that a training has ended before its profile was whole.
    fn tell_profile(&self, step: u64) {
        if self.ranks.leads() && self.profiling.as_ref().is_some_and(|p| !p.is_over(step)) {
            print_message(
                "warning",
                "the training has ended before all was measured: no profile is written",
            );
        }
    }

    fn tell_end(&self, steps: u64) {
        if self.ranks.leads() {
            print_message(
                "note",
                &format!(
                    "after {steps} steps the evaluation has not improved for as long as --patience says"
                ),
            );
        }
    }
}

fn check_files(args: &TrainArgs, ranks: &Ranks) -> Result<()> {
    let [model, cluster, config] = compile_inputs(&args.model, &args.shared);
    let outputs = [
        ("--metrics", args.metrics.as_deref()),
        ("--weights", args.weights.as_deref()),
        ("--outputs", args.outputs.as_deref()),
        ("--profile", args.profile.as_deref()),
    ];
    let read = [
        model,
        cluster,
        config,
        ("--data", Some(args.data.path.as_path())),
        ("--eval-data", args.eval_data.as_ref().map(|source| source.path.as_path())),
        ("--weights-from", args.weights_from.as_deref()),
    ];
    check_distinct(&read, &outputs)?;
    // The process that leads writes them; metrics are opened before the first step anyway.
    if ranks.leads() { check_places(&outputs[1..]) } else { Ok(()) }
}

fn write_results(
    args: &TrainArgs,
    plan: &Plan,
    (session, ranks): (&mut Session, &Ranks),
    outputs: &BTreeMap<String, HostTensor>,
) -> Result<()> {
    if let Some(path) = args.outputs.as_ref().filter(|_| !outputs.is_empty() && ranks.leads()) {
        save_safetensors(path, outputs)?;
    }
    if let Some(path) = &args.weights {
        let accepts_non_finite = args.shared.hyperparameters.ignores_non_finite();
        write_weights(path, plan, session, (ranks.leads(), accepts_non_finite))?;
    }
    Ok(())
}

/// Writes the model's own tensors (parameters, trained or frozen, and buffers, whether steps read them or not), if a training has
/// ruined none of them. Where ranks are processes, all of them bring each variable together, in one order, and find the same.
fn write_weights(
    path: &Path,
    plan: &Plan,
    session: &mut Session,
    (leads, accepts_non_finite): (bool, bool),
) -> Result<()> {
    let (aside, updated) = (session.unread_tensors().clone(), plan.updated_variables());
    let kept = aside.iter().map(|(name, tensor)| (name.clone(), tensor.ty()));
    let types: BTreeMap<String, TensorType> = kept.chain(model_variables(session)).collect();
    let is_ruined = |name: &str, bytes: &[u8]| {
        !accepts_non_finite && updated.contains(name) && !is_finite(types[name].dtype, bytes)
    };
    let mut ruined = None;
    let mut bring = |name: &str, write: &mut dyn FnMut(&[u8])| -> Result<()> {
        if let Some(tensor) = aside.get(name) {
            write(tensor.bytes());
            return Ok(());
        }
        session.with_variable(name, &mut |bytes| match is_ruined(name, bytes) {
            true => ruined = Some(name.to_owned()),
            false => write(bytes),
        })?;
        ensure!(ruined.is_none(), "it is not to be written");
        Ok(())
    };
    let written = match leads {
        true => save_each(path, &types, bring).map_err(anyhow::Error::new),
        false => order_in_file(&types).into_iter().try_for_each(|name| bring(name, &mut |_| ())),
    };
    match ruined {
        Some(name) => bail!(
            "`{name}` is not finite in each element after the last step, so no weights are written: {REMEDIES}, {WAYS_ON}"
        ),
        None => written,
    }
}

/// The model's variables.
fn model_variables(session: &Session) -> BTreeMap<String, TensorType> {
    let all = session.variables().into_iter();
    let own = all.filter(|(_, (kind, _))| *kind == TensorKind::Parameter);
    own.map(|(name, (_, ty))| (name, ty)).collect()
}
