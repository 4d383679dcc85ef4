//! The roles of a training: capabilities on the same ranks, which compute samples of prompts, rewards of
//! samples, log-probs and values of batches, and updates.
//!
//! ```text
//! rollout.sample -> rewards.judge -> {actor, reference}.score, critic.value -> {critic, actor}.update
//! ```
//! Every method is collective: all ranks call it with the same arguments, each computes its share, and all
//! get the same result. Roles time and record what they do in the [`StepContext`]; a recipe calls them in
//! order.

pub mod actor;
pub mod critic;
mod error;
pub mod learner;
pub mod objective;
pub mod offload;
pub mod optim;
pub mod reference;
pub mod reward;
pub mod rollout;
pub mod step_context;
pub(crate) mod trainable;
pub mod update;

use std::rc::Rc;

pub use self::error::StepError;
pub use crate::roles::actor::ActorRole;
pub use crate::roles::critic::CriticRole;
pub use crate::roles::reference::ReferenceRole;
pub use crate::roles::reward::RewardsRole;
pub use crate::roles::rollout::{RolloutRole, Sampled};
use crate::roles::step_context::StepContext;

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
