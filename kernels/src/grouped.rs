//! Products of experts with the places of the tokens that chose them: a product for each run of places, as long as the run is.

use std::ops::Range;

use graphc_ir::op::Op;
use graphc_ir::ops::{
    ExpertPlaces, GroupedMatMul, GroupedMatMulGrad, find_run_ends, places_of_expert,
};

use self::float8::ScalesOfProduct;
pub(crate) use self::float8::{grouped_matmul_float8, grouped_matmul_grad_float8};

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::indices::IndexView;
use crate::parallel;
use crate::product::{Hands, Layout, Number, Write, multiply, room, threads_for};
use crate::view::{View, ViewMut};

mod float8;

/// The kernel of [`Op::GroupedMatMul`] for numbers of 16 and 32 bits.
pub(crate) fn grouped_matmul<T: Number>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::GroupedMatMul(op), [x, matrices, chosen], [y]) = (op, operands, results) else {
        return Err(KernelError::bad_call("grouped_matmul", "takes three operands, one result"));
    };
    let product = GroupedProduct::new(op, [x, matrices, chosen], y)?;
    let factors = [x.as_slice::<T>()?, matrices.as_slice::<T>()?];
    product.multiply(factors, y.as_mut_slice::<T>()?, None, cx)
}

/// The kernel of [`Op::GroupedMatMulGrad`] for numbers of 16 and 32 bits.
pub(crate) fn grouped_matmul_grad<T: Number>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::GroupedMatMulGrad(op), [x, y, chosen], [out]) = (op, operands, results) else {
        let name = "grouped_matmul_grad";
        return Err(KernelError::bad_call(name, "takes three operands, one result"));
    };
    let product = GroupedOuterProduct::new(op, [x, y, chosen], out)?;
    let factors = [x.as_slice::<T>()?, y.as_slice::<T>()?];
    product.multiply(factors, out.as_mut_slice::<T>()?, None, cx)
}

/// A product of places with the matrices of their experts.
struct GroupedProduct {
    runs: ExpertRuns,
    /// Elements of a place before and behind the product.
    inner: usize,
    columns: usize,
    /// How the matrices lie.
    layout: Layout,
}

impl GroupedProduct {
    fn new(
        op: &GroupedMatMul,
        [x, matrices, chosen]: [&View<'_>; 3],
        y: &ViewMut<'_>,
    ) -> Result<Self, KernelError> {
        let name = "grouped_matmul";
        let runs = ExpertRuns::new(name, x, chosen, matrices.global[0])?;
        let misfit = || misfit(name, [x.shape, matrices.shape, y.shape]);
        let &[held, first, second] = matrices.shape else { return Err(misfit()) };
        let (inner, columns, layout) = match op.transpose_b {
            true => (second, first, Layout { row: 1, column: second }),
            false => (first, second, Layout::rows(second)),
        };
        let fits = inner == x.shape[3] && held == runs.blocks * runs.experts_of_block();
        if !fits || *y.shape != [runs.blocks, runs.groups, runs.held_places, columns] {
            return Err(misfit());
        }
        Ok(Self { runs, inner, columns, layout })
    }

    /// Multiplies; behind it, elements are divided by the scales of places and of matrices, if there are such.
    fn multiply<T: Number>(
        &self,
        [x, matrices]: [&[T]; 2],
        y: &mut [T],
        scales: Option<&ScalesOfProduct<'_>>,
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        let &Self { ref runs, inner, columns, layout } = self;
        if y.is_empty() || inner == 0 {
            y.fill(T::default());
            return Ok(());
        }
        let (of_x, of_y) = (runs.held_places * inner, runs.held_places * columns);
        let work = |index: usize, y: &mut [T], (pool, threads, room): Workers<'_, '_>| {
            let x = &x[index * of_x..][..of_x];
            let (block, group) = (index / runs.groups, index % runs.groups);
            let mut taken = 0;
            for (expert, run) in runs.of_block(block, group) {
                let a = (&x[run.start * inner..run.end * inner], Layout::rows(inner));
                let b = (&matrices[expert * inner * columns..], layout);
                let to = &mut y[run.start * columns..run.end * columns];
                let hands = Hands { pool, threads, room: &mut *room };
                let extents = [run.len(), inner, columns];
                multiply(
                    extents,
                    1.0,
                    a,
                    b,
                    (&mut *to, Layout::rows(columns)),
                    Write::Replace,
                    hands,
                );
                if let Some(scales) = scales {
                    scales.divide_run([block, group, run.start], expert, to, columns);
                }
                taken = run.end;
            }
            y[taken * columns..].fill(T::default());
        };
        let room = |threads| {
            let lengths = runs.lengths();
            lengths.map(|rows| room::<T, T, T>([rows, inner, columns], threads)).max().unwrap_or(0)
        };
        share_out(y, of_y, runs.taken * inner * columns, (&room, &work), cx)
    }
}

/// For each expert the sum over its places of the outer products of two factors.
struct GroupedOuterProduct {
    runs: ExpertRuns,
    /// Elements of a place of both factors.
    rows: usize,
    columns: usize,
}

impl GroupedOuterProduct {
    fn new(
        op: &GroupedMatMulGrad,
        [x, y, chosen]: [&View<'_>; 3],
        out: &ViewMut<'_>,
    ) -> Result<Self, KernelError> {
        let name = "grouped_matmul_grad";
        let runs = ExpertRuns::new(name, x, chosen, op.experts)?;
        let misfit = || misfit(name, [x.shape, y.shape, out.shape]);
        let (&[held, rows, columns], &[.., of_y]) = (out.shape, y.shape) else {
            return Err(misfit());
        };
        let of_experts = held == runs.blocks * runs.experts_of_block();
        if !of_experts || [rows, columns] != [x.shape[3], of_y] || x.shape[..3] != y.shape[..3] {
            return Err(misfit());
        }
        Ok(Self { runs, rows, columns })
    }

    /// Multiplies; sums are divided by the scales of both factors, if there are such.
    fn multiply<T: Number>(
        &self,
        [x, y]: [&[T]; 2],
        out: &mut [T],
        scales: Option<&ScalesOfProduct<'_>>,
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        let &Self { ref runs, rows, columns } = self;
        let size = rows * columns;
        // Sums over groups are f32, whatever the type of the factors.
        let of_sums = T::scratch_len(size);
        let work = |index: usize, out: &mut [T], (pool, threads, room): Workers<'_, '_>| {
            let (of_sums, room) = room.split_at_mut(of_sums);
            T::write_values(out, of_sums, |sums| {
                let mut write = Write::Replace;
                for group in 0..runs.groups {
                    let (block, run) = runs.of_expert(index, group);
                    if run.is_empty() {
                        continue;
                    }
                    let first = (block * runs.groups + group) * runs.held_places;
                    let places = first + run.start..first + run.end;
                    let (of_x, of_y) = (places.start * rows, places.start * columns);
                    let a = (&x[of_x..places.end * rows], Layout::rows(rows).t());
                    let b = (&y[of_y..places.end * columns], Layout::rows(columns));
                    let to = (&mut *sums, Layout::rows(columns));
                    let hands = Hands { pool, threads, room: &mut *room };
                    multiply([rows, run.len(), columns], 1.0, a, b, to, write, hands);
                    write = Write::Add;
                }
                if write == Write::Replace {
                    sums.fill(0.0);
                }
                if let Some(scales) = scales {
                    scales.divide_sums(index / runs.experts_of_block(), sums, columns);
                }
            });
        };
        let room = |threads| {
            let lengths = runs.lengths();
            let of_run = lengths.map(|inner| room::<T, T, f32>([rows, inner, columns], threads));
            of_sums + of_run.max().unwrap_or(0)
        };
        share_out(out, size, runs.taken * size, (&room, &work), cx)
    }
}

fn misfit(op: &'static str, [a, b, result]: [&[usize]; 3]) -> KernelError {
    KernelError::bad_call(op, format!("{a:?} and {b:?} do not give {result:?}"))
}

/// Those who multiply: the threads, how many they are, and memory to work in.
type Workers<'a, 'b> = (Option<&'a crate::threads::ThreadPool>, usize, &'b mut [f32]);

/// Makes the piece with an index of a result, whose elements it gets.
type MultiplyPiece<'a, T> = dyn Fn(usize, &mut [T], Workers<'_, '_>) + Send + Sync + 'a;

/// Calls `work` with the index and the elements of each piece of `size` elements of a result: of several pieces threads take some each, and
/// one piece is shared by all. `room` says how many `f32` so many threads work in.
fn share_out<T: Number>(
    result: &mut [T],
    size: usize,
    multiplications: usize,
    (room, work): (&dyn Fn(usize) -> usize, &MultiplyPiece<'_, T>),
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    if result.is_empty() {
        return Ok(());
    }
    let threads = threads_for(cx, multiplications);
    let pool = cx.pool.filter(|_| threads > 1);
    let count = result.len() / size;
    if pool.is_none() || count < threads {
        let memory = cx.scratch.take::<f32>(room(threads));
        for (index, piece) in result.chunks_mut(size).enumerate() {
            work(index, piece, (pool, threads, &mut *memory));
        }
        return Ok(());
    }
    let (each, own) = (count.div_ceil(threads), room(1));
    let memory = cx.scratch.take::<f32>(own * threads);
    let pieces = result.chunks_mut(each * size).enumerate();
    let pieces = parallel::with_rooms(pieces, memory, own);
    parallel::run_parts(pool, pieces, &|((part, pieces), memory)| {
        for (index, piece) in pieces.chunks_mut(size).enumerate() {
            work(part * each + index, piece, (None, 1, &mut *memory));
        }
        Ok(())
    })
}

/// The runs of places that the experts of a shard have.
struct ExpertRuns {
    places: ExpertPlaces,
    /// For each group the end of each expert's run, of all experts.
    ends: Vec<i64>,
    groups: usize,
    blocks: usize,
    first_block: usize,
    held_places: usize,
    first_place: usize,
    /// The places of all runs of the shard.
    taken: usize,
}

impl ExpertRuns {
    fn new(
        op: &'static str,
        x: &View<'_>,
        chosen: &View<'_>,
        experts: usize,
    ) -> Result<Self, KernelError> {
        let (&[blocks, groups, held_places, _], &[of_chosen, tokens, choices]) =
            (x.shape, chosen.shape)
        else {
            return Err(KernelError::bad_call(op, "places of another rank than 4"));
        };
        if of_chosen != groups || chosen.shape[1..] != chosen.global[1..] {
            return Err(KernelError::bad_call(op, format!("choices {:?}", chosen.shape)));
        }
        let indices = IndexView::new("expert", chosen, experts, None)?;
        (0..indices.len()).try_for_each(|position| indices.index_at(position).map(drop))?;
        let places = ExpertPlaces { experts, blocks: x.global[0], capacity: x.global[2] };
        let mut ends = vec![0; groups * experts];
        let each = (tokens * choices).max(1);
        let chosen = chosen.as_slice::<i64>()?.chunks(each);
        for (chosen, ends) in chosen.zip(ends.chunks_mut(experts.max(1))) {
            find_run_ends(chosen, places, ends);
        }
        let (first_block, first_place) = (x.origin[0], x.origin[2]);
        let mut runs =
            Self { places, ends, groups, blocks, first_block, held_places, first_place, taken: 0 };
        runs.taken = runs.lengths().sum();
        Ok(runs)
    }

    fn experts_of_block(&self) -> usize {
        self.places.experts_of_block()
    }

    /// The places of an expert that the shard has, counted from its first one. `expert` counts the shard's experts.
    fn of_expert(&self, expert: usize, group: usize) -> (usize, Range<usize>) {
        let ends = &self.ends[group * self.places.experts..][..self.places.experts];
        let whole = self.first_block * self.experts_of_block() + expert;
        let run = places_of_expert(self.places, ends, whole);
        let local = |place: usize| place.saturating_sub(self.first_place).min(self.held_places);
        (expert / self.experts_of_block(), local(run.start)..local(run.end))
    }

    /// The experts of a block of the shard that have places of a group there, with these.
    fn of_block(&self, block: usize, group: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        let each = self.experts_of_block();
        (block * each..(block + 1) * each)
            .map(move |expert| (expert, self.of_expert(expert, group).1))
            .filter(|(_, run)| !run.is_empty())
    }

    /// The lengths of all runs of the shard that have places.
    fn lengths(&self) -> impl Iterator<Item = usize> {
        let of_block = |index: usize| self.of_block(index / self.groups, index % self.groups);
        (0..self.blocks * self.groups).flat_map(of_block).map(|(_, run)| run.len())
    }
}
