//! Errors of the exchange between ranks, and which rank caused them.

use rlt_core::packed_samples::PackedSamplesError;
use rlt_layout::{ExpertMeshError, MeshError};
use rlt_torch::collectives::{CollectiveError, RendezvousError};

/// Ranks could not work together.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is its message")]
pub enum RankError {
    #[error("the rendezvous of the ranks failed")]
    Rendezvous(#[from] RendezvousError),
    #[error("failed to exchange tensors with the other ranks")]
    Collective(#[from] CollectiveError),
    #[error("failed to shard the model")]
    Mesh(#[from] MeshError),
    #[error("failed to distribute the experts")]
    ExpertMesh(#[from] ExpertMeshError),
    #[error(
        "failed to distribute the experts: expected a number of experts that {ep} ranks divide, got {num_experts}"
    )]
    Experts { num_experts: usize, ep: usize },
    #[error("failed to allocate or gather an FSDP unit")]
    Shards(#[from] rlt_torch::Error),
    #[error("failed to offload or prefetch a layer's input for its backward pass")]
    Activations(#[source] rlt_torch::Error),
    #[error("failed to exchange the samples of rank {rank}")]
    Samples { rank: usize, source: PackedSamplesError },
    #[error("failed to write a message to the other ranks")]
    Encode(#[source] serde_json::Error),
    #[error("failed to read a message of another rank")]
    Decode(#[source] serde_json::Error),
    #[error("the leader did not send the message that all ranks wait for")]
    NothingFromLeader,
    #[error("{name}: expected {expected}, got {got}")]
    Environment { name: &'static str, expected: String, got: String },
}

impl RankError {
    /// Whether another rank was lost, so that this rank is not at fault.
    pub fn is_peer_lost(&self) -> bool {
        matches!(self, Self::Rendezvous(_) | Self::Collective(CollectiveError::Failed { .. }))
    }
}
