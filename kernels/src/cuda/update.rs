//! Steps of optimizers, each in one pass over its tensors.
//!
//! What follows from the step alone is worked out by the host ([`Numbers`]). What follows from numbers on the device as well, e.g. the
//! number of the update under loss scaling, is worked out by a thread before, into scratch.

mod blend;
mod rates;

pub(super) use blend::blend;

use graphc_ir::op::Op;
use graphc_ir::ops::{AdamUpdate, LambDirection, LambUpdate, RmspropUpdate, SgdUpdate};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::DType;

use super::Shard;
use super::call::{Argument, Call, Launch, Numbers};
use super::source::{Source, element};

/// Threads of a block.
const THREADS: usize = 256;
/// Elements that a thread takes at once: of f32, 16 bytes.
const WIDTH: usize = 4;

/// An update as its kernel knows it.
struct Update<'a> {
    operands: &'a [Shard],
    /// Operands that are not scalars: the variable, the gradient, and states.
    tensors: usize,
    /// The type of the first result.
    first: DType,
    /// Whether the operand behind these is a factor of the gradient.
    has_factor: bool,
    clip: Option<Scalar>,
    /// What the first result is where the step is not made, of `w`.
    skipped: &'static str,
}

/// One op.
pub(super) fn sgd(op: &SgdUpdate, operands: &[Shard]) -> Call {
    let tensors = if op.momentum.0 == 0.0 { 2 } else { 3 };
    let update = Update::new(operands, tensors, op.clip);
    let source = update
        .source(include_str!("cu/sgd.cu"))
        .number("MOMENTUM", op.momentum.0 as f32)
        .flag("NESTEROV", op.nesterov)
        .number("DECAY", op.weight_decay.0 as f32);
    update.call(source, Op::SgdUpdate(op.clone()), None)
}

/// One op.
pub(super) fn adam(op: &AdamUpdate, operands: &[Shard]) -> Call {
    let update = Update::new(operands, 4, op.clip);
    let decay = if op.decoupled { 0.0 } else { op.weight_decay.0 };
    let source = moments(update.source(include_str!("cu/adam.cu")), [op.beta1, op.beta2])
        .number("EPSILON", op.epsilon.0 as f32)
        .number("DECAY", decay as f32);
    let rates = (operands.len() > 5).then(|| rates::of_adam(op));
    update.call(source, Op::AdamUpdate(op.clone()), rates)
}

/// One op.
pub(super) fn rmsprop(op: &RmspropUpdate, operands: &[Shard]) -> Call {
    let update = Update::new(operands, op.tensors(), op.clip);
    let source = update
        .source(include_str!("cu/rmsprop.cu"))
        .number("ALPHA", op.alpha.0 as f32)
        .number("REST", (1.0 - op.alpha.0) as f32)
        .number("EPSILON", op.epsilon.0 as f32)
        .number("DECAY", op.weight_decay.0 as f32)
        .number("MOMENTUM", op.momentum.0 as f32)
        .flag("CENTERED", op.centered)
        .flag("HAS_MOMENTUM", op.has_momentum());
    update.call(source, Op::RmspropUpdate(op.clone()), None)
}

/// One op.
pub(super) fn lamb_direction(op: &LambDirection, operands: &[Shard]) -> Call {
    let update = Update::new(operands, 4, op.clip);
    let update = Update { first: DType::F32, skipped: "0.0f", ..update };
    let source = moments(update.source(include_str!("cu/lamb_direction.cu")), [op.beta1, op.beta2])
        .number("EPSILON", op.epsilon.0 as f32)
        .number("DECAY", op.weight_decay.0 as f32);
    let rates = (operands.len() > 5).then(|| rates::of_direction(op));
    update.call(source, Op::LambDirection(op.clone()), rates)
}

/// One op; its two scalars are sums of squares.
pub(super) fn lamb(op: &LambUpdate, operands: &[Shard]) -> Call {
    let update = Update { has_factor: false, ..Update::new(operands, 2, None) };
    let source = update.source(include_str!("cu/along.cu"));
    update.call(source, Op::LambUpdate(op.clone()), Some(rates::of_step()))
}

/// Shares of moments, and what they take in.
fn moments(source: Source, [beta1, beta2]: [Scalar; 2]) -> Source {
    source
        .number("BETA1", beta1.0 as f32)
        .number("REST1", (1.0 - beta1.0) as f32)
        .number("BETA2", beta2.0 as f32)
        .number("REST2", (1.0 - beta2.0) as f32)
}

impl<'a> Update<'a> {
    fn new(operands: &'a [Shard], tensors: usize, clip: Option<Scalar>) -> Self {
        let (first, has_factor) = (operands[0].dtype(), operands.len() > tensors);
        Self { operands, tensors, first, has_factor, clip, skipped: "w" }
    }

    fn elements(&self) -> usize {
        self.operands[0].elements()
    }

    fn states(&self) -> usize {
        self.tensors - 2
    }

    /// The kernel whose step is `text`.
    fn source(&self, text: &str) -> Source {
        let states = |name: &str| match self.states() {
            0 => "nullptr".to_owned(),
            states => (0..states).map(|s| format!("{name}{s}")).collect::<Vec<_>>().join(", "),
        };
        let source = Source::new(format!("{text}\n{}", include_str!("cu/update.cu")))
            .define("ELEMENTS", self.elements())
            .define("WIDTH", WIDTH)
            .index(self.elements())
            .element("W", self.operands[0].dtype())
            .element("G", self.operands[1].dtype())
            .element("O", self.first)
            .define("STATES", self.states())
            .define("PARAMETERS", self.parameters())
            .define("STATES_FROM", states("from"))
            .define("STATES_TO", states("to"))
            .flag("HAS_FACTOR", self.has_factor)
            .define("SKIPPED", self.skipped);
        match self.clip {
            Some(clip) => source.number("CLIP", clip.0 as f32),
            None => source,
        }
    }

    fn parameters(&self) -> String {
        let states = |ty: &'static str, name: &'static str| {
            (0..self.states()).map(move |state| format!("{ty} {name}{state}"))
        };
        let mut parameters: Vec<String> =
            ["const float* numbers", "const W* w", "const G* g"].map(str::to_owned).to_vec();
        parameters.extend(states("const float*", "from"));
        parameters.extend(self.has_factor.then(|| "const float* factor".to_owned()));
        parameters.push("O* new_w".to_owned());
        parameters.extend(states("float*", "to"));
        parameters.join(", ")
    }

    /// The launch, behind that of rates where they follow from numbers on the device.
    fn call(&self, source: Source, op: Op, rates: Option<rates::Rates>) -> Call {
        if self.elements() == 0 {
            return Call::nothing();
        }
        let numbers = match rates {
            Some(_) => Argument::scratch(0),
            None => Argument::Numbers,
        };
        let given = self.tensors + usize::from(self.has_factor);
        let mut arguments = vec![numbers];
        arguments.extend((0..given).map(Argument::operand));
        arguments.extend((0..self.tensors - 1).map(Argument::result));
        let blocks = self.elements().div_ceil(THREADS * WIDTH);
        let launch = Launch::kernel(source, "update", blocks, THREADS, arguments);
        let before = rates.map(|rates| rates.launch(self.operands.len()));
        let mut call = Call::of(before.into_iter().chain([launch]).collect());
        call.scratch = if matches!(numbers, Argument::Numbers) { 0 } else { rates::BYTES };
        call.numbers = Numbers::Update(Box::new(op));
        call
    }
}

/// An element type as a macro of a kernel of blends.
fn wide(dtype: DType) -> &'static str {
    if dtype.is_float() { "float" } else { "i64" }
}

/// The C++ type of a shard's elements.
fn type_of(shard: &Shard) -> &'static str {
    element(shard.dtype())
}
