//! Membership of a rank in a group, checks of tensors for the group's operations, and the number of bytes
//! that these exchange over any transport. This module sends nothing.

use std::sync::Arc;
use std::time::Duration;

use tch::{Kind, Tensor, no_grad};

use super::heartbeat::Heartbeat;
use super::traffic::{Meter, all_gather, all_to_all, num_bytes, ring_all_reduce, row_bytes, tree_broadcast};
use super::{CollectiveError, Diagnosis};

/// Membership of this rank in a group, for any transport.
#[derive(Clone, Debug)]
pub(super) struct GroupMember {
    /// Name of the group, for error messages.
    pub(super) name: String,
    /// Global ranks of all members, ascending.
    pub(super) members: Vec<usize>,
    /// Index of this rank among the members.
    pub(super) place: usize,
    /// Timeout of one operation.
    pub(super) timeout: Duration,
    pub(super) heartbeat: Arc<Heartbeat>,
    pub(super) meter: Arc<Meter>,
}

impl GroupMember {
    /// Number of ranks in the group.
    pub(super) fn size(&self) -> usize {
        self.members.len()
    }

    /// Records that operation `sequence` begins.
    pub(super) fn started(&self, sequence: u64) {
        self.heartbeat.started(&self.name, sequence);
    }

    /// Makes the error of operation `sequence`, with the ranks that it waited for; takes a few seconds.
    pub(super) fn failed(&self, operation: &'static str, sequence: u64, message: String) -> CollectiveError {
        let diagnosis = self.heartbeat.diagnose(&self.name, sequence, &self.members);
        self.failed_by(operation, sequence, message, diagnosis)
    }

    /// Makes the error of operation `sequence` from a known diagnosis.
    pub(super) fn failed_by(
        &self,
        operation: &'static str,
        sequence: u64,
        message: String,
        diagnosis: Diagnosis,
    ) -> CollectiveError {
        let (group, diagnosis) = (self.name.clone(), Box::new(diagnosis));
        CollectiveError::Failed { operation, group, sequence, diagnosis, message }
    }

    /// Checks the tensor of an all-reduce and counts its bytes.
    pub(super) fn admit_all_reduce(&self, tensor: &Tensor) -> Result<(), CollectiveError> {
        check_sizes("all-reduce", &self.name, tensor, 1, tensor, 1)?;
        let element = tensor.kind().elt_size_in_bytes() as u64;
        self.meter.count(ring_all_reduce(self.place, self.size(), num_bytes(tensor), element));
        Ok(())
    }

    /// Checks the tensors of an all-gather and counts their bytes.
    pub(super) fn admit_all_gather(&self, output: &Tensor, input: &Tensor) -> Result<(), CollectiveError> {
        check_sizes("all-gather", &self.name, output, 1, input, self.size() as i64)?;
        self.meter.count(all_gather(self.size(), num_bytes(input)));
        Ok(())
    }

    /// Checks the tensor and the root of a broadcast and counts its bytes.
    pub(super) fn admit_broadcast(&self, tensor: &Tensor, root: usize) -> Result<(), CollectiveError> {
        check_sizes("broadcast", &self.name, tensor, 1, tensor, 1)?;
        self.check_root(root)?;
        self.meter.count(tree_broadcast(self.place, self.size(), root, num_bytes(tensor)));
        Ok(())
    }

    /// Counts the bytes of the rows that are sent to and received from other ranks.
    pub(super) fn count_exchange(
        &self,
        output: &Tensor,
        output_splits: &[i64],
        input: &Tensor,
        input_splits: &[i64],
    ) {
        let row = row_bytes(input).max(row_bytes(output));
        self.meter.count(all_to_all(self.place, row, input_splits, output_splits));
    }

    /// Checks that `root` is a rank of the group.
    fn check_root(&self, root: usize) -> Result<(), CollectiveError> {
        if root < self.size() {
            return Ok(());
        }
        Err(CollectiveError::Argument {
            operation: "broadcast",
            group: self.name.clone(),
            expected: format!("a root below {}", self.size()),
            got: root.to_string(),
        })
    }
}

/// Checks that tensors are contiguous, of one dtype, and equal in number of elements times their factors.
pub(super) fn check_sizes(
    operation: &'static str,
    group: &str,
    output: &Tensor,
    output_factor: i64,
    input: &Tensor,
    input_factor: i64,
) -> Result<(), CollectiveError> {
    let numbers = (output.numel() as i64 * output_factor, input.numel() as i64 * input_factor);
    let contiguous = output.is_contiguous() && input.is_contiguous();
    if numbers.0 == numbers.1 && output.kind() == input.kind() && contiguous {
        return Ok(());
    }
    Err(CollectiveError::Argument {
        operation,
        group: group.to_owned(),
        expected: format!(
            "contiguous tensors of one dtype, the output's elements times {output_factor} equal to the input's \
             times {input_factor}"
        ),
        got: format!(
            "output {:?} {:?}, input {:?} {:?}, contiguous: {contiguous}",
            output.size(),
            output.kind(),
            input.size(),
            input.kind()
        ),
    })
}

/// Checks that there is one split per rank, and that the splits add up to the rows of their tensor.
pub(super) fn check_splits(
    group: &str,
    size: usize,
    output: &Tensor,
    output_splits: &[i64],
    input: &Tensor,
    input_splits: &[i64],
) -> Result<(), CollectiveError> {
    for (tensor, splits) in [(output, output_splits), (input, input_splits)] {
        let num_rows = tensor.size().first().copied().unwrap_or(0);
        let fits =
            splits.len() == size && splits.iter().all(|n| *n >= 0) && splits.iter().sum::<i64>() == num_rows;
        if !fits || !tensor.is_contiguous() || output.kind() != input.kind() {
            return Err(CollectiveError::Argument {
                operation: "all-to-all",
                group: group.to_owned(),
                expected: format!(
                    "contiguous tensors of one dtype and {size} splits that add up to the rows"
                ),
                got: format!("{:?} {:?} split by {splits:?}", tensor.size(), tensor.kind()),
            });
        }
    }
    Ok(())
}

/// Writes the sum over the first dimension of `chunks`, added row after row in fp32, to `output`.
pub(super) fn add_chunks(output: &Tensor, chunks: &Tensor) {
    no_grad(|| {
        let mut sum = chunks.get(0).to_kind(Kind::Float);
        for place in 1..chunks.size()[0] {
            sum += chunks.get(place);
        }
        let flat = output.view(-1);
        flat.shallow_clone().copy_(&sum);
    });
}
