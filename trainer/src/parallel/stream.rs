//! Ranks that compute one stream of tokens together, each a part of it: how many share one, and what they
//! exchange. How attention makes use of it is `actor::islands`; how ranks are laid out is `rlt_core::mesh`.

use std::sync::{Arc, Mutex, PoisonError};

use rlt_core::mesh::{Mesh, StreamPart};
use rlt_torch::collectives::{Collectives, Reduction};
use tch::Tensor;

use super::{RankError, Ranks};

/// The ranks of one stream, of which this is one.
#[derive(Debug)]
pub struct StreamRanks {
    part: StreamPart,
    group: Mutex<Box<dyn Collectives>>,
}

impl StreamRanks {
    /// The part of the stream that this rank computes.
    pub fn part(&self) -> StreamPart {
        self.part
    }

    /// Sends block `r` of `blocks`, `[num_parts, ..]`, to the rank of part `r`, and returns what they have
    /// sent to this one, in the order of parts.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn exchange(&self, blocks: &Tensor) -> Result<Tensor, RankError> {
        let sent = blocks.detach().contiguous();
        let received = sent.empty_like();
        let splits = vec![1; self.part.num_parts];
        let mut group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        group.all_to_all(&received, &sent, &splits, &splits)?.wait()?;
        Ok(received)
    }

    fn sum(&self, tensor: &Tensor) -> Result<(), RankError> {
        let mut group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(group.all_reduce(tensor, Reduction::Sum)?.wait()?)
    }
}

impl Ranks {
    /// The same ranks, of which `sp` neighbours each compute one stream together. All ranks do so once for
    /// each `sp`.
    ///
    /// # Errors
    /// [`RankError`] when `sp` does not divide the ranks, or one is lost.
    pub fn sharing_streams(self, sp: usize) -> Result<Self, RankError> {
        let mesh = Mesh::new(self.size, 1, sp)?;
        if sp == 1 {
            return Ok(Self { stream: None, ..self });
        }
        let name = format!("stream {} of {sp}", mesh.stream(self.rank));
        let group = self.lock().connect(&name, &mesh.stream_members(self.rank))?;
        let part = StreamPart { place: mesh.coordinates(self.rank).part, num_parts: sp };
        Ok(Self { stream: Some(Arc::new(StreamRanks { part, group: Mutex::new(group) })), ..self })
    }

    /// The ranks of this one's stream; `None` where every rank has tokens of its own.
    pub fn stream(&self) -> Option<&StreamRanks> {
        self.stream.as_deref()
    }

    /// The part of its stream that this rank computes.
    pub fn stream_part(&self) -> StreamPart {
        self.stream().map_or(StreamPart::WHOLE, StreamRanks::part)
    }

    /// Whether this rank counts what its stream has, so that it is counted once.
    pub fn counts_for_stream(&self) -> bool {
        self.stream_part().place == 0
    }

    /// Adds the vectors of the ranks of this stream element by element; all of them get the same bits.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn sum_over_stream(&self, vector: &mut [f64]) -> Result<(), RankError> {
        let Some(stream) = self.stream() else { return Ok(()) };
        let tensor = Tensor::from_slice(vector);
        stream.sum(&tensor)?;
        let len = vector.len();
        tensor.copy_data(vector, len);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
