//! `--keep-best`: the best checkpoint by what evaluations find, in a folder beside the newest ones.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use graphc_runtime::data::write_file;
use graphc_runtime::{Checkpoints, Session};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::checkpoints::{is_same_path, open_directory};
use crate::cli::args::{BestBy, CheckpointArgs};
use crate::cli::data_files::read_text;
use crate::cli::ranks::Ranks;

/// The folder of the best checkpoint, in that of the newest.
const FOLDER: &str = "best";

/// The file in it that says what makes it the best, and its longest.
const RECORD: (&str, u64) = ("best.json", 1 << 12);

/// The best checkpoint so far, and where the next goes.
pub(super) struct BestCheckpoint {
    by: BestBy,
    found: Option<BestRecord>,
    checkpoints: Checkpoints,
    path: PathBuf,
}

/// The metric of the best checkpoint, its value, and its step.
#[derive(Serialize, Deserialize)]
struct BestRecord {
    metric: String,
    value: f64,
    step: u64,
}

impl BestCheckpoint {
    /// Opens the best checkpoint that the command line asks for. A resumed training goes on with the best checkpoint of the training that
    /// it resumes.
    pub(super) fn new(args: &CheckpointArgs, accepts_non_finite: bool) -> Result<Option<Self>> {
        let (Some(by), Some(save)) = (args.keep_best, &args.save) else { return Ok(None) };
        let folder = save.join(FOLDER);
        let checkpoints = open_directory(&folder, 1, accepts_non_finite)?;
        let path = folder.join(RECORD.0);
        let is_within = |resume: &Path| {
            is_same_path(resume, save)
                || resume.parent().is_some_and(|parent| is_same_path(parent, save))
        };
        let found = if args.resume.as_deref().is_some_and(is_within) {
            read_record(&path)?.filter(|found| found.metric == by.name())
        } else {
            checkpoints.check_next(1)?;
            None
        };
        Ok(Some(Self { by, found, checkpoints, path }))
    }

    /// Saves the session, together with the other processes, where what an evaluation after so many steps has found is better
    /// than all before. A training that is made again from an earlier step finds the same again.
    pub(super) fn save_if_best(
        &mut self,
        scores: &Value,
        step: u64,
        (session, ranks): (&mut Session, &Ranks),
    ) -> Result<()> {
        let value = scores[self.by.name()].as_f64();
        let better = value.filter(|&value| {
            self.found
                .as_ref()
                .is_none_or(|best| step > best.step && self.by.is_better(value, best.value))
        });
        if !ranks.decide(better.is_some())? {
            return Ok(());
        }
        session.save_checkpoint_with(&mut self.checkpoints, &mut || ranks.barrier())?;
        if let (true, Some(value)) = (ranks.leads(), better) {
            let record = BestRecord { metric: self.by.name().into(), value, step };
            write_file(&self.path, &serde_json::to_vec(&record)?)?;
            self.found = Some(record);
        }
        Ok(())
    }
}

/// Reads the record of the best checkpoint so far, if there is one.
fn read_record(path: &Path) -> Result<Option<BestRecord>> {
    if !path.exists() {
        return Ok(None);
    }
    let text = read_text(path, RECORD.1, "")?;
    let record = serde_json::from_str(&text);
    Ok(Some(record.with_context(|| format!("{} does not say what is best", path.display()))?))
}
