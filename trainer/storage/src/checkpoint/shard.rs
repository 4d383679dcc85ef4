//! Shards of tensors that one process saves, and their distribution over the replicas that hold the same
//! values. This module writes nothing.

use std::ops::Range;

use rlt_layout::{EvenSplit, LocalTensor, TensorSlice};
use tch::Tensor;

/// Minimum size in bytes of a tensor of which every replica saves a range. A smaller tensor is saved by a
/// single replica.
const DIVIDED_BYTES: usize = 64 << 10;

/// A range of a tensor's values that one process saves.
#[derive(Debug)]
pub struct CheckpointShard {
    /// Name of the tensor, unique in a checkpoint.
    pub name: String,
    /// Indices of the full tensor whose values this process holds.
    pub local: LocalTensor,
    /// Range of the values, in row-major order of `local`.
    pub range: Range<usize>,
    /// Values of the range, of any dtype and device, in row-major order. They share memory with the training.
    pub values: Tensor,
}

impl CheckpointShard {
    /// Creates the shard that is a full tensor.
    pub fn full(name: String, values: Tensor) -> Self {
        Self { name, local: LocalTensor::full(&values.size()), range: 0..values.numel(), values }
    }

    /// Creates the shard with the values `values` at the position of a tensor slice.
    pub fn of(slice: &TensorSlice<'_>, values: &Tensor) -> Self {
        Self {
            name: slice.name.to_owned(),
            local: slice.local.clone(),
            range: slice.range.clone(),
            values: values.shallow_clone(),
        }
    }

    /// Shape of the full tensor.
    pub fn shape(&self) -> &[i64] {
        self.local.shape()
    }

    /// Whether the shard is the full tensor.
    pub(super) fn is_full(&self) -> bool {
        self.values.size() == self.shape()
    }

    /// Position of the shard's values in the tensor.
    pub(super) fn slice(&self) -> TensorSlice<'_> {
        TensorSlice { name: &self.name, local: &self.local, range: self.range.clone() }
    }

    fn num_bytes(&self) -> usize {
        self.range.len() * self.values.kind().elt_size_in_bytes()
    }

    /// Returns range `index` of `num_shards` equal ones; `None` if it is empty.
    fn stretch(self, index: usize, num_shards: usize) -> Option<Self> {
        let len = self.range.len();
        let own = EvenSplit::new(len, num_shards).range(index);
        let own = own.start.min(len)..own.end.min(len);
        let start = self.range.start;
        let values = self.values.detach().contiguous().view(-1);
        (!own.is_empty()).then(|| Self {
            range: start + own.start..start + own.end,
            values: values.narrow(0, own.start as i64, own.len() as i64),
            ..self
        })
    }
}

/// Selects the shards, or ranges of shards, that replica `index` of `num_copies` saves. All replicas hold the
/// same `parts`. Together they save every value once, and each saves about the same number of bytes.
pub fn split_between_copies(
    parts: Vec<CheckpointShard>,
    index: usize,
    num_copies: usize,
) -> Vec<CheckpointShard> {
    if num_copies == 1 {
        return parts;
    }
    let mut small_bytes = vec![0; num_copies];
    let own = |part: CheckpointShard| {
        if part.num_bytes() >= DIVIDED_BYTES {
            return part.stretch(index, num_copies);
        }
        let least = (0..num_copies).min_by_key(|copy| small_bytes[*copy]).unwrap_or(0);
        // An empty tensor has an entry, too, so one process must own it.
        small_bytes[least] += part.num_bytes().max(1);
        (least == index).then_some(part)
    };
    parts.into_iter().filter_map(own).collect()
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    fn parts() -> Vec<CheckpointShard> {
        let numbers = |len: i64| Tensor::arange(len, (Kind::Float, Device::Cpu));
        let mut parts = vec![
            CheckpointShard::full("large".into(), numbers(60_001).view([1, 60_001])),
            CheckpointShard::full("scalar".into(), Tensor::from(7_i64)),
            CheckpointShard::full("nothing".into(), numbers(0)),
        ];
        parts.extend((0..9).map(|idx| CheckpointShard::full(format!("small {idx}"), numbers(100))));
        let local = LocalTensor::full(&[4, 100_000]);
        let piece = TensorSlice { name: "piece", local: &local, range: 50..350_000 };
        parts.push(CheckpointShard::of(&piece, &numbers(349_950)));
        parts
    }

    #[test]
    fn copies_save_every_number_once_and_as_many_bytes_each() {
        for num_copies in 1..=5 {
            let shares: Vec<_> =
                (0..num_copies).map(|index| split_between_copies(parts(), index, num_copies)).collect();
            let bytes =
                shares.iter().map(|share| share.iter().map(CheckpointShard::num_bytes).sum::<usize>());
            let (least, most) = (bytes.clone().min().unwrap(), bytes.max().unwrap());
            // A small tensor more or less, and the rounding of the stretches of large ones.
            assert!(most - least <= 400 + 8 + 2 * 4 * num_copies, "{least} to {most} bytes by {num_copies}");
            for part in parts() {
                let of_part = shares.iter().flatten().filter(|share| share.name == part.name);
                let (mut next, mut num_shares) = (part.range.start, 0);
                for share in of_part {
                    assert_eq!((share.range.start, &share.local), (next, &part.local), "{}", part.name);
                    let whole = part.values.view(-1);
                    let expected = whole.narrow(
                        0,
                        (share.range.start - part.range.start) as i64,
                        share.range.len() as i64,
                    );
                    assert!(share.values.view(-1).equal(&expected), "{}", part.name);
                    (next, num_shares) = (share.range.end, num_shares + 1);
                }
                assert!(next == part.range.end && num_shares > 0, "{} by {num_copies}", part.name);
            }
        }
    }
}
