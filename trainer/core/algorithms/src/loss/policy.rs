//! Queries of a policy loss about a batch, whichever formula it is: scope, aggregation, selected tokens, and
//! the terms of sequences.

use super::formula::RowTerm;
use super::{Aggregation, CovarianceInputs, LossError, LossInputs, LossScope, PolicyLoss};
use crate::declaration::Family;

impl PolicyLoss {
    /// Scope of the values that are needed to evaluate one token.
    pub fn scope(&self) -> LossScope {
        self.formula().scope()
    }

    /// The aggregation with which the loss is defined; `None` if any may be used.
    pub fn aggregation(&self) -> Option<Aggregation> {
        self.formula().aggregation()
    }

    /// Selects the tokens that a loss of [`super::LossScope::Batch`] treats specially: Clip-Cov at random
    /// among the candidates, KL-Cov the highest. Returns one flag per token, all false for other losses.
    ///
    /// verl selects per micro-batch, so its choice depends on the split; this selection is over the whole
    /// batch.
    ///
    /// # Errors
    /// When a slice does not fit the rows.
    pub fn select_tokens(&self, inputs: &CovarianceInputs<'_>) -> Result<Vec<bool>, LossError> {
        let rows = inputs.rows;
        rows.check_tokens("advantages", inputs.advantages)?;
        rows.check_tokens("logprobs", inputs.logprobs)?;
        if let Some(old_logprobs) = inputs.old_logprobs {
            rows.check_tokens("old_logprobs", old_logprobs)?;
        }
        let mut selected = vec![false; rows.num_tokens()];
        self.formula().choose(inputs).into_iter().for_each(|token| selected[token] = true);
        Ok(selected)
    }
}

/// Computes one term per row; empty for losses without one.
pub(super) fn row_terms(policy: &PolicyLoss, inputs: &LossInputs<'_>) -> Result<Vec<RowTerm>, LossError> {
    if policy.scope() != LossScope::Sequence {
        return Ok(Vec::new());
    }
    let log_ratios: Vec<f64> = match (inputs.actor_logprobs, inputs.old_logprobs) {
        (_, None) => vec![0.0; inputs.rows.num_tokens()],
        (Some(actor), Some(old)) => actor.iter().zip(old).map(|(actor, old)| actor - old).collect(),
        (None, Some(_)) => {
            return Err(LossError::Missing { loss: policy.kind().name(), input: "actor_logprobs" });
        }
    };
    let term = |row_idx| policy.formula().row_term(inputs, row_idx, &log_ratios);
    Ok((0..inputs.rows.num_rows()).map(term).collect())
}
