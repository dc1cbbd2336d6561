//! Checkpoints of a training: where it begins and what it saves on the way.

use std::path::Path;

use anyhow::{Result, ensure};
use graphc_runtime::{Checkpoint, Checkpoints, Session, SessionOptions};

use crate::cli::args::{CheckpointArgs, RuntimeArgs};
use crate::cli::output::print_message;
use crate::cli::ranks::Ranks;

/// The checkpoint that a training goes on from; `None`: from the beginning. A run that saves to the empty directory
/// that it resumes from is the first of a loop of restarts.
pub(super) fn find_resumed(
    args: &CheckpointArgs,
    runtime: &RuntimeArgs,
) -> Result<Option<Checkpoint>> {
    let Some(path) = &args.resume else { return Ok(None) };
    if args.save.as_ref().is_some_and(|save| is_same_path(save, path))
        && Checkpoint::latest(path)?.is_none()
        && !path.join("manifest.json").exists()
    {
        print_message(
            "note",
            &format!("{} holds no checkpoint yet: training begins at step 0", path.display()),
        );
        return Ok(None);
    }
    let checkpoint = Checkpoint::open(path)?;
    let (at, seed) = (checkpoint.path().display(), checkpoint.seed());
    ensure!(
        runtime.seed.is_none_or(|given| given == seed),
        "{at} was trained with seed {seed}: leave --seed out or give that one"
    );
    for passed_over in checkpoint.incomplete_after()? {
        let passed_over = passed_over.display();
        print_message(
            "warning",
            &format!("{passed_over} has no manifest.json and is passed over for {at}"),
        );
    }
    Ok(Some(checkpoint))
}

/// A training is not shorter than what it goes on from.
pub(super) fn check_length(checkpoint: &Checkpoint, steps: u64, epochs: Option<u64>) -> Result<()> {
    let (at, step) = (checkpoint.path().display(), checkpoint.step());
    let given = match epochs {
        Some(epochs) => format!("--epochs {epochs}, {steps} steps"),
        None => format!("--steps {steps}"),
    };
    ensure!(
        step <= steps,
        "{at} was saved after {step} steps, and {given} (of the whole training) is less"
    );
    Ok(())
}

/// Says what a step does otherwise than those that made the checkpoint. It may, and the number of steps goes on; but who
/// did not mean to would find out late.
pub(super) fn warn_of_differences(checkpoint: &Checkpoint, session: &Session, steps: u64) {
    let at = checkpoint.path().display();
    if checkpoint.step() == steps {
        print_message("note", &format!("{at} holds all {steps} steps already: no step is made"));
    }
    for change in session.changes_since(checkpoint) {
        print_message("warning", &format!("since {at} was saved, {change}"));
    }
}

/// The options of a session that goes on from there.
pub(super) fn resumed_options(
    options: SessionOptions,
    checkpoint: Option<&Checkpoint>,
) -> SessionOptions {
    match checkpoint {
        Some(from) => SessionOptions { first_step: from.step(), seed: from.seed(), ..options },
        None => options,
    }
}

/// A directory that keeps so many checkpoints.
pub(super) fn open_directory(
    path: &Path,
    keep: usize,
    accepts_non_finite: bool,
) -> Result<Checkpoints> {
    let checkpoints = Checkpoints::create(path, keep)?;
    Ok(if accepts_non_finite { checkpoints.accept_not_finite() } else { checkpoints })
}

/// Whether two paths lead to one place.
pub(super) fn is_same_path(one: &Path, other: &Path) -> bool {
    let resolved = |path: &Path| path.canonicalize().or_else(|_| std::path::absolute(path)).ok();
    resolved(one) == resolved(other)
}

/// Refuses weights from which no training goes on.
pub(super) fn check_finite(checkpoint: &Checkpoint, ignores_non_finite: bool) -> Result<()> {
    let at = checkpoint.path().display();
    let Some(first) = checkpoint.not_finite().next() else { return Ok(()) };
    ensure!(
        ignores_non_finite,
        "{at} was saved with --on-nan ignore and weights that are not finite, `{first}` first: go on from an earlier checkpoint, \
         or with --on-nan ignore"
    );
    Ok(())
}

/// Saves checkpoints of a training.
pub(super) struct Saver {
    checkpoints: Checkpoints,
    every: Option<u64>,
}

impl Saver {
    /// Checkpoints as the command line asks for: after every so many steps, and after the last, which the caller knows; none at
    /// `first_step`, where the training begins.
    pub(super) fn new(
        args: &CheckpointArgs,
        accepts_non_finite: bool,
        first_step: u64,
    ) -> Result<Option<Self>> {
        let Some(path) = &args.save else { return Ok(None) };
        let checkpoints = open_directory(path, args.keep, accepts_non_finite)?;
        checkpoints.check_next(first_step + 1)?;
        Ok(Some(Self { checkpoints, every: args.save_every }))
    }

    /// Keeps other jobs from saving to the same directory: for the process of rank 0, which alone makes checkpoints.
    pub(super) fn claim(&mut self, session: &Session) -> Result<()> {
        if session.ranks().any(|rank| rank == 0) {
            self.checkpoints.claim()?;
            for (path, aside) in self.checkpoints.set_aside_incomplete()? {
                let (path, aside) = (path.display(), aside.display());
                print_message(
                    "warning",
                    &format!("{path} has no manifest.json: it is now {aside}"),
                );
            }
        }
        Ok(())
    }

    /// Whether a checkpoint is due after so many steps.
    pub(super) fn is_due(&self, finished: u64) -> bool {
        self.every.is_some_and(|every| finished.is_multiple_of(every))
    }

    /// Saves the session after all steps begun so far, together with the other processes.
    pub(super) fn save(&mut self, session: &mut Session, ranks: &Ranks) -> Result<()> {
        session.save_checkpoint_with(&mut self.checkpoints, &mut || ranks.barrier())?;
        Ok(())
    }
}
