//! Data parallelism beside that of SBP: each rank has a graph and a session of its own, and gradients are averaged over the
//! ranks of a group.
//!
//! Under SBP one plan covers all ranks and the compiler places the communication. Here ranks may have different graphs, as
//! long as they have the same parameters. The session hands out each gradient when it is computed
//! ([`Session::step_watched`]), so that gradients are reduced, in buckets, while the backward pass goes on.

mod reducer;

use std::collections::BTreeMap;
use std::sync::Arc;

use graphc_compiler::cluster::preset;
use graphc_compiler::compile::{CompileError, compile};
use graphc_ir::builder::GraphBuilder;
use graphc_ir::graph::Graph;
use graphc_ir::op::Op;
use graphc_ir::ops::{Init, Variable};
use graphc_ir::plan::{CompileOptions, Loss};
use graphc_ir::types::TensorType;
use graphc_runtime::dist::{DistError, Group};
use graphc_runtime::job::Agreement;
use graphc_runtime::{HostTensor, RuntimeError, Session, SessionOptions, TensorError};
use reducer::{Layout, Reducer};

/// Bytes of gradients that are reduced together unless told otherwise.
pub const DEFAULT_BUCKET: usize = 25 << 20;

/// What can go wrong in data parallelism.
#[derive(Debug, thiserror::Error)]
pub enum DataParallelError {
    /// The graph cannot be compiled.
    #[error(transparent)]
    Compile(#[from] Box<CompileError>),
    /// The session has failed.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The communication has failed.
    #[error(transparent)]
    Dist(#[from] DistError),
    /// A tensor is not what its type says.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The ranks have different parameters or buffers.
    #[error("rank {rank} does not have the parameters and buffers of rank 0: {difference}")]
    Parameters {
        /// This rank.
        rank: usize,
        /// What differs.
        difference: String,
    },
    /// A variable that is in no plan has no first content.
    #[error("the weights have no tensor `{name}` ({ty})")]
    Weight {
        /// The variable.
        name: String,
        /// Its type.
        ty: TensorType,
    },
}

impl From<CompileError> for DataParallelError {
    fn from(error: CompileError) -> Self {
        Self::Compile(Box::new(error))
    }
}

/// How a [`DataParallel`] works.
#[derive(Clone, Debug)]
pub struct DataParallelOptions {
    /// The loss on the first output; `None`: the first output is the loss itself.
    pub loss: Option<Loss>,
    /// Bytes of gradients that are reduced together, at least one gradient.
    pub bucket_bytes: usize,
    /// Of the session.
    pub session: SessionOptions,
}

impl Default for DataParallelOptions {
    fn default() -> Self {
        let session = SessionOptions::default();
        Self { loss: None, bucket_bytes: DEFAULT_BUCKET, session }
    }
}

/// What a step has computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// The outputs of this rank's graph by name, `loss` among them.
    pub outputs: BTreeMap<String, HostTensor>,
    /// The gradient of each parameter by name, averaged over the ranks; 0 comes from a rank whose loss does not depend on
    /// the parameter.
    pub gradients: BTreeMap<String, HostTensor>,
}

/// A graph that each rank trains on its own samples, with gradients averaged over a group. The parameters begin on all
/// ranks as on rank 0, and rank 0's buffers (variables that are not trained) are those of all before each step.
#[derive(Debug)]
pub struct DataParallel {
    group: Group,
    session: Session,
    /// In rank 0's order.
    parameters: Vec<Variable>,
    buffers: Vec<Variable>,
    /// What the session's plan does not need, and so does not hold.
    aside: BTreeMap<String, HostTensor>,
    /// Which gradients are reduced together.
    layout: Arc<Layout>,
    /// Memory of the buckets between steps.
    buckets: Vec<HostTensor>,
}

impl DataParallel {
    /// Compiles this rank's graph and gives all ranks rank 0's parameters and buffers. All ranks of the group call it.
    /// `weights` holds the first content of variables that are read by name.
    ///
    /// # Errors
    /// Where the graph cannot be compiled or has nothing to train, or the ranks have different variables.
    pub fn new(
        group: &Group,
        graph: Graph,
        weights: &BTreeMap<String, HostTensor>,
        options: &DataParallelOptions,
    ) -> Result<Self, DataParallelError> {
        let result = Self::begin(group, graph, weights, options);
        if let Err(error) = &result {
            // The others wait for this rank's part.
            group.fail(error);
        }
        result
    }

    fn begin(
        group: &Group,
        graph: Graph,
        weights: &BTreeMap<String, HostTensor>,
        options: &DataParallelOptions,
    ) -> Result<Self, DataParallelError> {
        let DataParallelOptions { bucket_bytes, session: own, .. } = options;
        let alike = Agreement::new()
            .and("the bytes of a bucket", bucket_bytes)
            .and("the first step", own.first_step);
        group.agree("data parallelism", &alike)?;
        let variables = agree(group, variables(&graph))?;
        let (parameters, buffers): (Vec<_>, Vec<_>) =
            variables.into_iter().partition(|variable| variable.trainable);
        let compiling =
            CompileOptions { loss: options.loss, gradients: true, ..CompileOptions::default() };
        let session = session(graph, &compiling, weights, &options.session)?;
        let held = session.variables();
        let unheld = parameters.iter().chain(&buffers).filter(|v| !held.contains_key(&v.name));
        let aside = unheld.map(|v| Ok((v.name.clone(), first_content(v, weights, options)?)));
        let aside = aside.collect::<Result<_, DataParallelError>>()?;
        let layout = Layout::new(&parameters, &buckets(&parameters, options.bucket_bytes))?;
        let (group, layout, buckets) = (group.clone(), Arc::new(layout), Vec::new());
        let mut this = Self { group, session, parameters, buffers, aside, layout, buckets };
        this.share(true)?;
        this.share(false)?;
        Ok(this)
    }

    /// Names of the parameters, in rank 0's order.
    pub fn parameters(&self) -> impl Iterator<Item = &str> {
        self.parameters.iter().map(|variable| variable.name.as_str())
    }

    /// A parameter or buffer.
    ///
    /// # Errors
    /// Where there is none of that name, or the session has failed.
    pub fn variable(&mut self, name: &str) -> Result<HostTensor, DataParallelError> {
        match self.aside.get(name) {
            Some(value) => Ok(value.clone()),
            None => Ok(self.session.variable(name)?),
        }
    }

    /// Overwrites a parameter or buffer on this rank. Parameters are to be set alike on all ranks.
    ///
    /// # Errors
    /// As [`DataParallel::variable`]; and where the type is another.
    pub fn set_variable(
        &mut self,
        name: &str,
        value: &HostTensor,
    ) -> Result<(), DataParallelError> {
        let Some(held) = self.aside.get_mut(name) else {
            return Ok(self.session.set_variable(name, value)?);
        };
        if held.ty() != value.ty() {
            let (name, expected, found) = (name.to_owned(), held.ty(), value.ty());
            return Err(RuntimeError::VariableType { name, expected, found }.into());
        }
        *held = value.clone();
        Ok(())
    }

    /// Runs forward and backward on this rank's samples and averages the gradients, those of the last layers while the first
    /// are still being computed. All ranks call it, and no other collective of the group meanwhile.
    ///
    /// # Errors
    /// Where the feeds are not the graph's inputs, or a rank has failed.
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
        Ok(Gradients { outputs, gradients })
    }

    /// Replaces each parameter by what `update` makes of it and its gradient: every rank does the same, so that the
    /// parameters stay the same.
    ///
    /// # Errors
    /// Where the session has failed.
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

    /// Gives all ranks rank 0's parameters or buffers.
    fn share(&mut self, parameters: bool) -> Result<(), DataParallelError> {
        let which = if parameters { &self.parameters } else { &self.buffers };
        let names: Vec<String> = which.iter().map(|variable| variable.name.clone()).collect();
        for name in names {
            let mut value = self.variable(&name)?;
            self.group.broadcast(&mut value, 0)?;
            if self.group.rank() != 0 {
                self.set_variable(&name, &value)?;
            }
        }
        Ok(())
    }

    fn is_gradient(&self, output: &str) -> bool {
        let name = output.strip_prefix(GRADIENT);
        name.is_some_and(|name| self.parameters().any(|parameter| parameter == name))
    }

    /// What reduces the gradients of the next step.
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

/// What stands before the name of a parameter in that of the output that is its gradient.
const GRADIENT: &str = "grad.";

fn gradient_of(parameter: &str) -> String {
    format!("{GRADIENT}{parameter}")
}

/// Variables of a graph, in its order.
fn variables(graph: &Graph) -> Vec<Variable> {
    let of = |node: &graphc_ir::graph::Node| match &node.op {
        Op::Variable(variable) => Some(variable.clone()),
        _ => None,
    };
    graph.nodes.iter().filter_map(of).collect()
}

fn describe(variable: &Variable) -> String {
    let kind = if variable.trainable { "parameter" } else { "buffer" };
    format!("{kind} `{}` ({})", variable.name, variable.ty)
}

/// The variables in rank 0's order, if all ranks have the same.
fn agree(group: &Group, mut own: Vec<Variable>) -> Result<Vec<Variable>, DataParallelError> {
    let lines: Vec<String> = own.iter().map(describe).collect();
    let all = group.all_gather(lines.join("\n").as_bytes())?;
    let first = String::from_utf8_lossy(&all[0]).into_owned();
    let order: Vec<&str> = first.lines().collect();
    let lacks = |have: &[&str], wanted: &[&str]| {
        wanted.iter().find(|line| !have.contains(line)).map(|line| (*line).to_owned())
    };
    let mine: Vec<&str> = lines.iter().map(String::as_str).collect();
    let missing = lacks(&mine, &order).map(|line| format!("it lacks {line}"));
    let further = lacks(&order, &mine).map(|line| format!("it also has {line}"));
    if let Some(difference) = missing.or(further) {
        return Err(DataParallelError::Parameters { rank: group.rank(), difference });
    }
    own.sort_by_key(|variable| order.iter().position(|&line| line == describe(variable)));
    Ok(own)
}

fn session(
    graph: Graph,
    options: &CompileOptions,
    weights: &BTreeMap<String, HostTensor>,
    session: &SessionOptions,
) -> Result<Session, DataParallelError> {
    let cpu = preset("cpu").expect("the preset `cpu` is one of graphc's own");
    let plan = compile(graph, options, &cpu, None)?.plan;
    Ok(Session::new(&plan, weights, session.clone())?)
}

/// What a variable begins with that no plan holds: computed as a plan would.
fn first_content(
    variable: &Variable,
    weights: &BTreeMap<String, HostTensor>,
    options: &DataParallelOptions,
) -> Result<HostTensor, DataParallelError> {
    let Variable { name, ty, init, trainable } = variable;
    if *init == Init::Weights {
        let missing = || DataParallelError::Weight { name: name.clone(), ty: ty.clone() };
        return weights.get(name).filter(|value| value.ty() == *ty).cloned().ok_or_else(missing);
    }
    let builder = GraphBuilder::new(name);
    let value = builder.variable_of(name, ty.clone(), init.clone(), *trainable);
    builder.output("value", &value);
    let graph = builder.finish().expect("a variable of a graph fits in another");
    let mut session = session(graph, &CompileOptions::default(), weights, &options.session)?;
    Ok(session.variable(name)?)
}

/// Parameters from the last to the first, as the backward pass comes to them, in buckets of so many bytes and one type.
fn buckets(parameters: &[Variable], bytes: usize) -> Vec<Vec<usize>> {
    let mut buckets: Vec<Vec<usize>> = Vec::new();
    let (mut filled, mut dtype) = (0, None);
    for (index, Variable { ty, .. }) in parameters.iter().enumerate().rev() {
        let fits = dtype == Some(ty.dtype) && filled + ty.bytes() <= bytes;
        match buckets.last_mut().filter(|_| fits) {
            Some(bucket) => bucket.push(index),
            None => {
                buckets.push(vec![index]);
                filled = 0;
            }
        }
        (filled, dtype) = (filled + ty.bytes(), Some(ty.dtype));
    }
    buckets
}
