//! Steps of optimizers, each in one pass over its tensors. The kernels share a frame, `cu/update.cu`.
//!
//! The host works out, in `f64`, what follows from the step alone ([`Numbers`]). Other numbers follow from numbers on the device,
//! e.g. the number of the update under loss scaling. One thread works these out before, into scratch. Several updates by one rule
//! can be one launch ([`join_alike`]).

mod blend;
mod casts;
mod joint;
mod rates;
mod several;
mod steps;

pub(super) use blend::prepare_blend;
pub use joint::{join_alike, joinable_tensors};

use graphc_ir::op::Op;
use graphc_ir::ops::{AdamUpdate, LambDirection, LambUpdate, RmspropUpdate, SgdUpdate};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::DType;

use super::Shard;
use super::call::{Argument, Call, Launch, Numbers};
use super::source::{KernelSource, element_type};

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
    /// The first result where the step is not made, of `w`.
    skipped: &'static str,
}

/// A step and all that it needs, whatever it is done to.
struct CudaUpdateRule {
    /// The step, with macros for its numbers.
    step: KernelSource,
    /// The op, from which the host works out numbers.
    op: Op,
    /// Operands that are not scalars: the variable, the gradient, and states.
    tensors: usize,
    clip: Option<Scalar>,
    /// The numbers that the device works out from others; `None` if all come from the host.
    rates: Option<rates::DeviceRates>,
}

/// Prepares the call of an `SgdUpdate` op.
pub(super) fn prepare_sgd(op: &SgdUpdate, operands: &[Shard]) -> Call {
    sgd_rule(op, operands.len()).of_one(operands)
}

fn sgd_rule(op: &SgdUpdate, operands: usize) -> CudaUpdateRule {
    let tensors = if op.momentum.0 == 0.0 { 2 } else { 3 };
    let rates = (operands > tensors + 1).then(|| rates::of_sgd(op));
    let step = KernelSource::new(include_str!("cu/sgd.cu"))
        .define_number("MOMENTUM", op.momentum.0 as f32)
        .define_flag("NESTEROV", op.nesterov)
        .define_number("DECAY", op.weight_decay.0 as f32)
        .define_flag("LIMITED", rates.is_some());
    CudaUpdateRule { step, op: Op::SgdUpdate(op.clone()), tensors, clip: op.clip, rates }
}

/// Prepares the call of an `AdamUpdate` op.
pub(super) fn prepare_adam(op: &AdamUpdate, operands: &[Shard]) -> Call {
    adam_rule(op, operands.len()).of_one(operands)
}

fn adam_rule(op: &AdamUpdate, operands: usize) -> CudaUpdateRule {
    let decay = if op.decoupled { 0.0 } else { op.weight_decay.0 };
    let step = define_moments(KernelSource::new(include_str!("cu/adam.cu")), [op.beta1, op.beta2])
        .define_number("EPSILON", op.epsilon.0 as f32)
        .define_number("DECAY", decay as f32);
    let rates = (operands > 5).then(|| rates::of_adam(op));
    CudaUpdateRule { step, op: Op::AdamUpdate(op.clone()), tensors: 4, clip: op.clip, rates }
}

/// Prepares the call of an `RmspropUpdate` op.
pub(super) fn prepare_rmsprop(op: &RmspropUpdate, operands: &[Shard]) -> Call {
    rmsprop_rule(op).of_one(operands)
}

fn rmsprop_rule(op: &RmspropUpdate) -> CudaUpdateRule {
    let step = KernelSource::new(include_str!("cu/rmsprop.cu"))
        .define_number("ALPHA", op.alpha.0 as f32)
        .define_number("REST", (1.0 - op.alpha.0) as f32)
        .define_number("EPSILON", op.epsilon.0 as f32)
        .define_number("DECAY", op.weight_decay.0 as f32)
        .define_number("MOMENTUM", op.momentum.0 as f32)
        .define_flag("CENTERED", op.centered)
        .define_flag("HAS_MOMENTUM", op.has_momentum());
    let tensors = op.count_tensors();
    CudaUpdateRule { step, op: Op::RmspropUpdate(op.clone()), tensors, clip: op.clip, rates: None }
}

/// Prepares the call of a `LambDirection` op.
pub(super) fn lamb_direction(op: &LambDirection, operands: &[Shard]) -> Call {
    direction_rule(op, operands.len()).of_one(operands)
}

fn direction_rule(op: &LambDirection, operands: usize) -> CudaUpdateRule {
    let step = define_moments(
        KernelSource::new(include_str!("cu/lamb_direction.cu")),
        [op.beta1, op.beta2],
    )
    .define_number("EPSILON", op.epsilon.0 as f32)
    .define_number("DECAY", op.weight_decay.0 as f32);
    let rates = (operands > 5).then(|| rates::of_direction(op));
    CudaUpdateRule { step, op: Op::LambDirection(op.clone()), tensors: 4, clip: op.clip, rates }
}

/// Prepares the call of a `LambUpdate` op; its two scalars are sums of squares.
pub(super) fn prepare_lamb(op: &LambUpdate, operands: &[Shard]) -> Call {
    let step = KernelSource::new(include_str!("cu/along.cu"));
    let rates = Some(rates::of_step());
    let rule =
        CudaUpdateRule { step, op: Op::LambUpdate(op.clone()), tensors: 2, clip: None, rates };
    Update { has_factor: false, ..Update::new(operands, &rule) }.prepare_call(rule)
}

/// Shares of moments, and what they take in.
fn define_moments(source: KernelSource, [beta1, beta2]: [Scalar; 2]) -> KernelSource {
    source
        .define_number("BETA1", beta1.0 as f32)
        .define_number("REST1", (1.0 - beta1.0) as f32)
        .define_number("BETA2", beta2.0 as f32)
        .define_number("REST2", (1.0 - beta2.0) as f32)
}

impl<'a> Update<'a> {
    fn new(
        operands: &'a [Shard],
        &CudaUpdateRule { tensors, clip, ref op, .. }: &CudaUpdateRule,
    ) -> Self {
        let has_factor = operands.len() > tensors;
        let (first, skipped) = match op {
            // The first result is the direction, in which nothing goes where the step is not made.
            Op::LambDirection(_) => (DType::F32, "0.0f"),
            _ => (operands[0].dtype(), "w"),
        };
        Self { operands, tensors, first, has_factor, clip, skipped }
    }

    fn elements(&self) -> usize {
        self.operands[0].elements()
    }

    fn states(&self) -> usize {
        self.tensors - 2
    }

    /// The kernel of a step, but for where it finds its tensors.
    fn build_source(&self, step: KernelSource) -> KernelSource {
        let source = step
            .followed_by(include_str!("cu/update.cu"))
            .define("WIDTH", WIDTH)
            .define_element("W", self.operands[0].dtype())
            .define_element("G", self.operands[1].dtype())
            .define_element("O", self.first)
            .define("STATES", self.states())
            .define_flag("HAS_FACTOR", self.has_factor)
            .define("SKIPPED", self.skipped);
        match self.clip {
            Some(clip) => source.define_number("CLIP", clip.0 as f32),
            None => source,
        }
    }

    /// Macros for a kernel whose tensors are its parameters.
    fn define_own(&self, source: KernelSource) -> KernelSource {
        let states = |name: &str| match self.states() {
            0 => "nullptr".to_owned(),
            states => (0..states).map(|s| format!("{name}{s}")).collect::<Vec<_>>().join(", "),
        };
        source
            .define("ELEMENTS", self.elements())
            .define_index(self.elements())
            .define("PARAMETERS", self.parameters())
            .define("STATES_FROM", states("from"))
            .define("STATES_TO", states("to"))
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

    fn prepare_call(&self, rule: CudaUpdateRule) -> Call {
        if self.elements() == 0 {
            return Call::empty();
        }
        let given = self.tensors + usize::from(self.has_factor);
        let mut arguments = vec![rule.numbers()];
        arguments.extend((0..given).map(Argument::operand));
        arguments.extend((0..self.tensors - 1).map(Argument::result));
        let blocks = self.elements().div_ceil(THREADS * WIDTH);
        let source = self.define_own(self.build_source(rule.step.clone()));
        let launch = Launch::kernel(source, "update", blocks, THREADS, arguments);
        rule.prepare_call(launch, self.operands.len())
    }
}

impl CudaUpdateRule {
    /// Prepares one update in a launch of its own.
    fn of_one(self, operands: &[Shard]) -> Call {
        Update::new(operands, &self).prepare_call(self)
    }

    /// Returns the argument by which a kernel finds the numbers of its step.
    fn numbers(&self) -> Argument {
        match self.rates {
            Some(_) => Argument::scratch(0),
            None => Argument::Numbers,
        }
    }

    /// The launch, behind that of rates where they follow from the last of so many operands.
    fn prepare_call(self, launch: Launch, operands: usize) -> Call {
        let scratch = if self.rates.is_some() { rates::BYTES } else { 0 };
        let before = self.rates.map(|rates| rates.into_launch(operands));
        let call = Call::from_launches(before.into_iter().chain([launch]).collect());
        Call { scratch, numbers: Numbers::Update(Box::new(self.op)), ..call }
    }
}

/// An element type as a macro of a kernel of blends.
fn blend_type(dtype: DType) -> &'static str {
    if dtype.is_float() { "float" } else { "i64" }
}

/// The C++ type of a shard's elements.
fn type_of(shard: &Shard) -> &'static str {
    element_type(shard.dtype())
}
