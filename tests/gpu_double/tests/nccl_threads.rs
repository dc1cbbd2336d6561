//! Collectives of ranks that are threads of one process, beside plain loops.

mod communicators;
mod programs;

use communicators::*;
use half::{bf16, f16};
use programs::{capture, download, end_graph, launch, room, stream, synchronize, upload};

/// Values of a rank: small whole numbers, so that sums are exact in every type.
fn values(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|place| ((rank * 7 + place * 3) % 11) as f32 + 1.0).collect()
}

/// Joins the values of all ranks at each place, in the order of ranks.
fn joined(ranks: usize, count: usize, join: impl Fn(f32, f32) -> f32) -> Vec<f32> {
    let all: Vec<_> = (0..ranks).map(|rank| values(rank, count)).collect();
    let at = |place: usize| all.iter().map(|values| values[place]).reduce(&join);
    (0..count).map(|place| at(place).expect("a rank")).collect()
}

#[test]
fn all_reduce_joins_by_every_reduction() {
    for ranks in [1, 2, 3] {
        on_ranks(ranks, |me| {
            for (reduction, join) in REDUCTIONS {
                let (from, to) = (upload(&values(me.rank, 10)), room(40));
                done(me, all_reduce(from, to, 10, F32, reduction, me));
                let mut expected = joined(ranks, 10, join);
                if reduction == AVERAGE {
                    expected.iter_mut().for_each(|value| *value /= ranks as f32);
                }
                assert_eq!(download::<f32>(to, 10), expected);
            }
        });
    }
}

#[test]
fn every_type_is_added() {
    on_ranks(2, |me| {
        let mine = values(me.rank, 5);
        let sum = joined(2, 5, |a, b| a + b);
        macro_rules! check {
            ($number:ty, $element:expr, $make:expr) => {{
                let make = |values: &[f32]| -> Vec<$number> {
                    values.iter().copied().map($make).collect()
                };
                let buffer = upload(&make(&mine));
                done(me, all_reduce(buffer, buffer, 5, $element, SUM, me));
                assert_eq!(download::<$number>(buffer, 5), make(&sum));
            }};
        }
        check!(i8, 0, |value| value as i8);
        check!(u8, 1, |value| value as u8);
        check!(i32, 2, |value| value as i32);
        check!(u32, 3, |value| value as u32);
        check!(i64, 4, |value| value as i64);
        check!(u64, 5, |value| value as u64);
        check!(f16, 6, f16::from_f32);
        check!(f32, 7, |value| value);
        check!(f64, 8, f64::from);
        check!(bf16, 9, bf16::from_f32);
    });
}

#[test]
fn halves_are_added_as_f32_and_rounded_once() {
    on_ranks(3, |me| {
        // 256 + 1 is rounded down to 256 in bf16, 256 + 2 is not.
        let mine = [bf16::from_f32([256.0, 1.0, 1.0][me.rank])];
        let buffer = upload(&mine);
        done(me, all_reduce(buffer, buffer, 1, BF16, SUM, me));
        assert_eq!(download::<bf16>(buffer, 1), [bf16::from_f32(258.0)]);
    });
}

#[test]
fn blocks_go_where_they_belong() {
    on_ranks(3, |me| {
        let whole = values(me.rank, 6);
        let (from, to) = (upload(&whole), room(24));
        done(me, reduce_scatter(from, to, 2, me));
        let sum = joined(3, 6, |a, b| a + b);
        assert_eq!(download::<f32>(to, 2), sum[me.rank * 2..][..2]);

        done(me, all_gather(from, room_of(me, 72), 6, me));
        let all: Vec<f32> = (0..3).flat_map(|rank| values(rank, 6)).collect();
        assert_eq!(download::<f32>(me.kept.get(), 18), all);

        done(me, all_to_all(from, to, 2, me));
        let expected: Vec<f32> =
            (0..3).flat_map(|rank| values(rank, 6)[me.rank * 2..][..2].to_vec()).collect();
        assert_eq!(download::<f32>(to, 6), expected);
    });
}

#[test]
fn roots_give_and_get() {
    on_ranks(3, |me| {
        let from = upload(&values(me.rank, 6));
        for root in 0..3 {
            let to = room(72);
            done(me, broadcast(from, to, 6, root, me));
            assert_eq!(download::<f32>(to, 6), values(root as usize, 6));

            let own = if me.rank == root as usize { room(72) } else { 0 };
            done(me, reduce(from, own, 6, root, me));
            let gathered = if me.rank == root as usize { room(72) } else { 0 };
            done(me, gather(from, gathered, 6, root, me));
            if me.rank == root as usize {
                assert_eq!(download::<f32>(own, 6), joined(3, 6, |a, b| a + b));
                let all: Vec<f32> = (0..3).flat_map(|rank| values(rank, 6)).collect();
                assert_eq!(download::<f32>(gathered, 18), all);
            }
            done(me, scatter(from, to, 2, root, me));
            assert_eq!(download::<f32>(to, 2), values(root as usize, 6)[me.rank * 2..][..2]);
        }
    });
}

#[test]
fn documented_ways_in_place_are_allowed_and_no_others() {
    on_ranks(2, |me| {
        let block = 8 * me.rank as u64;
        let buffer = upload(&values(me.rank, 4));
        done(me, reduce_scatter(buffer, buffer + block, 2, me));
        assert_eq!(
            download::<f32>(buffer + block, 2),
            joined(2, 4, |a, b| a + b)[me.rank * 2..][..2]
        );
        let buffer = upload(&values(me.rank, 4));
        done(me, all_gather(buffer + block, buffer, 2, me));
        assert_eq!(all_reduce(buffer, buffer + 4, 3, F32, SUM, me), INVALID_ARGUMENT);
        let other = 8 * (1 - me.rank) as u64;
        assert_eq!(all_gather(buffer + other, buffer, 2, me), INVALID_ARGUMENT);
        assert_eq!(reduce_scatter(buffer, buffer + other, 2, me), INVALID_ARGUMENT);
    });
}

#[test]
fn a_group_of_sends_and_receives_exchanges() {
    on_ranks(2, |me| {
        let other = 1 - me.rank as i32;
        let (from, to) = (upload(&values(me.rank, 3)), room(12));
        assert_eq!(group_start(), 0);
        assert_eq!(send(from, 3, F32, other, me), 0);
        assert_eq!(receive(to, 3, F32, other, me), 0);
        done(me, group_end());
        assert_eq!(download::<f32>(to, 3), values(other as usize, 3));
    });
}

#[test]
fn a_chain_of_sends_needs_no_group() {
    on_ranks(3, |me| {
        let buffer = if me.rank == 0 { upload(&[5f32; 4]) } else { room(16) };
        if me.rank > 0 {
            assert_eq!(receive(buffer, 4, F32, me.rank as i32 - 1, me), 0);
        }
        if me.rank < 2 {
            assert_eq!(send(buffer, 4, F32, me.rank as i32 + 1, me), 0);
        }
        assert_eq!(synchronize(me.stream), 0);
        assert_eq!(download::<f32>(buffer, 4), [5.0; 4]);
    });
}

#[test]
fn several_collectives_of_a_group_are_one_operation() {
    on_ranks(2, |me| {
        let (a, b) = (upload(&[1f32]), upload(&[2f32]));
        assert_eq!(group_start(), 0);
        assert_eq!(all_reduce(a, a, 1, F32, SUM, me), 0);
        assert_eq!(group_start(), 0);
        assert_eq!(all_reduce(b, b, 1, F32, PRODUCT, me), 0);
        assert_eq!(group_end(), 0);
        done(me, group_end());
        assert_eq!((download::<f32>(a, 1), download::<f32>(b, 1)), (vec![2.0], vec![4.0]));
    });
}

#[test]
fn captured_collectives_are_replayed() {
    on_ranks(2, |me| {
        let buffer = upload(&[1f32, 2.0]);
        let graph = capture(me.stream, || {
            assert_eq!(all_reduce(buffer, buffer, 2, F32, SUM, me), 0);
            assert_eq!(all_reduce(buffer, buffer, 2, F32, SUM, me), 0);
        });
        for _ in 0..3 {
            launch(graph, me.stream);
        }
        done(me, all_reduce(buffer, buffer, 2, F32, MAX, me));
        assert_eq!(download::<f32>(buffer, 2), [64.0, 128.0]);
        end_graph(graph);
    });
}

#[test]
fn two_streams_of_a_rank_keep_the_order_of_calls() {
    on_ranks(2, |me| {
        let second = Rank { stream: stream(), ..me.clone() };
        let buffers: Vec<u64> = (0..24).map(|_| upload(&[1f32; 24])).collect();
        for (count, buffer) in buffers.iter().enumerate() {
            let rank = if count % 3 == 0 { me } else { &second };
            assert_eq!(all_reduce(*buffer, *buffer, count, F32, SUM, rank), 0);
        }
        assert_eq!((synchronize(second.stream), synchronize(me.stream)), (0, 0));
        for (count, buffer) in buffers.into_iter().enumerate() {
            let sums = download::<f32>(buffer, 24);
            assert!(sums[..count] == [2.0; 24][..count] && sums[count..] == [1.0; 24][count..]);
        }
    });
}

#[test]
fn a_split_orders_ranks_by_key() {
    on_ranks(4, |me| {
        let color = if me.rank == 3 { -1 } else { me.rank as i32 % 2 };
        let split = split(me, color, -(me.rank as i32));
        let Some(part) = split else { return assert_eq!(me.rank, 3) };
        let expected = [(1, 2), (0, 1), (0, 2)][me.rank];
        assert_eq!((part.rank, part.ranks), expected);
        let buffer = upload(&[me.rank as f32]);
        done(&part, all_reduce(buffer, buffer, 1, F32, SUM, &part));
        assert_eq!(download::<f32>(buffer, 1), [if color == 0 { 2.0 } else { 1.0 }]);
        destroy(&part);
    });
}

#[test]
fn one_thread_may_have_several_ranks() {
    let ranks: [Rank; 2] = init_all();
    let buffers = ranks.each_ref().map(|rank| {
        programs::use_device(rank.device);
        upload(&[3f32])
    });
    assert_eq!(group_start(), 0);
    for (rank, buffer) in ranks.iter().zip(buffers) {
        assert_eq!(all_reduce(buffer, buffer, 1, F32, SUM, rank), 0);
    }
    assert_eq!(group_end(), 0);
    for (rank, buffer) in ranks.iter().zip(buffers) {
        programs::use_device(rank.device);
        assert_eq!(synchronize(rank.stream), 0);
        assert_eq!(download::<f32>(buffer, 1), [6.0]);
        destroy(rank);
    }
}

#[test]
fn without_blocking_a_rank_comes_to_be_beside_its_caller() {
    let id = unique_id();
    let rank = begin_without_blocking(id, 0, 2);
    assert_eq!(asynchronous(rank.communicator), IN_PROGRESS);
    assert_eq!(all_reduce(16, 16, 1, F32, SUM, &rank), INVALID_ARGUMENT);
    let other = std::thread::spawn(move || init(id, 1, 2).communicator as usize);
    while asynchronous(rank.communicator) == IN_PROGRESS {
        std::thread::yield_now();
    }
    assert_eq!(asynchronous(rank.communicator), 0);
    other.join().expect("rank 1");
}

#[test]
fn a_communicator_knows_itself() {
    on_ranks(2, |me| assert_eq!(known(me), (2, me.rank as i32, me.rank as i32)));
    assert_eq!(version(), 22_803);
}
