//! The processes of a job, where the launcher has started several: rank 0 plans and writes, all execute.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use graphc_compiler::import::weights::Weights;
use graphc_ir::check::VerifiedPlan;
use graphc_ir::plan::{read_plan, write_plan};
use graphc_runtime::job::{Job, JobOptions};
use graphc_runtime::{Checkpoint, HostTensor, OutputsAt, RuntimeError, Session, SessionOptions};

use super::compile::plan_weights;

/// The job of this process; none where it was started alone.
pub struct Ranks {
    job: Option<Arc<Job>>,
}

/// How many processes a launcher has started, where one has.
pub fn world_size() -> Result<Option<usize>> {
    let world = JobOptions::world_size_from_environment()?;
    ensure!(world != Some(0), "WORLD_SIZE is 0");
    Ok(world.map(|world| world as usize))
}

impl Ranks {
    /// Meets the other processes and runs `work`; where it fails, it fails on all of them.
    pub fn run(work: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        let several = world_size()?.is_some_and(|world| world > 1);
        let job = if several { Job::from_environment()? } else { None };
        let ranks = Self { job };
        let result = work(&ranks);
        if let (Some(job), Err(error)) = (&ranks.job, &result) {
            job.fail(format!("{error:#}"));
        }
        result
    }

    /// Whether this process writes what there is to be written.
    pub fn leads(&self) -> bool {
        self.job.as_ref().is_none_or(|job| job.rank() == 0)
    }

    /// Makes the plan, on rank 0 alone; the others read its weights.
    pub fn plan(
        &self,
        make: impl FnOnce() -> Result<(VerifiedPlan, Weights)>,
    ) -> Result<(VerifiedPlan, Weights)> {
        let Some(job) = &self.job else { return make() };
        if self.leads() {
            let (plan, weights) = make()?;
            let (world, ranks) = (job.world_size(), plan.world_size);
            ensure!(
                world as usize == ranks,
                "the plan is for {ranks} ranks, and the launcher has started {world}"
            );
            job.from_rank_0(write_plan(&plan).as_bytes())?;
            return Ok((plan, weights));
        }
        let text = job.from_rank_0(&[])?;
        let plan = read_plan(&String::from_utf8(text).context("the plan of rank 0 is no text")?)?;
        let plan = VerifiedPlan::check(plan).context("the plan of rank 0 is not valid")?;
        let weights = plan_weights(&plan)?;
        Ok((plan, weights))
    }

    /// Opens, on all ranks, the checkpoint that rank 0 has found.
    pub fn checkpoint(&self, found: Option<Checkpoint>) -> Result<Option<Checkpoint>> {
        let Some(job) = &self.job else { return Ok(found) };
        let path = found.as_ref().map(|checkpoint| checkpoint.path().display().to_string());
        let path = String::from_utf8(job.from_rank_0(path.unwrap_or_default().as_bytes())?)?;
        if self.leads() || path.is_empty() {
            return Ok(found);
        }
        Ok(Some(Checkpoint::open(path.as_ref())?))
    }

    /// This process's part of the plan.
    pub fn session(
        &self,
        plan: &VerifiedPlan,
        weights: &std::collections::BTreeMap<String, HostTensor>,
        options: SessionOptions,
    ) -> Result<Session> {
        let options = SessionOptions { outputs_at: OutputsAt::Rank0, ..options };
        Ok(match &self.job {
            None => Session::new(plan, weights, options)?,
            Some(job) => Session::on(job, plan, weights, options)?,
        })
    }

    /// Waits until all processes are here.
    pub fn barrier(&self) -> Result<(), RuntimeError> {
        self.job.as_ref().map_or(Ok(()), |job| job.barrier())
    }
}
