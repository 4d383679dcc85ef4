//! Facts about a model that a conflict may name: parts that some settings or devices do not support.

use rlt_api::conflicts::{Fact, Facts};

use super::{ExpertForm, Experts, ModelConfig, NormKind, QkNorm, families};

/// Width of the widest head that the rollout's attention kernel for GPUs reads. Narrower heads are padded to
/// a multiple of 8.
const WIDEST_HEAD: usize = 256;

impl ModelConfig {
    /// Returns the facts of the model alone.
    pub fn facts(&self) -> Facts {
        let experts = |of: fn(&Experts) -> bool| self.experts.as_ref().is_some_and(of);
        Facts::default()
            .with(Fact::Experts, self.experts.is_some())
            .with(Fact::Dense, self.experts.is_none())
            .with(Fact::ExpertBiases, experts(|experts| experts.form == ExpertForm::Clamped))
            .with(Fact::ExpertGroups, experts(|experts| experts.routing.groups.is_some()))
            .with(Fact::ManyExperts, experts(Experts::are_too_many_for_gpus))
            .with(Fact::LatentAttention, self.latent.is_some())
            .with(Fact::VisionTower, self.vision.is_some())
            .with(Fact::NoVisionTower, self.vision.is_none())
            .with(Fact::AttentionSinks, self.attention_sinks)
            .with(Fact::AttentionSoftcap, self.attention_softcap.is_some())
            .with(Fact::LogitSoftcap, self.logit_softcap.is_some())
            .with(Fact::LayerNorms, self.norm_kind == NormKind::Layer)
            .with(Fact::ParallelBlocks, self.parallel_blocks)
            .with(Fact::QkNormAllHeads, self.qk_norm == QkNorm::AllHeads)
            .with(Fact::QkNormEachHead, self.qk_norm == QkNorm::EachHead)
            .with(Fact::WideHeads, self.head_dim > WIDEST_HEAD)
            .with(Fact::Quantized, self.quantization.is_some())
            .with(Fact::NoClassifier, !families::definition(self.family).has_classifier)
    }
}
