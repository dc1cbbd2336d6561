//! Products of `f32` by AVX-512, called directly: `multiply` takes another way for the larger ones where the processor has AMX.

use std::sync::Mutex;
use std::time::Duration;

use graphc_ir::random::RandomStream;

use super::super::{Hands, Layout, ProductPart, Write, dense, turned};
use crate::threads::ThreadPool;

/// Extents of one block and of several, of few rows, of no whole panels.
const EXTENTS: [[usize; 3]; 6] = [
    [64, 320, 1280],
    [17, 1030, 64],
    [96, 2048, 100],
    [90, 5, 243],
    [33, 513, 71],
    [300, 700, 130],
];

/// The factors, by rows and by columns, as the weights of a linear layer lie.
struct Factors {
    extents: [usize; 3],
    a: Vec<f32>,
    b: Vec<f32>,
}

impl Factors {
    fn new(extents: [usize; 3]) -> Self {
        let numbers = |count: usize, key| -> Vec<f32> {
            let stream = RandomStream { seed: 3, key, step: 0 };
            (0..count as u64).map(|i| stream.normal(i)).collect()
        };
        let [rows, inner, columns] = extents;
        Self { extents, a: numbers(rows * inner, 1), b: numbers(inner * columns, 2) }
    }

    fn both(&self) -> [(&[f32], Layout); 2] {
        let inner = self.extents[1];
        [(&self.a, Layout::rows(inner)), (&self.b, Layout::rows(inner).t())]
    }

    /// Whether the processor multiplies them so.
    fn are_fast(&self) -> bool {
        let layouts = self.both().map(|factor| factor.1);
        dense::is_fast(self.extents, [layouts[0], layouts[1], Layout::rows(self.extents[2])])
    }

    fn multiply_dense(&self, pool: Option<&ThreadPool>) -> Vec<f32> {
        let threads = pool.map_or(1, ThreadPool::threads);
        let mut room = vec![f32::NAN; dense::scratch_len(self.extents, threads)];
        let mut out = vec![f32::NAN; self.extents[0] * self.extents[2]];
        let to = (&mut *out, Layout::rows(self.extents[2]));
        let hands = Hands { pool, threads, room: &mut room };
        dense::multiply_dense(self.extents, 0.5, self.both(), to, Write::Replace, hands);
        out
    }

    /// The product where packing is left out, if it is so small.
    fn multiply_turned(&self, pool: Option<&ThreadPool>) -> Option<Vec<f32>> {
        let threads = pool.map_or(1, ThreadPool::threads);
        let mut room = vec![f32::NAN; turned::scratch_len(self.extents, threads)];
        let mut out = vec![f32::NAN; self.extents[0] * self.extents[2]];
        let to = Layout::rows(self.extents[2]);
        let layouts = self.both().map(|factor| factor.1);
        let hands = Hands { pool, threads, room: &mut room };
        let is_faster = turned::is_faster(self.extents, layouts, to, Write::Replace, &hands);
        is_faster.then(|| {
            turned::multiply_turned(self.extents, 0.5, self.both(), (&mut out, to), hands);
            out
        })
    }

    /// The product put together from what is given away, with a scale of 1.
    fn take_parts(&self, pool: &ThreadPool) -> Vec<f32> {
        let threads = pool.threads();
        let mut room = vec![f32::NAN; dense::scratch_len(self.extents, threads)];
        let mut area = vec![f32::NAN; self.extents[0] * self.extents[2]];
        let given = Mutex::new(area.clone());
        let take = |part: ProductPart<'_>| {
            let mut given = given.lock().expect("no panic");
            part.pieces(100).for_each(|(range, piece)| given[range].copy_from_slice(piece));
            Ok(())
        };
        let hands = Hands { pool: Some(pool), threads, room: &mut room };
        dense::in_turn(self.extents, self.both(), &mut area, hands, &[], &take).expect("no error");
        given.into_inner().expect("no panic")
    }
}

#[test]
fn products_of_singles_do_not_depend_on_threads_and_packing() {
    let pools = [1, 2, 3, 5].map(|threads| {
        ThreadPool::new(threads, Duration::ZERO, |_| String::new()).expect("threads start")
    });
    let mut turned = 0;
    for factors in EXTENTS.map(Factors::new) {
        if !factors.are_fast() {
            continue;
        }
        let alone = factors.multiply_dense(None);
        for pool in &pools {
            let (extents, threads) = (factors.extents, pool.threads());
            assert!(factors.multiply_dense(Some(pool)) == alone, "{extents:?} on {threads}");
            // Half of each number is exact.
            let parts = factors.take_parts(pool).into_iter().map(|x| x * 0.5);
            assert!(parts.eq(alone.iter().copied()), "parts of {extents:?} on {threads}");
            if let Some(found) = factors.multiply_turned(Some(pool)) {
                assert!(found == alone, "{extents:?} turned on {threads}");
                turned += 1;
            }
        }
    }
    let has_fast = Factors::new(EXTENTS[0]).are_fast();
    assert_eq!(turned, if has_fast { 5 * pools.len() } else { 0 }, "products without packing");
}
