//! The processes of a job, where the launcher has started several: rank 0 plans and writes, all execute.

use std::sync::Arc;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::ArgMatches;
use graphc_compiler::passes::LOSS;
use graphc_compiler::passes::clipping::GRAD_NORM;
use graphc_compiler::passes::loss_scale::{LOSS_SCALE, SKIPPED};
use graphc_import::weights::Weights;
use graphc_ir::mesh::DeviceKind;
use graphc_ir::types::TensorType;
use graphc_plan::check::VerifiedPlan;
use graphc_plan::{Plan, read_plan, write_plan};
use graphc_runtime::job::{Agreement, Job};
use graphc_runtime::{Checkpoint, HostTensor, JobEnd, OutputsAt, Session, SessionOptions};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::args::command_line;
use super::plans::{digest_weights, plan_weights};
use super::world::world_size;

/// The job of this process; none where it was started alone.
pub(super) struct Ranks {
    job: Option<Arc<Job>>,
}

impl Ranks {
    /// Meets the other processes and runs `work`; where it fails, it fails on all of them.
    pub(super) fn run_on_all<T>(work: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
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
    pub(super) fn leads(&self) -> bool {
        self.job.as_ref().is_none_or(|job| job.rank() == 0)
    }

    /// Tells all ranks where they were not started alike: command, options, seed, or names, shapes and size of the data.
    pub(super) fn agree(
        &self,
        seed: Option<u64>,
        data: Option<(&Path, &BTreeMap<String, TensorType>)>,
        weights: Option<&Path>,
    ) -> Result<()> {
        let Some(job) = &self.job else { return Ok(()) };
        let matches = command_line::read_matches()?;
        let Some((command, own)) = matches.subcommand() else { return Ok(()) };
        let of_tensor = |(name, ty): (&String, &TensorType)| format!("{name} {ty}");
        let tensors: Vec<String> =
            data.iter().flat_map(|(_, tensors)| tensors.iter().map(of_tensor)).collect();
        let size = data.and_then(|(path, _)| std::fs::metadata(path).ok()).map(|file| file.len());
        let agreement =
            agree_on_options(Agreement::new().and("the command", command), command, own)
                .and(
                    "the seed",
                    seed.map_or_else(|| "that of the beginning".into(), |s| s.to_string()),
                )
                .and("the data", tensors.join(", "))
                .and("the bytes of the data's file", size.unwrap_or_default())
                .and("the weights that they begin with", digest_weights(weights)?);
        Ok(job.agree("how they were started", &agreement)?)
    }

    /// Tells all ranks where they have not opened the same data set, by what describes it.
    pub(super) fn agree_on_set(&self, described: &str) -> Result<()> {
        let Some(job) = &self.job else { return Ok(()) };
        Ok(job.agree("what they train on", &Agreement::new().and("the data set", described))?)
    }

    /// Returns the decision of rank 0 on all ranks.
    pub(super) fn decide(&self, own: bool) -> Result<bool> {
        let Some(job) = &self.job else { return Ok(own) };
        Ok(job.from_rank_0(&[u8::from(own)])? == [1])
    }

    /// Whether this process was started alone.
    pub(super) fn is_alone(&self) -> bool {
        self.job.is_none()
    }

    /// Gives the value of rank 0 to all ranks.
    pub(super) fn share<T: Serialize + DeserializeOwned>(&self, own: T) -> Result<T> {
        let Some(job) = &self.job else { return Ok(own) };
        Ok(serde_json::from_slice(&job.from_rank_0(&serde_json::to_vec(&own)?)?)?)
    }

    /// Makes the plan, on rank 0 alone; the others read its weights.
    pub(super) fn plan(
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
    pub(super) fn share_checkpoint(&self, found: Option<Checkpoint>) -> Result<Option<Checkpoint>> {
        let Some(job) = &self.job else { return Ok(found) };
        let path = found.as_ref().map(|checkpoint| checkpoint.path().display().to_string());
        let path = String::from_utf8(job.from_rank_0(path.unwrap_or_default().as_bytes())?)?;
        if self.leads() || path.is_empty() {
            return Ok(found);
        }
        Ok(Some(Checkpoint::open(path.as_ref())?))
    }

    /// Opens a session of this process's part of the plan.
    pub(super) fn session(
        &self,
        plan: &VerifiedPlan,
        weights: &BTreeMap<String, HostTensor>,
        options: SessionOptions,
    ) -> Result<Session> {
        // All judge a step alike: by its loss, the norm of its gradients, and whether it was skipped.
        let outputs_at = OutputsAt::Rank0But(&[LOSS, GRAD_NORM, SKIPPED, LOSS_SCALE]);
        let options = SessionOptions { outputs_at, ..options };
        let session = match &self.job {
            None => Session::new(plan, weights, options)?,
            Some(job) => Session::on(job, plan, weights, options)?,
        };
        super::output::say_notes();
        Ok(session)
    }

    /// Gathers a value from all processes, in the order of their ranks.
    pub(super) fn bring_together<T: Serialize + DeserializeOwned>(&self, own: T) -> Result<Vec<T>> {
        let Some(job) = &self.job else { return Ok(vec![own]) };
        let all = job.all_gather(&serde_json::to_vec(&own)?)?;
        Ok(all.iter().map(|bytes| serde_json::from_slice(bytes)).collect::<Result<_, _>>()?)
    }

    /// Returns the number of a plan's ranks that this machine has.
    pub(super) fn on_this_machine(&self, plan: &Plan) -> usize {
        self.job.as_ref().map_or(plan.world_size, |job| job.neighbours())
    }

    /// Says that ranks take turns, where this machine has more of them than cores: their prediction supposes a core for
    /// each, unless it is of a machine that was measured.
    pub(super) fn note_turns(&self, plan: &Plan, kind: DeviceKind) {
        let cores = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
        let ranks = self.on_this_machine(plan);
        let is_priced = kind != DeviceKind::Cpu || plan.cluster.device.shared_by.is_some();
        if is_priced || !self.leads() || ranks <= cores {
            return;
        }
        let text = format!(
            "{ranks} ranks take turns on the {cores} cores of this machine, and predictions suppose a core for each; `graphc calibrate` measures what --cluster then prices"
        );
        super::output::print_message("note", &text);
    }

    /// Waits until all processes are here.
    pub(super) fn barrier(&self) -> Result<(), JobEnd> {
        self.job.as_ref().map_or(Ok(()), |job| job.barrier())
    }
}

/// The options that may differ between ranks: files that each rank finds or rank 0 alone writes, and the way in which a rank does its part.
/// The seed is compared by what it comes to.
const OWN: [&str; 12] = [
    "config",
    "data",
    "eval_data",
    "inputs",
    "metrics",
    "outputs",
    "keep",
    "threads",
    "timeout",
    "format",
    "seed",
    "tensorboard",
];
/// The options that all ranks must give or none; the paths themselves may differ.
const PATHS: [&str; 5] = ["weights", "weights_from", "save", "resume", "profile"];

/// The options of the command line.
fn agree_on_options(agreement: Agreement, command: &str, own: &ArgMatches) -> Agreement {
    let cli = command_line::build_command();
    let arguments = cli.find_subcommand(command).into_iter().flat_map(|c| c.get_arguments());
    let compared = arguments.filter(|argument| !OWN.contains(&argument.get_id().as_str()));
    compared.fold(agreement, |agreement, argument| {
        let id = argument.get_id().as_str();
        let values = own.try_get_raw(id).ok().flatten();
        let values: Option<Vec<_>> = values.map(|all| all.map(|v| v.to_string_lossy()).collect());
        let text = match (&values, id) {
            (None, _) => "not given".to_owned(),
            (Some(_), id) if PATHS.contains(&id) => "given".to_owned(),
            // Hosts may have it in other folders.
            (Some(values), "model") => {
                let name = values.first().map(|path| Path::new(&**path).file_name());
                name.flatten().unwrap_or_default().to_string_lossy().into_owned()
            }
            (Some(values), _) => values.join(" "),
        };
        let name = argument.get_long().map_or_else(|| id.to_owned(), |long| format!("--{long}"));
        agreement.and(&name, text)
    })
}
