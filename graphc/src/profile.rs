//! Measurements of a plan by an engine: seconds of each actor (`graphc train --profile`, `graphc_torch profile`). They are compared with
//! what the cost model says, op kind by op kind, and with figures of the machine that they were measured on.

mod measure;

use std::collections::BTreeMap;
use std::path::Path;

use graphc_compiler::cost::ActorWork;
use graphc_compiler::null_device::{NullDeviceError, trace};
use graphc_ir::mesh::DeviceKind;
use graphc_ir::types::DType;
use graphc_plan::{Actor, Cluster, Plan, Rate};
use serde::{Deserialize, Serialize};

use crate::calibrate::{Disturbance, Measured};

pub use measure::{MeasureSchedule, MeasuredPart, Times, measure_session};

/// The version of files that this build reads.
const VERSION: u32 = 1;

/// Bytes that no such file has.
const LONGEST: u64 = 1 << 30;

/// The content of a file of measurements.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Profile {
    /// `graphc measured`.
    pub format: String,
    /// The file's version.
    pub version: u32,
    /// The plan's name.
    pub plan: String,
    /// The device's name, or `cpu`.
    pub device: String,
    /// Bytes of its memory.
    pub memory: u64,
    /// The engine that ran the plan.
    pub engine: String,
    /// Ranks of the plan.
    pub ranks: usize,
    /// Seconds of a step that is not taken apart.
    pub step_seconds: f64,
    /// Programs of the plan.
    pub programs: Vec<ProgramProfile>,
}

/// A program's actors.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProgramProfile {
    /// Index into the plan's programs.
    pub program: usize,
    /// The actors that act.
    pub actors: Vec<ActorProfile>,
}

/// An actor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ActorProfile {
    /// Index into the program's actors. Of several that one launch does this is the one of the most FLOPs.
    pub actor: usize,
    /// The others that the same launch does: what is said of time and work is said of all together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub with: Vec<usize>,
    /// Its name in the plan.
    pub name: String,
    /// Its op, or what it does.
    pub kind: String,
    /// Median seconds of one action; of communication those of the rank that came last.
    pub seconds: f64,
    /// Floating-point operations of one action.
    pub flops: f64,
    /// Bytes that one action moves in memory, of communication those of its message.
    pub bytes: f64,
    /// Element type of what it computes.
    pub dtype: Option<DType>,
    /// Ranks of a collective.
    pub ranks: usize,
}

/// The reason that measurements cannot be used.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// No file of measurements.
    #[error("{path} holds no measurements that can be read: {reason}")]
    Read {
        /// The file.
        path: String,
        /// The reason.
        reason: String,
    },
    /// Those of another plan.
    #[error(
        "the measurements are of another plan: {reason}; measure this one with `graphc train --profile` or `graphc_torch profile`"
    )]
    OtherPlan {
        /// The difference.
        reason: String,
    },
    /// Too little was measured.
    #[error("the measurements say nothing of {what}: profile a plan that has some")]
    Missing {
        /// The kind of work that was not measured.
        what: &'static str,
    },
    /// Too few steps are made.
    #[error("a profile takes {least} steps at least, and {steps} are made: raise --steps")]
    Steps {
        /// The steps of the run.
        steps: u64,
        /// The fewest steps that a profile takes.
        least: u64,
    },
    /// The plan cannot run.
    #[error(transparent)]
    NullDevice(#[from] NullDeviceError),
}

graphc_ir::readable_debug!(ProfileError);

/// Actors of one kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KindSeconds {
    /// Actions of a step, of all ranks.
    pub actions: u64,
    /// Seconds of a step by the cost model, the mean of all ranks.
    pub predicted: f64,
    /// Seconds of a step as they were measured.
    pub measured: f64,
    /// Seconds of a step at the whole of what limits them: at no prediction more than `predicted`.
    pub least: f64,
    /// The limit of that; `None` for communication.
    pub limit: Option<Limit>,
}

/// The limit that kernels of a kind are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The limit of kernels that multiply matrices: the peak of the element type that they compute in.
    Peak,
    /// The limit of other kernels: the bandwidth of the device's memory.
    Memory,
    /// The limit of several kinds of kernels, each of which has its own.
    Both,
}

impl Limit {
    /// The word for it in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Peak => "peak",
            Self::Memory => "memory",
            Self::Both => "both",
        }
    }
}

impl KindSeconds {
    /// The share of what limits them that kernels reach in so many seconds of a step; `None` of communication, of what moves nothing, and
    /// of no time.
    pub fn share(&self, seconds: f64) -> Option<f64> {
        (self.least > 0.0 && seconds > 0.0).then_some(self.least / seconds)
    }

    /// Adds what an actor does at least, `times` times.
    fn add_work(&mut self, cluster: &Cluster, work: &ActorWork, times: f64) {
        let least = work.least_seconds(cluster);
        let (own, least) = match work.multiplies_matrices() {
            true => (Limit::Peak, least.computing),
            false => (Limit::Memory, least.moving),
        };
        self.least += least * times;
        self.limit = match self.limit {
            Some(limit) if limit != own => Some(Limit::Both),
            _ => Some(own),
        };
    }
}

impl Profile {
    /// Reads a file.
    ///
    /// # Errors
    /// Returns an error if it cannot be read or is no profile of this version.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        let fail = |reason: String| ProfileError::Read { path: path.display().to_string(), reason };
        let text =
            graphc_runtime::data::read_file(path, LONGEST).map_err(|e| fail(e.to_string()))?;
        let profile: Self = serde_json::from_slice(&text).map_err(|e| fail(e.to_string()))?;
        if (profile.format.as_str(), profile.version) != ("graphc measured", VERSION) {
            let found = format!("it is `{}`, version {}", profile.format, profile.version);
            return Err(fail(format!("{found}, not `graphc measured`, version {VERSION}")));
        }
        let actors = profile.programs.iter().flat_map(|program| &program.actors);
        let seconds = actors.map(|actor| actor.seconds).chain([profile.step_seconds]);
        match seconds.into_iter().find(|seconds| !seconds.is_finite() || *seconds < 0.0) {
            Some(number) => Err(fail(format!("{number} is no number of seconds"))),
            None => Ok(profile),
        }
    }

    /// Writes a file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), graphc_runtime::data::HostFileError> {
        let text = serde_json::to_string_pretty(self).expect("numbers and names are JSON");
        graphc_runtime::data::write_file(path, (text + "\n").as_bytes())
    }

    /// Returns the predicted seconds beside the measured ones, by kind, the longest first.
    ///
    /// # Errors
    /// Returns an error if the measurements are of another plan.
    pub fn by_kind(&self, plan: &Plan) -> Result<Vec<(String, KindSeconds)>, ProfileError> {
        self.check(plan)?;
        let predicted = predict_actors(plan)?;
        let mut kinds: BTreeMap<&str, KindSeconds> = BTreeMap::new();
        for part in &self.programs {
            let ranks =
                plan.ranks.iter().filter(|rank| rank.program.index() == part.program).count();
            let share = ranks as f64 / plan.world_size as f64;
            for profile in &part.actors {
                let actors = &plan.programs[part.program].actors;
                let times = actions_per_step(plan, &actors[profile.actor]);
                let kind = kinds.entry(&profile.kind).or_default();
                kind.actions += times * ranks as u64;
                kind.measured += profile.seconds * times as f64 * share;
                let seconds = profile.predicted_seconds(part.program, actors, &predicted);
                kind.predicted += seconds * times as f64 * share;
                for work in profile.work(plan, part.program) {
                    kind.add_work(&plan.cluster, &work, times as f64 * share);
                }
            }
        }
        let mut kinds: Vec<_> =
            kinds.into_iter().map(|(kind, sum)| (kind.to_owned(), sum)).collect();
        kinds.sort_by(|one, other| other.1.measured.total_cmp(&one.1.measured));
        Ok(kinds)
    }

    /// Seconds of one action by the name of its actor, predicted and measured, the longest first; of actors of one name the mean.
    ///
    /// # Errors
    /// Returns an error if the measurements are of another plan.
    pub fn by_actor(&self, plan: &Plan) -> Result<Vec<(String, f64, f64)>, ProfileError> {
        self.check(plan)?;
        let predicted = predict_actors(plan)?;
        let mut names: BTreeMap<String, (f64, f64, f64)> = BTreeMap::new();
        for part in &self.programs {
            let actors = &plan.programs[part.program].actors;
            for profile in &part.actors {
                let sum = names.entry(profile.title()).or_default();
                let seconds = profile.predicted_seconds(part.program, actors, &predicted);
                *sum = (sum.0 + seconds, sum.1 + profile.seconds, sum.2 + 1.0);
            }
        }
        let mean = |(name, (predicted, measured, count)): (String, (f64, f64, f64))| {
            (name, predicted / count, measured / count)
        };
        let mut names: Vec<_> = names.into_iter().map(mean).collect();
        names.sort_by(|one, other| other.2.total_cmp(&one.2));
        Ok(names)
    }

    fn check(&self, plan: &Plan) -> Result<(), ProfileError> {
        let fail = |reason: String| Err(ProfileError::OtherPlan { reason });
        if self.plan != plan.name || self.ranks != plan.world_size {
            let (name, ranks) = (&self.plan, self.ranks);
            return fail(format!("they are of `{name}` on {ranks} ranks"));
        }
        for part in &self.programs {
            let actors = plan.programs.get(part.program).map_or(&[][..], |program| &program.actors);
            let same = |profile: &ActorProfile| {
                let known = actors.get(profile.actor).is_some_and(|a| a.name == profile.name);
                known && profile.with.iter().all(|&other| other < actors.len())
            };
            if let Some(other) = part.actors.iter().find(|profile| !same(profile)) {
                let (program, actor) = (part.program, other.actor);
                return fail(format!("actor {actor} of program {program} is not `{}`", other.name));
            }
        }
        Ok(())
    }

    /// The machine as these measurements have it.
    ///
    /// # Errors
    /// Returns an error if there is no matrix product, or nothing that moves memory.
    pub fn to_measured(&self) -> Result<Measured, ProfileError> {
        let actors: Vec<&ActorProfile> = self.programs.iter().flat_map(|p| &p.actors).collect();
        let kernels: Vec<&ActorProfile> =
            actors.iter().copied().filter(|a| a.bytes > 0.0 && a.ranks < 2).collect();
        let launch = kernels.iter().map(|actor| actor.seconds).fold(f64::INFINITY, f64::min);
        let matmul = product_rates(&kernels, launch);
        if matmul.is_empty() {
            return Err(ProfileError::Missing { what: "matrix products" });
        }
        let bandwidth = measured_bandwidth(&kernels, launch);
        let bandwidth = bandwidth.ok_or(ProfileError::Missing { what: "passes over memory" })?;
        let device = if self.device == "cpu" { DeviceKind::Cpu } else { DeviceKind::Cuda };
        let all_reduce = reduction_times(&actors);
        let ranks = actors.iter().map(|actor| actor.ranks).max().unwrap_or(1).max(1);
        Ok(Measured {
            device,
            ranks,
            shared_by: (device == DeviceKind::Cpu).then_some(self.ranks),
            memory: self.memory,
            launch,
            launch_anew: None,
            matmul,
            shapes: Vec::new(),
            attention: Vec::new(),
            convolution: Vec::new(),
            passes: vec![("passes", bandwidth)],
            all_reduce,
            disturbance: Disturbance::NONE,
        })
    }
}

impl ActorProfile {
    /// Returns its name, and how many others its launch does.
    fn title(&self) -> String {
        match self.with.len() {
            0 => self.name.clone(),
            others => format!("{} and {others} more", self.name),
        }
    }

    /// Returns the work of its launch: what it computes and moves. A product and its epilogue count as the product alone, as that limits
    /// both.
    fn work(&self, plan: &Plan, program: usize) -> Vec<ActorWork> {
        let program = &plan.programs[program];
        let work =
            |&actor: &usize| ActorWork::from_actor(&plan.layouts, program, &program.actors[actor]);
        let mut all: Vec<ActorWork> =
            [&self.actor].into_iter().chain(&self.with).filter_map(work).collect();
        if all.iter().any(ActorWork::multiplies_matrices) {
            all.retain(ActorWork::multiplies_matrices);
        }
        all
    }

    /// Seconds of one action of all that its launch does, as the null device has them.
    fn predicted_seconds(
        &self,
        program: usize,
        actors: &[Actor],
        predicted: &BTreeMap<(usize, &str), f64>,
    ) -> f64 {
        // An actor's name may be that of several: each has the mean.
        let seconds = |&actor: &usize| predicted.get(&(program, actors[actor].name.as_str()));
        [&self.actor].into_iter().chain(&self.with).filter_map(seconds).sum()
    }
}

/// Returns the number of times that an actor acts in a step.
fn actions_per_step(plan: &Plan, actor: &Actor) -> u64 {
    match actor.rate {
        Rate::Step => 1,
        Rate::Microbatch => plan.microbatches.max(1) as u64,
    }
}

/// Mean seconds of an action by program and actor's name, as the null device has them.
fn predict_actors(plan: &Plan) -> Result<BTreeMap<(usize, &str), f64>, ProfileError> {
    let simulation = trace(plan, 1)?;
    let mut sums: BTreeMap<(usize, &str), (f64, f64)> = BTreeMap::new();
    for event in &simulation.trace {
        let program = plan.ranks[event.rank as usize].program.index();
        let sum = sums.entry((program, event.actor(plan).name.as_str())).or_default();
        *sum = (sum.0 + event.end - event.start, sum.1 + 1.0);
    }
    Ok(sums.into_iter().map(|(actor, (sum, count))| (actor, sum / count)).collect())
}

/// Returns by element type the best rate of each size of product: (FLOPs, FLOPs per second), ascending.
fn product_rates(
    kernels: &[&ActorProfile],
    launch: f64,
) -> BTreeMap<&'static str, Vec<(f64, f64)>> {
    let mut rates: BTreeMap<&'static str, BTreeMap<u64, f64>> = BTreeMap::new();
    for actor in kernels.iter().filter(|actor| actor.kind == "matmul" && actor.flops >= 1.0) {
        let Some(dtype) = actor.dtype else { continue };
        let seconds = (actor.seconds - launch).max(actor.seconds / 2.0).max(1e-9);
        let best = rates.entry(dtype.name()).or_default().entry(actor.flops as u64).or_insert(0.0);
        *best = best.max(actor.flops / seconds);
    }
    let listed =
        |rates: BTreeMap<u64, f64>| rates.into_iter().map(|(flops, r)| (flops as f64, r)).collect();
    rates.into_iter().map(|(dtype, rates)| (dtype, listed(rates))).collect()
}

/// The bytes per second of the kernels that multiply nothing and move most, the median of a quarter of them.
fn measured_bandwidth(kernels: &[&ActorProfile], launch: f64) -> Option<f64> {
    let products = ["matmul", "attention", "attention_grad"];
    let mut passes: Vec<&&ActorProfile> = kernels
        .iter()
        .filter(|a| !products.contains(&a.kind.as_str()) && !a.kind.starts_with("convolution"))
        .collect();
    passes.sort_by(|one, other| other.bytes.total_cmp(&one.bytes));
    passes.truncate(passes.len().div_ceil(4));
    let rate = |a: &&&ActorProfile| a.bytes / (a.seconds - launch).max(a.seconds / 2.0).max(1e-9);
    let mut rates: Vec<f64> = passes.iter().map(rate).collect();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied()
}

/// Bytes and least seconds of all-reduces, ascending.
fn reduction_times(actors: &[&ActorProfile]) -> Vec<(usize, f64)> {
    let mut least: BTreeMap<usize, f64> = BTreeMap::new();
    for actor in actors.iter().filter(|actor| actor.kind == "all_reduce" && actor.ranks > 1) {
        let seconds = least.entry(actor.bytes as usize).or_insert(f64::INFINITY);
        *seconds = seconds.min(actor.seconds);
    }
    least.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use graphc_compiler::cluster::parse_cluster;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Numbers of a file that a broken clock, a broken program or nobody at all has written.
    fn number() -> impl Strategy<Value = f64> {
        let odd = [-1.0, 0.0, 1e-320, 1e-30, 0.5, 1e9, 1e31, 1e300, f64::MAX];
        prop_oneof![proptest::sample::select(odd.to_vec()), 1e-7..1e-2f64, 1e3..1e13f64]
    }

    fn actor() -> impl Strategy<Value = serde_json::Value> {
        let kinds = vec!["matmul", "fused", "all_reduce", "attention"];
        let dtypes = vec!["f32", "bf16", "f16", "i64", "u8", "bool"];
        let choice = (proptest::sample::select(kinds), proptest::sample::select(dtypes));
        (choice, number(), number(), number(), 0..4usize).prop_map(
            |((kind, dtype), seconds, flops, bytes, ranks)| {
                json!({
                    "actor": 0, "name": "x", "kind": kind, "seconds": seconds, "flops": flops,
                    "bytes": bytes, "dtype": dtype, "ranks": ranks,
                })
            },
        )
    }

    proptest! {
        #[test]
        fn a_cluster_that_is_written_is_read(
            actors in proptest::collection::vec(actor(), 1..12),
            memory in proptest::sample::select(vec![0, 1 << 30, u64::MAX]),
            card in any::<bool>(),
        ) {
            let text = json!({
                "format": "graphc measured", "version": 1, "plan": "x", "memory": memory,
                "device": if card { "a card" } else { "cpu" }, "engine": "x", "ranks": 1,
                "step_seconds": 1.0, "programs": [{ "program": 0, "actors": actors }],
            });
            let profile: Profile = serde_json::from_value(text).expect("it is one");
            if let Ok(machine) = profile.to_measured() {
                let text = machine.toml();
                let read = parse_cluster(&text);
                prop_assert!(read.is_ok(), "{:?} of {text}", read.err());
            }
        }
    }
}
