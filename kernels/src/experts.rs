//! Tokens to experts and back: the places of tokens are found first, from the choices alone; then rows are copied.

use graphc_ir::op::Op;
use graphc_ir::ops::{ExpertPlaces, hand_out_places};

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::indices::IndexView;
use crate::parallel;
use crate::precision::{Float, parts_of};
use crate::rows;
use crate::simd::vectorized;
use crate::view::{View, ViewMut};

/// The kernel of [`Op::Dispatch`].
pub(crate) fn dispatch_tokens<T: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::Dispatch(op), [x, chosen, weights @ ..], [y]) = (op, operands, results) else {
        return Err(KernelError::bad_call(
            "dispatch",
            "takes two or three operands, gives one result",
        ));
    };
    let space = ExpertExtents::new("dispatch", x.shape, x.origin, chosen, (y.shape, y.origin))?;
    let weights = ExpertWeights::<T>::new("dispatch", weights.first(), &space)?;
    let (x, y) = (x.as_slice::<T>()?, y.as_mut_slice::<T>()?);
    let pool = cx.pool.filter(|_| parallel::count_parts(cx, y.len()) > 1);
    let parts = if pool.is_some() { cx.threads.max(1) } else { 1 };
    let room = T::scratch_len(2 * space.width);
    let (slots, rooms) = space.assign_slots(chosen, op.places(), parts * room, cx)?;
    let of_block = space.groups * space.room * space.width;
    if of_block == 0 || y.is_empty() {
        return Ok(());
    }
    let each = space.blocks.div_ceil(parts);
    let pieces = parallel::with_rooms(y.chunks_mut(each * of_block).enumerate(), rooms, room);
    parallel::run_parts(pool, pieces, &|((piece, y), room)| {
        let [of_x, of_y] = parts_of(room);
        y.fill(T::default());
        let held = piece * each..piece * each + y.len() / of_block;
        for row in 0..space.groups * space.tokens {
            space.places_of(slots, &weights, row, |block, place, weight| {
                if held.contains(&block) {
                    let to = (block - held.start) * space.groups + row / space.tokens;
                    let to = &mut y[(to * space.room + place) * space.width..][..space.width];
                    let x = T::read_values(&x[row * space.width..][..space.width], of_x);
                    // A place is one token's.
                    T::write_values(to, of_y, |to| {
                        to.fill(0.0);
                        add_scaled(x, weight, to);
                    });
                }
            });
        }
        Ok(())
    })
}

/// The kernel of [`Op::Combine`].
pub(crate) fn combine_experts<T: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::Combine(op), [y, chosen, weights @ ..], [x]) = (op, operands, results) else {
        return Err(KernelError::bad_call(
            "combine",
            "takes two or three operands, gives one result",
        ));
    };
    let space = ExpertExtents::new("combine", x.shape, x.origin, chosen, (y.shape, y.origin))?;
    let weights = ExpertWeights::<T>::new("combine", weights.first(), &space)?;
    let places = ExpertPlaces::of_shape(y.global, op.experts);
    let (y, x) = (y.as_slice::<T>()?, x.as_mut_slice::<T>()?);
    let of_y = T::scratch_len(space.width);
    space.each_token(chosen, places, cx, (x, space.width, of_y), |slots, row, x, of_y| {
        x.fill(0.0);
        space.places_of(slots, &weights, row, |block, place, weight| {
            add_scaled(T::read_values(space.row_of(y, row, block, place), of_y), weight, x);
        });
    })
}

/// The kernel of [`Op::CombineWeightsGrad`].
pub(crate) fn weights_grad<T: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::CombineWeightsGrad(op), [y, chosen, x], [out]) = (op, operands, results) else {
        let reason = "takes three operands and gives one result";
        return Err(KernelError::bad_call("combine_weights_grad", reason));
    };
    let places = (y.shape, y.origin);
    let space = ExpertExtents::new("combine_weights_grad", x.shape, x.origin, chosen, places)?;
    let &[groups, tokens, choices] = out.shape else {
        return Err(KernelError::bad_call("combine_weights_grad", "a result of other rank than 3"));
    };
    if [groups, tokens] != [space.groups, space.tokens] {
        return Err(KernelError::bad_call("combine_weights_grad", "tokens of another rank"));
    }
    let first = out.origin[2];
    let places = ExpertPlaces::of_shape(y.global, op.experts);
    let (y, x) = (y.as_slice::<T>()?, x.as_slice::<T>()?);
    let result = (out.as_mut_slice::<T>()?, choices, T::scratch_len(2 * space.width));
    space.each_token(chosen, places, cx, result, |slots, row, out, room| {
        let [of_x, of_y] = parts_of(room);
        let x = T::read_values(&x[row * space.width..][..space.width], of_x);
        for (choice, out) in out.iter_mut().enumerate() {
            *out = space.place(slots, row, first + choice).map_or(0.0, |(block, place)| {
                dot_product(T::read_values(space.row_of(y, row, block, place), of_y), x)
            });
        }
    })
}

/// Extents of the shards of tokens and of places, and where they lie.
struct ExpertExtents {
    groups: usize,
    tokens: usize,
    width: usize,
    first_token: usize,
    /// Tokens of a whole group, and choices of each.
    all_tokens: usize,
    choices: usize,
    blocks: usize,
    first_block: usize,
    room: usize,
    first_place: usize,
}

impl ExpertExtents {
    fn new(
        op: &'static str,
        tokens: &[usize],
        origin: &[usize],
        chosen: &View<'_>,
        (places, at): (&[usize], &[usize]),
    ) -> Result<Self, KernelError> {
        let misfit =
            || KernelError::bad_call(op, format!("tokens {tokens:?} and places {places:?}"));
        let (&[groups, count, width], &[of_chosen, all_tokens, choices]) = (tokens, chosen.shape)
        else {
            return Err(misfit());
        };
        let &[blocks, of_places, room, elements] = places else { return Err(misfit()) };
        if [of_chosen, of_places, elements] != [groups, groups, width]
            || chosen.shape[1..] != chosen.global[1..]
        {
            return Err(misfit());
        }
        Ok(Self {
            groups,
            tokens: count,
            width,
            first_token: origin[1],
            all_tokens,
            choices,
            blocks,
            first_block: at[0],
            room,
            first_place: at[2],
        })
    }

    /// Numbers the slot of each choice of each group: `block * capacity + place`, or -1 where the choice is dropped. Also returns room for
    /// as many `f32`.
    fn assign_slots<'a>(
        &self,
        chosen: &View<'_>,
        places: ExpertPlaces,
        room: usize,
        cx: &'a mut KernelContext<'_>,
    ) -> Result<(Slots<'a>, &'a mut [f32]), KernelError> {
        let ExpertPlaces { experts, capacity, .. } = places;
        let indices = IndexView::new("expert", chosen, experts, None)?;
        (0..indices.len()).try_for_each(|position| indices.index_at(position).map(drop))?;
        let chosen = chosen.as_slice::<i64>()?;
        let (slots, room) = cx.scratch.take_both::<i64, f32>([chosen.len() + experts, room]);
        let (slots, count) = slots.split_at_mut(chosen.len());
        let each = (self.all_tokens * self.choices).max(1);
        let of_block = places.experts_of_block() as i64;
        for (chosen, slots) in chosen.chunks(each).zip(slots.chunks_mut(each)) {
            let extents = [self.all_tokens, self.choices];
            hand_out_places(chosen, extents, places, count, |token, choice, place| {
                let index = token * self.choices + choice;
                let block = chosen[index] / of_block;
                let slot = |place: usize| block * capacity as i64 + place as i64;
                slots[index] = place.map_or(-1, slot);
            });
        }
        Ok((Slots { all: slots, capacity }, room))
    }

    /// The block and place of a choice, within the shard of places; `row` counts the shard's tokens of all groups.
    fn place(&self, slots: Slots<'_>, row: usize, choice: usize) -> Option<(usize, usize)> {
        let (group, token) = (row / self.tokens, self.first_token + row % self.tokens);
        let slot = slots.all[(group * self.all_tokens + token) * self.choices + choice];
        let slot = usize::try_from(slot).ok()?;
        let block = (slot / slots.capacity).checked_sub(self.first_block)?;
        let place = (slot % slots.capacity).checked_sub(self.first_place)?;
        (block < self.blocks && place < self.room).then_some((block, place))
    }

    /// Calls `body(block, place, weight)` for the choices of a token that have places in the shard, and weights.
    fn places_of<T: Float>(
        &self,
        slots: Slots<'_>,
        weights: &ExpertWeights<'_, T>,
        row: usize,
        mut body: impl FnMut(usize, usize, f32),
    ) {
        for choice in weights.first..weights.first + weights.choices {
            if let Some((block, place)) = self.place(slots, row, choice) {
                let weight = row * weights.choices + choice - weights.first;
                body(block, place, weights.all.map_or(1.0, |all| all[weight].value()));
            }
        }
    }

    /// The row of a place of the group of a token.
    fn row_of<'a, T>(&self, y: &'a [T], row: usize, block: usize, place: usize) -> &'a [T] {
        let group = row / self.tokens;
        &y[((block * self.groups + group) * self.room + place) * self.width..][..self.width]
    }

    /// Calls `work(slots, token, its part of the result, room)` for each token of the shard, shared among threads. Of the
    /// result there are `size` elements a token.
    fn each_token<T: Float>(
        &self,
        chosen: &View<'_>,
        places: ExpertPlaces,
        cx: &mut KernelContext<'_>,
        (result, size, room): (&mut [T], usize, usize),
        work: impl Fn(Slots<'_>, usize, &mut [f32], &mut [f32]) + Send + Sync,
    ) -> Result<(), KernelError> {
        let parts = parallel::count_parts(cx, self.groups * self.tokens * self.width);
        let (pool, all) = (cx.pool, T::scratch_len(size) + room);
        let (slots, rooms) = self.assign_slots(chosen, places, parts * all, cx)?;
        if result.is_empty() {
            return Ok(());
        }
        let each = (result.len() / size).div_ceil(parts);
        let pieces = parallel::with_rooms(result.chunks_mut(each * size).enumerate(), rooms, all);
        parallel::run_parts(pool, pieces, &|((piece, result), room)| {
            let (of_result, room) = room.split_at_mut(T::scratch_len(size));
            for (index, result) in result.chunks_mut(size).enumerate() {
                let work = |result: &mut [f32]| work(slots, piece * each + index, result, room);
                T::write_values(result, of_result, work);
            }
            Ok(())
        })
    }
}

/// The slot of each choice of each group: `block * capacity + place`, or -1 where the choice is dropped.
#[derive(Clone, Copy)]
struct Slots<'a> {
    all: &'a [i64],
    capacity: usize,
}

/// The weights of a shard's tokens, or 1 each, for a range of choices.
struct ExpertWeights<'a, T> {
    all: Option<&'a [T]>,
    first: usize,
    choices: usize,
}

impl<'a, T: Float> ExpertWeights<'a, T> {
    fn new(
        op: &'static str,
        weights: Option<&View<'a>>,
        space: &ExpertExtents,
    ) -> Result<Self, KernelError> {
        let Some(weights) = weights else {
            return Ok(Self { all: None, first: 0, choices: space.choices });
        };
        match *weights.shape {
            [groups, tokens, choices] if [groups, tokens] == [space.groups, space.tokens] => {
                let (all, first) = (Some(weights.as_slice()?), weights.origin[2]);
                Ok(Self { all, first, choices })
            }
            _ => Err(KernelError::bad_call(op, format!("weights {:?}", weights.shape))),
        }
    }
}

vectorized! {
    fn add_scaled(x: &[f32], factor: f32, to: &mut [f32]) {
        for (to, x) in to.iter_mut().zip(x) {
            *to += factor * x;
        }
    }
}

vectorized! {
    fn dot_product(x: &[f32], y: &[f32]) -> f32 {
        rows::dot_product(x, y)
    }
}
