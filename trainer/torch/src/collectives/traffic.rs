//! Number of tensor bytes that a rank sends and receives, computed from the transport's algorithm when an
//! operation is started. Headers, a few dozen bytes per message, and barriers are not counted.

use std::sync::atomic::{AtomicU64, Ordering};

use tch::Tensor;

/// Largest number of bytes that Gloo's ring adds at once.
const LONGEST_SEGMENT: u64 = 1 << 20;

/// Number of tensor bytes that a rank has exchanged with other ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes sent to other ranks.
    pub sent: u64,
    /// Bytes received from other ranks.
    pub received: u64,
}

impl Traffic {
    /// Returns what was exchanged after `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self { sent: self.sent - before.sent, received: self.received - before.received }
    }
}

/// Byte counters of one rank, over all of its groups.
#[derive(Debug, Default)]
pub(super) struct Meter {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Meter {
    /// Adds the bytes of an operation.
    pub(super) fn count(&self, traffic: Traffic) {
        self.sent.fetch_add(traffic.sent, Ordering::Relaxed);
        self.received.fetch_add(traffic.received, Ordering::Relaxed);
    }

    /// Returns the bytes counted so far.
    pub(super) fn total(&self) -> Traffic {
        Traffic { sent: self.sent.load(Ordering::Relaxed), received: self.received.load(Ordering::Relaxed) }
    }
}

/// Number of bytes of a tensor's values.
pub(super) fn num_bytes(tensor: &Tensor) -> u64 {
    (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64
}

/// Number of bytes of one row of a tensor; 0 if it has no rows.
pub(super) fn row_bytes(tensor: &Tensor) -> u64 {
    let num_rows = tensor.size().first().map_or(1, |rows| *rows) as u64;
    num_bytes(tensor).checked_div(num_rows).unwrap_or(0)
}

/// Counts an all-gather: every rank's `input` bytes are sent around the ring to all others.
pub(super) fn all_gather(size: usize, input: u64) -> Traffic {
    let others = (size as u64 - 1) * input;
    Traffic { sent: others, received: others }
}

/// Counts an all-to-all: every rank sends each other rank the rows that are meant for it.
pub(super) fn all_to_all(place: usize, row: u64, sent: &[i64], received: &[i64]) -> Traffic {
    let of_others = |splits: &[i64]| {
        let rows = splits.iter().enumerate().filter(|(other, _)| *other != place).map(|(_, rows)| *rows);
        rows.sum::<i64>() as u64 * row
    };
    Traffic { sent: of_others(sent), received: of_others(received) }
}

/// Counts a ring all-reduce of a tensor split into one chunk per rank, which is sent around the ring twice: a
/// reduce-scatter and an all-gather. In each round a rank sends all chunks but one: in the first not its own,
/// in the second not that of the previous rank. Chunks consist of full segments; if these do not divide the
/// tensor, the last chunks are short or empty.
pub(super) fn ring_all_reduce(place: usize, size: usize, num_bytes: u64, element: u64) -> Traffic {
    if num_bytes == 0 {
        return Traffic::default();
    }
    let size = size as u64;
    let segment = num_bytes.div_ceil(2 * size).min(LONGEST_SEGMENT).next_multiple_of(element);
    let num_segments = num_bytes.div_ceil(segment).max(2 * size).next_multiple_of(size);
    let chunk = num_segments / size * segment;
    let len = |idx: u64| chunk.min(num_bytes.saturating_sub(idx * chunk));
    let sent_by = |rank: u64| 2 * num_bytes - len(rank) - len((rank + size - 1) % size);
    let place = place as u64;
    Traffic { sent: sent_by(place), received: sent_by((place + 1) % size) }
}

/// Counts a tree broadcast: ranks that have the tensor pass it on, twice as many in each round.
pub(super) fn tree_broadcast(place: usize, size: usize, root: usize, num_bytes: u64) -> Traffic {
    let from_root = (place + size - root) % size;
    // A rank receives in the round of its highest bit, and sends in all later ones.
    let joined = from_root.checked_ilog2().map_or(0, |bit| bit + 1);
    let handed_on = (joined..usize::BITS).take_while(|round| 1 << round < size);
    let num_sent = handed_on.filter(|round| from_root + (1 << round) < size).count() as u64;
    Traffic { sent: num_sent * num_bytes, received: u64::from(from_root > 0) * num_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(size: usize, of_rank: impl Fn(usize) -> Traffic) -> (u64, u64) {
        let all = (0..size).map(of_rank);
        all.fold((0, 0), |(sent, received), one| (sent + one.sent, received + one.received))
    }

    #[test]
    fn bytes_sent_equal_bytes_received_and_the_minimum_of_each_operation() {
        for size in 2..=9 {
            for num_bytes in [0, 4, 8, 4 * 7, 4 * 1000, 4 * 1003, 4 * 9_000_001] {
                let others = (size - 1) as u64;
                let gathered = all_gather(size, num_bytes);
                assert_eq!((gathered.sent, gathered.received), (others * num_bytes, others * num_bytes));
                // Every byte is added to the others' and handed to the others once, wherever it ends.
                let reduced = sums(size, |place| ring_all_reduce(place, size, num_bytes, 4));
                assert_eq!(reduced, (2 * others * num_bytes, 2 * others * num_bytes), "{size} ranks");
                for root in 0..size {
                    let sent = sums(size, |place| tree_broadcast(place, size, root, num_bytes));
                    assert_eq!(sent, (others * num_bytes, others * num_bytes), "{size} ranks");
                }
            }
        }
        let rows = all_to_all(1, 10, &[3, 5, 0], &[1, 5, 2]);
        assert_eq!(rows, Traffic { sent: 30, received: 30 });
        assert_eq!(Traffic { sent: 5, received: 7 }.since(Traffic { sent: 1, received: 7 }).sent, 4);
    }
}
