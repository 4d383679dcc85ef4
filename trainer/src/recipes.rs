//! Recipes: each file implements one algorithm, in the terms of its paper. Shared components are here, too:
//! dynamic sampling, the rollout correction, the advantage estimator.
//!
//! Another crate adds a recipe by implementing [`Recipe`] and passing [`crate::commands::main`] a function
//! like [`of`]; `examples/recipe` does.

mod correction;
mod estimator;
mod kto;
mod label_loss;
mod online_dpo;
mod pair_loss;
mod policy_gradient;
mod ppo;
mod preference;
mod process_reward;
mod reward_model;
mod reweighting;
mod sampling;
mod supervised;

use rlt_api::resolved::{self, ResolvedSpec};

pub use self::correction::RolloutCorrection;
pub use self::estimator::Estimator;
pub use self::kto::LabelledCompletions;
pub use self::label_loss::LabelLoss;
pub use self::online_dpo::OnlineDpo;
pub use self::pair_loss::PairLoss;
pub use self::policy_gradient::PolicyGradient;
pub use self::ppo::Ppo;
pub use self::preference::Preference;
pub use self::process_reward::ProcessReward;
pub use self::reward_model::RewardModel;
pub use self::reweighting::PolicyFiltration;
pub use self::sampling::GroupSampling;
pub use self::supervised::Supervised;
pub use crate::run::recipe::{Recipe, Recipes};

/// Creates the recipes that a manifest requests.
pub fn of(spec: &ResolvedSpec) -> Recipes {
    let supervised =
        |batch_size: u32| -> Box<dyn Recipe> { Box::new(Supervised { batch_size: batch_size as usize }) };
    let algorithm = &spec.algorithm;
    let training: Box<dyn Recipe> = if let Some(algorithm) = &algorithm.policy_gradient {
        match &algorithm.critic {
            Some(_) => Box::new(Ppo::new(algorithm, spec)),
            None => Box::new(PolicyGradient::new(algorithm, spec)),
        }
    } else if let Some(preference) = &algorithm.preference {
        of_preference(preference, spec)
    } else if let Some(reward_model) = &algorithm.reward_model {
        let batch_size = spec.training.prompts_per_step as usize;
        Box::new(RewardModel { batch_size, centring: reward_model.centering_coefficient })
    } else if algorithm.process_reward.is_some() {
        Box::new(ProcessReward { batch_size: spec.training.prompts_per_step as usize })
    } else {
        supervised(spec.training.prompts_per_step)
    };
    let cold_start = spec.algorithm.cold_start.as_ref();
    Recipes { cold_start: cold_start.map(|cold_start| supervised(cold_start.batch_size)), training }
}

fn of_preference(preference: &resolved::Preference, spec: &ResolvedSpec) -> Box<dyn Recipe> {
    let batch_size = spec.training.prompts_per_step as usize;
    match preference {
        resolved::Preference::Labels(kto) => {
            Box::new(LabelledCompletions { batch_size, loss: LabelLoss::of(kto) })
        }
        resolved::Preference::Pairs(pairs) if spec.algorithm.samples() => {
            Box::new(OnlineDpo { sampling: GroupSampling::of(spec), loss: PairLoss::of(pairs) })
        }
        resolved::Preference::Pairs(pairs) => Box::new(Preference { batch_size, loss: PairLoss::of(pairs) }),
    }
}
