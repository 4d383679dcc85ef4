//! The full objective of an update, evaluated over any chunk of tokens.

use std::ops::Range;
use std::sync::Arc;

use super::formula::{RowTerm, Token, TokenLoss, record};
use super::policy::row_terms;
use super::{
    Aggregation, Denominators, LossError, LossInputs, LossMetrics, LossScope, PolicyLoss, imitation_loss,
};
use crate::declaration::Family;
use crate::kl::KlEstimator;
use crate::rows::Rows;

/// A KL penalty in the loss (verl's `use_kl_loss`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KlTerm {
    /// Estimator of the KL divergence.
    pub estimator: KlEstimator,
    /// Weight of the penalty.
    pub coefficient: f64,
}

/// A term that raises the likelihood of completions with a high reward: VAPO's language-model loss of
/// positive examples (arXiv 2504.05118, section 4.3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PositiveTerm {
    /// Weight of the term, mu in the paper.
    pub coefficient: f64,
    /// Reward above which completions are positive examples.
    pub threshold: f64,
}

/// The objective of an update: loss = agg(policy loss) + kl.coefficient * agg(KL to the reference) -
/// entropy_coefficient * agg(entropy) + positive.coefficient * mean over tokens of positive examples
/// (-log-prob).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    /// Policy loss and its parameters.
    pub policy: PolicyLoss,
    /// Aggregation of token losses. Some policy losses have a fixed one ([`PolicyLoss::aggregation`]); the
    /// other terms always use this one.
    pub aggregation: Aggregation,
    /// KL penalty to the reference policy.
    pub kl: Option<KlTerm>,
    /// Weight of the entropy bonus; 0 for none.
    pub entropy_coefficient: f64,
    /// Term that raises the likelihood of completions with a high reward.
    pub positive: Option<PositiveTerm>,
}

impl LossInputs<'_> {
    fn check(&self, objective: &Objective) -> Result<(), LossError> {
        let missing = |loss, input| Err(LossError::Missing { loss, input });
        self.rows.check_tokens("advantages", self.advantages)?;
        let optional = [
            ("old_logprobs", self.old_logprobs),
            ("ref_logprobs", self.ref_logprobs),
            ("importance_weights", self.importance_weights),
            ("actor_logprobs", self.actor_logprobs),
            ("positive_weights", self.positive_weights),
        ];
        for (name, slice) in optional {
            slice.map_or(Ok(()), |slice| self.rows.check_tokens(name, slice))?;
        }
        self.selected.map_or(Ok(()), |selected| self.rows.check_tokens("selected", selected))?;
        if objective.kl.is_some() && self.ref_logprobs.is_none() {
            return missing("kl", "ref_logprobs");
        }
        if objective.positive.is_some() && self.positive_weights.is_none() {
            return missing("positive", "positive_weights");
        }
        if objective.policy.scope() == LossScope::Batch && self.selected.is_none() {
            return missing(objective.policy.kind().name(), "selected");
        }
        Ok(())
    }
}

/// The loss of a micro-batch (or of a chunk), with its gradients.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LossOutputs {
    /// Summand of the whole batch's loss.
    pub loss: f64,
    /// d loss / d log-prob of each token; 0 where masked.
    pub dlogprobs: Vec<f64>,
    /// d loss / d entropy of each token; 0 where masked.
    pub dentropies: Vec<f64>,
    /// Metrics to add over all parts of the batch.
    pub metrics: LossMetrics,
}

impl Objective {
    /// Returns the weight of each token of an update in the loss of positive examples, by the rewards of its
    /// rows: the coefficient divided by the number of their tokens, 0 in other completions. `None` without
    /// such a term.
    ///
    /// # Errors
    /// When the number of rewards is not that of the rows.
    pub fn positive_weights(&self, rows: &Rows, rewards: &[f64]) -> Result<Option<Vec<f64>>, LossError> {
        let Some(PositiveTerm { coefficient, threshold }) = self.positive else { return Ok(None) };
        rows.check_rows("rewards", rewards)?;
        let is_positive: Vec<bool> = rewards.iter().map(|reward| *reward > threshold).collect();
        let of_row = |row_idx: usize| if is_positive[row_idx] { rows.valid_len(row_idx) } else { 0 };
        let num_tokens = (0..rows.num_rows()).map(of_row).sum();
        let zeros = vec![0.0; rows.num_tokens()];
        // The derivative of a mean negative log-likelihood by a log-prob is minus the token's share of the
        // mean.
        let slopes = imitation_loss(rows, &zeros, &is_positive, num_tokens)?.dlogprobs;
        Ok(Some(slopes.into_iter().map(|slope| -coefficient * slope).collect()))
    }

    /// Prepares everything about a micro-batch that does not depend on the actor's log-probs. `batch` counts
    /// the whole batch of the update.
    ///
    /// # Errors
    /// When slices do not match the rows or one that the objective reads is missing.
    pub fn prepare<'a>(
        &self,
        inputs: LossInputs<'a>,
        batch: &Denominators,
    ) -> Result<PreparedLoss<'a>, LossError> {
        inputs.check(self)?;
        let term_weights = self.aggregation.weights(inputs.rows, batch);
        let own = self.policy.aggregation().unwrap_or(self.aggregation);
        let mut policy_weights =
            if own == self.aggregation { term_weights.clone() } else { own.weights(inputs.rows, batch) };
        if let Some(weights) = inputs.importance_weights.filter(|_| self.policy.formula().weighs_tokens()) {
            policy_weights.iter_mut().zip(weights).for_each(|(weight, correction)| *weight *= correction);
        }
        let rows = row_terms(&self.policy, &inputs)?;
        let weights = Arc::new(LossWeights { policy: policy_weights, terms: term_weights, rows });
        Ok(PreparedLoss { objective: *self, inputs, weights })
    }

    /// Restores the result of [`Self::prepare`] for the same `inputs`, from its weights.
    ///
    /// # Errors
    /// The errors of [`Self::prepare`].
    pub fn resume<'a>(
        &self,
        inputs: LossInputs<'a>,
        weights: Arc<LossWeights>,
    ) -> Result<PreparedLoss<'a>, LossError> {
        inputs.check(self)?;
        inputs.rows.check_tokens("loss weights", &weights.policy)?;
        Ok(PreparedLoss { objective: *self, inputs, weights })
    }
}

/// Prepared weights of a micro-batch's loss: of tokens and of sequences.
#[derive(Debug)]
pub struct LossWeights {
    policy: Vec<f64>,
    terms: Vec<f64>,
    rows: Vec<RowTerm>,
}

/// An objective prepared for one micro-batch, to be evaluated on log-probs.
#[derive(Clone, Debug)]
pub struct PreparedLoss<'a> {
    objective: Objective,
    inputs: LossInputs<'a>,
    weights: Arc<LossWeights>,
}

impl PreparedLoss<'_> {
    /// Returns owned copies, for a caller that evaluates the loss later with inputs of its own:
    /// [`Objective::resume`].
    pub fn owned(&self) -> (Objective, Arc<LossWeights>) {
        (self.objective, Arc::clone(&self.weights))
    }

    /// Computes loss and gradients of the tokens `chunk` of the micro-batch, given their log-probs and
    /// entropies under the actor (f32 or f64, one per token of the chunk). Chunks may have any order and
    /// size; entries of masked tokens are never read.
    ///
    /// # Errors
    /// When the chunk exceeds the rows or the slices have another length.
    pub fn evaluate<T: Copy + Into<f64>>(
        &self,
        chunk: Range<usize>,
        logprobs: &[T],
        entropies: &[T],
    ) -> Result<LossOutputs, LossError> {
        self.check(&chunk, logprobs.len(), entropies.len())?;
        let mut outputs = LossOutputs {
            dlogprobs: vec![0.0; chunk.len()],
            dentropies: vec![0.0; chunk.len()],
            ..LossOutputs::default()
        };
        let rows = self.inputs.rows;
        let mut row_idx = rows.row_of(chunk.start);
        for token in rows.valid(chunk.clone()) {
            while token >= rows.range(row_idx).end {
                row_idx += 1;
            }
            let at = token - chunk.start;
            self.add_policy(token, row_idx, logprobs[at].into(), at, &mut outputs);
            self.add_terms(token, logprobs[at].into(), entropies[at].into(), at, &mut outputs);
        }
        outputs.loss = self.total(&outputs.metrics);
        Ok(outputs)
    }

    fn add_policy(
        &self,
        token_idx: usize,
        row_idx: usize,
        logprob: f64,
        at: usize,
        outputs: &mut LossOutputs,
    ) {
        let token = Token {
            logprob,
            old_logprob: self.inputs.old_logprobs.map_or(logprob, |old| old[token_idx]),
            advantage: self.inputs.advantages[token_idx],
        };
        let row = self.weights.rows.get(row_idx).unwrap_or(&RowTerm::NONE);
        let selected = self.inputs.selected.is_some_and(|selected| selected[token_idx]);
        let formula = self.objective.policy.formula();
        let loss: TokenLoss = formula.token(&token, row, selected);
        let weight = self.weights.policy[token_idx];
        outputs.metrics.pg_loss += weight * loss.value;
        outputs.dlogprobs[at] += weight * loss.gradient;
        record(formula, &mut outputs.metrics, &token, &loss);
    }

    fn add_terms(&self, token_idx: usize, logprob: f64, entropy: f64, at: usize, outputs: &mut LossOutputs) {
        let weight = self.weights.terms[token_idx];
        if let (Some(kl), Some(ref_logprobs)) = (self.objective.kl, self.inputs.ref_logprobs) {
            let ref_logprob = ref_logprobs[token_idx];
            outputs.metrics.kl_loss += weight * kl.estimator.value(logprob, ref_logprob);
            outputs.dlogprobs[at] += weight * kl.coefficient * kl.estimator.gradient(logprob, ref_logprob);
        }
        if let Some(weights) = self.inputs.positive_weights {
            outputs.metrics.positive_loss -= weights[token_idx] * logprob;
            outputs.dlogprobs[at] -= weights[token_idx];
        }
        outputs.metrics.entropy += weight * entropy;
        outputs.dentropies[at] = -weight * self.objective.entropy_coefficient;
    }

    fn total(&self, metrics: &LossMetrics) -> f64 {
        let kl = self.objective.kl.map_or(0.0, |kl| kl.coefficient * metrics.kl_loss);
        metrics.pg_loss + kl - self.objective.entropy_coefficient * metrics.entropy + metrics.positive_loss
    }

    fn check(
        &self,
        chunk: &Range<usize>,
        num_logprobs: usize,
        num_entropies: usize,
    ) -> Result<(), LossError> {
        let num_tokens = self.inputs.rows.num_tokens();
        let fits = chunk.start <= chunk.end && chunk.end <= num_tokens;
        if fits && chunk.len() == num_logprobs && chunk.len() == num_entropies {
            return Ok(());
        }
        let Range { start, end } = *chunk;
        Err(LossError::Chunk { start, end, num_tokens, num_logprobs, num_entropies })
    }
}
