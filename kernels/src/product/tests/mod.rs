//! Products of all types and layouts by every method that the processor has, against sums of doubles.

#[cfg(target_arch = "x86_64")]
mod dense;
#[cfg(target_arch = "x86_64")]
mod thirds;

use std::time::Duration;

use graphc_ir::random::RandomStream;
use half::{bf16, f16};

use super::task::Method;
use super::{Hands, Layout, Number, Write, blocks, multiply, room};
use crate::threads::ThreadPool;

/// Returns all methods for products of `bf16`.
fn methods() -> Vec<Method> {
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_mut, reason = "there is one method"))]
    let mut methods = vec![Method::Widened];
    #[cfg(target_arch = "x86_64")]
    if super::pairs::are_multiplied() {
        methods.push(Method::Pairs);
    }
    #[cfg(target_arch = "x86_64")]
    if super::matrices::is_available() {
        methods.push(Method::Matrices);
    }
    methods
}

/// Numbers of the type about 0, and the same as doubles.
fn numbers<T: Number>(count: usize, key: u64) -> (Vec<T>, Vec<f64>) {
    let stream = RandomStream { seed: 3, key, step: 0 };
    let values: Vec<f32> = (0..count as u64).map(|i| stream.normal(i)).collect();
    let mut rounded = vec![T::default(); count];
    T::narrow(&values, &mut rounded);
    let doubles = rounded.iter().map(|x| f64::from(x.value())).collect();
    (rounded, doubles)
}

/// Lays out rows and columns in memory as `kind` says: by row, by column, every third place, with gaps.
fn layout([rows, columns]: [usize; 2], kind: usize) -> Layout {
    match kind {
        0 => Layout::rows(columns),
        1 => Layout::rows(rows).t(),
        2 => Layout { row: 3 * columns, column: 3 },
        _ => Layout::rows(columns + 5),
    }
}

struct Case {
    extents: [usize; 3],
    kinds: [usize; 2],
    scale: f32,
    write: Write,
}

/// The products on 1, 2 and 3 threads, which must be the same to the bit, and what they should be.
fn products<A: Number, B: Number, R: Number>(method: Method, case: &Case) -> (Vec<R>, Vec<f64>) {
    let [rows, inner, columns] = case.extents;
    let (by_row, by_column) =
        (layout([rows, inner], case.kinds[0]), layout([inner, columns], case.kinds[1]));
    let (a, a_values) = numbers::<A>(by_row.last(rows, inner) + 1, 1);
    let (b, b_values) = numbers::<B>(by_column.last(inner, columns) + 1, 2);
    let to = Layout::rows(columns + 3);
    let (before, before_values) = numbers::<R>(to.last(rows, columns) + 1, 3);
    let found: Vec<Vec<R>> = [1, 2, 3]
        .into_iter()
        .map(|threads| {
            let pool = ThreadPool::new(threads, Duration::ZERO, |_| String::new()).unwrap();
            let mut room = vec![f32::NAN; blocks::scratch_len(case.extents, method, threads)];
            let mut out = before.clone();
            blocks::multiply_blocks(
                method,
                (case.extents, case.scale),
                [(A::data(&a), by_row), (B::data(&b), by_column)],
                (R::data_mut(&mut out), to),
                case.write,
                Hands { pool: Some(&pool), threads, room: &mut room },
            );
            out
        })
        .collect();
    assert!(found.iter().all(|other| *other == found[0]), "{method:?} {:?}", case.extents);
    let mut expected = before_values;
    for row in 0..rows {
        for column in 0..columns {
            let term = |k: usize| {
                a_values[row * by_row.row + k * by_row.column]
                    * b_values[k * by_column.row + column * by_column.column]
            };
            let sum = f64::from(case.scale) * (0..inner).map(term).sum::<f64>();
            let place = &mut expected[row * to.row + column];
            *place = if case.write == Write::Add { *place + sum } else { sum };
        }
    }
    (found.into_iter().next().unwrap(), expected)
}

/// Compares: allowed are an error relative to what is expected, and one relative to about the greatest that a sum may be.
fn check<A: Number, B: Number, R: Number>(method: Method, case: &Case, [of_one, of_sum]: [f64; 2]) {
    let (found, expected) = products::<A, B, R>(method, case);
    for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let found = f64::from(found.value());
        let error = (found - expected).abs();
        let allowed = of_one * expected.abs() + of_sum * (1.0 + (case.extents[1] as f64).sqrt());
        assert!(error <= allowed, "{method:?} {:?} at {place}: {found} {expected}", case.extents);
    }
}

/// Odd extents, a single one of each, whole tiles, several blocks of each side.
const EXTENTS: [[usize; 3]; 14] = [
    [1, 1, 1],
    [1, 2, 3],
    [3, 1, 2],
    [17, 33, 5],
    [16, 32, 16],
    [33, 31, 65],
    [48, 64, 80],
    [31, 7, 129],
    [1, 130, 300],
    [300, 63, 1],
    [128, 512, 64],
    [65, 513, 33],
    [130, 1100, 70],
    [530, 40, 600],
];

#[test]
fn blocks_of_any_extents_and_layouts_are_right() {
    for method in methods() {
        for (index, extents) in EXTENTS.into_iter().enumerate() {
            for kinds in [[0, 1], [1, 0], [2, 3], [3, 2]] {
                let scale = if index % 2 == 0 { 1.0 } else { -0.5 };
                let case = Case { extents, kinds, scale, write: Write::Replace };
                check::<bf16, bf16, bf16>(method, &case, [1.0 / 256.0, 1e-5]);
                check::<bf16, bf16, f32>(method, &case, [0.0, 1e-5]);
                check::<bf16, bf16, f32>(method, &Case { write: Write::Add, ..case }, [0.0, 1e-5]);
            }
        }
    }
}

#[test]
fn single_factors_are_rounded_at_most_once() {
    for method in methods() {
        for extents in EXTENTS {
            let case = Case { extents, kinds: [0, 1], scale: 1.0, write: Write::Add };
            check::<f32, bf16, f32>(method, &case, [0.0, 1.0 / 64.0]);
            check::<bf16, f32, f32>(method, &case, [0.0, 1.0 / 64.0]);
        }
    }
}

#[test]
fn f16_is_widened_exactly() {
    for extents in EXTENTS {
        for kinds in [[0, 1], [1, 0], [2, 2]] {
            let case = Case { extents, kinds, scale: 1.0, write: Write::Replace };
            check::<f16, f16, f16>(Method::Widened, &case, [1.0 / 2048.0, 1e-5]);
            check::<f16, f32, f32>(Method::Widened, &case, [0.0, 1e-5]);
        }
    }
}

#[test]
fn small_integers_are_multiplied_exactly() {
    let [rows, inner, columns] = [70, 600, 90];
    let number = |i: usize| (i * 7919 % 17) as f32 - 8.0;
    let a: Vec<bf16> = (0..rows * inner).map(|i| bf16::from_f32(number(i))).collect();
    let b: Vec<bf16> = (0..inner * columns).map(|i| bf16::from_f32(number(i + 3))).collect();
    for method in methods() {
        let mut room = vec![0.0; blocks::scratch_len([rows, inner, columns], method, 1)];
        let mut out = vec![0.0f32; rows * columns];
        blocks::multiply_blocks(
            method,
            ([rows, inner, columns], 1.0),
            [(bf16::data(&a), Layout::rows(inner)), (bf16::data(&b), Layout::rows(columns))],
            (f32::data_mut(&mut out), Layout::rows(columns)),
            Write::Replace,
            Hands::own(&mut room),
        );
        for row in 0..rows {
            for column in 0..columns {
                let sum: f32 = (0..inner)
                    .map(|k| number(row * inner + k) * number(k * columns + column + 3))
                    .sum();
                assert_eq!(out[row * columns + column], sum, "{method:?} {row} {column}");
            }
        }
    }
}

#[test]
fn what_is_not_a_number_or_not_finite_stays_in_its_row_and_column() {
    let extents = [20, 40, 35];
    let [rows, inner, columns] = extents;
    for method in methods() {
        for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut a = vec![bf16::ONE; rows * inner];
            a[7 * inner + 39] = bf16::from_f32(special);
            let mut b = vec![bf16::ONE; inner * columns];
            b[3 * columns + 34] = bf16::from_f32(special);
            let mut room = vec![0.0; blocks::scratch_len(extents, method, 1)];
            let mut out = vec![bf16::ZERO; rows * columns];
            blocks::multiply_blocks(
                method,
                (extents, 1.0),
                [(bf16::data(&a), Layout::rows(inner)), (bf16::data(&b), Layout::rows(columns))],
                (bf16::data_mut(&mut out), Layout::rows(columns)),
                Write::Replace,
                Hands::own(&mut room),
            );
            for row in 0..rows {
                for column in 0..columns {
                    let found = out[row * columns + column].to_f32();
                    let expected = if row == 7 || column == 34 { special } else { inner as f32 };
                    let same = found == expected || found.is_nan() && expected.is_nan();
                    assert!(same, "{method:?} at {row} {column}: {found}");
                }
            }
        }
    }
}

/// Around the extents at which `gemm` goes another way: of 64 and fewer rows and columns, one, dot products, two places along
/// the inner extent, several steps along it.
const SINGLES: [[usize; 3]; 20] = [
    [128, 784, 300],
    [128, 2048, 10],
    [700, 128, 10],
    [130, 700, 97],
    [65, 513, 300],
    [64, 1024, 130],
    [300, 700, 5],
    [3, 600, 1000],
    [2, 100, 500],
    [1, 500, 900],
    [900, 500, 1],
    [96, 1030, 96],
    [33, 600, 64],
    [64, 600, 64],
    [4, 520, 66],
    [128, 2, 128],
    [500, 1, 70],
    [2, 700, 130],
    [8, 64, 8],
    [777, 40, 60],
];

#[test]
fn products_of_singles_are_the_same_on_any_number_of_threads() {
    let pools = [2, 3, 5, 8].map(|threads| {
        ThreadPool::new(threads, Duration::ZERO, |_| String::new()).expect("threads start")
    });
    for (index, extents) in SINGLES.into_iter().enumerate() {
        let [rows, inner, columns] = extents;
        for kinds in [[0, 0], [0, 1], [1, 0], [1, 1]] {
            let of = |kind, extents: [usize; 2]| {
                if kind == 0 { Layout::rows(extents[1]) } else { Layout::rows(extents[0]).t() }
            };
            let (by_row, by_column) = (of(kinds[0], [rows, inner]), of(kinds[1], [inner, columns]));
            let (a, _) = numbers::<f32>(rows * inner, 1);
            let (b, _) = numbers::<f32>(inner * columns, 2);
            let by_rows = (index + kinds[0]) % 2 == 0;
            let to = if by_rows { Layout::rows(columns + 3) } else { Layout::rows(rows).t() };
            let write = if kinds[1] == 0 { Write::Replace } else { Write::Add };
            let (before, _) = numbers::<f32>(to.last(rows, columns) + 1, 3);
            let product = |pool: Option<&ThreadPool>| {
                let mut out = before.clone();
                let threads = pool.map_or(1, ThreadPool::threads);
                let mut room = vec![f32::NAN; room::<f32, f32, f32>(extents, threads)];
                let hands = Hands { pool, threads, room: &mut room };
                multiply(extents, 0.5, (&a, by_row), (&b, by_column), (&mut out, to), write, hands);
                out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            let alone = product(None);
            for pool in &pools {
                let same = product(Some(pool)) == alone;
                assert!(same, "{extents:?} {kinds:?} on {} threads", pool.threads());
            }
        }
    }
}

#[test]
fn products_of_few_rows_are_the_same_without_packing() {
    let pools = [2, 3].map(|threads| {
        ThreadPool::new(threads, Duration::ZERO, |_| String::new()).expect("threads start")
    });
    let shapes = [[64, 320, 1280], [17, 1030, 64], [96, 2048, 100], [90, 5, 243], [33, 513, 71]];
    for [rows, inner, columns] in shapes {
        let extents = [rows, inner, columns];
        let (by_row, by_column) = (Layout::rows(inner + 2), Layout::rows(inner + 1).t());
        let (a, _) = numbers::<f32>(by_row.last(rows, inner) + 1, 1);
        let (b, _) = numbers::<f32>(by_column.last(inner, columns) + 1, 2);
        let to = Layout::rows(columns + 3);
        let product = |pool: Option<&ThreadPool>, write, before: f32| {
            let mut out = vec![before; to.last(rows, columns) + 1];
            let threads = pool.map_or(1, ThreadPool::threads);
            let mut room = vec![f32::NAN; room::<f32, f32, f32>(extents, threads)];
            let hands = Hands { pool, threads, room: &mut room };
            multiply(extents, 0.5, (&a, by_row), (&b, by_column), (&mut out, to), write, hands);
            // What lies between rows is nobody's.
            let rows = out.chunks(to.row).flat_map(|row| &row[..columns]);
            rows.map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        // What is added is packed.
        let packed = product(None, Write::Add, 0.0);
        for pool in [None, Some(&pools[0]), Some(&pools[1])] {
            assert!(product(pool, Write::Replace, f32::NAN) == packed, "{extents:?}");
        }
    }
}
