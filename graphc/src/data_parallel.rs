//! Data parallelism beside that of SBP: each rank has a graph and a session of its own, and gradients are averaged over
//! the ranks of a group.
//!
//! Under SBP one plan covers all ranks and the compiler places the communication. Here ranks may have different graphs,
//! as long as they have the same parameters. `CompileOptions::gradients` makes a plan without updates whose outputs are
//! the gradients. Each is fetched right after it was computed, and the worker hands it out ([`Session::step_watched`]).
//! Gradients fill buckets, which are reduced on the group's thread while the backward pass goes on (`reducer.rs`).
//!
//! The optimizer's step is a second plan of each rank, of updates alone (`CompileOptions::updates_alone`): trained
//! variables whose gradients are inputs, which are fed with the averages (`updater.rs`). So every rank makes the same
//! step, and what the passes know of schedules, clipping, groups, averages and states serves it as it is. A plan that had
//! both halves would need feeds in the middle of a step.
//!
//! Parameters then lie in both sessions, and are copied from memory to memory after each step
//! ([`Session::copy_variables`]). That is one pass over them, beside the five of an update with momentum. Checkpoints are
//! those of sessions (`checkpoint.rs`).

mod agreed;
mod checkpoint;
mod error;
mod reducer;
mod updater;
mod variables;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agreed::{agree_on_options, agree_on_variables, assign_buckets, on_any, variables_of};
use checkpoint::CheckpointRecord;
use graphc_compiler::cluster::preset;
use graphc_compiler::compile::compile;
use graphc_compiler::passes::GRADIENT;
use graphc_compiler::passes::autocast::scales_loss;
use graphc_ir::graph::Graph;
use graphc_ir::ops::Variable;
use graphc_ir::types::TensorType;
use graphc_plan::CompileOptions;
use graphc_runtime::dist::Group;
use graphc_runtime::{HostTensor, Session, SessionOptions, known_weights};

pub use error::DataParallelError;
use reducer::{BucketLayout, Reducer};
use updater::Updater;

/// Bytes of gradients that are reduced together unless told otherwise.
pub const DEFAULT_BUCKET: usize = 25 << 20;

/// Options of a [`DataParallel`].
#[derive(Clone, Debug)]
pub struct DataParallelOptions {
    /// The options with which each rank compiles its graph: the loss (`None`: the first output is the loss itself) and
    /// metrics; the optimizer with schedule, clipping, groups and averages, alike on all ranks; microbatches, recomputation
    /// and so on. Its mesh is the rank alone.
    pub training: CompileOptions,
    /// Bytes of gradients that are reduced together, at least one gradient.
    pub bucket_bytes: usize,
    /// The options of the session. `threads_per_rank`, where it is not given, is the cores divided among the ranks of this host. Dropout
    /// draws other numbers on each rank.
    pub session: SessionOptions,
}

impl Default for DataParallelOptions {
    fn default() -> Self {
        let (training, session) = (CompileOptions::default(), SessionOptions::default());
        Self { training, bucket_bytes: DEFAULT_BUCKET, session }
    }
}

/// The results of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// The outputs of this rank's plan by name: `loss`, what is counted beside it, and those that
    /// [`CompileOptions::fetch`] names.
    pub outputs: BTreeMap<String, HostTensor>,
    /// The gradient of each parameter by name, averaged over the ranks; 0 comes from a rank whose loss does not depend on
    /// the parameter.
    pub gradients: BTreeMap<String, HostTensor>,
}

/// A graph that each rank trains on its own samples, with gradients averaged over a group. The parameters begin on all
/// ranks as on rank 0, and rank 0's buffers (variables that are not trained) are those of all before each step. So a batch
/// norm normalizes by the samples of its rank, and its running statistics are those of rank 0, as under torch's
/// DistributedDataParallel with `broadcast_buffers`.
///
/// ```
/// use graphc::dist::{self, DataParallelError};
/// use graphc::nn::{Linear, Module};
/// use graphc::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let sgd = Optimizer::Sgd { lr: 0.1, momentum: 0.9, nesterov: false, weight_decay: 0.0 };
/// let training = CompileOptions {
///     loss: Some(Loss::Mse),
///     optimizer: Some(sgd),
///     lr_schedule: "cosine:100".parse()?,
///     clip_norm: Some(1.0),
///     ..CompileOptions::default()
/// };
/// let options = DataParallelOptions { training, ..DataParallelOptions::default() };
/// // Two threads; `dist::run` takes the launcher's processes where there are any.
/// let weights = dist::spawn(2, |group| {
///     let g = GraphBuilder::new("linear");
///     let x = g.input("x", DType::F32, [4, 3]);
///     g.output("y", &Linear::new(&g, "fc", 3, 2).forward(&x));
///     let graph = g.finish().expect("a graph");
///     let mut ddp = DataParallel::new(&group, graph, &BTreeMap::new(), &options)?;
///     let own = |elements: usize| vec![group.rank() as f32; elements];
///     for _ in 0..3 {
///         let feeds = BTreeMap::from([
///             ("x".to_string(), HostTensor::from_f32([4, 3], &own(12))?),
///             ("target".to_string(), HostTensor::from_f32([4, 2], &own(8))?),
///         ]);
///         let outputs = ddp.train_step(feeds)?;
///         assert!(outputs["loss"].to_f32()?[0].is_finite());
///     }
///     Ok::<_, DataParallelError>(ddp.variable("fc.weight")?)
/// })?;
/// assert_eq!(weights[0], weights[1]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DataParallel {
    group: Group,
    session: Session,
    /// The parameters, in rank 0's order.
    parameters: Vec<Variable>,
    buffers: Vec<Variable>,
    /// Names of the variables that the session's plan needs, and so holds.
    held: BTreeSet<String>,
    /// The variables that neither it nor the updater holds.
    aside: BTreeMap<String, HostTensor>,
    /// Makes the optimizer's steps, where there is one. It holds the parameters as well, and what it makes of them is copied
    /// into the session.
    updater: Option<Updater>,
    /// The buckets of gradients that are reduced together.
    layout: Arc<BucketLayout>,
    /// Memory of the buckets between steps.
    buckets: Vec<HostTensor>,
    /// The record for checkpoints.
    record: CheckpointRecord,
}

impl DataParallel {
    /// Compiles this rank's graph and gives all ranks rank 0's parameters and buffers. All ranks of the group call it.
    /// `weights` holds the first content of variables that are read by name.
    ///
    /// # Errors
    /// Returns an error if the graph cannot be compiled or has nothing to train, or the ranks have different variables or optimizers.
    pub fn new(
        group: &Group,
        graph: Graph,
        weights: &BTreeMap<String, HostTensor>,
        options: &DataParallelOptions,
    ) -> Result<Self, DataParallelError> {
        // The others wait for this rank's part.
        Self::begin_ranks(group, graph, weights, options).inspect_err(|error| group.fail(error))
    }

    fn begin_ranks(
        group: &Group,
        graph: Graph,
        weights: &BTreeMap<String, HostTensor>,
        options: &DataParallelOptions,
    ) -> Result<Self, DataParallelError> {
        check_supported(&graph, &options.training)?;
        agree_on_options(group, options)?;
        let variables = agree_on_variables(group, variables_of(&graph))?;
        check_weights(&variables, weights)?;
        let (model, own) = (graph.name.clone(), own_options(group, &options.session));
        let session =
            open_session(graph, &updater::gradient_options(&options.training), weights, &own)?;
        let (parameters, buffers): (Vec<_>, Vec<_>) =
            variables.iter().cloned().partition(|variable| variable.trainable);
        let held: BTreeSet<String> = session.variables().into_keys().collect();
        let kept = on_any(group, &variables, |variable| held.contains(&variable.name))?;
        let outputs = session.outputs();
        let trained = |v: &Variable| outputs.contains_key(&gradient_of(&v.name));
        let trained = on_any(group, &parameters, trained)?;
        let updater = Updater::new(&trained, &held, &options.training, &own)?;
        let layout =
            BucketLayout::new(&parameters, &assign_buckets(&parameters, options.bucket_bytes))?;
        let record = CheckpointRecord::new(group, model, kept, session.inputs(), options)?;
        let (group, layout, buckets) = (group.clone(), Arc::new(layout), Vec::new());
        let aside = BTreeMap::new();
        let mut this = Self {
            group,
            session,
            parameters,
            buffers,
            held,
            aside,
            updater,
            layout,
            buckets,
            record,
        };
        this.fill(weights, options)?;
        Ok(this)
    }

    /// Names of the parameters, in rank 0's order.
    pub fn parameters(&self) -> impl Iterator<Item = &str> {
        self.parameters.iter().map(|variable| variable.name.as_str())
    }

    /// The feeds of this rank, by name: its own samples.
    pub fn inputs(&self) -> &BTreeMap<String, TensorType> {
        self.session.inputs()
    }

    /// One step of training: forward and backward on this rank's samples, gradients averaged over the ranks, and the optimizer's
    /// step on all of them alike. Gives this rank's outputs, and with clipping by the norm `grad_norm`, that of the averages. All
    /// ranks call it, and no other collective of the group meanwhile.
    ///
    /// # Errors
    /// As [`DataParallel::step`]; and where there is no optimizer.
    pub fn train_step(
        &mut self,
        feeds: BTreeMap<String, HostTensor>,
    ) -> Result<BTreeMap<String, HostTensor>, DataParallelError> {
        let Gradients { mut outputs, gradients } = self.step(feeds)?;
        outputs.extend(self.apply(gradients)?);
        Ok(outputs)
    }

    /// Runs forward and backward on this rank's samples and averages the gradients, those of the last layers while the first
    /// are still being computed. All ranks call it, and no other collective of the group meanwhile.
    ///
    /// # Errors
    /// Returns an error if the feeds are not the graph's inputs, or a rank has failed.
    pub fn step(
        &mut self,
        feeds: BTreeMap<String, HostTensor>,
    ) -> Result<Gradients, DataParallelError> {
        self.share(false)?;
        let reducer = Arc::new(self.reducer());
        let ready = {
            let reducer = Arc::clone(&reducer);
            move |output: &str, value: &HostTensor| {
                if let Some(name) = output.strip_prefix(GRADIENT) {
                    reducer.put(name, value);
                }
            }
        };
        let result = self.session.step_watched(feeds, ready).and_then(|step| step.wait());
        let mut outputs = result.inspect_err(|error| self.group.fail(error))?;
        self.buckets = reducer.finish()?;
        let gradients = self.averages()?;
        outputs.retain(|name, _| !self.is_gradient(name));
        self.record.finished += u64::from(self.updater.is_none());
        Ok(Gradients { outputs, gradients })
    }

    /// Makes the optimizer's step with these gradients, which are the same on all ranks: those of [`DataParallel::step`],
    /// or what a program makes of those of several. Schedule and checkpoints count these steps. Gives what the step says,
    /// `grad_norm` say.
    ///
    /// # Errors
    /// Returns an error if there is no optimizer, the gradient of a trained parameter is missing or of another type, or the session has
    /// failed.
    pub fn apply(
        &mut self,
        gradients: BTreeMap<String, HostTensor>,
    ) -> Result<BTreeMap<String, HostTensor>, DataParallelError> {
        let updater = self.updater.as_mut().ok_or(DataParallelError::NoOptimizer);
        let result = updater.and_then(|updater| Ok(updater.step(gradients, &mut self.session)?));
        let outputs = result.inspect_err(|error| self.group.fail(error))?;
        self.record.finished += 1;
        Ok(outputs)
    }

    /// Has the optimizer's steps from now on go by this learning rate: [`Session::set_learning_rate`]. All ranks set the same.
    ///
    /// # Errors
    /// Returns an error if there is no optimizer, or the session refuses the rate.
    pub fn set_learning_rate(&mut self, rate: f64) -> Result<(), DataParallelError> {
        Ok(self.updating_session()?.set_learning_rate(rate)?)
    }

    /// Has the optimizer's steps from now on go by a rate for each step: [`Session::set_schedule`]. All ranks set the same.
    ///
    /// # Errors
    /// Returns an error if there is no optimizer, or the session refuses the schedule.
    pub fn set_schedule(
        &mut self,
        schedule: impl Fn(u64) -> f64 + Send + Sync + 'static,
    ) -> Result<(), DataParallelError> {
        Ok(self.updating_session()?.set_schedule(schedule)?)
    }

    /// The learning rate of the optimizer's next step; `None` without an optimizer.
    pub fn learning_rate(&self) -> Option<f64> {
        self.updater.as_ref()?.session.learning_rate()
    }

    /// The session that makes the optimizer's steps.
    fn updating_session(&mut self) -> Result<&mut Session, DataParallelError> {
        let updater = self.updater.as_mut().ok_or(DataParallelError::NoOptimizer)?;
        Ok(&mut updater.session)
    }

    /// Replaces each parameter by what `update` makes of it and its gradient, for rules that no optimizer has: every rank does
    /// the same, so that the parameters stay the same.
    ///
    /// # Errors
    /// Returns an error if the session has failed.
    pub fn update(
        &mut self,
        gradients: &BTreeMap<String, HostTensor>,
        mut update: impl FnMut(&str, &mut HostTensor, &HostTensor),
    ) -> Result<(), DataParallelError> {
        let names: Vec<String> = self.parameters().map(str::to_owned).collect();
        for name in names {
            let Some(gradient) = gradients.get(&name) else { continue };
            let mut value = self.variable(&name)?;
            update(&name, &mut value, gradient);
            self.set_variable(&name, &value)?;
        }
        Ok(())
    }

    fn is_gradient(&self, output: &str) -> bool {
        let name = output.strip_prefix(GRADIENT);
        name.is_some_and(|name| self.parameters().any(|parameter| parameter == name))
    }

    /// The reducer of the next step's gradients.
    fn reducer(&mut self) -> Reducer {
        let mut memory = std::mem::take(&mut self.buckets);
        if memory.is_empty() {
            memory = self.layout.memory();
        }
        let outputs = self.session.outputs();
        let unused = self.parameters().filter(|name| !outputs.contains_key(&gradient_of(name)));
        Reducer::begin(&self.group, &self.layout, memory, unused)
    }

    /// The gradients, out of the buckets.
    fn averages(&self) -> Result<BTreeMap<String, HostTensor>, DataParallelError> {
        let average = |Variable { name, ty, .. }: &Variable| {
            let bytes = self.layout.find(name, &self.buckets).unwrap_or_default();
            let gradient = HostTensor::new(ty.dtype, ty.shape.clone(), bytes.to_vec())?;
            Ok((name.clone(), gradient))
        };
        self.parameters.iter().map(average).collect()
    }
}

fn gradient_of(parameter: &str) -> String {
    format!("{GRADIENT}{parameter}")
}

/// Refuses what data parallelism cannot do.
fn check_supported(graph: &Graph, training: &CompileOptions) -> Result<(), DataParallelError> {
    if training.mesh != [1] {
        return Err(DataParallelError::Mesh { mesh: training.mesh.clone() });
    }
    if scales_loss(graph, training) {
        return Err(DataParallelError::Scaling { model: graph.name.clone() });
    }
    if training.skip_non_finite {
        return Err(DataParallelError::Skipping);
    }
    Ok(())
}

/// Refuses weights of which nothing would be used.
fn check_weights(
    variables: &[Variable],
    weights: &BTreeMap<String, HostTensor>,
) -> Result<(), DataParallelError> {
    let is_known = |name: &String| variables.iter().any(|variable| variable.name == *name);
    match weights.keys().find(|name| !is_known(name)) {
        Some(name) => Err(DataParallelError::UnknownWeight { name: name.clone() }),
        None => Ok(()),
    }
}

/// The options of this rank's sessions.
fn own_options(group: &Group, options: &SessionOptions) -> SessionOptions {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let neighbours = group.job().map_or(group.world_size(), |job| job.neighbours());
    let threads = options.threads_per_rank.unwrap_or(cores / neighbours.max(1)).max(1);
    // Rank 0's is the one that is given; others differ in dropout alone, as parameters are rank 0's.
    let seed = options.seed.wrapping_add((group.rank() as u64).wrapping_mul(SEED_STEP));
    SessionOptions { seed, threads_per_rank: Some(threads), ..options.clone() }
}

/// The difference between the seeds of neighbouring ranks: the golden ratio of 2^64, so that seeds nearby stay apart.
const SEED_STEP: u64 = 0x9E37_79B9_7F4A_7C15;

fn open_session(
    graph: Graph,
    options: &CompileOptions,
    weights: &BTreeMap<String, HostTensor>,
    session: &SessionOptions,
) -> Result<Session, DataParallelError> {
    let cpu = preset("cpu").expect("the preset `cpu` is one of graphc's own");
    let plan = compile(graph, options, &cpu, None)?.plan;
    // Each plan holds a part of the graph's variables.
    Ok(Session::new(&plan, &known_weights(&plan, weights), session.clone())?)
}
