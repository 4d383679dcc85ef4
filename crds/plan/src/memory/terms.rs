//! Memory terms: named bytes on the device or its host, and the phases of a step that have them.

use rlt_api::resolved::ResolvedSpec;
use serde::Serialize;

use super::on_gpu;

/// Bytes of an fp32 element.
pub(super) const FP32: u64 = 4;

/// Phases of a step that differ in memory use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Phase {
    /// Weights are read or initialized, and copied for the reference and the critic.
    Loading,
    /// Weight sync: the rollout packs or copies the actor's weights.
    WeightSync,
    /// Completions are sampled.
    Rollout,
    /// Reward models score completions.
    Reward,
    /// The actor, critic or reference policy scores completions, without gradients.
    Logprob,
    /// Forward and backward passes of an update.
    Update,
    /// The optimizer's step.
    Optimizer,
}

/// Memory that holds a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Place {
    /// Memory of the GPU.
    Device,
    /// Host memory: pinned where a GPU copies from or to it. On a CPU every term is here.
    Host,
}

/// A named amount of memory, such as the weights or the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryTerm {
    /// Name of the term, the same in all phases and releases.
    pub name: &'static str,
    /// Memory that holds it.
    pub place: Place,
    /// Size in bytes.
    pub bytes: u64,
}

/// Returns a term on the compute device.
pub(super) fn term(name: &'static str, bytes: u64) -> MemoryTerm {
    MemoryTerm { name, place: Place::Device, bytes }
}

/// Returns a term on the host, also for jobs on GPUs.
pub(super) fn on_host(name: &'static str, bytes: u64) -> MemoryTerm {
    MemoryTerm { name, place: Place::Host, bytes }
}

/// Returns a term that is resident for the whole run: on the device, or on the host of a GPU if it is
/// offloaded. On a CPU offloaded tensors are in a file and take 0 bytes.
pub(super) fn resident_term(
    spec: &ResolvedSpec,
    name: &'static str,
    is_offloaded: bool,
    bytes: u64,
) -> MemoryTerm {
    match (is_offloaded, on_gpu(spec)) {
        (true, true) => on_host(name, bytes),
        (true, false) => term(name, 0),
        (false, _) => term(name, bytes),
    }
}
