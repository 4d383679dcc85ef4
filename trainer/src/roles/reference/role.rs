//! The reference as a role: it fills in log-probs of batches, and has the coefficient of the KL term.

use std::rc::Rc;

use rlt_api::resolved::Kl;
use rlt_api::spec::ReferenceSyncSpec;
use rlt_core::batch::Batch;
use rlt_core::digest;
use rlt_core::kl::{KlController, kl_in_reward, mean_kl};
use rlt_core::metrics::Metrics;
use rlt_decoder::Adapter;
use rlt_parallel::{DecoderUnits, RankError, WeightDigest};
use rlt_storage::checkpoint::Checkpoint;

use super::log_prob_cache::{self, LogProbCache};
use super::{CopyOptions, FrozenPolicy, Reference, ReferenceError};
use crate::roles::actor::ActorRole;
use crate::roles::error::StepError;
use crate::roles::step_context::StepContext;

/// The reference policy as a role, with the KL term that uses it.
pub struct ReferenceRole {
    pub(crate) policy: Reference,
    /// Token budget of a pass on one rank.
    pub(crate) max_forward_tokens: usize,
    /// How a frozen copy is stored, in the run folder.
    pub(crate) copy_options: CopyOptions,
    pub(crate) controller: KlController,
    /// The KL term of the algorithm.
    pub(crate) kl: Kl,
    /// Whether the algorithm reads log-probs under the reference.
    pub(crate) is_read: bool,
    /// The cache of [`Self::score_once`]; `None` until it is first called.
    pub(crate) cache: Option<LogProbCache>,
    /// How the reference follows the actor; `None` if it never changes.
    pub(crate) sync: Option<ReferenceSyncSpec>,
    /// Whether the reference is a copy that only this run has: made after a cold start, or changed since.
    pub(crate) is_own: bool,
    pub(crate) context: Rc<StepContext>,
}

/// Creates the initial controller of a KL term.
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

impl ReferenceRole {
    /// Returns the coefficient of the KL term in the present step.
    pub fn kl_coefficient(&self) -> f64 {
        self.controller.coefficient()
    }

    /// Whether [`Self::penalize`] needs the actor's log-probs.
    pub fn reads_old_logprobs(&self) -> bool {
        matches!(self.kl, Kl::Reward(_)) || self.kl.term().is_some_and(|term| term.adaptive.is_some())
    }

    /// Fills in the reference's log-probs, if the algorithm reads them.
    ///
    /// # Errors
    /// [`StepError::Failed`].
    pub fn score(&self, actor: &ActorRole, mut batch: Batch) -> Result<Batch, StepError> {
        if self.is_read {
            batch.ref_logprobs = Some(self.logprobs(actor, &batch)?);
        }
        Ok(batch)
    }

    /// Does the same as [`Self::score`] for completions of a data set, each of which is computed only once.
    /// Later epochs and resumed runs read the cache in the run folder, under the digest of the reference's
    /// weights.
    ///
    /// # Errors
    /// [`StepError::Failed`].
    pub fn score_once(&mut self, actor: &ActorRole, mut batch: Batch) -> Result<Batch, StepError> {
        if !self.is_read {
            return Ok(batch);
        }
        let mut cache = match self.cache.take() {
            Some(cache) => cache,
            None => {
                let digest = self.digest(actor)?;
                let ranks = actor.policy.learner.ranks().world();
                LogProbCache::open(&self.copy_options.folder.join(log_prob_cache::FOLDER), digest, ranks)
            }
        };
        let logprobs = match cache.find(&batch)? {
            Some(logprobs) => logprobs,
            None => cache.keep(&batch, &self.logprobs(actor, &batch)?)?,
        };
        self.cache = Some(cache);
        batch.ref_logprobs = Some(logprobs);
        Ok(batch)
    }

    /// Computes the digest of the reference's weights, the same on all ranks.
    fn digest(&self, actor: &ActorRole) -> Result<u64, StepError> {
        let units = match &self.policy {
            Reference::Frozen(Some(copy)) => DecoderUnits::new(copy.decoder(), copy.shards()),
            Reference::None | Reference::AdapterOff | Reference::Frozen(None) => actor.units(),
        };
        let trained = match &self.policy {
            Reference::AdapterOff => actor.decoder().trainable_parameters(),
            Reference::None | Reference::Frozen(_) => Vec::new(),
        };
        let is_trained = |name: &str| trained.iter().any(|(own, _)| own == name);
        let own = WeightDigest::of(units)?.combined(|name| !is_trained(name));
        self.policy.release_pages();
        // Each rank has its own shards; without sharding all ranks have the same weights.
        Ok(match units.shards() {
            None => own,
            Some(_) => {
                let ranks = actor.policy.learner.ranks().world();
                ranks.all_gather(own)?.into_iter().fold(0, digest::combine)
            }
        })
    }

    fn logprobs(&self, actor: &ActorRole, batch: &Batch) -> Result<Vec<f64>, StepError> {
        self.context.end_sampling()?;
        let (actor, max_tokens) = (&actor.policy, self.max_forward_tokens);
        let scores = self.context.measure("ref", || {
            let scores = match &self.policy {
                Reference::Frozen(Some(copy)) => copy.score(actor, batch, max_tokens),
                Reference::None | Reference::AdapterOff | Reference::Frozen(None) => {
                    actor.score(batch, Adapter::Off, max_tokens)
                }
            };
            self.policy.release_pages();
            scores
        })?;
        Ok(scores.logprobs)
    }

    /// Subtracts the KL penalty from the token rewards if the KL term is in the reward, and passes the
    /// divergence to the controller.
    ///
    /// # Errors
    /// [`StepError::Failed`] or [`StepError::Other`] if log-probs are missing or do not fit.
    pub fn penalize(&mut self, mut batch: Batch) -> Result<Batch, StepError> {
        let (Some(old), Some(reference)) = (&batch.old_logprobs, &batch.ref_logprobs) else {
            return Ok(batch);
        };
        let Some(term) = self.kl.term() else { return Ok(batch) };
        let (estimator, coefficient) = (term.estimator, self.kl_coefficient());
        let num_rows = batch.rows.num_rows();
        if let Kl::Reward(_) = self.kl {
            let rewards = &batch.token_rewards;
            let penalized = kl_in_reward(&batch.rows, rewards, old, reference, estimator, coefficient)?;
            self.context.record(Metrics::from([
                ("actor/reward_kl_penalty".into(), penalized.mean_kl),
                ("actor/reward_kl_penalty_coeff".into(), coefficient),
            ]));
            self.controller.update(penalized.mean_kl, num_rows);
            batch.token_rewards = penalized.token_rewards;
            return Ok(batch);
        }
        // If the term is in the loss, the controller follows the same estimate, taken before the update.
        self.controller.update(mean_kl(&batch.rows, old, reference, estimator)?, num_rows);
        Ok(batch)
    }

    /// Copies the present weights as the reference, if the algorithm needs a copy and there is none.
    pub(crate) fn freeze(&mut self, actor: &ActorRole) -> Result<(), RankError> {
        if let Reference::Frozen(copy @ None) = &mut self.policy {
            *copy = Some(Box::new(FrozenPolicy::copy_of(&actor.policy, &self.copy_options)?));
            self.is_own = true;
        }
        Ok(())
    }

    /// Moves the reference towards the actor if that is due after `num_done` training steps. Collective.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost, or the file that holds the reference cannot be written.
    pub(crate) fn sync(&mut self, actor: &ActorRole, num_done: u64) -> Result<(), RankError> {
        let Some(ReferenceSyncSpec { every_steps, alpha }) = self.sync else { return Ok(()) };
        let Reference::Frozen(Some(copy)) = &self.policy else { return Ok(()) };
        if !num_done.is_multiple_of(every_steps.into()) {
            return Ok(());
        }
        self.context.measure("update_ref", || copy.sync(&actor.policy, alpha))?;
        self.policy.release_pages();
        self.is_own = true;
        // The cached log-probs belong to the earlier weights. Their file in the run folder is named after the
        // digest of those weights.
        self.cache = None;
        Ok(())
    }

    /// Releases the memory of a copy until it is read again.
    pub(crate) fn release_pages(&self) {
        self.policy.release_pages();
    }

    /// Returns the copy that a checkpoint must save, because only this run has it.
    pub(crate) fn own_copy(&self) -> Option<&FrozenPolicy> {
        match &self.policy {
            Reference::Frozen(Some(copy)) if self.is_own => Some(copy),
            _ => None,
        }
    }

    /// Loads the reference from a checkpoint that has one, which is so after a cold start and if the
    /// reference follows the actor. Otherwise the reference that was made from the model's source is kept.
    ///
    /// # Errors
    /// [`ReferenceError`] if a tensor is missing or of another shape, or there is not enough memory.
    pub(crate) fn load(&mut self, actor: &ActorRole, checkpoint: &Checkpoint) -> Result<(), ReferenceError> {
        if !matches!(self.policy, Reference::Frozen(_)) {
            return Ok(());
        }
        if let Some(copy) = FrozenPolicy::of_checkpoint(&actor.policy, checkpoint, &self.copy_options)? {
            self.policy = Reference::Frozen(Some(Box::new(copy)));
            self.is_own = true;
        }
        Ok(())
    }
}
