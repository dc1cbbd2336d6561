//! Misuse of NCCL: each rank is told, and nothing hangs. Each test is a process of its own, as an error stays.

mod communicators;
mod programs;

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use communicators::*;
use gpu_double::nccl::exports::*;
use programs::{alone, capture, end_graph, room, stream, synchronize, upload, use_device};

/// Runs two ranks as threads of a process of their own, which have little patience; gives what they said. Each gets
/// eight values, with room for as many behind them, when both are there: after an error there is no memory any more.
fn ranks(name: &str, body: impl Fn(&Rank, u64) + Sync) -> Option<String> {
    alone(name, || {
        let (id, both) = (unique_id(), Barrier::new(2));
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let (body, both) = (&body, &both);
                scope.spawn(move || {
                    let me = init(id, rank, 2);
                    let buffer = room(64);
                    programs::write(buffer, &[1f32; 8]);
                    both.wait();
                    body(&me, buffer);
                });
            }
        });
    })
}

/// Checks that what a process said contains all of some texts.
fn tells(error: Option<String>, texts: &[&str]) {
    if let Some(error) = error {
        for text in texts {
            assert!(error.contains(text), "no {text:?} in:\n{error}");
        }
    }
}

#[test]
fn another_count_is_told() {
    let error = ranks("another_count_is_told", |me, buffer| {
        let count = 4 + me.rank;
        assert_eq!(all_reduce(buffer, buffer, count, F32, SUM, me), 0);
        assert_ne!(synchronize(me.stream), 0);
        while asynchronous(me.communicator) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(all_reduce(buffer, buffer, 1, F32, SUM, me), INVALID_USAGE);
    });
    tells(error, &["collective 0 is AllReduce(Sum) of", "4 x F32 on rank 0", "5 x F32 on rank 1"]);
}

#[test]
fn another_type_is_told() {
    let error = ranks("another_type_is_told", |me, buffer| {
        assert_eq!(all_reduce(buffer, buffer, 4, [F32, 2][me.rank], SUM, me), 0);
        assert_ne!(synchronize(me.stream), 0);
    });
    tells(error, &["AllReduce(Sum) of 4 x F32 on rank 0", "AllReduce(Sum) of 4 x I32 on rank 1"]);
}

#[test]
fn another_reduction_is_told() {
    let error = ranks("another_reduction_is_told", |me, buffer| {
        assert_eq!(all_reduce(buffer, buffer, 4, F32, [SUM, MAX][me.rank], me), 0);
        assert_ne!(synchronize(me.stream), 0);
    });
    tells(error, &["AllReduce(Sum) of 4 x F32 on rank 0", "AllReduce(Max) of 4 x F32 on rank 1"]);
}

#[test]
fn another_root_is_told() {
    let error = ranks("another_root_is_told", |me, buffer| {
        assert_eq!(broadcast(buffer, buffer, 4, me.rank as i32, me), 0);
        assert_ne!(synchronize(me.stream), 0);
    });
    tells(
        error,
        &["Broadcast from 0 of 4 x F32 on rank 0", "Broadcast from 1 of 4 x F32 on rank 1"],
    );
}

#[test]
fn another_order_is_told() {
    let error = ranks("another_order_is_told", |me, buffer| {
        let all = buffer + 32;
        for step in 0..2 {
            let code = if step == me.rank {
                all_reduce(buffer, buffer, 4, F32, SUM, me)
            } else {
                all_gather(buffer, all, 4, me)
            };
            assert!([0, INVALID_USAGE].contains(&code) || code == UNHANDLED_CUDA_ERROR);
        }
        assert_ne!(synchronize(me.stream), 0);
    });
    tells(error, &["collective 0 is ", "AllReduce(Sum) of 4 x F32", "AllGather of 4 x F32"]);
}

#[test]
fn a_send_and_its_receive_have_one_count() {
    let error = ranks("a_send_and_its_receive_have_one_count", |me, buffer| {
        let code = match me.rank {
            0 => send(buffer, 8, F32, 1, me),
            _ => receive(buffer, 4, F32, 0, me),
        };
        assert_eq!(code, 0);
        assert_ne!(synchronize(me.stream), 0);
    });
    tells(error, &["rank 0 calls Send to 1 of 8 x F32, but rank 1 calls Recv from 0 of 4 x F32"]);
}

#[test]
fn two_sends_to_each_other_without_a_group_are_told() {
    let error = ranks("two_sends_to_each_other_without_a_group_are_told", |me, from| {
        let to = from + 32;
        let other = 1 - me.rank as i32;
        assert_eq!(send(from, 4, F32, other, me), 0);
        assert_eq!(receive(to, 4, F32, other, me), 0);
        assert_ne!(synchronize(me.stream), 0);
    });
    tells(
        error,
        &[
            "rank 0 waits in Send to 1 of 4 x F32 for rank 1 to receive",
            "rank 1 waits in Send to 0 of 4 x F32 for rank 0 to receive",
        ],
    );
}

#[test]
fn a_rank_that_never_calls_is_named() {
    let error = ranks("a_rank_that_never_calls_is_named", |me, buffer| {
        if me.rank == 0 {
            assert_eq!(all_reduce(buffer, buffer, 4, F32, SUM, me), 0);
            assert_ne!(synchronize(me.stream), 0);
        }
    });
    tells(
        error,
        &[
            "rank 0 waits in AllReduce(Sum) of 4 x F32, collective 0, for ranks 1",
            "rank 1 has called 0 collectives here and waits in none",
        ],
    );
}

#[test]
fn a_rank_that_is_at_work_is_waited_for() {
    let error = ranks("a_rank_that_is_at_work_is_waited_for", |me, buffer| {
        let begun = Instant::now();
        // Twice as long as the patience of this process.
        while me.rank == 1 && begun.elapsed() < Duration::from_secs(4) {
            programs::write(buffer, &[1f32; 8]);
        }
        done(me, all_reduce(buffer, buffer, 8, F32, SUM, me));
    });
    tells(error, &[]);
}

#[test]
fn communicators_in_opposite_order_on_one_stream_are_told() {
    let error = ranks("communicators_in_opposite_order_on_one_stream_are_told", |me, buffer| {
        let second = split(me, 0, me.rank as i32).expect("a part");
        let order = if me.rank == 0 { [me, &second] } else { [&second, me] };
        for each in order {
            assert_eq!(all_reduce(buffer, buffer, 4, F32, SUM, each), 0);
        }
        assert_ne!(synchronize(me.stream), 0);
    });
    tells(error, &["collective 0, for ranks ", "waits in none"]);
}

#[test]
fn abort_ends_what_waits_at_once() {
    let error = alone("abort_ends_what_waits_at_once", || {
        let (id, both) = (unique_id(), Arc::new(Barrier::new(2)));
        let there = both.clone();
        let other = std::thread::spawn(move || {
            let me = init(id, 1, 2);
            there.wait();
            while asynchronous(me.communicator) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(asynchronous(me.communicator), REMOTE_ERROR);
            assert_eq!(last_error(&me), "rank 0 is gone");
            assert_eq!(ncclCommAbort(me.communicator) as i32, 0);
        });
        let me = init(id, 0, 2);
        both.wait();
        let buffer = upload(&[1f32; 4]);
        assert_eq!(all_reduce(buffer, buffer, 4, F32, SUM, &me), 0);
        let begun = Instant::now();
        assert_eq!(ncclCommAbort(me.communicator) as i32, 0);
        assert_ne!(synchronize(me.stream), 0);
        assert!(begun.elapsed() < Duration::from_millis(1900));
        other.join().expect("rank 1");
    });
    tells(error, &["the communicator was aborted"]);
}

#[test]
fn ranks_that_do_not_come_are_named() {
    let error = alone("ranks_that_do_not_come_are_named", || {
        assert_eq!(init_on(unique_id(), 0, 3, 0).err(), Some(SYSTEM_ERROR));
        assert_eq!(init_on(unique_id(), 1, 2, 0).err(), Some(SYSTEM_ERROR));
    });
    tells(error, &["ranks 1, 2 of 3 have not come", "rank 0 of communicator"]);
}

#[test]
fn two_ranks_use_two_devices() {
    let error = alone("two_ranks_use_two_devices", || {
        let id = unique_id();
        let other = std::thread::spawn(move || init_on(id, 1, 2, 0).err());
        assert_eq!(init_on(id, 0, 2, 0).err(), Some(INVALID_USAGE));
        assert_eq!(other.join().expect("rank 1"), Some(INVALID_USAGE));
    });
    tells(error, &["use one device, device 0 of this machine"]);
}

#[test]
fn ranks_agree_on_how_many_they_are() {
    let error = alone("ranks_agree_on_how_many_they_are", || {
        let id = unique_id();
        let other = std::thread::spawn(move || init_on(id, 1, 3, 1).err());
        assert_eq!(init_on(id, 0, 2, 0).err(), Some(INVALID_USAGE));
        assert_eq!(other.join().expect("rank 1"), Some(INVALID_USAGE));
    });
    tells(error, &["rank 1 of 3 comes where there are 2"]);
}

#[test]
fn an_id_is_of_one_communicator() {
    let error = ranks("an_id_is_of_one_communicator", |me, _| {
        if me.rank == 0 {
            let other = gpu_double::nccl::init::UniqueId([b'x'; 128]);
            assert_eq!(init_on(other, 0, 1, 2).err(), Some(INVALID_ARGUMENT));
        }
    });
    tells(error, &["no id of ncclGetUniqueId"]);
}

#[test]
fn arguments_are_looked_at() {
    let error = alone("arguments_are_looked_at", || {
        let me = init(unique_id(), 0, 1);
        let buffer = upload(&[1f32; 4]);
        assert_eq!(all_reduce(0, buffer, 4, F32, SUM, &me), INVALID_ARGUMENT);
        assert_eq!(all_reduce(buffer, 0, 4, F32, SUM, &me), INVALID_ARGUMENT);
        assert_eq!(all_reduce(buffer, buffer, 4, 12, SUM, &me), INVALID_ARGUMENT);
        assert_eq!(all_reduce(buffer, buffer, 4, F32, 5, &me), INVALID_ARGUMENT);
        assert_eq!(all_reduce(buffer, buffer, 4, 10, SUM, &me), INVALID_ARGUMENT);
        assert_eq!(broadcast(buffer, buffer, 4, 1, &me), INVALID_ARGUMENT);
        assert_eq!(broadcast(buffer, buffer, 4, -1, &me), INVALID_ARGUMENT);
        assert_eq!(send(buffer, 4, F32, 0, &me), INVALID_USAGE);
        assert_eq!(last_error(&me), "Send to 0 of 4 x F32 is to itself and in no group");
        assert_eq!(all_reduce(0, 0, 0, F32, SUM, &me), 0);
        assert_eq!(synchronize(me.stream), 0);
    });
    tells(error, &["AllReduce(Sum) of 4 x F32: a buffer is null"]);
}

#[test]
fn devices_and_streams_belong_together() {
    let error = alone("devices_and_streams_belong_together", || {
        let me = init(unique_id(), 0, 1);
        let buffer = upload(&[1f32; 4]);
        use_device(1);
        let other = Rank { stream: stream(), ..me.clone() };
        assert_eq!(all_reduce(buffer, buffer, 4, F32, SUM, &me), INVALID_USAGE);
        use_device(0);
        assert_eq!(all_reduce(buffer, buffer, 4, F32, SUM, &other), UNHANDLED_CUDA_ERROR);
    });
    tells(error, &["a stream of device 1 for one of device 0"]);
}

#[test]
fn the_default_stream_of_a_capture_is_refused() {
    let error = alone("the_default_stream_of_a_capture_is_refused", || {
        let me = init(unique_id(), 0, 1);
        let buffer = upload(&[1f32; 4]);
        let default = Rank { stream: std::ptr::null_mut(), ..me.clone() };
        let blocking = programs::blocking_stream();
        programs::begin_capture(blocking);
        let code = all_reduce(buffer, buffer, 4, F32, SUM, &default);
        assert_eq!(code, UNHANDLED_CUDA_ERROR);
    });
    tells(error, &["the stream refuses work: 906"]);
}

#[test]
fn groups_begin_and_end() {
    let error = alone("groups_begin_and_end", || {
        assert_eq!(group_end(), INVALID_USAGE);
        let me = init(unique_id(), 0, 1);
        let buffer = upload(&[1f32; 4]);
        // A call that is refused spoils its group.
        assert_eq!(group_start(), 0);
        assert_eq!(all_reduce(buffer, buffer, 4, F32, SUM, &me), 0);
        assert_eq!(broadcast(buffer, buffer, 4, 3, &me), INVALID_ARGUMENT);
        assert_eq!(ncclCommDestroy(me.communicator) as i32, INVALID_USAGE);
        assert_eq!(group_end(), INVALID_ARGUMENT);
        let second = Rank { stream: stream(), ..me.clone() };
        assert_eq!(group_start(), 0);
        assert_eq!(all_reduce(buffer, buffer, 4, F32, SUM, &me), 0);
        assert_eq!(all_reduce(buffer, buffer, 4, F32, SUM, &second), 0);
        assert_eq!(group_end(), INVALID_USAGE);
    });
    tells(error, &["ncclGroupEnd without ncclGroupStart", "are on several streams"]);
}

#[test]
fn nothing_is_called_after_the_end() {
    let error = alone("nothing_is_called_after_the_end", || {
        let me = init(unique_id(), 0, 1);
        let buffer = upload(&[1f32; 4]);
        assert_eq!(ncclCommFinalize(me.communicator) as i32, 0);
        assert_eq!(all_reduce(buffer, buffer, 4, F32, SUM, &me), INVALID_USAGE);
        assert_eq!(ncclCommFinalize(me.communicator) as i32, INVALID_USAGE);
        assert_eq!(ncclCommDestroy(me.communicator) as i32, 0);
        assert_eq!(ncclCommDestroy(me.communicator) as i32, INVALID_ARGUMENT);
        assert_eq!(all_reduce(buffer, buffer, 4, F32, SUM, &me), INVALID_ARGUMENT);
        let nobody = Rank { communicator: buffer as *mut _, ..me.clone() };
        assert_eq!(all_reduce(buffer, buffer, 4, F32, SUM, &nobody), INVALID_ARGUMENT);
    });
    tells(error, &["the communicator was finalized", "the communicator was destroyed"]);
}

/// NCCL waits until the graphs with a communicator's operations are gone, so one that ends before them never does.
#[test]
fn an_end_before_a_recording_is_told() {
    let error = ranks("an_end_before_a_recording_is_told", |me, buffer| {
        let graph = capture(me.stream, || {
            assert_eq!(all_reduce(buffer, buffer, 4, F32, SUM, me), 0);
        });
        assert_eq!(ncclCommDestroy(me.communicator) as i32, INVALID_USAGE);
        end_graph(graph);
        assert_eq!(ncclCommDestroy(me.communicator) as i32, 0);
    });
    tells(error, &["graphs keep 1 operations of the communicator"]);
}

/// Calls of a null communicator fail as NCCL 2.30 answers without a card.
#[test]
fn null_is_no_communicator() {
    let error = alone("null_is_no_communicator", || {
        use_device(0);
        let me = Rank { communicator: std::ptr::null_mut(), ..init(unique_id(), 0, 1) };
        assert_eq!(ncclCommFinalize(me.communicator) as i32, 0);
        assert_eq!(ncclCommDestroy(me.communicator) as i32, 0);
        assert_eq!(ncclCommAbort(me.communicator) as i32, 0);
        assert_eq!(ncclCommCount(me.communicator, &mut 0) as i32, INVALID_ARGUMENT);
        assert_eq!(ncclCommGetAsyncError(me.communicator, &mut 0) as i32, INVALID_ARGUMENT);
        assert_eq!(ncclGetVersion(std::ptr::null_mut()) as i32, INVALID_ARGUMENT);
        assert_eq!(group_start(), 0);
        assert_eq!(all_reduce(0, 0, 4, F32, SUM, &me), INVALID_ARGUMENT);
        assert_eq!(group_end(), INVALID_ARGUMENT);
        assert_eq!(last_error(&me), "a call of the group was refused, so none is made");
    });
    tells(error, &["no communicator"]);
}

#[test]
fn configurations_are_initialized() {
    let error = alone("configurations_are_initialized", || {
        use_device(0);
        let id = unique_id();
        assert_eq!(init_config(id, 0, 1, &config(0, 1)).0, INVALID_ARGUMENT);
        assert_eq!(init_config(id, 0, 1, &config(0xcafe_beef, 2)).0, INVALID_ARGUMENT);
        assert_eq!(init_config(id, 1, 1, &config(0xcafe_beef, 1)).0, INVALID_ARGUMENT);
        let (code, communicator) = init_config(id, 0, 1, &config(0xcafe_beef, i32::MIN));
        assert_eq!((code, asynchronous(communicator)), (0, 0));
    });
    tells(error, &["a configuration that was not initialized"]);
}

#[test]
fn an_unwritten_buffer_is_told() {
    let error = alone("an_unwritten_buffer_is_told", || {
        let me = init(unique_id(), 0, 1);
        assert_eq!(all_reduce(room(16), room(16), 4, F32, SUM, &me), 0);
        assert_ne!(synchronize(me.stream), 0);
    });
    tells(error, &["AllReduce(Sum) of 4 x F32: read of 16 bytes", "that nothing has written"]);
}

#[test]
fn a_short_buffer_is_told() {
    let error = alone("a_short_buffer_is_told", || {
        let me = init(unique_id(), 0, 1);
        let from = upload(&[1f32; 4]);
        assert_eq!(all_reduce(from, room(12), 4, F32, SUM, &me), 0);
        assert_ne!(synchronize(me.stream), 0);
    });
    tells(error, &["AllReduce(Sum) of 4 x F32: access of 16 bytes", "outside of all allocations"]);
}
