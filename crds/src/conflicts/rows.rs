//! Rows of the table of conflicts. The first row whose facts a job has is its error, so a row about training
//! comes before one about the rollout.

use super::validation::*;
use super::{Conflict, ConflictRule, Fact, Refused};

/// Every combination that is refused.
pub static CONFLICTS: &[Conflict] = &[
    row(Fact::Tp, &[Fact::LatentAttention]).because(SHARED_WEIGHTS, "with latent attention", "1"),
    row(Fact::Tp, &[Fact::VisionTower]).because(SHARED_WEIGHTS, "with a vision tower", "1").rule(TP_VISION),
    row(Fact::Tp, &[Fact::Quantized])
        .because(SHARED_WEIGHTS, "with quantized weights", "1")
        .rule(TP_QUANTIZED),
    row(Fact::Tp, &[Fact::AttentionSinks]).because(SHARED_WEIGHTS, "with a sink for each head", "1"),
    row(Fact::Tp, &[Fact::QkNormAllHeads]).because(
        SHARED_WEIGHTS,
        "that normalises queries and keys over all heads",
        "1",
    ),
    row(Fact::Tp, &[Fact::QkNormEachHead]).because(
        SHARED_WEIGHTS,
        "that normalises each head of queries and keys by weights of its own",
        "1",
    ),
    row(Fact::Tp, &[Fact::Dora]).rule(TP_DORA),
    row(Fact::Sp, &[Fact::AttentionSinks]).because(SHARED_ATTENTION, "", "1"),
    row(Fact::LogprobSp, &[Fact::AttentionSinks]).because(SHARED_ATTENTION, "", "1"),
    row(Fact::ReferenceSp, &[Fact::AttentionSinks]).because(SHARED_ATTENTION, "", "1"),
    row(Fact::CriticSp, &[Fact::AttentionSinks]).because(SHARED_ATTENTION, "", "1"),
    row(Fact::Ep, &[Fact::Dense]).because(
        "<got> ranks cannot share the experts of <family>, which has none",
        "",
        "1",
    ),
    row(Fact::OnGpu, &[Fact::AttentionSoftcap]).because(NO_KERNELS, "softcapped attention scores", "Cpu"),
    row(Fact::OnGpu, &[Fact::AttentionSinks]).because(NO_KERNELS, "attention sinks", "Cpu"),
    row(Fact::OnGpu, &[Fact::LogitSoftcap]).because(NO_KERNELS, "softcapped logits", "Cpu"),
    row(Fact::OnGpu, &[Fact::LayerNorms]).because(NO_KERNELS, "layer norms", "Cpu"),
    row(Fact::OnGpu, &[Fact::ParallelBlocks]).because(
        NO_KERNELS,
        "parallel attention and feed-forward blocks",
        "Cpu",
    ),
    row(Fact::OnGpu, &[Fact::LatentAttention]).because(
        NO_KERNELS,
        "latents in place of keys and values",
        "Cpu",
    ),
    row(Fact::OnGpu, &[Fact::ExpertBiases]).because(NO_KERNELS, "experts with biases", "Cpu"),
    row(Fact::OnGpu, &[Fact::ExpertGroups]).because(NO_KERNELS, "groups of experts", "Cpu"),
    row(Fact::OnGpu, &[Fact::ManyExperts]).because(
        NO_KERNELS,
        "more than 1024 experts in a layer or 32 for a token",
        "Cpu",
    ),
    row(Fact::Ep, &[Fact::OnGpu]).because(
        "ranks with GPUs do not exchange rows of experts yet",
        "",
        "1 on GPUs",
    ),
    row(Fact::OnGpu, &[Fact::WideHeads, Fact::Sampling]).because(
        "the heads of <family> are <head_dim> wide, and the rollout on GPUs reads heads of at most 256",
        "",
        "Cpu",
    ),
    row(Fact::Quantized, &[Fact::Experts]).because(NOT_QUANTIZED, "experts", "none").rule(QUANTIZED_EXPERTS),
    row(Fact::Quantized, &[Fact::LatentAttention]).because(NOT_QUANTIZED, "latent attention", "none"),
    row(Fact::FullTraining, &[Fact::Quantized])
        .because(NARROW, "", "an adapter, as such weights are frozen")
        .rule(QUANTIZED_TRAINED),
    row(Fact::Dora, &[Fact::Quantized])
        .because(NARROW, "", "false, as the rollout has no magnitudes for quantized weights")
        .rule(QUANTIZED_DORA),
    row(Fact::MergedAdapter, &[Fact::Quantized])
        .because(NARROW, "", "false, as the rollout folds nothing into codes")
        .rule(QUANTIZED_MERGED),
    row(Fact::RolloutTp, &[Fact::Quantized])
        .because(NARROW, "", "1, as each rank samples alone")
        .rule(QUANTIZED_ROLLOUT_TP),
    row(Fact::UnmergedAdapter, &[Fact::Dora])
        .because(NOT_UNMERGED, "DoRA, which scales whole weights", "true")
        .rule(UNMERGED),
    row(Fact::UnmergedAdapter, &[Fact::ExpertAdapters])
        .because(NOT_UNMERGED, "adapters of experts' parameters", "true")
        .rule(UNMERGED),
    row(Fact::UnmergedAdapter, &[Fact::ModulesToSave])
        .because(NOT_UNMERGED, "modules that are trained whole (modulesToSave)", "true")
        .rule(UNMERGED),
    row(Fact::UnmergedAdapter, &[Fact::LatentAttention]).because(
        NOT_UNMERGED,
        "latent attention, whose queries absorb weights",
        "true",
    ),
    row(Fact::UnmergedAdapter, &[Fact::Experts, Fact::OnGpu]).because(
        NOT_UNMERGED,
        "experts on a GPU, whose kernels take no unmerged adapter",
        "true",
    ),
    row(Fact::AdaptedTower, &[Fact::NoVisionTower]).because(NO_TOWER, "", "Text").rule(ADAPTED_TOWER),
    row(Fact::TrainedTower, &[Fact::NoVisionTower]).because(NO_TOWER, "", "Frozen").rule(TRAINED_NO_TOWER),
    row(Fact::Sp, &[Fact::VisionTower]).because(TOWER, "", SHARED_IMAGES),
    row(Fact::LogprobSp, &[Fact::VisionTower]).because(TOWER, "", SHARED_IMAGES),
    row(Fact::ReferenceSp, &[Fact::VisionTower]).because(TOWER, "", SHARED_IMAGES),
    row(Fact::CriticSp, &[Fact::VisionTower]).because(TOWER, "", SHARED_IMAGES),
    row(Fact::RolloutTp, &[Fact::VisionTower]).because(TOWER, "", "1, as each rank samples alone"),
    row(Fact::Quantization, &[Fact::VisionTower]).because(TOWER, "", "none"),
    row(Fact::LabelHead, &[Fact::VisionTower]).because(
        TOWER,
        "",
        "an algorithm that trains a policy, as reward models read text alone",
    ),
    row(Fact::RouterLoss, &[Fact::Dense]).because(
        "<family> has no experts whose router it could balance",
        "",
        "0",
    ),
    row(Fact::LabelHead, &[Fact::NoClassifier]).because(
        "<family> has no classifiers in transformers, as which a reward model is exported",
        "",
        "an algorithm that trains a policy",
    ),
    row(Fact::RolloutTp, &[Fact::AttentionSinks]).because(
        SHARED_LAYERS,
        "has a sink for each head and experts with biases",
        "1",
    ),
    row(Fact::RolloutTp, &[Fact::QkNormAllHeads]).because(
        SHARED_LAYERS,
        "normalises queries and keys over all heads",
        "1",
    ),
    row(Fact::RolloutTp, &[Fact::QkNormEachHead]).because(
        SHARED_LAYERS,
        "normalises each head of queries and keys by weights of its own",
        "1",
    ),
    row(Fact::ExpertAdapters, &[Fact::ExpertBiases]).because(
        "<family> has experts with biases",
        "",
        "none, as experts with biases have no adapters",
    ),
    row(Fact::AdapterDropout, &[Fact::ExpertAdapters]).rule(PARAMETERS_DROPOUT),
    row(Fact::OrthogonalInit, &[Fact::ExpertAdapters]).rule(PARAMETERS_ORTHOGONAL),
    row(Fact::Dora, &[Fact::ExpertAdapters]).rule(PARAMETERS_DORA),
    row(Fact::DropoutAfter, &[Fact::Dora]).rule(DORA_DROPOUT),
    row(Fact::ResizedAdapter, &[Fact::NewAdapter]).rule(RESIZED),
    row(Fact::ResizedAdapter, &[Fact::ExpertAdapters]).rule(RESIZED),
    row(Fact::TrainedTower, &[Fact::Adapter]).rule(TRAINED_TOWER_ADAPTER),
    row(Fact::AdapterDropout, &[Fact::ScoredCompletions]).rule(SCORED_DROPOUT),
    row(Fact::StartingAdapter, &[Fact::LabelHead]).rule(REWARD_MODEL_ADAPTER),
    row(Fact::MaxTrainPrompts, &[Fact::Streaming]).rule(STREAM_LIMIT),
    row(Fact::ReferenceSync, &[Fact::Adapter]).rule(REFERENCE_SYNC_ADAPTER),
    row(Fact::ReferenceOffload, &[Fact::Adapter]).rule(REFERENCE_OFFLOAD_ADAPTER),
    row(Fact::ReferencePrecision, &[Fact::Adapter]).rule(REFERENCE_PRECISION_ADAPTER),
    row(Fact::CriticPrecision, &[Fact::Adapter]).rule(CRITIC_PRECISION_ADAPTER),
    row(Fact::ReferenceShards, &[Fact::Adapter]).rule(REFERENCE_SHARDS),
    row(Fact::ReferenceShards, &[Fact::NoReference]).rule(REFERENCE_SHARDS),
    row(Fact::CriticShards, &[Fact::Adapter]).rule(CRITIC_SHARDS),
    row(Fact::CriticShards, &[Fact::NoCritic]).rule(CRITIC_SHARDS),
];

const SHARED_WEIGHTS: &str = "<got> ranks cannot share the weights of a model <part>";
const SHARED_ATTENTION: &str = "<got> ranks cannot share the attention of a model with a sink for each head";
const SHARED_LAYERS: &str = "<got> ranks cannot share the layers of a model that <part>";
const SHARED_IMAGES: &str = "1, as the tokens of images are not shared among ranks yet";
const NO_KERNELS: &str = "<family> has <part>, which have no kernels for GPUs yet";
const NOT_QUANTIZED: &str = "<family> has <part>, which cannot be quantized yet";
const NARROW: &str = "the model's linear layers have 4 or 8 bits";
const NOT_UNMERGED: &str = "with an unmerged adapter the rollout does not sample from <part>";
const TOWER: &str = "<family> has a vision tower";
const NO_TOWER: &str = "<family> has no vision tower";

const fn row(fact: Fact, with: &'static [Fact]) -> Conflict {
    Conflict { fact, with, rule: None, refused: None }
}

impl Conflict {
    /// Sets the texts with which jobs are refused.
    const fn because(mut self, because: &'static str, part: &'static str, expected: &'static str) -> Self {
        self.refused = Some(Refused { because, part, expected });
        self
    }

    /// Sets the validation rule that refuses manifests.
    const fn rule(mut self, rule: &'static ConflictRule) -> Self {
        self.rule = Some(rule);
        self
    }
}
