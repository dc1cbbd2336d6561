//! Batches of several shapes: a plan for each, over one set of variables.
//!
//! A plan is for fixed shapes. Where they vary, as sentences do, batches are filled up to a few lengths (buckets), and each length has a
//! plan that is made when the first batch of it comes. Variables lie in the session of the last step; where another takes its turn it
//! gets them, the number of the step, and the learning rate that the program has set.

use std::collections::BTreeMap;
use std::sync::Arc;

use graphc_compiler::compile::compile;
use graphc_compiler::error::CompileError;
use graphc_ir::graph::Graph;
use graphc_ir::types::TensorType;
use graphc_plan::{Cluster, CompileOptions, TensorKind};
use graphc_runtime::job::Job;
use graphc_runtime::{HostTensor, RuntimeError, Session, SessionOptions, known_weights};

/// The types of a batch's tensors, by name.
pub type Shapes = BTreeMap<String, TensorType>;

/// The error of a program's own function.
type OwnError = Box<dyn std::error::Error + Send + Sync>;

/// Writes the model for a batch of these shapes.
type Model = Box<dyn Fn(&Shapes) -> Result<Graph, OwnError> + Send>;

/// The reason that there is no session for a batch.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BucketsError {
    /// The program writes no model for these shapes.
    #[error("no model for a batch of {shapes}: {error}")]
    Model {
        /// The shapes.
        shapes: String,
        /// Its error.
        error: OwnError,
    },
    /// The model cannot be planned.
    #[error(transparent)]
    Compile(#[from] Box<CompileError>),
    /// A session cannot be made, or has failed.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

graphc_ir::readable_debug!(BucketsError);

/// Options of [`Buckets`].
#[derive(Clone, Debug)]
pub struct BucketsOptions {
    /// The options of each plan.
    pub compile: CompileOptions,
    /// The machines that the plans are made for.
    pub cluster: Cluster,
    /// The options of the sessions.
    pub session: SessionOptions,
    /// The most sessions that are kept. Where another one is needed, the session that was not used for the longest time is ended.
    pub most: usize,
}

/// Sessions of one model for batches of several shapes.
///
/// ```
/// use graphc::buckets::{Buckets, BucketsOptions};
/// use graphc::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let options = BucketsOptions {
///     compile: CompileOptions { optimizer: Some(Optimizer::sgd(0.1)), ..CompileOptions::default() },
///     cluster: preset("cpu").ok_or("no such cluster")?,
///     session: SessionOptions::default(),
///     most: 4,
/// };
/// let mut buckets = Buckets::new(options, BTreeMap::new(), None, |shapes| {
///     let g = GraphBuilder::new("mean");
///     let shape = &shapes.get("x").ok_or("a batch has no x")?.shape;
///     let x = g.input("x", DType::F32, shape.clone());
///     g.output("loss", &nn::Linear::new(&g, "fc", 4, 1).forward(&x).mean(&[0, 1, 2], false));
///     Ok(g.finish()?)
/// });
/// for time in [8, 16, 8] {
///     let x = HostTensor::from_f32([2, time, 4], &vec![0.5; 8 * time])?;
///     let feeds = BTreeMap::from([("x".to_string(), x)]);
///     let outputs = buckets.session_for(&feeds)?.step(feeds)?.wait()?;
///     println!("{:?}", outputs["loss"].to_f32()?);
/// }
/// assert_eq!(buckets.len(), 2);
/// # Ok(())
/// # }
/// ```
pub struct Buckets {
    options: BucketsOptions,
    /// The first contents of variables in the first session.
    weights: BTreeMap<String, HostTensor>,
    job: Option<Arc<Job>>,
    model: Model,
    /// Sessions in the order of their last use: the latest is the last.
    sessions: Vec<(Shapes, Session)>,
}

impl Buckets {
    /// Makes buckets without a session yet. `weights` and `job` are those of [`Session::with_job`], and `model` writes the model for a
    /// batch of given shapes. All its graphs have the same variables. Where ranks are processes, all ask for the same shapes in the same
    /// order.
    pub fn new(
        options: BucketsOptions,
        weights: BTreeMap<String, HostTensor>,
        job: Option<Arc<Job>>,
        model: impl Fn(&Shapes) -> Result<Graph, OwnError> + Send + 'static,
    ) -> Self {
        Self { options, weights, job, model: Box::new(model), sessions: Vec::new() }
    }

    /// The session for a batch, with the variables and the number of the step that the last one has reached, and the learning rate or
    /// schedule that was set on it.
    ///
    /// # Errors
    /// Returns an error if there is no model of such shapes, it cannot be planned, or a session has failed.
    pub fn session_for(
        &mut self,
        feeds: &BTreeMap<String, HostTensor>,
    ) -> Result<&mut Session, BucketsError> {
        let shapes: Shapes =
            feeds.iter().map(|(name, tensor)| (name.clone(), tensor.ty())).collect();
        let known = self.sessions.iter().position(|(own, _)| *own == shapes);
        match known {
            Some(at) if at + 1 == self.sessions.len() => {}
            Some(at) => self.turn_to(at)?,
            None => self.begin_session(shapes)?,
        }
        Ok(&mut self.sessions.last_mut().expect("one was begun or found").1)
    }

    /// Returns the number of sessions that are kept.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether there was no batch yet.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// The session of the last batch, which has the variables; `None` before the first.
    pub fn last(&mut self) -> Option<&mut Session> {
        self.sessions.last_mut().map(|(_, session)| session)
    }

    /// Has a session that is kept take over.
    fn turn_to(&mut self, at: usize) -> Result<(), BucketsError> {
        let (shapes, mut session) = self.sessions.remove(at);
        if let Some((_, from)) = self.sessions.last_mut() {
            hand_over(from, &mut session)?;
        }
        self.sessions.push((shapes, session));
        Ok(())
    }

    /// Plans for other shapes.
    fn begin_session(&mut self, shapes: Shapes) -> Result<(), BucketsError> {
        let graph = (self.model)(&shapes).map_err(|error| {
            let shapes = shapes.iter().map(|(name, ty)| format!("`{name}` {ty}"));
            BucketsError::Model { shapes: shapes.collect::<Vec<_>>().join(", "), error }
        })?;
        let plan = compile(graph, &self.options.compile, &self.options.cluster, None);
        let plan = plan.map_err(Box::new)?.plan;
        let weights = known_weights(&plan, &self.weights);
        let options = self.options.session.clone();
        let mut session = Session::with_job(self.job.as_ref(), &plan, &weights, options)?;
        if let Some((_, from)) = self.sessions.last_mut() {
            hand_over(from, &mut session)?;
        }
        if self.sessions.len() >= self.options.most.max(1) {
            self.sessions.remove(0).1.shutdown()?;
        }
        self.sessions.push((shapes, session));
        Ok(())
    }
}

/// Gives a session the variables of another, its step, and what says its learning rate. Tables are each plan's own.
fn hand_over(from: &mut Session, to: &mut Session) -> Result<(), RuntimeError> {
    let learned = to.variables().into_iter().filter(|(_, (kind, _))| *kind != TensorKind::Table);
    let names: Vec<String> = learned.map(|(name, _)| name).collect();
    to.copy_variables(from, names.iter().map(String::as_str))?;
    to.take_rate_of(from)?;
    to.skip_to(from.next_step())
}
