//! Products of thirds against sums of doubles, and against the products of `f32` that they take the place of.

use std::sync::Mutex;
use std::time::Duration;

use graphc_ir::random::RandomStream;

use super::super::{
    Hands, Layout, ProductPart, Write, dense, in_turn, matrices, multiply, room, thirds,
};
use crate::threads::ThreadPool;

/// Extents of one block and of several, of one step along the inner extent and of several, of no whole tiles.
const EXTENTS: [[usize; 3]; 7] = [
    [64, 32, 64],
    [64, 64, 96],
    [66, 257, 70],
    [130, 1100, 75],
    [530, 90, 600],
    [97, 2100, 520],
    [256, 256, 1030],
];

fn numbers(count: usize, key: u64) -> Vec<f32> {
    let stream = RandomStream { seed: 5, key, step: 0 };
    (0..count as u64).map(|i| stream.normal(i)).collect()
}

/// A product as doubles: of the numbers, and of their magnitudes.
fn sum_doubles(
    [rows, inner, columns]: [usize; 3],
    a: &[f32],
    b: &[f32],
) -> impl Iterator<Item = [f64; 2]> {
    (0..rows * columns).map(move |at| {
        let terms = (0..inner).map(|k| {
            f64::from(a[at / columns * inner + k]) * f64::from(b[k * columns + at % columns])
        });
        terms.fold([0.0, 0.0], |[sum, all], term| [sum + term, all + term.abs()])
    })
}

fn multiply_by_rows(extents: [usize; 3], a: &[f32], b: &[f32]) -> Vec<f32> {
    let [rows, inner, columns] = extents;
    let mut out = vec![f32::NAN; rows * columns];
    let mut room = vec![f32::NAN; room::<f32, f32, f32>(extents, 1)];
    let (a, b) = ((a, Layout::rows(inner)), (b, Layout::rows(columns)));
    let to = (&mut *out, Layout::rows(columns));
    multiply(extents, 1.0, a, b, to, Write::Replace, Hands::own(&mut room));
    out
}

/// The same product by AVX-512 in `f32`.
fn multiply_by_dense(extents: [usize; 3], a: &[f32], b: &[f32]) -> Vec<f32> {
    let [rows, inner, columns] = extents;
    let mut out = vec![f32::NAN; rows * columns];
    let mut room = vec![f32::NAN; dense::scratch_len(extents, 1)];
    let factors = [(a, Layout::rows(inner)), (b, Layout::rows(columns))];
    let to = (&mut *out, Layout::rows(columns));
    dense::multiply_dense(extents, 1.0, factors, to, Write::Replace, Hands::own(&mut room));
    out
}

/// The square root of the mean of squared errors, and the greatest, each relative to the sum of magnitudes.
fn measure_errors(found: &[f32], expected: impl Iterator<Item = [f64; 2]>) -> [f64; 2] {
    let errors =
        found.iter().zip(expected).map(|(&found, [sum, all])| (f64::from(found) - sum) / all);
    let [squares, greatest] = errors.fold([0.0, 0.0f64], |[squares, greatest], error| {
        [squares + error * error, greatest.max(error.abs())]
    });
    [(squares / found.len() as f64).sqrt(), greatest]
}

#[test]
fn thirds_are_as_exact_as_singles() {
    if !matrices::is_available() {
        return;
    }
    for extents in EXTENTS {
        let [rows, inner, columns] = extents;
        let layouts = [inner, columns, columns].map(Layout::rows);
        assert!(thirds::is_fast(extents, layouts), "{extents:?} is multiplied by thirds");
        let normal = [numbers(rows * inner, 1), numbers(inner * columns, 2)];
        // Of many magnitudes; and of one sign, where errors of rounding do not cancel each other.
        let spread = |x: f32| x * 2.0f32.powi((x * 1e4) as i32 % 20);
        let spread = normal.clone().map(|all| all.into_iter().map(spread).collect());
        let positive = normal.clone().map(|all| all.into_iter().map(f32::abs).collect());
        for [a, b] in [normal, spread, positive] {
            let measure = |found: Vec<f32>| measure_errors(&found, sum_doubles(extents, &a, &b));
            let [mean, greatest] = measure(multiply_by_rows(extents, &a, &b));
            let [dense_mean, dense_greatest] = measure(multiply_by_dense(extents, &a, &b));
            assert!(mean <= dense_mean, "{extents:?}: {mean} in the mean, not {dense_mean}");
            assert!(greatest <= dense_greatest, "{extents:?}: {greatest}, not {dense_greatest}");
        }
    }
}

#[test]
fn whole_numbers_of_24_bits_are_multiplied_exactly() {
    let extents = [64, 300, 96];
    let [rows, inner, columns] = extents;
    // One large number in each row meets powers of two: no bit may be missing.
    let mut a = vec![0.0; rows * inner];
    (0..rows).for_each(|row| a[row * inner + row * 4] = (0xFF_FFFF - 77 * row as u32) as f32);
    let b: Vec<f32> = (0..inner * columns).map(|i| (1u32 << (i % 7)) as f32).collect();
    let found = multiply_by_rows(extents, &a, &b);
    for (at, found) in found.into_iter().enumerate() {
        let [row, column] = [at / columns, at % columns];
        let expected = a[row * inner + row * 4] * b[row * 4 * columns + column];
        assert_eq!(found, expected, "row {row}, column {column}");
    }
}

#[test]
fn numbers_that_thirds_do_not_hold_are_multiplied_as_singles() {
    let extents = [70, 600, 80];
    let [rows, inner, columns] = extents;
    let all_ones = f32::from_bits(u32::MAX);
    for special in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, all_ones, f32::MAX, -3.4e38] {
        let mut a = vec![0.25; rows * inner];
        let mut b = vec![0.5; inner * columns];
        // One in the first step along the inner extent, one in the last.
        (a[7 * inner + 39], b[599 * columns + 34]) = (special, special);
        for write in [Write::Replace, Write::Add] {
            let mut out = vec![1.0; rows * columns];
            let mut room = vec![f32::NAN; room::<f32, f32, f32>(extents, 1)];
            let factors = ((&*a, Layout::rows(inner)), (&*b, Layout::rows(columns)));
            let to = (&mut *out, Layout::rows(columns));
            multiply(extents, 1.0, factors.0, factors.1, to, write, Hands::own(&mut room));
            for (at, found) in out.into_iter().enumerate() {
                let of_row = if at / columns == 7 { 0.5 * special } else { 0.0 };
                let of_column = if at % columns == 34 { 0.25 * special } else { 0.0 };
                let before = if write == Write::Add { 1.0 } else { 0.0 };
                let expected = of_row + of_column + before + 0.125 * inner as f32;
                let same = (found - expected).abs() <= 1e-6 * expected.abs() || found == expected;
                let same = same || found.is_nan() && expected.is_nan();
                assert!(same, "{special} at {at}: {found}, not {expected}");
            }
        }
    }
}

#[test]
fn parts_that_are_given_away_are_the_product() {
    let pools = [1, 2, 3].map(|threads| {
        ThreadPool::new(threads, Duration::ZERO, |_| String::new()).expect("threads start")
    });
    for extents in EXTENTS {
        let [rows, inner, columns] = extents;
        let (a, b) = (numbers(rows * inner, 1), numbers(inner * columns, 2));
        let whole = multiply_by_rows(extents, &a, &b);
        for pool in &pools {
            let threads = pool.threads();
            let mut area = vec![f32::NAN; rows * columns];
            let mut room = vec![f32::NAN; room::<f32, f32, f32>(extents, threads)];
            let hands = Hands { pool: Some(pool), threads, room: &mut room };
            let given = Mutex::new(vec![f32::NAN; rows * columns]);
            let take = |part: ProductPart<'_>| {
                let mut given = given.lock().expect("no panic");
                part.pieces(500).for_each(|(range, piece)| given[range].copy_from_slice(piece));
                Ok(())
            };
            let factors = [(&*a, Layout::rows(inner)), (&*b, Layout::rows(columns))];
            in_turn(extents, factors, &mut area, hands, (&[], &take)).expect("no error");
            assert!(given.into_inner().expect("no panic") == whole, "{extents:?} on {threads}");
        }
    }
}

#[test]
fn factors_and_products_lie_by_rows_or_by_columns() {
    for extents in [[70, 90, 130], [300, 1050, 64]] {
        let [rows, inner, columns] = extents;
        let lay = |by_rows: bool, extents: [usize; 2]| match by_rows {
            true => Layout::rows(extents[1] + 3),
            false => Layout::rows(extents[0] + 2).t(),
        };
        for kind in 0..8 {
            let [of_a, of_b, to] =
                [(1, [rows, inner]), (2, [inner, columns]), (4, [rows, columns])]
                    .map(|(bit, extents)| lay(kind & bit == 0, extents));
            let a = numbers(of_a.last(rows, inner) + 1, 1);
            let b = numbers(of_b.last(inner, columns) + 1, 2);
            let before = numbers(to.last(rows, columns) + 1, 3);
            let mut out = before.clone();
            let mut room = vec![f32::NAN; room::<f32, f32, f32>(extents, 1)];
            let (scale, hands) = (-0.5, Hands::own(&mut room));
            multiply(extents, scale, (&a, of_a), (&b, of_b), (&mut out, to), Write::Add, hands);
            for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |c| (row, c))) {
                let term = |k: usize| {
                    f64::from(a[row * of_a.row + k * of_a.column])
                        * f64::from(b[k * of_b.row + column * of_b.column])
                };
                let at = row * to.row + column * to.column;
                let expected = f64::from(before[at]) - 0.5 * (0..inner).map(term).sum::<f64>();
                let error = (f64::from(out[at]) - expected).abs();
                let limit = match matrices::is_available() {
                    true => 1e-6 * (inner as f64).sqrt(),
                    // Elsewhere sums of f32 are made term by term: rounded as often as there are terms, each time by a part of the sum.
                    false => 2.0 * f64::from(f32::EPSILON) * inner as f64,
                };
                assert!(error < limit, "{extents:?} {kind}, row {row}, column {column}: {error}");
            }
        }
    }
}
