//! Defaults of verl and TRL (`algorithm.preset`), which replace those of the algorithm's own preset. Fields
//! of the manifest override both.

use rlt_algorithms::declaration::Parameters;
use rlt_algorithms::kl::KlEstimator;
use rlt_algorithms::loss::{CLIP_HIGH, CLIP_LOW, DUAL_CLIP, PENALTY};

use super::{AlgorithmKind, Preset};
use crate::spec::{KlPlacement, LossAggregation, ScheduleKind};

/// Project whose default configuration a job can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PresetProject {
    /// Defaults of verl.
    Verl,
    /// Defaults of TRL.
    Trl,
}

rlt_algorithms::choice!(PresetProject, ["verl", "trl"]);

impl PresetProject {
    /// All projects with presets.
    pub const ALL: [Self; 2] = [Self::Verl, Self::Trl];

    /// Name of the project in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Verl => "verl",
            Self::Trl => "trl",
        }
    }

    /// Documentation of the project's defaults.
    pub fn doc(self) -> &'static str {
        match self {
            Self::Verl => "verl 0.9, for `PPO`, `GRPO`, `RLOO`, `ReinforcePlusPlus` and `ReMax`.",
            Self::Trl => "TRL 1.16, for `SFT`, `GRPO`, `DPO`, `KTO` and `RewardModel`.",
        }
    }

    /// Algorithms for which the project has defaults.
    pub fn kinds(self) -> &'static [AlgorithmKind] {
        use AlgorithmKind::{Dpo, Grpo, Kto, Ppo, ReMax, ReinforcePlusPlus, RewardModel, Rloo, Sft};
        match self {
            Self::Verl => &[Ppo, Grpo, Rloo, ReinforcePlusPlus, ReMax],
            Self::Trl => &[Sft, Grpo, Dpo, Kto, RewardModel],
        }
    }

    /// Replaces fields of a preset by the project's defaults; algorithms that the project does not have are
    /// unchanged.
    pub(crate) fn over(self, kind: AlgorithmKind, preset: Preset) -> Preset {
        match self {
            _ if !self.kinds().contains(&kind) => preset,
            Self::Verl => verl(preset),
            Self::Trl => trl(kind, preset),
        }
    }
}

/// Defaults of verl 0.9.1. Loss: `clip_ratio_low`, `clip_ratio_high`, `clip_ratio_c`, `loss_agg_mode`,
/// `ppo_kl_coef` (the penalty of `KlCov`), `use_kl_loss`, `kl_loss_coef` and `kl_loss_type` of
/// `verl/trainer/config/actor/actor.yaml`. `use_kl_in_reward` and `kl_ctrl.kl_coef`:
/// `verl/trainer/config/ppo_trainer.yaml`. Optimizer: `lr` of `actor.yaml`, `weight_decay` and
/// `lr_scheduler_type` of `verl/trainer/config/optim/fsdp.yaml`. In verl the clips do not depend on the loss.
fn verl(preset: Preset) -> Preset {
    Preset {
        loss: Parameters::default()
            .with(&CLIP_LOW, 0.2)
            .with(&CLIP_HIGH, 0.2)
            .with(&DUAL_CLIP, 3.0)
            .with(&PENALTY, 0.1),
        aggregation: LossAggregation::TokenMean,
        kl_placement: KlPlacement::None,
        kl_coefficient: 0.001,
        kl_loss_estimator: KlEstimator::K3,
        learning_rate: 1e-6,
        weight_decay: 0.01,
        schedule: ScheduleKind::Constant,
        ..preset
    }
}

/// Defaults of TRL 1.16.0. Loss: `epsilon`, `epsilon_high`, `delta`, `loss_type` (`dapo`) and `beta` of
/// `trl/trainer/grpo_config.py`; the KL estimator is Schulman's k3, as in `_compute_loss` of
/// `trl/trainer/grpo_trainer.py`. Learning rates: `{sft,grpo,dpo,kto,reward}_config.py` in `trl/trainer`.
/// `weight_decay` and `lr_scheduler_type`: `TrainingArguments` of transformers 5.17.0
/// (`src/transformers/training_args.py`). The losses of DPO, KTO and reward models are those of this crate's
/// presets.
fn trl(kind: AlgorithmKind, preset: Preset) -> Preset {
    Preset {
        loss: Parameters::default().with(&CLIP_LOW, 0.2).with(&CLIP_HIGH, 0.2),
        aggregation: LossAggregation::TokenMean,
        kl_placement: KlPlacement::None,
        kl_coefficient: 0.001,
        kl_loss_estimator: KlEstimator::K3,
        learning_rate: match kind {
            AlgorithmKind::Sft => 2e-5,
            AlgorithmKind::RewardModel => 1e-4,
            _ => 1e-6,
        },
        weight_decay: 0.0,
        schedule: ScheduleKind::Linear,
        ..preset
    }
}
