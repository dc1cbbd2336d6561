//! Collectives and messages against a serial reference, over threads, shared memory and TCP. Ranks are threads here; over
//! shared memory and TCP each has a job membership of its own, so that everything but the launch is as between processes.

use std::time::Duration;

use crate::collectives::{check_moves, check_reductions, reference, tensor};
use graphc_ir::random::RandomStream;
use graphc_ir::types::DType;
use graphc_runtime::HostTensor;
use graphc_runtime::dist::{self, DistError, Group, ReduceOp, wait_all};
use graphc_runtime::job::{Job, JobOptions, TransportLinks, free_port};

/// The means that join the ranks.
#[derive(Clone, Copy, Debug)]
enum Way {
    Threads,
    Memory,
    Tcp,
}

const WAYS: [Way; 3] = [Way::Threads, Way::Memory, Way::Tcp];

fn job_options(ranks: u32, links: TransportLinks) -> Vec<JobOptions> {
    let url = format!("tcp://127.0.0.1:{}", free_port().expect("a port"));
    let one = |rank| {
        let mut options = JobOptions::from_url(&url, rank, ranks).expect("a URL");
        options.links = links;
        options
    };
    (0..ranks).map(one).collect()
}

/// Runs `work` on each rank; results in their order.
fn on<T: Send>(way: Way, ranks: u32, work: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let links = match way {
        Way::Threads => {
            let result = dist::spawn(ranks, |group| Ok::<_, DistError>(work(group)));
            return result.expect("no rank fails");
        }
        Way::Memory => TransportLinks::Auto,
        Way::Tcp => TransportLinks::Tcp,
    };
    std::thread::scope(|scope| {
        let work = &work;
        let one = |options| {
            scope.spawn(move || {
                let job = Job::join(options).expect("all come");
                work(Group::on(&job, Duration::from_secs(600)))
            })
        };
        let threads: Vec<_> = job_options(ranks, links).into_iter().map(one).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn every_type_op_and_size_is_as_the_serial_reference() {
    for way in WAYS {
        for ranks in 1..=5 {
            on(way, ranks, |group| {
                for dtype in DType::ALL {
                    for elements in [0, 1, 7, 4096 / dtype.size(), 5003] {
                        if !dtype.is_float8() {
                            check_reductions(&group, dtype, elements);
                        }
                        check_moves(&group, dtype, elements);
                    }
                }
            });
        }
    }
}

#[test]
fn large_buffers_go_in_segments() {
    for (way, ranks) in [(Way::Threads, 3), (Way::Memory, 2), (Way::Memory, 5), (Way::Tcp, 3)] {
        on(way, ranks, |group| {
            for dtype in [DType::F32, DType::BF16, DType::U8] {
                let elements = (1 << 20) / dtype.size() + 13;
                let all: Vec<_> =
                    (0..group.world_size()).map(|rank| tensor(dtype, elements, rank)).collect();
                for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Avg] {
                    let mut reduced = all[group.rank()].clone();
                    group.all_reduce(&mut reduced, op).expect("all reduce");
                    assert_eq!(reduced, reference(dtype, &all, op), "{op} {dtype} {ranks}");
                }
                check_moves(&group, dtype, elements);
            }
        });
    }
}

#[test]
fn sums_of_16_bit_numbers_are_rounded_once() {
    // Rounded after each summand, 1 would be lost three times.
    for way in WAYS {
        on(way, 4, |group| {
            for (dtype, large, sum) in [(DType::BF16, 256.0, 260.0), (DType::F16, 2048.0, 2052.0)] {
                for elements in [3, 5003, 1 << 19] {
                    let value = if group.rank() == 0 { large } else { 1.0 };
                    let mut data = HostTensor::from_f64(dtype, [elements], &vec![value; elements])
                        .expect("as many as the shape has");
                    group.all_reduce(&mut data, ReduceOp::Sum).expect("all reduce");
                    assert!(data.to_f64() == vec![sum; elements], "{dtype}[{elements}]");
                }
            }
        });
    }
}

/// Elements of 64 MiB, and some that make parts uneven.
const LARGE: usize = (16 << 20) + 5;

fn value(i: usize, rank: usize) -> f32 {
    ((i * 7 + rank * 3) % 101) as f32
}

/// A rank's elements `range`.
fn values(range: std::ops::Range<usize>, rank: usize) -> Vec<f32> {
    range.map(|i| value(i, rank)).collect()
}

/// Whether `data` are elements `start..` of a rank, or of the sum of ranks.
fn check(what: &str, data: &[f32], start: usize, ranks: &[usize]) {
    let right =
        |(i, &x): (usize, &f32)| x == ranks.iter().map(|&r| value(start + i, r)).sum::<f32>();
    assert!(data.iter().enumerate().all(right), "{what}");
}

fn large_reductions(group: &Group) {
    let (me, n) = (group.rank(), group.world_size());
    let all: Vec<usize> = (0..n).collect();
    let mut data = values(0..LARGE, me);
    group.all_reduce(&mut data, ReduceOp::Sum).expect("all reduce");
    check("all_reduce", &data, 0, &all);
    let mut data = values(0..LARGE, me);
    group.reduce(&mut data, n - 1, ReduceOp::Sum).expect("reduce");
    if me == n - 1 {
        check("reduce", &data, 0, &all);
    }
    // The last rank gets most of it, the first little.
    let mut counts = vec![1000; n];
    counts[n - 1] = LARGE - 1000 * (n - 1);
    let data = values(0..LARGE, me);
    let own = group.reduce_scatter(&data, Some(&counts), ReduceOp::Sum).expect("reduce scatter");
    check("reduce_scatter", &own, 1000 * me, &all);
    assert_eq!(own.len(), counts[me]);
}

fn large_moves(group: &Group) {
    let (me, n) = (group.rank(), group.world_size());
    let mut data = if me == 1 { values(0..LARGE, 1) } else { vec![0.0; LARGE] };
    group.broadcast(&mut data, 1).expect("broadcast");
    check("broadcast", &data, 0, &[1]);
    // Each rank has a little more than the one before.
    let of = |rank: usize| values(0..LARGE - 10 * (n - rank), rank);
    let counts: Vec<usize> = (0..n).map(|rank| of(rank).len()).collect();
    let mut into = vec![0.0; counts.iter().sum()];
    group.all_gather_into(&of(me), &mut into, Some(&counts)).expect("all gather");
    let mut rest = &into[..];
    for (rank, &count) in counts.iter().enumerate() {
        let (part, others) = rest.split_at(count);
        check("all_gather", part, 0, &[rank]);
        rest = others;
    }
    let gathered = group.gather(&of(me), 0).expect("gather");
    for (rank, part) in gathered.iter().flatten().enumerate() {
        check("gather", part, 0, &[rank]);
        assert_eq!(part.len(), counts[rank]);
    }
    let parts = (me == 0).then_some(gathered).flatten();
    let own = group.scatter(parts.as_deref(), 0).expect("scatter");
    check("scatter", &own, 0, &[me]);
    assert_eq!(own.len(), counts[me]);
}

fn large_exchanges(group: &Group) {
    let (me, n) = (group.rank(), group.world_size());
    // Nearly everything goes to the next rank; what comes is said to be from that place of the sender.
    let cut = |from: usize, to: usize| match to == (from + 1) % n {
        true => 100 * n..LARGE,
        false => 100 * to..100 * to + 50,
    };
    let parts: Vec<_> = (0..n).map(|to| values(cut(me, to), me)).collect();
    let incoming = group.all_to_all(&parts).expect("all to all");
    for (from, part) in incoming.iter().enumerate() {
        check("all_to_all", part, cut(from, me).start, &[from]);
        assert_eq!(part.len(), cut(from, me).len());
    }
    let (next, last) = ((me + 1) % n, (me + n - 1) % n);
    let sent = group.isend(values(0..LARGE, me), next).expect("started");
    let mut data = vec![0.0; LARGE];
    group.recv(&mut data, last).expect("received");
    check("isend and recv", &data, 0, &[last]);
    assert_eq!(sent.wait().expect("sent").len(), LARGE);
    let received = group.irecv(vec![0.0; LARGE], last).expect("started");
    group.send(&values(0..LARGE, me), next).expect("sent");
    check("send and irecv", &received.wait().expect("received"), 0, &[last]);
}

#[test]
fn sixty_four_mebibytes_arrive_by_every_operation() {
    for (way, ranks) in [(Way::Threads, 2), (Way::Memory, 2), (Way::Memory, 3), (Way::Tcp, 2)] {
        on(way, ranks, |group| {
            large_reductions(&group);
            large_moves(&group);
            large_exchanges(&group);
        });
    }
}

/// Moves of so many elements, to ranks and from all.
fn moves(group: &Group, elements: usize) {
    let (me, n) = (group.rank(), group.world_size());
    let own = values(0..elements, me);
    let mut data = own.clone();
    group.broadcast(&mut data, 2).expect("broadcast");
    check("broadcast", &data, 0, &[2]);
    let mut all = vec![0.0; n * elements];
    group.all_gather_into(&own, &mut all, None).expect("all gather");
    all.chunks(elements).enumerate().for_each(|(rank, part)| check("gather", part, 0, &[rank]));
    group.scatter_into((me == 1).then_some(&all), &mut data, 1).expect("scatter");
    check("scatter", &data, 0, &[me]);
    let mut into = vec![0.0; n * elements];
    group.all_to_all_into(&all, &mut into, None).expect("all to all");
    into.chunks(elements).for_each(|part| check("all_to_all", part, 0, &[me]));
    let (next, last) = ((me + 1) % n, (me + n - 1) % n);
    let sent = group.isend(own.clone(), next).expect("started");
    group.recv(&mut data, last).expect("received");
    check("isend", &data, 0, &[last]);
    assert_eq!(sent.wait().expect("sent"), own);
    // One after the other, as two that both send first may wait for each other.
    match me {
        0 => group.send(&own, 1).expect("sent"),
        1 => group.recv(&mut data, 0).expect("received"),
        _ => {}
    }
    check("send", &data, 0, &[if me == 1 { 0 } else { last }]);
}

#[test]
fn sizes_about_those_at_which_algorithms_change_arrive() {
    // Messages are copied into slots, into the outbox, lent, or cut into segments.
    let sizes = [16, 17, 4095, 4096, 4097, 32_768, 32_769, (1 << 20) - 1, 1 << 20];
    for way in WAYS {
        on(way, 3, |group| sizes.iter().for_each(|&elements| moves(&group, elements)));
    }
}

#[test]
fn rounding_is_the_same_on_every_way_and_in_the_order_of_ranks() {
    // Sums of these depend on the order: only ((a + b) + c) + d gives the serial reference.
    for elements in [100, 300_001] {
        let stream = |rank| RandomStream { seed: 9, key: rank, step: 0 };
        let data = |rank: usize| -> Vec<f32> {
            (0..elements).map(|i| stream(rank as u64).normal(i as u64) * 1e3).collect()
        };
        let mut expected = data(0);
        for rank in 1..4 {
            expected.iter_mut().zip(data(rank)).for_each(|(a, b)| *a += b);
        }
        for way in WAYS {
            let results = on(way, 4, |group| {
                let mut mine = data(group.rank());
                group.all_reduce(&mut mine, ReduceOp::Sum).expect("all reduce");
                mine
            });
            results.iter().for_each(|sum| assert!(sum == &expected, "{way:?} {elements}"));
        }
    }
}

#[test]
fn parts_of_different_sizes_find_their_place() {
    for way in WAYS {
        on(way, 3, |group| {
            let (n, me) = (group.world_size(), group.rank());
            let of = |rank: usize, to: usize| vec![(10 * rank + to) as i64; rank * 50_000 + to];
            let all = group.all_gather(&of(me, 0)).expect("all come");
            assert_eq!(all, (0..n).map(|rank| of(rank, 0)).collect::<Vec<_>>());
            let gathered = group.gather(&of(me, 1), 2).expect("all come");
            let expected = (me == 2).then(|| (0..n).map(|rank| of(rank, 1)).collect::<Vec<_>>());
            assert_eq!(gathered, expected);
            let parts: Vec<_> = (0..n).map(|to| of(to, 2)).collect();
            let own = group.scatter((me == 1).then_some(&parts), 1).expect("all come");
            assert_eq!(own, of(me, 2));
            let parts: Vec<_> = (0..n).map(|to| of(me, to)).collect();
            let incoming = group.all_to_all(&parts).expect("all come");
            assert_eq!(incoming, (0..n).map(|from| of(from, me)).collect::<Vec<_>>());
            let counts = [3, 0, 70_000];
            let mut into = vec![0_i32; 70_003];
            let mine = vec![me as i32 + 1; counts[me]];
            group.all_gather_into(&mine, &mut into, Some(&counts)).expect("all come");
            assert!(into[..3] == [1; 3] && into[3..].iter().all(|&x| x == 3));
            let reduced = group.reduce_scatter(&into, Some(&counts), ReduceOp::Sum);
            let reduced = reduced.expect("all come");
            assert_eq!(reduced, vec![if me == 0 { 3 } else { 9 }; counts[me]]);
        });
    }
}

#[test]
fn groups_do_not_interfere() {
    for way in WAYS {
        on(way, 5, |group| {
            let me = group.rank();
            let odd = group.new_group(&[3, 1]).expect("all agree");
            let even = group.new_group(&[0, 2, 4]).expect("all agree");
            assert_eq!((odd.is_some(), even.is_some()), (me % 2 == 1, me % 2 == 0));
            let mine = odd.or(even).expect("in one of them");
            let place = mine.ranks().iter().position(|&rank| rank as usize == me);
            assert_eq!(place, Some(mine.rank()));
            let pair = mine.new_group(&[0, 1]).expect("all agree");
            for _ in 0..20 {
                let mut sum = [me as i64];
                mine.all_reduce(&mut sum[..], ReduceOp::Sum).expect("all reduce");
                assert_eq!(sum[0], if me % 2 == 1 { 4 } else { 6 });
                let mut world = [1_u8];
                group.all_reduce(&mut world[..], ReduceOp::Sum).expect("all reduce");
                assert_eq!(world[0], 5);
                if let Some(pair) = &pair {
                    let mut root = [me as i32];
                    pair.broadcast(&mut root[..], 1).expect("both come");
                    assert_eq!(root[0] as u32, pair.ranks()[1]);
                }
            }
        });
    }
}

#[test]
fn messages_of_a_pair_keep_their_order() {
    for way in WAYS {
        on(way, 3, |group| {
            let (n, me) = (group.world_size(), group.rank());
            let sizes = [0, 1, 100_000, 3, 400_000, 7];
            let (next, last) = ((me + 1) % n, (me + n - 1) % n);
            let send = |(i, &size): (usize, &usize)| group.isend(vec![i as i32; size], next);
            let sent: Vec<_> = sizes.iter().enumerate().map(send).collect();
            let receive = |&size: &usize| group.irecv(vec![-1_i32; size], last).expect("started");
            let received: Vec<_> = sizes[..4].iter().map(receive).collect();
            let mut fifth = vec![-1_i32; sizes[4]];
            group.recv(&mut fifth, last).expect("received");
            assert!(fifth.iter().all(|&x| x == 4));
            for (i, data) in wait_all(received).expect("received").into_iter().enumerate() {
                assert_eq!(data, vec![i as i32; sizes[i]]);
            }
            let mut own = [me as i32; 7];
            group.recv(&mut own[..], last).expect("received");
            assert_eq!(own, [5; 7]);
            sent.into_iter().for_each(|work| {
                let _ = work.expect("started").wait().expect("sent");
            });
            let to_self = group.isend(vec![9_u8; 2_000_000], me).expect("started");
            let mut mine = vec![0_u8; 2_000_000];
            group.recv(&mut mine, me).expect("received");
            assert_eq!(to_self.wait().expect("sent"), mine);
        });
    }
}

#[test]
fn what_was_started_goes_on_while_the_program_does_something_else() {
    for way in WAYS {
        on(way, 2, |group| {
            let (me, peer) = (group.rank(), 1 - group.rank());
            // Larger than the queue; rank 1 receives before it comes to the barrier, in which rank 0 waits.
            let sent = (me == 0).then(|| group.isend(vec![3_i64; 1 << 20], peer).expect("started"));
            if me == 1 {
                let mut into = vec![0_i64; 1 << 20];
                group.recv(&mut into, peer).expect("received");
                assert!(into.iter().all(|&x| x == 3));
            }
            group.barrier().expect("both come");
            assert_eq!(
                sent.map(|work| work.wait().expect("sent").len()).unwrap_or(1 << 20),
                1 << 20
            );
        });
    }
}

#[test]
fn collectives_without_waiting_are_done_in_order() {
    for way in WAYS {
        on(way, 3, |group| {
            let me = group.rank();
            let start = |i: usize| {
                let data = vec![(me + i) as f32; 1 + i * 20_011];
                group.all_reduce_async(data, ReduceOp::Sum).expect("started")
            };
            let works: Vec<_> = (0..12).map(start).collect();
            let gathered = group.all_gather_async(vec![me as i32; me]).expect("started");
            let shared = group.broadcast_async(vec![me as i32], 2).expect("started");
            let barrier = group.barrier_async().expect("started");
            // One that waits comes after them.
            let mut last = [1_u8];
            group.all_reduce(&mut last[..], ReduceOp::Sum).expect("all reduce");
            assert!(last == [3] && works.iter().all(|work| work.is_done()));
            assert_eq!(gathered.wait().expect("done"), [vec![], vec![1], vec![2, 2]]);
            assert_eq!(shared.wait().expect("done"), [2]);
            barrier.wait().expect("done");
            for (i, data) in wait_all(works).expect("done").into_iter().enumerate() {
                assert_eq!(data, vec![(3 + 3 * i) as f32; 1 + i * 20_011]);
            }
        });
    }
}

#[test]
fn every_collective_is_there_without_waiting() {
    on(Way::Memory, 2, |group| {
        let (me, root) = (group.rank(), 1);
        let reduced = group.reduce_async(vec![1_i32], root, ReduceOp::Sum).expect("started");
        let into = group.all_gather_into_async(vec![me as u8], vec![9_u8; 2]).expect("started");
        let gathered = group.gather_async(vec![me as i64], root).expect("started");
        let parts = (me == root).then(|| vec![vec![5.0_f32], vec![6.0, 7.0]]);
        let scattered = group.scatter_async(parts, root).expect("started");
        let data = vec![me as i64, 10];
        let cut = group.reduce_scatter_async(data, None, ReduceOp::Sum).expect("started");
        let all = group.all_to_all_async(vec![vec![me], vec![me + 2]].map_i64()).expect("started");
        assert!(me != root || reduced.wait().expect("done") == [2]);
        assert_eq!(into.wait().expect("done"), (vec![me as u8], vec![0, 1]));
        assert_eq!(gathered.wait().expect("done"), (me == root).then(|| vec![vec![0], vec![1]]));
        assert_eq!(scattered.wait().expect("done").len(), me + 1);
        let (data, own) = cut.wait().expect("done");
        assert_eq!(data[own.start / 8..own.end / 8], [if me == 0 { 1 } else { 20 }]);
        let first = 2 * me as i64;
        assert_eq!(all.wait().expect("done"), [vec![first], vec![first + 1]]);
    });
}

trait MapI64 {
    fn map_i64(self) -> Vec<Vec<i64>>;
}

impl MapI64 for Vec<Vec<usize>> {
    fn map_i64(self) -> Vec<Vec<i64>> {
        self.into_iter().map(|part| part.into_iter().map(|x| x as i64).collect()).collect()
    }
}

/// Returns the reports of two ranks that do different things.
fn quarrel(way: Way, work: impl Fn(&Group) -> Result<(), DistError> + Sync) -> Vec<String> {
    let reports = on(way, 2, |group| work(&group).err().map(|error| error.to_string()));
    reports.into_iter().flatten().collect()
}

#[test]
fn ranks_that_disagree_are_told_so() {
    for way in WAYS {
        let sizes = quarrel(way, |group| {
            let mut data = vec![0.0_f32; 4 + group.rank()];
            group.all_reduce(&mut data, ReduceOp::Sum)
        });
        assert_eq!(sizes.len(), 2, "{way:?}");
        for report in &sizes {
            let both = report.contains("f32[4]") && report.contains("f32[5]");
            assert!(both && report.contains("all_reduce(sum)"), "{way:?}: {report}");
        }
        let ops = quarrel(way, |group| match group.rank() {
            0 => group.all_reduce(&mut [0_u8][..], ReduceOp::Max),
            _ => group.barrier(),
        });
        assert!(ops.iter().any(|report| report.contains("barrier")), "{way:?}: {ops:?}");
        let large = quarrel(way, |group| {
            let mut data = vec![0.0_f32; 3 << 20 >> (20 * group.rank())];
            group.all_reduce(&mut data, ReduceOp::Sum)
        });
        assert_eq!(large.len(), 2, "{way:?}: {large:?}");
        let types = quarrel(way, |group| match group.rank() {
            0 => group.send(&[1_i64][..], 1),
            _ => group.recv(&mut [0_i32; 2][..], 0),
        });
        let told = types.iter().any(|report| {
            report.contains("rank 1 does send of i32[2]") && report.contains("i64[1]")
        });
        assert!(told, "{way:?}: {types:?}");
    }
}

#[test]
fn wrong_arguments_are_refused_at_once() {
    on(Way::Threads, 2, |group| {
        let errors = [
            group.all_reduce(&mut [1.0_f32][..], ReduceOp::Xor).expect_err("no bits"),
            group.all_reduce(&mut [true][..], ReduceOp::Avg).expect_err("no average"),
            group.all_reduce(&mut [1_i32][..], ReduceOp::PremulSum(0.5)).expect_err("no half"),
            group.broadcast(&mut [1.0_f32][..], 2).expect_err("no rank 2"),
            group.send(&[1.0_f32][..], 7).expect_err("no rank 7"),
            group.all_to_all(&[vec![1_u8]]).expect_err("a part is missing"),
            group.all_gather_into(&[1_u8][..], &mut [0_u8; 3][..], None).expect_err("3 is not 2"),
            group.new_group(&[0, 0]).expect_err("twice"),
        ];
        let parts = [
            "floating-point",
            "truth values",
            "whole number",
            "no rank 2",
            "no rank 7",
            "1 parts for 2 ranks",
            "not 2 equal parts",
            "not different ranks",
        ];
        for (error, part) in errors.iter().zip(parts) {
            assert!(error.to_string().contains(part), "{error}");
        }
        // Nothing was communicated: the group goes on.
        group.barrier().expect("both come");
    });
}

#[test]
fn a_rank_that_fails_ends_the_communication_of_all() {
    for way in WAYS {
        // A failure ends what others have not finished: all have what they asked for before.
        let done = std::sync::Barrier::new(3);
        let reports = on(way, 3, |group| {
            let mut data = vec![1.0_f32; 300_000];
            group.all_reduce(&mut data, ReduceOp::Sum).expect("all reduce");
            done.wait();
            if group.rank() == 1 {
                group.fail("the disk is full");
                return None;
            }
            let pending = group.irecv(vec![0_u8; 9], 1).expect("started");
            let error = group.all_reduce(&mut data, ReduceOp::Sum).expect_err("rank 1 fails");
            pending.wait().expect_err("rank 1 fails");
            Some(error.to_string())
        });
        for report in reports.into_iter().flatten() {
            assert!(report.contains("rank 1: the disk is full"), "{way:?}: {report}");
        }
    }
}

#[test]
fn spawn_says_which_rank_failed() {
    let failed = dist::spawn(3, |group| {
        if group.rank() == 2 {
            return Err("no such file".to_owned());
        }
        group.barrier().map_err(|error| error.to_string())
    });
    assert_eq!(failed.expect_err("rank 2 fails").to_string(), "rank 2: no such file");
    let panicked = dist::spawn(3, |group| {
        assert!(group.rank() != 1, "an index is wrong");
        let mut data = vec![0_u8; 10];
        group.recv(&mut data, 1)
    });
    let report = panicked.expect_err("rank 1 panics").to_string();
    assert!(report.starts_with("rank 1: panicked: an index is wrong"), "{report}");
}

#[test]
fn a_group_tells_who_it_is() {
    let alone = dist::init().expect("started alone");
    assert_eq!((alone.world_size(), alone.rank(), alone.node_count()), (1, 0, 1));
    let mut data = [2.0_f32, 3.0];
    alone.all_reduce(&mut data[..], ReduceOp::Avg).expect("nobody else");
    assert_eq!(data, [2.0, 3.0]);
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("file://{}/meeting", folder.path().display());
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let url = &url;
            scope.spawn(move || {
                let group = dist::init_at(url, rank, 2).expect("both come");
                assert_eq!((group.rank(), group.world_size()), (rank as usize, 2));
                assert_eq!(group.all_gather(&[rank as i32]).expect("both come"), [[0], [1]]);
            });
        }
    });
}
