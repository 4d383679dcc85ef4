//! Roles of a training, on all ranks: they compute samples of prompts, rewards of samples, log-probs and
//! values of batches, and updates.
//!
//! ```text
//! rollout.sample -> rewards.judge -> {actor, reference}.score, critic.value -> {critic, actor}.update
//! ```
//! Every method is collective: all ranks call it with the same arguments, each computes its share, and all
//! get the same result. Roles time and record their work in the [`StepContext`]; a recipe calls them in
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

use std::rc::Rc;

pub use self::error::{StepError, StepFault};
pub use crate::roles::actor::ActorRole;
pub use crate::roles::critic::CriticRole;
pub use crate::roles::reference::ReferenceRole;
pub use crate::roles::reward::{RewardsRole, Sampled};
pub use crate::roles::rollout::RolloutRole;
use crate::roles::step_context::StepContext;

/// Roles that a recipe combines into a step.
pub struct Roles {
    /// Role that samples completions with the actor's weights.
    pub rollout: RolloutRole,
    /// Role that scores completions.
    pub rewards: RewardsRole,
    /// Policy that is trained.
    pub actor: ActorRole,
    /// Policy that the actor is regularized towards.
    pub reference: ReferenceRole,
    /// Value function of PPO.
    pub critic: CriticRole,
    /// State of the current step, shared by all roles.
    pub(crate) context: Rc<StepContext>,
}

impl Roles {
    /// Returns the state of the current step, shared by all roles.
    pub fn context(&self) -> &StepContext {
        &self.context
    }
}
