//! The graph builder: the Rust front end, also used by gradients and passes.
//!
//! [`Tensor`] is a handle to a value; its methods append nodes. What does not fit is kept with the caller's file and
//! line and reported, all at once, by [`GraphBuilder::finish`]; the handle that a failed op returns is inert.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::Location;
use std::rc::Rc;

use crate::graph::{Graph, Node, Output, Part, Source};
use crate::ids::{StageId, ValueId};
use crate::mesh::Placement;
use crate::op::{Op, OpError};
use crate::ops::{Blend, Init, Input, Variable};
use crate::sbp::NdSbp;
use crate::types::{DType, TensorType};

mod arithmetic;
mod axis;
mod custom;
mod einsum;
mod float8;
mod images;
mod methods;
mod places;

pub use axis::Axis;
pub use einsum::{Products, apply_einsum};

/// Builds a graph.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_ir::ops::Init;
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let x = g.input("x", DType::F32, [4, 5]);
/// let w = g.variable("w", DType::F32, [5, 8], Init::Normal { mean: 0.0.into(), std: 0.02.into() });
/// g.output("out", &x.matmul(&w).relu());
/// let graph = g.finish()?;
/// assert_eq!(graph.value(graph.outputs[0].value).ty.shape, [4, 8]);
/// # Ok::<(), graphc_ir::builder::BuildErrors>(())
/// ```
#[derive(Clone)]
pub struct GraphBuilder(Rc<RefCell<BuilderState>>);

struct BuilderState {
    graph: Graph,
    /// The values that have names.
    names: BTreeMap<String, ValueId>,
    errors: Vec<BuildError>,
    part: Option<Part>,
    placement: Option<Placement>,
    autocast: Option<DType>,
    scope: Vec<String>,
    derived: bool,
    /// Whom errors and nodes name instead of the caller, while a module is at work.
    location: Option<&'static Location<'static>>,
    keys: u64,
    /// The element type of modules' weights.
    dtype: DType,
}

/// A value under construction.
#[derive(Clone)]
pub struct Tensor {
    builder: GraphBuilder,
    /// `None` after an error, which is kept in the builder.
    id: Option<ValueId>,
}

/// Something that does not fit, and where the user wrote it.
#[derive(Clone, PartialEq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct BuildError {
    /// The place in the user's program.
    pub place: Source,
    /// The message.
    pub message: String,
}

crate::readable_debug!(BuildError);

/// All errors of one graph.
#[derive(Clone, PartialEq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct BuildErrors(pub Vec<BuildError>);

crate::readable_debug!(BuildErrors);

impl GraphBuilder {
    /// A builder of an empty graph.
    pub fn new(name: impl Into<String>) -> Self {
        Self::with_state(Graph::new(name), false)
    }

    /// A builder that appends to a graph; what it appends counts as made by the compiler.
    pub fn from_graph(graph: Graph) -> Self {
        Self::with_state(graph, true)
    }

    fn with_state(graph: Graph, derived: bool) -> Self {
        let keys = graph.nodes.len() as u64;
        let mut names = BTreeMap::new();
        for (at, value) in graph.values.iter().enumerate() {
            if let Some(name) = &value.name {
                names.entry(name.clone()).or_insert(ValueId::new(at));
            }
        }
        Self(Rc::new(RefCell::new(BuilderState {
            graph,
            names,
            errors: Vec::new(),
            part: None,
            placement: None,
            autocast: None,
            scope: Vec::new(),
            derived,
            location: None,
            keys,
            dtype: DType::F32,
        })))
    }

    /// The handle of a value of the graph.
    pub fn tensor(&self, id: ValueId) -> Tensor {
        Tensor { builder: self.clone(), id: Some(id) }
    }

    /// Declares an input, which is fed each step.
    #[track_caller]
    pub fn input(&self, name: &str, dtype: DType, shape: impl Into<Vec<usize>>) -> Tensor {
        self.input_of(Input::new(name, TensorType::new(dtype, shape)))
    }

    /// Declares an input like [`GraphBuilder::input`] whose samples another dim than the first counts, or none: [`Input::samples`].
    #[track_caller]
    pub fn input_of(&self, input: Input) -> Tensor {
        let name = input.name.clone();
        self.apply(Op::Input(input), &[]).named(&name)
    }

    /// A trainable weight. Its name is prefixed by the scope.
    #[track_caller]
    pub fn variable(
        &self,
        name: &str,
        dtype: DType,
        shape: impl Into<Vec<usize>>,
        init: Init,
    ) -> Tensor {
        self.variable_of(name, TensorType::new(dtype, shape), init, true)
    }

    /// A variable, trained or not. Its name is prefixed by the scope.
    #[track_caller]
    pub fn variable_of(&self, name: &str, ty: TensorType, init: Init, trainable: bool) -> Tensor {
        let name = self.scoped_name(name);
        let variable = Variable { name: name.clone(), ty, init, trainable };
        self.apply(Op::Variable(variable), &[]).named(&name)
    }

    /// Declares what the graph gives back.
    #[track_caller]
    pub fn output(&self, name: &str, tensor: &Tensor) {
        let is_taken = self.0.borrow().graph.outputs.iter().any(|output| output.name == name);
        if let Some(message) = self.describe_stranger(&[tensor]) {
            self.fail(message);
        } else if is_taken {
            self.fail(format!("there is another output of the name `{name}`"));
        } else if let Some(value) = tensor.id {
            self.0.borrow_mut().graph.outputs.push(Output { name: name.into(), value });
        }
    }

    /// Describes the first of some tensors that is of another builder, whose numbers of values mean others here.
    fn describe_stranger(&self, tensors: &[&Tensor]) -> Option<String> {
        let stranger = tensors.iter().find(|tensor| !Rc::ptr_eq(&self.0, &tensor.builder.0))?;
        let [own, other] = [self, &stranger.builder].map(|of| of.0.borrow().graph.name.clone());
        Some(format!(
            "a tensor of another `GraphBuilder` (`{other}`) is used in `{own}`: make all tensors of a graph by one builder"
        ))
    }

    /// Declares pipeline stage `stage`, on this placement if one is given.
    pub fn declare_stage(&self, stage: usize, placement: Option<Placement>) {
        let mut state = self.0.borrow_mut();
        if state.graph.stages.len() <= stage {
            state.graph.stages.resize(stage + 1, None);
        }
        if placement.is_some() {
            state.graph.stages[stage] = placement;
        }
    }

    /// Runs `body` with every node it makes in pipeline stage `stage`.
    pub fn in_stage<T>(&self, stage: usize, body: impl FnOnce() -> T) -> T {
        self.declare_stage(stage, None);
        self.in_part(Part::Stage(StageId::new(stage)), body)
    }

    fn in_part<T>(&self, part: Part, body: impl FnOnce() -> T) -> T {
        let before = self.0.borrow_mut().part.replace(part);
        let result = body();
        self.0.borrow_mut().part = before;
        result
    }

    /// Runs `body` with every node it makes in the part and on the placement of a node.
    pub fn beside_node<T>(&self, node: &Node, body: impl FnOnce() -> T) -> T {
        let placed = || match &node.placement {
            Some(placement) => self.on(placement, body),
            None => body(),
        };
        match node.part {
            Some(part) => self.in_part(part, placed),
            None => placed(),
        }
    }

    /// Puts the node that makes a tensor in pipeline stage `stage`, on this placement if one is given.
    pub fn assign_stage(&self, tensor: &Tensor, stage: usize, placement: Option<&Placement>) {
        self.declare_stage(stage, placement.cloned());
        let Some(id) = tensor.id else { return };
        let mut state = self.0.borrow_mut();
        let producer = state.graph.value(id).producer;
        let node = &mut state.graph.nodes[producer.index()];
        node.part = Some(Part::Stage(StageId::new(stage)));
        if placement.is_some() {
            node.placement = placement.cloned();
        }
    }

    /// Runs `body` with every node it makes on this placement.
    pub fn on<T>(&self, placement: &Placement, body: impl FnOnce() -> T) -> T {
        let before = self.0.borrow_mut().placement.replace(placement.clone());
        let result = body();
        self.0.borrow_mut().placement = before;
        result
    }

    /// Runs `body` with every node that it makes under automatic mixed precision, as `torch.autocast` does: matrix products,
    /// convolutions and attention take their operands in `dtype` (`bf16` or `f16`), normalizations, softmax, sums and losses
    /// in f32, everything else in the widest type of its operands. Weights keep their own type, and so do the outputs of
    /// the graph. Within such a region `DType::F32` is one without half precision.
    ///
    /// ```
    /// use graphc_ir::builder::GraphBuilder;
    /// use graphc_ir::ops::Init;
    /// use graphc_ir::types::DType;
    ///
    /// let g = GraphBuilder::new("example");
    /// let x = g.input("x", DType::F32, [4, 5]);
    /// let w = g.variable("w", DType::F32, [5, 8], Init::Weights);
    /// let y = g.autocast(DType::BF16, || x.matmul(&w));
    /// g.output("out", &y.softmax(1));
    /// let graph = g.finish()?;
    /// assert!(graph.nodes.iter().any(|node| node.autocast == Some(DType::BF16)));
    /// # Ok::<(), graphc_ir::builder::BuildErrors>(())
    /// ```
    #[track_caller]
    pub fn autocast<T>(&self, dtype: DType, body: impl FnOnce() -> T) -> T {
        if !dtype.is_float() {
            self.fail(format!("autocast computes in bf16, f16 or f32, not in {dtype}"));
        }
        let before = self.0.borrow_mut().autocast.replace(dtype);
        let result = body();
        self.0.borrow_mut().autocast = before;
        result
    }

    /// Runs `body` with `name.` before the name of every variable it makes.
    pub fn scope<T>(&self, name: &str, body: impl FnOnce() -> T) -> T {
        self.0.borrow_mut().scope.push(name.into());
        let result = body();
        self.0.borrow_mut().scope.pop();
        result
    }

    /// Runs `body` with the weights of modules of this element type, f32 otherwise.
    ///
    /// ```
    /// use graphc_ir::builder::GraphBuilder;
    /// use graphc_ir::ops::Init;
    /// use graphc_ir::types::DType;
    ///
    /// let g = GraphBuilder::new("example");
    /// let weights = || g.variable("w", g.dtype(), [5, 8], Init::Weights);
    /// assert_eq!(weights().ty().dtype, DType::F32);
    /// assert_eq!(g.with_dtype(DType::BF16, || g.scope("fc", weights)).ty().dtype, DType::BF16);
    /// ```
    pub fn with_dtype<T>(&self, dtype: DType, body: impl FnOnce() -> T) -> T {
        let before = std::mem::replace(&mut self.0.borrow_mut().dtype, dtype);
        let result = body();
        self.0.borrow_mut().dtype = before;
        result
    }

    /// The element type of modules' weights.
    pub fn dtype(&self) -> DType {
        self.0.borrow().dtype
    }

    fn scoped_name(&self, name: &str) -> String {
        let state = self.0.borrow();
        state.scope.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join(".")
    }

    /// Runs `body`; what it makes and what does not fit in it names the caller of the outermost such call, because
    /// the lines of a module's own closures are of no use to whom applies it.
    #[track_caller]
    pub fn with_location<T>(&self, body: impl FnOnce() -> T) -> T {
        let before = self.0.borrow().location;
        self.0.borrow_mut().location = before.or(Some(Location::caller()));
        let result = body();
        self.0.borrow_mut().location = before;
        result
    }

    /// A key for random numbers, another on each call.
    pub fn next_key(&self) -> u64 {
        let mut state = self.0.borrow_mut();
        state.keys += 1;
        state.keys
    }

    /// Appends a node with one result (the first, where it has several).
    #[track_caller]
    pub fn apply(&self, op: Op, operands: &[&Tensor]) -> Tensor {
        self.apply_all(op, operands).swap_remove(0)
    }

    /// Appends a node; all its results. After an error one inert handle.
    #[track_caller]
    pub fn apply_all(&self, op: Op, operands: &[&Tensor]) -> Vec<Tensor> {
        let place = self.source_at(Location::caller());
        let Some(ids) = operands.iter().map(|tensor| tensor.id).collect::<Option<Vec<_>>>() else {
            return vec![self.inert_tensor()];
        };
        if let Some(message) = self.describe_stranger(operands) {
            self.0.borrow_mut().errors.push(BuildError { place, message });
            return vec![self.inert_tensor()];
        }
        let mut state = self.0.borrow_mut();
        match state.graph.push(op, ids, place.clone()) {
            Ok(node) => {
                let (part, placement) = (state.part, state.placement.clone());
                let autocast = state.autocast;
                let node = &mut state.graph.nodes[node.index()];
                (node.part, node.placement, node.autocast) = (part, placement, autocast);
                let results = node.results.clone();
                drop(state);
                results.into_iter().map(|id| self.tensor(id)).collect()
            }
            Err(error) => {
                state.errors.push(BuildError { place, message: error.to_string() });
                drop(state);
                vec![self.inert_tensor()]
            }
        }
    }

    /// Keeps an error that [`GraphBuilder::finish`] will report, at the caller's place.
    #[track_caller]
    pub fn fail(&self, message: impl Into<String>) -> Tensor {
        let place = self.source_at(Location::caller());
        self.0.borrow_mut().errors.push(BuildError { place, message: message.into() });
        self.inert_tensor()
    }

    fn source_at(&self, location: &Location<'_>) -> Source {
        let state = self.0.borrow();
        if state.derived {
            return Source::Derived;
        }
        let location = state.location.unwrap_or(location);
        Source::Rust { file: location.file().into(), line: location.line() }
    }

    fn inert_tensor(&self) -> Tensor {
        Tensor { builder: self.clone(), id: None }
    }

    /// The graph.
    ///
    /// # Errors
    /// Everything that did not fit, with the lines that the user wrote.
    pub fn finish(self) -> Result<Graph, BuildErrors> {
        let mut state = self.0.borrow_mut();
        if !state.errors.is_empty() {
            return Err(BuildErrors(std::mem::take(&mut state.errors)));
        }
        Ok(std::mem::take(&mut state.graph))
    }
}

impl Tensor {
    /// The builder that it belongs to.
    pub fn builder(&self) -> &GraphBuilder {
        &self.builder
    }

    /// Returns its value; `None` after an error.
    pub fn id(&self) -> Option<ValueId> {
        self.id
    }

    /// Returns its type; of an inert handle `f32[]`.
    pub fn ty(&self) -> TensorType {
        let inert = || TensorType::new(DType::F32, []);
        self.id.map_or_else(inert, |id| self.builder.0.borrow().graph.value(id).ty.clone())
    }

    /// Returns its shape.
    pub fn shape(&self) -> Vec<usize> {
        self.ty().shape
    }

    /// Replaces a variable by `next` at the end of each step of training, when all of the step has read its old value. Inference leaves it
    /// as it is. A value that comes from samples must be reduced over all of them, as a microbatch sees a part only; sums and means are
    /// then those of the whole batch.
    ///
    /// ```
    /// use graphc_ir::builder::GraphBuilder;
    /// use graphc_ir::ops::Init;
    /// use graphc_ir::types::{DType, TensorType};
    ///
    /// let g = GraphBuilder::new("counts its samples");
    /// let x = g.input("x", DType::F32, [4, 5]);
    /// let seen = g.variable_of("seen", TensorType::new(DType::F32, []), Init::Fill(0.0.into()), false);
    /// seen.after_step(&seen.add(&x.full_like(0.2).sum(&[0, 1], false)));
    /// assert_eq!(g.finish()?.nodes.last().map(|node| node.op.name()), Some("blend"));
    /// # Ok::<(), graphc_ir::builder::BuildErrors>(())
    /// ```
    #[track_caller]
    pub fn after_step(&self, next: &Tensor) {
        self.builder.apply(Op::Blend(Blend::REPLACE), &[self, next]);
    }

    /// Replaces a variable at the end of each step of training by `decay` times its old value, plus `rate` times `x`; otherwise like
    /// [`Tensor::after_step`]. With a rate of 1 - decay it is a moving average.
    ///
    /// ```
    /// use graphc_ir::builder::GraphBuilder;
    /// use graphc_ir::ops::Init;
    /// use graphc_ir::types::{DType, TensorType};
    ///
    /// let g = GraphBuilder::new("knows its mean");
    /// let x = g.input("x", DType::F32, [4, 5]);
    /// let mean = g.variable_of("mean", TensorType::new(DType::F32, [5]), Init::Fill(0.0.into()), false);
    /// mean.blend_after_step(0.9, 0.1, &x.mean(&[0], false));
    /// assert!(g.finish().is_ok());
    /// ```
    #[track_caller]
    pub fn blend_after_step(&self, decay: f64, rate: f64, x: &Tensor) {
        self.builder.apply(Op::Blend(Blend::with_decay(decay, rate)), &[self, x]);
    }

    /// Gives it a name; a name that is taken is an error.
    #[track_caller]
    pub fn named(self, name: &str) -> Self {
        let Some(id) = self.id else { return self };
        if self.builder.0.borrow().names.get(name).is_some_and(|&other| other != id) {
            return self.builder.fail(format!("the name `{name}` is taken"));
        }
        let mut state = self.builder.0.borrow_mut();
        let before = state.graph.values[id.index()].name.replace(name.into());
        if let Some(before) = before {
            state.names.remove(&before);
        }
        state.names.insert(name.into(), id);
        drop(state);
        self
    }

    /// Asks for this layout.
    pub fn pin(self, sbp: NdSbp) -> Self {
        if let Some(id) = self.id {
            self.builder.0.borrow_mut().graph.values[id.index()].pin = Some(sbp);
        }
        self
    }
}

/// Lifts errors of passes that build graphs.
impl From<OpError> for BuildErrors {
    fn from(error: OpError) -> Self {
        Self(vec![BuildError { place: Source::Derived, message: error.to_string() }])
    }
}
