//! The roles of a training: capabilities on the same ranks, which turn prompts into samples, samples into
//! rewards, batches into log-probs and values, and batches into updates.
//!
//! ```text
//! rollout.sample -> rewards.judge -> actor.score -> reference.score -> critic.value -> critic.update, actor.update
//! ```
//! Every method is collective: all ranks call it with the same arguments, each computes its share, and all get
//! the same result. Roles time and record what they do in the [`StepContext`]; in which order they are used is
//! decided by a recipe.

mod error;

use std::rc::Rc;

pub use self::error::StepError;
pub use crate::actor::ActorRole;
pub use crate::critic::CriticRole;
pub use crate::reference::ReferenceRole;
pub use crate::reward::RewardsRole;
pub use crate::rollout::{RolloutRole, Sampled};
use crate::step_context::StepContext;

/// Everything that computes.
pub struct Roles {
    /// Samples completions with the actor's weights.
    pub rollout: RolloutRole,
    /// Judges completions.
    pub rewards: RewardsRole,
    /// The policy that is trained.
    pub actor: ActorRole,
    /// The policy that the actor is held near.
    pub reference: ReferenceRole,
    /// The value function.
    pub critic: CriticRole,
    /// What all of them share.
    pub(crate) context: Rc<StepContext>,
}

impl Roles {
    /// The present step, as the roles see it.
    pub fn context(&self) -> &StepContext {
        &self.context
    }
}
