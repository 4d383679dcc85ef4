//! Collectives between ranks that are threads, each with its own connection: every operation against its
//! definition, asynchronous use, and the errors about missing ranks.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rlt_tests::HeldPort;
use tch::{Kind, Tensor};

use super::randn;
use crate::collectives::{
    CollectiveError, Collectives, Membership, Reduction, Rendezvous, RendezvousError, RendezvousKey,
    SingleProcessGroup, StoreSettings, serve_store, serve_store_with,
};

/// Longest that a rank waits for another one; milliseconds on a quiet machine.
const PATIENCE: Duration = Duration::from_secs(100);

fn membership(port: u16, rank: usize, world_size: usize) -> Membership {
    Membership {
        host: "localhost".into(),
        port,
        rank,
        world_size,
        attempt: 3,
        key: None,
        join_timeout: PATIENCE,
        operation_timeout: PATIENCE,
    }
}

/// Runs `body` on every rank and returns what each returned, in the order of ranks.
fn on_ranks<T: Send>(
    world_size: usize,
    body: impl Fn(&Rendezvous, &mut dyn Collectives) -> T + Sync,
) -> Vec<T> {
    let store = serve_store(0, 3, world_size).unwrap();
    let results = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for rank in 0..world_size {
            let (results, body, port) = (&results, &body, store.port());
            scope.spawn(move || {
                let rendezvous = Rendezvous::join(membership(port, rank, world_size)).unwrap();
                let all: Vec<usize> = (0..world_size).collect();
                let mut group = rendezvous.group("all", &all).unwrap().unwrap();
                let result = body(&rendezvous, group.as_mut());
                group.barrier().unwrap();
                results.lock().unwrap().push((rank, result));
            });
        }
    });
    let mut results = results.into_inner().unwrap();
    results.sort_by_key(|(rank, _)| *rank);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Input of rank `rank`: a tensor that any rank can compute.
fn of(rank: usize, size: &[i64], kind: Kind) -> Tensor {
    randn(size, 100 + rank as i64).to_kind(kind)
}

#[test]
fn every_collective_is_what_its_definition_says_on_one_to_four_ranks() {
    for world_size in 1..=4 {
        for kind in [Kind::Float, Kind::BFloat16] {
            on_ranks(world_size, |_, group| {
                let (rank, size) = (group.rank(), world_size as i64);
                assert_eq!((group.name(), group.size()), ("all", world_size));

                let sum = of(rank, &[5, 3], Kind::Float);
                group.all_reduce(&sum, Reduction::Sum).unwrap().wait().unwrap();
                let all: Vec<Tensor> = (0..world_size).map(|r| of(r, &[5, 3], Kind::Float)).collect();
                assert!(sum.allclose(
                    &Tensor::stack(&all, 0).sum_dim_intlist(0, false, None),
                    1e-6,
                    1e-6,
                    false
                ));

                let (largest, smallest) = (of(rank, &[7], Kind::Float), of(rank, &[7], Kind::Float));
                group.all_reduce(&largest, Reduction::Max).unwrap().wait().unwrap();
                group.all_reduce(&smallest, Reduction::Min).unwrap().wait().unwrap();
                let all =
                    Tensor::stack(&(0..world_size).map(|r| of(r, &[7], Kind::Float)).collect::<Vec<_>>(), 0);
                assert_eq!((largest, smallest), (all.amax(0, false), all.amin(0, false)));

                let gathered = Tensor::zeros([size * 2, 3], (kind, tch::Device::Cpu));
                group.all_gather(&gathered, &of(rank, &[2, 3], kind)).unwrap().wait().unwrap();
                let all: Vec<Tensor> = (0..world_size).map(|r| of(r, &[2, 3], kind)).collect();
                assert_eq!(gathered, Tensor::cat(&all, 0));

                let scattered = Tensor::zeros([2, 3], (kind, tch::Device::Cpu));
                let input = of(rank, &[size * 2, 3], kind);
                group.reduce_scatter(&scattered, &input).unwrap().wait().unwrap();
                let mut expected =
                    of(0, &[size * 2, 3], kind).narrow(0, rank as i64 * 2, 2).to_kind(Kind::Float);
                for r in 1..world_size {
                    expected += of(r, &[size * 2, 3], kind).narrow(0, rank as i64 * 2, 2);
                }
                assert_eq!(scattered, expected.to_kind(kind), "added in fp32 in the order of ranks");

                let root = world_size - 1;
                let sent = of(rank, &[4], kind);
                group.broadcast(&sent, root).unwrap().wait().unwrap();
                assert_eq!(sent, of(root, &[4], kind));
            });
        }
    }
}

#[test]
fn a_long_reduce_scatter_in_chunks_adds_up_the_same_values() {
    // 24 MB from three ranks, of which at most 16 MiB are received at once.
    const LEN: i64 = 2_000_001;
    on_ranks(3, |_, group| {
        let rank = group.rank();
        let scattered = Tensor::zeros([LEN], tch::kind::FLOAT_CPU);
        group.reduce_scatter(&scattered, &of(rank, &[3 * LEN], Kind::Float)).unwrap().wait().unwrap();
        let own = |r| of(r, &[3 * LEN], Kind::Float).narrow(0, rank as i64 * LEN, LEN);
        assert_eq!(scattered, own(0) + own(1) + own(2));
    });
}

/// Rank `from` sends `(from + 2 to) % 3` rows to rank `to`, which is sometimes none.
#[test]
fn all_to_all_takes_uneven_and_empty_splits() {
    let rows = |from: usize, to: usize| ((from + 2 * to) % 3) as i64;
    for world_size in [1, 2, 3, 4] {
        on_ranks(world_size, |_, group| {
            let rank = group.rank();
            let sent: Vec<i64> = (0..world_size).map(|to| rows(rank, to)).collect();
            let received: Vec<i64> = (0..world_size).map(|from| rows(from, rank)).collect();
            let part = |from: usize, to: usize| of(10 * from + to, &[rows(from, to), 2], Kind::Float);
            let input = Tensor::cat(&(0..world_size).map(|to| part(rank, to)).collect::<Vec<_>>(), 0);
            let output = Tensor::zeros([received.iter().sum::<i64>(), 2], (Kind::Float, tch::Device::Cpu));
            group.all_to_all(&output, &input, &received, &sent).unwrap().wait().unwrap();
            let expected = Tensor::cat(&(0..world_size).map(|from| part(from, rank)).collect::<Vec<_>>(), 0);
            assert_eq!(output, expected);
        });
    }
}

#[test]
fn several_operations_may_be_under_way_at_once_and_groups_do_not_meet() {
    on_ranks(4, |rendezvous, group| {
        let rank = rendezvous.rank();
        let (even, odd) =
            (rendezvous.group("even", &[0, 2]).unwrap(), rendezvous.group("odd", &[1, 3]).unwrap());
        assert_eq!(even.is_some(), rank % 2 == 0);
        let mut pair = even.or(odd).unwrap();
        let tensors: Vec<Tensor> = (0..8).map(|i| Tensor::from((rank + 10 * i) as f32)).collect();
        let (whole, half) = tensors.split_at(4);
        let pending: Vec<_> = whole
            .iter()
            .map(|t| group.all_reduce(t, Reduction::Sum).unwrap())
            .chain(half.iter().map(|t| pair.all_reduce(t, Reduction::Sum).unwrap()))
            .collect();
        pending.into_iter().for_each(|p| p.wait().unwrap());
        for (i, tensor) in tensors.iter().enumerate() {
            let members: Vec<usize> = if i < 4 { vec![0, 1, 2, 3] } else { vec![rank % 2, rank % 2 + 2] };
            let expected: usize = members.iter().map(|r| r + 10 * i).sum();
            assert_eq!(tensor.double_value(&[]), expected as f64);
        }
    });
}

#[test]
fn a_rank_that_misses_a_collective_is_named_within_the_timeout() {
    let store = serve_store(0, 3, 3).unwrap();
    let port = store.port();
    thread::scope(|scope| {
        let join = |rank| {
            let timeouts =
                Membership { operation_timeout: Duration::from_secs(15), ..membership(port, rank, 3) };
            Rendezvous::join(timeouts).unwrap()
        };
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            let rendezvous = join(2);
            let mut group = rendezvous.group("all", &[0, 1, 2]).unwrap().unwrap();
            group.barrier().unwrap();
            // The rank hangs, but stays alive until the other ranks have reported it.
            is_done.recv_timeout(PATIENCE).unwrap();
        });
        let failing = [0, 1].map(|rank| {
            scope.spawn(move || {
                let rendezvous = join(rank);
                let mut group = rendezvous.group("all", &[0, 1, 2]).unwrap().unwrap();
                group.barrier().unwrap();
                let (begin, tensor) = (Instant::now(), Tensor::ones([4], tch::kind::FLOAT_CPU));
                let error =
                    group.all_reduce(&tensor, Reduction::Sum).and_then(|pending| pending.wait()).unwrap_err();
                assert!(begin.elapsed() < PATIENCE / 2, "{:?}", begin.elapsed());
                let CollectiveError::Failed { operation, sequence, diagnosis, .. } = &error else {
                    panic!("{error}")
                };
                assert_eq!((*operation, *sequence), ("all-reduce", 2));
                assert!(diagnosis.behind.contains(&(2, 1)), "{error}");
                assert!(
                    error.to_string().contains("rank 2 has not come to it (its last was number 1)"),
                    "{error}"
                );
                rendezvous.report_failure(&error.to_string()).unwrap()
            })
        });
        let [first, second] = failing.map(|thread| thread.join().unwrap());
        assert_eq!(first, second, "every rank gets the first cause");
        done.send(()).unwrap();
    });
}

#[test]
fn ranks_that_do_not_join_are_named() {
    let store = serve_store(0, 3, 4).unwrap();
    let hasty = Membership { join_timeout: Duration::from_millis(300), ..membership(store.port(), 1, 4) };
    let error = Rendezvous::join(hasty).unwrap_err();
    assert_eq!(error.to_string(), "ranks 0, 2, 3 did not join within 0.3 s");
}

#[test]
fn a_rank_of_another_attempt_world_or_seat_is_refused() {
    let store = serve_store(0, 3, 1).unwrap();
    let port = store.port();
    let stale = Membership { attempt: 2, ..membership(port, 0, 1) };
    let error = Rendezvous::join(stale).unwrap_err();
    assert_eq!(error.to_string(), "this rank is of attempt 2, but the rendezvous is of attempt 3");
    let error = Rendezvous::join(membership(port, 0, 2)).unwrap_err();
    assert_eq!(error.to_string(), "this rank expects 2 ranks, the rendezvous 1");
    let _first = Rendezvous::join(membership(port, 0, 1)).unwrap();
    let error = Rendezvous::join(membership(port, 0, 1)).unwrap_err();
    assert!(matches!(error, RendezvousError::RankTaken { rank: 0 }));
    let error = Rendezvous::join(membership(port, 5, 2)).unwrap_err();
    assert_eq!(error.to_string(), "rank: expected a number below the 2 ranks, got 5");
}

#[test]
fn a_rank_without_the_key_of_the_attempt_takes_no_seat() {
    let key = RendezvousKey::random().unwrap();
    let settings =
        StoreSettings { port: 0, is_local: true, attempt: 3, world_size: 1, key: Some(key.clone()) };
    let store = serve_store_with(&settings).unwrap();
    let rank = |key| Membership { key, ..membership(store.port(), 0, 1) };
    let other = RendezvousKey::random().unwrap();
    for (key, why) in [(None, "this rank was given none"), (Some(other), "this rank has another key")] {
        let error = Rendezvous::join(rank(key)).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(matches!(error, RendezvousError::Store(_)) && cause.contains(why), "{error}: {cause}");
    }
    Rendezvous::join(rank(Some(key))).unwrap();
}

#[test]
fn a_store_that_appears_late_is_waited_for_and_one_that_never_does_is_named() {
    let held = HeldPort::new().unwrap();
    let port = held.number();
    let mut store = None;
    let mut appears = || store = Some(serve_store(port, 3, 1).unwrap());
    Rendezvous::join_with(membership(port, 0, 1), &mut appears).unwrap();
    assert!(store.is_some(), "joined a store that is not there");
    drop(store);
    let never = Membership { join_timeout: Duration::from_millis(300), ..membership(port, 0, 1) };
    let error = Rendezvous::join(never).unwrap_err();
    assert_eq!(error.to_string(), format!("no rendezvous at localhost:{port} within 0.3 s"));
}

#[test]
fn a_rank_waits_for_the_store_of_its_attempt_while_an_older_store_answers() {
    let held = HeldPort::new().unwrap();
    let port = held.number();
    let (mut store, mut num_pauses) = (Some(serve_store(port, 2, 1).unwrap()), 0);
    // The older store answers twice and ends, and then the store of the attempt starts.
    let mut pause = || {
        num_pauses += 1;
        match num_pauses {
            2 => store = None,
            3 => store = Some(serve_store(port, 3, 1).unwrap()),
            _ => {}
        }
    };
    Rendezvous::join_with(membership(port, 0, 1), &mut pause).unwrap();
    assert_eq!(num_pauses, 3);
}

#[test]
fn a_store_of_an_earlier_attempt_that_does_not_end_is_named() {
    let store = serve_store(0, 2, 1).unwrap();
    let hasty = Membership { join_timeout: Duration::from_millis(300), ..membership(store.port(), 0, 1) };
    let error = Rendezvous::join(hasty).unwrap_err();
    assert_eq!(error.to_string(), "this rank is of attempt 3, but the rendezvous is of attempt 2");
}

#[test]
fn tensors_that_do_not_fit_are_refused_before_anything_is_sent() {
    let mut group = SingleProcessGroup::new("alone");
    let (four, five) = (Tensor::ones([4], tch::kind::FLOAT_CPU), Tensor::ones([5], tch::kind::FLOAT_CPU));
    for error in [
        group.all_gather(&four, &five).unwrap_err(),
        group.reduce_scatter(&five, &four).unwrap_err(),
        group.all_to_all(&four, &four, &[4], &[3]).unwrap_err(),
        group.broadcast(&four, 1).unwrap_err(),
    ] {
        assert!(matches!(error, CollectiveError::Argument { .. }), "{error}");
        assert!(error.to_string().contains("of group alone: expected"), "{error}");
    }
}
