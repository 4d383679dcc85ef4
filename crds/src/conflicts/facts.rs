//! Facts about a job, its model and its device to which conflicts refer, and how they are detected in a
//! manifest and a job. `ModelConfig::facts` detects the facts of a model.

use std::collections::BTreeSet;

use super::ChosenDevice;
use crate::resolved::{OutputHead, ResolvedSpec, samples};
use crate::rules::{estimator, with_critic};
use crate::spec::{DropoutPosition, LoraInit, LoraSpec, MeshSpec, RLTrainingJobSpec, VisionTraining};

/// Declares the facts, each with the field that sets it (or the section of the model) and its description for
/// the documentation.
macro_rules! facts {
    ($($(#[$doc:meta])* $fact:ident: $field:literal, $words:literal;)*) => {
        /// Fact about a job, its model or its device.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fact {
            $($(#[$doc])* $fact,)*
        }

        impl Fact {
            /// All facts, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$fact),*];

            /// Path of the field that decides the fact in a manifest; empty for a part of a model that only
            /// its files show.
            pub fn field(self) -> &'static str {
                match self {
                    $(Self::$fact => $field,)*
                }
            }

            /// Description of the fact in the words of the documentation.
            pub fn words(self) -> &'static str {
                match self {
                    $(Self::$fact => $words,)*
                }
            }
        }
    };
}

facts! {
    /// Tensor parallelism of the training.
    Tp: "spec.workers.mesh.tp", "`spec.workers.mesh.tp` above 1";
    /// Sequence parallelism of updates.
    Sp: "spec.workers.mesh.sp", "`spec.workers.mesh.sp` above 1";
    /// Sequence parallelism of log-probs.
    LogprobSp: "spec.workers.mesh.logprobSp", "`spec.workers.mesh.logprobSp` above 1";
    /// Sequence parallelism of the reference's log-probs.
    ReferenceSp: "spec.workers.mesh.referenceSp", "`spec.workers.mesh.referenceSp` above 1";
    /// Sequence parallelism of a critic.
    CriticSp: "spec.workers.mesh.criticSp", "`spec.workers.mesh.criticSp` above 1";
    /// Expert parallelism of the training.
    Ep: "spec.workers.mesh.ep", "`spec.workers.mesh.ep` above 1";
    /// Tensor parallelism of the rollout.
    RolloutTp: "spec.workers.mesh.rolloutTp", "`spec.workers.mesh.rolloutTp` above 1";
    /// Ranks with a GPU each.
    OnGpu: "spec.workers.device", "GPUs";
    /// Adapter of any kind.
    Adapter: "spec.model.lora", "`spec.model.lora`";
    /// Full-parameter training, without an adapter.
    FullTraining: "spec.model.lora", "training without `spec.model.lora`";
    /// Weight-decomposed adapter (DoRA).
    Dora: "spec.model.lora.dora", "DoRA (`spec.model.lora.dora`)";
    /// Adapters of parameters that are not linear layers.
    ExpertAdapters: "spec.model.lora.targetParameters", "adapters of `spec.model.lora.targetParameters`";
    /// Modules that are trained in full beside an adapter.
    ModulesToSave: "spec.model.lora.modulesToSave", "`spec.model.lora.modulesToSave`";
    /// Dropout of an adapter.
    AdapterDropout: "spec.model.lora.dropout", "`spec.model.lora.dropout` above 0";
    /// Dropout on the outputs of an adapter.
    DropoutAfter: "spec.model.lora.dropoutPosition", "`spec.model.lora.dropoutPosition: After`";
    /// Adapter that starts from orthogonal vectors.
    OrthogonalInit: "spec.model.lora.init", "`spec.model.lora.init: Orthogonal`";
    /// Adapter that is read from a folder.
    StartingAdapter: "spec.model.lora.adapterPath", "`spec.model.lora.adapterPath`";
    /// Adapter that is newly initialized.
    NewAdapter: "spec.model.lora.adapterPath", "an adapter without `spec.model.lora.adapterPath`";
    /// Adapter whose rank differs from that of its folder.
    ResizedAdapter: "spec.model.lora.resizeAdapter", "`spec.model.lora.resizeAdapter`";
    /// Rollout with an unmerged adapter.
    UnmergedAdapter: "spec.model.lora.merge", "`spec.model.lora.merge: false`";
    /// Rollout with a merged adapter, by the manifest.
    MergedAdapter: "spec.model.lora.merge", "`spec.model.lora.merge: true`";
    /// Adapter of the vision tower.
    AdaptedTower: "spec.model.lora.vlmLora", "`spec.model.lora.vlmLora: Vision` or `Both`";
    /// Vision tower that is trained in full.
    TrainedTower: "spec.model.visionTower", "`spec.model.visionTower: Trained`";
    /// Quantization that the job asks for.
    Quantization: "spec.model.quantization", "`spec.model.quantization`";
    /// Quantized weights, by the job or in the model's files.
    Quantized: "spec.model.quantization", "quantized weights";
    /// Sampling of completions, for training or for rewards in an evaluation.
    Sampling: "spec.algorithm.kind", "training or an evaluation that samples";
    /// Losses of full completions, whose scores are computed in a separate pass before the gradient's.
    ScoredCompletions: "spec.algorithm.kind", "preference training and reward models";
    /// Training of a reward model, whose head gives labels.
    LabelHead: "spec.algorithm", "training a reward model";
    /// Loss of the routers of experts.
    RouterLoss: "spec.training.routerAuxLossCoef", "`spec.training.routerAuxLossCoef` above 0";
    /// Rows that are read as a stream.
    Streaming: "spec.data.streaming", "`spec.data.streaming`";
    /// Limit of the number of training prompts.
    MaxTrainPrompts: "spec.data.maxTrainPrompts", "`spec.data.maxTrainPrompts`";
    /// Updates of the reference policy towards the actor.
    ReferenceSync: "spec.algorithm.referenceSync", "`spec.algorithm.referenceSync`";
    /// Offload of the reference policy, by the manifest.
    ReferenceOffload: "spec.training.roles.reference.offloadParameters",
        "`spec.training.roles.reference.offloadParameters`";
    /// Compute dtype of the reference policy, by the manifest.
    ReferencePrecision: "spec.training.roles.reference.precision", "`spec.training.roles.reference.precision`";
    /// Compute dtype of the critic, by the manifest.
    CriticPrecision: "spec.training.roles.critic.precision", "`spec.training.roles.critic.precision`";
    /// FSDP degree of the reference policy, by the manifest.
    ReferenceShards: "spec.workers.mesh.referenceDpShard", "`spec.workers.mesh.referenceDpShard`";
    /// FSDP degree of the critic, by the manifest.
    CriticShards: "spec.workers.mesh.criticDpShard", "`spec.workers.mesh.criticDpShard`";
    /// Algorithm kind that never reads log-probs of a reference policy.
    NoReference: "spec.algorithm.kind", "`SFT`, `RewardModel` and `ProcessReward`";
    /// Estimator that reads no values of a critic.
    NoCritic: "spec.algorithm.advantage.estimator", "an advantage estimator that reads no values";
    /// Experts in some layers.
    Experts: "spec.model.architecture.experts", "experts";
    /// Feed-forward blocks without experts in all layers.
    Dense: "", "a model without experts";
    /// Experts with biases.
    ExpertBiases: "", "experts with biases";
    /// Experts that are chosen by groups.
    ExpertGroups: "", "groups of experts";
    /// Experts beyond the limits of the routing kernel for GPUs.
    ManyExperts: "", "more than 1024 experts in a layer or 32 for a token";
    /// Latent attention of all layers.
    LatentAttention: "", "latent attention";
    /// Vision tower of the model.
    VisionTower: "spec.model.architecture.vision", "a vision tower";
    /// Text model without a vision tower.
    NoVisionTower: "", "a model without a vision tower";
    /// Attention with a sink for each head.
    AttentionSinks: "", "attention sinks";
    /// Softcap of attention scores.
    AttentionSoftcap: "", "softcapped attention scores";
    /// Softcap of logits.
    LogitSoftcap: "", "softcapped logits";
    /// Layer norms in place of RMS norms.
    LayerNorms: "", "layer norms";
    /// Feed-forward blocks that read the input of attention.
    ParallelBlocks: "", "parallel attention and feed-forward blocks";
    /// Norm of queries and keys over all heads.
    QkNormAllHeads: "", "a norm of queries and keys over all heads";
    /// Norm of queries and keys with weights for each head.
    QkNormEachHead: "", "a norm of queries and keys with weights for each head";
    /// Heads that are wider than the rollout's attention kernel for GPUs reads.
    WideHeads: "", "heads of more than 256";
    /// Family without a classifier in transformers.
    NoClassifier: "", "a family without classifiers in transformers";
}

impl Fact {
    /// Value of the fact's field in a job that has the fact, as refusals show it; empty for facts that no
    /// refusal asks to change.
    pub(super) fn value_in(self, spec: &ResolvedSpec) -> String {
        let mesh = &spec.workers.mesh;
        match self {
            Self::Tp => mesh.tp.to_string(),
            Self::Sp => mesh.sp.to_string(),
            Self::LogprobSp => mesh.sp_of_logprobs().to_string(),
            Self::ReferenceSp => mesh.sp_of_reference().to_string(),
            Self::CriticSp => mesh.sp_of_critic().to_string(),
            Self::Ep => mesh.ep.to_string(),
            Self::RolloutTp => mesh.rollout_tp.to_string(),
            Self::OnGpu => "Cuda".to_owned(),
            Self::FullTraining => "none".to_owned(),
            Self::Dora | Self::MergedAdapter => "true".to_owned(),
            Self::UnmergedAdapter => "false".to_owned(),
            Self::ExpertAdapters => {
                let lora = spec.model.lora.as_ref();
                lora.map_or_else(String::new, |lora| lora.target_parameters.join(", "))
            }
            Self::AdaptedTower => {
                spec.model.lora.as_ref().map_or_else(String::new, |lora| format!("{:?}", lora.vlm_lora))
            }
            Self::TrainedTower => "Trained".to_owned(),
            Self::Quantization | Self::Quantized => "a quantization".to_owned(),
            Self::LabelHead => "a reward model".to_owned(),
            Self::RouterLoss => spec.training.router_aux_loss_coef.to_string(),
            _ => String::new(),
        }
    }
}

/// Set of facts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts(BTreeSet<Fact>);

impl Facts {
    /// Collects the facts that a manifest shows by itself. Facts about the model are included only as far as
    /// the manifest describes its architecture. The device is not known.
    pub(crate) fn of_manifest(spec: &RLTrainingJobSpec) -> Self {
        let (model, kind) = (&spec.model, spec.algorithm.kind);
        let shape = model.architecture.as_ref();
        let is_quantized = model.quantization.is_some();
        let (mesh, training) = (&spec.workers.mesh, &spec.training);
        Self::default()
            .with_mesh(mesh)
            .with(Fact::ReferenceShards, mesh.reference_dp_shard.is_some())
            .with(Fact::CriticShards, mesh.critic_dp_shard.is_some())
            .with(Fact::ReferenceOffload, training.reference_role().offload_parameters.is_some())
            .with(Fact::ReferencePrecision, training.reference_role().precision.is_some())
            .with(Fact::CriticPrecision, training.critic_role().precision.is_some())
            .with(Fact::ReferenceSync, spec.algorithm.reference_sync.is_some())
            .with(Fact::NoReference, kind.learns_from().never_reads_reference())
            .with(Fact::NoCritic, !with_critic().contains(&estimator(spec)))
            .with_adapter(model.lora.as_ref())
            .with(Fact::TrainedTower, model.vision_tower == VisionTraining::Trained)
            .with(Fact::Quantization, is_quantized)
            .with(Fact::Quantized, is_quantized)
            .with(Fact::Sampling, samples(kind, &spec.rewards, &spec.data))
            .with(Fact::ScoredCompletions, kind.learns_from().scores_completions())
            .with(Fact::LabelHead, kind.learns_from().trains_reward_model())
            .with(Fact::Streaming, spec.data.streaming.is_some())
            .with(Fact::MaxTrainPrompts, spec.data.max_train_prompts.is_some())
            .with(Fact::Experts, shape.is_some_and(|shape| shape.experts.is_some()))
            .with(Fact::VisionTower, shape.is_some_and(|shape| shape.vision.is_some()))
            .with(Fact::NoVisionTower, shape.is_some_and(|shape| shape.vision.is_none()))
    }

    /// Adds the facts of a job on its device to those of its model.
    #[must_use]
    pub fn with_job(self, spec: &ResolvedSpec, device: ChosenDevice) -> Self {
        let quantization = spec.model.quantization.as_ref();
        let policy_gradient = spec.algorithm.policy_gradient.as_ref();
        let has_critic = policy_gradient.is_some_and(|algorithm| algorithm.critic.is_some());
        let mesh = &spec.workers.mesh;
        self.with_mesh(mesh)
            .with(Fact::LogprobSp, mesh.sp_of_logprobs() > 1)
            .with(Fact::ReferenceSp, mesh.sp_of_reference() > 1)
            .with(Fact::CriticSp, has_critic && mesh.sp_of_critic() > 1)
            .with_adapter(spec.model.lora.as_ref())
            .on(device)
            .with(Fact::TrainedTower, spec.model.vision_tower == VisionTraining::Trained)
            .with(Fact::Quantization, quantization.is_some())
            .with(Fact::Quantized, quantization.is_some())
            .with(Fact::Sampling, spec.samples())
            .with(Fact::LabelHead, spec.algorithm.head() != OutputHead::Vocabulary)
            .with(Fact::RouterLoss, spec.training.router_aux_loss_coef != 0.0)
    }

    /// Whether the set has a fact.
    pub fn has(&self, fact: Fact) -> bool {
        self.0.contains(&fact)
    }

    /// Adds a fact if `holds` is true. A fact that the set already has is kept in any case.
    #[must_use]
    pub fn with(mut self, fact: Fact, holds: bool) -> Self {
        if holds {
            self.0.insert(fact);
        }
        self
    }

    /// Adds the facts of a device.
    #[must_use]
    pub fn on(self, device: ChosenDevice) -> Self {
        self.with(Fact::OnGpu, device == ChosenDevice::Cuda)
    }

    /// Adds the facts of an adapter, or of training without one.
    #[must_use]
    pub fn with_adapter(self, lora: Option<&LoraSpec>) -> Self {
        let Some(lora) = lora else { return self.with(Fact::FullTraining, true) };
        self.with(Fact::Adapter, true)
            .with(Fact::Dora, lora.dora)
            .with(Fact::ExpertAdapters, !lora.target_parameters.is_empty())
            .with(Fact::ModulesToSave, !lora.modules_to_save.is_empty())
            .with(Fact::AdapterDropout, lora.dropout != 0.0)
            .with(Fact::DropoutAfter, lora.dropout_position == DropoutPosition::After)
            .with(Fact::OrthogonalInit, lora.init == LoraInit::Orthogonal)
            .with(Fact::StartingAdapter, lora.adapter_path.is_some())
            .with(Fact::NewAdapter, lora.adapter_path.is_none())
            .with(Fact::ResizedAdapter, lora.resize_adapter)
            .with(Fact::UnmergedAdapter, lora.merge == Some(false))
            .with(Fact::MergedAdapter, lora.merge == Some(true))
            .with(Fact::AdaptedTower, lora.vlm_lora.adapts_vision())
    }

    /// Adds the parallelism axes that a manifest gives a degree above 1.
    fn with_mesh(self, mesh: &MeshSpec) -> Self {
        self.with(Fact::Tp, mesh.tp > 1)
            .with(Fact::Sp, mesh.sp > 1)
            .with(Fact::Ep, mesh.ep > 1)
            .with(Fact::RolloutTp, mesh.rollout_tp > 1)
    }
}
