//! Tokens to experts and back: the places of tokens are found first, from the choices alone; then rows are copied.

use graphc_ir::ops::{Combine, CombineWeightsGrad, Dispatch, ExpertPlaces};

use super::Shard;
use super::call::{Argument, Call, CallRegister, Launch};
use super::indices::IndexShard;
use super::source::{KernelSource, access_width};
use crate::error::KernelError;

/// Threads of a block.
const THREADS: usize = 256;
/// Pieces of scratch begin at multiples of this.
const ALIGNED: usize = 256;

/// Prepares the call of a `Dispatch` op.
pub(super) fn prepare_dispatch(
    op: &Dispatch,
    operands: &[Shard],
    results: &[Shard],
) -> Result<Call, KernelError> {
    let (tokens, places) =
        ((CallRegister::Operand(0), &operands[0]), (CallRegister::Result(0), &results[0]));
    let space = CudaExpertExtents::new(operands, tokens, places, op.places(), Some(2))?;
    let mut arguments = vec![Argument::operand(0), space.weights, space.owners()];
    arguments.extend([Argument::result(0), space.first_token, space.first_choice]);
    let kernel = (include_str!("cu/dispatch.cu"), "dispatch");
    Ok(space.prepare_parts(kernel, &results[0], arguments))
}

/// Prepares the call of a `Combine` op.
pub(super) fn prepare_combine(
    op: &Combine,
    operands: &[Shard],
    results: &[Shard],
) -> Result<Call, KernelError> {
    let (tokens, places) =
        ((CallRegister::Result(0), &results[0]), (CallRegister::Operand(0), &operands[0]));
    let space = CudaExpertExtents::new(
        operands,
        tokens,
        places,
        ExpertPlaces::of_shape(&operands[0].global, op.experts),
        Some(2),
    )?;
    let mut arguments = vec![Argument::operand(0), space.weights, Argument::scratch(0)];
    arguments.push(Argument::result(0));
    arguments.extend(space.origins());
    let kernel = (include_str!("cu/combine.cu"), "combine");
    Ok(space.prepare_parts(kernel, &results[0], arguments))
}

/// Prepares the call of a `CombineWeightsGrad` op.
pub(super) fn weights_grad(
    op: &CombineWeightsGrad,
    operands: &[Shard],
    results: &[Shard],
) -> Result<Call, KernelError> {
    let (tokens, places) =
        ((CallRegister::Operand(2), &operands[2]), (CallRegister::Operand(0), &operands[0]));
    let mut space = CudaExpertExtents::new(
        operands,
        tokens,
        places,
        ExpertPlaces::of_shape(&operands[0].global, op.experts),
        None,
    )?;
    let &[_, _, choices] = results[0].shape() else {
        return Err(KernelError::bad_call("combine_weights_grad", "a result of other rank than 3"));
    };
    space.own_choices = choices;
    space.first_choice = Argument::Origin(CallRegister::Result(0), 2);
    let elements = results[0].elements();
    let mut arguments = vec![Argument::operand(0), Argument::scratch(0), Argument::operand(2)];
    arguments.push(Argument::result(0));
    arguments.extend(space.origins());
    let source = space
        .build_source(include_str!("cu/combine_weights_grad.cu"))
        .define_element("T", results[0].dtype())
        .define("ELEMENTS", elements)
        .define("SIZE", space.size);
    let blocks = elements.div_ceil(THREADS / 32);
    let launch = Launch::kernel(source, "combine_weights_grad", blocks, THREADS, arguments);
    Ok(space.prepare_call((elements > 0).then_some(launch)))
}

/// Extents of the shards of tokens and of places, and where they lie.
struct CudaExpertExtents {
    groups: usize,
    own_tokens: usize,
    /// Tokens of a whole group, and choices of each.
    tokens: usize,
    choices: usize,
    /// Elements of a token.
    size: usize,
    whole: ExpertPlaces,
    /// Blocks and places of the shard of places.
    held: usize,
    room: usize,
    own_choices: usize,
    weighted: bool,
    weights: Argument,
    first_token: Argument,
    first_choice: Argument,
    first_block: Argument,
    first_place: Argument,
    indices: IndexShard,
}

impl CudaExpertExtents {
    /// `weights` is which operand has weights, if there is one; the choices are operand 1.
    fn new(
        operands: &[Shard],
        (token_slot, of_tokens): (CallRegister, &Shard),
        (place_slot, of_places): (CallRegister, &Shard),
        whole: ExpertPlaces,
        weights: Option<usize>,
    ) -> Result<Self, KernelError> {
        let (own, places, chosen) = (of_tokens.shape(), of_places.shape(), operands[1].shape());
        let (&[groups, own_tokens, size], &[held, _, room, _], &[_, tokens, choices]) =
            (own, places, chosen)
        else {
            let reason = format!("tokens {own:?} and places {places:?}");
            return Err(KernelError::bad_call("experts", reason));
        };
        let weights = weights.filter(|&weights| weights < operands.len());
        // Without weights nothing is read there, and all choices are its own.
        let slot = CallRegister::Operand(weights.unwrap_or(1));
        Ok(Self {
            groups,
            own_tokens,
            tokens,
            choices,
            size,
            whole,
            held,
            room,
            own_choices: weights.map_or(choices, |weights| operands[weights].shape()[2]),
            weighted: weights.is_some(),
            weights: Argument::Address(super::LaunchMemory::Slot(slot)),
            first_token: Argument::Origin(token_slot, 1),
            first_choice: Argument::Origin(slot, 2),
            first_block: Argument::Origin(place_slot, 0),
            first_place: Argument::Origin(place_slot, 2),
            indices: IndexShard::new("expert", operands, 1, whole.experts, None),
        })
    }

    fn origins(&self) -> [Argument; 4] {
        [self.first_token, self.first_choice, self.first_block, self.first_place]
    }

    /// Bytes of the places of choices, which the scratch begins with.
    fn of_slots(&self) -> usize {
        (8 * self.groups * self.tokens * self.choices).next_multiple_of(ALIGNED)
    }

    /// Returns the address of the choices that own the places, which lies in the scratch behind the places.
    fn owners(&self) -> Argument {
        Argument::scratch(self.of_slots())
    }

    fn build_source(&self, text: &str) -> KernelSource {
        KernelSource::new(format!("{}\n{text}", include_str!("cu/experts.cuh")))
            .define("GROUPS", self.groups)
            .define("OWN_TOKENS", self.own_tokens)
            .define("TOKENS", self.tokens)
            .define("CHOICES", self.choices)
            .define("CAPACITY", self.whole.capacity)
            .define("HELD", self.held)
            .define("ROOM", self.room)
            .define("OWN_CHOICES", self.own_choices)
    }

    /// A call whose kernel takes tokens, or places, in parts that are read at once.
    fn prepare_parts(
        self,
        (text, entry): (&str, &'static str),
        out: &Shard,
        of: Vec<Argument>,
    ) -> Call {
        let elements = out.elements();
        let width = access_width(out.dtype().size(), [self.size]);
        let source = self
            .build_source(text)
            .define_element("T", out.dtype())
            .define_flag("WEIGHTED", self.weighted)
            .define("ELEMENTS", elements)
            .define("SIZE", self.size)
            .define("WIDTH", width)
            .define_index(elements);
        let blocks = elements.div_ceil(THREADS * width);
        let launch = (elements > 0).then(|| Launch::kernel(source, entry, blocks, THREADS, of));
        self.prepare_call(launch)
    }

    /// The launch behind that which finds the places.
    fn prepare_call(self, launch: Option<Launch>) -> Call {
        if self.whole.experts == 0 || self.groups == 0 || launch.is_none() {
            return self.indices.prepare_check();
        }
        let source = self
            .indices
            .build_source(concat!(
                include_str!("cu/choices.cuh"),
                "\n",
                include_str!("cu/places.cu")
            ))
            .define("GROUPS", self.groups)
            .define("TOKENS", self.tokens)
            .define("CHOICES", self.choices)
            .define("EXPERTS", self.whole.experts)
            .define("EACH", self.whole.experts_of_block())
            .define("CAPACITY", self.whole.capacity)
            .define("HELD", self.held)
            .define("ROOM", self.room);
        let mut arguments = vec![Argument::operand(1), Argument::scratch(0), self.owners()];
        arguments.extend([self.first_block, self.first_place]);
        arguments.extend(IndexShard::fault_arguments());
        let blocks = self.whole.experts * self.groups;
        let places = Launch::kernel(source, "places", blocks, THREADS, arguments);
        let scratch = self.of_slots() + 8 * self.held * self.groups * self.room;
        let mut call = self.indices.prepare_call([places].into_iter().chain(launch).collect());
        call.scratch = scratch;
        call
    }
}
