//! The recipes: each file is one algorithm, in the words of its paper. And what they are put together from
//! beside roles and data: dynamic sampling, the rollout correction, the advantage estimator.
//!
//! A crate of somebody else brings a recipe by implementing [`Recipe`] and handing [`crate::commands::main`]
//! a function like [`of`]; `examples/recipe` does.

mod correction;
mod estimator;
mod policy_gradient;
mod ppo;
mod sampling;
mod supervised;

use rlt_api::resolved::ResolvedSpec;

pub use self::correction::RolloutCorrection;
pub use self::estimator::Estimator;
pub use self::policy_gradient::PolicyGradient;
pub use self::ppo::Ppo;
pub use self::sampling::GroupSampling;
pub use self::supervised::Supervised;
pub use crate::run::recipe::{Recipe, Recipes};

/// The recipes that a manifest asks for.
pub fn of(spec: &ResolvedSpec) -> Recipes {
    let supervised =
        |batch_size: u32| -> Box<dyn Recipe> { Box::new(Supervised { batch_size: batch_size as usize }) };
    let training: Box<dyn Recipe> = match &spec.algorithm.policy_gradient {
        Some(algorithm) if algorithm.critic.is_some() => Box::new(Ppo::new(algorithm, spec)),
        Some(algorithm) => Box::new(PolicyGradient::new(algorithm, spec)),
        None => supervised(spec.training.prompts_per_step),
    };
    let cold_start = spec.algorithm.cold_start.as_ref();
    Recipes { cold_start: cold_start.map(|cold_start| supervised(cold_start.batch_size)), training }
}
