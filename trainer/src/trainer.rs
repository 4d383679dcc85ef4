//! Everything a run holds, and the few acts that more than one part of the loop needs.
//!
//! Built once by [`crate::setup`]; every rank has one. What happens with it is in `train`, `step`,
//! `evaluate`.

use rlt_api::ValidatedJob;
use rlt_api::resolved::{Kl, PolicyGradient, ResolvedSpec};
use rlt_core::batch::Demonstration;
use rlt_core::kl::KlController;
use rlt_core::permutation::splitmix64;
use rlt_core::schedule::Schedule;
use rlt_core::types::Prompt;

use crate::actor::Actor;
use crate::checkpoint::CheckpointStore;
use crate::critic::{Critic, CriticOptions};
use crate::data::{Dataset, Loader};
use crate::error::TrainError;
use crate::model::BaseModel;
use crate::offload::Offload;
use crate::parallel::Ranks;
use crate::phases::memory;
use crate::reference::{FrozenPolicy, Reference};
use crate::reward::{RewardModels, RewardPool};
use crate::rollout::RolloutEngine;
use crate::run_folder::RunFolder;
use crate::saving::Saving;
use crate::stop::{StopReason, StopRequest};
use crate::tokenizer::Tokenizer;
use crate::watch::Watchers;

/// How far a run has come: what a checkpoint keeps besides tensors and the data's position.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Progress {
    /// Steps that are complete; also the policy's version.
    pub step: u64,
    /// Supervised steps that are complete.
    pub cold_start_steps: u64,
    /// Steps in a row whose update was skipped.
    pub consecutive_non_finite: u32,
    /// Mean held-out reward before the first step.
    pub first_evaluation: Option<f64>,
    /// Mean held-out reward of the latest evaluation.
    pub last_evaluation: Option<f64>,
    /// Seconds of training in all attempts, up to the checkpoint.
    pub elapsed_seconds: f64,
    /// Completion and prompt tokens trained on so far.
    pub num_tokens: u64,
}

/// A run: the job, its models, its data, and everything that watches it.
pub struct Trainer {
    pub(crate) job: ValidatedJob,
    pub(crate) folder: RunFolder,
    /// The ranks that run this job together.
    pub(crate) ranks: Ranks,
    /// The same ranks as they share the critic's tokens.
    pub(crate) critic_ranks: Ranks,
    pub(crate) actor: Actor,
    pub(crate) reference: Reference,
    /// The value function; `None` until the first step, and for algorithms that know none.
    pub(crate) critic: Option<Critic>,
    pub(crate) engine: RolloutEngine,
    pub(crate) tokenizer: Tokenizer,
    /// Prompts to train on; `None` for supervised training.
    pub(crate) prompts: Option<Loader<Prompt>>,
    /// Demonstrations of the cold start or of supervised training.
    pub(crate) demonstrations: Option<Loader<Demonstration>>,
    pub(crate) held_out: Dataset<Prompt>,
    pub(crate) rewards: RewardPool,
    /// Asked before the pool judges.
    pub(crate) reward_models: RewardModels,
    /// What the model was read from; `None` for a new one.
    pub(crate) base_model: Option<BaseModel>,
    /// Numbers in which the model was stored where it came from.
    pub(crate) source_kind: tch::Kind,
    pub(crate) kl: KlController,
    pub(crate) schedule: Schedule,
    pub(crate) checkpoints: CheckpointStore,
    pub(crate) watch: Watchers,
    /// What people have to know although the run goes on.
    pub(crate) warning: Option<String>,
    pub(crate) stop: StopRequest,
    pub(crate) progress: Progress,
    pub(crate) num_steps: u64,
    /// Cold-start steps and steps at the latest checkpoint.
    pub(crate) saved_at: Option<(u64, u64)>,
    /// How ranks save, and the checkpoint that is being saved.
    pub(crate) saving: Saving,
    /// How long the training has waited for checkpoints, until a step reports it.
    pub(crate) seconds_saving: Option<f64>,
    pub(crate) started: std::time::Instant,
}

/// The part of the seed of weights that is the critic's adapter.
const CRITIC_ADAPTER: u64 = 1;

/// What a random number is for; each use has a stream of its own, so that none moves another.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SeedStream {
    /// Completions of the training.
    Rollout = 1,
    /// Completions of an evaluation.
    Evaluation = 2,
    /// What is random in an update.
    Update = 3,
    /// Fresh weights and adapters.
    Weights = 4,
    /// Order of the data.
    Data = 5,
}

impl Trainer {
    pub(crate) fn spec(&self) -> &ResolvedSpec {
        self.job.spec()
    }

    /// The reinforcement learning of the job; an error in supervised training, where nothing asks for it.
    pub(crate) fn algorithm(&self) -> Result<&PolicyGradient, TrainError> {
        self.spec().algorithm.policy_gradient.as_ref().ok_or(TrainError::NoPolicyGradient)
    }

    /// A number that depends on the job's seed, its use, and `parts`, and on nothing else.
    pub(crate) fn seed(&self, stream: SeedStream, parts: &[u64]) -> u64 {
        seed(self.spec().training.seed, stream, parts)
    }

    /// Whether to stop now, and why: as soon as one rank was asked to, all agree.
    pub(crate) fn stop_reason(&self) -> Result<Option<StopReason>, TrainError> {
        let own = match self.stop.reason() {
            None => 0,
            Some(StopReason::Deadline) => 1,
            Some(StopReason::Signal) => 2,
        };
        Ok(match self.ranks.max(own)? {
            0 => None,
            1 => Some(StopReason::Deadline),
            _ => Some(StopReason::Signal),
        })
    }

    /// Passes over the data that are complete.
    pub(crate) fn epoch(&self) -> u64 {
        let demonstrations = || self.demonstrations.as_ref().map(|loader| loader.state().epoch);
        self.prompts.as_ref().map(|loader| loader.state().epoch).or_else(demonstrations).unwrap_or(0)
    }

    /// Lets the engine hold the actor's weights of the current policy version, if it does not yet. Where
    /// ranks share the model all of them take part.
    pub(crate) fn sync_weights(&mut self) -> Result<(), TrainError> {
        // The cold start changes weights without a step, so version 0 is taken over anew.
        if self.engine.policy_version() != Some(self.progress.step) {
            let (engine, policy) = (&mut self.engine, self.actor.parts());
            memory::during("update_weights", || engine.sync_weights(policy, self.progress.step))?;
        }
        Ok(())
    }

    /// Gives the memory of generation back.
    pub(crate) fn end_rollout(&mut self) {
        self.engine.sleep();
    }

    /// Keeps a copy of the present weights as the reference, where the algorithm needs one and has none.
    pub(crate) fn freeze_reference(&mut self) -> Result<(), TrainError> {
        if let Reference::Frozen(copy @ None) = &mut self.reference {
            *copy = Some(Box::new(FrozenPolicy::copy_of(&self.actor, self.folder.root())?));
        }
        Ok(())
    }

    /// Makes a critic of the present weights, where the algorithm needs one and has none.
    pub(crate) fn begin_critic(&mut self) -> Result<(), TrainError> {
        let Some(critic) = self.critic_spec().filter(|_| self.critic.is_none()) else { return Ok(()) };
        let options = CriticOptions {
            critic,
            optimizer: crate::setup::optimizer_options(self.spec()),
            activation_checkpointing: self.spec().training.activation_checkpointing.unwrap_or(false),
            max_grad_norm: self.spec().training.max_grad_norm,
            offload: Offload::new(self.spec().training.offload, self.folder.root()),
        };
        let lora = self.spec().model.lora.as_ref();
        let lora = lora.map(|lora| (lora, self.seed(SeedStream::Weights, &[CRITIC_ADAPTER])));
        self.critic = Some(Critic::beginning_as(&self.actor, lora, options, self.critic_ranks.clone())?);
        Ok(())
    }

    fn critic_spec(&self) -> Option<rlt_api::spec::CriticSpec> {
        self.spec().algorithm.policy_gradient.as_ref()?.critic.clone()
    }

    /// Whether the present step trains the critic alone.
    pub(crate) fn is_critic_alone(&self) -> bool {
        self.critic.as_ref().is_some_and(|critic| self.progress.step < critic.warmup_steps())
    }

    /// Takes note of updates that were skipped for a loss or gradient that was not finite.
    pub(crate) fn count_skipped(&mut self, num_skipped: usize) {
        let count = &mut self.progress.consecutive_non_finite;
        *count = if num_skipped > 0 { *count + 1 } else { 0 };
    }

    /// Fails once too many steps in a row were skipped.
    pub(crate) fn check_divergence(&self) -> Result<(), TrainError> {
        let num_steps = self.progress.consecutive_non_finite;
        if num_steps < self.spec().training.max_consecutive_non_finite {
            return Ok(());
        }
        Err(TrainError::Diverged { num_steps, last_step: self.progress.step })
    }

    /// Seconds of training in all attempts until now.
    pub(crate) fn elapsed_seconds(&self) -> f64 {
        self.progress.elapsed_seconds + self.started.elapsed().as_secs_f64()
    }
}

/// A number that depends on `job_seed`, its use, and `parts`, and on nothing else.
pub(crate) fn seed(job_seed: u64, stream: SeedStream, parts: &[u64]) -> u64 {
    parts.iter().fold(splitmix64(job_seed, stream as u64), |seed, part| splitmix64(seed, *part))
}

/// The controller that a KL term begins with.
pub(crate) fn kl_controller(kl: &Kl) -> KlController {
    match kl.term() {
        None => KlController::Fixed { coefficient: 0.0 },
        Some(term) => match &term.adaptive {
            None => KlController::Fixed { coefficient: term.coefficient },
            Some(adaptive) => KlController::Adaptive {
                coefficient: term.coefficient,
                target: adaptive.target,
                horizon: adaptive.horizon as f64,
            },
        },
    }
}
