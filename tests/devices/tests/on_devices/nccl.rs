//! The product's bindings of NCCL between real processes: every collective compared with its definition, and
//! the errors for a rank that hangs or has ended.

use std::env;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rlt_torch::collectives::{Collectives, Membership, Reduction, Rendezvous, serve_store};
use tch::{Device, Kind, Tensor};

use crate::process::{again, is_inside, text, variables};

const RANK: &str = "RLT_TEST_RANK";
const PORT: &str = "RLT_TEST_PORT";
const SIZE: &str = "RLT_TEST_SIZE";

fn number(name: &str) -> usize {
    env::var(name).unwrap().parse().unwrap()
}

/// Returns this process's membership, with this timeout for each operation.
fn membership(timeout: Duration) -> Membership {
    Membership {
        host: "localhost".into(),
        port: number(PORT) as u16,
        rank: number(RANK),
        world_size: number(SIZE),
        attempt: 1,
        key: None,
        join_timeout: Duration::from_secs(60),
        operation_timeout: timeout,
    }
}

/// Starts this test once per rank, in `size` processes.
fn start(test: &str, size: usize, port: u16) -> Vec<Child> {
    let rank = |rank: usize| -> Command {
        let mut command = again(test, &variables(size, &[]));
        command.env(RANK, rank.to_string()).env(PORT, port.to_string()).env(SIZE, size.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    (0..size).map(|at| rank(at).spawn().unwrap()).collect()
}

/// Runs `body` with each of several numbers of ranks, each rank a process with its own device.
fn on_ranks(test: &str, sizes: &[usize], body: impl FnOnce(&Rendezvous, &mut dyn Collectives, Device)) {
    if is_inside(test) {
        assert!(rlt_torch::load_cuda().unwrap());
        let rendezvous = Rendezvous::join(membership(Duration::from_secs(60))).unwrap();
        let all: Vec<usize> = (0..rendezvous.world_size()).collect();
        let mut group = rendezvous.group("all", &all).unwrap().unwrap();
        body(&rendezvous, group.as_mut(), Device::Cuda(rendezvous.rank()));
        return group.barrier().unwrap();
    }
    for &size in sizes {
        let store = serve_store(0, 1, size).unwrap();
        for child in start(test, size, store.port()) {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success() && text(&output).contains("1 passed"), "{}", text(&output));
        }
    }
}

/// Returns the tensor of a rank, which every rank can compute.
fn of(rank: usize, size: &[i64], kind: Kind) -> Tensor {
    tch::manual_seed(100 + rank as i64);
    Tensor::randn(size, (Kind::Float, Device::Cpu)).g_mul_scalar(8.0).to_kind(kind)
}

fn of_all(num_ranks: usize, size: &[i64], kind: Kind) -> Vec<Tensor> {
    (0..num_ranks).map(|rank| of(rank, size, kind)).collect()
}

#[track_caller]
fn assert_is(found: &Tensor, expected: &Tensor) {
    assert_eq!(found.to_device(Device::Cpu), *expected);
}

#[test]
fn every_collective_is_what_its_definition_says() {
    on_ranks("nccl::every_collective_is_what_its_definition_says", &[2, 4], |_, group, gpu| {
        let (rank, num_ranks) = (group.rank(), group.size());
        let count = num_ranks as i64;
        for kind in [Kind::Float, Kind::BFloat16, Kind::Int64] {
            let reduced = of(rank, &[5, 3], kind).to_device(gpu);
            group.all_reduce(&reduced, Reduction::Sum).unwrap().wait().unwrap();
            // Summands are added in the order of ranks, with rounding after each, as in NCCL.
            let sum = of_all(num_ranks, &[5, 3], kind).into_iter().reduce(|a, b| a + b).unwrap();
            assert_is(&reduced, &sum);

            let all = Tensor::stack(&of_all(num_ranks, &[7], kind), 0);
            let (largest, smallest) =
                (of(rank, &[7], kind).to_device(gpu), of(rank, &[7], kind).to_device(gpu));
            group.all_reduce(&largest, Reduction::Max).unwrap().wait().unwrap();
            group.all_reduce(&smallest, Reduction::Min).unwrap().wait().unwrap();
            assert_is(&largest, &all.amax(0, false));
            assert_is(&smallest, &all.amin(0, false));

            let gathered = Tensor::zeros([2 * count, 3], (kind, gpu));
            group.all_gather(&gathered, &of(rank, &[2, 3], kind).to_device(gpu)).unwrap().wait().unwrap();
            assert_is(&gathered, &Tensor::cat(&of_all(num_ranks, &[2, 3], kind), 0));

            let scattered = Tensor::zeros([2, 3], (kind, gpu));
            let size = [2 * count, 3];
            group.reduce_scatter(&scattered, &of(rank, &size, kind).to_device(gpu)).unwrap().wait().unwrap();
            let wide = if kind == Kind::Int64 { Kind::Int64 } else { Kind::Float };
            let own = |t: &Tensor| t.narrow(0, 2 * rank as i64, 2).to_kind(wide);
            let sum = of_all(num_ranks, &size, kind).iter().map(own).reduce(|a, b| a + b).unwrap();
            assert_is(&scattered, &sum.to_kind(kind));

            let sent = of(rank, &[4], kind).to_device(gpu);
            group.broadcast(&sent, num_ranks - 1).unwrap().wait().unwrap();
            assert_is(&sent, &of(num_ranks - 1, &[4], kind));
        }
    });
}

/// Rank `from` sends `(from + 2 to) % 3` rows to rank `to`, which is sometimes none.
#[test]
fn all_to_all_takes_uneven_and_empty_splits_and_more_than_fits_into_a_ring() {
    let test = "nccl::all_to_all_takes_uneven_and_empty_splits_and_more_than_fits_into_a_ring";
    let rows = |from: usize, to: usize| ((from + 2 * to) % 3) as i64;
    on_ranks(test, &[2, 4], |_, group, gpu| {
        let (rank, num_ranks) = (group.rank(), group.size());
        for width in [2, 50_000] {
            let sent: Vec<i64> = (0..num_ranks).map(|to| rows(rank, to)).collect();
            let received: Vec<i64> = (0..num_ranks).map(|from| rows(from, rank)).collect();
            let part = |from: usize, to: usize| of(10 * from + to, &[rows(from, to), width], Kind::Float);
            let input =
                Tensor::cat(&(0..num_ranks).map(|to| part(rank, to)).collect::<Vec<_>>(), 0).to_device(gpu);
            let output = Tensor::zeros([received.iter().sum::<i64>(), width], (Kind::Float, gpu));
            group.all_to_all(&output, &input, &received, &sent).unwrap().wait().unwrap();
            assert_is(
                &output,
                &Tensor::cat(&(0..num_ranks).map(|from| part(from, rank)).collect::<Vec<_>>(), 0),
            );
        }
    });
}

#[test]
fn several_operations_are_under_way_at_once_and_groups_do_not_meet() {
    let test = "nccl::several_operations_are_under_way_at_once_and_groups_do_not_meet";
    on_ranks(test, &[4], |rendezvous, group, gpu| {
        let rank = rendezvous.rank();
        let even = rendezvous.group("even", &[0, 2]).unwrap();
        let odd = rendezvous.group("odd", &[1, 3]).unwrap();
        let mut pair = even.or(odd).unwrap();
        let tensors: Vec<Tensor> =
            (0..8).map(|i| Tensor::from((rank + 10 * i) as f32).to_device(gpu)).collect();
        let (whole, half) = tensors.split_at(4);
        let pending: Vec<_> = whole
            .iter()
            .map(|t| group.all_reduce(t, Reduction::Sum).unwrap())
            .chain(half.iter().map(|t| pair.all_reduce(t, Reduction::Sum).unwrap()))
            .collect();
        // Each rank waits for the last operations first, and in another order.
        let mut pending: Vec<_> = pending.into_iter().map(Some).collect();
        for at in (0..8).rev().map(|at| (at + rank) % 8) {
            pending[at].take().unwrap().wait().unwrap();
        }
        for (i, tensor) in tensors.iter().enumerate() {
            let members: Vec<usize> = if i < 4 { vec![0, 1, 2, 3] } else { vec![rank % 2, rank % 2 + 2] };
            let expected: usize = members.iter().map(|r| r + 10 * i).sum();
            assert_eq!(tensor.double_value(&[]), expected as f64);
        }
    });
}

/// Checks the error of a rank whose peer does not start an operation within the timeout. The operation before
/// it must succeed within the timeout, even on a busy machine.
fn failure_of_a_missing_peer() {
    assert!(rlt_torch::load_cuda().unwrap());
    let rendezvous = Rendezvous::join(membership(Duration::from_secs(15))).unwrap();
    let gpu = Device::Cuda(rendezvous.rank());
    let mut group = rendezvous.group("all", &[0, 1]).unwrap().unwrap();
    let tensor = Tensor::ones([4], (Kind::Float, gpu));
    group.all_reduce(&tensor, Reduction::Sum).unwrap().wait().unwrap();
    if rendezvous.rank() == 1 {
        match env::var("RLT_TEST_END").unwrap().as_str() {
            "dies" => std::process::abort(),
            _ => std::thread::sleep(Duration::from_secs(600)),
        }
    }
    let error = group.all_reduce(&tensor, Reduction::Sum).and_then(|pending| pending.wait()).unwrap_err();
    let said = error.to_string();
    let dies = env::var("RLT_TEST_END").unwrap() == "dies";
    let words = if dies { "no sign of life from rank 1" } else { "rank 1 has not come to it" };
    assert!(said.contains("all-reduce") && said.contains(words), "{said}");
    // Dropping the group frees the operation that was given up, and requests nothing more of it.
    drop(group);
    assert_eq!(tensor.double_value(&[0]), 2.0);
}

#[test]
fn a_rank_that_hangs_or_dies_is_named_after_the_limit() {
    let test = "nccl::a_rank_that_hangs_or_dies_is_named_after_the_limit";
    if is_inside(test) {
        return failure_of_a_missing_peer();
    }
    for end in ["hangs", "dies"] {
        let store = serve_store(0, 1, 2).unwrap();
        let mut ranks = (0..2).map(|rank| {
            let mut command = again(test, &variables(2, &[("RLT_TEST_END", end), (SIZE, "2")]));
            command.env(RANK, rank.to_string()).env(PORT, store.port().to_string());
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        });
        let (first, mut second) = (ranks.next().unwrap(), ranks.next().unwrap());
        let output = first.wait_with_output().unwrap();
        second.kill().unwrap();
        second.wait().unwrap();
        assert!(output.status.success() && text(&output).contains("1 passed"), "{end}: {}", text(&output));
    }
}
