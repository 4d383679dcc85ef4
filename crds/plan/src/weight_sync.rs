//! Amount of data that a step's weight sync moves from the actor to the rollout, and whether an adapter is
//! merged where `model.lora.merge` leaves that open.
//!
//! ```text
//! merged      b W / n bytes are packed, b' W (s - 1) / s sent       W elements of projections and head
//! unmerged    4 A bytes are copied, 4 A (s - 1) / s sent            A = sum of r (inputs + outputs)
//!
//! default     quantized: unmerged. On GPUs merged, because each decoding step has fewer launches.
//!             Otherwise unmerged if all of this holds:
//!               2 A t < 2 sum of r inputs outputs                   its products cost less than merging
//!               8 A < W                                             it is small
//!               the memory plan's peak is at most 9/8 as high       the packed base stays
//! ```
//! Legend: t tokens that a rank prefills and samples in a step with sequences of maximal length, s ranks that
//! hold one copy of the model, n ranks of a rollout tensor-parallel group, b bytes of an element of the
//! rollout's weights, b' of the stored weights, r rank of an adapter.

use rlt_api::resolved::ResolvedSpec;
use rlt_api::spec::LoraSpec;
use rlt_models::ModelConfig;
use serde::Serialize;

use super::batch::{BatchPlan, share};
use super::memory::{self, adapter};

/// Bytes of a trained parameter.
const TRAINED: u64 = 4;
/// Divisor that defines a small adapter: less than one trained parameter for 8 base weights.
const SMALL: u64 = 8;

/// Amount of data that the weight sync of one step moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WeightSync {
    /// Bytes that a rank copies from the actor to the rollout.
    pub bytes: u64,
    /// Bytes that a rank sends to the other ranks of its model copy, to gather what they copy.
    pub sent_bytes: u64,
}

impl WeightSync {
    /// Computes the weight sync of any step after the first. Adapter targets that are patterns count as all
    /// linear layers: an upper bound.
    pub fn new(spec: &ResolvedSpec, model: &ModelConfig) -> Self {
        let model = &memory::quantized_as(spec, model);
        let shards = u64::from(spec.workers.mesh.dp_shard);
        if let Some(lora) = spec.model.lora.as_ref().filter(|lora| lora.merge == Some(false)) {
            return Self::of_adapter(lora, model, shards);
        }
        let (width, kept) = memory::widths_of_sync(spec);
        let weights = model.matrices_of_layers() + (model.vocab_size * model.hidden_size) as u64;
        Self {
            bytes: width * weights / u64::from(spec.workers.mesh.rollout_tp),
            sent_bytes: kept * sent_in_sync(spec, model, weights),
        }
    }

    /// Computes the weight sync of an unmerged adapter that is sharded over `shards` ranks.
    pub fn of_adapter(lora: &LoraSpec, model: &ModelConfig, shards: u64) -> Self {
        let bytes = TRAINED * adapter::trained(lora, model).num_parameters;
        Self { bytes, sent_bytes: bytes * (shards - 1) / shards }
    }
}

/// Number of elements that a rank sends so that all ranks of a model copy have all of `weights`. It sends its
/// FSDP shard to the ranks with the same experts and the same tensor-parallel index, then the gathered
/// tensor-parallel shard to ranks with other indices, then its experts to ranks with other experts.
pub(super) fn sent_in_sync(spec: &ResolvedSpec, model: &ModelConfig, weights: u64) -> u64 {
    let mesh = &spec.workers.mesh;
    let [shards, sp, ep, tp] = [mesh.dp_shard, mesh.sp, mesh.ep, mesh.tp].map(u64::from);
    let experts = if ep > 1 { model.expert_weights().0 } else { 0 };
    let (own, same) = (experts / ep, shards * sp / ep);
    let (cut, cut_experts) = ((weights - experts) / tp, own / tp);
    let by_fsdp = cut * (shards - 1) / shards + cut_experts * (same - 1) / same;
    by_fsdp + (cut + cut_experts) * (tp - 1) + own * (ep - 1)
}

/// Whether merging a small adapter takes more operations than its own products in a step.
pub(super) fn folding_costs_more(spec: &ResolvedSpec, lora: &LoraSpec, model: &ModelConfig) -> bool {
    let batch = BatchPlan::new(spec);
    let of_prompt = u64::from(spec.data.max_prompt_tokens)
        + batch.samples_per_prompt * u64::from(spec.rollout.max_completion_tokens);
    let tokens = share(spec, batch.prompts_per_step) * of_prompt;
    let trained = adapter::trained(lora, model).num_parameters;
    let is_small = SMALL * trained < model.matrices_of_layers();
    is_small && tokens.saturating_mul(trained) < adapter::folding_products(lora, model)
}
