//! The bytes that ranks count as exchanged, compared with those that the kernel counted: in a separate
//! process, whose connections are only those of its ranks.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::ffi::{c_int, c_void};
use std::thread;
use std::time::Duration;

use rlt_torch::collectives::{Collectives, Membership, Pending, Reduction, Rendezvous, Traffic, serve_store};
use tch::{Device, Kind, Tensor};

const SIZE: usize = 3;
/// Number of elements: more than the ring adds at once, a multiple neither of its segments nor of the ranks.
const LEN: i64 = 2_000_039;

unsafe extern "C" {
    fn getsockopt(socket: c_int, level: c_int, option: c_int, value: *mut c_void, len: *mut u32) -> c_int;
}

/// `tcpi_bytes_received` of a connection, by the layout of linux/tcp.h; `None` for other descriptors.
fn bytes_received(socket: c_int) -> Option<u64> {
    const IPPROTO_TCP: c_int = 6;
    const TCP_INFO: c_int = 11;
    const PLACE: usize = 128;
    let mut info = [0_u8; 256];
    let mut len = info.len() as u32;
    // SAFETY: a place for as many bytes as it is said to have.
    let outcome = unsafe { getsockopt(socket, IPPROTO_TCP, TCP_INFO, info.as_mut_ptr().cast(), &mut len) };
    let bytes = info[PLACE..PLACE + 8].try_into().ok()?;
    (outcome == 0 && len as usize >= PLACE + 8).then(|| u64::from_le_bytes(bytes))
}

/// Bytes received over all connections of this process.
fn all_received() -> u64 {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = descriptors.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    numbers.filter_map(bytes_received).sum()
}

type Operation = fn(&mut dyn Collectives, &Tensor) -> Pending;

fn all_reduce(group: &mut dyn Collectives, numbers: &Tensor) -> Pending {
    group.all_reduce(numbers, Reduction::Sum).unwrap()
}

fn all_gather(group: &mut dyn Collectives, numbers: &Tensor) -> Pending {
    let own = numbers.narrow(0, 0, LEN / SIZE as i64);
    let output = Tensor::zeros([own.size()[0] * SIZE as i64], (Kind::Float, Device::Cpu));
    group.all_gather(&output, &own).unwrap()
}

fn reduce_scatter(group: &mut dyn Collectives, numbers: &Tensor) -> Pending {
    let chunk = LEN / SIZE as i64;
    let own = Tensor::zeros([chunk], (Kind::Float, Device::Cpu));
    group.reduce_scatter(&own, &numbers.narrow(0, 0, chunk * SIZE as i64)).unwrap()
}

/// Rank `from` sends `from + to` tenths of the rows to rank `to`.
fn all_to_all(group: &mut dyn Collectives, numbers: &Tensor) -> Pending {
    let splits: Vec<i64> = (0..SIZE).map(|other| (group.rank() + other) as i64 * (LEN / 10)).collect();
    let len = splits.iter().sum();
    let output = Tensor::zeros([len], (Kind::Float, Device::Cpu));
    group.all_to_all(&output, &numbers.narrow(0, 0, len), &splits, &splits).unwrap()
}

fn broadcast(group: &mut dyn Collectives, numbers: &Tensor) -> Pending {
    group.broadcast(numbers, 1).unwrap()
}

fn join(rank: usize, port: u16) -> Rendezvous {
    let timeout = Duration::from_secs(60);
    let host = "localhost".to_owned();
    let (join_timeout, operation_timeout) = (timeout, timeout);
    let membership = Membership {
        host,
        port,
        rank,
        world_size: SIZE,
        attempt: 1,
        key: None,
        join_timeout,
        operation_timeout,
    };
    Rendezvous::join(membership).unwrap()
}

/// Returns the bytes that ranks counted for each operation, and that the kernel counted for all of them.
fn measure(rank: usize, port: u16, operations: &[Operation]) -> Vec<(Traffic, u64)> {
    let rendezvous = join(rank, port);
    let mut group = rendezvous.group("all", &[0, 1, 2]).unwrap().unwrap();
    let numbers = Tensor::ones([LEN], (Kind::Float, Device::Cpu));
    let measured = operations.iter().map(|operation| {
        group.barrier().unwrap();
        let before = (rendezvous.traffic(), all_received());
        group.barrier().unwrap();
        operation(group.as_mut(), &numbers).wait().unwrap();
        group.barrier().unwrap();
        (rendezvous.traffic().since(before.0), all_received() - before.1)
    });
    measured.collect()
}

#[test]
fn ranks_count_the_bytes_of_their_connections() {
    let store = serve_store(0, 1, SIZE).unwrap();
    let port = store.port();
    let operations: [Operation; 5] = [all_reduce, all_gather, reduce_scatter, all_to_all, broadcast];
    let ranks: Vec<Vec<(Traffic, u64)>> = thread::scope(|scope| {
        let ranks: Vec<_> =
            (0..SIZE).map(|rank| scope.spawn(move || measure(rank, port, &operations))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for (idx, name) in
        ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast"].iter().enumerate()
    {
        let sent: u64 = ranks.iter().map(|rank| rank[idx].0.sent).sum();
        let received: u64 = ranks.iter().map(|rank| rank[idx].0.received).sum();
        assert_eq!(sent, received, "{name}");
        // Headers of messages, the barriers around the operation, and the ranks' heartbeats.
        let carried = ranks[0][idx].1;
        assert!(carried >= sent && carried < sent + sent / 100, "{name}: {sent} counted, {carried} carried");
    }
    // The lower bounds, at which an all-reduce is beside those of gathering and scattering.
    let others = (SIZE - 1) as u64 * 4;
    let of_first = |idx: usize| ranks.iter().map(|rank| rank[idx].0.sent).sum::<u64>();
    assert_eq!(of_first(0), 2 * others * LEN as u64);
    assert_eq!(of_first(1), others * (LEN as u64 / 3 * 3));
    assert_eq!(of_first(2), others * (LEN as u64 / 3 * 3));
}
