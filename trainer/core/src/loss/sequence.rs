//! Losses whose ratio belongs to a whole sequence: GSPO and GMPO.

use super::clipped::clipped_surrogate;
use super::policy::{Clip, PolicyLoss, Token, TokenLoss};
use super::{LossError, LossInputs, LossScope};
use crate::whiten::EPSILON;

/// GSPO's log-ratio is held below this.
const GSPO_LOG_RATIO_BOUND: f64 = 10.0;

/// What the tokens of one sequence share. All of it is constant for the gradient, except that a token's own
/// path through the ratio has the derivative that its loss applies.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowTerm {
    /// The sequence's ratio, 1 where the actor is the old policy.
    ratio: f64,
    /// Whether the bound on the ratio leaves its gradient alive.
    alive: bool,
    /// GMPO: mean advantage times the geometric mean of the rollout correction's weights.
    advantage: f64,
    /// GMPO: makes the tokens' losses sum to the sequence's, exactly as verl's 1e-8 in the mean has it.
    share: f64,
}

impl RowTerm {
    /// For losses that do not look at sequences.
    pub(super) const NONE: Self = Self { ratio: 1.0, alive: true, advantage: 0.0, share: 1.0 };
}

/// One term per row; empty for losses without one.
pub(super) fn row_terms(policy: &PolicyLoss, inputs: &LossInputs<'_>) -> Result<Vec<RowTerm>, LossError> {
    if policy.scope() != LossScope::Sequence {
        return Ok(Vec::new());
    }
    let log_ratios: Vec<f64> = match (inputs.actor_logprobs, inputs.old_logprobs) {
        (_, None) => vec![0.0; inputs.rows.num_tokens()],
        (Some(actor), Some(old)) => actor.iter().zip(old).map(|(actor, old)| actor - old).collect(),
        (None, Some(_)) => {
            return Err(LossError::Missing { loss: policy.name(), input: "actor_logprobs" });
        }
    };
    let term = |row_idx| match *policy {
        PolicyLoss::GeoMean { clip } => gmpo_row(inputs, row_idx, &log_ratios, clip),
        _ => gspo_row(inputs, row_idx, &log_ratios),
    };
    Ok((0..inputs.rows.num_rows()).map(term).collect())
}

fn gspo_row(inputs: &LossInputs<'_>, row_idx: usize, log_ratios: &[f64]) -> RowTerm {
    let rows = inputs.rows;
    let sum: f64 = rows.valid(rows.range(row_idx)).map(|token| log_ratios[token]).sum();
    let mean = sum / rows.valid_len(row_idx).max(1) as f64;
    RowTerm {
        ratio: mean.min(GSPO_LOG_RATIO_BOUND).exp(),
        alive: mean <= GSPO_LOG_RATIO_BOUND,
        ..RowTerm::NONE
    }
}

/// The ratio's value is the sequence's; its gradient reaches each token through that token's own log-prob.
pub(super) fn gspo(token: &Token, row: &RowTerm, clip: Clip) -> TokenLoss {
    clipped_surrogate(token.advantage, row.ratio, if row.alive { row.ratio } else { 0.0 }, clip)
}

fn gmpo_row(inputs: &LossInputs<'_>, row_idx: usize, log_ratios: &[f64], clip: Clip) -> RowTerm {
    let rows = inputs.rows;
    let len = rows.valid_len(row_idx) as f64;
    let mean = |value: &dyn Fn(usize) -> f64| {
        rows.valid(rows.range(row_idx)).map(value).sum::<f64>() / (len + EPSILON)
    };
    let bounded = |token: usize| gmpo_bound(inputs.advantages[token], log_ratios[token], clip);
    let weight = inputs.importance_weights.map_or(1.0, |w| mean(&|token| (w[token] + 1e-10).ln()).exp());
    RowTerm {
        ratio: mean(&bounded).exp(),
        alive: true,
        advantage: mean(&|token| inputs.advantages[token]) * weight,
        share: if len > 0.0 { (len + EPSILON) / len } else { 0.0 },
    }
}

/// GMPO bounds the log-ratio only on the side that the advantage pushes to; without an advantage it is 0.
fn gmpo_bound(advantage: f64, log_ratio: f64, clip: Clip) -> f64 {
    if advantage > 0.0 {
        log_ratio.min(clip.high)
    } else if advantage < 0.0 {
        log_ratio.max(-clip.low)
    } else {
        0.0
    }
}

pub(super) fn geo_mean(token: &Token, row: &RowTerm, clip: Clip) -> TokenLoss {
    let x = token.log_ratio();
    let outside = x < -clip.low || x > clip.high;
    let held = gmpo_bound(token.advantage, x, clip) != x;
    let sequence_loss = -row.advantage * row.ratio;
    TokenLoss {
        value: sequence_loss * row.share,
        gradient: if held { 0.0 } else { sequence_loss },
        clipped: outside && token.advantage > 0.0,
        clipped_lower: outside && token.advantage < 0.0,
    }
}
